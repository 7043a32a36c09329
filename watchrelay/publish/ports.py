"""What a stream's writer needs of the other rooms.

Room: relay. In: nothing. Out: the protocols that `app` fills with the sink, the control topic and
the store.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Literal, Protocol

from watchrelay.contract.records import Decoded
from watchrelay.contract.wire import Batch, Receipt
from watchrelay.model.changes import Entry


class Sink(Protocol):
    """Where batches go. Source: kafka/sink.py."""

    async def deliver(self, batch: Batch) -> Receipt:
        """Append all records in order; return when all are acknowledged.

        Raises: RecordTooLarge (what of the batch was appended before, it says); Fenced.
        """
        ...


class Control(Protocol):
    """The control topic. Source: kafka/control_topic.py, WIRE 4.1 and 7."""

    async def claim(
        self,
        stream: str,
        description: dict[str, object],
        *,
        starting_point: dict[str, object] | None,
        highest_epoch: Callable[[], Awaitable[int]],
    ) -> int:
        """Open a new epoch and return it."""
        ...

    async def origin(self, stream: str, partitions: int) -> dict[str, object] | None:
        """The starting point of whoever claims `stream` now; None: the start of each partition."""
        ...

    def outclaimed(self, stream: str, epoch: int) -> bool:
        """A newer claim of `stream` was read."""
        ...

    async def write(
        self, kind: Literal["snapshot", "stream"], stream: str, value: dict[str, object] | None
    ) -> None:
        """Write a control record; returns when it is acknowledged."""
        ...

    def index(self, stream: str) -> dict[str, object] | None:
        """The newest `snapshot/<stream>` record."""
        ...


class StateView(Protocol):
    """The store, as snapshots read it. Source: store/objects.py.

    An `Entry` that was pushed is never changed by the store again (a new state is a new Entry), so
    what a queued record's own entry unpacks to is the value of the moment it was queued.
    """

    def keys(self) -> list[bytes]:
        """The keys held now, as a copy."""
        ...

    def get(self, key: bytes) -> Entry | None:
        """The entry of `key`."""
        ...

    def unpack(self, entry: Entry) -> bytes:
        """The published bytes of `entry`."""
        ...

    def __len__(self) -> int: ...


class Witness(Protocol):
    """What others put between our records. Source: kafka/sink.py and kafka/range_reader.py, joined
    by daemon/recovery.py."""

    def foreign_ranges(self, partition: int, start: int, stop: int) -> list[tuple[int, int]]:
        """The ranges of offsets in [start, stop) that no stream of this process wrote."""
        ...

    async def read(self, partition: int, start: int, stop: int) -> Sequence[tuple[int, Decoded]]:
        """Offset and content of this stream's records in [start, stop), however long it takes."""
        ...
