"""The sink with scripted producers: what is sent again, by which session, and what is not.

Virtual time: how long a session that got an error is waited for is a matter of seconds.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import MessageSizeTooLargeError, TopicAuthorizationFailedError

from tests.support.relays import until, virtual
from watchrelay.contract.wire import Batch, Receipt, WireRecord
from watchrelay.core.errors import RecordTooLarge, SinkMisconfigured
from watchrelay.kafka.client.client_log import LogTail
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.client.producer import ProducerAborted, ProducerSession, Refused, SinkSettings
from watchrelay.kafka.client.record_batch import PackedBatch
from watchrelay.kafka.sink import KafkaSink
from watchrelay.observe.metrics import Metrics
from watchrelay.observe.status import StatusRegistry

_CONNECTION = KafkaConnection(bootstrap_servers=("nowhere:1",))


class ScriptedProducer(ProducerSession):
    """A producer whose answers the test gives. Shape: `asked` holds what waits for one, by
    partition."""

    def __init__(self) -> None:
        self.outstanding: dict[asyncio.Future[int], float] = {}
        self.asked: dict[int, asyncio.Future[int]] = {}
        self.is_aborted = self.is_draining = False
        self.idle = asyncio.Event()
        self.idle.set()
        self.tail = LogTail()

    async def append(self, partition: TopicPartition, batch: PackedBatch) -> int:
        assert not self.is_draining, "a batch for a producer that was given up"
        acked: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.outstanding[acked] = asyncio.get_running_loop().time()
        self.asked[partition.partition] = acked
        self.idle.clear()
        try:
            return await acked
        finally:
            del self.outstanding[acked]
            if not self.outstanding:
                self.idle.set()

    def refuse(self, partition: int, kind: type[Exception] = TopicAuthorizationFailedError) -> None:
        self.asked.pop(partition).set_exception(Refused(kind("t"), sent=True))

    def acknowledge(self, partition: int, offset: int) -> None:
        self.asked.pop(partition).set_result(offset)

    @property
    def needs_renewal(self) -> bool:
        return False

    def abort(self) -> None:
        self.is_aborted = True
        for acked in self.outstanding:
            if not acked.done():
                acked.set_exception(ProducerAborted())

    async def close(self) -> None:
        assert self.is_aborted


class Stage:
    """A sink, and the producers that it was given so far."""

    def __init__(self, connection: KafkaConnection = _CONNECTION) -> None:
        self.made: list[ScriptedProducer] = []
        self.connection, self.statuses = connection, StatusRegistry()
        self.attempts = 0
        self.password, self.start_s = "", 0.0
        """The one that lets a producer in, and how long it takes to be answered."""
        self.sink = KafkaSink(
            connection,
            metrics=Metrics(),
            statuses=self.statuses,
            settings=SinkSettings(finish_s=2.0),
            start=self.start,
        )

    async def start(self, connection: KafkaConnection, _settings: SinkSettings) -> ProducerSession:
        given = connection.arguments().get("sasl_plain_password", "")
        self.attempts += 1
        await asyncio.sleep(self.start_s)
        if given != self.password:
            raise SinkMisconfigured("the broker refused the credentials")
        self.made.append(ScriptedProducer())
        return self.made[-1]

    def deliver(
        self, tasks: asyncio.TaskGroup, partition: int, *, stream: str = "pods"
    ) -> asyncio.Task[Receipt]:
        return tasks.create_task(
            self.sink.deliver(Batch("t", partition, [WireRecord(b"a", b"1", [])], stream)),
            name="delivery",
        )


@asynccontextmanager
async def staged(
    connection: KafkaConnection = _CONNECTION,
) -> AsyncIterator[tuple[Stage, asyncio.TaskGroup]]:
    stage = Stage(connection)
    async with asyncio.TaskGroup() as tasks:
        sink = tasks.create_task(stage.sink.run(), name="sink")
        yield stage, tasks
        sink.cancel()


@virtual
async def test_after_an_error_other_partitions_are_answered_by_the_producer_that_has_them() -> None:
    async with staged() as (stage, tasks):
        refused, other = stage.deliver(tasks, 0), stage.deliver(tasks, 1)
        await asyncio.sleep(0.01)
        former = stage.made[0]
        former.refuse(0)
        await asyncio.sleep(1.0)
        assert not former.is_aborted
        assert list(stage.made[1].asked) == [0], "what was refused is sent again at once"
        stage.made[1].acknowledge(0, 7)
        former.acknowledge(1, 3)
        await asyncio.sleep(0.01)
        assert (refused.result(), other.result()) == (Receipt([7]), Receipt([3]))
        assert former.is_aborted, "answered for everything, it is not needed any more"


@virtual
async def test_what_has_no_answer_in_time_is_sent_again_after_the_cut() -> None:
    async with staged() as (stage, tasks):
        stage.deliver(tasks, 0), stage.deliver(tasks, 1)
        await asyncio.sleep(0.01)
        former = stage.made[0]
        former.refuse(0)
        await asyncio.sleep(1.9)
        assert (former.is_aborted, list(stage.made[1].asked)) == (False, [0])
        await asyncio.sleep(0.2)
        assert (former.is_aborted, list(stage.made[1].asked)) == (True, [0, 1])
        stage.made[1].acknowledge(0, 0)
        stage.made[1].acknowledge(1, 0)


@virtual
async def test_nothing_on_its_way_to_a_topic_that_was_lost_is_waited_for() -> None:
    lost = list[str]()
    async with staged() as (stage, tasks):
        stage.sink.open("t", "pods", lost.append, made=False)
        stage.deliver(tasks, 0)
        stage.deliver(tasks, 1)
        await asyncio.sleep(0.01)
        stage.made[0].acknowledge(0, 5)
        await asyncio.sleep(0.01)
        refused = stage.deliver(tasks, 2)
        await asyncio.sleep(0.01)
        stage.made[0].refuse(2)
        await asyncio.sleep(0.5)
        waiting = stage.deliver(tasks, 0)
        await asyncio.sleep(0.01)
        former = stage.made[0].outstanding
        assert len(former) == 1, "it was cut too early"
        stage.made[1].acknowledge(0, 0)  # below the offset that this partition had
        await asyncio.sleep(0.01)
        assert len(lost) == 1
        assert not former, "its batch would come late into the topic that is made anew"
        refused.cancel()
        waiting.cancel()
        for task in asyncio.all_tasks():
            if task.get_name() == "delivery":
                task.cancel()


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

        delivery = tasks.create_task(delivered(), name="delivery")
        await asyncio.sleep(0.01)
        stage.sink.limit("t", 200)  # another stream of the topic read it anew
        stage.made[0].refuse(0, MessageSizeTooLargeError)
        async with asyncio.timeout(1.0):
            error = await delivery
        assert (error.index, error.acked) == (2, ())


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
        async with staged(connection) as (stage, tasks):
            stage.password = file.read_text()
            await asyncio.sleep(1.0)
            assert len(stage.made) == 1
            yield stage, tasks, file


async def _fail(stage: Stage, tasks: asyncio.TaskGroup) -> None:
    """The producer in use gets an error; the batch is answered by the next one."""
    delivery = stage.deliver(tasks, 0)
    await asyncio.sleep(0.01)
    stage.made[-1].refuse(0)
    await until(lambda: bool(stage.made[-1].asked))
    stage.made[-1].acknowledge(0, 7)
    assert await delivery == Receipt([7])


@virtual
async def test_secrets_that_came_into_use_because_the_producer_failed_are_complained_of_no_more() -> (
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
        await _fail(stage, tasks)
        assert len(stage.made) == 2
        assert "kafka" not in stage.statuses.problems
        assert stage.connection.rotation.proven == 1, "tails keep clients of the former password"
        await asyncio.sleep(60.0)
        assert (len(stage.made), stage.connection.rotation.proven) == (2, 1)


@virtual
async def test_an_attempt_with_new_secrets_that_fails_after_they_came_into_use_is_no_complaint() -> (
    None
):
    async with with_a_password() as (stage, tasks, file):
        stage.start_s = 3.0
        file.write_text("the next")
        await until(lambda: stage.attempts == 2)
        stage.password, stage.start_s = "the next", 0.0
        await _fail(stage, tasks)
        stage.password = "another"
        await asyncio.sleep(20.0)
        assert (len(stage.made), dict(stage.statuses.problems)) == (2, {})


@virtual
async def test_new_secrets_that_let_a_producer_in_are_proven_once() -> None:
    async with with_a_password() as (stage, _, file):
        file.write_text("the next")
        stage.password = "the next"
        await asyncio.sleep(60.0)
        assert (
            len(stage.made),
            stage.connection.rotation.proven,
            dict(stage.statuses.problems),
        ) == (
            2,
            1,
            {},
        )
