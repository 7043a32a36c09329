"""Streams whose topics hold something, not all of which may be read: which of them go on, and what
their rows say."""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.fakesink import FakeControl, FakeSink
from tests.support.relays import spec_of, until, virtual
from tests.support.sharingreplica import Replica
from tests.support.sharingreplica import running as sharing_replica
from tests.support.sinkparts import QUICK, batch, running_sink
from tests.support.stream_log import PODS, Log, Writer
from tests.support.troubles import trouble
from tests.unit.daemon.conftest import settings_of
from watchrelay.contract.records import Foreign, LogRecord, Marker, encoder_for
from watchrelay.contract.wire import Batch, Receipt, WireRecord
from watchrelay.core import clock
from watchrelay.core.errors import Fenced, SinkForbidden, SinkUnavailable
from watchrelay.daemon.context import ApiServer, DaemonContext, Reads
from watchrelay.daemon.recovery import LogReader
from watchrelay.daemon.snapshot_requests import SnapshotRequests
from watchrelay.daemon.stream_runner import StreamRunner
from watchrelay.demo.kafka import EmbeddedKafka
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.client.metadata import NO_ID
from watchrelay.kafka.log_follower import FollowedLog
from watchrelay.kafka.range_reader import OffsetRange, RangeReader
from watchrelay.kafka.topic_config import TopicFacts, TopicSpec
from watchrelay.kafka.topic_reads import READS_AT_ONCE
from watchrelay.kafka.topic_risks import TopicRisks
from watchrelay.model.frames import Frame, ListQuery, Page, WatchQuery
from watchrelay.model.resources import Selection
from watchrelay.observe.metrics import Metrics
from watchrelay.observe.overview import judge
from watchrelay.observe.status import RECOVERED, Readiness, StatusRegistry, StreamStatus
from watchrelay.plan.streams import plan_streams
from watchrelay.publish.timing import HeartbeatInterval
from watchrelay.replicas.ownership import Copy, Sole, Tenure
from watchrelay.watch.admission import Admission

NO_READ = (
    "kafka at b:1 is not usable: Not authorized to read from topic t (grant READ on it or "
    "its prefix)"
)


@dataclass(frozen=True, kw_only=True)
class Refusing(KafkaConnection):
    """A way to Kafka on which the first consumers are refused, by default all of them.
    `asked` has an item per consumer."""

    bootstrap_servers: tuple[str, ...] = ("b:1",)
    refusals: float = math.inf
    asked: list[None] = field(default_factory=list)

    def arguments(self) -> dict[str, Any]:
        self.asked.append(None)
        if len(self.asked) <= self.refusals:
            raise SinkForbidden(NO_READ)
        return super().arguments()


class Sink(FakeSink):
    """What a stream asks of the sink; each `deliver` raises `failure` once that is set."""

    failure: Exception | None = None

    async def deliver(self, batch: Batch) -> Receipt:
        if self.failure is not None:
            raise self.failure
        return await super().deliver(batch)

    def set_limit(self, topic: str, message_bytes: int, bounded_by: str) -> None:
        pass

    def open(
        self,
        topic: str,
        stream: str,
        lost: Callable[[str], None],
        *,
        made: bool,
        topic_id: bytes = NO_ID,
    ) -> bool:
        return False

    def close(self, topic: str, stream: str, *, taken_over: bool = False) -> None:
        pass

    async def end_offset(self, topic: str, partition: int, *, committed: bool) -> int:
        return len(self.log(topic, partition))

    def unacknowledged_ranges(
        self, topic: str, partition: int, start: int, stop: int
    ) -> list[tuple[int, int]]:
        return [(start, stop)]


class Control(FakeControl):
    """A control topic that is read, and tells of each stream its topic alone."""

    holder = "me"

    @property
    def taken(self) -> int:
        """As many records as claims."""
        return self.epoch

    async def caught_up(self) -> None:
        pass

    def described(self, stream: str) -> dict[str, object]:
        return {"topic": f"t-{stream}"}

    def described_streams(self) -> dict[str, dict[str, object]]:
        return {}


class Topics:
    """All topics are there."""

    def expect(
        self, topic: str, specs: Callable[[], Iterable[TopicSpec]], *, version: object
    ) -> None:
        """Topics of one shape need no comparison."""

    async def ensure_topic(self, spec: TopicSpec) -> TopicFacts:
        return TopicFacts(spec.name, spec.partitions, 1, 1 << 20, checked=True, created=False)


