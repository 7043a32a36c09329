"""One partition on its way out: the batches that streams sent to it, in one queue, and what follows
from each answer of a broker. Pure.

The first deliveries of the queue are packed into the batch in flight, the others wait: many streams
write one topic, and each batch costs more than its records. A batch gets its producer id, epoch and
sequence when it is sent first, and its bytes stay the same until the broker has answered that it is
in the log, or certainly is not. So a lost acknowledgement makes no second record. At most one batch
of a partition is in flight: order needs one, and the five batches of a producer that a broker
remembers always include it.

Source of the codes: Kafka protocol guide, "Error Codes".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, NamedTuple, Protocol

from watchrelay.contract.wire import Batch, Receipt, WireRecord
from watchrelay.core.backoff import Backoff
from watchrelay.core.errors import RecordTooLarge

SEQUENCE_MASK: Final = (1 << 31) - 1
"""Sequences wrap to 0 after it."""
UNKNOWN_OFFSET: Final = -1
RETRY: Final = Backoff(base_s=0.1, cap_s=30.0, jitter=0.5)
"""The pauses of a partition whose batches are refused."""
_BATCH_BYTES_LEAST = 16 * 1024


_ALL: Final = SEQUENCE_MASK
"""More records than a batch can have."""


class Place(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int


class Identity(NamedTuple):
    """A producer id and its epoch, as a broker gave them."""

    producer_id: int
    epoch: int


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
"""A batch was sent this often, without success: its leader is in doubt."""
_LOOKS = 10
"""A batch that the broker calls a duplicate, but that is not found, is not in the log after it was
sent this often, in some 20 s."""

Done = Callable[[Receipt | Exception], None]


@dataclass(slots=True)
class TopicLimits:
    """What a batch of a topic may have: `message_bytes` after compression, by the setting
    `bounded_by`, and `batch_bytes` before it."""

    message_bytes: int
    batch_bytes: int
    bounded_by: str = "max.message.bytes"


class PackedBatch(Protocol):
    """Packed records. See client/record_batch.py. `unresolved`: an attempt to send it may be in the
    log. `tries`: the number of attempts."""

    count: int
    raw_bytes: int
    data: bytes
    packed_s: float
    sequence: int
    size: int
    tries: int
    unresolved: bool

    def stamp(
        self, producer_id: int, epoch: int, sequence: int, *, transactional: bool
    ) -> None: ...


class Pack(Protocol):
    """As `Packer.pack`: the result is a batch of the first records, or the index of a record that
    is too large by itself."""

    def __call__(
        self, records: Sequence[WireRecord], *, most: int, limits: TopicLimits, now_ms: int
    ) -> PackedBatch | int: ...


class Delivery:
    """A batch of one stream, from when it is sent until it is settled. `offsets` are those of its
    acknowledged records. `done` None: it was withdrawn, the outcome is unknown.

    `since_s`: since when it is being delivered (loop time), however often it is sent. `shown_s`:
    None while no trouble of it is shown; else from when on it is next counted as overdue.
    """

    __slots__ = ("batch", "done", "offsets", "shown_s", "since_s")

    def __init__(self, batch: Batch, done: Done, since_s: float) -> None:
        self.batch, self.since_s = batch, since_s
        self.done: Done | None = done
        self.offsets: list[int] = []
        self.shown_s: float | None = None

    @property
    def left(self) -> list[WireRecord]:
        """The records that are not acknowledged."""
        return self.batch.records[len(self.offsets) :] if self.offsets else self.batch.records


class Phase(Enum):
    """Where the next batch is."""

    IDLE = auto()
    QUEUED = auto()
    """It leaves with the next request to the leader."""
    SENT = auto()
    APPENDED = auto()
    """In the log; within a transaction until its commit."""
    PAUSED = auto()
    LOCATING = auto()
    """Looked for in the log."""
    RENEWING = auto()
    """The partition gets another identity; there may be no batch in flight."""
    FORGOTTEN = auto()
    """Nothing is sent or answered."""


class Appended(NamedTuple):
    """The batch is in the log from offset `first` on; before, that was known up to offset
    `known_end`. Call `acked`."""

    first: int
    known_end: int


class Refused(NamedTuple):
    """The batch is not in the log, after the error `code`. Call `put_back` or `halve`."""

    code: int


class Pause(NamedTuple):
    """The phase is IDLE after `seconds`; `find_leader`: the leader that is known is not it."""

    seconds: float
    find_leader: bool


class Locate(NamedTuple):
    """Find the batch in the log, from `offset` on if that is known, and call `located`."""

    offset: int
    code: int


class Renew(NamedTuple):
    """Get an identity and call `renewed`. `doubtful`: a batch may be in the log twice."""

    doubtful: bool


Effect = Appended | Refused | Pause | Locate | Renew


class Partition:
    """The deliveries to one partition, in order, and the `batch` in flight, in which the first
    `in_flight` of them have records. The sender sets the phase from IDLE to QUEUED, then calls
    `pack` if there is no `batch`, and `take`.

    Args:
        transactional: Batches are sent within transactions.
    """

    __slots__ = (
        "backoff",
        "batch",
        "deliveries",
        "expected",
        "identity",
        "in_flight",
        "index",
        "limits",
        "log_start",
        "most",
        "next_sequence",
        "phase",
        "place",
        "topic",
        "transactional",
    )

    def __init__(
        self,
        place: Place,
        limits: TopicLimits,
        identity: Identity | None = None,
        *,
        transactional: bool = False,
    ) -> None:
        self.place, self.topic, self.index = place, place.topic.encode(), place.partition
        self.limits, self.transactional = limits, transactional
        self.deliveries: deque[Delivery] = deque()
        self.batch: PackedBatch | None = None
        self.in_flight = 0
        self.most = _ALL
        """The number of records of the next batch: fewer after one that was too large."""
        self.identity, self.next_sequence = identity, 0
        self.expected = UNKNOWN_OFFSET
        """The offset after the newest batch in the log."""
        self.log_start = 0
        """The first offset of the log, as its newest acknowledgement tells it."""
        self.phase = Phase.IDLE
        self.backoff = RETRY

    @property
    def leader_doubtful(self) -> bool:
        """The batch in flight was sent several times: what is known may be outdated."""
        return self.batch is not None and self.batch.tries >= _TRIES

    # ---- out -------------------------------------------------------------------------------------

    def pack(self, pack: Pack, now_ms: int, now_s: float) -> tuple[Delivery, RecordTooLarge] | None:
        """Make `batch` of what waits, whole deliveries as far as there is room. None: done, or
        nothing waits.

        Returns: a delivery that is off the queue since one of its records is too large by itself;
            no batch is made.
        """
        limits, records, size, whole = self.limits, list[WireRecord](), 0, 0
        for delivery in self.deliveries:
            left = delivery.left
            if len(self.deliveries) > 1:
                size += sum(len(record.value or b"") for record in left)
                if records and size > limits.batch_bytes:
                    break
            records += left
            whole += 1
        if not records:
            return None
        packed = pack(records, most=self.most, limits=limits, now_ms=now_ms)
        if isinstance(packed, int):
            number, index = self._find(packed)
            delivery = self.deliveries[number]
            del self.deliveries[number]
            return delivery, _too_large(delivery, index, limits)
        self.batch, packed.packed_s = packed, now_s
        has_all = packed.count == len(records)
        self.in_flight = whole if has_all else self._find(packed.count - 1)[0] + 1
        return None

    def _find(self, index: int) -> tuple[int, int]:
        """Which delivery has the record at `index` of all that are left, and where in its batch."""
        for number, delivery in enumerate(self.deliveries):
            if index < len(delivery.left):
                return number, len(delivery.offsets) + index
            index -= len(delivery.left)
        raise AssertionError("a record of no delivery")

    def take(self) -> bytes:
        """The bytes of the batch in flight, to send now; b"" where there is none, or no longer."""
        batch = self.batch
        if self.phase is not Phase.QUEUED:
            return b""
        if batch is None:
            self.phase = Phase.IDLE
            return b""
        if not batch.data:
            assert self.identity is not None, "a partition is sent under an identity"
            batch.stamp(*self.identity, self.next_sequence, transactional=self.transactional)
            self.next_sequence = (batch.sequence + batch.count) & SEQUENCE_MASK
        batch.tries += 1
        self.phase = Phase.SENT
        return batch.data

    def withdraw(self, delivery: Delivery) -> None:
        """It is not sent, unless it was already: then it is sent until it is answered, as its
        sequence is taken."""
        delivery.done = None
        if delivery in self.deliveries and self.deliveries.index(delivery) >= self.in_flight:
            self.deliveries.remove(delivery)

    # ---- in --------------------------------------------------------------------------------------

    def answered(self, code: int, offset: int) -> tuple[Effect, ...]:
        """The broker answered the batch that was sent."""
        assert self.phase is Phase.SENT, f"an answer while {self.phase}"
        if code == 0:
            return (self._appended(offset),)
        batch, step = self._sent(), STEPS.get(code, Step.REFUSE)
        if step is Step.DUPLICATE and offset >= 0:
            return (self._appended(offset),)
        if step in (Step.RESEND, Step.FIND_LEADER, Step.DENIED):
            batch.unresolved = batch.unresolved or code not in _NOT_APPENDED
            return (self._pause(step),)
        batch.unresolved = batch.unresolved or step is Step.DUPLICATE
        if batch.unresolved:
            self.phase = Phase.LOCATING
            return (Locate(self.expected, code),)
        return self._not_appended(code)

    def unanswered(self) -> tuple[Effect, ...]:
        """The connection was lost, or the broker was silent for too long."""
        assert self.phase is Phase.SENT, f"a lost request while {self.phase}"
        self._sent().unresolved = True
        return (self._pause(Step.FIND_LEADER),)

    def located(self, offset: int | None, code: int) -> tuple[Effect, ...]:
        """The batch was looked for after the error `code`: its offset, None if it was not found. It
        may be there all the same, not yet replicated and so not yet readable."""
        assert self.phase is Phase.LOCATING, f"a place in the log while {self.phase}"
        if offset is not None:
            return (self._appended(offset),)
        if STEPS.get(code) is Step.DUPLICATE and self._sent().tries < _LOOKS:
            return (self._pause(Step.RESEND),)
        return self._not_appended(code)

    def renewed(self, identity: Identity) -> tuple[Effect, ...]:
        """The partition has another identity; what is in flight is sent again under it."""
        assert self.phase is Phase.RENEWING, f"an identity while {self.phase}"
        self.identity, self.next_sequence, self.phase = identity, 0, Phase.IDLE
        if self.batch is None:
            return ()
        self.batch.data, self.batch.unresolved = b"", False
        return (self._pause(Step.RESEND),)

    def acked(self, first: int) -> list[Delivery]:
        """The batch is in the log for good, from offset `first` on. Returns: the deliveries that
        are acknowledged whole."""
        assert self.phase is Phase.APPENDED, f"a receipt while {self.phase}"
        assert self.batch is not None, "a batch was appended"
        at, stop, deliveries = first, first + self.batch.count, self.deliveries
        whole = list[Delivery]()
        for _ in range(self.in_flight):
            delivery = deliveries[0]
            end = at + len(delivery.batch.records) - len(delivery.offsets)
            delivery.offsets.extend(range(at, min(end, stop)))
            if end <= stop or delivery.done is None:
                whole.append(deliveries.popleft())
            at = end
        self.batch, self.in_flight, self.most = None, 0, _ALL
        self.phase, self.backoff = Phase.IDLE, RETRY
        return whole

    def put_back(self) -> PackedBatch:
        """The batch is certainly not in the log: its records are packed again, without those that
        were withdrawn, whose stream may have a newer owner. Returns: the batch that was."""
        batch = self._sent()
        self.deliveries = deque(each for each in self.deliveries if each.done is not None)
        self.batch, self.in_flight = None, 0
        return batch

    def halve(self) -> tuple[Delivery, RecordTooLarge] | None:
        """As `put_back`, since the batch was too large: the next one is half of it.

        Returns: the delivery of a batch of one record, which is off the queue.
        """
        first, limits = self.deliveries[0], self.limits
        batch = self.put_back()
        if batch.count > 1:
            self.most = batch.count // 2
            limits.batch_bytes = max(_BATCH_BYTES_LEAST, batch.raw_bytes // 2)
        elif first.done is not None:
            self.deliveries.popleft()
            return first, _too_large(first, len(first.offsets), limits, batch)
        return None

    def forget(self) -> None:
        """From now on nothing is sent or answered."""
        self.phase, self.batch, self.in_flight = Phase.FORGOTTEN, None, 0
        self.deliveries.clear()

    def successor(self, identity: Identity) -> Partition:
        """The same under another identity, which sends again all that is not acknowledged: what was
        sent is certainly not in the log for good. This one is forgotten."""
        new = Partition(self.place, self.limits, identity, transactional=self.transactional)
        new.deliveries.extend(each for each in self.deliveries if each.done is not None)
        new.expected, new.log_start, new.backoff = self.expected, self.log_start, self.backoff
        self.forget()
        return new

    def _sent(self) -> PackedBatch:
        assert self.batch is not None, f"no batch is in flight while {self.phase}"
        return self.batch

    def _appended(self, first: int) -> Appended:
        assert self.batch is not None, "a batch is appended"
        known_end, self.expected = self.expected, first + self.batch.count
        self.phase = Phase.APPENDED
        return Appended(first, known_end)

    def _pause(self, step: Step) -> Pause:
        self.phase = Phase.PAUSED
        most_s = _DENIED_MAX_S if step is Step.DENIED else _PAUSE_MAX_S
        seconds = min(most_s, _PAUSE_S * 2 ** min(self._sent().tries, 10))
        find_leader = step is Step.FIND_LEADER or (step is Step.RESEND and self.leader_doubtful)
        return Pause(seconds, find_leader)

    def _not_appended(self, code: int) -> tuple[Effect, ...]:
        """Not in the log as far as anyone knows, after the error `code`."""
        batch = self._sent()
        if STEPS.get(code, Step.REFUSE) is not Step.REFUSE:
            self.phase = Phase.RENEWING
            return (Renew(batch.unresolved),)
        if not batch.unresolved:
            self.next_sequence, self.phase = batch.sequence, Phase.IDLE
            return (Refused(code),)
        # A later batch under the same sequences would pass for a repetition of an attempt that is
        # in the log, and be dropped without a word.
        self.phase = Phase.RENEWING
        return Refused(code), Renew(doubtful=True)


def _too_large(
    delivery: Delivery, index: int, limits: TopicLimits, refused: PackedBatch | None = None
) -> RecordTooLarge:
    batch = delivery.batch
    key = batch.records[index].key.decode(errors="replace")
    what = f"record {key} is too large for topic {batch.topic}"
    if refused is None:
        message = f"{what}: compressed it is over {limits.bounded_by}, {limits.message_bytes}"
    else:
        size = f"{refused.size} bytes compressed"
        message = f"{what}: kafka refused it with {size}, over {limits.bounded_by}"
    return RecordTooLarge(message, index=index, acked=delivery.offsets, setting=limits.bounded_by)
