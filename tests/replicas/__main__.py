"""`python -m tests.replicas`: three replicas on real Kafka, faults by seed, `verify --cluster` after
each of them, and the figures of each as JSON. The exit code is 0 only when all verify and no rule
of the contract is broken."""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

from tests.replicas.faults import FAULTS, Scene
from tests.replicas.load import Load
from tests.support.arrivals import Arrivals
from tests.support.embedded import EmbeddedCluster
from tests.support.faultproxy import FaultProxy
from tests.support.kafkabroker import KafkaBroker
from tests.support.pace import measure_for
from tests.support.process import Workspace
from tests.support.replicas import Replicas
from tests.support.testbed import Testbed
from tests.support.topicreader import TopicReader

STREAMS = 12
_HISTORY_EVENTS = 200_000
"""What the API server keeps: a list is then never its doing."""


def main() -> int:
    """Run it; the exit code."""
    asked = _arguments()
    rounds = list[dict[str, Any]]()
    with ExitStack() as stack:
        scene, reader, arrivals = _begin(stack, asked)
        latest: dict[tuple[str, bytes], tuple[int, str]] = {}
        _account(reader, latest)
        for fault in _faults(asked, scene.rng):
            rounds.append({"fault": fault, **_round(scene, fault, reader, latest, arrivals)})
            print(json.dumps(rounds[-1]), file=sys.stderr, flush=True)
        exits = dict(scene.exits)
    report = {
        "kafka": asked.kafka,
        "seed": asked.seed,
        "changes": scene.load.changes,
        "faults": {name: _summary(rounds, name) for name in dict.fromkeys(asked.faults)},
        "exit_codes_on_sigterm": exits,
        "broken_rules": reader.problems[:20],
    }
    print(json.dumps(report, indent=2))
    right = not reader.problems and all(each["verify"] == 0 for each in rounds)
    return 0 if right else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.replicas", description="Replicas on real Kafka, with faults by seed."
    )
    parser.add_argument("--rounds", type=int, default=3, help="of each fault; default 3")
    parser.add_argument("--minutes", type=float, help="instead: faults drawn for so long")
    parser.add_argument("--seed", type=int, default=1, help="when and for how long; default 1")
    parser.add_argument("--kafka", choices=("3.9", "4.1"), default="4.1", help="default 4.1")
    parser.add_argument("--per-s", type=float, default=100.0, help="changes; default 100")
    parser.add_argument(
        "faults", nargs="*", metavar="FAULT", help=f"{', '.join(FAULTS)}; all if none is named"
    )
    asked = parser.parse_args()
    asked.faults = asked.faults or list(FAULTS)
    if unknown := set(asked.faults) - set(FAULTS):
        parser.error(f"no such fault: {', '.join(sorted(unknown))}")
    return asked


def _faults(asked: argparse.Namespace, rng: random.Random) -> Iterator[str]:
    if asked.minutes is None:
        for name in asked.faults:
            yield from [name] * asked.rounds
        return
    end_s = time.monotonic() + asked.minutes * 60
    while time.monotonic() < end_s:
        yield rng.choice(asked.faults)


