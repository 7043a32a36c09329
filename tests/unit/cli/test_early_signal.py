"""While `run` still reads its config: a signal is exit code 0 and one line, an edit is not lost."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.process import wait_until

_ROOT = Path(__file__).resolve().parents[3]


def nobody_reads(end: int) -> bool:
    """Whether the other end of a pipe is closed. Writes nothing that could be read as a config."""
    try:
        os.write(end, b"#")
    except BrokenPipeError:
        return True
    return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_before_the_config_is_read_is_exit_0(
    tmp_path: Path, number: signal.Signals
) -> None:
    config = tmp_path / "config"
    os.mkfifo(config)
    argv = [sys.executable, "-m", "watchrelay", "run", "-c", str(config)]
    with subprocess.Popen(
        argv, cwd=_ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        end = os.open(config, os.O_WRONLY)  # returns once the relay has opened it
        try:
            process.send_signal(number)
            try:
                out, err = process.communicate(timeout=5)
            except subprocess.TimeoutExpired:
                # Python saw the signal just before it began to read, and handles it once that ends
                nobody_reads(end)
                out, err = process.communicate(timeout=60)
            assert (process.returncode, out, err) == (
                0,
                "",
                "watchrelay: stopped by a signal before startup was complete\n",
            )
            wait_until("nobody reads the config any more", lambda: nobody_reads(end))
        finally:
            os.close(end)


def test_an_edit_while_the_config_is_read_is_noticed(tmp_path: Path) -> None:
    config, edited, log = tmp_path / "config", tmp_path / "edited", tmp_path / "log"
    os.mkfifo(config)
    edited.write_text("resorces: []\n")
    argv = [sys.executable, "-m", "watchrelay", "run", "-c", str(config)]
    with log.open("w") as out, subprocess.Popen(argv, cwd=_ROOT, stdout=out, stderr=out) as process:
        with config.open("w") as pipe:  # opened once the relay has opened it
            edited.rename(config)
            pipe.write(
                "{cluster: c, kubernetes: {kubeconfig: /absent}, kafka: {bootstrapServers: [k:1]},"
                " resources: [{resource: pods}], observe: {listen: '127.0.0.1:0'}}"
            )
        try:
            wait_until("it is noticed", lambda: "edited config refused" in log.read_text())
        finally:
            process.kill()
