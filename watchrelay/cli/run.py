"""`watchrelay run`: the daemon."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING

from watchrelay.cli.options import Command, add_config
from watchrelay.cli.signals import SIGNALS, handled_by

if TYPE_CHECKING:
    from watchrelay.daemon.daemon import Daemon


def run(*, config: str | None, sets: Sequence[str]) -> int:
    """Relay until a signal stops it; the exit code of the drain.

    Raises: ConfigError; ListenAddressUnavailable."""
    daemon: Daemon | None = None

    def leave(number: int, _frame: object) -> None:
        # until the daemon handles signals itself: nothing was published, so nothing is drained
        if number == signal.SIGHUP or (daemon is not None and daemon.started.is_set()):
            return
        with contextlib.suppress(OSError):
            os.write(2, b"watchrelay: stopped by a signal before startup was complete\n")
        os._exit(0)

    with handled_by(leave, (*SIGNALS, signal.SIGHUP)):
        import asyncio

        from watchrelay.daemon.memory import lean_import

        with lean_import():
            from watchrelay.config import load_settings
            from watchrelay.daemon.daemon import Daemon
            from watchrelay.daemon.reload import ConfigSource
            from watchrelay.observe import logs
        source = ConfigSource(config, sets)
        settings = load_settings(config, sets)
        logs.configure(settings.observe.log_format, settings.observe.log_level)
        daemon = Daemon(settings, source=source)
        return asyncio.run(daemon.run())


COMMAND = Command(
    "the daemon: watch, publish, serve metrics until SIGTERM",
    "Runs until SIGTERM or Ctrl-C, then drains.",
    run,
    add_config,
)