def _begin(stack: ExitStack, asked: argparse.Namespace) -> tuple[Scene, TopicReader, Arrivals]:
    """Three replicas share the streams, evenly, under load."""
    workspace = Workspace("replicas")
    stack.callback(workspace.remove)
    cluster = stack.enter_context(EmbeddedCluster(seed=asked.seed, history_events=_HISTORY_EVENTS))
    to_kafka = stack.enter_context(FaultProxy())
    broker = stack.enter_context(KafkaBroker(asked.kafka, via=to_kafka.port))
    to_kafka.lead_to(broker.ports["VIA"])
    to_api = stack.enter_context(FaultProxy(cluster.port))
    testbed = Testbed(cluster, broker, workspace.path)
    namespaces = testbed.namespaces(STREAMS)
    entry = {"resource": "configmaps", "namespaces": namespaces}
    # each stream reads the whole log of the topic that they share, from its own last snapshot
    defaults = {"snapshotInterval": "60s"}
    replicas = Replicas(
        testbed, [entry], stack, streams=STREAMS, queueBytes="1MiB", defaults=defaults
    )
    by_proxies = {
        "kubeconfig": cluster.kubeconfig_by(to_api.port),
        "kafka": {"bootstrapServers": [f"127.0.0.1:{to_kafka.port}"]},
    }
    load = stack.enter_context(Load(cluster, namespaces, seed=asked.seed, per_s=asked.per_s))
    rng = random.Random(asked.seed)
    scene = Scene(rng, broker, to_kafka, to_api, replicas, load, by_proxies)
    for proxied in (True, False, False):
        scene.start(proxied=proxied)
    scene.shared(even=True)
    topic = testbed.topic("configmaps")
    reader = stack.enter_context(testbed.reader(topic))
    arrivals = stack.enter_context(Arrivals(broker.bootstrap, topic))
    return scene, reader, arrivals


def _round(
    scene: Scene,
    fault: str,
    reader: TopicReader,
    latest: dict[tuple[str, bytes], tuple[int, str]],
    arrivals: Arrivals,
) -> dict[str, Any]:
    """Do it, and see what comes of it."""
    measure_for(scene.rng.uniform(1, 2))  # so that it hits any moment of what goes on
    lines, began_s = scene.replicas.mark(), time.monotonic()
    stale, duplicates = reader.stale, reader.duplicates
    arrivals.begin()
    FAULTS[fault](scene)
    scene.shared()
    with scene.load.paused():
        arrivals.await_quiet()
        gap_s = arrivals.longest_s()
        verified = scene.replicas.verified()
    twice = _account(reader, latest)
    found: dict[str, Any] = {
        "took_s": round(time.monotonic() - began_s, 1),
        "gap_s": round(gap_s, 2),
        "stale": reader.stale - stale,
        "resent": reader.duplicates - duplicates,
        "twice": twice,
        "verify": verified.code,
        **_logged(lines()),
    }
    if verified.code:
        found["output"] = (verified.stdout + verified.stderr).splitlines()[-20:]
    return found


def _account(reader: TopicReader, latest: dict[tuple[str, bytes], tuple[int, str]]) -> int:
    """How many changes stand on the topic twice, among the records since the last call."""
    reader.read()
    twice = 0
    for one in reader.records:
        if not one.is_object or one.place in reader.ignored:
            continue
        if one.headers["ce_wrreason"] not in {"snapshot", "healed"}:
            change = one.version, one.type
            twice += latest.get((one.stream, one.key)) == change
            latest[one.stream, one.key] = change
    reader.records.clear()
    return twice


def _logged(lines: Sequence[dict[str, Any]]) -> dict[str, int]:
    texts = Counter(line["message"] for line in lines)
    claims = Counter(line["stream"] for line in lines if line["message"] == "stream claimed")
    decisions = Counter(line["then"] for line in lines if line["message"] == "log read back")
    del decisions["WatchFrom"]
    return {
        "lists": decisions.total() + texts["watch history expired; relisting"],
        "claims": claims.total(),
        "claims_of_a_stream": max(claims.values(), default=0),
        "repaired": texts["repairing stale records"],
        "failures": texts["stream restarts after an unexpected error"],
    }


def _summary(rounds: Sequence[dict[str, Any]], fault: str) -> dict[str, Any]:
    those = [each for each in rounds if each["fault"] == fault]
    if not those:
        return {"rounds": 0}
    gaps = [each["gap_s"] for each in those]
    sums = ("stale", "resent", "twice", "lists", "claims", "repaired", "failures")
    return {
        "rounds": len(those),
        "verify_not_0": sum(each["verify"] != 0 for each in those),
        "gap_s": {"median": round(statistics.median(gaps), 2), "most": max(gaps)},
        "claims_of_a_stream": max(each["claims_of_a_stream"] for each in those),
        **{name: sum(each[name] for each in those) for name in sums},
    }


if __name__ == "__main__":
    sys.exit(main())
