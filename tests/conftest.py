"""The loggers as a test found them: the same loggers for the next one, whatever the test did to
them. A limit of processor time for each test, and the reasons of skips in a line each.

And a Ctrl-C that arrives: a shell has what it starts in the background ignore it, and every program
started by that would too. And a make that is on its own: `make test ARGS=-x` is meant for the
pytest that it starts, not for each `make` that a test runs.
"""

import gc
import logging
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import NoReturn

import pytest

from tests.support import extent

CPU_S = 60.0
"""What a test may take of the processor; the clock may be a slow machine's, so that its limit
(`timeout` in pyproject.toml) only ends what hangs."""
FULL = tuple(f"{Path(__file__).parent}/{folder}/" for folder in ("docs", "fuzz"))
"""Folders of which no test is part of a newcomer's `make test`."""
LONGEST = f"{Path(__file__).parent}/simulation/"
"""Its files take minutes of one processor each: begun last, one of them would end the run alone."""


def pytest_configure() -> None:
    """Programs that tests start take Ctrl-C as in a terminal, however the tests themselves were
    started."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in ("ARGS", "MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "MFLAGS"):
        os.environ.pop(name, None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Without FULL=1, what only CI plays is skipped. The longest files come first."""
    items.sort(key=lambda item: not str(item.path).startswith(LONGEST))
    if not extent.full():
        skip = pytest.mark.skip(reason=extent.REASON)
        for item in items:
            if item.get_closest_marker("full") or str(item.path).startswith(FULL):
                item.add_marker(skip)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """What lives to the end of the run stays out of garbage collections: one takes 0.15 s with it,
    and a daemon in this process makes one at its start."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """A test that takes more of this process's processor time than its limit fails. What its
    tracer takes with `--cov` is not limited."""
    marker = item.get_closest_marker("cpu")
    limit_s = float(marker.args[0]) if marker else CPU_S

    def over(signum: int, frame: FrameType | None) -> NoReturn:
        pytest.fail(f"took more than {limit_s:g} s of processor time")

    if item.config.getoption("cov_source", None):
        yield
        return
    before = signal.signal(signal.SIGPROF, over)
    # again each second: an event loop may keep the first one to a callback
    signal.setitimer(signal.ITIMER_PROF, limit_s, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line for each reason of a skip, ahead of the failures."""
    skipped = terminalreporter.getreports("skipped")
    reasons = Counter(
        str(each.longrepr[2] if isinstance(each.longrepr, tuple) else each.longrepr)
        for each in skipped
    )
    for reason, count in sorted(reasons.items()):
        terminalreporter.write_line(f"SKIPPED [{count}] {reason.removeprefix('Skipped: ')}")


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
    if logging.root.manager.disable != disabled_up_to:
        logging.disable(disabled_up_to)
    for logger in _loggers():
        level, propagate, disabled, handlers = before.get(logger, (logging.NOTSET, True, False, []))
        if logger.level != level:
            logger.setLevel(level)  # it empties the caches of all loggers
        logger.propagate, logger.disabled = propagate, disabled
        # pytest puts its own handlers there, others for each phase of a test
        if logger is not logging.root:
            logger.handlers[:] = handlers
