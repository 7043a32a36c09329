"""The hot path stage by stage: the code of the packages on 20,000 events, each stage by itself on
the output of the one before it.

Input: a rig (for the first and the last stage, which speak to the source and the broker). Output:
CPU per event and stage. Stages are timed in a process of their own on the relay's core, with the
cyclic collector set as in the daemon. Their sum is less than the whole: the rest is the
event loop, the watch's state machine and metrics.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from itertools import chain
from typing import TypeVar

import aiohttp

from tests.bench.rig import PARTITIONS, RELAY_CORE, Rig, SourceProcess
from tests.bench.source import FIRST_VERSION, encoded
from tests.bench.table import Row
from watchrelay.contract.records import CloudEvents, content_hash
from watchrelay.contract.wire import Batch, WireRecord
from watchrelay.daemon.memory import tune_collector
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.client.record_batch import Packer
from watchrelay.kafka.partition import TopicLimits
from watchrelay.kafka.sink import KafkaSink
from watchrelay.kafka.topic_config import TopicSpec
from watchrelay.kafka.topics import Topics
from watchrelay.kube.stream import FrameReader
from watchrelay.model.changes import ObjectChange
from watchrelay.model.frames import ObjectFrame
from watchrelay.model.resources import Resource, Selection
from watchrelay.model.streams import StreamSpec, WatchPlan
from watchrelay.observe.metrics import Metrics
from watchrelay.observe.status import StatusRegistry
from watchrelay.publish.ports import BATCH_BYTES
from watchrelay.publish.stream_queues import Fitting, StreamQueues
from watchrelay.store.objects import Store
from watchrelay.store.pack import ObjectCompressor
from watchrelay.store.transform import Transform

T = TypeVar("T")

TOPIC = "bench.core.pods"
OBJECTS, EVENTS, RUNS = 5_000, 20_000, 3
CHUNK_BYTES = 128 * 1024
_PODS = Resource("", "v1", "pods", "Pod", namespaced=True)


def hotpath(rig: Rig) -> list[Row]:
    """CPU per event of each stage."""
    measured: dict[str, list[float]] = {}
    with SourceProcess(objects=OBJECTS) as source:
        argv = [
            "taskset",
            "-c",
            str(RELAY_CORE),
            sys.executable,
            "-m",
            "tests.bench.hotpath",
            str(source.port),
            rig.bootstrap,
        ]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            for line in child.stdout:
                if line.strip() == "flood":
                    source.prepare(EVENTS)
                    source.begin("flood")
                    source.finish()
                else:
                    measured = json.loads(line)
        assert child.returncode == 0, "the stages were not measured"
    return [Row.of(stage, runs, "us") for stage, runs in measured.items()]


# ---- the process of its own ----------------------------------------------------------------------


def _clock(work: Callable[[], T]) -> tuple[T, float]:
    began_s = time.process_time()
    done = work()
    return done, (time.process_time() - began_s) / EVENTS * 1e6


async def _clock_async(work: Awaitable[T]) -> tuple[T, float]:
    began_s = time.process_time()
    done = await work
    return done, (time.process_time() - began_s) / EVENTS * 1e6


class _Stages:
    """One store fed with run after run of events. `us` by stage, one figure per run."""

    def __init__(self, port: int, bootstrap: str) -> None:
        self.us: dict[str, list[float]] = {}
        self._port, self._bootstrap = port, bootstrap
        self._selection = Selection(_PODS, depth_checked=False)
        self._transform = Transform.compile(_PODS)
        self._store = Store(self._transform, partitions=PARTITIONS)
        self._packer = ObjectCompressor()
        spec = StreamSpec("pods", "bench", TOPIC, PARTITIONS, WatchPlan(self._selection), "0" * 16)
        self._encoder = CloudEvents(spec, 1)
        self._queues = StreamQueues(
            range(PARTITIONS),
            soft_bytes=1 << 40,
            fitting=Fitting(1 << 20, lambda key, value, entry, published_hash: (value or b"", "")),
        )

    def note(self, stage: str, us: float) -> None:
        self.us.setdefault(stage, []).append(us)

    async def run(self) -> None:
        """All runs."""
        lists = FrameReader(self._selection)
        listed = lists.feed(
            b"".join(
                b'{"type":"ADDED","object":%b}\n' % encoded(n, FIRST_VERSION + n)
                for n in range(OBJECTS)
            )
        )
        frames = [frame for frame in listed if isinstance(frame, ObjectFrame)]
        self._store.begin_list()
        self._store.stage(frames)
        self._store.replace(str(FIRST_VERSION + OBJECTS))
        self._packer.train(self._transform.apply(frame) for frame in frames[:400])
        del listed, frames
        tune_collector()
        connection = KafkaConnection(bootstrap_servers=(self._bootstrap,))
        topic = TopicSpec(
            name=TOPIC, partitions=PARTITIONS, replication_factor=1, min_insync_replicas=1
        )
        await Topics(connection, create=True).ensure_topic(topic)
        sink = KafkaSink(connection, metrics=Metrics(), statuses=StatusRegistry())
        async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as tasks:
            writing = tasks.create_task(sink.run(), name="sink")
            for number in range(RUNS):
                body = await self._receive(session)
                records = self._turn(body, number)
                await self._produce(sink, records)
            writing.cancel()

    async def _receive(self, session: aiohttp.ClientSession) -> bytes:
        parts: list[bytes] = []
        async with session.get(f"http://127.0.0.1:{self._port}/api/v1/pods?watch=1") as response:
            print("flood", flush=True)

            async def read() -> None:
                lines = 0
                while lines < EVENTS:
                    part = await response.content.readany()
                    parts.append(part)
                    lines += part.count(b"\n")

            _, us = await _clock_async(read())
            self.note("receive: socket, HTTP chunks", us)
            response.close()
        return b"".join(parts)

    def _turn(self, body: bytes, number: int) -> list[list[WireRecord]]:
        """Received bytes to records. One list per partition."""
        chunks = [body[at : at + CHUNK_BYTES] for at in range(0, len(body), CHUNK_BYTES)]
        decode = FrameReader(self._selection).feed
        split, us = _clock(lambda: [decode(chunk) for chunk in chunks])
        self.note("split and decode", us)
        frames: list[list[ObjectFrame]] = [
            [frame for frame in some if isinstance(frame, ObjectFrame)] for some in split
        ]
        del split
        flat = list(chain.from_iterable(frames))
        assert len(flat) == EVENTS, "every line is a frame"
        values, us = _clock(lambda: [self._transform.apply(frame) for frame in flat])
        self.note("store, transform: cut managedFields, write", us)
        keys = [f"{frame.namespace}/{frame.name}".encode() for frame in flat]
        _, us = _clock(
            lambda: [content_hash(key, value) for key, value in zip(keys, values, strict=True)]
        )
        self.note("store, SHA-256", us)
        _, us = _clock(lambda: [self._packer.pack(value) for value in values])
        self.note("store, zstd with dictionary", us)
        changes, us = _clock(lambda: [self._store.apply(some).changes for some in frames])
        self.note("store, whole: those three, look-up, entry, change", us)
        return self._hand_over(changes, number)

    def _hand_over(
        self, changes: Sequence[Sequence[ObjectChange]], number: int
    ) -> list[list[WireRecord]]:
        queues = self._queues

        def push() -> None:
            for some in changes:
                queues.push(
                    some, reason="watch", time_ms=1_790_000_000_000 + number, received_at_s=1.0
                )

        _, us = _clock(push)
        self.note("relay: queue", us)
        unpack = self._store.unpack

        def render() -> list[list[WireRecord]]:
            batches = []
            for queue in queues.partitions:
                while queue.waiting:
                    queue.outstanding = queue.render(self._encoder, unpack, limit_bytes=BATCH_BYTES)
                    batches.append(queue.outstanding.records)
            return batches

        batches, us = _clock(render)
        self.note("relay: positions and headers", us)
        return batches

    async def _produce(self, sink: KafkaSink, batches: list[list[WireRecord]]) -> None:
        packer = Packer()

        def pack() -> None:
            for records in batches:
                packer.pack(
                    records,
                    most=len(records),
                    limits=TopicLimits(1 << 20, 512 * 1024),
                    now_ms=1_790_000_000_000,
                )

        _, us = _clock(pack)
        self.note("sink, pack: record batch, zstd", us)

        async def deliver() -> None:
            for records in batches:
                await sink.deliver(Batch(TOPIC, 0, records))

        _, us = await _clock_async(deliver())
        self.note("sink, whole: pack, checksum, request, acknowledgement", us)


def main() -> None:
    """Measure, and print the figures as one line of JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("bootstrap")
    asked = parser.parse_args()
    gc.collect()
    stages = _Stages(asked.port, asked.bootstrap)
    asyncio.run(stages.run())
    print(json.dumps(stages.us), flush=True)


if __name__ == "__main__":
    main()
