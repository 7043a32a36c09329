"""Transactions on Apache Kafka 3.9 and 4.1: what a consumer with `read_committed` sees of a topic
while writers are cut off, suspended, killed and fenced."""

import asyncio
import itertools
import random
import signal
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.support.churn import Churn
from tests.support.daemon import Daemon, command
from tests.support.embedded import EmbeddedCluster
from tests.support.kafkabroker import KafkaCluster, create_topic, on_both
from tests.support.produceproxy import Fate, ProduceProxy, produce_proxy
from tests.support.realparts import KafkaBroker
from tests.support.sinkparts import Running, running_sink, until
from tests.support.testbed import Testbed
from watchrelay.contract.wire import Batch, WireRecord
from watchrelay.core.errors import Fenced
from watchrelay.core.timestamps import parse_timestamp
from watchrelay.kafka.client import TopicPartition
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.client.consumer import STATE_TOPICS
from watchrelay.kafka.producer import ProducerSettings
from watchrelay.kafka.reading import COMMITTED, offset_ranges, open_reading, read_ranges

pytestmark = pytest.mark.real
PARTITIONS = 3
HASTY = ProducerSettings(request_timeout_s=1.0, stalled_after_s=0.5, transaction_timeout_s=2.0)
PRODUCE, ADD, COMMIT = 0, 24, 26
TAKEOVER_S = 2.0


# ---- the producer --------------------------------------------------------------------------------


class Way:
    """A broker whose clients come by a proxy."""

    def __init__(self, broker: KafkaBroker, proxy: ProduceProxy) -> None:
        self.broker, self.proxy = broker, proxy
        self.connection = KafkaConnection(bootstrap_servers=(f"127.0.0.1:{proxy.port}",))


@pytest.fixture(scope="module", params=["3.9", "4.1"])
def way(real_parts: None, request: pytest.FixtureRequest) -> Iterator[Way]:
    proxy = ProduceProxy()
    with KafkaBroker(request.param, via=proxy.port) as broker:
        yield Way(broker, proxy)


class Claim:
    """Whose the stream is."""

    def __init__(self) -> None:
        self.is_ours, self.looks = True, 0

    async def look(self) -> bool:
        self.looks += 1
        return self.is_ours


class Writing:
    """A stream that writes a topic within transactions: batches on every partition, one after the
    other; what was acknowledged."""

    def __init__(self, running: Running, topic: str, transactional_id: str) -> None:
        self.running, self.topic, self.id = running, topic, transactional_id
        self.claim = Claim()
        self.acked: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
        self._enough = False

    async def begin(self, *former_ids: str) -> None:
        await asyncio.sleep(0)  # the sink runs from now on
        await self.running.sink.begin_transactions(
            self.topic,
            "pods",
            transactional_id=self.id,
            former_ids=former_ids,
            is_ours=self.claim.look,
        )

    async def write(self, partition: int) -> None:
        for index in itertools.count(len(self.acked[partition])):
            names = [f"{index}-{place}".encode() for place in range(index % 4 + 1)]
            records = [WireRecord(name, b"x" * 50, []) for name in names]
            await self.running.sink.deliver(Batch(self.topic, partition, records, "pods"))
            self.acked[partition] += names
            if self._enough:
                return

    @asynccontextmanager
    async def writing(self, partitions: Sequence[int] = range(PARTITIONS)) -> AsyncIterator[None]:
        """Write inside the block, and after it until a few batches more are acknowledged."""
        self._enough = False
        async with asyncio.TaskGroup() as writers:
            for partition in partitions:
                writers.create_task(self.write(partition))
            yield
            await self.progress(partitions)
            self._enough = True

    async def progress(self, partitions: Sequence[int] = range(PARTITIONS)) -> None:
        reached = {each: len(self.acked[each]) for each in partitions}
        await until(
            lambda: all(len(self.acked[each]) > then + 10 for each, then in reached.items()),
            deadline_s=60.0,
        )

    def ended(self, result: str) -> float:
        value = self.running.metrics.registry.get_sample_value(
            "watchrelay_transactions_total", {"result": result}
        )
        return value or 0.0

    async def assert_committed(self) -> None:
        """Committed is what was acknowledged, in order; a record is there twice at most where the
        outcome of a commit is unknown."""
        found: list[list[bytes]] = [[] for _ in range(PARTITIONS)]

        def take(place: TopicPartition, records: Sequence[Any]) -> None:
            found[place.partition] += [record.key for record in records]

        async with open_reading(self.running.connection, STATE_TOPICS, **COMMITTED) as reading:
            consumer = reading.consumer
            places = [TopicPartition(self.topic, each) for each in range(PARTITIONS)]
            await read_ranges(consumer, await offset_ranges(consumer, places), take)
        for acked, keys in zip(self.acked, found, strict=True):
            assert list(dict.fromkeys(keys)) == acked
            if not self.ended("unknown"):
                assert keys == acked


