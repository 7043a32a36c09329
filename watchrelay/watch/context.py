"""What a stream remembers from one state of its watch to the next, with the rules for delays and
deadlines that depend on it. Pure."""

from __future__ import annotations

import math
from random import Random

import msgspec
from msgspec.structs import replace

from watchrelay.core.backoff import Backoff, clamp_retry_after
from watchrelay.core.errors import (
    Expired,
    Forbidden,
    Invalid,
    KubeError,
    Misconfigured,
    NotFound,
    TransientlyForbidden,
    Unanswered,
    Unauthorized,
    Undecodable,
    Unreachable,
    VersionTooLarge,
)
from watchrelay.model.frames import WATCH_GRACE_S, WatchQuery
from watchrelay.model.resources import comparable, compare
from watchrelay.model.streams import WatchPlan
from watchrelay.watch.failing import LIST_AGAIN_S, FailingWatch, shows_failing_cursor

TIMEOUT_MIN_S, TIMEOUT_MAX_S = 300, 599
"""The `timeoutSeconds` of a watch is random between these, or all watches of a restarted server
would end at the same time again and again. Source: client-go; docs/watch-facts.md 2.2."""
LATE_WATCH_S = (40, 60)
"""The `timeoutSeconds` of a watch whose answer may be held back, as by a proxy that buffers, which
hands on what it has at the end: less than the client waits for the head of an answer."""
LATE_ANSWER_S = 5.0
"""An answer that begins sooner was not held back."""
FLUSHED_S = 1.0
"""A bookmark that comes in the last second of a watch, or later, may have been held back until its
end; the server's own last one comes 2 s before it."""
SILENCE_LIMIT_S = 70.0
"""How long a watch with bookmarks, one a minute, may be silent."""
SILENCE_LIMIT_JITTER_S = 3.0
STREAMING_SINCE = (1, 34)
"""The first Kubernetes version that has WatchList, and lists from cache snapshots, enabled by
default for good. Source: KEP-3157, KEP-4988."""
NO_STREAMING_LISTS_S = 6 * 3600.0
"""How long lists are paged after streaming lists have failed."""
FORBIDDEN_GRACE_S = 30.0
"""A 403 for what was allowed before is retried quickly for this long: while an API server starts,
its RBAC caches are empty."""
WORKED_AFTER_S = 30.0
"""A watch that was open for this long ends the row of failures of its stream: it lived as long as
the longest delay before jitter (`Backoff.cap_s`), so opening it again soon makes no more requests
than waiting for that delay after each failure would."""
UNDECODABLE_WINDOW_S = 600.0
"""Undecodable objects further apart than this do not count as in a row."""

DELAYS_BY_KIND: tuple[tuple[type[KubeError], Backoff], ...] = (
    (TransientlyForbidden, Backoff(base_s=1.0, cap_s=4.0, jitter=0.25)),
    (Unauthorized, Backoff(base_s=5.0, cap_s=60.0, jitter=0.2, ceiling_s=60.0)),
    (Forbidden, Backoff(base_s=30.0, cap_s=300.0, jitter=0.2, ceiling_s=300.0)),
    (NotFound, Backoff(base_s=5.0, cap_s=300.0, jitter=0.2, ceiling_s=300.0)),
    (Misconfigured, Backoff(base_s=60.0, cap_s=60.0, jitter=0.1)),
    (KubeError, Backoff(base_s=300.0, cap_s=300.0, jitter=0.1)),
)
"""Delays of errors that do not use the stream's exponential backoff (`StreamContext.retry`), most
specific first; the last one is for all others (docs/watch-facts.md, cases T12, T61, T63)."""

_FRESH = Backoff()


class WatchRules(msgspec.Struct, frozen=True):
    """What the machine follows. `server_version` is (major, minor), None while unknown."""

    plan: WatchPlan
    rng: Random
    server_version: tuple[int, int] | None = None

    def relist_at_s(self, now_s: float) -> float:
        """When the state is next compared with a list, to find what the watch may have missed;
        infinity for never."""
        interval_s = self.plan.relist_interval_s
        return now_s + interval_s * (1 + 0.1 * self.rng.random()) if interval_s > 0 else math.inf


