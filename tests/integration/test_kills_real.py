"""A real API server under churn, real Kafka, kill -9 at instants by seed: right topics, right
readers.

The number of kills is small here; KILLS=200 asks for the full run. Each test shows its accounts:
which object records stand on the topics, and why. They are held against a recorder that watches the
same API server, and is never killed.
"""

import asyncio
import itertools
import os
import random
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.churn import Churn
from tests.support.daemon import command
from tests.support.kafkabroker import versions
from tests.support.kills import Victim, aims
from tests.support.listed import await_equal, expected_tables
from tests.support.livereader import LiveReader, fresh_tables
from tests.support.pace import last
from tests.support.process import wait_until
from tests.support.realparts import ControlPlane, KafkaBroker
from tests.support.testbed import Testbed
from tests.support.topicreader import TopicReader
from tests.support.watch_recorder import WatchRecorder

PATHS = {
    "configmaps": "/api/v1/configmaps",
    "deployments.apps": "/apis/apps/v1/deployments",
    "pods": "/api/v1/pods",
}
KILLS = int(os.environ.get("KILLS", "12"))
RUNS = list(itertools.product(versions("3.9", "4.1"), ("idempotent", "transactional")))
if not os.environ.keys() & {"KILLS", "KAFKA"}:
    RUNS = [RUNS[0], RUNS[-1]]  # each version and each delivery once
pytestmark = [pytest.mark.real, pytest.mark.timeout(900 + 10 * KILLS)]
_BULK = 1000
"""Objects that nobody changes: they make a snapshot and a read-back last long enough to be killed
in."""


def fill(testbed: Testbed, cluster: ControlPlane) -> str:
    """A namespace with `_BULK` config maps of 2 KB; the path of them all."""
    (namespace,) = testbed.namespaces(1)
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    rng = random.Random(1)
    bodies = [
        {"metadata": {"name": f"bulk{number}"}, "data": {"text": f"{rng.getrandbits(8_000):x}"}}
        for number in range(_BULK)
    ]
    with ThreadPoolExecutor(4) as pool:
        for made in [pool.submit(cluster.request, "POST", path, body) for body in bodies]:
            made.result()
    return path


def assert_every_change_was_published_once(
    reader: TopicReader, recorder: WatchRecorder, upto: Mapping[str, int]
) -> int:
    """The published changes are those that happened, each once; how many."""
    total = 0
    for stream in PATHS:
        published = [
            one
            for one in reader.of(stream)
            if one.is_object
            and one.place not in reader.ignored
            and one.headers["ce_wrreason"] not in {"snapshot", "healed"}
        ]
        by_reason = Counter(one.headers["ce_wrreason"] for one in published)
        twice = [
            each
            for each, count in Counter(
                (one.key, one.version, one.type == "deleted") for one in published
            ).items()
            if count > 1
        ]
        assert twice == [], f"{stream}: published twice: {twice[:5]}"
        compared = recorder.compare(stream, published, upto=upto[stream])
        # a list says what it leads to, not each step
        if not by_reason["resume"] + by_reason["relist"]:
            assert compared.missing == [], (
                f"{stream}: happened and was not published: {compared.missing[:5]}"
            )
        assert compared.invented == [] or by_reason["resume"] + by_reason["relist"], (
            f"{stream}: {compared.invented[:5]}"
        )
        total += len(published)
    return total


def assert_all_agree(
    testbed: Testbed, cluster: ControlPlane, reader: TopicReader, live: LiveReader
) -> None:
    """The readers that ran throughout and those that start now have what the API server lists,
    byte by byte."""
    wanted = expected_tables(cluster, PATHS)
    assert {stream: reader.table(stream) for stream in PATHS} == wanted
    wait_until(
        "the live reader is proven and holds the same",
        lambda: live.proven() and live.tables() == wanted,
    )
    assert live.from_changes() == wanted, "its changes lead to another state than it has"
    fresh, complaints = asyncio.run(fresh_tables(testbed.broker.bootstrap, testbed.control_topic))
    assert (fresh, complaints) == (wanted, [])
    with testbed.reader(*testbed.topics(*PATHS)) as late:
        late.transactional = reader.transactional
        late.read()
    assert {stream: late.table(stream) for stream in PATHS} == wanted
    late.assert_right(*PATHS, duplicates=True)
    for topic, stream in zip(testbed.topics(*PATHS), PATHS, strict=True):
        assert reader.plain[topic] == wanted[stream], "a table that knows no markers is another"


