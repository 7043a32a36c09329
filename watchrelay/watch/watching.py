"""A watch: one batch of frames is one step. Pure.

Room: watch. In: frames, ends, failures. Out: `Observed` in batches, `Progressed` where a bookmark
moved the cursor.
"""

from __future__ import annotations

from dataclasses import replace

from watchrelay.core.backoff import Backoff
from watchrelay.core.errors import Interrupted, KubeError, Undecodable
from watchrelay.model.frames import Bookmark, Failure, Frame, ListQuery, ObjectFrame
from watchrelay.model.resources import comparable, compare, watchable
from watchrelay.model.watch_events import Observed, Progressed, Troubled
from watchrelay.watch.errors import failed, faster, lenient, recovered, strike
from watchrelay.watch.requests import (
    TIMEOUT_SLACK_S,
    Rules,
    begin,
    idle_deadline_s,
    newest_of,
    resume,
    wait,
)
from watchrelay.watch.states import (
    SECOND_BOOKMARK_S,
    Command,
    Deliver,
    Due,
    Ended,
    Event,
    Failed,
    Held,
    Opened,
    Read,
    Received,
    Skipped,
    Sleep,
    Step,
    ToList,
    ToWatch,
    Vouch,
    Vouched,
    Waiting,
    Watching,
)

VERY_SHORT_S = 1.0
"""A watch that ends sooner and brought nothing is a failure, or a server that closes at once is
asked in a hot loop (WATCH 2.9). Where it brought something it is none, but the next is not opened
before this time is up: each change of a busy resource would open another."""
_OBJECTS_ALONE: frozenset[type] = frozenset({ObjectFrame})
HEALTHY_AFTER_S = 60.0
QUIET_STALLS = 3


def step_watching(rules: Rules, state: Watching, event: Event, now_s: float) -> Step:
    """Frames came, or the watch ended."""
    match event:
        case Received():
            return received(rules, state, event, now_s)
        case Opened():
            state = replace(
                state, held=recovered(state.held, watched=True), opened_s=now_s, heard_s=now_s
            )
            return state, (Read(state.due_s),)
        case Ended():
            return _ended(rules, state, now_s)
        case Due():
            return _due(rules, state, now_s)
        case Vouched(version=version):
            return _vouched(rules, state, version, now_s)
        case Failed(error=error):
            return _failed(rules, state, error, now_s)
        case _:
            raise AssertionError(f"{type(event).__name__} while a watch is open")


def received(rules: Rules, state: Watching, event: Received, now_s: float) -> Step:
    """One chunk's frames: objects go on together, the cursor follows the newest version, an error
    ends the watch."""
    frames = event.frames
    held, cursor, end = state.held, state.cursor, None
    commands: list[Command] = []
    if set(map(type, frames)) == _OBJECTS_ALONE:  # the flood: nothing to sort out
        objects: list[ObjectFrame] = frames  # type: ignore[assignment]  # just asked of each one
        newest = objects[-1].resource_version
        if not _advances(newest, cursor):
            newest = next(
                (
                    each.resource_version
                    for each in reversed(objects)
                    if _advances(each.resource_version, cursor)
                ),
                cursor,
            )
    else:
        objects, newest, marked, skipped, end = _sorted_out(frames, held, cursor, now_s)
        if skipped:
            held = strike(held, now_s)
            commands.append(Skipped(skipped))
        if marked and not held.bookmarked:
            held = replace(held, bookmarked=True)
            state = replace(state, idle_s=idle_deadline_s(rules, held, state.timeout_s))
    if objects:
        commands.append(Deliver(Observed(objects, event.at_s)))
    if newest != cursor:
        cursor = newest
        commands.append(Deliver(Progressed(cursor)))
    state = Watching(
        held, cursor, state.timeout_s, state.idle_s, state.asked_idle_s, state.opened_s, event.at_s,
        state.objects + len(objects), state.lines + len(frames),
    )  # fmt: skip
    if end is not None:
        then, more = _failed(rules, state, end, now_s)
        return then, (*commands, *more)
    assert state.opened_s is not None, "frames came from a watch that was never opened"
    if now_s - state.opened_s > state.timeout_s + TIMEOUT_SLACK_S or now_s >= held.relist_due_s:
        # A server that does not end its watches: do it for it. Or a list is due, and frames keep
        # coming.
        then, more = resume(rules, _kept(state), now_s)
        return then, (*commands, *more)
    commands.append(Read(state.due_s))
    return state, tuple(commands)


def _advances(version: str, cursor: str) -> bool:
    """Whether the cursor may move to `version`. A single one that is no number is nothing to go on
    from where all others are."""
    # Longer, or equally long and later in the alphabet: newer where both are numbers. Where the
    # cursor is none, there is no order.
    if (len(version), version) > (len(cursor), cursor) and comparable(version):
        return True
    return version != cursor and not comparable(cursor) and watchable(version)


