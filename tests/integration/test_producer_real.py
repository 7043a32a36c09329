"""The produce path on Apache Kafka 3.9 and 4.1, with requests torn, answers lost or withheld, limits
lowered, and brokers killed: within one life no record is lost, out of order, or in the log twice."""

import asyncio
import itertools
import random
import socket
import struct
from collections.abc import Callable, Iterator
from typing import cast

import pytest
from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

from tests.support.kafkabroker import Version, versions
from tests.support.produceproxy import Fate, ProduceProxy, produce_proxy
from tests.support.realparts import KafkaBroker, KafkaCluster
from tests.support.sinkparts import Running, batch, keys_on, running_sink, until
from watchrelay.contract.wire import Batch, Receipt, WireRecord
from watchrelay.core.errors import RecordTooLarge
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.producer import ProducerSettings

pytestmark = pytest.mark.real

PARTITIONS = 6
HASTY = ProducerSettings(request_timeout_s=2.0, stalled_after_s=1.0)
DUPLICATE, OUT_OF_ORDER, UNKNOWN_PRODUCER, INVALID_RECORD = 46, 45, 59, 87


class Load:
    """Batches on every partition, one after the other; what was acknowledged, and where."""

    def __init__(self, running: Running, topic: str, *, padding: int = 50) -> None:
        self.acked: list[list[tuple[int, bytes]]] = [[] for _ in range(PARTITIONS)]
        self._content = [random.Random(place).randbytes(padding) for place in range(4)]
        self._running, self._topic = running, topic
        self._enough = False

    async def write(self, partition: int) -> None:
        for index in itertools.count():
            names = [f"{index}-{place}" for place in range(index % 4 + 1)]
            records = [
                WireRecord(name.encode(), content, [])
                for name, content in zip(names, self._content, strict=False)
            ]
            receipt = await self._running.sink.deliver(Batch(self._topic, partition, records))
            self.acked[partition] += zip(receipt.offsets, map(str.encode, names), strict=True)
            if self._enough:
                return

    def __len__(self) -> int:
        return sum(map(len, self.acked))

    async def during(self, trouble: Callable[["Load"], object]) -> None:
        """Write while `trouble`, a coroutine function, goes on, and a while longer."""
        async with asyncio.TaskGroup() as writers:
            for partition in range(PARTITIONS):
                writers.create_task(self.write(partition), name="writer")
            await cast("Callable[[Load], asyncio.Future[None]]", trouble)(self)
            reached = [len(each) for each in self.acked]
            await until(
                lambda: all(
                    len(now) > then + 20 for now, then in zip(self.acked, reached, strict=True)
                ),
                deadline_s=60.0,
            )
            self._enough = True

    async def assert_once_and_in_order(self, bootstrap: str) -> None:
        found = await keys_on(bootstrap, self._topic, PARTITIONS)
        async with asyncio.timeout(60.0):
            # a former leader, asked for the end, may not know of its own end yet
            while any(
                len(keys) < len(acked) for keys, acked in zip(found, self.acked, strict=True)
            ):
                found = await keys_on(bootstrap, self._topic, PARTITIONS)
        for acked, keys in zip(self.acked, found, strict=True):
            assert keys == [key for _, key in acked], "lost, out of order, or twice"
            assert [offset for offset, _ in acked] == list(range(len(acked)))


def known_producers(port: int, topic: str) -> int:
    """How many producers the broker remembers for partition 0: DescribeProducers, version 0."""
    name = topic.encode()
    request = struct.pack(">hhih", 61, 0, 1, -1) + b"\0\x02" + bytes([len(name) + 1]) + name
    request += b"\x02" + struct.pack(">i", 0) + b"\0\0"
    with socket.create_connection(("127.0.0.1", port), timeout=10.0) as broker:
        broker.sendall(struct.pack(">i", len(request)) + request)
        answer = b""
        while len(answer) < 4 or len(answer) - 4 < struct.unpack_from(">i", answer)[0]:
            answer += broker.recv(4096)
    # size, correlation, tags, throttle time, one topic, its name, one partition, its index, error,
    # no message
    return answer[4 + 4 + 1 + 4 + 1 + 1 + len(name) + 1 + 4 + 2 + 1] - 1


