"""`watchrelay run`: the daemon."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from watchrelay.cli.options import ConfigOptions
from watchrelay.cli.signals import SIGNALS
from watchrelay.daemon.memory import lean_import
from watchrelay.observe import logs

if TYPE_CHECKING:
    from watchrelay.daemon.daemon import Daemon


class _Startup:
    """What exists so far."""

    daemon: Daemon | None = None


def run(config: ConfigOptions) -> int:
    """Relay until a signal stops it.

    Returns:
        the exit code of the drain.

    Raises:
        ConfigError: with every problem.
        AddressRefused: `observe.listen` cannot be bound.
    """
    with _exit_on_early_signal() as startup:
        with lean_import():
            from watchrelay.config import load_settings
            from watchrelay.daemon.daemon import Daemon
            from watchrelay.daemon.reload import ConfigSource
        settings = load_settings(*config)
        logs.configure(settings.observe.log_format, settings.observe.log_level)
        startup.daemon = Daemon(settings, source=ConfigSource(*config))
        return asyncio.run(startup.daemon.run())


@contextlib.contextmanager
def _exit_on_early_signal() -> Iterator[_Startup]:
    """Until the daemon handles SIGTERM and Ctrl-C itself, they exit with 0: nothing was published,
    so there is nothing to drain. SIGHUP is ignored: the config is being read as it is."""
    startup = _Startup()

    def leave(_number: int, _frame: object) -> None:
        if startup.daemon is not None and startup.daemon.started.is_set():
            return
        with contextlib.suppress(OSError):
            os.write(2, b"watchrelay: stopped by a signal before startup was complete\n")
        os._exit(0)

    handlers: dict[int, Callable[[int, object], None]] = dict.fromkeys(SIGNALS, leave)
    handlers[signal.SIGHUP] = lambda _number, _frame: None
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield startup
    finally:
        for number, former in before.items():
            signal.signal(number, former)
