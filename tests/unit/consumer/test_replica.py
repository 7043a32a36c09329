"""The reader of the record contract, section 5, rule by rule."""

from __future__ import annotations

from typing import Any

import pytest

from watchrelay.consumer.replica import (
    Noted,
    ReadAgain,
    Replaced,
    Replica,
    Unproven,
)
from watchrelay.contract.records import MarkerRecord, ObjectRecord, content_hash
from watchrelay.contract.state import Changed, Ignored
from watchrelay.contract.wire import MarkerKind, Position, Verb


class Writer:
    """Writes records of one epoch, with the count and digest of what it wrote."""

    def __init__(self, epoch: int = 1, held: dict[bytes, bytes] | None = None) -> None:
        self.epoch, self.sequence, self.held = epoch, 0, dict(held or {})

    def say(self, verb: Verb, key: bytes, value: bytes = b"1") -> ObjectRecord:
        self.sequence += 1
        if verb == "deleted":
            self.held.pop(key, None)
            return ObjectRecord(
                "pods", self.epoch, self.sequence, verb, key, None, 0, "u", "1", "watch", ""
            )
        self.held[key] = value
        return ObjectRecord(
            "pods",
            self.epoch,
            self.sequence,
            verb,
            key,
            value,
            content_hash(key, value),
            "u",
            "1",
            "watch",
            "",
        )

    def mark(self, kind: MarkerKind, **more: Any) -> MarkerRecord:
        self.sequence += 1
        digest = sum(content_hash(key, value) for key, value in self.held.items()) % 2**64
        fields: dict[str, Any] = (
            {"frontier": "9", "count": len(self.held), "digest": digest} if kind != "claim" else {}
        )
        return MarkerRecord(
            "pods", self.epoch, self.sequence, kind, 0, "", "c", 1, **(fields | more)
        )


def shown(replica: Replica) -> dict[bytes, bytes]:
    return {key: held.value for key, held in replica.held.items()}


def test_upserts_and_deletes_change_the_shown_state_and_say_from_what_to_what() -> None:
    writer, replica = Writer(), Replica()
    first = replica.apply(writer.say("added", b"a"))
    second = replica.apply(writer.say("modified", b"a", b"2"))
    third = replica.apply(writer.say("deleted", b"a"))
    assert isinstance(first, Changed)
    assert isinstance(second, Changed)
    assert isinstance(third, Changed)
    assert (first.before, second.before, third.before) == (None, first.after, second.after)
    assert third.after is None
    assert shown(replica) == {}


def test_a_duplicate_and_a_former_writer_are_ignored() -> None:
    writer, replica = Writer(), Replica()
    record = writer.say("added", b"a")
    replica.apply(record)
    assert replica.apply(record) == Ignored(duplicate=True)
    later = Writer(epoch=2)
    replica.apply(later.mark("claim"))
    assert replica.apply(writer.say("deleted", b"a")) == Ignored(duplicate=False)
    assert shown(replica) == {b"a": b"1"}
    assert replica.position == Position(2, 1)


def test_a_marker_that_agrees_proves_and_a_gap_unproves_until_the_next() -> None:
    writer, replica = Writer(), Replica()
    replica.apply(writer.say("added", b"a"))
    assert not replica.proven
    assert replica.apply(writer.mark("heartbeat")) == Noted()
    assert (replica.proven, replica.frontier) == (True, "9")
    writer.mark("heartbeat")
    replica.apply(writer.say("modified", b"a", b"2"))
    assert not replica.proven
    replica.apply(writer.mark("heartbeat"))
    assert replica.proven


def test_a_marker_that_disagrees_asks_to_read_again_from_the_last_snapshot_once() -> None:
    writer, replica = Writer(), Replica()
    writer.say("added", b"a")
    beat = {"last_snapshot": "1-1", "last_snapshot_offset": 42}
    assert replica.apply(writer.mark("heartbeat", **beat)) == ReadAgain(42)
    assert replica.rereading
    assert not replica.proven
    former = {"last_snapshot": "0-7", "last_snapshot_offset": 3}
    # before the end of the snapshot started from: not judged
    assert replica.apply(writer.mark("heartbeat", **former)) == Noted()
    assert replica.apply(writer.mark("end", snapshot="1-1", begin_sequence=50)) == Unproven()
    assert replica.apply(writer.mark("heartbeat", **beat)) == Unproven()


def test_a_heartbeat_behind_an_end_that_names_the_snapshot_before_it_does_not_have_both_read_in_turn_forever() -> (
    None
):
    """A heartbeat that was handed over with an end names the snapshot before it."""
    writer, replica = Writer(), Replica()
    writer.say("added", b"a")
    end = writer.mark("end", snapshot="1-2", begin_sequence=50, begin_offset=42)
    beat = writer.mark("heartbeat", last_snapshot="1-1", last_snapshot_offset=7)
    assert replica.apply(end) == ReadAgain(42)
    assert [replica.apply(record) for record in (end, beat)] == [Unproven(), ReadAgain(7)]
    assert [replica.apply(record) for record in (end, beat)] == [Unproven(), Unproven()]


def test_with_no_snapshot_yet_it_reads_again_from_the_start() -> None:
    writer, replica = Writer(), Replica()
    writer.say("added", b"a")
    assert replica.apply(writer.mark("heartbeat")) == ReadAgain(None)


