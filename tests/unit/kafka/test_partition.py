"""One partition: what follows from each answer, the whole table, and the sequences under it; what is
packed of several streams, and what becomes of it."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from watchrelay.contract.wire import Batch, Receipt, WireRecord
from watchrelay.core.errors import RecordTooLarge
from watchrelay.kafka.partition import (
    SEQUENCE_MASK,
    STEPS,
    Appended,
    Delivery,
    Identity,
    Locate,
    PackedBatch,
    Partition,
    Pause,
    Phase,
    Place,
    Refused,
    Renew,
    Step,
    TopicLimits,
)

FIRST, SECOND = Identity(7, 0), Identity(8, 0)
ANSWERS = range(-1, 134)
AGAIN = sorted(code for code, step in STEPS.items() if step in (Step.RESEND, Step.FIND_LEADER))
DENIED = sorted(code for code, step in STEPS.items() if step is Step.DENIED)
RENEWED = sorted(code for code, step in STEPS.items() if step is Step.RENEW)
REFUSED = sorted(set(ANSWERS) - {0, *STEPS})


@dataclass(eq=False)
class Packed:
    """A batch of so many records; its bytes show what it was stamped with."""

    count: int
    raw_bytes: int = 100_000
    data: bytes = b""
    packed_s: float = 0.0
    sequence: int = 0
    size: int = 900
    tries: int = 0
    unresolved: bool = False

    def stamp(self, producer_id: int, epoch: int, sequence: int, *, transactional: bool) -> None:
        self.sequence = sequence
        self.data = f"{producer_id}/{epoch}@{sequence}+{self.count}".encode()


def pack(
    records: Sequence[WireRecord], *, most: int, limits: TopicLimits, now_ms: int
) -> PackedBatch | int:
    """A record is too large where its value says so."""
    large = (at for at, record in enumerate(records) if record.value == b"large")
    index = next(large, None)
    return Packed(min(most, len(records))) if index is None else index


@dataclass
class Stage:
    """A partition, and what its deliveries were answered."""

    partition: Partition = field(
        default_factory=lambda: Partition(Place("t", 0), TopicLimits(1000, 1 << 20), FIRST)
    )
    answers: dict[str, Receipt | Exception] = field(default_factory=dict)

    def send(self, *values: bytes, stream: str = "pods") -> Delivery:
        batch = Batch("t", 0, [WireRecord(b"k", value, []) for value in values], stream)
        delivery = Delivery(batch, lambda answer: self.answers.update({stream: answer}), 0.0)
        self.partition.deliveries.append(delivery)
        return delivery

    def take(self) -> bytes:
        """What leaves with a request."""
        assert self.partition.phase is Phase.IDLE
        self.partition.phase = Phase.QUEUED
        if self.partition.batch is None:
            assert self.partition.pack(pack, 0, 0.0) is None
        return self.partition.take()

    def acked(self, first: int) -> list[Delivery]:
        """The broker appended it."""
        (effect,) = self.partition.answered(0, first)
        assert isinstance(effect, Appended)
        assert effect.first == first
        return self.partition.acked(first)


def queued(state: Partition, count: int = 2) -> Delivery:
    return Stage(state).send(*[b"v"] * count)


def take(state: Partition) -> bytes:
    return Stage(state).take()


def sent(*, acked: bool = False) -> tuple[Partition, bytes]:
    """A partition whose batch is in flight; `acked`: one before it is at offset 100."""
    stage = Stage()
    if acked:
        stage.send(b"v", b"v")
        stage.take()
        stage.acked(100)
    stage.send(b"v", b"v")
    return stage.partition, stage.take()


def again(state: Partition) -> bytes:
    """What leaves when the pause is over."""
    assert state.phase is Phase.PAUSED
    state.phase = Phase.IDLE
    return take(state)


def unresolved(state: Partition) -> bool:
    assert state.batch is not None
    return state.batch.unresolved


def test_an_acknowledged_batch_gives_its_offset_and_the_next_one_follows() -> None:
    stage = Stage()
    first = stage.send(b"v", b"v")
    data = stage.take()
    other = stage.send(b"v", b"v", b"v")
    assert stage.acked(40) == [first]
    assert (data, stage.take()) == (b"7/0@0+2", b"7/0@2+3")
    assert stage.partition.answered(0, 42) == (Appended(42, known_end=42),)
    assert stage.partition.acked(42) == [other]
    assert (first.offsets, other.offsets) == ([40, 41], [42, 43, 44])
    assert (stage.partition.expected, stage.partition.phase) == (45, Phase.IDLE)


@pytest.mark.parametrize("code", AGAIN)
def test_what_may_pass_is_sent_again_with_the_same_bytes(code: int) -> None:
    state, data = sent()
    (pause,) = state.answered(code, -1)
    assert isinstance(pause, Pause)
    assert pause.find_leader is (code in {3, 5, 6, 7, 9, 13, 56, 72, 74, 75})
    assert unresolved(state) is (code != 19)
    assert again(state) == data
    assert state.answered(0, 5) == (Appended(5, known_end=-1),)


def test_what_is_refused_again_and_again_goes_to_the_leader_by_new_metadata() -> None:
    state, data = sent()
    found = []
    for _ in range(4):
        (pause,) = state.answered(19, -1)
        assert isinstance(pause, Pause)
        found.append(pause.find_leader)
        assert again(state) == data
    assert found == [False, False, True, True]


@pytest.mark.parametrize("code", DENIED)
def test_without_a_right_the_same_bytes_are_sent_with_longer_pauses(code: int) -> None:
    state, data = sent()
    pauses = []
    for _ in range(12):
        (pause,) = state.answered(code, -1)
        assert isinstance(pause, Pause)
        pauses.append(pause.seconds)
        assert not pause.find_leader
        assert again(state) == data
    assert (pauses == sorted(pauses), pauses[0], pauses[-1]) == (True, 0.1, 30.0)
    assert not unresolved(state), "brokers look at rights first"


def test_a_lost_link_leaves_the_batch_unresolved_and_the_same_bytes_go_to_the_leader() -> None:
    state, data = sent()
    assert state.unanswered() == (Pause(0.1, True),)
    assert unresolved(state)
    assert again(state) == data


def test_pauses_of_what_may_pass_double_to_five_seconds() -> None:
    state, _ = sent()
    pauses = []
    for _ in range(9):
        (pause,) = state.unanswered()
        assert isinstance(pause, Pause)
        pauses.append(pause.seconds)
        again(state)
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0]


@pytest.mark.parametrize("code", RENEWED)
def test_an_identity_that_the_broker_does_not_accept_is_replaced_and_nothing_is_doubtful(
    code: int,
) -> None:
    state, _ = sent(acked=True)
    assert state.answered(code, -1) == (Renew(doubtful=False),)
    (pause,) = state.renewed(SECOND)
    assert isinstance(pause, Pause)
    assert again(state) == b"8/0@0+2"
    assert state.answered(0, 102) == (Appended(102, known_end=102),)
    state.acked(102)
    queued(state)
    assert take(state) == b"8/0@2+2"


@pytest.mark.parametrize("code", [*RENEWED, *REFUSED])
def test_an_unresolved_batch_that_is_refused_is_looked_for_before_anything_else(code: int) -> None:
    state, _ = sent(acked=True)
    state.unanswered()
    again(state)
    assert state.answered(code, -1) == (Locate(102, code),)
    assert state.located(102, code) == (Appended(102, known_end=102),)
    state.acked(102)
    queued(state)
    assert take(state) == b"7/0@4+2", "the identity and its sequence are good"


@pytest.mark.parametrize("code", RENEWED)
def test_one_that_is_not_found_may_be_there_twice_under_the_next_identity(code: int) -> None:
    state, _ = sent(acked=True)
    state.unanswered()
    again(state)
    state.answered(code, -1)
    assert state.located(None, code) == (Renew(doubtful=True),)


@pytest.mark.parametrize("code", [46, *RENEWED, *REFUSED])
def test_the_first_batch_of_a_partition_is_looked_for_without_an_offset(code: int) -> None:
    state, _ = sent()
    state.unanswered()
    again(state)
    assert state.answered(code, -1) == (Locate(-1, code),)
    assert state.located(7, code) == (Appended(7, known_end=-1),)


@pytest.mark.parametrize("code", REFUSED)
def test_a_refused_batch_is_handed_back_and_its_sequence_is_used_by_the_next(code: int) -> None:
    state, _ = sent(acked=True)
    assert state.answered(code, -1) == (Refused(code),)
    state.put_back()
    queued(state, 5)
    assert take(state) == b"7/0@2+7"


@pytest.mark.parametrize("code", REFUSED)
def test_the_sequence_of_a_refused_batch_that_may_be_in_the_log_is_never_used_again(
    code: int,
) -> None:
    state, _ = sent(acked=True)
    state.unanswered()
    again(state)
    state.answered(code, -1)
    assert state.located(None, code) == (Refused(code), Renew(doubtful=True))
    state.put_back()
    assert state.phase is Phase.RENEWING, "a batch of that sequence would be dropped"
    assert state.renewed(SECOND) == ()
    assert take(state) == b"8/0@0+2"


def test_a_duplicate_is_written_where_the_broker_says_or_where_it_is_found() -> None:
    state, _ = sent(acked=True)
    assert state.answered(46, 102) == (Appended(102, known_end=102),)
    state, _ = sent(acked=True)
    assert state.answered(46, -1) == (Locate(102, 46),)
    assert state.located(103, 46) == (Appended(103, known_end=102),)
    assert state.expected == 105


def test_a_duplicate_that_is_not_found_is_there_all_the_same_and_is_asked_about_again() -> None:
    state, data = sent(acked=True)
    for _ in range(9):
        assert state.answered(46, -1) == (Locate(102, 46),)
        (pause,) = state.located(None, 46)
        assert isinstance(pause, Pause)
        assert again(state) == data
    state.answered(46, -1)
    assert state.located(None, 46) == (Renew(doubtful=True),), "it cannot be waited for without end"


def test_sequences_wrap_to_zero_behind_the_largest() -> None:
    stage = Stage()
    stage.partition.next_sequence = SEQUENCE_MASK - 1
    stage.send(b"v", b"v", b"v")
    assert stage.take() == b"7/0@2147483646+3"
    stage.acked(0)
    stage.send(b"v")
    assert stage.take() == b"7/0@1+1"


def test_a_batch_that_nobody_waits_for_is_not_sent_unless_it_was_already() -> None:
    stage = Stage()
    flying = stage.send(b"v", b"v", stream="x")
    data = stage.take()
    waiting = stage.send(b"v", stream="y")
    stage.partition.withdraw(flying)
    stage.partition.withdraw(waiting)
    stage.partition.withdraw(waiting)
    assert list(stage.partition.deliveries) == [flying]
    stage.partition.unanswered()
    assert again(stage.partition) == data, "its sequence is taken"
    assert stage.acked(9) == [flying]
    assert flying.done is None
    assert not stage.partition.deliveries


def test_a_withdrawn_batch_of_an_uncertain_place_is_not_packed_again_once_it_is_refused() -> None:
    stage = Stage()
    withdrawn, kept = stage.send(b"v", stream="x"), stage.send(b"v", stream="y")
    stage.take()
    stage.partition.withdraw(withdrawn)
    stage.partition.answered(87, -1)
    stage.partition.put_back()
    assert list(stage.partition.deliveries) == [kept]
    assert stage.take() == b"7/0@0+1"


# ---- what is packed ------------------------------------------------------------------------------


def test_deliveries_are_packed_whole_up_to_the_size_of_a_batch_and_one_at_least() -> None:
    stage = Stage()
    stage.partition.limits.batch_bytes = 10
    sizes = (12, 4, 4, 4)
    sent = [stage.send(b"v" * size, stream=str(at)) for at, size in enumerate(sizes)]
    assert [stage.take(), *stage.acked(0)] == [b"7/0@0+1", sent[0]]
    assert [stage.take(), *stage.acked(1)] == [b"7/0@1+2", *sent[1:3]]


def test_a_batch_that_is_too_large_is_halved_until_the_record_is_found_and_all_others_go_on() -> (
    None
):
    stage = Stage()
    limits, partition = stage.partition.limits, stage.partition
    first, second = stage.send(b"1", b"2", stream="x"), stage.send(b"3", b"4", b"5", stream="y")
    assert stage.take() == b"7/0@0+5"
    partition.answered(10, -1)
    assert partition.halve() is None
    assert limits.batch_bytes == 50_000
    assert stage.take() == b"7/0@0+2"
    assert stage.acked(0) == [first]
    assert stage.take() == b"7/0@2+3"
    partition.answered(10, -1)
    assert partition.halve() is None
    assert stage.take() == b"7/0@2+1"
    partition.answered(10, -1)
    refused = partition.halve()
    assert refused is not None
    delivery, error = refused
    assert (delivery, error.index, error.acked) == (second, 0, ())
    assert "kafka refused it with 900 bytes" in str(error)
    assert not partition.deliveries


def test_a_record_that_is_known_to_be_too_large_keeps_its_delivery_from_being_packed() -> None:
    stage = Stage()
    stage.send(b"1", stream="x")
    large = stage.send(b"2", b"large", stream="y")
    refused = stage.partition.pack(pack, 0, 0.0)
    assert refused is not None
    delivery, error = refused
    assert isinstance(error, RecordTooLarge)
    assert (delivery, error.index, error.acked, error.setting) == (
        large, 1, (), "max.message.bytes",
    )  # fmt: skip
    assert stage.take() == b"7/0@0+1"


def test_a_delivery_that_is_acknowledged_in_part_goes_on_with_what_is_left() -> None:
    stage = Stage()
    delivery = stage.send(b"1", b"2", b"3", stream="x")
    other = stage.send(b"4", stream="y")
    stage.partition.most = 2
    assert stage.take() == b"7/0@0+2"
    stage.partition.withdraw(other)
    assert list(stage.partition.deliveries) == [delivery]
    assert stage.acked(5) == []
    assert stage.take() == b"7/0@2+1"
    assert stage.acked(9) == [delivery]
    assert delivery.offsets == [5, 6, 9]


def test_under_another_identity_all_that_is_pending_is_sent_again_and_the_former_is_silent() -> (
    None
):
    stage = Stage()
    first, withdrawn = stage.send(b"1", stream="x"), stage.send(b"2", stream="y")
    stage.take()
    last = stage.send(b"3", stream="z")
    stage.partition.withdraw(withdrawn)
    successor = stage.partition.successor(SECOND)
    assert stage.partition.take() == b""
    assert stage.partition.phase is Phase.FORGOTTEN
    assert list(successor.deliveries) == [first, last]
    assert take(successor) == b"8/0@0+2"
