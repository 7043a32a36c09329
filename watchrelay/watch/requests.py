"""How each thing begins: a list, a watch, a probe, a wait. Pure.

Room: watch. In: what is held, what comes next. Out: the state for it, with the request that is
legal for it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from random import Random
from typing import Literal, assert_never

from watchrelay.core.errors import KubeError
from watchrelay.model.frames import ListQuery, WatchQuery
from watchrelay.model.resources import compare, watchable
from watchrelay.model.streams import WatchPlan
from watchrelay.model.watch_events import ListBegun, Troubled
from watchrelay.watch.states import (
    Deliver,
    FetchPage,
    Held,
    Listing,
    Next,
    OpenWatch,
    Probing,
    Sleep,
    Step,
    Streaming,
    ToList,
    ToProbe,
    ToWatch,
    Waiting,
    Watching,
)

TIMEOUT_MIN_S, TIMEOUT_MAX_S = 300, 599
"""Drawn anew for each watch, or all watches of a restarted server end together for ever. Source:
client-go; WATCH 2.2."""
TIMEOUT_SLACK_S = 15.0
DEADLINE_JITTER_S = 3.0
PROBE_AFTER_S = 600.0
RELIST_JITTER = 0.1
STREAMING_SINCE = (1, 34)
"""The first server whose WatchList and whose lists from cache snapshots stay on. Source: KEP-3157,
KEP-4988."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What the machine goes by. `server_version` is (major, minor), None while unknown."""

    plan: WatchPlan
    rng: Random
    server_version: tuple[int, int] | None = None


def begin(rules: Rules, held: Held, then: Next, now_s: float) -> Step:
    """The state for `then`, and its first command."""
    match then:
        case ToList():
            return begin_list(rules, held, then, now_s)
        case ToWatch():
            return begin_watch(rules, held)
        case ToProbe():
            query = ListQuery(limit=1, plain=held.plain)
            return Probing(replace(held, heard_s=now_s)), (FetchPage(query),)
        case _:
            assert_never(then)


def begin_list(rules: Rules, held: Held, goal: ToList, now_s: float) -> Step:
    """A list, streaming where the server can. Law: a version is named only together with
    NotOlderThan, or as "0"."""
    asked = newest_of(held.cursor, held.floor) if held.complete and not goal.quorum else ""
    first_any = not held.complete and not goal.quorum and rules.plan.list_semantic == "any"
    if _streams(rules, held, now_s) and not first_any and not goal.unbounded:
        timeout_s = rules.rng.randint(TIMEOUT_MIN_S, TIMEOUT_MAX_S)
        # its end mark is a bookmark
        idle_s = idle_deadline_s(rules, replace(held, bookmarked=True), timeout_s)
        query = WatchQuery(
            resource_version=asked,
            timeout_s=timeout_s,
            idle_timeout_s=idle_s,
            bookmarks=True,
            send_initial_events=True,
            plain=held.plain,
        )
        return Streaming(held, goal, asked, timeout_s, idle_s), (
            Deliver(ListBegun(goal.by_content)),
            OpenWatch(query),
        )
    limit = 0 if goal.unbounded else rules.plan.page_size
    if asked and rules.server_version is not None and rules.server_version < STREAMING_SINCE:
        # these answer later pages from etcd: one page keeps a relist in the server's cache (WATCH
        # 1.10)
        limit = 0
    version, match = ("0", "") if first_any else (asked, "NotOlderThan" if asked else "")
    page = ListQuery(limit=limit, resource_version=version, version_match=match, plain=held.plain)
    return Listing(held, goal, asked, limit), (Deliver(ListBegun(goal.by_content)), FetchPage(page))


def newest_of(cursor: str, floor: str) -> str:
    """The newer of the two where they can be compared, else the cursor."""
    return floor if cursor and floor and compare(cursor, floor) == -1 else cursor


def next_page(state: Listing) -> FetchPage:
    """The request that goes on with a list. Source: with a token the server refuses version and
    match (WATCH 1.6)."""
    return FetchPage(
        ListQuery(limit=state.limit, continue_token=state.token, plain=state.held.plain)
    )


def begin_watch(rules: Rules, held: Held) -> Step:
    """A plain watch from the cursor. Law: never from "" or "0", whose first events come in no order
    (WATCH 2.11)."""
    assert watchable(held.cursor), "a watch starts at a version"
    timeout_s = rules.rng.randint(TIMEOUT_MIN_S, TIMEOUT_MAX_S)
    idle_s = idle_deadline_s(rules, held, timeout_s)
    query = WatchQuery(
        resource_version=held.cursor,
        timeout_s=timeout_s,
        idle_timeout_s=idle_s,
        bookmarks=rules.plan.bookmarks,
        plain=held.plain,
    )
    vouch: Literal["", "due"] = "due" if rules.plan.bookmarks and held.bookmarked else ""
    return Watching(held, held.cursor, timeout_s, idle_s, asked_idle_s=idle_s, vouch=vouch), (
        OpenWatch(query),
    )


def idle_deadline_s(rules: Rules, held: Held, timeout_s: int) -> float:
    """How long a silent watch is believed: little more than the server's bookmark interval, once it
    has shown to send them."""
    longest_s = timeout_s + TIMEOUT_SLACK_S
    if not (rules.plan.bookmarks and held.bookmarked):
        return longest_s
    return min(longest_s, held.deadline_s + rules.rng.random() * DEADLINE_JITTER_S)


def resume(rules: Rules, held: Held, now_s: float) -> Step:
    """Watch on from the cursor; after ten silent minutes only when the server's present is not
    behind it (WATCH 2.8)."""
    if held.relist_due_s <= now_s:
        return begin(rules, held, ToList("consistency", quorum=True), now_s)
    return begin(
        rules, held, ToProbe() if now_s - held.heard_s >= PROBE_AFTER_S else ToWatch(), now_s
    )


def relist_due_s(rules: Rules, now_s: float) -> float:
    """When the state is compared with a list, for what the watch may have missed; infinity where
    that is not wanted."""
    interval_s = rules.plan.relist_interval_s
    return (
        now_s + interval_s * (1 + RELIST_JITTER * rules.rng.random())
        if interval_s > 0
        else math.inf
    )


def wait(held: Held, then: Next, error: KubeError, until_s: float, *, slow: bool = False) -> Step:
    """Stay away until `until_s`, and say so."""
    return Waiting(held, then, until_s, error, slow), (
        Deliver(Troubled(error, until_s)),
        Sleep(until_s, wakeable=slow),
    )


def _streams(rules: Rules, held: Held, now_s: float) -> bool:
    plan = rules.plan
    if not plan.bookmarks or plan.initial_list == "paged":
        return False
    if now_s < held.barred_until_s and held.barred_version == rules.server_version:
        return False
    return plan.initial_list == "streaming" or (
        rules.server_version is not None and rules.server_version >= STREAMING_SINCE
    )


def bar_streaming(rules: Rules, held: Held, now_s: float, *, for_s: float = 6 * 3600.0) -> Held:
    """List by pages for six hours, or until the server's version changes. Source: WATCH 3.6."""
    return replace(
        held, misses=0, barred_until_s=now_s + for_s, barred_version=rules.server_version
    )
