"""SIGTERM ends the process within `shutdown.drainTimeout` and 5 s, whatever hangs: lookups, files,
readers of its log, plugins, the event loop itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.daemon import clean_environment
from tests.support.hanging import (
    DRAIN_S,
    GRACE_S,
    HELD_LOOP,
    NO_NAME_SERVER,
    NOISY,
    Relay,
    full_pipe,
    is_alive,
    kubeconfig,
    plugin,
    seconds_to_end,
)
from tests.support.process import wait_until

_NO_THREAD = r"""
import threading
def start(self):
    raise RuntimeError("can't start new thread")
threading.Timer.start = start
"""
_EARLY_SIGHUP = r"""
import os, signal
from watchrelay.cli import signals
install = signals.install_signal_handlers
def early(argv):
    install(argv)
    os.kill(os.getpid(), signal.SIGHUP)
signals.install_signal_handlers = early
"""


@pytest.mark.parametrize("what", ["Kafka", "the API server"])
def test_a_lookup_that_never_ends_does_not_hold_the_end(tmp_path: Path, what: str) -> None:
    named = {"bootstrapServers": ["silent.example:9092"]} if what == "Kafka" else None
    relay = Relay(tmp_path, NO_NAME_SERVER, **({"kafka": named} if named else {}))
    if named is None:
        relay.kubeconfig.write_text(kubeconfig("https://silent.example"))
    with relay.running(stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "asked\n"
        assert relay.ends_in_time() == 0


def test_a_config_that_became_a_pipe_does_not_hold_the_end(tmp_path: Path) -> None:
    relay = Relay(tmp_path)
    with relay.running(stderr=subprocess.DEVNULL):
        relay.await_live()
        pipe = tmp_path / "pipe"
        os.mkfifo(pipe)
        pipe.rename(relay.file)
        relay.process.send_signal(signal.SIGHUP)
        end = os.open(relay.file, os.O_WRONLY)  # opened once the relay reads it
        try:
            os.write(end, b"# ")
            assert relay.live()
            assert relay.ends_in_time() == 0
        finally:
            os.close(end)


def test_a_kubeconfig_that_is_a_silent_pipe_holds_neither_livez_nor_the_end(tmp_path: Path) -> None:
    relay = Relay(tmp_path)
    relay.kubeconfig.unlink()
    os.mkfifo(relay.kubeconfig)
    with relay.running(stderr=subprocess.DEVNULL):
        end = os.open(relay.kubeconfig, os.O_WRONLY)
        try:
            os.write(end, b"# ")
            relay.await_live()
            assert relay.ends_in_time() == 0
        finally:
            os.close(end)


@pytest.mark.parametrize("moment", ["running", "while it reads its config"])
def test_an_unread_full_stderr_does_not_hold_the_end(tmp_path: Path, moment: str) -> None:
    relay = Relay(tmp_path)
    reading, writing = full_pipe()
    if moment != "running":
        relay.file.unlink()
        os.mkfifo(relay.file)
    try:
        with relay.running(stderr=writing):
            if moment == "running":
                relay.await_live()
                assert relay.ends_in_time() == 0
            else:
                end = os.open(relay.file, os.O_WRONLY)
                assert relay.ends_in_time() == 0
                os.close(end)
        assert os.get_blocking(writing), "other processes share the file description"
    finally:
        os.close(reading)
        os.close(writing)


def test_unread_lines_are_dropped_and_counted_and_reported_once_they_are_read(
    tmp_path: Path,
) -> None:
    relay = Relay(tmp_path, NOISY)
    reading, writing = full_pipe()
    try:
        with relay.running(stderr=writing) as process:
            os.close(writing)
            assert process.stdout is not None
            assert process.stdout.readline() == "noisy\n"
            relay.await_live()
            (counted,) = (
                int(float(line.rpartition(" ")[2]))
                for line in relay.get("/metrics").splitlines()
                if line.startswith("watchrelay_log_lines_dropped_total")
            )
            assert 1500 < counted < 3000
            with os.fdopen(reading) as log:
                log.readline()
                lines = map(json.loads, log)
                report = next(each for each in lines if each["message"] == "log lines were dropped")
                assert report["lines"] >= counted
                assert relay.ends_in_time() == 0
    finally:
        for end in (reading, writing):
            try:
                os.close(end)
            except OSError:
                continue


@pytest.mark.parametrize(("drain_s", "signals"), [(DRAIN_S, 1), (0.0, 2)])
def test_an_event_loop_that_is_held_does_not_hold_the_end(
    tmp_path: Path, drain_s: float, signals: int
) -> None:
    """The second signal waits for no drain: `drain_s` is what it leaves of it."""
    shutdown = {"drainTimeout": f"{DRAIN_S if signals == 1 else 60:g}s"}
    relay = Relay(tmp_path, HELD_LOOP, shutdown=shutdown)
    with relay.running() as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "held\n"
        process.send_signal(signal.SIGTERM)
        if signals == 2:
            wait_until("the first signal is handled", lambda: _handled(process.pid))
        assert relay.ends_in_time(times=signals - 1, drain_s=drain_s) in (0, 1)
        assert '"shutdown did not end in time' in process.stderr.read()


def _handled(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    pending = [
        line.split()[1] for line in status.splitlines() if line.startswith(("SigPnd", "Shd"))
    ]
    return not any(int(mask, 16) for mask in pending)


def test_a_plugin_that_hangs_does_not_hold_the_end_and_is_killed(tmp_path: Path) -> None:
    relay, pid = Relay(tmp_path), tmp_path / "pid"
    relay.kubeconfig.write_text(kubeconfig("https://127.0.0.1:1", {"exec": plugin(tmp_path)}))
    with relay.running(stderr=subprocess.DEVNULL):
        wait_until("the plugin runs", pid.exists)
        child = int(pid.read_text())
        assert relay.ends_in_time() == 0
        wait_until("the plugin's child is dead", lambda: not is_alive(child))


def test_a_plugin_does_not_outlive_a_held_event_loop(tmp_path: Path) -> None:
    relay, pid = Relay(tmp_path, HELD_LOOP), tmp_path / "pid"
    relay.kubeconfig.write_text(kubeconfig("https://127.0.0.1:1", {"exec": plugin(tmp_path)}))
    with relay.running(stderr=subprocess.DEVNULL, HOLD_AFTER=str(pid)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        assert relay.ends_in_time() in (0, 1)
        child = int(pid.read_text())
        wait_until("the plugin's child is dead", lambda: not is_alive(child))


def test_a_flood_of_sighup_holds_neither_livez_nor_the_end(tmp_path: Path) -> None:
    relay = Relay(tmp_path)
    with relay.running(stderr=subprocess.DEVNULL) as process:
        relay.await_live()
        for _ in range(2000):
            process.send_signal(signal.SIGHUP)
        assert relay.live()
        assert relay.ends_in_time() == 0


def test_a_sighup_before_the_config_is_read_does_not_end_it(tmp_path: Path) -> None:
    relay = Relay(tmp_path, _EARLY_SIGHUP)
    with relay.running(stderr=subprocess.DEVNULL):
        relay.await_live()
        assert relay.ends_in_time() == 0


def test_a_process_that_may_start_no_thread_ends_all_the_same(tmp_path: Path) -> None:
    """By itself: how long that takes depends on the machine."""
    relay = Relay(tmp_path, _NO_THREAD)
    with relay.running(stderr=subprocess.DEVNULL):
        relay.await_live()
        assert relay.ends_in_time(drain_s=60.0) == 0


@pytest.mark.parametrize("after_s", ["0.0", "3.0"])
def test_a_demo_whose_loop_is_held_at_its_start_or_later_ends_in_time_too(after_s: str) -> None:
    code = HELD_LOOP.replace("1.0", after_s)
    code += "import sys\nfrom watchrelay.__main__ import main\nsys.exit(main())"
    with subprocess.Popen(
        [sys.executable, "-c", code, "demo"],
        cwd=Path(__file__).resolve().parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=clean_environment() | {"WATCHRELAY_SHUTDOWN__DRAIN_TIMEOUT": f"{DRAIN_S:g}s"},
    ) as process:
        try:
            assert process.stdout is not None
            while process.stdout.readline() != "held\n":
                assert process.poll() is None, "it ended before its loop was held"
            process.send_signal(signal.SIGTERM)
            assert seconds_to_end(process, at_most_s=DRAIN_S + GRACE_S) <= DRAIN_S + GRACE_S
            assert process.wait() in (0, 1)
        finally:
            process.kill()
