"""`watchrelay run`: the daemon."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from watchrelay.cli.options import Command, add_config
from watchrelay.cli.signals import SIGNALS, handled_by, run_loop, write_at_once

if TYPE_CHECKING:
    import logging

    from watchrelay.core.deadline import Deadline
    from watchrelay.daemon.daemon import Daemon
    from watchrelay.observe.stderr import DroppingStream


def run(*, config: str | None, sets: Sequence[str]) -> int:
    """Relay until a signal stops it; the exit code of the drain.

    Raises: ConfigError; ListenAddressUnavailable."""
    daemon: Daemon | None = None

    def leave(number: int) -> None:
        # until the daemon handles signals itself: nothing was published, so nothing is drained
        if number == signal.SIGHUP or (daemon is not None and daemon.started.is_set()):
            return
        write_at_once(b"watchrelay: stopped by a signal before startup was complete\n")
        os._exit(0)

    with handled_by(leave, (*SIGNALS, signal.SIGHUP)):
        import logging

        from watchrelay.core.open_files import raise_limit
        from watchrelay.daemon.memory import lean_import

        raise_limit()
        with lean_import():
            from watchrelay.config import load_settings
            from watchrelay.daemon.daemon import Daemon
            from watchrelay.daemon.reload import ConfigSource
            from watchrelay.observe import logs
        log = logging.getLogger(__name__)
        stderr = _unblocked_stderr(log)
        source = ConfigSource(config, sets)
        settings = load_settings(config, sets)
        logs.configure(settings.observe.log_format, settings.observe.log_level)
        daemon = Daemon(settings, source=source, deadline=_deadline(log, stderr))
        stderr.count_drops(daemon.metrics.counter("log_lines_dropped").inc)
        return run_loop(daemon.run())


def _unblocked_stderr(log: logging.Logger) -> DroppingStream:
    """In the place of `sys.stderr` from now on: unread, it does not hold the relay."""
    from watchrelay.observe.stderr import DroppingStream

    sys.stderr = stderr = DroppingStream(sys.stderr)
    stderr.on_resume = lambda lines: log.warning("log lines were dropped", extra={"lines": lines})
    return stderr


def _deadline(log: logging.Logger, stderr: DroppingStream) -> Deadline:
    from watchrelay.core.deadline import Deadline
    from watchrelay.core.programs import kill_programs

    def last_words() -> None:
        kill_programs()
        log.error("shutdown did not end in time, the process ends without it")
        stderr.flush()

    return Deadline(last_words)


COMMAND = Command(
    "the daemon: watch, publish, serve metrics until SIGTERM",
    "Runs until SIGTERM or Ctrl-C, then drains.",
    run,
    add_config,
)
