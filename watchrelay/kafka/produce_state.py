"""What a producer does with each answer: the state of one partition. Pure.

A batch gets its producer id, epoch and sequence when it is sent first, and its bytes stay the same
until the broker has answered that it is in the log, or certainly is not. So a lost acknowledgement
makes no second record. At most one batch of a partition is in flight: order needs one, and the
five batches of a producer that a broker remembers always include it.

Source of the codes: Kafka protocol guide, "Error Codes".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum, auto
from typing import Final, NamedTuple, Protocol

SEQUENCE_MASK: Final = (1 << 31) - 1
"""Sequences wrap to 0 after it."""
UNKNOWN_OFFSET: Final = -1


class Identity(NamedTuple):
    """A producer id and its epoch, as a broker gave them."""

    producer_id: int
    epoch: int


class Stampable(Protocol):
    """A packed batch that lacks its producer id, epoch and sequence."""

    def record_count(self) -> int: ...

    def stamped(self, producer_id: int, epoch: int, sequence: int) -> bytes: ...


class Step(Enum):
    """What follows from an error code."""

    RESEND = auto()
    """Not appended, or perhaps appended: the same bytes again; after some times as FIND_LEADER."""
    FIND_LEADER = auto()
    """As RESEND, to the leader by new metadata."""
    DENIED = auto()
    """A right is missing: the same bytes again, with longer pauses."""
    DUPLICATE = auto()
    """In the log, the offset is unknown."""
    RENEW = auto()
    """The broker does not accept the identity: a new one, and the same records again."""
    REFUSE = auto()
    """Certainly not appended by this attempt: handed back."""


STEPS: Final[dict[int, Step]] = {
    **dict.fromkeys((-1, 2, 8, 19, 20, 89), Step.RESEND),
    **dict.fromkeys((3, 5, 6, 7, 9, 13, 56, 72, 74, 75), Step.FIND_LEADER),
    **dict.fromkeys((29, 30, 31, 53), Step.DENIED),
    46: Step.DUPLICATE,
    **dict.fromkeys((45, 47, 49, 59, 90), Step.RENEW),
}
"""By error code; every other code is REFUSE. -1 UNKNOWN_SERVER_ERROR, 2 CORRUPT_MESSAGE, 8
BROKER_NOT_AVAILABLE, 19 and 20 NOT_ENOUGH_REPLICAS (_AFTER_APPEND), 89 THROTTLING_QUOTA_EXCEEDED; 3
UNKNOWN_TOPIC_OR_PARTITION, 5 LEADER_NOT_AVAILABLE, 6 NOT_LEADER, 7 REQUEST_TIMED_OUT (so answers a
former leader that is cut off), 9 REPLICA_NOT_AVAILABLE, 13 NETWORK_EXCEPTION, 56
KAFKA_STORAGE_ERROR, 72 LISTENER_NOT_FOUND, 74 and 75 of leader epochs; 29, 30, 31, 53 of rights; 46
DUPLICATE_SEQUENCE_NUMBER; 45 OUT_OF_ORDER_SEQUENCE_NUMBER, 47 INVALID_PRODUCER_EPOCH, 49
INVALID_PRODUCER_ID_MAPPING, 59 UNKNOWN_PRODUCER_ID, 90 PRODUCER_FENCED."""
_NOT_APPENDED: Final = frozenset((19, 29, 30, 31, 53))
"""Of the codes after which the same bytes are sent again, those that a broker gives only before it
appends. (3 and 6 come also when a partition moves while its replicas are waited for.)"""

_PAUSE_S, _PAUSE_MAX_S, _DENIED_MAX_S = 0.05, 5.0, 30.0
_TRIES = 3
"""The number of these for a batch after which the leader is in doubt."""
_LOOKS = 10
"""How often a batch is sent, in some 20 s, that is in the log by the broker's word, not found."""

Done = Callable[[int, int], None]
"""Called once: (offset of the first record, 0), or (-1, the error code)."""


class PendingBatch:
    """One batch from its hand-over to its answer. `data` are its bytes under the partition's
    identity; `unresolved`: an attempt may be in the log."""

    __slots__ = ("data", "done", "packed", "sequence", "tries", "unresolved")

    def __init__(self, packed: Stampable, done: Done) -> None:
        self.packed, self.done = packed, done
        self.data = b""
        self.sequence = self.tries = 0
        self.unresolved = False


class Phase(Enum):
    """Where the batch in flight is."""

    NONE = auto()
    SENT = auto()
    PAUSED = auto()
    LOCATING = auto()
    """Looked for in the log."""
    RENEWING = auto()
    """The partition gets another identity; there may be no batch in flight."""


class Settled(NamedTuple):
    """`batch` is answered: call its `done`."""

    batch: PendingBatch
    offset: int
    code: int


class Pause(NamedTuple):
    """Call `resume` after `seconds`; `find_leader`: the leader that is known is not it."""

    seconds: float
    find_leader: bool


class Locate(NamedTuple):
    """Find `batch` in the log, from `offset` on if that is known, and call `located`."""

    batch: PendingBatch
    offset: int


class Renew(NamedTuple):
    """Get an identity and call `renewed`. `doubtful`: a batch may be in the log twice."""

    doubtful: bool


Effect = Settled | Pause | Locate | Renew


