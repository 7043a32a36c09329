"""Seconds: they have passed, and the caller named the reason.

The one place where tests let real time go by as such. Each function names a reason for which the
length itself is what is wanted; nothing here may stand for "by then it will be true": that is
waited for by its condition, with `wait_until` of `tests.support.process`.
"""

import time


def _pass(seconds: float) -> None:
    """The only sleep of the tests: its callers below say what the length is
    wanted for."""
    time.sleep(seconds)


def measure_for(seconds: float) -> None:
    """A measurement goes on for so long: what is measured happens meanwhile, and the figure is per
    this time."""
    _pass(seconds)


def pace(seconds: float) -> None:
    """A load rests for so long before its next step: the rate is the input of the test. Returns at
    once when that is not above 0."""
    if seconds > 0:
        _pass(seconds)


def pace_to(due_s: float) -> None:
    """A load rests until its next step is due, at once when it is late. Units: `due_s` as
    `time.monotonic()` counts."""
    pace(due_s - time.monotonic())


def last(seconds: float) -> None:
    """A fault, or the time between a death and the next life, goes on for so long: its length is
    drawn by seed."""
    _pass(seconds)


def random_instant(seconds: float) -> None:
    """The instant of a kill, drawn by seed: it shall hit whatever goes on then, so there is nothing
    that it could wait for."""
    _pass(seconds)