class Empty:
    """An API server that holds no objects."""

    async def list_page(self, selection: Selection, query: ListQuery, *, stream: str) -> Page:
        return Page("5", None, [])

    @asynccontextmanager
    async def watch(
        self,
        selection: Selection,
        query: WatchQuery,
        *,
        stream: str,
        take: Callable[[list[Frame]], bool],
    ) -> AsyncIterator[AsyncIterator[list[Frame]]]:
        yield _silence()


async def _silence() -> AsyncIterator[list[Frame]]:
    await asyncio.get_running_loop().create_future()
    yield []


class Follower:
    """Nothing is read that could be followed."""

    def unfollow(self, log: FollowedLog) -> None:
        pass


class Process:
    """The streams `names` of one process, all of pods, each on a topic of its own. Those of
    `former` hold a record already."""

    def __init__(
        self, names: Sequence[str], former: Sequence[str], connection: KafkaConnection
    ) -> None:
        entries = [
            {"resource": "pods", "id": name, "topic": f"t-{name}", "initialList": "paged"}
            for name in names
        ]
        settings = settings_of(entries)
        sink, control = Sink(), Control()
        for name in former:
            sink.log(f"t-{name}", 0).append(WireRecord(b"a", b"1", []))
        self.statuses, metrics = StatusRegistry(), Metrics()
        self.context = DaemonContext(
            settings,
            metrics,
            self.statuses,
            ApiServer(cast("Any", Empty()), Admission()),
            Reads(connection, settings.cluster, random.Random()),
            cast("Any", sink),
            cast("Any", control),
            cast("Any", Topics()),
            TopicRisks("nowhere:1", metrics=metrics, statuses=self.statuses),
            SnapshotRequests(control=cast("Any", control)),
            HeartbeatInterval(10.0),
            Sole(cast("Any", control)),
        )
        self.context.control_made.set()
        planned = [
            each
            for entry in settings.resources
            for each in plan_streams(settings, entry, PODS, prefixed=False)
        ]
        self.runners = [StreamRunner(each, self.context) for each in planned]

    async def share(self, replica: Replica) -> None:
        """Be this replica, whose control topic describes the stream pods."""
        await replica.described(topic="t-pods")
        self.context.ownership, self.context.control = replica.sharing, replica.topic.control
        self.context.reads.follower = cast("Any", Follower())

    @asynccontextmanager
    async def running(self) -> AsyncIterator[dict[str, StreamStatus]]:
        """The rows of the statuses; inside the block the streams run, and then end."""
        async with asyncio.TaskGroup() as tasks:
            lives = [
                tasks.create_task(runner.run(), name=runner.spec.id) for runner in self.runners
            ]
            yield self.statuses.streams
            for runner in self.runners:
                runner.stop(deadline_s=clock.now_s() + 1.0)
            await asyncio.wait(lives)


@virtual
async def test_streams_that_may_not_be_read_wait_for_that_right_and_hold_up_no_other() -> None:
    refused, others = [f"refused-{number}" for number in range(READS_AT_ONCE)], ["new-1", "new-2"]
    process = Process([*refused, *others], refused, Refusing())
    async with process.running() as rows:
        await until(lambda: all(rows[name].complete for name in others))
        await until(lambda: all(rows[name].waits_for for name in refused))
        assert {(rows[name].state, rows[name].waits_for) for name in refused} == {
            ("resuming", NO_READ)
        }
        ready, body = Readiness(process.statuses, started=True).check()
        assert ready
        assert cast("Any", body["streams"])["refused-0"] == {"state": "resuming", "reason": NO_READ}


@virtual
async def test_what_a_standby_could_not_read_is_over_once_another_replica_is_to_follow() -> None:
    process = Process(["pods"], ["pods"], Refusing())
    async with sharing_replica() as replica:
        await process.share(replica)
        async with process.running() as rows:
            replica.group.give({}, "other", warm=("pods",))
            await until(lambda: rows["pods"].waits_for == NO_READ)
            replica.group.give({}, "other")
            await until(lambda: not rows["pods"].waits_for)
            assert judge(rows["pods"], 0).level == "standby"


