"""What a producer does with each answer: the whole table, and the sequences under it."""

import pytest

from watchrelay.kafka.produce_state import (
    SEQUENCE_MASK,
    STEPS,
    Identity,
    Locate,
    PartitionState,
    Pause,
    PendingBatch,
    Phase,
    Renew,
    Settled,
    Step,
)

FIRST, SECOND = Identity(7, 0), Identity(8, 0)
ANSWERS = range(-1, 134)
AGAIN = sorted(code for code, step in STEPS.items() if step in (Step.RESEND, Step.FIND_LEADER))
DENIED = sorted(code for code, step in STEPS.items() if step is Step.DENIED)
RENEWED = sorted(code for code, step in STEPS.items() if step is Step.RENEW)
REFUSED = sorted(set(ANSWERS) - {0, *STEPS})


class Packed:
    """A batch of so many records; its bytes show what it was stamped with."""

    def __init__(self, count: int = 2) -> None:
        self.count = count

    def record_count(self) -> int:
        return self.count

    def stamped(self, producer_id: int, epoch: int, sequence: int) -> bytes:
        return f"{producer_id}/{epoch}@{sequence}+{self.count}".encode()


def nobody(_offset: int, _code: int) -> None:
    """Waits for no answer."""


def queued(state: PartitionState, count: int = 2) -> PendingBatch:
    batch = PendingBatch(Packed(count), nobody)
    state.queue.append(batch)
    return batch


def sent(*, acked: bool = False) -> tuple[PartitionState, PendingBatch, bytes]:
    """A partition whose batch is in flight; `acked`: one before it is at offset 100."""
    state = PartitionState(FIRST)
    if acked:
        queued(state)
        state.take()
        state.answered(0, 100)
    batch = queued(state)
    return state, batch, state.take()


def again(state: PartitionState) -> bytes:
    """What leaves when the pause is over."""
    state.resume()
    assert state.sendable
    return state.take()


def test_an_acknowledged_batch_gives_its_offset_and_the_next_one_follows() -> None:
    state, batch, data = sent()
    other = queued(state, 3)
    assert not state.sendable, "one batch is in flight"
    assert state.answered(0, 40) == (Settled(batch, 40, 0),)
    assert (data, state.take()) == (b"7/0@0+2", b"7/0@2+3")
    assert state.answered(0, 42) == (Settled(other, 42, 0),)
    assert (state.expected, state.phase, state.sendable) == (45, Phase.NONE, False)


@pytest.mark.parametrize("code", AGAIN)
def test_what_may_pass_is_sent_again_with_the_same_bytes(code: int) -> None:
    state, batch, data = sent()
    (pause,) = state.answered(code, -1)
    assert isinstance(pause, Pause)
    assert pause.find_leader is (code in {3, 5, 6, 7, 9, 13, 56, 72, 74, 75})
    assert batch.unresolved is (code != 19)
    assert again(state) == data
    assert state.answered(0, 5) == (Settled(batch, 5, 0),)


def test_what_is_refused_again_and_again_goes_to_the_leader_by_new_metadata() -> None:
    state, _, data = sent()
    found = []
    for _ in range(4):
        (pause,) = state.answered(19, -1)
        assert isinstance(pause, Pause)
        found.append(pause.find_leader)
        assert again(state) == data
    assert found == [False, False, True, True]


@pytest.mark.parametrize("code", DENIED)
def test_without_a_right_the_same_bytes_are_sent_with_longer_pauses(code: int) -> None:
    state, batch, data = sent()
    pauses = []
    for _ in range(12):
        (pause,) = state.answered(code, -1)
        assert isinstance(pause, Pause)
        pauses.append(pause.seconds)
        assert not pause.find_leader
        assert again(state) == data
    assert (pauses == sorted(pauses), pauses[0], pauses[-1]) == (True, 0.1, 30.0)
    assert not batch.unresolved, "brokers look at rights first"


def test_a_lost_link_leaves_the_batch_unresolved_and_the_same_bytes_go_to_the_leader() -> None:
    state, batch, data = sent()
    assert state.unanswered() == (Pause(0.1, True),)
    assert batch.unresolved
    assert again(state) == data


def test_pauses_of_what_may_pass_double_to_five_seconds() -> None:
    state, _, _ = sent()
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
    state, batch, _ = sent(acked=True)
    assert state.answered(code, -1) == (Renew(doubtful=False),)
    assert not state.sendable
    (pause,) = state.renewed(SECOND)
    assert isinstance(pause, Pause)
    assert again(state) == b"8/0@0+2"
    assert state.answered(0, 102) == (Settled(batch, 102, 0),)
    queued(state)
    assert state.take() == b"8/0@2+2"


