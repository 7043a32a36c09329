"""`python -m tests.soak --minutes N --seed S`: the relay for so long on real parts, under churn and
faults by seed, and then the verdict.

Input: minutes, a seed. Output: a report as JSON; exit code 0 only when the topics end right
(`watchrelay verify --cluster` 0, no rule of the contract broken for a second reader), and no line
of the log is unexplained.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from typing import Any

from tests.bench.rig import usage
from tests.soak.faults import FAULTS, Scene
from tests.soak.loglines import unexplained
from tests.support.churn import Churn
from tests.support.daemon import command
from tests.support.faultproxy import FaultProxy
from tests.support.pace import measure_for
from tests.support.process import Workspace, wait_until
from tests.support.realparts import ControlPlane, KafkaBroker
from tests.support.testbed import Testbed

_STREAMS = {
    "configmaps": ("core", "configmaps"),
    "pods": ("core", "pods"),
    "deployments.apps": ("apps", "deployments"),
    "replicasets.apps": ("apps", "replicasets"),
}
MISSED = "list found changes missed by the watch"
_PER_S = 50
_SETTLED_S = 180.0
_NOTICED_S = 120.0
"""From the last fault on, all must be right after so long: a frozen connection is noticed within
about 75 s, and what it held back is published then."""
_SAMPLE_S = 0.5
_MIB = 1024 * 1024


def main() -> int:
    """Run it; the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.soak",
        description="Everything at once on real parts, with faults by seed.",
    )
    parser.add_argument(
        "--minutes", type=float, default=30.0, help="how long faults go on; default 30"
    )
    parser.add_argument(
        "--seed", type=int, default=1, help="which faults, when, for how long; default 1"
    )
    parser.add_argument("--log", help="a file to keep the relay's log in")
    asked = parser.parse_args()
    report = soak(asked.minutes * 60.0, asked.seed, keep=asked.log)
    print(json.dumps(report, indent=2))
    return 0 if report["right"] else 1


def soak(for_s: float, seed: int, *, keep: str | None = None) -> dict[str, Any]:
    """The report; `right` is the verdict."""
    with ExitStack() as stack:
        scene = _begin(stack, for_s, seed)
        faults, memory = Counter[str](), list[tuple[int, int]]()
        end_s = time.monotonic() + for_s
        while time.monotonic() < end_s:
            _calm(scene, scene.rng.uniform(4, 10), memory)
            for fault in _drawn(scene.rng):
                faults[fault] += 1
                print(
                    f"{end_s - time.monotonic():6.0f} s to go: {fault}", file=sys.stderr, flush=True
                )
                FAULTS[fault](scene)
        scene.heal()
        scene.relay.wait("no stream has an error", lambda: _well(scene), deadline_s=_SETTLED_S)
        _calm(scene, 10.0, memory)
        scene.churn.finish(deadline_s=_SETTLED_S)
        report = _verdict(scene, faults)
        if keep:
            shutil.copyfile(scene.directory / "relay.log", keep)
    return {"minutes": for_s / 60, "seed": seed, **report, "resident_MiB": _shape(memory)}


def _begin(stack: ExitStack, for_s: float, seed: int) -> Scene:
    """Everything runs, the first snapshots are in Kafka, the churn goes on."""
    workspace = Workspace("soak")
    stack.callback(workspace.remove)
    cluster = stack.enter_context(ControlPlane(controller_manager=True))
    to_kafka = stack.enter_context(FaultProxy())
    broker = stack.enter_context(KafkaBroker("4.1", via=to_kafka.port))
    to_kafka.lead_to(broker.ports["VIA"])
    to_api = stack.enter_context(FaultProxy(cluster.port))
    testbed = Testbed(cluster, broker, workspace.path)
    through = cluster.write_kubeconfig("through", server=f"https://127.0.0.1:{to_api.port}")
    more: dict[str, Any] = {
        "defaults": {"snapshotInterval": "60s", "relistInterval": "5m"},
        "queueBytes": "1MiB",
    }
    relay = testbed.relay(
        *_STREAMS,
        kubeconfig=through,
        kafka={"bootstrapServers": [f"127.0.0.1:{to_kafka.port}"]},
        environment={},
        **more,
    )
    namespaces = testbed.namespaces(12)
    stack.enter_context(relay)
    relay.await_ready(deadline_s=90.0)
    # the minimum; it goes on until it is stopped
    operations = int(for_s * _PER_S / 10) + 200
    kinds = ("configmaps", "configmaps", "deployments")
    churn = stack.enter_context(
        Churn(cluster, namespaces, operations=operations, kinds=kinds, per_s=_PER_S, seed=seed)
    )
    return Scene(
        random.Random(seed),
        cluster,
        broker,
        relay,
        churn,
        to_kafka,
        to_api,
        workspace.path,
        testbed,
    )