@virtual
async def test_an_error_as_a_newer_claim_is_read_is_reported_and_the_stream_is_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    process = Process(["pods"], [], Refusing())
    sink, metrics = cast("Sink", process.context.sink), process.context.metrics
    async with sharing_replica() as replica:
        await process.share(replica)
        async with process.running() as rows:
            replica.group.give({"pods": ""}, "other")
            await until(lambda: rows["pods"].complete)
            sink.failure = IndexError("odd input")
            await replica.claimed_by("other")
            await until(lambda: rows["pods"].state == "standby")
            (logged,) = (each for each in caplog.records if each.levelname == "ERROR")
            assert logged.message == "stream restarts after an unexpected error"
            counted = metrics.counter("stream_failures").labels("pods")
            assert counted._value.get() == 1.0
            assert not replica.sharing.may_claim("pods"), "under a newer assignment only"
            assert rows["pods"].last_error is None


class Logged(logging.Handler):
    """Calls `then` as `message` is logged."""

    def __init__(self, message: str, then: Callable[[], None]) -> None:
        super().__init__()
        self._message, self._then = message, then

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage() == self._message:
            self._then()


@virtual
async def test_a_stream_whose_writer_fails_as_it_is_ended_is_a_standby_afterwards(
    caplog: pytest.LogCaptureFixture,
) -> None:
    process = Process(["pods"], [], Refusing())
    async with sharing_replica() as replica:

        def a_heartbeat_is_due_in_doubt() -> None:
            replica.group.doubtful = True
            process.context.heartbeat_interval.change(11.0)

        logger = logging.getLogger("watchrelay.daemon.stream_runner")
        handler = Logged("stream handed over", a_heartbeat_is_due_in_doubt)
        logger.addHandler(handler)
        caplog.set_level(logging.INFO)
        await process.share(replica)
        async with process.running() as rows:
            replica.group.give({"pods": ""}, "other")
            await until(lambda: rows["pods"].complete)
            replica.group.give({}, "other")
            await replica.claimed_by("other")
            await until(lambda: replica.group.doubtful)
            await until(lambda: rows["pods"].state != "watching")
            logger.removeHandler(handler)
            await until(lambda: rows["pods"].state == "standby")


class Outclaimed(Tenure):
    """Of a stream that another relay has claimed once `outclaimed` is set."""

    def __init__(self, process: Process) -> None:
        super().__init__("pods", process.context.control)
        self.outclaimed = asyncio.Event()
        self.joins, self.lost = 0, False
        process.context.ownership = cast("Any", SimpleNamespace(tenure=lambda *_: self))

    @property
    def ends_by_claim(self) -> bool:
        return True

    @property
    def over(self) -> bool:
        return self.lost

    async def assigned(self, _copy: Copy, _show_standby: Callable[[], None], /) -> bool:
        self.joins += 1
        await self.outclaimed.wait()
        self.outclaimed.clear()
        raise Fenced("a newer claim was read")

    def lose(self) -> bool:
        self.lost = True
        return False

    def ended(self) -> bool:
        lost, self.lost = self.lost, False
        return lost


@virtual
async def test_a_replica_that_is_superseded_as_it_is_cancelled_ends_and_does_not_stand_by() -> None:
    process = Process(["pods"], [], Refusing())
    tenure = Outclaimed(process)
    async with asyncio.TaskGroup() as tasks:
        run = tasks.create_task(process.runners[0].run(), name="pods")
        await until(lambda: tenure.joins == 1)
        tenure.outclaimed.set()
        run.cancel()
        await asyncio.wait((run,), timeout=60.0)
        process.runners[0].stop(deadline_s=clock.now_s())
    assert run.cancelled()
    assert tenure.joins == 1, "it stood by again"


@virtual
async def test_a_part_that_is_left_to_the_next_layout_ends_where_it_would_restart() -> None:
    process = Process(["pods"], [], Refusing())
    tenure = Outclaimed(process)
    (runner,) = process.runners
    async with asyncio.TaskGroup() as tasks:
        run = tasks.create_task(runner.run(), name="pods")
        await until(lambda: tenure.joins == 1)
        runner.end_with_tenure(deadline_s=clock.now_s())
        runner.restart("its topic was deleted")
        await asyncio.wait((run,), timeout=60.0)
        runner.stop(deadline_s=clock.now_s())
        tenure.outclaimed.set()
    assert tenure.joins == 1, "nobody assigns it any more"


@virtual
async def test_no_stream_is_read_back_before_its_turn() -> None:
    connection = Refusing()
    process = Process(["pods"], ["pods"], connection)
    for _ in range(READS_AT_ONCE):
        await process.context.reads.reading_back.turns.acquire()
    async with process.running() as rows:
        await until(lambda: rows["pods"].state == "resuming")
        await asyncio.sleep(60.0)
        assert not connection.asked
        process.context.reads.reading_back.turns.release()
        await until(lambda: bool(connection.asked))


