"""A relay over plain values: a dict for a store, `FakeSink` for Kafka, and a reader that rebuilds
the state from the fake's log.

Input: objects by key. Output: a `StreamWriter` with everything around it, and what its log says.
"""

from __future__ import annotations

import asyncio
import random
import selectors
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from tests.support.fakesink import FakeControl, FakeSink
from tests.support.stream_log import PODS, stream
from watchrelay.consumer.replica import Replica
from watchrelay.contract.records import Decoded, MarkerRecord, ObjectRecord, content_hash, decode
from watchrelay.contract.wire import Reason, WireRecord
from watchrelay.core import clock
from watchrelay.model.changes import Entry, ObjectChange, Removed, Upserted
from watchrelay.model.resources import Resource
from watchrelay.model.streams import StreamSpec
from watchrelay.observe.metrics import Metrics
from watchrelay.observe.status import StreamStatus
from watchrelay.publish.ports import GapReader, Transactions, WriterContext, limit_unknown
from watchrelay.publish.timing import HeartbeatInterval
from watchrelay.publish.writer import StreamWriter


def spec_of(
    *,
    partitions: int = 2,
    snapshot_interval_s: float = 0.0,
    resource: Resource = PODS,
    key_prefix: bytes = b"",
) -> StreamSpec:
    """A stream of pods, as the control topic describes it."""
    spec = stream(resource, partitions=partitions, prefix=key_prefix)
    return replace(
        spec,
        snapshot_interval_s=snapshot_interval_s,
        description={"topic": spec.topic, "partitions": partitions},
    )


KEYS = [b"shop/%d" % number for number in range(40)]
"""Of objects in all partitions."""


@dataclass(frozen=True)
class Put:
    """An object is `number` now; `raw`: its change brings the value along, packed it is in any
    case."""

    key: bytes
    number: int
    uid: str
    raw: bool = True


@dataclass(frozen=True)
class Remove:
    """An object is gone, if it was there."""

    key: bytes


class DictStore:
    """The smallest `StoreView`: values packed with zlib, and the changes that each `put` and
    `remove` makes."""

    in_difference = False
    counts = False

    def __init__(self, partitions: int) -> None:
        self.entries: dict[bytes, Entry] = {}
        self.version = 100
        self._partitions = partitions

    def keys(self) -> list[bytes]:
        return list(self.entries)

    def get(self, key: bytes) -> Entry | None:
        return self.entries.get(key)

    def unpack(self, entry: Entry) -> bytes:
        return zlib.decompress(entry.packed)

    def settle(self, key: bytes, published: Entry) -> bool:
        return False

    def published_in_part(self, entry: Entry) -> None:
        """Here each state is a change."""

    def __len__(self) -> int:
        return len(self.entries)

    def put(
        self, key: bytes, value: bytes, *, uid: str = "u1", raw: bool = True
    ) -> list[ObjectChange]:
        """`key` has `value` now; another uid is a removal and an upsert."""
        self.version += 1
        held = self.entries.get(key)
        partition = zlib.crc32(key) % self._partitions
        entry = Entry.of(
            uid,
            str(self.version),
            partition,
            value_hash=content_hash(key, value),
            packed=zlib.compress(value),
        )
        self.entries[key], shown = entry, value if raw else None
        if held is not None and held.uid != uid:
            return [
                Removed(key, held, entry.resource_version),
                Upserted(key, entry, uid, entry.hash, None, shown),
            ]
        return [Upserted(key, entry, uid, entry.hash, held, shown)]

    def remove(self, key: bytes) -> list[ObjectChange]:
        """`key` is gone."""
        self.version += 1
        return [Removed(key, self.entries.pop(key), str(self.version))]

    def values(self) -> dict[bytes, bytes]:
        """What is held, unpacked."""
        return {key: self.unpack(entry) for key, entry in self.entries.items()}