class Way:
    """A broker whose clients come by a proxy."""

    def __init__(self, version: Version) -> None:
        self.proxy = ProduceProxy()
        self.broker = KafkaBroker(version, via=self.proxy.port)

    @property
    def connection(self) -> KafkaConnection:
        return KafkaConnection(bootstrap_servers=(f"127.0.0.1:{self.proxy.port}",))

    async def make_topic(self, name: str) -> None:
        await asyncio.to_thread(self.broker.create_topic, name, partitions=PARTITIONS)

    def set_message_bytes(self, topic: str, limit: int) -> None:
        entry = ConfigEntry(
            "max.message.bytes", str(limit), incremental_operation=AlterConfigOpType.SET
        )
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
        for changed in self.broker.admin.incremental_alter_configs([resource]).values():
            changed.result(10.0)

    def probe_until_refused(self, topic: str, size: int) -> int:
        """How many records of `size` bytes partition 0 still takes: a broker applies a new limit
        some time after the controller has answered."""
        producer = Producer({"bootstrap.servers": self.broker.bootstrap})
        refusals: list[KafkaError] = []

        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                refusals.append(error)

        for taken in range(1000):
            value = random.Random(1).randbytes(size)
            producer.produce(topic, value, b"probe", 0, on_delivery=delivered)
            assert producer.flush(10.0) == 0
            if refusals:
                if refusals[0].code() != KafkaError.MSG_SIZE_TOO_LARGE:
                    raise KafkaException(refusals[0])
                return taken
        raise AssertionError(f"{topic} still takes records of {size} bytes")


@pytest.fixture(scope="module", params=["3.9", "4.1"])
def way(real_parts: None, request: pytest.FixtureRequest) -> Iterator[Way]:
    way = Way(request.param)
    with way.broker:
        yield way


async def test_when_the_connection_is_cut_a_hundred_times_under_load_no_record_is_there_twice(
    way: Way,
) -> None:
    chance = random.Random(1)
    cuts: list[Fate] = ["unsent", "torn", "unanswered"]

    async with (
        produce_proxy(way.proxy, way.broker.ports["VIA"]) as proxy,
        running_sink(way.connection, HASTY) as running,
    ):
        await way.make_topic("cut")
        load = Load(running, "cut")

        def cut() -> int:
            return sum(proxy.seen[str(each)] for each in cuts)

        async def trouble(_: Load) -> None:
            proxy.fate = lambda: (
                chance.choice(cuts) if cut() < 100 and chance.random() < 0.2 else "pass"
            )
            await until(lambda: cut() == 100, deadline_s=35.0)

        await load.during(trouble)
        assert min(proxy.seen[str(each)] for each in cuts) > 20
        assert running.rebuilds("identity") == 0
        await until(lambda: not running.problem)
    await load.assert_once_and_in_order(way.broker.bootstrap)


async def test_a_limit_that_is_lowered_under_load_costs_no_record(way: Way) -> None:
    """Batches that fitted are refused from then on; some of them after an answer that was lost."""
    async with (
        produce_proxy(way.proxy, way.broker.ports["VIA"]) as proxy,
        running_sink(way.connection, HASTY) as running,
    ):
        await way.make_topic("limit")
        load = Load(running, "limit", padding=3000)

        async def trouble(_: Load) -> None:
            await until(lambda: len(load) > 200)
            fates: list[Fate] = ["pass", "unanswered"] * 10
            proxy.fate = lambda: fates.pop() if fates else "pass"
            await asyncio.to_thread(way.set_message_bytes, "limit", 7000)
            await until(lambda: running.errors("limit")["MessageSizeTooLargeError"] > 5)

        await load.during(trouble)
        await until(lambda: not running.problem)
    await load.assert_once_and_in_order(way.broker.bootstrap)


async def test_a_record_over_a_limit_that_was_lowered_is_named_and_what_was_before_it_is_acknowledged(
    way: Way,
) -> None:
    async with (
        produce_proxy(way.proxy, way.broker.ports["VIA"]),
        running_sink(way.connection, HASTY) as running,
    ):
        await way.make_topic("over")
        await running.sink.deliver(batch("over", 0, "a"))
        await asyncio.to_thread(way.set_message_bytes, "over", 2000)
        probes = await asyncio.to_thread(way.probe_until_refused, "over", 5000)
        records = [
            WireRecord(key, random.Random(1).randbytes(size), [])
            for key, size in ((b"b", 10), (b"c", 10), (b"large", 5000), (b"d", 10))
        ]
        with pytest.raises(RecordTooLarge, match="record large") as caught:
            await running.sink.deliver(Batch("over", 0, records))
        first = 1 + probes
        assert (caught.value.index, caught.value.acked) == (2, (first, first + 1))
        assert await running.sink.deliver(Batch("over", 0, records[3:])) == Receipt([first + 2])
    found = (await keys_on(way.broker.bootstrap, "over", 1))[0]
    assert found == [b"a", *[b"probe"] * probes, b"b", b"c", b"d"]


