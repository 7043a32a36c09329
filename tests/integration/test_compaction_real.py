"""Brokers as eager to compact as the contract allows, churn, kill -9: late readers are right.

State topics may have a compaction lag and a retention of tombstones of twice the snapshot interval,
the control topic may have none.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from tests.support.churn import Churn
from tests.support.daemon import command
from tests.support.kafkabroker import versions
from tests.support.kills import Victim, aims
from tests.support.listed import await_equal, expected_tables
from tests.support.livereader import LiveReader, fresh_tables, table_of
from tests.support.process import wait_until
from tests.support.realparts import ControlPlane, KafkaBroker
from tests.support.testbed import Testbed
from tests.support.topicreader import TopicReader
from watchrelay.consumer import TopicReader as ConsumerReader

if TYPE_CHECKING:
    from tests.support.kafkabroker import Version

pytestmark = pytest.mark.real

PATHS = {
    "configmaps": "/api/v1/configmaps",
    "deployments.apps": "/apis/apps/v1/deployments",
    "pods": "/api/v1/pods",
}
_INTERVAL_S = 5
_TWICE_MS = str(2 * _INTERVAL_S * 1000)
_EAGER = {"segment.ms": "500", "segment.bytes": "1048576", "min.cleanable.dirty.ratio": "0.01"}
_STATE = _EAGER | {
    "cleanup.policy": "compact,delete",
    "max.message.bytes": "4194304",
    "min.compaction.lag.ms": _TWICE_MS,
    "max.compaction.lag.ms": _TWICE_MS,
    "delete.retention.ms": _TWICE_MS,
}
_CONTROL = _EAGER | {
    "cleanup.policy": "compact",
    "min.compaction.lag.ms": "0",
    "delete.retention.ms": "0",
}
_KILLS, _KILLS_MAX = 10, 80


@pytest.fixture(params=versions("4.1"))
def eager(real_parts: None, request: pytest.FixtureRequest) -> Iterator[KafkaBroker]:
    """A broker whose cleaner hardly rests."""
    with KafkaBroker(
        cast("Version", request.param), properties={"log.cleaner.backoff.ms": "100"}
    ) as broker:
        yield broker


def _standing(broker: KafkaBroker, topic: str) -> tuple[int, set[bytes]]:
    """How many offsets of a topic have no record any more, and the keys that have one."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "holes",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    missing, keys = 0, set[bytes]()
    try:
        for partition in broker.admin.list_topics(topic, timeout=10.0).topics[topic].partitions:
            place = TopicPartition(topic, partition, OFFSET_BEGINNING)
            _, end = consumer.get_watermark_offsets(place, timeout=10.0, cached=False)
            consumer.assign([place])
            found = 0
            while consumer.position([place])[0].offset < end:
                for message in consumer.consume(500, timeout=0.1):
                    assert message.error() is None, message.error()
                    if (message.offset() or 0) < end:
                        found += 1
                        keys.add(cast("bytes", message.key()))
            missing += end - found
    finally:
        consumer.close()
    return missing, keys


class _Cleaning:
    """What the cleaner has done. `missing` offsets that hold nothing, by topic; `forgotten`
    deleted objects without a record."""

    def __init__(self, testbed: Testbed, broker: KafkaBroker, reader: TopicReader) -> None:
        self._trial, self._broker, self._reader = testbed, broker, reader
        self.missing: dict[str, int] = {}
        self.forgotten = 0

    def seen(self) -> bool:
        """True once it has removed records of every topic, and tombstones of objects besides."""
        standing = {
            topic: _standing(self._broker, topic)
            for topic in (*self._trial.topics(*PATHS), self._trial.control_topic)
        }
        self.missing = {topic: missing for topic, (missing, _) in standing.items()}
        deleted = {record.key for record in self._reader.of("pods", "deleted")}
        self.forgotten = len(deleted - standing[self._trial.topic("pods")][1])
        return all(self.missing.values()) and self.forgotten > 0


