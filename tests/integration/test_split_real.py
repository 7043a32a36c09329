"""Three replicas that share one split stream by real Kafka: it is split into other parts under
churn, and the topic verifies."""

import time
from collections import Counter
from pathlib import Path

import pytest
import yaml

from tests.support.churn import Churn
from tests.support.daemon import Daemon, command
from tests.support.embedded import EmbeddedCluster
from tests.support.process import wait_until
from tests.support.realparts import KafkaBroker
from tests.support.testbed import Testbed

pytestmark = pytest.mark.real
PARTITIONS = 4
NAMESPACES = 3


@pytest.fixture
def testbed(cluster: EmbeddedCluster, kafka_broker: KafkaBroker, tmp_path: Path) -> Testbed:
    return Testbed(cluster, kafka_broker, tmp_path)


def entry(count: int) -> dict[str, object]:
    return {"resource": "configmaps", "split": count, "partitions": PARTITIONS}


def parts(count: int) -> list[str]:
    if count == 1:
        return ["configmaps"]
    return [f"configmaps%{place}/{count}" for place in range(count)]


def edit(relay: Daemon, count: int) -> None:
    config = yaml.safe_load(relay.file.read_text())
    config["resources"] = [entry(count)]
    new = relay.file.with_suffix(".new")
    new.write_text(yaml.safe_dump(config))
    new.replace(relay.file)


def owned(relays: list[Daemon]) -> Counter[str]:
    """How many replicas have published the whole state of each part as its owner."""
    return Counter(
        stream
        for relay in relays
        for stream, row in relay.api_streams().items()
        if row["state"] == "watching" and row["complete"]
    )


def await_owned(relays: list[Daemon], count: int) -> float:
    """Return once each part has one owner, and there are no others; the seconds that took."""
    began_s, found = time.monotonic(), Counter[str]()

    def once() -> bool:
        nonlocal found
        found = owned(relays)
        return found == Counter(parts(count))

    try:
        wait_until(f"{count} parts have one owner each", once, deadline_s=40.0)
    except TimeoutError as late:
        raise AssertionError(f"{late}: {found}") from None
    return time.monotonic() - began_s


@pytest.mark.parametrize("delivery", ["idempotent", "transactional"])
def test_a_stream_is_resized_on_three_replicas_under_churn_and_verifies(
    testbed: Testbed, delivery: str
) -> None:
    namespaces, topic = testbed.namespaces(NAMESPACES), testbed.topic("configmaps")
    relays = [
        testbed.relay(
            entry(2),
            name=name,
            kafka={"delivery": delivery},
            sharding={"enabled": True, "balanceAfter": "2s"},
        )
        for name in "abc"
    ]
    with (
        Churn(
            testbed.cluster, namespaces, operations=100, kinds=("configmaps",), per_s=200
        ) as churn,
        relays[0],
        relays[1],
        relays[2],
        testbed.reader(topic) as reader,
    ):
        for relay in relays:
            relay.await_ready()
        await_owned(relays, 2)
        for count in (4, 3, 1, 2):
            for relay in relays:
                edit(relay, count)
            print(f"{count} parts after {await_owned(relays, count):.1f} s")
        snapshots = command("snapshot", "-c", relays[0].file, "configmaps", timeout_s=60.0)
        assert snapshots.code == 0, snapshots.stderr
        assert all(part in snapshots.stdout for part in parts(2)), "it waits for all parts"
        churn.finish()
        verified = command("verify", "-c", relays[0].file, "--cluster", timeout_s=120.0)
        assert verified.code == 0, verified.stdout + verified.stderr
        listed = [line for relay in relays for line in relay.logged("list compared with the log")]
        assert not listed, "parts go on from the log"
        if delivery == "transactional":
            reader.assert_one_owner_at_a_time(topic)