@pytest.mark.parametrize("code", [DUPLICATE, OUT_OF_ORDER, UNKNOWN_PRODUCER, INVALID_RECORD])
async def test_what_a_lost_answer_left_in_the_log_is_found_there(way: Way, code: int) -> None:
    name = f"found-{code}"
    async with (
        produce_proxy(way.proxy, way.broker.ports["VIA"]) as proxy,
        running_sink(way.connection, HASTY) as running,
    ):
        await way.make_topic(name)
        assert await running.sink.deliver(batch(name, 0, "a")) == Receipt([0])
        fates: list[Fate] = ["unanswered", (code, -1)]
        proxy.fate = lambda: fates.pop(0) if fates else "pass"
        assert await running.sink.deliver(batch(name, 0, "b", "c")) == Receipt([1, 2])
        assert await running.sink.deliver(batch(name, 0, "d")) == Receipt([3])
        assert running.rebuilds("identity") == 0
    assert (await keys_on(way.broker.bootstrap, name, 1))[0] == [b"a", b"b", b"c", b"d"]


@pytest.mark.parametrize("code", [DUPLICATE, UNKNOWN_PRODUCER])
async def test_so_is_the_first_batch_of_all_among_those_of_others(way: Way, code: int) -> None:
    name = f"first-{code}"
    async with produce_proxy(way.proxy, way.broker.ports["VIA"]) as proxy:
        await way.make_topic(name)
        async with running_sink(way.connection, HASTY) as other:
            await other.sink.deliver(batch(name, 0, "other"))
        async with running_sink(way.connection, HASTY) as running:
            fates: list[Fate] = ["unanswered", (code, -1)]
            proxy.fate = lambda: fates.pop(0) if fates else "pass"
            assert await running.sink.deliver(batch(name, 0, "a", "b")) == Receipt([1, 2])
            assert running.rebuilds("identity") == 0
    assert (await keys_on(way.broker.bootstrap, name, 1))[0] == [b"other", b"a", b"b"]


@pytest.mark.parametrize("version", ["3.9", "4.1"])
async def test_a_producer_id_that_expired_costs_no_record(
    real_parts: None, version: Version
) -> None:
    soon = {
        "producer.id.expiration.ms": "2000",
        "producer.id.expiration.check.interval.ms": "500",
    }
    with KafkaBroker(version, properties=soon) as broker:
        port = broker.ports["PLAINTEXT"]
        await asyncio.to_thread(broker.create_topic, "t")
        async with running_sink(broker.bootstrap, HASTY) as running:
            for name in ("a", "b"):
                await running.sink.deliver(batch("t", 0, name))
            assert known_producers(port, "t") == 1
            async with asyncio.timeout(60.0):
                while await asyncio.to_thread(known_producers, port, "t"):
                    pass
            assert await running.sink.deliver(batch("t", 0, "c")) == Receipt([2])
            assert await running.sink.deliver(batch("t", 0, "d")) == Receipt([3])
            assert not running.problem
        assert (await keys_on(broker.bootstrap, "t", 1))[0] == [b"a", b"b", b"c", b"d"]


async def test_after_the_cut_nothing_more_is_sent(way: Way) -> None:
    async with produce_proxy(way.proxy, way.broker.ports["VIA"]) as proxy:
        async with running_sink(way.connection, HASTY) as running:
            await way.make_topic("ended")
            await running.sink.deliver(batch("ended", 0, "a"))
            proxy.fate = lambda: "silent"
            delivery = asyncio.get_running_loop().create_task(
                running.sink.deliver(batch("ended", 0, "b")), name="delivery"
            )
            await until(lambda: proxy.seen["silent"] >= 1)
            waiting = asyncio.get_running_loop().create_task(
                running.sink.deliver(batch("ended", 0, "never")), name="delivery"
            )
            await asyncio.sleep(0)
        proxy.fate = lambda: "pass"
        assert not delivery.done()
        assert not waiting.done()
        delivery.cancel()
        waiting.cancel()
        await asyncio.wait([delivery, waiting])
    assert (await keys_on(way.broker.bootstrap, "ended", 1))[0] == [b"a", b"b"]


@pytest.mark.parametrize("version", versions("4.1"))
async def test_leaders_that_are_killed_or_frozen_lose_double_and_reorder_nothing(
    real_parts: None, version: Version
) -> None:
    with KafkaCluster(3, version=version) as cluster:
        await asyncio.to_thread(
            cluster.create_topic, "t", partitions=PARTITIONS, config={"min.insync.replicas": "2"}
        )
        async with running_sink(cluster.bootstrap, HASTY) as running:
            load = Load(running, "t")

            async def goes_on() -> None:
                before = [len(each) for each in load.acked]
                await until(
                    lambda: all(
                        len(now) > then for now, then in zip(load.acked, before, strict=True)
                    ),
                    deadline_s=60.0,
                )

            async def trouble(_: Load) -> None:
                await goes_on()
                leader = await asyncio.to_thread(cluster.leader, "t", 0)
                await asyncio.to_thread(leader.kill)
                await goes_on()
                await asyncio.to_thread(leader.restart)
                leader = await asyncio.to_thread(cluster.leader, "t", 0)
                with leader.frozen():
                    await goes_on()
                await goes_on()

            await load.during(trouble)
            await until(lambda: not running.problem)
        await load.assert_once_and_in_order(cluster.bootstrap)