@virtual
async def test_a_turn_is_held_by_an_attempt_and_given_back_for_the_pause_behind_it() -> None:
    turn, connection = asyncio.Semaphore(1), Refusing()
    failures = list[bool]()
    reading = RangeReader(
        connection,
        "t",
        [OffsetRange(0, None, 1)],
        lambda _partition, _records: None,
        failed=lambda *_: failures.append(turn.locked()),
        turn=turn,
    )
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(reading.run(), name="reading")
        await until(lambda: len(failures) == 3)
        async with turn:
            asked = len(connection.asked)
            await asyncio.sleep(60.0)
            assert len(connection.asked) == asked, "it was tried without a turn"
        await until(lambda: len(failures) == 4)
        task.cancel()
    assert not any(failures)


async def _holding(kafka: EmbeddedKafka, topic: str, *names: str) -> None:
    kafka.create_topic(topic, 1)
    async with running_sink(kafka.bootstrap, QUICK) as running:
        await running.sink.deliver(batch(topic, 0, *names))


async def test_a_stream_whose_right_to_read_is_granted_goes_on_and_waits_for_it_no_more(
    kafka: EmbeddedKafka,
) -> None:
    await _holding(kafka, "t-pods", "a")
    process = Process(
        ["pods"], ["pods"], Refusing(bootstrap_servers=(kafka.bootstrap,), refusals=2)
    )
    claim = encoder_for(process.runners[0].spec, 1).marker(0, 1, clock.wall_ms(), Marker("claim"))
    async with running_sink(kafka.bootstrap, QUICK) as running:
        await running.sink.deliver(Batch("t-pods", 0, [claim]))
    async with process.running() as rows:
        await until(lambda: rows["pods"].complete)
        assert NO_READ in [each.message for each in rows["pods"].history]
        assert (rows["pods"].waits_for, rows["pods"].last_error, rows["pods"].next_attempt_ms) == (
            "",
            None,
            None,
        )


async def test_what_a_repair_could_not_read_is_reported_until_it_has_read_it(
    kafka: EmbeddedKafka,
) -> None:
    topic, status = spec_of().topic, StreamStatus("pods")
    await _holding(kafka, topic, "a")

    def failed(error: SinkUnavailable, wait_s: float) -> None:
        status.failed("log", trouble(str(error)), next_attempt_ms=1)

    connection = Refusing(bootstrap_servers=(kafka.bootstrap,), refusals=2)
    await LogReader(
        spec_of(),
        connection,
        cast("Any", Sink()),
        failed=failed,
        succeeded=lambda: status.recovered("log"),
    ).read({0: [(0, 1)]}, lambda *_: None)
    assert [each.message for each in status.history] == [NO_READ, RECOVERED]
    assert (status.last_error, status.next_attempt_ms) == (None, None)


async def test_the_gaps_of_all_partitions_are_read_by_one_consumer_and_nothing_between_them_counts(
    kafka: EmbeddedKafka,
) -> None:
    spec, logs = spec_of(), [Log(), Log()]
    writer = Writer(spec, logs, epoch=5)
    for number in range(100):
        writer.put(f"shop/{number}")
    kafka.create_topic(spec.topic, 2)
    async with running_sink(kafka.bootstrap, QUICK) as running:
        await running.sink.deliver(batch(spec.topic, 0, "not of the contract"))
        for partition, written in enumerate(logs):
            records = [*written.records.values()]
            await running.sink.deliver(Batch(spec.topic, partition, records))
    connection = Refusing(bootstrap_servers=(kafka.bootstrap,), refusals=0)
    reader = LogReader(spec, connection, cast("Any", Sink()), failed=lambda *_: None)
    taken = list[tuple[int, int, int]]()

    def take(partition: int, offset: int, record: LogRecord) -> None:
        assert not isinstance(record, Foreign)
        taken.append((partition, offset, record.sequence))

    await reader.read(
        {1: [(0, 1), (30, 31)], 0: [(3, 4), (5, 6), (10, 12), (40, 41)]},
        take,
    )
    assert sorted(taken) == [
        *((0, offset, offset) for offset in (3, 5, 10, 11, 40)),
        *((1, offset, offset + 1) for offset in (0, 30)),
    ]
    assert len(connection.asked) == 1
    assert reader.refused == 0
