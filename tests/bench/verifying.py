"""What `verify` and a reader cost; a part of `python -m tests.bench`, and by itself a line of JSON
for each: `python -m tests.bench.verifying [OBJECTS]`.

Room: tests. In: real Kafka, a topic of pods of 3.9 KB, put there by a relay. Out: records a second,
by wall clock and by CPU, of an audit, of one that keeps what comparing with the cluster needs, and
of a `TopicReader` until it is ready.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from tests.bench.readback import CONTROL
from tests.bench.rig import RELAY_CORE, Rig
from tests.bench.table import Row
from tests.support.kafkabroker import KafkaBroker
from watchrelay.cli.audits import reduce_garbage_collection
from watchrelay.consumer import TopicReader
from watchrelay.consumer.audit_run import Auditor
from watchrelay.kafka.client.connection import KafkaConnection

OBJECTS, RUNS = 100_000, 3


async def audited(bootstrap: str, *, bare: bool = False) -> int:
    """Records read, all of them right."""
    connection = KafkaConnection(bootstrap_servers=(bootstrap,))
    async with Auditor(connection, control_topic=CONTROL, bare=bare) as auditor:
        await auditor.read_to_end()
        rows = await auditor.rows()
    assert all(audit.state.proven and not audit.problems for audit, _, _ in rows), [
        audit.problems[:2] for audit, _, _ in rows
    ]
    return sum(audit.records for audit, _, _ in rows)


async def audited_bare(bootstrap: str) -> int:
    """As with --cluster."""
    return await audited(bootstrap, bare=True)


async def read(bootstrap: str) -> int:
    """Objects of a reader that is ready."""
    async with TopicReader(bootstrap, control_topic=CONTROL) as reader:
        await reader.ready()
        return len(reader.objects("pods"))


PARTS: dict[str, Callable[[str], Awaitable[int]]] = {
    "verify": audited,
    "verify --cluster": audited_bare,
    "reader": read,
}


def put(bootstrap: str, objects: int) -> None:
    """Have a relay put so many pods there, from nothing."""
    command = [sys.executable, "-m", "tests.bench.readback", "--bootstrap", bootstrap, str(objects)]
    subprocess.run(command, check=True, capture_output=True)


def apart(name: str, bootstrap: str) -> dict[str, Any]:
    """One part, measured in a process of its own on the relay's core."""
    core = ["taskset", "-c", str(RELAY_CORE)]
    part = [*core, sys.executable, "-m", "tests.bench.verifying", "--part", name, bootstrap]
    figures: dict[str, Any] = json.loads(
        subprocess.run(part, check=True, capture_output=True, text=True).stdout
    )
    return figures


def verify(rig: Rig) -> list[Row]:
    """Records a second, by wall clock, of each way to read 100,000 pods."""
    put(rig.bootstrap, OBJECTS)
    rows = []
    for name, goal in (("verify", 40_000.0), ("verify --cluster", 40_000.0), ("reader", None)):
        runs = [float(apart(name, rig.bootstrap)["per_s"]) for _ in range(RUNS)]
        what = "a consumer's TopicReader until it is ready" if name == "reader" else name
        rows.append(
            Row(
                f"{what}, {OBJECTS:,} pods: records a second",
                statistics.median(runs),
                "1/s",
                goal=goal,
                runs=runs,
                at_least=True,
            )
        )
    return rows


async def measured(name: str, bootstrap: str) -> dict[str, object]:
    """One part, in a process of its own."""
    began_s, cpu_s = time.monotonic(), time.process_time()
    records = await PARTS[name](bootstrap)
    wall_s, cpu_s = time.monotonic() - began_s, time.process_time() - cpu_s
    return {
        "part": name,
        "records": records,
        "per_s": round(records / wall_s),
        "per_cpu_s": round(records / cpu_s),
    }


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("objects", type=int, nargs="?", default=100_000)
    parser.add_argument("--part", nargs=2, metavar=("NAME", "BOOTSTRAP"))
    given = parser.parse_args()
    if given.part:
        reduce_garbage_collection()
        print(json.dumps(asyncio.run(measured(*given.part))))
        return
    with KafkaBroker("4.1") as broker:
        put(broker.bootstrap, given.objects)
        for name in PARTS:
            print(json.dumps(apart(name, broker.bootstrap)), flush=True)


if __name__ == "__main__":
    main()