def test_the_first_state_is_kept_until_the_second_is_proven_behind_the_failure() -> None:
    writer, replica = Writer(), Replica()
    log: list[Any] = [
        writer.mark("begin", snapshot="1-1"),
        writer.say("added", b"a"),
        writer.say("added", b"b"),
    ]
    log += [writer.mark("end", snapshot="1-1", begin_sequence=1, begin_offset=0)]
    lost = writer.say("modified", b"a", b"2")
    log += [lost, writer.mark("heartbeat", last_snapshot="1-1", last_snapshot_offset=0)]
    outcomes = [replica.apply(record) for record in log if record is not lost]
    assert outcomes[-1] == ReadAgain(0)
    again = [replica.apply(record) for record in log]
    assert again[:-1] == [Noted()] * 5
    replaced = again[-1]
    assert isinstance(replaced, Replaced)
    assert [(change.key, change.after and change.after.value) for change in replaced.changes] == [
        (b"a", b"2")
    ]
    assert shown(replica) == {b"a": b"2", b"b": b"1"}
    assert replica.proven
    assert not replica.rereading


def test_an_end_sweeps_what_is_older_than_its_begin_if_the_rest_agrees() -> None:
    replica, old, new = Replica("2-1"), Writer(), Writer(epoch=2)
    replica.apply(old.say("added", b"dead"))
    replica.apply(old.say("added", b"alive"))
    replica.apply(new.mark("begin", snapshot="2-1"))
    replica.apply(new.say("added", b"alive"))
    outcome = replica.apply(new.mark("end", snapshot="2-1", begin_sequence=1))
    assert isinstance(outcome, Noted)
    assert [change.key for change in outcome.swept] == [b"dead"]
    assert (shown(replica), replica.proven) == ({b"alive": b"1"}, True)


def test_an_end_that_does_not_agree_even_after_the_sweep_removes_nothing() -> None:
    replica, writer = Replica("1-1"), Writer()
    replica.apply(writer.mark("begin", snapshot="1-1"))
    replica.apply(writer.say("added", b"a"))
    writer.say("added", b"lost")
    assert replica.apply(
        writer.mark("end", snapshot="1-1", begin_sequence=1, begin_offset=7)
    ) == ReadAgain(7)
    assert shown(replica) == {b"a": b"1"}


@pytest.mark.parametrize("complete", ["9-2", "9-10", "11-1"])
def test_a_heartbeat_that_names_the_snapshot_started_in_is_behind_its_end(
    complete: str,
) -> None:
    replica, writer = Replica("9-2"), Writer()
    replica.apply(writer.say("added", b"a"))  # the end was compacted away
    beat = {"last_snapshot": complete, "last_snapshot_offset": 7}
    assert (
        replica.apply(writer.mark("heartbeat", last_snapshot="9-1", last_snapshot_offset=3))
        == Noted()
    )
    assert replica.proven
    writer.say("added", b"lost")
    assert (
        replica.apply(writer.mark("heartbeat", last_snapshot="9-1", last_snapshot_offset=3))
        == Noted()
    )
    assert replica.apply(writer.mark("heartbeat", **beat)) == ReadAgain(7)


def test_a_claim_opens_an_epoch_and_proves_nothing() -> None:
    replica = Replica()
    assert replica.apply(Writer(epoch=5).mark("claim")) == Noted()
    assert not replica.proven
    assert replica.position == Position(5, 1)


def test_a_recreated_log_replaces_the_state_once_proven_whatever_its_epochs() -> None:
    former, replica = Writer(epoch=7), Replica()
    for record in (
        former.mark("claim"),
        former.say("added", b"a"),
        former.say("added", b"b"),
        former.mark("heartbeat"),
    ):
        replica.apply(record)
    replica.restart()
    assert not replica.proven
    assert set(shown(replica)) == {b"a", b"b"}, "what was held is shown until the new log is proven"
    new = Writer(epoch=1)
    for record in (new.mark("claim"), new.say("added", b"b", b"2"), new.say("added", b"z")):
        assert replica.apply(record) == Noted()
    replaced = replica.apply(new.mark("heartbeat"))
    assert isinstance(replaced, Replaced)
    assert [(change.key, change.after is None) for change in replaced.changes] == [
        (b"a", True),
        (b"b", False),
        (b"z", False),
    ]
    assert shown(replica) == {b"b": b"2", b"z": b"1"}
    assert not replica.rereading


def test_a_part_of_the_first_snapshot_agrees_with_its_markers_and_is_not_complete() -> None:
    writer, replica = Writer(), Replica()
    first = {"snapshot": "1-1", "frontier": "0"}
    for record in (
        writer.mark("claim"),
        writer.mark("begin", **first),
        writer.say("added", b"a"),
        writer.mark("heartbeat", frontier="0"),
    ):
        replica.apply(record)
        assert not replica.complete
    assert replica.proven
    replica.apply(writer.say("added", b"b"))
    replica.apply(writer.mark("end", snapshot="1-1", begin_sequence=2))
    assert replica.complete
    replica.apply(writer.mark("heartbeat", frontier="0"))
    assert replica.complete, "the resource is not served any more, say"


def test_a_recreated_log_replaces_the_state_only_once_its_first_snapshot_is_whole() -> None:
    former, replica = Writer(epoch=7), Replica()
    for record in (former.mark("claim"), former.say("added", b"a"), former.mark("heartbeat")):
        replica.apply(record)
    replica.restart()
    new = Writer(epoch=1)
    replica.apply(new.mark("claim"))
    assert replica.apply(new.mark("begin", snapshot="1-1", frontier="0")) == Noted()
    replica.apply(new.say("added", b"b"))
    assert replica.apply(new.mark("heartbeat", frontier="0")) == Noted()
    assert set(shown(replica)) == {b"a"}
    assert isinstance(replica.apply(new.mark("end", snapshot="1-1", begin_sequence=2)), Replaced)
    assert set(shown(replica)) == {b"b"}
