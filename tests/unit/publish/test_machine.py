"""What a writer may publish: the table holds each transition, and who asks gets the same answers."""

from __future__ import annotations

from typing import get_args

import pytest

from watchrelay.publish import machine
from watchrelay.publish.machine import (
    COMPLETE,
    AwaitedHeartbeats,
    AwaitingDifference,
    AwaitingList,
    Draining,
    Effect,
    Event,
    Live,
    Phase,
    PublishingFirstSnapshot,
    Replaying,
    step,
)
from watchrelay.publish.recovery import FirstSnapshot, ListAndDiff, ReadAgainFromStart, WatchFrom

AWAITED = AwaitedHeartbeats(frozenset({0, 1}), 7)
LAST = AwaitedHeartbeats(frozenset({1}), 7)
AWAITED_BY_PHASE = (None, AWAITED, LAST, COMPLETE)
PHASES: list[Phase] = [
    AwaitingList(),
    AwaitingList(log_unverified=True),
    PublishingFirstSnapshot("5"),
    AwaitingDifference("9"),
    *(
        Replaying("5", newest, accepted, each)
        for newest in ("", "9")
        for accepted in (False, True)
        if newest or not accepted
        for each in AWAITED_BY_PHASE
    ),
    *(Live("5", each) for each in AWAITED_BY_PHASE),
    Draining("5"),
]
EVENTS: list[Event] = [
    machine.FirstChange(),
    *(machine.ListCompleted(version, AWAITED) for version in ("3", "7", "12")),
    machine.VersionReached("7"),
    machine.VersionReached("12"),
    machine.ResourceRemoved(),
    machine.WatchAccepted(),
    machine.EarlyHeartbeatDue(None),
    machine.EarlyHeartbeatDue(AWAITED),
    machine.MarkerAcked(1, 6),
    machine.MarkerAcked(1, 7),
    machine.SnapshotEndDue(None),
    machine.SnapshotEndDue(AWAITED),
    machine.DrainBegun(),
]

TRANSITIONS: dict[str, dict[str, str]] = {
    "AwaitingList": {
        "FirstChange ListCompleted": "PublishingFirstSnapshot",
        "DrainBegun": "Draining",
    },
    "PublishingFirstSnapshot": {
        "VersionReached ListCompleted ResourceRemoved": "PublishingFirstSnapshot",
        "SnapshotEndDue": "Live",
        "DrainBegun": "Draining",
    },
    "AwaitingDifference": {"ListCompleted ResourceRemoved": "Live", "DrainBegun": "Draining"},
    "Replaying": {
        "WatchAccepted VersionReached": "Replaying Live",
        "EarlyHeartbeatDue MarkerAcked": "Replaying",
        "ListCompleted ResourceRemoved": "Live",
        "DrainBegun": "Draining",
    },
    "Live": {
        "WatchAccepted VersionReached ListCompleted ResourceRemoved": "Live",
        "EarlyHeartbeatDue MarkerAcked SnapshotEndDue": "Live",
        "DrainBegun": "Draining",
    },
    "Draining": {},
}
"""Phase, events, the phases that follow; every other event changes nothing and has no effect.
`FirstChange` in `AwaitingList` without `log_unverified` is a bug and raises."""


def test_the_table_holds_each_transition_and_no_other() -> None:
    seen = set()
    for phase in PHASES:
        for event in EVENTS:
            if phase == AwaitingList() and event == machine.FirstChange():
                continue  # asserted not to happen
            after, effects = step(phase, event)
            if after is not phase or effects:
                names = (type(phase).__name__, type(event).__name__, type(after).__name__)
                seen.add(names)
    table = {
        (phase, event, after)
        for phase, row in TRANSITIONS.items()
        for events, afters in row.items()
        for event in events.split()
        for after in afters.split()
    }
    assert sorted(seen - table) == [], "the machine does what the table does not show"
    assert sorted(table - seen) == [], "the table shows what the machine does not do"


def test_the_table_names_every_phase_and_every_event() -> None:
    assert set(TRANSITIONS) == {phase.__name__ for phase in get_args(Phase)}
    events = {event for row in TRANSITIONS.values() for event in " ".join(row).split()}
    assert events == {event.__name__ for event in get_args(Event)}


@pytest.mark.parametrize(
    ("phase", "may_send_heartbeat", "may_snapshot", "may_repair", "frontier"),
    [
        (AwaitingList(), False, False, False, "0"),
        (AwaitingList(log_unverified=True), False, False, False, "0"),
        (PublishingFirstSnapshot("5"), True, True, True, "0"),
        (AwaitingDifference("9"), False, False, False, "0"),
        (Replaying("5", "9"), False, False, True, "5"),
        (Replaying("5", "9", accepted=True), True, False, True, "5"),
        (Replaying("5", ""), False, False, True, "5"),
        (Live("5"), True, True, True, "5"),
        (Draining("5"), False, False, False, "0"),
        (Draining(None), False, False, False, "0"),
    ],
)
def test_what_each_phase_permits(
    phase: Phase, *, may_send_heartbeat: bool, may_snapshot: bool, may_repair: bool, frontier: str
) -> None:
    assert machine.may_send_heartbeat(phase) == may_send_heartbeat
    assert machine.may_snapshot(phase) == may_snapshot
    assert machine.may_repair(phase) == may_repair
    assert machine.frontier(phase) == frontier


def test_a_recovered_log_decides_the_first_phase() -> None:
    assert machine.start(FirstSnapshot("", log_unverified=True), "9") == AwaitingList(
        log_unverified=True
    )
    assert machine.start(ListAndDiff(""), "9") == AwaitingDifference("9")
    assert machine.start(WatchFrom("5"), "9") == Replaying("5", "9")
    assert machine.start(WatchFrom("9"), "9") == Replaying("9", "")
    with pytest.raises(AssertionError):
        machine.start(ReadAgainFromStart((0,)), "9")


def test_the_frontier_may_go_back_only_behind_a_list_older_than_what_is_known() -> None:
    for phase in (Live("5", COMPLETE), Replaying("3", "5"), AwaitingDifference("5")):
        assert Effect.LOWER_FRONTIER in step(phase, machine.ListCompleted("4", AWAITED))[1]
        assert Effect.LOWER_FRONTIER not in step(phase, machine.ListCompleted("5", AWAITED))[1]
    for phase in (Live("5", COMPLETE), Replaying("3", ""), AwaitingDifference("5")):
        for version, lowered in (("6", True), ("7", False), ("8", False)):
            listed = machine.ListCompleted(version, AWAITED, frontier_floors=frozenset({"7", "3"}))
            assert (Effect.LOWER_FRONTIER in step(phase, listed)[1]) == lowered


def test_a_resource_that_is_removed_ends_the_wait_for_the_first_list_behind_a_log() -> None:
    after, effects = step(AwaitingDifference("5"), machine.ResourceRemoved())
    assert (after, effects) == (Live("0"), (Effect.LOWER_FRONTIER, Effect.REPAIR))


def test_a_stream_is_complete_with_the_last_heartbeat_behind_its_state() -> None:
    phase: Phase = Live("5", AWAITED)
    for partition, after_record, effects in ((0, 6, ()), (0, 7, ()), (0, 9, ())):
        phase, found = step(phase, machine.MarkerAcked(partition, after_record))
        assert found == effects
    assert phase == Live("5", LAST)
    last = step(phase, machine.MarkerAcked(1, 8))
    assert last == (Live("5", COMPLETE), (Effect.REPORT_COMPLETE,))
