"""The watch of one resource as a value that steps. Pure.

Room: watch. In: a state, what happened, the time. Out: the next state, and commands of which the
last is the one thing to do next.

    list (paged or streaming) -> verdict -> watch -> watch -> ... ; every failure -> wait -> what it
    was about to do, or a list

States hold only what is legal in them; what outlives a request is `Held`. The loop keeps a new
state only when the deliveries that came with it were taken: so the cursor moves last.
"""

from __future__ import annotations

import math
from typing import assert_never

from watchrelay.watch.errors import answered, woke
from watchrelay.watch.listing import step_listing, step_probing, step_settling, step_streaming
from watchrelay.watch.requests import Rules, begin, relist_due_s
from watchrelay.watch.states import (
    FORBIDDEN_GRACE_S,
    Absent,
    Answered,
    Event,
    Held,
    Listing,
    Next,
    Probing,
    Settling,
    Sleep,
    State,
    Step,
    Streaming,
    ToList,
    ToWatch,
    Waiting,
    Watching,
    Woke,
)
from watchrelay.watch.watching import step_watching


def start(
    rules: Rules,
    *,
    cursor: str = "",
    floor: str = "",
    resumed: bool = False,
    now_s: float,
    first_wait_s: float = 0.0,
) -> Step:
    """The first step: a list, or with a cursor a watch from there.

    Shape: `resumed`: the outlet holds what a log said and, without a cursor, wants a list of the
    present to compare it with; `floor` is the newest version of that log. No list is made to learn
    whether the server was set back behind the cursor: its watch would be silent, and after a minute
    without a bookmark the probe is made anyway (WATCH 2.8).
    Units: `first_wait_s` spreads streams that start together.
    """
    held = Held(
        cursor=cursor,
        floor=floor,
        complete=bool(cursor),
        bookmarked=bool(cursor) and rules.plan.bookmarks,
        relist_due_s=relist_due_s(rules, now_s) if cursor else math.inf,
        watched=resumed or bool(cursor),
        grace_s=FORBIDDEN_GRACE_S if resumed or cursor else 0.0,
    )
    then: Next = (
        ToWatch() if cursor else ToList("resumed", quorum=True) if resumed else ToList("first")
    )
    if first_wait_s <= 0:
        return begin(rules, held, then, now_s)
    return Waiting(held, then, now_s + first_wait_s), (Sleep(now_s + first_wait_s),)


def step(rules: Rules, state: State, event: Event, now_s: float) -> Step:
    """The state after `event`, and what to do. Raises: AssertionError when the event cannot happen
    in that state."""
    match state:
        case Watching():
            return step_watching(rules, state, event, now_s)
        case Listing():
            return step_listing(rules, state, event, now_s)
        case Streaming():
            return step_streaming(rules, state, event, now_s)
        case Settling():
            return step_settling(rules, state, event, now_s)
        case Probing():
            return step_probing(rules, state, event, now_s)
        case Waiting():
            assert isinstance(event, Woke), f"{type(event).__name__} while waiting"
            return begin(rules, state.held, state.then, now_s)
        case Absent(asking=True):
            assert isinstance(event, Answered), f"{type(event).__name__} while discovery is asked"
            return answered(rules, state, event.served, now_s)
        case Absent():
            assert isinstance(event, Woke), f"{type(event).__name__} while the resource is absent"
            return woke(rules, state, now_s, rechecked=event.rechecked)
        case _:
            assert_never(state)


def at_work(state: State) -> bool:
    """True while a list needs its seat."""
    return isinstance(state, Listing | Streaming)
