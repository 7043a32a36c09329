"""What a restart costs before it is live: `python -m tests.bench.readback [OBJECTS]`, one line of
JSON.

Room: tests. In: real Kafka, a topic of pods of 3.9 KB, put there by one process. Out: another
process claims the stream, reads it back and fills its store: CPU seconds of that, and resident
memory at its peak and behind it, each above what the process had before.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import subprocess
import sys
import time
from contextlib import suppress

from tests.bench.memory import PODS, resident_bytes
from tests.support.kafkabroker import KafkaBroker
from tests.support.pods import pod_frame
from watchrelay.daemon.recovery import LogReader, resume
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.control_topic import ControlTopic
from watchrelay.kafka.sink import KafkaSink
from watchrelay.kafka.topic_config import TopicSpec
from watchrelay.kafka.topics import Topics
from watchrelay.model.resources import Selection
from watchrelay.model.streams import StreamSpec, WatchPlan
from watchrelay.observe.metrics import Metrics
from watchrelay.observe.status import StatusRegistry, StreamStatus
from watchrelay.publish.timing import HeartbeatInterval
from watchrelay.publish.writer import StreamRelay
from watchrelay.store.objects import Store
from watchrelay.store.transform import Transform

TOPIC, CONTROL, PARTITIONS = "k8s.bench.core.pods", "k8s.bench.control", 6


def _spec() -> StreamSpec:
    description: dict[str, object] = {
        "topic": TOPIC,
        "partitions": PARTITIONS,
        "keyFormat": "plain",
    }
    return StreamSpec(
        "pods",
        "bench",
        TOPIC,
        PARTITIONS,
        WatchPlan(Selection(PODS)),
        "c0ffee",
        description=description,
    )


async def life(bootstrap: str, objects: int) -> dict[str, float]:
    """One writer's life: `objects` over 0: put so many there; 0: read them back."""
    connection, metrics, statuses, spec = (
        KafkaConnection(bootstrap_servers=(bootstrap,)),
        Metrics(),
        StatusRegistry(),
        _spec(),
    )
    sink = KafkaSink(connection, metrics=metrics, statuses=statuses)
    control = ControlTopic(connection, CONTROL, sink, statuses=statuses)
    store = Store(Transform.compile(PODS), partitions=PARTITIONS)
    status = StreamStatus("pods")
    reader = LogReader(
        spec, connection, sink, failed=lambda error, wait_s: print(error, file=sys.stderr)
    )
    relay = StreamRelay(
        spec,
        sink=sink,
        control=control,
        state=store,
        metrics=metrics.stream("pods", PODS),
        topic_metrics=metrics.topic(TOPIC),
        status=status,
        heartbeat_interval=HeartbeatInterval(10.0),
        queue_bytes=64 << 20,
        foreign_records=reader,
    )

    async def highest() -> int:
        return 0

    topics = Topics(connection)
    await topics.ensure_topic(
        TopicSpec(name=TOPIC, partitions=PARTITIONS, replication_factor=1, min_insync_replicas=1)
    )
    await topics.ensure_topic(
        TopicSpec(name=CONTROL, kind="control", replication_factor=1, min_insync_replicas=1)
    )
    figures: dict[str, float] = {}
    async with asyncio.TaskGroup() as tasks:
        eternal = [tasks.create_task(sink.run()), tasks.create_task(control.run())]
        before_bytes = resident_bytes()
        epoch = await relay.claim(highest)
        began_s, cpu_s = time.monotonic(), time.process_time()
        found = await resume(spec, relay, store, reader, epoch)
        figures = {
            "objects": len(store),
            "cpu_s": round(time.process_time() - cpu_s, 2),
            "wall_s": round(time.monotonic() - began_s, 2),
            "rss_mib": round((resident_bytes() - before_bytes) / 2**20, 1),
            "peak_mib": round(
                (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before_bytes) / 2**20,
                1,
            ),
            "idle_mib": round(before_bytes / 2**20, 1),
        }
        if objects:
            assert type(found.decision).__name__ == "FirstSnapshot", found.decision
            running = tasks.create_task(relay.run())
            store.begin_list()
            for number in range(0, objects, 500):
                store.stage([pod_frame(at, "ADDED") for at in range(number, number + 500)])
            store.replace("99999999999")
            relay.synced("99999999999")
            while control.index("pods") is None:  # noqa: ASYNC110  # the index is read back, not announced
                await asyncio.sleep(0.1)
            assert await relay.drain(30.0)
            running.cancel()
        else:
            assert type(found.decision).__name__ == "WatchFrom", found.decision
        for task in eternal:
            task.cancel()
    return figures


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("objects", type=int, nargs="?", default=100_000)
    parser.add_argument("--bootstrap")
    given = parser.parse_args()
    if given.bootstrap:
        print(json.dumps(asyncio.run(life(given.bootstrap, given.objects))))
        return
    with KafkaBroker("4.1") as broker:
        for objects in (given.objects, 0):
            command = [
                sys.executable,
                "-m",
                "tests.bench.readback",
                "--bootstrap",
                broker.bootstrap,
                str(objects),
            ]
            with suppress(KeyboardInterrupt):
                done = subprocess.run(command, check=True, capture_output=True, text=True)
        print(done.stdout, end="")


if __name__ == "__main__":
    main()
