"""Real Kafka on which another program has left a transaction open: who is held back says so."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.support.daemon import command
from tests.support.embedded import EmbeddedCluster
from tests.support.kafkabroker import KafkaBroker
from tests.support.process import wait_until
from tests.support.testbed import Testbed
from watchrelay.core.exit_codes import UNAVAILABLE

pytestmark = pytest.mark.real

STREAM = "configmaps"
_LATE_S = 180.0
"""What is shown after 20 s, on a slow machine."""


@pytest.fixture(scope="module")
def broker(real_parts: None) -> Iterator[KafkaBroker]:
    with KafkaBroker("4.1") as broker:
        yield broker


def left_open(broker: KafkaBroker, topic: str) -> tuple[Producer, str]:
    """A transaction that has written one record to `topic`, and what is to be reported."""
    settings = {"transactional.id": f"of {topic}", "transaction.timeout.ms": 900_000}
    producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0, **settings})
    producer.init_transactions(60)
    producer.begin_transaction()
    offsets = list[int]()
    producer.produce(
        topic,
        b"x",
        key=b"zz/zz",
        partition=0,
        on_delivery=lambda _error, message: offsets.append(message.offset() or 0),
    )
    producer.flush(60)
    reported = (
        f"topic {topic} partition 0: an open transaction at offset {offsets[0]} holds back all "
        "later records from readers of committed records until it ends: stop the program that left "
        f"it open, or abort it with: kafka-transactions.sh --bootstrap-server {broker.bootstrap} "
        f"abort --topic {topic} --partition 0 --start-offset {offsets[0]}"
    )
    return producer, reported


def test_on_a_state_topic_it_is_named_by_the_stream_by_verify_and_by_snapshot_until_it_ends(
    cluster: EmbeddedCluster, broker: KafkaBroker, tmp_path: Path
) -> None:
    testbed = Testbed(cluster, broker, tmp_path)
    testbed.config_maps(4)
    topic = testbed.topic(STREAM)
    with testbed.relay(STREAM, kafka={"partitions": 1}) as relay:
        relay.await_ready(deadline_s=_LATE_S)
        before = relay.stream(STREAM)["lastSnapshot"]
        producer, named = left_open(broker, topic)
        found = command("snapshot", "-c", relay.file, STREAM, timeout_s=_LATE_S)
        assert (found.code, named in found.stderr) == (UNAVAILABLE, True), found
        wait_until(
            "the stream names it",
            lambda: named in str(relay.stream(STREAM)),
            deadline_s=_LATE_S,
        )
        assert "frozen" not in str(relay.stream(STREAM))
        found = command("verify", "-c", relay.file, timeout_s=_LATE_S)
        assert (found.code, f"transaction: {named}" in found.stdout) == (1, True), found
        producer.abort_transaction(60)
        wait_until(
            "the snapshot is complete",
            lambda: relay.stream(STREAM)["lastSnapshot"] != before,
            deadline_s=_LATE_S,
        )
        wait_until("it is over", lambda: named not in str(relay.stream(STREAM)), deadline_s=_LATE_S)
        assert command("verify", "-c", relay.file, timeout_s=_LATE_S).code == 0


def test_on_the_signal_topic_it_is_named_on_the_page_and_by_snapshot_until_it_ends(
    cluster: EmbeddedCluster, broker: KafkaBroker, tmp_path: Path
) -> None:
    testbed = Testbed(cluster, broker, tmp_path)
    testbed.config_maps(4)
    topic = testbed.signal_topic
    with testbed.relay(STREAM, kafka={"partitions": 1}) as relay:
        relay.await_ready(deadline_s=_LATE_S)
        before = relay.stream(STREAM)["lastSnapshot"]
        producer, named = left_open(broker, topic)
        found = command("snapshot", "-c", relay.file, STREAM, timeout_s=_LATE_S)
        assert (found.code, named in found.stderr) == (UNAVAILABLE, True), found
        wait_until(
            "the page names it",
            lambda: named in relay.readyz()[1].get("problems", {}).get("signal", ""),
            deadline_s=_LATE_S,
        )
        producer.abort_transaction(60)
        wait_until(
            "the request is taken",
            lambda: relay.stream(STREAM)["lastSnapshot"] != before,
            deadline_s=_LATE_S,
        )
        wait_until("it is over", lambda: named not in str(relay.readyz()[1]), deadline_s=_LATE_S)
