"""The producer, and the sink on it, with a cluster whose answers the test gives, byte by byte: what
is sent again, by which connection, and what is not.

Virtual time: pauses and silences are a matter of seconds.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from aiokafka.errors import KafkaConnectionError, SaslAuthenticationFailed

from tests.support.producefake import FakeTransport, answer_frame, batch_head, produce_request
from tests.support.relays import until, virtual
from watchrelay.contract.wire import Batch, Receipt, WireRecord
from watchrelay.core.errors import RecordTooLarge
from watchrelay.kafka.client.brokers import Brokers
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.client.link import IN_FLIGHT_MAX, Link
from watchrelay.kafka.producer import ProducerSettings
from watchrelay.kafka.sink import KafkaSink
from watchrelay.observe.metrics import Metrics
from watchrelay.observe.status import StatusRegistry

TOO_LARGE, DUPLICATE, UNKNOWN_PRODUCER, INVALID_RECORD, NOT_LEADER = 10, 46, 59, 87, 6
INVALID_TIMESTAMP = 32
_CONNECTION = KafkaConnection(bootstrap_servers=("nowhere:1",))


class Cluster(Brokers):
    """One view of the cluster. Partition n is led by broker n % 2."""

    def __init__(self, stage: "Stage", connection: KafkaConnection) -> None:
        self._stage = stage
        self._password = connection.arguments().get("sasl_plain_password", "")
        self.errors = {}
        self._leaders = {}
        stage.reached += 1

    async def _ask(self, _request: object = None) -> None:
        await asyncio.sleep(self._stage.answer_s)
        if self._password != self._stage.password:
            raise SaslAuthenticationFailed("wrong password")
        if self._stage.is_away:
            raise KafkaConnectionError("no broker answers")

    async def refresh(self, topics: Collection[str]) -> None:
        await self._ask()
        self._stage.asked.append(sorted(topics))
        led = self._stage.leaders
        self._leaders |= {
            topic: {each: led.get(each, each % 2) for each in range(40)} for topic in topics
        }

    def leader(self, topic: str, partition: int) -> int | None:
        node = self._leaders.get(topic, {}).get(partition)
        return -1 if node in self._stage.down else node

    async def producer_id(self) -> tuple[int, int]:
        await self._ask()
        self._stage.producer_ids += 1
        return self._stage.producer_ids, 0

    async def open(self, node: int, link: Link) -> None:
        await self._ask()
        if node in self._stage.slow_and_closed:
            await asyncio.sleep(1.0)
            raise ConnectionRefusedError(f"broker {node} is away")
        if node in self._stage.vanished:
            raise KafkaConnectionError("it is not named any more")
        transport = FakeTransport(link)
        self._stage.links.setdefault(node, []).append(transport)
        link.adopt(transport)

    async def locate(
        self, topic: str, partition: int, start: int, producer: tuple[int, int], sequence: int
    ) -> int | None:
        await self._ask()
        return self._stage.found

    def close(self) -> None:
        """Nothing is held."""


class Stage:
    """A sink, and the connections that its producer opened so far, by broker."""

    def __init__(self, connection: KafkaConnection = _CONNECTION) -> None:
        self.links: dict[int, list[FakeTransport]] = {}
        self.connection, self.statuses, self.metrics = connection, StatusRegistry(), Metrics()
        self.reached = self.producer_ids = 0
        self.leaders: dict[int, int] = {}
        """By partition, where it is not the usual one."""
        self.slow_and_closed: set[int] = set()
        """Brokers whose connection fails after a second."""
        self.asked: list[list[str]] = []
        """The topics of each request for metadata."""
        self.down: set[int] = set()
        """Brokers that the others do not name as leaders."""
        self.vanished: set[int] = set()
        """Brokers that are named, and cannot be connected to."""
        self.found: int | None = None
        self.password, self.answer_s, self.is_away = "", 0.0, False
        """The one that is accepted, and how long a question takes."""
        self.sink = KafkaSink(
            connection,
            metrics=self.metrics,
            statuses=self.statuses,
            settings=ProducerSettings(request_timeout_s=4.0, request_bytes=1000),
            reach=lambda connection: Cluster(self, connection),
        )

    def deliver(
        self, tasks: asyncio.TaskGroup, partition: int, *, size: int = 1, stream: str = "pods"
    ) -> asyncio.Task[Receipt]:
        record = WireRecord(b"a", random.Random(partition).randbytes(size), [])
        return tasks.create_task(
            self.sink.deliver(Batch("t", partition, [record], stream)), name="delivery"
        )

    def sent(self, node: int = 0) -> list[tuple[int, list[tuple[int, bytes]]]]:
        """What left by the newest link to a broker: correlation id, batches by partition."""
        requests = [produce_request(each) for each in self.links[node][-1].written]
        return [
            (number, [(partition, data) for _, partition, data in batches])
            for number, batches in requests
        ]

    def answer(self, code: int = 0, offset: int = 0, *, node: int = 0, at: int = -1) -> None:
        """Answer a request of the newest link."""
        number, batches = self.sent(node)[at]
        self.links[node][-1].receive(
            answer_frame(number, [("t", partition, code, offset) for partition, _ in batches])
        )

    def rebuilds(self, reason: str) -> float:
        return (
            self.metrics.registry.get_sample_value(
                "watchrelay_producer_rebuilds_total", {"reason": reason}
            )
            or 0.0
        )


@asynccontextmanager
async def staged(
    connection: KafkaConnection = _CONNECTION, *, password: str = ""
) -> AsyncIterator[tuple[Stage, asyncio.TaskGroup]]:
    stage = Stage(connection)
    stage.password = password
    async with asyncio.TaskGroup() as tasks:
        sink = tasks.create_task(stage.sink.run(), name="sink")
        await asyncio.sleep(0.01)
        yield stage, tasks
        sink.cancel()
        await asyncio.wait([sink])
        for task in asyncio.all_tasks():
            if task.get_name() == "delivery":
                task.cancel()


@virtual
async def test_what_is_delivered_in_one_step_leaves_in_one_request_per_broker() -> None:
    async with staged() as (stage, tasks):
        receipts = [stage.deliver(tasks, partition) for partition in range(4)]
        await asyncio.sleep(0.1)
        stage.answer(offset=3)
        stage.answer(offset=5, node=1)
        for partition in range(4):
            stage.deliver(tasks, partition)
        await asyncio.sleep(0.1)
        assert [[place for place, _ in each] for _, each in stage.sent()][-1] == [0, 2]
        assert [[place for place, _ in each] for _, each in stage.sent(1)][-1] == [1, 3]
        assert [(await each).offsets for each in receipts] == [[3], [5], [3], [5]]


@virtual
async def test_a_request_is_split_at_its_bound_and_at_most_five_wait_for_answers() -> None:
    async with staged() as (stage, tasks):
        warm = stage.deliver(tasks, 0)
        await asyncio.sleep(0.1)
        stage.answer()
        await warm
        for partition in range(0, 32, 2):
            stage.deliver(tasks, partition, size=600)
        stage.deliver(tasks, 0, stream="other")
        await asyncio.sleep(0.1)
        carried = [[place for place, _ in each] for _, each in stage.sent()[1:]]
        assert carried == [[0, 2], [4, 6], [8, 10], [12, 14], [16, 18]], "a batch of each partition"
        assert len(carried) == IN_FLIGHT_MAX
        stage.answer(at=1)
        await asyncio.sleep(0.1)
        assert [place for place, _ in stage.sent()[-1][1]] == [20, 22]


@virtual
async def test_the_same_bytes_leave_again_after_a_lost_link() -> None:
    async with staged() as (stage, tasks):
        delivery = stage.deliver(tasks, 0)
        await asyncio.sleep(0.1)
        ((_, first),) = stage.sent()
        stage.links[0][-1].lose()
        await asyncio.sleep(1.0)
        assert len(stage.links[0]) == 2
        ((_, again),) = stage.sent()
        assert again == first
        stage.answer(offset=7)
        assert await delivery == Receipt([7])


@virtual
async def test_while_it_is_held_nothing_is_written_and_then_what_waited() -> None:
    async with staged() as (stage, tasks):
        warm = stage.deliver(tasks, 0)
        await asyncio.sleep(0.1)
        stage.answer()
        await warm
        doubts = [True]
        stage.sink.hold_while(lambda: doubts[0])
        delivery = stage.deliver(tasks, 0)
        await asyncio.sleep(60.0)
        assert len(stage.sent()) == 1
        doubts[0] = False
        stage.sink.resume()
        stage.answer(offset=7)
        assert await delivery == Receipt([7])


@virtual
async def test_what_is_withdrawn_while_it_is_held_never_leaves() -> None:
    async with staged() as (stage, tasks):
        warm = stage.deliver(tasks, 0)
        await asyncio.sleep(0.1)
        stage.answer()
        await warm
        stage.sink.hold_while(lambda: True)
        delivery, kept = stage.deliver(tasks, 0), stage.deliver(tasks, 2)
        await asyncio.sleep(0.1)
        delivery.cancel()
        await asyncio.wait((delivery,))
        stage.sink.hold_while(lambda: False)
        stage.sink.resume()
        assert [place for place, _ in stage.sent()[-1][1]] == [2]
        stage.answer(offset=8)
        assert await kept == Receipt([8])


@virtual
async def test_a_reset_ends_the_connections_and_the_same_bytes_leave_once_nothing_is_held() -> None:
    async with staged() as (stage, tasks):
        delivery = stage.deliver(tasks, 0)
        await asyncio.sleep(0.1)
        ((_, first),) = stage.sent()
        stage.sink.hold_while(lambda: True)
        stage.sink.reset()
        assert stage.links[0][0].is_closing()
        await asyncio.sleep(10.0)
        assert not stage.links[0][-1].written
        stage.sink.hold_while(lambda: False)
        stage.sink.resume()
        ((_, again),) = stage.sent()
        assert again == first
        stage.answer(offset=9)
        assert await delivery == Receipt([9])


@virtual
async def test_an_answer_that_names_a_partition_twice_is_none_and_the_batch_is_sent_again() -> None:
    async with staged() as (stage, tasks):
        delivery = stage.deliver(tasks, 0)
        await asyncio.sleep(0.1)
        number, ((_, data),) = stage.sent()[-1]
        stage.links[0][-1].receive(answer_frame(number, [("t", 0, 0, 5), ("t", 0, 0, 6)]))
        assert stage.links[0][-1].is_closing()
        await asyncio.sleep(1.0)
        assert not delivery.done(), "neither of the two is believed"
        assert stage.sent()[-1][1] == [(0, data)]
        stage.answer(offset=5)
        assert await delivery == Receipt([5])


@virtual
async def test_a_partition_without_a_leader_holds_up_none_that_is_met_later() -> None:
    async with staged() as (stage, tasks):
        stage.down = {0}
        stuck = stage.deliver(tasks, 0)
        await asyncio.sleep(30.0)
        other = stage.deliver(tasks, 1)
        await asyncio.sleep(0.1)
        stage.answer(offset=3, node=1)
        assert await other == Receipt([3])
        assert not stuck.done()
        stage.down = set()
        await asyncio.sleep(1.5)
        stage.answer(offset=4)
        assert await stuck == Receipt([4])


@virtual
async def test_only_the_topics_of_partitions_that_wait_are_asked_about() -> None:
    async with staged() as (stage, tasks):
        first = stage.deliver(tasks, 0)
        await asyncio.sleep(0.1)
        stage.answer(offset=1)
        await first
        del stage.asked[:]
        record = WireRecord(b"a", b"1", [])
        for topic in ("u", "v"):
            tasks.create_task(
                stage.sink.deliver(Batch(topic, 1, [record], "pods")), name="delivery"
            )
        await asyncio.sleep(0.1)
        assert stage.asked == [["u", "v"]]


@virtual
async def test_a_broker_that_is_named_and_not_there_is_waited_for() -> None:
    async with staged() as (stage, tasks):
        stage.vanished = {0}
        delivery = stage.deliver(tasks, 0)
        await asyncio.sleep(5.0)
        assert "not usable" in stage.statuses.problems["kafka"]
        assert stage.rebuilds("watchdog") == 0, "the others answer"
        stage.vanished = set()
        await asyncio.sleep(1.5)
        stage.answer(offset=1)
        assert await delivery == Receipt([1])
        assert "kafka" not in stage.statuses.problems


@virtual
async def test_a_topic_that_is_lost_while_a_batch_is_looked_for_ends_nothing_else() -> None:
    async with staged() as (stage, tasks):
        stage.sink.open("t", "pods", lambda _why: None, made=False)
        stage.deliver(tasks, 0)
        await asyncio.sleep(0.1)
        stage.answer_s = 5.0
        stage.answer(DUPLICATE, -1)
        await asyncio.sleep(1.0)
        stage.sink.close("t", "pods")
        await asyncio.sleep(20.0)
        stage.answer_s = 0.0
        other = stage.deliver(tasks, 1)
        await asyncio.sleep(0.1)
        stage.answer(offset=8, node=1)
        assert await other == Receipt([8])


@virtual
async def test_a_broker_that_throttles_is_not_taken_for_silent() -> None:
    async with staged() as (stage, tasks):
        first = stage.deliver(tasks, 0)
        await asyncio.sleep(0.1)
        frame = bytearray(answer_frame(stage.sent()[-1][0], [("t", 0, 0, 1)]))
        frame[-4:] = (30_000).to_bytes(4, "big")
        stage.links[0][-1].receive(bytes(frame))
        await first
        delivery = stage.deliver(tasks, 0)
        await asyncio.sleep(29.0)
        assert not stage.links[0][0].is_closing()
        assert len(stage.links[0]) == 1
        stage.answer(offset=2)
        assert await delivery == Receipt([2])


@virtual
async def test_a_stream_that_starts_again_writes_under_an_identity_without_sequences() -> None:
    async with staged() as (stage, tasks):
        heads = []
        for _ in range(2):
            stage.sink.open("t", "pods", lambda _why: None, made=False)
            delivery = stage.deliver(tasks, 0)
            await asyncio.sleep(1.0)
            ((_, data),) = stage.sent()[-1][1]
            heads.append(batch_head(data))
            stage.answer(offset=len(heads))
            await delivery
            stage.sink.close("t", "pods")
        (first, _, *sequences), (second, _, *again) = heads
        assert sequences == again, "the broker would take it for a repetition"
        assert first != second
        assert stage.rebuilds("identity") == 0, "nothing can be in the log twice"


@virtual
async def test_a_broker_that_is_silent_is_left_after_the_request_timeout() -> None:
    async with staged() as (stage, tasks):
        delivery = stage.deliver(tasks, 0)
        await asyncio.sleep(4.9)
        assert not stage.links[0][0].is_closing()
        await asyncio.sleep(2.5)
        assert stage.links[0][0].is_closing()
        assert stage.rebuilds("watchdog") == 1
        stage.answer(offset=1)
        assert await delivery == Receipt([1])


@pytest.mark.parametrize(
    "frame",
    [
        b"\0\0\0\0",
        b"\0\0\0\x04what",
        b"\xff\xff\xff\xff",
        b"\x7f\xff\xff\xff",
        answer_frame(99, [("t", 0, 0, 0)]),
        answer_frame(1, []),
        answer_frame(1, [("t", 0, 0, 0), ("t", 2, 0, 0)]),
    ],
)
def test_an_answer_that_is_none_ends_the_link_and_nothing_is_lost(frame: bytes) -> None:
    @virtual
    async def nonsense() -> None:
        async with staged() as (stage, tasks):
            delivery = stage.deliver(tasks, 0)
            await asyncio.sleep(0.1)
            stage.links[0][-1].receive(frame)
            assert stage.links[0][-1].is_closing()
            await asyncio.sleep(1.0)
            stage.answer(offset=2)
            assert await delivery == Receipt([2])

    nonsense()


@virtual
async def test_an_answer_in_pieces_is_put_together() -> None:
    async with staged() as (stage, tasks):
        delivery = stage.deliver(tasks, 0)
        await asyncio.sleep(0.1)
        frame = answer_frame(stage.sent()[0][0], [("t", 0, 0, 9)])
        for byte in frame:
            stage.links[0][-1].receive(bytes([byte]))
        assert await delivery == Receipt([9])


@virtual
async def test_a_broker_that_is_away_holds_up_no_partition_of_another() -> None:
    async with staged() as (stage, tasks):
        one, other = stage.deliver(tasks, 0), stage.deliver(tasks, 1)
        await asyncio.sleep(0.1)
        stage.links[0][-1].lose()
        stage.answer(offset=1, node=1)
        assert await other == Receipt([1])
        more = stage.deliver(tasks, 1)
        await asyncio.sleep(0.01)
        stage.answer(offset=2, node=1)
        assert await more == Receipt([2])
        assert not one.done()


@virtual
async def test_a_broker_that_nobody_needs_any_more_is_no_trouble() -> None:
    async with staged() as (stage, tasks):
        first = stage.deliver(tasks, 0)
        await until(lambda: bool(stage.links) and len(stage.sent()) == 1)
        stage.answer()
        await first
        stage.slow_and_closed = {1}
        moved = stage.deliver(tasks, 1)
        await asyncio.sleep(0.01)  # its connection is being opened
        stage.leaders[1] = 0
        await until(lambda: len(stage.sent()) == 2)
        stage.answer()
        await moved
        await asyncio.sleep(2.0)
        assert stage.sink.trouble == ""


@virtual
async def test_an_identity_that_is_not_accepted_is_replaced_for_its_partition_alone() -> None:
    async with staged() as (stage, tasks):
        for partition in (0, 2):
            stage.deliver(tasks, partition)
        await asyncio.sleep(0.1)
        number, _ = stage.sent()[-1]
        stage.links[0][-1].receive(
            answer_frame(number, [("t", 0, UNKNOWN_PRODUCER, -1), ("t", 2, 0, 4)])
        )
        await asyncio.sleep(1.0)
        ((_, data),) = stage.sent()[-1][1]
        assert batch_head(data)[:3] == (2, 0, 0)
        stage.answer(offset=5)
        stage.deliver(tasks, 2)
        await asyncio.sleep(0.1)
        ((_, data),) = stage.sent()[-1][1]
        assert batch_head(data)[:3] == (1, 0, 1)
        assert stage.rebuilds("identity") == 1


@pytest.mark.parametrize("code", [UNKNOWN_PRODUCER, INVALID_RECORD])
def test_records_that_may_be_there_twice_are_counted_and_named(
    code: int, caplog: pytest.LogCaptureFixture
) -> None:
    @virtual
    async def doubtful() -> None:
        async with staged() as (stage, tasks):
            stage.deliver(tasks, 0)
            await asyncio.sleep(0.1)
            stage.links[0][-1].lose()
            await asyncio.sleep(1.0)
            stage.answer(code, -1)
            await asyncio.sleep(1.0)
            assert stage.rebuilds("identity") == 1

    doubtful()
    (line,) = (each for each in caplog.records if "twice" in each.getMessage())
    assert (line.__dict__["topic"], line.__dict__["partition"]) == ("t", 0)


@virtual
async def test_after_the_cut_no_byte_leaves_and_nobody_is_answered() -> None:
    async with staged() as (stage, tasks):
        delivery = stage.deliver(tasks, 0)
        await asyncio.sleep(0.1)
        link = stage.links[0][-1]
        stage.sink._producer.cut()
        assert link.is_closing(), "and it refuses what is written to it"
        late = stage.deliver(tasks, 2)
        await asyncio.sleep(60.0)
        assert len(stage.links[0]) == 1
        assert not delivery.done()
        assert not late.done()


@virtual
async def test_nothing_on_its_way_to_a_topic_that_was_lost_is_waited_for() -> None:
    lost = list[str]()
    async with staged() as (stage, tasks):
        stage.sink.open("t", "pods", lost.append, made=False)
        first = stage.deliver(tasks, 0)
        await asyncio.sleep(0.1)
        stage.answer(offset=5)
        await first
        stage.deliver(tasks, 0)
        await asyncio.sleep(0.01)
        stage.deliver(tasks, 2)
        await asyncio.sleep(0.01)
        former = stage.links[0][-1]
        stage.answer(offset=0, at=-2)  # below the offset that this partition had
        await asyncio.sleep(0.01)
        assert len(lost) == 1
        assert former.is_closing(), "a batch on it would come late into the topic that is made next"
        await asyncio.sleep(30.0)
        assert len(stage.links[0]) == 1, "nothing is sent again"


@virtual
async def test_a_limit_that_is_lowered_while_a_batch_is_on_its_way_names_the_record_and_skips_none() -> (
    None
):
    records = [WireRecord(b"a", value, []) for value in (b"1", b"2", bytes(range(256)) * 4, b"4")]
    async with staged() as (stage, tasks):

        async def delivered() -> RecordTooLarge:
            with pytest.raises(RecordTooLarge) as caught:
                await stage.sink.deliver(Batch("t", 0, records, "pods"))
            return caught.value

        delivery = tasks.create_task(delivered(), name="too large")
        await asyncio.sleep(0.1)
        stage.sink.limit("t", 200)  # another stream of the topic read it
        stage.answer(TOO_LARGE, -1)
        async with asyncio.timeout(1.0):
            error = await delivery
        assert (error.index, error.acked) == (2, ())


# ---- one batch of several streams ----------------------------------------------------------------


def several(*values: bytes, stream: str) -> Batch:
    return Batch("t", 0, [WireRecord(b"a", value, []) for value in values], stream)


def deliver(stage: Stage, tasks: asyncio.TaskGroup, batch: Batch) -> asyncio.Task[Receipt]:
    return tasks.create_task(stage.sink.deliver(batch), name="delivery")


@virtual
async def test_what_streams_deliver_to_a_partition_while_a_batch_is_on_its_way_is_one_batch() -> (
    None
):
    async with staged() as (stage, tasks):
        first = deliver(stage, tasks, several(b"1", stream="first"))
        await asyncio.sleep(0.1)
        later = [
            deliver(stage, tasks, several(b"1", b"2", stream=stream)) for stream in ("x", "y", "z")
        ]
        await asyncio.sleep(0.1)
        stage.answer(offset=7)
        await asyncio.sleep(0.1)
        assert await first == Receipt([7])
        ((_, data),) = stage.sent()[-1][1]
        assert (len(stage.sent()), batch_head(data)[3]) == (2, 6)
        stage.answer(offset=20)
        assert [(await each).offsets for each in later] == [[20, 21], [22, 23], [24, 25]]


@virtual
async def test_a_record_that_is_too_large_holds_up_its_own_stream_alone() -> None:
    noise = random.Random(0).randbytes(500)
    async with staged() as (stage, _):
        stage.sink.limit("t", 300)
        answers = list[Receipt | Exception]()
        stage.sink.send(several(b"1", stream="before"), answers.append)
        stage.sink.send(several(b"1", noise, stream="large"), answers.append)
        stage.sink.send(several(b"1", stream="behind"), answers.append)
        await asyncio.sleep(0.1)
        stage.answer(offset=3)
        error, *others = answers
        assert isinstance(error, RecordTooLarge)
        assert (error.index, error.acked) == (1, ())
        assert others == [Receipt([3]), Receipt([4])]


@virtual
async def test_where_kafka_finds_a_record_too_large_each_stream_gets_the_offsets_of_its_own() -> (
    None
):
    async with staged() as (stage, _):
        answers = list[Receipt | Exception]()
        stage.sink.send(several(b"1", b"2", stream="x"), answers.append)
        stage.sink.send(several(b"3", b"4", stream="y"), answers.append)
        stage.sink.send(several(b"5", stream="z"), answers.append)
        await asyncio.sleep(0.1)
        # five records; the halves are two, and three: of these one, and two
        for code, offset in ((TOO_LARGE, -1), (0, 0), (TOO_LARGE, -1), (TOO_LARGE, -1)):
            stage.answer(code, offset)
            await asyncio.sleep(0.1)
        stage.answer(0, 2)
        await asyncio.sleep(0.1)
        first, error, last = answers
        assert (first, last) == (Receipt([0, 1]), Receipt([2]))
        assert isinstance(error, RecordTooLarge)
        assert (error.index, error.acked) == (0, ())


@virtual
async def test_a_stream_that_withdraws_its_batch_takes_that_of_no_other_with_it() -> None:
    async with staged() as (stage, _):
        answers = list[Receipt | Exception]()
        packed = stage.sink.send(several(b"1", stream="x"), answers.append)
        stage.sink.send(several(b"2", stream="y"), answers.append)
        await asyncio.sleep(0.1)
        waiting = stage.sink.send(several(b"3", stream="z"), answers.append)
        stage.sink.withdraw(packed)
        stage.sink.withdraw(waiting)
        stage.answer(offset=4)
        await asyncio.sleep(0.1)
        assert (answers, len(stage.sent())) == ([Receipt([5])], 1)


@virtual
async def test_what_others_packed_with_a_batch_that_is_withdrawn_unsent_leaves_without_it() -> None:
    async with staged() as (stage, _):
        answers = list[Receipt | Exception]()
        stage.sink.send(several(b"1", stream="x"), answers.append)
        await asyncio.sleep(0.1)
        stage.answer(offset=4)
        stage.sink.hold_while(lambda: True)
        stage.sink.send(several(b"2", stream="x"), answers.append)
        withdrawn = stage.sink.send(several(b"3", stream="y"), answers.append)
        stage.sink.send(several(b"4", stream="z"), answers.append)
        await asyncio.sleep(0.1)
        stage.sink.withdraw(withdrawn)
        stage.sink.hold_while(lambda: False)
        await asyncio.sleep(0.1)
        stage.sink.resume()
        await asyncio.sleep(0.1)
        ((_, data),) = stage.sent()[-1][1]
        assert batch_head(data)[3] == 2, "records"
        stage.answer(offset=5)
        await asyncio.sleep(0.1)
        assert answers == [Receipt([4]), Receipt([5]), Receipt([6])]


# ---- secrets that are replaced -------------------------------------------------------------------


@asynccontextmanager
async def with_a_password() -> AsyncIterator[tuple[Stage, asyncio.TaskGroup, Path]]:
    """A sink that runs with the password in a file, which is the right one."""
    with TemporaryDirectory() as directory:
        file = Path(directory) / "password"
        file.write_text("former")
        connection = KafkaConnection(
            bootstrap_servers=("nowhere:1",),
            protocol="SASL_PLAINTEXT",
            mechanism="PLAIN",
            username="relay",
            password_file=str(file),
        )
        async with staged(connection, password="former") as (stage, tasks):
            await asyncio.sleep(1.0)
            assert stage.reached == 1
            yield stage, tasks, file


@virtual
async def test_new_secrets_are_proven_before_batches_leave_by_new_links_and_nothing_is_cut() -> (
    None
):
    async with with_a_password() as (stage, tasks, file):
        first = stage.deliver(tasks, 0)
        await asyncio.sleep(0.1)
        stage.answer(offset=2)
        await first
        file.write_text("the next")
        stage.password = "the next"
        await asyncio.sleep(7.5)
        held = stage.deliver(tasks, 0)
        await asyncio.sleep(2.5)
        assert stage.rebuilds("credentials") == 1
        former = stage.links[0][0]
        assert not former.is_closing(), "it is answered first"
        number, _ = produce_request(former.written[1])
        former.receive(answer_frame(number, [("t", 0, 0, 3)]))
        assert await held == Receipt([3])
        more = stage.deliver(tasks, 0)
        await asyncio.sleep(3.0)
        assert former.is_closing()
        ((_, batches),) = stage.sent()
        assert batch_head(batches[0][1])[:3] == (1, 0, 2), "the identity and its sequence go on"
        stage.answer(offset=4)
        assert await more == Receipt([4])
        assert (stage.connection.rotation.proven, dict(stage.statuses.problems)) == (1, {})


@virtual
async def test_secrets_that_came_into_use_because_the_brokers_went_are_complained_of_no_more() -> (
    None
):
    async with with_a_password() as (stage, tasks, file):
        file.write_text("the next")
        await asyncio.sleep(15.0)
        assert (
            "changed and are not usable; keeping the previous ones"
            in stage.statuses.problems["kafka"]
        )
        stage.password = "the next"
        delivery = stage.deliver(tasks, 0)
        await until(lambda: bool(stage.links.get(0)) and bool(stage.links[0][-1].written))
        stage.answer(offset=7)
        assert await delivery == Receipt([7])
        assert "kafka" not in stage.statuses.problems
        assert stage.connection.rotation.proven == 1, "tails keep clients of the former password"
        await asyncio.sleep(60.0)
        assert stage.connection.rotation.proven == 1


def test_an_attempt_with_new_secrets_that_fails_after_they_came_into_use_is_no_complaint(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @virtual
    async def overtaken() -> None:
        async with with_a_password() as (stage, tasks, file):
            file.write_text("the next")
            stage.password, stage.answer_s = "the next", 3.0
            await until(lambda: stage.reached == 2)
            await asyncio.sleep(0.1)
            stage.answer_s, stage.is_away = 0.0, True
            delivery = stage.deliver(tasks, 0)  # so the former brokers are left
            await asyncio.sleep(6.0)
            assert "no broker answers" in stage.statuses.problems["kafka"]
            stage.is_away = False
            await until(lambda: stage.connection.rotation.proven == 1)
            await asyncio.sleep(1.0)
            stage.answer(offset=1)
            assert await delivery == Receipt([1])
            assert "kafka" not in stage.statuses.problems

    overtaken()
    assert "new kafka secrets are not usable" not in caplog.text


@virtual
async def test_the_leader_of_each_topic_that_moved_is_looked_up() -> None:
    async with staged() as (stage, tasks):
        batches = [Batch(topic, 0, [WireRecord(b"a", b"1", [])], topic) for topic in ("t", "u")]
        deliveries = [
            tasks.create_task(stage.sink.deliver(batch), name="delivery") for batch in batches
        ]
        await asyncio.sleep(0.1)
        stage.leaders[0] = 1
        requests = [produce_request(each) for each in stage.links[0][-1].written]
        for number, carried in requests:
            places = [(topic, partition, NOT_LEADER, -1) for topic, partition, _ in carried]
            stage.links[0][-1].receive(answer_frame(number, places))
        await asyncio.sleep(3.0)
        assert len(stage.links[0][-1].written) == len(requests), "nothing goes to the former leader"
        for each in stage.links[1][-1].written:
            number, carried = produce_request(each)
            places = [(topic, partition, 0, 7) for topic, partition, _ in carried]
            stage.links[1][-1].receive(answer_frame(number, places))
        assert [(await delivery).offsets for delivery in deliveries] == [[7], [7]]


@virtual
async def test_a_batch_that_was_refused_is_packed_again_with_a_time_of_then() -> None:
    async with staged() as (stage, tasks):
        first = stage.deliver(tasks, 0)
        await asyncio.sleep(0.1)
        stage.answer(INVALID_TIMESTAMP, -1)
        second = stage.deliver(tasks, 0, stream="other")
        await until(lambda: len(stage.sent()) == 2)
        stage.answer(offset=7)
        assert [(await each).offsets for each in (first, second)] == [[7], [8]], "one new batch"


@virtual
async def test_what_was_written_is_forgotten_once_nobody_writes_the_topic() -> None:
    async with staged() as (stage, tasks):
        stage.sink.open("t", "pods", lambda _why: None, made=False)
        delivery = stage.deliver(tasks, 0)
        await asyncio.sleep(0.1)
        stage.answer(offset=0)
        await delivery
        assert stage.sink.ranges_of_others("t", 0, 0, 2) == [(1, 2)]
        stage.sink.close("t", "pods")
        assert stage.sink.ranges_of_others("t", 0, 0, 2) == [(0, 2)], "it may be recreated"
