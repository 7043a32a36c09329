"""What a stream's writer needs of other packages: Kafka, the control topic, the store."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from watchrelay.contract.records import LogRecord
from watchrelay.contract.wire import Batch, Receipt
from watchrelay.core import clock
from watchrelay.model.changes import Entry
from watchrelay.model.progress import StreamProgress
from watchrelay.observe.metrics import StreamMetrics, TopicMetrics
from watchrelay.observe.status import StreamStatus
from watchrelay.publish.timing import FlushTimer, HeartbeatInterval

BATCH_BYTES = 480 * 1024
"""Uncompressed; the producer's batch holds 512 KiB, the rest covers errors of the estimate."""


class RecordSink(Protocol):
    """Appends batches to Kafka. Implemented by kafka/sink.py."""

    def send(self, batch: Batch, done: Callable[[Receipt | Exception], None]) -> Any:
        """Append all records in order. `done` is called once, in a later iteration of the
        event loop: with a Receipt when all are acknowledged, with a RecordTooLarge that has the
        offsets of what was appended before, or with another error, which ends the stream.

        Returns: what `withdraw` takes.
        """
        ...

    def withdraw(self, delivery: Any) -> None:
        """Stop calling `done`; the outcome is unknown."""
        ...


class ControlLog(Protocol):
    """The control topic. `stream` is an id, with the part if there is one (`spec.id`). Implemented
    and described by kafka/control_topic.py."""

    async def claim(
        self,
        stream: str,
        description: dict[str, object],
        *,
        starting_point: dict[str, object] | None,
        highest_epoch: Callable[[], Awaitable[int]],
        transactional_id: str,
    ) -> int:
        """Write a claim, and return its epoch. `highest_epoch` is asked where the stream is
        described for the first time: its epochs begin above that."""
        ...

    async def read_starting_point(self, stream: str, partitions: int) -> dict[str, object] | None:
        """The starting point of a writer that claims `stream` now; None: the start of each
        partition. Waits until the control topic was read to its end once."""
        ...

    def newest_claims(self, stream: str) -> dict[str, int]:
        """The epochs of the newest claims of a stream, by the stream or part that was claimed:
        after a change of `split` there are several."""
        ...

    async def released(self, claims: Mapping[str, int], *, within_s: float) -> bool:
        """True as soon as the releases of all these claims are read; False after `within_s`
        without."""
        ...

    def index(self, stream: str) -> dict[str, object] | None:
        """The newest index record. For a part: the oldest of the newest index records of its
        partitions, which may differ after a change of `split`; None where a partition has none."""
        ...

    async def write(
        self, kind: Literal["snapshot", "stream"], stream: str, value: dict[str, object] | None
    ) -> None:
        """Write an index record ("snapshot") or the description of a stream; None deletes it."""
        ...


class Transactions(Protocol):
    """The transactions in which a stream is written. Implemented by
    kafka/stream_transactions.py."""

    @property
    def id(self) -> str:
        """The transactional id."""
        ...

    async def begin(self, epoch: int) -> None:
        """Abort what previous writers have open; from now on what is sent is committed before its
        receipt. Raises: Fenced when the claim of `epoch` is no longer the newest."""
        ...


class StoreView(Protocol):
    """The store, as the writer reads it. Implemented by store/objects.py.

    A new state is a new Entry, so the entry of a queued record unpacks to the value it had then.
    """

    @property
    def in_difference(self) -> bool:
        """Some changes of a list are made, and not yet all: the log may hold deletes newer than the
        frontier, so no snapshot begins. Source: docs/record-contract-reasons.md, F5."""
        ...

    @property
    def counts(self) -> bool:
        """Whether states are compared by what counts."""
        ...

    def __len__(self) -> int: ...
    def keys(self) -> list[bytes]: ...
    def get(self, key: bytes) -> Entry | None: ...
    def unpack(self, entry: Entry) -> bytes: ...
    def settle(self, key: bytes, published: Entry) -> bool:
        """Whether the held state is equal in what counts to `published`, the newest published state
        of its key; that is then held again."""
        ...

    def published_in_part(self, entry: Entry) -> None:
        """Note that the topic has not all of `entry`, a present or former one: the state after it
        is a change whatever differs."""
        ...


class GapReader(Protocol):
    """What becomes of the log beside our own records: finds and reads those in gaps between them,
    and tells where it starts. Implemented by daemon/recovery.py."""

    def log_start(self, partition: int) -> int:
        """The first offset that the log of the partition has, as far as acknowledgements tell; 0
        before the first."""
        ...

    def unacknowledged_ranges(self, partition: int, start: int, stop: int) -> list[tuple[int, int]]:
        """The ranges of offsets in [start, stop) that no acknowledgement of this process covers: of
        other writers, and late copies of our own batches."""
        ...

    def owns(self, key: bytes) -> bool:
        """Whether it is for this stream to say what is true of a key: nothing is published for that
        of another stream on the topic, whatever names this one."""
        ...

    async def read(
        self,
        ranges: Mapping[int, Sequence[tuple[int, int]]],
        take: Callable[[int, int, LogRecord], None],
    ) -> None:
        """Call `take` with partition, offset and content of each record in `ranges` that is of this
        stream, or may hide one of its objects; however long it takes. `ranges` has those of each
        partition, [start, stop), in the order of its log: it is read once, from the first one to
        the last one."""
        ...


async def limit_unknown() -> None:
    """For a limit that cannot be read again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WriterContext:
    """What the writer of a stream works with.

    `queue_bytes`: bound of the queues together. Beyond it, with `conflate`, the fullest partitions
    keep only a set of keys until that set is empty; else the watch waits. `max_message_bytes`: the
    largest compressed batch of the topic, which `reread_limit` reads again; None when it cannot.
    `must_stop`: asked before each send, with the writer's epoch: whether a newer claim was read,
    after which nothing may be sent. `snapshot_completed`: called when a snapshot is complete.
    `transactions` None: records are not written in any.
    """

    sink: RecordSink
    control: ControlLog
    store: StoreView
    metrics: StreamMetrics
    topic_metrics: TopicMetrics
    status: StreamStatus
    progress: StreamProgress
    heartbeat_interval: HeartbeatInterval
    must_stop: Callable[[int], bool]
    queue_bytes: int
    batch_bytes: int = BATCH_BYTES
    max_message_bytes: int = 1024 * 1024
    conflate: bool = True
    snapshot_completed: Callable[[], None] = lambda: None
    reread_limit: Callable[[], Awaitable[int | None]] = limit_unknown
    flush_timer: FlushTimer | None = None
    gap_reader: GapReader | None = None
    transactions: Transactions | None = None
    rng: random.Random | None = None
    now_s: Callable[[], float] = clock.now_s
    wall_ms: Callable[[], int] = clock.wall_ms

    @property
    def room_bytes(self) -> int:
        """Members of snapshots and repairs are queued while the queues hold this much at most. The
        rest is left for changes: conflation would abandon the snapshot."""
        return self.queue_bytes // 2