def _assert_late_readers_are_right(testbed: Testbed, wanted: dict[str, dict[bytes, bytes]]) -> None:
    """Those that start at the newest snapshot, at what a heartbeat names, at the start of the
    topic; and a table that knows no markers."""
    bootstrap = testbed.broker.bootstrap
    assert asyncio.run(fresh_tables(bootstrap, testbed.control_topic)) == (wanted, [])

    async def by_heartbeats() -> dict[str, dict[bytes, bytes]]:
        async with ConsumerReader(
            bootstrap, topics=testbed.topics(*PATHS), until_end=True
        ) as reader:
            await reader.ready()
            return {stream: table_of(reader, stream) for stream in reader.streams}

    assert asyncio.run(by_heartbeats()) == wanted
    with testbed.reader(*testbed.topics(*PATHS)) as whole:
        whole.read()
    for topic, stream in zip(testbed.topics(*PATHS), PATHS, strict=True):
        assert whole.plain[topic] == wanted[stream], "a table that knows no markers is another"
        assert whole.table(stream) == wanted[stream]
        assert whole.proven(stream)


def test_compaction_at_its_most_eager_during_kills_and_churn_leaves_late_readers_right(
    real_cluster: ControlPlane,
    eager: KafkaBroker,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    testbed, rng = Testbed(real_cluster, eager, tmp_path), random.Random(11)
    for topic in testbed.topics(*PATHS):
        eager.create_topic(topic, partitions=3, config=_STATE)
    eager.create_topic(testbed.control_topic, config=_CONTROL)
    relay = testbed.relay(*PATHS, defaults={"snapshotInterval": f"{_INTERVAL_S}s"})
    namespaces = testbed.namespaces(8)
    with testbed.reader(*testbed.topics(*PATHS)) as reader, relay:
        relay.await_ready()
        cleaning, victim = (
            _Cleaning(testbed, eager, reader),
            Victim(relay, rng, lambda: testbed.ask_snapshot("configmaps")),
        )
        with (
            LiveReader(eager.bootstrap, testbed.control_topic) as live,
            Churn(
                real_cluster,
                namespaces,
                operations=500,
                kinds=("configmaps", "deployments"),
                per_s=50,
            ) as churn,
        ):
            for aim in aims(_KILLS_MAX):
                victim.end(aim)
                reader.read()
                victim.start()
                assert churn.running, "the churn ended before the kills"
                if victim.lives >= _KILLS and cleaning.seen():
                    break
            before = Counter(cleaning.missing)
            for aim in aims(_KILLS // 2):  # over a log with holes
                victim.end(aim)
                reader.read()
                victim.start()
            relay.await_ready()
            wait_until(
                "the cleaner goes on",
                lambda: cleaning.seen() and Counter(cleaning.missing) > before,
                deadline_s=90.0,
            )
            verified = command("verify", "-c", relay.file, "--cluster", timeout_s=200.0)
            assert verified.code == 0, verified.stdout + verified.stderr
            churn.finish()
            await_equal(real_cluster, reader, PATHS)
            wanted = expected_tables(real_cluster, PATHS)
            wait_until(
                "the live reader is proven and holds the same",
                lambda: live.proven() and live.tables() == wanted,
            )
        assert relay.stop() == 0
        reader.read()
    reader.assert_right(*PATHS, duplicates=True)
    assert {stream: reader.table(stream) for stream in PATHS} == wanted
    _assert_late_readers_are_right(testbed, wanted)
    verified = command("verify", "-c", relay.file, timeout_s=100.0)
    assert verified.code == 0, verified.stdout + verified.stderr
    with capsys.disabled():
        print(
            f"\nkafka {eager.version}: {victim.lives} kills ({dict(victim.deaths)}), "
            f"{dict(reader.accounts())}; "
            f"offsets that hold nothing any more {cleaning.missing}, {cleaning.forgotten} "
            "deleted pods without a record"
        )