def _sorted_out(
    frames: list[Frame], held: Held, cursor: str, now_s: float
) -> tuple[list[ObjectFrame], str, bool, tuple[KubeError, ...], KubeError | None]:
    """Objects, where the cursor moves to, whether a bookmark came, what was passed over, and the
    error that ended it."""
    objects: list[ObjectFrame] = []
    skipped: list[KubeError] = []
    newest, marked = cursor, False
    for frame in frames:
        match frame:
            case ObjectFrame():
                objects.append(frame)
            case Bookmark():
                marked = True
            case Failure(error=Undecodable() as error) if lenient(held, now_s):
                skipped.append(error)
                continue
            case Failure(error=error):
                return objects, newest, marked, tuple(skipped), error
        if _advances(frame.resource_version, newest):
            newest = frame.resource_version
    return objects, newest, marked, tuple(skipped), None


def _kept(state: Watching) -> Held:
    """What outlives this watch."""
    heard_s = state.heard_s if state.lines else state.held.heard_s
    quiet = 0 if state.objects else state.held.quiet_stalls
    return replace(state.held, cursor=state.cursor, heard_s=heard_s, quiet_stalls=quiet)


def _healthy(state: Watching, now_s: float) -> bool:
    return state.lines > 0 or (
        state.opened_s is not None and now_s - state.opened_s >= HEALTHY_AFTER_S
    )


def _ended(rules: Rules, state: Watching, now_s: float) -> Step:
    held = _kept(state)
    assert state.opened_s is not None, "a watch that was never opened cannot end"
    early = now_s - state.opened_s < VERY_SHORT_S
    if early and state.cursor == state.held.cursor:
        error = Interrupted("the server ended the watch at once, with nothing in it")
        held, delay_s = faster(rules, held, error, now_s, healthy=False)
        # A line too long to read ends the watch here each time; when lines are passed over already,
        # only a list leads past it.
        then = ToList("undecodable") if lenient(held, now_s) else ToWatch()
        return wait(held, then, error, now_s + delay_s)
    if early:
        again_s = state.opened_s + VERY_SHORT_S
        return Waiting(held, ToWatch(), again_s), (Sleep(again_s),)
    return resume(rules, held, now_s)


def _due(rules: Rules, state: Watching, now_s: float) -> Step:
    if now_s - state.heard_s >= state.idle_s:
        return _stalled(rules, state, now_s)
    if state.vouch == "due" and now_s < state.held.relist_due_s:
        return state, (
            Vouch(ListQuery(limit=1, plain=state.held.plain), state.heard_s + state.idle_s),
        )
    return resume(rules, _kept(state), now_s)


def _vouched(rules: Rules, state: Watching, version: str, now_s: float) -> Step:
    """What the server's present version, asked for beside the watch, shows.

    A server behind our cursor, or behind what the log holds, was restored from a backup (WATCH
    2.8). At our cursor: where nothing has happened there is nothing to show, so silence is no sign.
    """
    if version and compare(version, newest_of(state.cursor, state.held.floor)) == -1:
        return begin(rules, _kept(state), ToList("restored", quorum=True, by_content=True), now_s)
    if version == state.cursor:
        state = replace(state, heard_s=now_s)
    elif version and not state.held.late:
        state = replace(
            state,
            held=replace(state.held, late=True),
            idle_s=max(SECOND_BOOKMARK_S, state.idle_s),
            vouch="asked",
        )
    else:
        state = replace(state, vouch="asked")
    return state, (Read(state.due_s),)


def _failed(rules: Rules, state: Watching, error: KubeError, now_s: float) -> Step:
    if error.reason == "inactive" and state.opened_s is not None:
        return _stalled(rules, state, now_s)
    if (
        isinstance(error, Interrupted)
        and state.opened_s is not None
        and now_s - state.opened_s >= state.timeout_s + TIMEOUT_SLACK_S - 1
    ):
        # cut by the source, for the server did not end it in its time
        return resume(rules, _kept(state), now_s)
    held = _kept(state)
    if state.opened_s is not None and now_s - state.opened_s >= held.backoff.cap_s:
        held = replace(held, backoff=Backoff())
    return failed(rules, held, error, now_s=now_s, again=ToWatch(), healthy=_healthy(state, now_s))


def _stalled(rules: Rules, state: Watching, now_s: float) -> Step:
    """Nothing came for too long: the connection may be half open. Three times in vain means a
    server that is silent by nature."""
    held = _kept(state)
    quiet = held.quiet_stalls + 1 if not state.objects else 0
    deadline_s = held.deadline_s
    if quiet >= QUIET_STALLS:
        quiet, deadline_s = (
            0,
            max(deadline_s, min(deadline_s * 2, state.timeout_s + TIMEOUT_SLACK_S)),
        )
    held = replace(held, quiet_stalls=quiet, deadline_s=deadline_s)
    silent_s = now_s - state.heard_s
    error = Interrupted(f"the watch was silent for {silent_s:.0f} s: opened again")
    then, commands = resume(rules, held, now_s)
    return then, (Deliver(Troubled(error, None)), *commands)