@pytest.mark.parametrize("code", [*RENEWED, *REFUSED])
def test_an_unresolved_batch_that_is_refused_is_looked_for_before_anything_else(code: int) -> None:
    state, batch, _ = sent(acked=True)
    state.unanswered()
    again(state)
    assert state.answered(code, -1) == (Locate(batch, 102),)
    assert not state.sendable
    assert state.located(102) == (Settled(batch, 102, 0),)
    queued(state)
    assert state.take() == b"7/0@4+2", "the identity and its sequence are good"


@pytest.mark.parametrize("code", RENEWED)
def test_one_that_is_not_found_may_be_there_twice_under_the_next_identity(code: int) -> None:
    state, _, _ = sent(acked=True)
    state.unanswered()
    again(state)
    state.answered(code, -1)
    assert state.located(None) == (Renew(doubtful=True),)


@pytest.mark.parametrize("code", [46, *RENEWED, *REFUSED])
def test_the_first_batch_of_a_partition_is_looked_for_without_an_offset(code: int) -> None:
    state, batch, _ = sent()
    state.unanswered()
    again(state)
    assert state.answered(code, -1) == (Locate(batch, -1),)
    assert state.located(7) == (Settled(batch, 7, 0),)


@pytest.mark.parametrize("code", REFUSED)
def test_a_refused_batch_is_handed_back_and_its_sequence_is_used_by_the_next(code: int) -> None:
    state, batch, _ = sent(acked=True)
    assert state.answered(code, -1) == (Settled(batch, -1, code),)
    queued(state, 5)
    assert state.take() == b"7/0@2+5"


@pytest.mark.parametrize("code", REFUSED)
def test_the_sequence_of_a_refused_batch_that_may_be_in_the_log_is_never_used_again(
    code: int,
) -> None:
    state, batch, _ = sent(acked=True)
    state.unanswered()
    again(state)
    state.answered(code, -1)
    other = queued(state)
    assert state.located(None) == (Settled(batch, -1, code), Renew(doubtful=True))
    assert not state.sendable, "a batch of that sequence would be dropped without a word"
    assert state.renewed(SECOND) == ()
    assert state.take() == b"8/0@0+2"
    assert state.answered(0, 104) == (Settled(other, 104, 0),)


def test_a_duplicate_is_written_where_the_broker_says_or_where_it_is_found() -> None:
    state, batch, _ = sent(acked=True)
    assert state.answered(46, 102) == (Settled(batch, 102, 0),)
    state, batch, _ = sent(acked=True)
    assert state.answered(46, -1) == (Locate(batch, 102),)
    assert state.located(103) == (Settled(batch, 103, 0),)
    assert state.expected == 105


def test_a_duplicate_that_is_not_found_is_there_all_the_same_and_is_asked_about_again() -> None:
    state, batch, data = sent(acked=True)
    for _ in range(9):
        assert state.answered(46, -1) == (Locate(batch, 102),)
        (pause,) = state.located(None)
        assert isinstance(pause, Pause)
        assert again(state) == data
    state.answered(46, -1)
    assert state.located(None) == (Renew(doubtful=True),), "it cannot be waited for without end"


def test_sequences_wrap_to_zero_behind_the_largest() -> None:
    state = PartitionState(FIRST)
    state.next_sequence = SEQUENCE_MASK - 1
    queued(state, 3)
    assert state.take() == b"7/0@2147483646+3"
    state.answered(0, 0)
    queued(state, 1)
    assert state.take() == b"7/0@1+1"


def test_a_batch_that_nobody_waits_for_is_not_sent_unless_it_was_already() -> None:
    answers: list[int] = []
    state = PartitionState(FIRST)
    flying, waiting = (
        PendingBatch(Packed(), lambda offset, _: answers.append(offset)) for _ in range(2)
    )
    state.queue += [flying, waiting]
    data = state.take()
    state.withdraw(flying)
    state.withdraw(waiting)
    state.withdraw(waiting)
    state.unanswered()
    assert again(state) == data, "its sequence is taken"
    (settled,) = state.answered(0, 9)
    assert isinstance(settled, Settled)
    settled.batch.done(settled.offset, settled.code)
    assert (answers, state.sendable) == ([], False)
