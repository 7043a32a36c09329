"""Small programs: proof that no child outlives its run and no memory is left behind."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.daemon import command
from tests.support.process import PartError, Process, Workspace, free_port, listens, wait_until

_ROOT = Path(__file__).resolve().parents[2]
_RUN_WITH_CHILDREN = """
import sys, time
from tests.support.forked import Program
from tests.support.process import Process, Workspace
workspace = Workspace("test")
child = Process("child", ["sleep", "600"], log=workspace.path / "child.log").launch()
settings = "cluster=c", "resources[0].resource=pods", "observe.listen=127.0.0.1:0"
argv = ["watchrelay", "run", "--set", "kafka.bootstrapServers=[127.0.0.1:1]"]
argv += [word for each in settings for word in ("--set", each)]
program = Program("program", argv, log=workspace.path / "program.log").launch()
print(child.pid, program.pid, workspace.path, flush=True)
time.sleep(600)
"""


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[Process]:
    process = Process("sleeper", ["sleep", "600"], log=tmp_path / "sleeper.log")
    yield process
    process.kill()


def _gone(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat")
    try:
        return status.read_text().rsplit(") ", 1)[1].startswith("Z")
    except OSError:
        return True


def test_children_die_with_a_run_that_is_killed_and_its_directory_is_swept() -> None:
    argv = [sys.executable, "-c", _RUN_WITH_CHILDREN]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd=_ROOT) as run:
        assert run.stdout is not None
        child, program, directory = run.stdout.readline().split()
        log = Path(directory) / "program.log"
        wait_until("the program logs", lambda: "level" in log.read_text())
        assert not _gone(int(child))
        assert not _gone(int(program))
        run.kill()
    wait_until("the child is gone", lambda: _gone(int(child)), deadline_s=10.0)
    wait_until("the program is gone", lambda: _gone(int(program)), deadline_s=10.0)
    left = Path(directory)
    assert left.is_dir()
    long_ago = time.time() - 3600
    os.utime(left / ".lock", (long_ago, long_ago))
    Workspace("test").remove()
    assert not left.exists()


def test_a_child_outlives_the_thread_that_started_it(sleeper: Process) -> None:
    starter = threading.Thread(target=sleeper.launch)
    starter.start()
    starter.join()
    sleeper.pause()
    sleeper.resume()
    assert sleeper.alive
    sleeper.stop()
    assert not sleeper.alive


def test_a_child_that_ends_before_it_is_ready_fails_with_its_last_output(tmp_path: Path) -> None:
    process = Process(
        "talker", ["sh", "-c", "echo no such luck; exit 3"], log=tmp_path / "talker.log"
    ).launch()
    with pytest.raises(
        PartError, match=r"talker ended by itself \(exit code 3\)\n(.*\n)*no such luck"
    ):
        process.await_ready(lambda: False)


def test_a_forked_program_has_directory_environment_output_and_end_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here.yaml").write_text("cluster: c\nresources: [{resource: pods}]\n")
    servers = {"WATCHRELAY_KAFKA__BOOTSTRAP_SERVERS": "127.0.0.1:1"}
    whole, without = (
        command("validate", "-c", "here.yaml", environment=environment)
        for environment in (servers, {})
    )
    assert (whole.code, whole.stderr) == (0, ""), whole
    assert "kafka: 127.0.0.1:1" in whole.stdout
    assert (without.code, without.stdout) == (78, "")
    assert "kafka" in without.stderr
    with pytest.raises(subprocess.TimeoutExpired):
        command("verify", "-c", "here.yaml", environment=servers, timeout_s=0.0)


def test_a_child_that_is_not_ready_in_time_says_so(sleeper: Process) -> None:
    with pytest.raises(PartError, match=r"not true after 0\.1 s: sleeper is ready"):
        sleeper.launch().await_ready(lambda: False, deadline_s=0.1)


def test_a_program_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(PartError, match="no program no-such-program"):
        Process("ghost", ["no-such-program"], log=tmp_path / "ghost.log").launch()


def test_a_free_port_is_one_nobody_listens_on() -> None:
    assert not listens(free_port())
