"""What follows each class of error. Pure.

Room: watch. In: an error and what was being done. Out: when to try what again. Source: WATCH 6.4,
one function per class.
"""

from __future__ import annotations

from dataclasses import replace

from watchrelay.core.backoff import Backoff, clamp_retry_after
from watchrelay.core.errors import (
    Expired,
    Forbidden,
    Invalid,
    KubeError,
    Misconfigured,
    NotAcceptable,
    NotFound,
    NotWatchable,
    TransientlyForbidden,
    Unauthorized,
    Undecodable,
    Unreachable,
    VersionTooLarge,
)
from watchrelay.model.watch_events import Gone, Troubled
from watchrelay.watch.requests import Rules, begin, wait
from watchrelay.watch.states import (
    FORBIDDEN_GRACE_S,
    Absent,
    AskServed,
    Cause,
    Command,
    Deliver,
    Held,
    Next,
    Sleep,
    Step,
    ToList,
    ToProbe,
    ToWatch,
)

SETBACK_WINDOW_S = 60.0
"""A second loss of history within this time of the list that mended the first backs off. Source:
WATCH 6.4 class C."""
STRIKE_WINDOW_S = 600.0
ABSENT_TWICE_S = 30.0
"""Discovery must say twice, this far apart, that a resource is gone before its objects are. Source:
WATCH 8.4."""
ASK_SERVED_S = 30.0

DELAYS: tuple[tuple[type[KubeError], Backoff], ...] = (
    (TransientlyForbidden, Backoff(base_s=1.0, cap_s=4.0, jitter=0.25)),
    (Unauthorized, Backoff(base_s=5.0, cap_s=60.0, jitter=0.2, ceiling_s=60.0)),
    (Forbidden, Backoff(base_s=30.0, cap_s=300.0, jitter=0.2, ceiling_s=300.0)),
    (NotFound, Backoff(base_s=5.0, cap_s=300.0, jitter=0.2, ceiling_s=300.0)),
    (Misconfigured, Backoff(base_s=60.0, cap_s=60.0, jitter=0.1)),
    (KubeError, Backoff(base_s=300.0, cap_s=300.0, jitter=0.1)),
)
"""Delays of failures that a retry alone does not mend, most special first; the last one is for
those that only a person can mend (T12, T61, T63)."""


def failed(
    rules: Rules, held: Held, error: KubeError, *, now_s: float, again: Next, healthy: bool
) -> Step:
    """What follows `error` while doing `again`. Shape: `healthy` as in `Backoff.after_failure`."""
    match error:
        case Expired() | VersionTooLarge() | Invalid(about="version"):
            return _lost(rules, held, error, now_s, again, healthy=healthy)
        case Undecodable():
            return _struck(rules, held, error, now_s, again, healthy=healthy)
        case NotAcceptable() if rules.plan.selection.metadata_only and not held.plain:
            state, commands = begin(rules, replace(held, plain=True), again, now_s)
            return state, (Deliver(Troubled(error, None)), *commands)
        case NotFound():
            held, delay_s = slower(rules, held, error, now_s)
            absent = Absent(held, again, now_s + delay_s, error, asking=True)
            return absent, (Deliver(Troubled(error, absent.retry_s)), AskServed())
        case Invalid(about="continue" | "streaming"):
            held, delay_s = faster(rules, held, error, now_s, healthy=healthy)
            return wait(held, again, error, now_s + delay_s)
        case Forbidden() if held.grace_s > 0 and (held.watched or isinstance(again, ToList)):
            return _refused(rules, held, error, now_s, again)
        case (
            Unauthorized()
            | Forbidden()
            | NotWatchable()
            | NotAcceptable()
            | Misconfigured()
            | Invalid()
        ):
            held, delay_s = slower(rules, held, error, now_s)
            return wait(
                held,
                again,
                error,
                now_s + max(delay_s, clamp_retry_after(error.retry_after_s)),
                slow=True,
            )
        case _:
            held, delay_s = faster(rules, held, error, now_s, healthy=healthy)
            return wait(held, again, error, now_s + delay_s)


def faster(
    rules: Rules, held: Held, error: KubeError, now_s: float, *, healthy: bool
) -> tuple[Held, float]:
    """The stream's own exponential delay, and not before the server asked."""
    after = (
        held.backoff.after_absence if isinstance(error, Unreachable) else held.backoff.after_failure
    )
    backoff, delay_s = after(now_s, healthy=healthy, rng=rules.rng)
    return replace(held, backoff=backoff), max(delay_s, clamp_retry_after(error.retry_after_s))


def slower(rules: Rules, held: Held, error: KubeError, now_s: float) -> tuple[Held, float]:
    """The delay of a failure that retrying does not mend; another such failure starts anew."""
    template = next(template for kind, template in DELAYS if isinstance(error, kind))
    slow = held.slow if held.slow_reason == error.reason else template
    slow, delay_s = slow.after_failure(now_s, healthy=False, rng=rules.rng)
    return replace(held, slow=slow, slow_reason=error.reason), delay_s