def _drawn(rng: random.Random) -> list[str]:
    """One fault, or one after the other without a calm in between."""
    return [rng.choice(sorted(FAULTS)) for _ in range(rng.choice((1, 1, 2)))]


def _calm(scene: Scene, for_s: float, memory: list[tuple[int, int]]) -> None:
    """Let it work; its memory is looked at, by life."""
    end_s = time.monotonic() + for_s
    while time.monotonic() < end_s:
        assert scene.relay.alive, (
            f"the relay ended by itself: {json.dumps(scene.relay.lines()[-5:])}"
        )
        assert scene.churn.running, "the churn ended"
        memory.append((scene.relay.pid, usage(scene.relay.pid).rss))
        measure_for(_SAMPLE_S)


def _well(scene: Scene) -> bool:
    rows = scene.relay.api_streams()
    problems = scene.relay.readyz()[1].get("problems")
    return (
        len(rows) == len(_STREAMS)
        and not problems
        and all(
            row["state"] == "watching" and row.get("lastError") is None and not row.get("dirtyKeys")
            for row in rows.values()
        )
    )


def _verdict(scene: Scene, faults: Counter[str]) -> dict[str, Any]:
    topics = [scene.testbed.topic(resource, group) for group, resource in _STREAMS.values()]
    looks = list(_verified(scene))
    with scene.testbed.reader(*topics) as reader:
        reader.read()
        wait_until(
            "a second reader has it proven",
            lambda: reader.read() >= 0 and all(map(reader.proven, _STREAMS)),
            deadline_s=60.0,
        )
    operations, code = scene.churn.operations(), scene.relay.stop()
    missed = _missed(scene.relay.lines())
    odd, levels = unexplained(scene.relay.lines())
    return {
        "right": looks[-1]["exit"] == 0
        and not reader.problems
        and code == 0
        and not odd
        and missed["silently"] == 0,
        "verify": looks,
        "operations": operations,
        "faults": dict(sorted(faults.items())),
        "records": len(reader.records),
        "late_or_resent": {"duplicates": reader.duplicates, "stale": reader.stale},
        "broken_rules": reader.problems[:20],
        "missed_changes": missed,
        "lives": len([line for line in scene.relay.lines() if line["message"] == "started"]),
        "exit": code,
        "log_levels": dict(levels),
        "unexplained": odd,
    }


def _verified(scene: Scene) -> Iterator[dict[str, Any]]:
    """The results of `verify --cluster`, repeated until it succeeds or a frozen connection would
    long have been noticed.

    A path that forgot its connections a moment ago leaves watches that are silent and look well:
    the relay says so after about 75 s.
    """
    began_s = time.monotonic()
    while True:
        outcome = command("verify", "-c", scene.relay.file, "--cluster", timeout_s=900.0)
        after_s = time.monotonic() - began_s
        yield {
            "exit": outcome.code,
            "after_s": round(after_s, 1),
            "output": (outcome.stdout + outcome.stderr).splitlines(),
        }
        if outcome.code == 0 or after_s > _NOTICED_S:
            return


def _missed(lines: Iterable[dict[str, Any]]) -> dict[str, int]:
    """Changes that a list found: of `silently` the watch was open and did not show them; the others
    stood in history that was lost."""
    found = {"silently": 0, "with_lost_history": 0}
    for line in lines:
        if line["message"] == MISSED:
            found["with_lost_history" if str(line["level"]).lower() == "info" else "silently"] += (
                int(line["missed"])
            )
    return found


def _shape(memory: list[tuple[int, int]]) -> list[dict[str, float]]:
    """For each life of the relay that was long enough: medians of the first and of the last third,
    and the most."""
    shapes = []
    for pid in dict.fromkeys(pid for pid, _ in memory):
        seen = [rss for own, rss in memory if own == pid]
        third = len(seen) // 3
        if third >= 4:
            first, last = (
                sorted(part)[len(part) // 2] / _MIB
                for part in (seen[third : 2 * third], seen[-third:])
            )
            shapes.append(
                {
                    "samples": len(seen),
                    "second_third": round(first, 1),
                    "last_third": round(last, 1),
                    "most": round(max(seen) / _MIB, 1),
                }
            )
    return shapes


if __name__ == "__main__":
    sys.exit(main())
