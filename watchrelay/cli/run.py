"""`watchrelay run`: the daemon.

Room: commands. In: the parsed command line. Out: the exit code.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from watchrelay.config.subprocess_loader import Asked, ConfigReader
from watchrelay.daemon.memory import lean_import
from watchrelay.observe import logs

if TYPE_CHECKING:
    from watchrelay.daemon.daemon import Daemon


_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class _Begun:
    """How far the start has come."""

    reader: ConfigReader | None = None
    daemon: Daemon | None = None


def run(args: argparse.Namespace) -> int:
    """Relay until told to stop; the exit code of the drain.

    Raises: ConfigError with every problem; ListenAddressUnavailable.
    """
    with _told_early() as begun:
        begun.reader = ConfigReader.start(Asked(args.config, args.sets))
        with lean_import():
            # the rooms are imported while another process reads the config
            from watchrelay.daemon.daemon import Daemon
            from watchrelay.daemon.reload import ConfigSource
        settings = begun.reader.settings()
        logs.configure(settings.observe.log_format, settings.observe.log_level)
        begun.daemon = Daemon(settings, source=ConfigSource(args.config, args.sets))
        return asyncio.run(_run(begun.daemon))


async def _run(daemon: Daemon) -> int:
    return await daemon.run()


@contextlib.contextmanager
def _told_early() -> Iterator[_Begun]:
    """SIGTERM and Ctrl-C before the daemon hears them itself: nothing was begun, so nothing is
    drained. After its end they change nothing.

    The first process of a container must do this itself: no signal ends it that it does not handle.
    """
    begun = _Begun()

    def leave(_number: int, _frame: object) -> None:
        if begun.daemon is not None and begun.daemon.started.is_set():
            return
        if begun.reader is not None:
            begun.reader.close()
        with contextlib.suppress(OSError):
            os.write(2, b"watchrelay: told to stop before anything was begun\n")
        os._exit(0)

    handlers: dict[int, Callable[[int, object], None]] = dict.fromkeys(_SIGNALS, leave)
    handlers[signal.SIGHUP] = lambda _number, _frame: None  # the config is being read as it is
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield begun
    finally:
        for number, former in before.items():
            signal.signal(number, former)