class StreamContext(msgspec.Struct, frozen=True):
    """What outlives a state."""

    cursor: str = ""
    """The resourceVersion from which the next watch starts: everything up to it was delivered."""
    held_version: str = ""
    """A version that the store may hold though the cursor has not reached it: the newest on the log
    that was read back, or that of a list of `relistInterval`, after which the watch continues from
    the older cursor; "" for none. While it is newer than the cursor, it is the minimum of lists
    (`newest_known`), and a server that shows a lower version was restored."""
    history_check_at_s: float = math.inf
    """When a version check is to tell next whether the server has the history from which the held
    state was made; infinity once it is known. Until then a record of another writer may name a
    version to come, up to which the store would take changes for replays."""
    has_state: bool = False
    """The store holds the complete state as of `cursor`, so relists may ask for "not older than".
    False where it holds a recovered log from which no watch can continue."""
    watch_was_allowed: bool = False
    """The server accepted a watch before, of this process or of the one that wrote the log: a 403
    may be transient."""
    removal_reported: bool = False
    """`ResourceRemoved` was delivered, and the resource has not been listed since."""
    not_served_since_s: float | None = None
    """When discovery first reported the resource as gone."""
    hidden: str = ""
    """Why the resource is hidden, as discovery last reported."""
    relist_at_s: float = math.inf

    backoff: Backoff = _FRESH
    kind_backoff: Backoff = _FRESH
    """The delays, by `DELAYS_BY_KIND`, of a row of errors with the reason `kind_reason`. The row
    ends when a watch has worked; an answer 200 does not end it, as the error may follow in the
    stream each time."""
    kind_reason: str = ""
    forbidden_grace_s: float | None = None
    """How much longer a 403 is retried quickly; None: nothing was allowed yet. The first success, a
    start from a log, and each watch that worked set it to `FORBIDDEN_GRACE_S`; retries use it
    up."""
    failing: FailingWatch = FailingWatch()
    version_rejected: bool = False
    """The version of a request could not be served (expired, not there yet, or refused), and no
    list has been complete since."""
    version_rejected_at_s: float = -math.inf
    """When that was last, or when the list that followed was complete."""
    undecodable_again: bool = False
    """The last undecodable object came at most `UNDECODABLE_WINDOW_S` after the one before,
    whatever came in between, or failed a list. After the first one the watch is opened again; after
    the second a list is made, and such objects are skipped in it and in the watches after it
    (docs/watch-facts.md 6.4, class L)."""
    undecodable_at_s: float = -math.inf
    vain_lists: int = 0
    """Lists that were complete since a watch last worked."""
    answers_late: bool = False
    """A watch had no answer in time, and none since was answered within `LATE_ANSWER_S`."""
    whole_objects: bool = False
    """The server does not offer the metadata-only representation."""

    streaming_list_failed: bool = False
    """The last streaming list did not reach its initial-events-end bookmark."""
    paged_until_s: float = -math.inf
    """Lists are paged until then, or until the server is no longer of `paged_server_version`, whose
    streaming lists failed."""
    paged_server_version: tuple[int, int] | None = None

    expects_bookmarks: bool = False
    """The server has sent bookmarks, or, where the state comes from the log or a streaming list, is
    assumed to."""
    bookmarks_seen: bool = False
    """A watch has brought one, beside the end of its initial events. Until then its silence is no
    error."""
    check_early: bool = False
    """A silent watch is checked already after `VERSION_CHECK_EARLY_S` (states.py): a check showed a
    newer version than the watch, or lists are streamed."""
    silence_limit_s: float = SILENCE_LIMIT_S
    """How long a watch with bookmarks may be silent; jitter comes on top. Longer while the server
    is taken for one that sends few."""
    frozen_watches: int = 0
    """Frozen watches since one that brought an object, or since `silence_limit_s` was raised."""
    state_shown_at_s: float = -math.inf
    """When the server last showed its current state to this process, in any watch or list."""

    @property
    def in_forbidden_grace(self) -> bool:
        """Whether a 403 is retried quickly still: something was allowed before."""
        return (self.forbidden_grace_s or 0.0) > 0

    @property
    def newest_known(self) -> str:
        """The newer of cursor and `held_version` where they can be compared, else the cursor."""
        cursor, held = self.cursor, self.held_version
        return held if cursor and held and compare(cursor, held) == -1 else cursor

    def was_restored(self, version: str) -> bool:
        """Whether the server's current version shows that it was restored from a backup: it is
        older than what is known, or can be ordered while that cannot."""
        newest = self.newest_known
        return compare(version, newest) == -1 or (comparable(version) and not comparable(newest))

    @property
    def list_pace_s(self) -> float:
        """What a list waits for beside the delay of its error: longer after each list from whose
        version no watch worked, up to `LIST_AGAIN_S`."""
        return min(LIST_AGAIN_S, 2.0 ** min(self.vain_lists, 9) - 1)

    def after_success(self, *, of_watch: bool = False) -> StreamContext:
        """The context after a successful request; `of_watch`: it was that of a watch."""
        grace_s = FORBIDDEN_GRACE_S if self.forbidden_grace_s is None else self.forbidden_grace_s
        return replace(
            self,
            not_served_since_s=None,
            hidden="",
            watch_was_allowed=self.watch_was_allowed or of_watch,
            forbidden_grace_s=grace_s,
        )

    def after_watch(self, cursor: str, lived_s: float) -> StreamContext:
        """The context after a watch that came to `cursor`. It worked, so that errors after it begin
        new rows, where it came further than before or lived for `WORKED_AFTER_S`."""
        lived_long = lived_s >= WORKED_AFTER_S
        context = replace(self, backoff=_FRESH) if lived_long else self
        if lived_long or cursor != self.cursor:
            context = replace(
                context, kind_reason="", forbidden_grace_s=FORBIDDEN_GRACE_S, vain_lists=0
            )
        failing = context.failing if cursor == self.cursor else context.failing.worked()
        return replace(context, cursor=cursor, failing=failing)

    def retry(
        self, rules: WatchRules, error: KubeError, now_s: float, *, healthy: bool
    ) -> tuple[StreamContext, float]:
        """The stream's exponential delay, at least the server's Retry-After. `healthy`: the
        failed request had brought something. After errors that lead to a list, `list_pace_s` comes
        on top."""
        unreachable = isinstance(error, Unreachable)
        after = self.backoff.after_unreachable if unreachable else self.backoff.after_failure
        backoff, delay_s = after(now_s, healthy=healthy, rng=rules.rng)
        if isinstance(error, Expired | Invalid | Undecodable | VersionTooLarge):
            delay_s += self.list_pace_s
        return replace(self, backoff=backoff), max(delay_s, clamp_retry_after(error.retry_after_s))

    def retry_by_kind(
        self, rules: WatchRules, error: KubeError, now_s: float
    ) -> tuple[StreamContext, float]:
        """The delay of an error by `DELAYS_BY_KIND`; a different error starts again at its first
        delay."""
        first = next(delays for kind, delays in DELAYS_BY_KIND if isinstance(error, kind))
        backoff = self.kind_backoff if self.kind_reason == error.reason else first
        backoff, delay_s = backoff.after_failure(now_s, healthy=False, rng=rules.rng)
        return replace(self, kind_backoff=backoff, kind_reason=error.reason), delay_s

    def after_opening(self, waited_s: float) -> StreamContext:
        """The context after the server has accepted a watch, `waited_s` after the request."""
        late = self.answers_late and waited_s >= LATE_ANSWER_S
        return replace(self.after_success(of_watch=True), answers_late=late)

    def with_bookmark(self, before_end_s: float) -> StreamContext:
        """The context after a bookmark, `before_end_s` before the end that the watch asked for."""
        return replace(self, bookmarks_seen=True) if before_end_s > FLUSHED_S else self

    def after_watch_error(self, error: KubeError, lived_s: float, now_s: float) -> StreamContext:
        """The context after a watch that failed when it had been open for `lived_s`, or after the
        request for it."""
        context = self.with_failed_watch(now_s) if shows_failing_cursor(error, lived_s) else self
        late = isinstance(error, Unanswered)
        return replace(context, answers_late=True) if late else context

    def with_failed_watch(self, now_s: float) -> StreamContext:
        """Count one more watch that failed from its cursor."""
        return replace(self, failing=self.failing.failed(self.cursor, now_s))

    def with_undecodable(self, now_s: float, *, listed: bool = False) -> StreamContext:
        """Count one undecodable object. `listed`: the list failed for it. The next one would have
        it too, so it is skipped there."""
        again = listed or now_s - self.undecodable_at_s <= UNDECODABLE_WINDOW_S
        return replace(self, undecodable_again=again, undecodable_at_s=now_s)

    def skips_undecodable(self, now_s: float) -> bool:
        """Whether undecodable objects are skipped now: opening the watch again did not help, or a
        list had one."""
        return self.undecodable_again and now_s - self.undecodable_at_s <= UNDECODABLE_WINDOW_S

    def streams_lists(self, rules: WatchRules, now_s: float) -> bool:
        """Whether lists are requested as a stream."""
        plan = rules.plan
        if not plan.bookmarks or plan.initial_list == "paged":
            return False
        if now_s < self.paged_until_s and self.paged_server_version == rules.server_version:
            return False
        return plan.initial_list == "streaming" or (
            rules.server_version is not None and rules.server_version >= STREAMING_SINCE
        )

    def with_failed_streaming_list(self, rules: WatchRules, now_s: float) -> StreamContext:
        """Count a streaming list that did not reach its initial-events-end bookmark; after the
        second in a row, lists are paged."""
        if self.streaming_list_failed:
            return self.with_paged_lists(rules, now_s)
        return replace(self, streaming_list_failed=True)

    def with_paged_lists(self, rules: WatchRules, now_s: float) -> StreamContext:
        """Page lists for six hours, or until the server's version changes. Source:
        docs/watch-facts.md 3.6."""
        return replace(
            self,
            streaming_list_failed=False,
            paged_until_s=now_s + NO_STREAMING_LISTS_S,
            paged_server_version=rules.server_version,
        )

    def watch_query(
        self, rules: WatchRules, version: str, *, initial_events: bool = False, timeout_s: int = 0
    ) -> WatchQuery:
        """The request for a watch from `version`; `timeout_s`: 0 for the usual one."""
        usual_s = LATE_WATCH_S if self.answers_late else (TIMEOUT_MIN_S, TIMEOUT_MAX_S)
        timeout_s = timeout_s or rules.rng.randint(*usual_s)
        bookmarks = self.expects_bookmarks or initial_events  # initial events end with one
        return WatchQuery(
            resource_version=version,
            timeout_s=timeout_s,
            idle_timeout_s=self.frozen_after_s(rules, timeout_s, bookmarks=bookmarks),
            bookmarks=rules.plan.bookmarks,
            send_initial_events=initial_events,
            whole_objects=self.whole_objects,
        )

    def frozen_after_s(self, rules: WatchRules, timeout_s: int, *, bookmarks: bool) -> float:
        """How long a watch may be silent before it counts as frozen: little more than the server's
        bookmark interval where it sends bookmarks."""
        longest_s = timeout_s + WATCH_GRACE_S
        if not (rules.plan.bookmarks and bookmarks):
            return longest_s
        jitter_s = rules.rng.random() * SILENCE_LIMIT_JITTER_S
        return min(longest_s, self.silence_limit_s + jitter_s)
