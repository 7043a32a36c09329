"""Standard streams, pipes and working directories that are closed, full or gone."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from watchrelay.cli import main as cli

Captured = pytest.CaptureFixture[str]

CHECK = "WR validate --connect -c w.yaml --set kafka.bootstrapServers=127.0.0.1:1"


def shell(script: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Runs `script`, in which WR is the program."""
    script = f'WR() {{ {sys.executable} -m watchrelay "$@"; }}; {script}'
    root = Path(__file__).resolve().parents[3]
    return subprocess.run(
        ["bash", "-c", script],
        cwd=cwd or root,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_reader_that_leaves_early_hears_nothing_more() -> None:
    for command, first in (
        ("schema", "{"),
        ("--help", "usage: watchrelay [-h] [--version] COMMAND ..."),
    ):
        done = shell(f"WR {command} | head -1; exit ${{PIPESTATUS[0]}}")
        assert (done.returncode, done.stdout.strip(), done.stderr) == (0, first, "")
    done = shell("WR --version | true; exit ${PIPESTATUS[0]}")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("command", "code"),
    [
        # all is written at the end, or each line at once
        (f"PYTHONUNBUFFERED= KUBECONFIG=/absent {CHECK}", 78),
        (f"PYTHONUNBUFFERED=1 KUBECONFIG=/absent {CHECK}", 1),
        ("PYTHONUNBUFFERED=1 WR schema", 0),
        ("PYTHONUNBUFFERED=1 WR verify --help", 0),
    ],
)
def test_a_reader_that_leaves_turns_no_failure_into_success(
    command: str, code: int, config: Path
) -> None:
    done = shell(f"{command} | true; exit ${{PIPESTATUS[0]}}", cwd=config.parent)
    assert done.returncode == code
    assert done.stderr == ("watchrelay: cannot write to stdout: Broken pipe\n" if code == 1 else "")


@pytest.mark.parametrize("redirect", ["2>/dev/full", "2> >(true)"])
def test_an_error_that_cannot_be_written_keeps_its_exit_code(redirect: str) -> None:
    for command, code in (
        ("validate -c /absent", 78),
        ("validate --as a/b", 2),
        ("validat", 2),
        ("validate --set x", 2),
        ("--version", 0),
    ):
        assert shell(f"WR {command} {redirect}").returncode == code


def test_a_config_from_a_pipe_is_read_once(config: Path) -> None:
    done = shell(
        "KUBECONFIG=/absent WR validate --connect --set kafka.bootstrapServers=127.0.0.1:1 -c "
        "<(cat w.yaml)",
        cwd=config.parent,
    )
    assert (done.returncode, done.stderr) == (78, "")
    assert "error: kubernetes: environment: $KUBECONFIG: no such file: /absent" in done.stdout


def test_the_demo_says_what_it_needs_where_it_can_write_nothing(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/absent")
    assert cli.main(["demo"]) == 78
    message = (
        "TMPDIR: no directory for temporary files: No such file or directory (set "
        "TMPDIR to a directory that can be written)\n"
    )
    assert capsys.readouterr().err == message


def test_a_working_directory_that_is_gone_is_no_internal_error(tmp_path: Path) -> None:
    done = shell(
        f"mkdir {tmp_path}/gone; cd {tmp_path}/gone; rmdir ../gone; WR demo --kubeconfig k"
    )
    assert (done.returncode, done.stderr) == (
        78,
        "k: there is no such file (named by --kubeconfig)\n",
    )


@pytest.mark.parametrize("encoding", ["ascii", "ascii:surrogateescape"])
def test_what_the_encoding_of_stdout_has_no_sign_for_is_escaped(
    config: Path, encoding: str
) -> None:
    """The second one is that of the C locale where Python is kept from taking UTF-8 there."""
    named = config.rename(config.with_name("ü.yaml"))
    argv = [sys.executable, "-m", "watchrelay", "validate", "-c", named.name]
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run(
        argv,
        cwd=config.parent,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("config: \\xfc.yaml: good\n")


def test_a_question_that_nobody_can_answer_is_one_line_when_stdin_is_closed(config: Path) -> None:
    script = f"{sys.executable} -m watchrelay retire pods -c {config} <&-"
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=config.parent,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    open_one = subprocess.run(
        ["bash", "-c", script.replace("<&-", "</dev/null")],
        cwd=config.parent,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (open_one.returncode, open_one.stderr)
    assert "internal error" not in done.stderr
    assert done.returncode == 2


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_are_no_error_and_what_belongs_to_one_never_appears_on_the_other(
    closed: str,
) -> None:
    root = Path(__file__).resolve().parents[3]
    for command, expected in ((f"version {closed}", 0), (f"validate -c /absent {closed}", 78)):
        script = f"{sys.executable} -m watchrelay {command}"
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=root,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == expected
        assert ("no such file" in done.stderr) == (expected == 78 and "2>" not in closed)
        assert done.stdout == ("" if expected == 78 or closed != "2>&-" else done.stdout)
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "argv", [["schema"], ["validate", "-c", "w.yaml"], ["--help"], ["run", "--help"], ["--version"]]
)
def test_a_full_disk_behind_stdout_is_one_line(config: Path, argv: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "watchrelay", *argv],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            cwd=config.parent,
        )
    assert done.returncode == 1
    assert done.stderr == "watchrelay: cannot write to stdout: No space left on device\n"