@pytest.mark.parametrize(
    ("kafka_broker", "delivery"), RUNS, indirect=["kafka_broker"], scope="module"
)
def test_kill_9_at_random_instants_and_in_the_middle_of_resumes_and_snapshots_leaves_right_topics_and_readers(
    real_cluster: ControlPlane,
    kafka_broker: KafkaBroker,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    delivery: str,
) -> None:
    testbed, rng = Testbed(real_cluster, kafka_broker, tmp_path), random.Random(5)
    bulk = fill(testbed, real_cluster)
    relay = testbed.relay(
        *PATHS, defaults={"snapshotInterval": "10s"}, kafka={"delivery": delivery}
    )
    with ExitStack() as stack:
        stack.callback(real_cluster.request, "DELETE", bulk, timeout_s=60.0)
        reader = stack.enter_context(testbed.reader(*testbed.topics(*PATHS)))
        reader.transactional = delivery == "transactional"
        stack.enter_context(relay)
        relay.await_ready()
        live = stack.enter_context(LiveReader(kafka_broker.bootstrap, testbed.control_topic))
        recorder = stack.enter_context(WatchRecorder(real_cluster, PATHS))
        kinds = ("configmaps", "deployments")
        namespaces = [f"{testbed.name}-c{number}" for number in range(8)]
        for namespace in namespaces:
            real_cluster.request("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
        churn = stack.enter_context(
            Churn(real_cluster, namespaces, operations=40 * KILLS, kinds=kinds, per_s=50)
        )
        victim = Victim(relay, rng, lambda: testbed.ask_snapshot("configmaps"))
        for number, aim in enumerate(aims(KILLS)):
            victim.end(aim)
            reader.read()
            if number % 5 == 4:
                last(rng.uniform(0, 2))  # how long the relay is down
            victim.start()
            assert churn.running, "the churn ended before the kills"
        relay.await_ready()
        churn.finish()
        await_equal(real_cluster, reader, PATHS, deadline_s=90.0)
        upto = {
            stream: max(record.version for record in reader.of(stream) if record.is_object)
            for stream in PATHS
        }
        verified = command("verify", "-c", relay.file, "--cluster", timeout_s=300.0)
        assert verified.code == 0, verified.stdout + verified.stderr
        assert relay.stop() == 0
        reader.read()
        assert_all_agree(testbed, real_cluster, reader, live)
        reader.assert_right(*PATHS, duplicates=True)
        assert not (reader.transactional and reader.stale), "of each partition one owner at a time"
        counted = reader.accounts()
        changes = assert_every_change_was_published_once(reader, recorder, upto)
        with capsys.disabled():
            print(
                f"\nkafka {kafka_broker.version}, {delivery}: {victim.lives} kills "
                f"({dict(victim.deaths)}), lives went on {dict(victim.decisions())}; "
                f"{counted.total()} object records = {counted['changes']} changes + "
                f"{counted['snapshot']} members of snapshots + "
                f"{counted['ignored'] + counted['healed']} published again after a kill "
                f"({counted['ignored']} late or resent, "
                f"{counted['healed']} healed); {live.changes} changes returned to the live "
                f"reader, problems {live.problems()}; "
                f"{verified.stdout.splitlines()[-1]}"
            )
    assert counted["changes"] == changes
    assert {"resume", "snapshot"} <= set(victim.deaths), (
        f"no kill hit what it was aimed at: {victim.deaths}"
    )
