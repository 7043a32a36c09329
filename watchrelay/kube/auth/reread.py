"""Files that others replace while we run.

Room: kube. In: a loader, and how often it may run. Out: the newest value that loaded; a bad file
never takes the place of a good one.
Source: client-go transport/token_source.go (keeps the old token), transport/ca_rotation.go (keeps
the old CA).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Generic, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")


class Reread(Generic[T]):
    """A value read from files, read again when it is older than `interval_s`.

    Raises: whatever `load` raises (OSError, ValueError), but only while there is no value yet.
    """

    def __init__(
        self, load: Callable[[], T], *, what: str, interval_s: float, now_s: Callable[[], float]
    ) -> None:
        self._load = load
        self._what = what
        self._interval_s = interval_s
        self._now_s = now_s
        self._value: T | None = None
        self._due_s = self._read_s = float("-inf")
        self._failing = False

    def current(self) -> T:
        """The value; reads the files if it is time to. Blocks for a small read: these are files of
        a few KB."""
        now_s = self._now_s()
        if now_s >= self._due_s or self._value is None:
            self._due_s, self._read_s = now_s + self._interval_s, now_s
            self._refresh()
        assert self._value is not None, "a failed first read raises"
        return self._value

    def expire(self, asked_s: float) -> None:
        """What a request was sent with at `asked_s` is no good: the next `current` reads the files,
        unless they were read since then."""
        if self._read_s <= asked_s:
            self._due_s = float("-inf")

    def _refresh(self) -> None:
        try:
            value = self._load()
        except (OSError, ValueError) as error:
            if self._value is None:
                raise
            if not self._failing:
                reason = error.strerror if isinstance(error, OSError) else str(error)
                log.warning(
                    "credential file unusable, the former one is kept",
                    extra={"what": self._what, "reason": reason},
                )
            self._failing = True
            return
        if self._failing:
            log.info("credential file usable again", extra={"what": self._what})
        self._failing = False
        self._value = value
