"""What `verify` and a reader cost.

Input: a rig; a topic of pods, filled by a relay. Output: records a second, by wall clock, of an
audit, of one that keeps what comparing with the cluster needs, and of a `TopicReader` until it is
ready; each in a process of its own on the relay's core.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any

from tests.bench.rig import RELAY_CORE, Relay, Rig, SourceProcess
from tests.bench.table import Row
from watchrelay.cli.audits import reduce_garbage_collection
from watchrelay.consumer import TopicReader
from watchrelay.consumer.audit import bare_hash
from watchrelay.consumer.audit_run import open_auditor
from watchrelay.kafka.client.connection import KafkaConnection

OBJECTS, RUNS = 100_000, 3


async def audited(bootstrap: str, control: str, *, bare: bool = False) -> int:
    """Records read, all of them right."""
    connection = KafkaConnection(bootstrap_servers=(bootstrap,))
    kept = bare_hash if bare else None
    async with open_auditor(
        connection, control_topic=control, bare=lambda _stream: kept
    ) as auditor:
        await auditor.read_to_end()
        rows = auditor.rows()
    assert all(audit.state.proven and not audit.problems for audit, _, _ in rows), [
        audit.problems[:2] for audit, _, _ in rows
    ]
    return sum(audit.records for audit, _, _ in rows)


async def audited_bare(bootstrap: str, control: str) -> int:
    """As with --cluster."""
    return await audited(bootstrap, control, bare=True)


async def read(bootstrap: str, control: str) -> int:
    """Objects of a reader that is ready."""
    async with TopicReader(bootstrap, control_topic=control) as reader:
        await reader.ready()
        return len(reader.objects("pods"))


PARTS: dict[str, tuple[Callable[[str, str], Coroutine[Any, Any, int]], float | None]] = {
    "verify": (audited, 40_000.0),
    "verify --cluster": (audited_bare, 40_000.0),
    "a consumer's TopicReader until it is ready": (read, None),
}


def verify(rig: Rig) -> list[Row]:
    """Records a second, by wall clock, of each way to read 100,000 pods."""
    with SourceProcess(objects=OBJECTS) as source, Relay(rig, source) as relay:
        relay.await_snapshots()
        relay.stop()
        topics = [rig.bootstrap, f"k8s.{relay.cluster}.control"]
    rows = []
    for name, (_, goal) in PARTS.items():
        part = [sys.executable, "-m", "tests.bench.verifying", name, *topics]
        part = ["taskset", "-c", str(RELAY_CORE), *part]
        runs = [
            float(subprocess.run(part, check=True, capture_output=True, text=True).stdout)
            for _ in range(RUNS)
        ]
        what = f"{name}, {OBJECTS:,} pods: records a second"
        rows.append(Row.of(what, runs, "/s", goal=goal, at_least=True))
    return rows


def main(name: str, bootstrap: str, control: str) -> None:
    """One part: its records a second."""
    reduce_garbage_collection()
    began_s = time.monotonic()
    records = asyncio.run(PARTS[name][0](bootstrap, control))
    print(records / (time.monotonic() - began_s))


if __name__ == "__main__":
    main(*sys.argv[1:])
