"""The loggers as a test found them: the same loggers for the next one, whatever the test did to
them.

And a Ctrl-C that arrives: a shell has what it starts in the background ignore it, and every program
started by that would too. And a make that is on its own: `make test ARGS=-x` is meant for the
pytest that it starts, not for each `make` that a test runs.
"""

import logging
import os
import signal
from collections.abc import Iterator

import pytest


def pytest_configure() -> None:
    """Programs that tests start take Ctrl-C as in a terminal, however the tests themselves were
    started."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in ("ARGS", "MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "MFLAGS"):
        os.environ.pop(name, None)


def _loggers() -> Iterator[logging.Logger]:
    yield logging.root
    for logger in list(logging.root.manager.loggerDict.values()):
        if isinstance(logger, logging.Logger):
            yield logger


@pytest.fixture(autouse=True)
def loggers_as_before() -> Iterator[None]:
    """No test silences the next: a command run in the test's own process sets levels, as it would
    in a process of its own."""
    before = {
        logger: (logger.level, logger.propagate, logger.disabled, logger.handlers[:])
        for logger in _loggers()
    }
    disabled_up_to = logging.root.manager.disable
    yield
    logging.disable(disabled_up_to)
    for logger in _loggers():
        level, propagate, disabled, handlers = before.get(logger, (logging.NOTSET, True, False, []))
        logger.setLevel(level)
        logger.propagate, logger.disabled = propagate, disabled
        # pytest puts its own handlers there, others for each phase of a test
        if logger is not logging.root:
            logger.handlers[:] = handlers
