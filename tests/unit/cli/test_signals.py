"""Ctrl-C and SIGTERM at any moment of any command: the right code, and nothing that an operator
would have to read."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.extent import few
from watchrelay.cli.signals import exit_code

_ROOT = Path(__file__).resolve().parents[3]

INT, TERM = signal.SIGINT, signal.SIGTERM

_AT_AN_IMPORT = """\
import os, sys
module, number = sys.argv.pop(1), int(sys.argv.pop(1))
sys.addaudithook(lambda event, args: event == "import" and args[0] == module and os.kill(os.getpid(), number))
from watchrelay.__main__ import main
sys.exit(main())
"""
"""The program, which is sent a signal by itself where it begins to import a module."""

_AT_THE_END = """\
import os, sys
number, end = int(sys.argv.pop(1)), os._exit
def late(code):
    os._exit = end
    os.kill(os.getpid(), number)
    end(code)
os._exit = late
from watchrelay.__main__ import main
sys.exit(main())
"""


def config(folder: Path, broker: str = "127.0.0.1:1") -> str:
    file = folder / "w.yaml"
    file.write_text(
        f"cluster: c\nkafka: {{bootstrapServers: ['{broker}']}}\nresources: [{{resource: pods}}]\n"
    )
    return str(file)


def done(code: str, *arguments: str) -> tuple[int, str, str]:
    argv = [sys.executable, "-c", code, *arguments]
    ended = subprocess.run(argv, cwd=_ROOT, capture_output=True, text=True, timeout=60, check=False)
    return ended.returncode, ended.stdout, ended.stderr


@pytest.mark.parametrize("number", few([TERM, INT], 1))
@pytest.mark.parametrize(
    ("command", "module"),
    [
        ("version", "watchrelay.cli.main"),
        ("run", "argparse"),
        ("run", "watchrelay.daemon.memory"),
        ("run", "pydantic"),
        ("run", "aiohttp"),
        ("demo", "watchrelay.core.errors"),
        ("demo", "pydantic"),
        ("tail", "aiokafka"),
        ("tail", "pydantic"),
        ("verify", "asyncio"),
        ("validate", "pydantic"),
    ],
)
def test_a_signal_during_any_import_ends_in_silence(
    tmp_path: Path, command: str, module: str, number: int
) -> None:
    arguments = [command] if command in ("demo", "version") else [command, "-c", config(tmp_path)]
    code, out, err = done(_AT_AN_IMPORT, module, str(number), *arguments)
    assert (
        code,
        err.replace("watchrelay: stopped by a signal before startup was complete\n", ""),
    ) == (
        exit_code(arguments, number),
        "",
    )
    assert "Traceback" not in out


@pytest.mark.parametrize("number", [INT, TERM])
def test_a_signal_while_kafka_is_imported_behind_the_first_request_stops_the_relay(
    tmp_path: Path, number: int
) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(
        "{clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}], "
        "contexts: [{name: c, context: {cluster: c, user: u}}], current-context: c, "
        "users: [{name: u, user: {}}]}"
    )
    settings = [f"kubernetes.kubeconfig={kubeconfig}", "observe.listen=127.0.0.1:0"]
    sets = [word for each in settings for word in ("--set", each)]
    arguments = ["run", "-c", config(tmp_path), *sets, "--set", "observe.logFormat=json"]
    code, out, err = done(_AT_AN_IMPORT, "aiokafka", str(number), *arguments)
    messages = [json.loads(line)["message"] for line in err.splitlines()]
    assert (code, out, messages[0], messages[-1]) == (0, "", "started", "stopped")


@pytest.mark.parametrize("number", [INT, TERM])
def test_a_signal_while_the_process_ends_changes_nothing(tmp_path: Path, number: int) -> None:
    code, out, err = done(_AT_THE_END, str(number), "validate", "-c", config(tmp_path))
    assert (code, err) == (0, "")
    assert "good" in out
    assert done(_AT_THE_END, str(number), "validate", "-c", "absent")[0] == 78


@pytest.mark.parametrize(
    ("arguments", "codes"),
    few(
        [
            (["tail"], (0, 0)),
            (["verify"], (130, 143)),
            (["tail", "--until-end"], (130, 143)),
            (["topics"], (130, 143)),
            (["snapshot"], (130, 143)),
        ],
        2,
    ),
)
@pytest.mark.parametrize("which", [0, 1])
def test_a_signal_while_kafka_is_waited_for_ends_it(
    tmp_path: Path, arguments: list[str], codes: tuple[int, int], which: int
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        command, *more = arguments
        argv = [
            sys.executable,
            "-m",
            "watchrelay",
            command,
            "-c",
            config(tmp_path, f"127.0.0.1:{silent.getsockname()[1]}"),
            *more,
        ]
        if command == "topics":  # it asks the cluster first
            argv += [
                "--set",
                f"kubernetes.kubeconfig={kubeconfig(tmp_path, silent.getsockname()[1])}",
            ]
        with subprocess.Popen(
            argv, cwd=_ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            silent.settimeout(30)
            connected, _ = silent.accept()
            with connected:
                process.send_signal((INT, TERM)[which])
                out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (codes[which], "", "")


def kubeconfig(folder: Path, port: int) -> str:
    file = folder / "kubeconfig"
    file.write_text(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\n"
        "contexts: [{name: c, context: {cluster: c, user: u}}]\nusers: [{name: u, user: "
        "{token: t}}]\n"
        f"clusters: [{{name: c, cluster: {{server: 'http://127.0.0.1:{port}'}}}}]\n"
    )
    return str(file)


def test_what_goes_on_until_it_is_stopped_ends_well() -> None:
    assert [
        exit_code(argv, TERM) for argv in (["run"], ["demo", "--kafka", "k:1"], ["tail", "pods"])
    ] == [0, 0, 0]
    assert [
        exit_code(argv, TERM) for argv in ([], ["--help"], ["verify"], ["tail", "--until-end"])
    ] == [143] * 4
