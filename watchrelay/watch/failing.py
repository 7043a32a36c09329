"""A watch that fails from its cursor each time while lists work: an old state cannot be converted,
or the history has a gap that the server does not report as expired; or each watch ends before its
time and shows nothing. Pure.

Retrying the watch never helps there, and no change is seen until a list is made. What counts is
narrow, for an ailing etcd fails the watches of all streams, and lists would keep it down.
"""

from __future__ import annotations

import math

import msgspec
from msgspec.structs import replace

from watchrelay.core.errors import (
    Expired,
    Interrupted,
    Invalid,
    KubeError,
    Unavailable,
    Undecodable,
    VersionTooLarge,
)

FAILURES = 5
FAILING_FOR_S = 60.0
"""This many failures from one cursor, the newest at least this long after the first, call for a
list."""
LIST_AGAIN_S, LIST_AGAIN_MAX_S = 300.0, 3600.0
"""After such a list the stream makes no other one for the first of these, then for twice as long
after each, up to the second."""
LISTS_A_MINUTE = 3
"""Of all streams of an API server together."""
CHECK_LISTS_AGAIN_S = 60.0
"""After a small list that led to no list, the stream makes no other one for this long."""
BROKE_AFTER_S = 1.0
"""A connection that breaks counts where its watch was open for this long."""
PROVING_WATCH_S = (6, 12)
"""The `timeoutSeconds` of the proving watch, which follows `FAILURES - 1` failures: where only
longer watches are cut, as by a proxy, the server ends it in its time. Random between these: with a
fixed one, a server that ends every watch after just that time would seem to be right."""
PROVE_AHEAD_S = 20.0
"""The proving watch may come this long before `FAILING_FOR_S` is over, so that its own failure
makes the list due."""
END_IN_TIME_S = (-1.0, 3.0)
"""A clean end in this range, counted from the watch's timeout, is the end in its time."""

_NOT_BY_CURSOR = frozenset({0, 401, 403, 407, 408, 429, 503, 504})
"""Codes of missing rights, of overload and of timeouts; 0: no answer, the connection broke."""


def shows_failing_cursor(error: KubeError, lived_s: float = 0.0) -> bool:
    """Whether the failure of a watch that was open for `lived_s` counts: its cursor may be the
    cause. A small list then shows whether lists work. A version that is refused does not count: it
    leads to a list anyway."""
    if isinstance(error, Invalid) and error.about == "version":
        return False
    if isinstance(error, Interrupted | Unavailable) and not error.status:
        return lived_s >= BROKE_AFTER_S
    return error.status not in _NOT_BY_CURSOR and not isinstance(error, Expired | VersionTooLarge)


def blames_minimum(error: KubeError) -> bool:
    """Whether a list may have failed for its minimum version, so that one without may succeed."""
    refused = isinstance(error, Expired | VersionTooLarge | Invalid | Undecodable)
    return refused or error.status == 500


class FailingWatch(msgspec.Struct, frozen=True):
    """The row of watches from `cursor` that failed, or ended before their time and did not move it,
    since one worked: their number, and when the first and the newest were. And when the next list
    and the next small list are allowed."""

    cursor: str = ""
    failures: int = 0
    first_s: float = -math.inf
    newest_s: float = -math.inf
    no_list_before_s: float = -math.inf
    list_wait_s: float = 0.0
    no_check_before_s: float = -math.inf

    def failed(self, cursor: str, now_s: float) -> FailingWatch:
        """One more failure of a watch from `cursor`."""
        if not self.failures or cursor != self.cursor:
            return replace(self, cursor=cursor, failures=1, first_s=now_s, newest_s=now_s)
        return replace(self, failures=self.failures + 1, newest_s=now_s)

    def worked(self) -> FailingWatch:
        """After a watch that moved the cursor or ended in its time, or a small list that showed
        nothing newer. The pace of lists stays."""
        return replace(self, failures=0) if self.failures else self

    def fails_from(self, cursor: str) -> bool:
        """Whether the newest watches from `cursor` failed."""
        return self.failures >= FAILURES and cursor == self.cursor

    def list_due(self, cursor: str, now_s: float) -> bool:
        """Whether the watch fails from `cursor` each time, and another list is allowed. Failures
        that do not count do not extend the row: five within 3 s, then a minute of 503s, lead to no
        list."""
        return self._calls_for_list(cursor, now_s, FAILURES, FAILING_FOR_S)

    def proof_due(self, cursor: str, now_s: float) -> bool:
        """Whether the next watch is the proving one: if it fails too, a list is due, at once or
        within `PROVE_AHEAD_S`. After more than `FAILURES` none is: where each watch ends within a
        few seconds, one proves little."""
        for_s = FAILING_FOR_S - PROVE_AHEAD_S
        return self.failures <= FAILURES and self._calls_for_list(
            cursor, now_s, FAILURES - 1, for_s
        )

    def _calls_for_list(self, cursor: str, now_s: float, failures: int, for_s: float) -> bool:
        return (
            cursor == self.cursor
            and self.failures >= failures
            and self.newest_s - self.first_s >= for_s
            and now_s >= max(self.no_list_before_s, self.no_check_before_s)
        )

    def checked(self, now_s: float) -> FailingWatch:
        """After a small list that led to no list."""
        return replace(self, no_check_before_s=now_s + CHECK_LISTS_AGAIN_S)

    def listed(self, now_s: float) -> FailingWatch:
        """A list that leads past the cursor begins. If the one before is long past, the pace starts
        again."""
        again = now_s - self.no_list_before_s < LIST_AGAIN_MAX_S
        wait_s = min(LIST_AGAIN_MAX_S, 2 * self.list_wait_s) if again else LIST_AGAIN_S
        return replace(self, no_list_before_s=now_s + wait_s, list_wait_s=wait_s)