class Rig:
    """One relay and its surroundings."""

    def __init__(
        self,
        *,
        partitions: int = 2,
        sink: FakeSink | None = None,
        control: FakeControl | None = None,
        spec: StreamSpec | None = None,
        store: DictStore | None = None,
        snapshot_interval_s: float = 0.0,
        heartbeat_interval_s: float = 10.0,
        queue_bytes: int = 64 << 20,
        max_message_bytes: int = 1 << 20,
        conflate: bool = True,
        reread_limit: Callable[[], Awaitable[int | None]] = limit_unknown,
        may_finish: Callable[[], bool] = lambda: False,
        transactions: Transactions | None = None,
        gap_reader: GapReader | None = None,
    ) -> None:
        self.spec = spec or spec_of(partitions=partitions, snapshot_interval_s=snapshot_interval_s)
        self.sink = sink or FakeSink()
        self.control = control or FakeControl()
        self.store = DictStore(self.spec.partitions) if store is None else store
        self.metrics = Metrics()
        self.status = StreamStatus(self.spec.id)
        self.progress = self.status.progress
        self.fails = False
        """Its clock cannot be read."""
        self._decoded: dict[int, tuple[WireRecord, Decoded]] = {}
        self.relay = StreamWriter(
            self.spec,
            WriterContext(
                sink=self.sink,
                control=self.control,
                store=self.store,
                metrics=self.metrics.stream(self.spec.id, PODS),
                topic_metrics=self.metrics.topic(self.spec.topic),
                status=self.status,
                progress=self.progress,
                heartbeat_interval=HeartbeatInterval(heartbeat_interval_s),
                must_stop=lambda epoch: (
                    self.control.superseded(self.spec.id, epoch) and not may_finish()
                ),
                queue_bytes=queue_bytes,
                max_message_bytes=max_message_bytes,
                conflate=conflate,
                reread_limit=reread_limit,
                transactions=transactions,
                gap_reader=gap_reader,
                rng=random.Random(1),
                now_s=lambda: asyncio.get_running_loop().time(),
                wall_ms=self._wall_ms,
            ),
        )

    def _wall_ms(self) -> int:
        if self.fails:
            raise OSError("no clock")
        return clock.wall_ms()

    async def highest_epoch(self) -> int:
        """No records of a former writer."""
        return 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Claimed and running inside the block; stopped without a drain behind it."""
        await self.relay.claim(self.highest_epoch)
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(self.relay.run(), name="run")
            yield
            running.cancel()

    def gauge(self, name: str) -> float:
        """What a gauge of the stream shows."""
        labels = {"stream": self.spec.id}
        shown = self.metrics.registry.get_sample_value(f"watchrelay_{name}", labels)
        assert shown is not None, f"no series of {name}"
        return shown

    def say(self, changes: list[ObjectChange], reason: Reason = "watch") -> None:
        """What a reflector does with the changes of one batch."""
        self.relay.push(changes, reason=reason, received_at_s=asyncio.get_running_loop().time())
        self.relay.version_reached(str(self.store.version))

    def sync(self) -> None:
        """The first list is complete."""
        self.relay.list_completed(str(self.store.version))

    # ---- the log ----

    def records(self, partition: int) -> list[Decoded]:
        """The records of one partition."""
        return [self._decode(record) for record in self.sink.log(self.spec.topic, partition)]

    def _decode(self, record: WireRecord) -> Decoded:
        if id(record) not in self._decoded:
            read = decode(record.key, record.value, record.headers)
            self._decoded[id(record)] = record, read  # held, so that the id stays its own
        return self._decoded[id(record)][1]

    def all_records(self) -> list[Decoded]:
        """The records of all, partition by partition."""
        return [
            record
            for partition in range(self.spec.partitions)
            for record in self.records(partition)
        ]

    def markers(self, kind: str) -> list[MarkerRecord]:
        """Markers of a kind, partition by partition."""
        return [
            record
            for record in self.all_records()
            if isinstance(record, MarkerRecord) and record.kind == kind
        ]

    def objects(self) -> list[ObjectRecord]:
        """Object records, partition by partition."""
        return [record for record in self.all_records() if isinstance(record, ObjectRecord)]

    def replicas(self) -> list[Replica]:
        """A reader of each partition that has read everything."""
        replicas = []
        for partition in range(self.spec.partitions):
            replica = Replica()
            for record in self.records(partition):
                replica.apply(record)
            replicas.append(replica)
        return replicas

    def rebuilt(self) -> dict[bytes, bytes]:
        """The state that readers hold."""
        return {
            key: held.value for replica in self.replicas() for key, held in replica.held.items()
        }

    def assert_hashes(self) -> None:
        """Each object's record has the hash of its own value."""
        for record in self.objects():
            if record.value is not None:
                assert record.value_hash == content_hash(record.key, record.value), record


async def until(true: Callable[[], bool], *, steps: int = 2_000) -> None:
    """Give the loop its turns until `true()`. Raises: AssertionError when that does not come."""
    for step in range(steps):
        if true():
            return
        await asyncio.sleep(0 if step < 50 else 0.02)
    raise AssertionError("the condition did not come true")


Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")


class _NoSockets(selectors.SelectSelector):
    """Nothing here waits for a socket, so instead of sleeping the clock moves, at no cost:
    thousands of runs a minute."""

    now_s = 1000.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("everything is blocked and no timer is set")
        self.now_s += max(timeout, 0.0)
        return []


class NoSocketLoop(asyncio.SelectorEventLoop):
    """The loop of `run_virtually`."""

    def __init__(self) -> None:
        self._moving = _NoSockets()
        super().__init__(self._moving)

    def time(self) -> float:
        return self._moving.now_s


def run_virtually(main: Coroutine[Any, Any, Result]) -> Result:
    """Run `main`, which opens no socket, in virtual time."""
    with asyncio.Runner(loop_factory=NoSocketLoop) as runner:
        return runner.run(main)


def virtual(test: Callable[Arguments, Coroutine[Any, Any, None]]) -> Callable[Arguments, None]:
    """`test`, which opens no socket, as one that runs in virtual time."""

    @wraps(test)
    def plain(*arguments: Arguments.args, **named: Arguments.kwargs) -> None:
        run_virtually(test(*arguments, **named))

    return plain