@asynccontextmanager
async def written(way: Way) -> AsyncIterator[Writing]:
    topic = f"t{uuid.uuid4().hex}"
    await asyncio.to_thread(way.broker.create_topic, topic, partitions=PARTITIONS)
    async with (
        produce_proxy(way.proxy, way.broker.ports["VIA"]),
        running_sink(way.connection, HASTY) as running,
    ):
        way.proxy.fate, way.proxy.keys = (lambda: "pass"), {PRODUCE}
        yield Writing(running, topic, f"id-{topic}")


async def test_when_requests_of_all_kinds_are_lost_what_is_acknowledged_is_committed(
    way: Way,
) -> None:
    chance = random.Random(1)
    cuts: list[Fate] = ["unsent", "torn", "unanswered"]

    def fate() -> Fate:
        return chance.choice(cuts) if chance.random() < 0.05 else "pass"

    async with written(way) as stream:
        await stream.begin()
        async with stream.writing():
            way.proxy.keys, way.proxy.fate = {PRODUCE, ADD, COMMIT}, fate
            await until(lambda: way.proxy.seen.total() - way.proxy.seen["pass"] > 40, deadline_s=90)
            way.proxy.fate = lambda: "pass"
        assert stream.ended("committed") > 0
        await stream.assert_committed()


async def test_a_transaction_that_takes_too_long_is_written_again(way: Way) -> None:
    async with written(way) as stream:
        await stream.begin()
        async with stream.writing():
            await stream.progress()
            way.proxy.fate = lambda: "silent"
            await asyncio.sleep(HASTY.transaction_timeout_s + 2.0)
            way.proxy.fate = lambda: "pass"
            await until(lambda: stream.ended("aborted") > 0)
        taken = 1 + stream.ended("aborted")
        assert stream.claim.looks == 2 * taken, "before and behind each time that the id was taken"
        await stream.assert_committed()


def taken_by_another(way: Way, transactional_id: str) -> Producer:
    producer = Producer(
        {"bootstrap.servers": way.broker.bootstrap, "transactional.id": transactional_id}
    )
    producer.init_transactions(20.0)
    return producer


async def test_a_writer_whose_claim_is_the_newest_takes_the_id_back(way: Way) -> None:
    async with written(way) as stream:
        await stream.begin()
        async with stream.writing():
            await stream.progress()
            await asyncio.to_thread(taken_by_another, way, stream.id)
            await until(lambda: stream.ended("aborted") > 0)
        assert stream.claim.looks % 2 == 0, "before and behind each time that the id was taken"
        await stream.assert_committed()


async def test_a_writer_that_is_fenced_and_superseded_ends(way: Way) -> None:
    async with written(way) as stream:
        await stream.begin()

        async def write_until_fenced() -> None:
            async with stream.writing():
                await stream.progress()
                stream.claim.is_ours = False
                await asyncio.to_thread(taken_by_another, way, stream.id)
                await asyncio.Event().wait()

        with pytest.raises(ExceptionGroup) as ended:
            await write_until_fenced()
        assert ended.group_contains(Fenced)
        with pytest.raises(Fenced):
            await stream.begin()
        await stream.assert_committed()


async def test_an_open_transaction_of_a_former_writer_under_any_id_is_aborted(way: Way) -> None:
    """Until then it holds up every consumer of committed records, for as long as its timeout."""
    async with written(way) as stream:

        def leave_open() -> None:
            for each in (stream.id, f"former-{stream.id}"):
                former = taken_by_another(way, each)
                former.begin_transaction()
                former.produce(stream.topic, key=b"of the former", value=b"", partition=0)
                assert former.flush(10.0) == 0

        await asyncio.to_thread(leave_open)
        end_offset = stream.running.sink.end_offset
        assert await end_offset(stream.topic, 0) == 2
        assert await end_offset(stream.topic, 0, committed=True) == 0
        began_s = time.monotonic()
        await stream.begin(f"former-{stream.id}")
        async with stream.writing():
            await stream.progress()
        await stream.assert_committed()
        print(
            f"two transactions aborted, committed records read {time.monotonic() - began_s:.2f} s later"
        )
        assert time.monotonic() - began_s < 10.0, "the timeout of theirs is 60 s"