def recovered(held: Held, *, watched: bool = False) -> Held:
    """`held` after the server gave what was asked: slow delays start again at their first, and a
    403 is retried quickly at first.

    Args:
        held: What the stream knows.
        watched: What was given is a watch.
    """
    return replace(
        held,
        slow_reason="",
        absent_s=None,
        watched=held.watched or watched,
        grace_s=FORBIDDEN_GRACE_S,
    )


def _refused(rules: Rules, held: Held, error: Forbidden, now_s: float, again: Next) -> Step:
    """A 403 for what was allowed before: no person is asked for until it has lasted."""
    refused = TransientlyForbidden(
        f"{error.what}; it was allowed before, as while an API server starts", status=error.status
    )
    held, delay_s = slower(rules, held, refused, now_s)
    held = replace(held, grace_s=held.grace_s - delay_s)
    return wait(held, again, refused, now_s + max(delay_s, clamp_retry_after(error.retry_after_s)))


def _lost(
    rules: Rules, held: Held, error: KubeError, now_s: float, again: Next, *, healthy: bool
) -> Step:
    """The version we named is no good: list, not older than it; where that failed, or too soon
    after the last time, with none."""
    repeated = now_s - held.setback_s <= SETBACK_WINDOW_S
    behind = isinstance(error, VersionTooLarge)
    was_list = isinstance(again, ToList)
    named = isinstance(again, ToList) and held.complete and not again.quorum
    quorum = was_list or repeated or behind or isinstance(error, Invalid)
    confirmed = isinstance(again, ToList) and again.confirmed
    by_content = behind or (isinstance(again, ToList) and again.by_content)
    cause: Cause = "behind" if behind else "refused" if isinstance(error, Invalid) else "expired"
    goal = ToList(cause, quorum=quorum, confirmed=confirmed, by_content=by_content)
    held = replace(held, setback_s=now_s, setback_listed=True)
    if (repeated and not named) or (was_list and not named):
        held, delay_s = faster(rules, held, error, now_s, healthy=healthy)
        return wait(held, goal, error, now_s + max(delay_s, 1.0 if behind else 0.0))
    if behind:
        return wait(held, goal, error, now_s + (clamp_retry_after(error.retry_after_s) or 1.0))
    state, commands = begin(rules, held, goal, now_s)
    return state, (Deliver(Troubled(error, None)), *commands)


def strike(held: Held, now_s: float) -> Held:
    """Count one undecodable thing; the count is forgotten after ten clean minutes."""
    fresh = now_s - held.struck_s > STRIKE_WINDOW_S
    return replace(held, strikes=1 if fresh else min(3, held.strikes + 1), struck_s=now_s)


def lenient(held: Held, now_s: float) -> bool:
    """True when a reconnect and a list did not help: what cannot be decoded is passed over, the
    rest flows on."""
    return held.strikes >= 2 and now_s - held.struck_s <= STRIKE_WINDOW_S


def _struck(
    rules: Rules, held: Held, error: KubeError, now_s: float, again: Next, *, healthy: bool
) -> Step:
    held = strike(held, now_s)
    then: Next = (
        ToList("undecodable") if isinstance(again, ToWatch) and held.strikes >= 2 else again
    )
    held, delay_s = faster(rules, held, error, now_s, healthy=healthy)
    return wait(held, then, error, now_s + delay_s)


def answered(rules: Rules, state: Absent, served: bool | None, now_s: float) -> Step:
    """Discovery answered about a resource whose collection is 404: believe a no when it was said
    twice, a yes at once after a no."""
    held, then = state.held, state.then
    first: tuple[Command, ...] = ()
    if served is False:
        then = ToList("returned", quorum=True)
        if held.absent_s is None:
            held = replace(held, absent_s=now_s)
        elif now_s - held.absent_s >= ABSENT_TWICE_S and not held.gone:
            first = (Deliver(Gone()),)
            held = replace(held, gone=True, complete=False, cursor="")
    elif served and held.absent_s is not None:
        state_then, commands = begin(
            rules, replace(held, absent_s=None), ToList("returned", quorum=True), now_s
        )
        return state_then, commands
    until_s = min(state.retry_s, now_s + ASK_SERVED_S)
    return Absent(held, then, state.retry_s, state.error, asking=False), (
        *first,
        Sleep(until_s, wakeable=True),
    )


def woke(rules: Rules, state: Absent, now_s: float, *, rechecked: bool) -> Step:
    """Try when it is time, or when someone knows better; until then ask discovery now and then."""
    if rechecked or now_s >= state.retry_s:
        return begin(rules, state.held, state.then, now_s)
    return replace(state, asking=True), (AskServed(),)


def is_resuming(then: Next) -> bool:
    """True for what goes on from the cursor without a list."""
    return isinstance(then, ToWatch | ToProbe)