class PartitionState:
    """One partition: its queue, the batch in flight, the identity that writes it."""

    __slots__ = ("_code", "expected", "identity", "in_flight", "next_sequence", "phase", "queue")

    def __init__(self, identity: Identity | None = None) -> None:
        self.queue: deque[PendingBatch] = deque()
        self.in_flight: PendingBatch | None = None
        self.identity = identity
        self.next_sequence = 0
        self.expected = UNKNOWN_OFFSET
        """The offset after the newest acknowledged batch."""
        self.phase = Phase.NONE
        self._code = 0

    @property
    def sendable(self) -> bool:
        """Whether `take` gives a batch, once there is an identity."""
        return self.phase is Phase.NONE and bool(self.in_flight or self.queue)

    @property
    def leader_doubtful(self) -> bool:
        """The batch in flight was sent several times: what is known may be outdated."""
        return self.in_flight is not None and self.in_flight.tries >= _TRIES

    def take(self) -> bytes:
        """The bytes to send now: those of the batch in flight again, else of the next one. Legal
        while `sendable`, with an identity."""
        batch = self.in_flight
        if batch is None:
            batch = self.in_flight = self.queue.popleft()
        if not batch.data:
            assert self.identity is not None, "a partition is sent under an identity"
            batch.sequence = self.next_sequence
            self.next_sequence = (batch.sequence + batch.packed.record_count()) & SEQUENCE_MASK
            batch.data = batch.packed.stamped(*self.identity, batch.sequence)
        batch.tries += 1
        self.phase = Phase.SENT
        return batch.data

    def answered(self, code: int, offset: int) -> tuple[Effect, ...]:
        """The broker answered the batch that was sent."""
        assert self.phase is Phase.SENT, f"an answer while {self.phase}"
        if code == 0:
            return (self._written(offset),)
        batch, step = self._batch(), STEPS.get(code, Step.REFUSE)
        if step is Step.DUPLICATE and offset >= 0:
            return (self._written(offset),)
        if step in (Step.RESEND, Step.FIND_LEADER, Step.DENIED):
            batch.unresolved = batch.unresolved or code not in _NOT_APPENDED
            return (self._pause(step),)
        batch.unresolved = batch.unresolved or step is Step.DUPLICATE
        if batch.unresolved:
            self.phase, self._code = Phase.LOCATING, code
            return (Locate(batch, self.expected),)
        return self._not_written(code)

    def unanswered(self) -> tuple[Effect, ...]:
        """The connection was lost, or the broker was silent for too long."""
        assert self.phase is Phase.SENT, f"a lost request while {self.phase}"
        self._batch().unresolved = True
        return (self._pause(Step.FIND_LEADER),)

    def resume(self) -> None:
        """A pause is over."""
        assert self.phase is Phase.PAUSED, f"the end of a pause while {self.phase}"
        self.phase = Phase.NONE

    def located(self, offset: int | None) -> tuple[Effect, ...]:
        """The batch in flight was looked for: its offset, None if it was not found. It may be there
        all the same, not yet replicated and so not yet readable."""
        assert self.phase is Phase.LOCATING, f"a place in the log while {self.phase}"
        if offset is not None:
            return (self._written(offset),)
        if STEPS.get(self._code) is Step.DUPLICATE and self._batch().tries < _LOOKS:
            return (self._pause(Step.RESEND),)
        return self._not_written(self._code)

    def renewed(self, identity: Identity) -> tuple[Effect, ...]:
        """The partition has another identity; what is in flight is sent again under it."""
        assert self.phase is Phase.RENEWING, f"an identity while {self.phase}"
        self.identity, self.next_sequence, self.phase = identity, 0, Phase.NONE
        if self.in_flight is None:
            return ()
        self.in_flight.data, self.in_flight.unresolved = b"", False
        return (self._pause(Step.RESEND),)

    def withdraw(self, batch: PendingBatch) -> None:
        """The caller has withdrawn `batch`. What was sent already is sent until it is answered:
        its sequence is taken."""
        if batch is self.in_flight:
            batch.done = withdrawn
        else:
            self.take_back(batch)

    def take_back(self, batch: PendingBatch) -> bool:
        """Whether `batch` was not sent; then it never will be."""
        if batch not in self.queue:
            return False
        self.queue.remove(batch)
        return True

    def _batch(self) -> PendingBatch:
        assert self.in_flight is not None, f"no batch is in flight while {self.phase}"
        return self.in_flight

    def _written(self, offset: int) -> Settled:
        batch = self._batch()
        self.in_flight, self.phase = None, Phase.NONE
        self.expected = offset + batch.packed.record_count()
        return Settled(batch, offset, 0)

    def _pause(self, step: Step) -> Pause:
        self.phase = Phase.PAUSED
        most_s = _DENIED_MAX_S if step is Step.DENIED else _PAUSE_MAX_S
        seconds = min(most_s, _PAUSE_S * 2 ** min(self._batch().tries, 10))
        find_leader = step is Step.FIND_LEADER or (step is Step.RESEND and self.leader_doubtful)
        return Pause(seconds, find_leader)

    def _not_written(self, code: int) -> tuple[Effect, ...]:
        """Not in the log as far as anyone knows, after the error `code`."""
        batch = self._batch()
        if STEPS.get(code, Step.REFUSE) is not Step.REFUSE:
            self.phase = Phase.RENEWING
            return (Renew(batch.unresolved),)
        self.in_flight = None
        if not batch.unresolved:
            self.next_sequence, self.phase = batch.sequence, Phase.NONE
            return (Settled(batch, UNKNOWN_OFFSET, code),)
        # A later batch under the same sequences would pass for a repetition of an attempt that is
        # in the log, and be dropped without a word.
        self.phase = Phase.RENEWING
        return Settled(batch, UNKNOWN_OFFSET, code), Renew(doubtful=True)


def withdrawn(_offset: int, _code: int) -> None:
    """The answer to a batch that was withdrawn."""