async def test_a_partition_without_a_leader_holds_up_no_transaction_that_begins_later(
    real_parts: None,
) -> None:
    """One copy of each partition: the death of its broker leaves it without a leader."""
    topic = f"t{uuid.uuid4().hex}"
    with KafkaCluster(3) as brokers:
        create_topic(brokers.admin, topic, partitions=PARTITIONS, replicas=1, config=None)
        node = brokers.leader(topic, 0)
        async with running_sink(brokers.bootstrap, HASTY) as running:
            stream = Writing(running, topic, f"id-{topic}")
            await stream.begin()
            async with stream.writing():
                pass
            async with asyncio.TaskGroup() as tasks, stream.writing([1, 2]):
                await stream.progress([1, 2])
                written = len(stream.acked[0])
                await asyncio.to_thread(node.kill)
                tasks.create_task(stream.write(0), name="write without a leader")
                await stream.progress([1, 2])
                assert (len(stream.acked[0]), stream.ended("aborted")) == (written, 0)
                await asyncio.to_thread(node.restart)
                await stream.progress()
            await stream.assert_committed()


# ---- the relay -----------------------------------------------------------------------------------


@pytest.fixture
def testbed(cluster: EmbeddedCluster, kafka_broker: KafkaBroker, tmp_path: Path) -> Testbed:
    return Testbed(cluster, kafka_broker, tmp_path)


def relay_of(testbed: Testbed, namespace: str, name: str, **more: Any) -> Daemon:
    return testbed.relay(
        {"resource": "configmaps", "namespaces": [namespace]},
        name=name,
        kafka={"delivery": "transactional"},
        **more,
    )


@on_both
def test_a_consumer_of_committed_records_sees_one_owner_at_a_time(testbed: Testbed) -> None:
    (namespace,) = testbed.namespaces(1)
    topic = testbed.topic("configmaps")
    with (
        relay_of(testbed, namespace, "a") as first,
        Churn(testbed.cluster, [namespace], operations=300, per_s=100) as churn,
        testbed.reader(topic) as reader,
    ):
        first.await_ready()
        churn.reach(30)
        first.send(signal.SIGSTOP)
        with relay_of(testbed, namespace, "b") as second:
            second.await_ready()
            churn.reach(100)
            first.send(signal.SIGCONT)
            assert first.exit_code() == 75
            churn.reach(150)
            second.kill()
            with relay_of(testbed, namespace, "c") as third:
                third.await_ready()
                churn.finish()
                verified = command("verify", "-c", third.file, "--cluster", timeout_s=60.0)
                assert verified.code == 0, verified.stdout + verified.stderr
                assert third.metric("watchrelay_transactions_total", result="committed") > 10
                claimed, read = (
                    parse_timestamp(third.logged(message)[0]["time"].encode())
                    for message in ("stream claimed", "log read back")
                )
                print(f"killed: read back {read - claimed} ms after the next claim")
                assert third.stop() == 0
        reader.assert_one_owner_at_a_time(topic)


def test_replicas_hand_a_stream_over_and_take_it_from_one_that_is_killed(testbed: Testbed) -> None:
    (namespace,) = testbed.namespaces(1)
    topic = testbed.topic("configmaps")
    with (
        ExitStack() as stack,
        Churn(testbed.cluster, [namespace], operations=300, per_s=50) as churn,
        testbed.reader(topic) as reader,
    ):

        def replica(name: str) -> Daemon:
            return stack.enter_context(
                relay_of(testbed, namespace, name, sharding={"enabled": True})
            ).await_ready()

        def owns(relay: Daemon) -> bool:
            (stream,) = relay.api_streams().values()
            return stream["state"] == "watching" and bool(stream["complete"])

        first = replica("a")
        first.wait("it owns the stream", lambda: owns(first))
        second = replica("b")
        assert first.stop() == 0
        second.wait("the stream was handed over", lambda: owns(second))
        (handed,) = first.logged("stream handed over")
        assert handed["released"]
        third = replica("c")
        second.kill()
        third.wait("the stream was taken over", lambda: owns(third))
        churn.finish()
        verified = command("verify", "-c", third.file, "--cluster", timeout_s=60.0)
        assert verified.code == 0, verified.stdout + verified.stderr
        reader.assert_one_owner_at_a_time(topic)


def test_a_stream_that_was_written_within_transactions_is_retired(testbed: Testbed) -> None:
    (namespace,) = testbed.namespaces(1)
    testbed.make(
        f"/api/v1/namespaces/{namespace}/configmaps", [{"metadata": {"name": "one"}, "data": {}}]
    )
    stream = f"configmaps@{namespace}"
    with relay_of(testbed, namespace, "a") as relay:
        relay.await_ready()
        seen = command("tail", "-c", relay.file, "--from-beginning", "--until-end", timeout_s=60.0)
        assert (seen.code, "one" in seen.stdout) == (0, True), seen.stdout + seen.stderr
        assert relay.stop() == 0
        other = testbed.relay("secrets", name="b", kafka={"delivery": "transactional"})
        done = command("retire", stream, "-c", other.file, "--yes", "--force", timeout_s=60.0)
        assert done.code == 0, done.stdout + done.stderr
    with testbed.reader(testbed.topic("configmaps")) as reader:
        reader.transactional = True
        reader.read()
        assert not reader.plain[testbed.topic("configmaps")]
