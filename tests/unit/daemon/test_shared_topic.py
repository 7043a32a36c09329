"""Many streams on one topic: how much of it is read for those that are new there, and what is done
for each of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import watchrelay
from tests.support.tracedlines import lines_of
from tests.unit.daemon.conftest import Relay, World, running, until
from watchrelay.core.errors import SinkUnavailable
from watchrelay.daemon.context import DaemonContext, Reads
from watchrelay.daemon.daemon import Daemon
from watchrelay.daemon.recovery import left_to_read
from watchrelay.kafka.log_scan import TopicContent
from watchrelay.kafka.range_reader import OffsetRange
from watchrelay.kafka.topic_reads import TopicReads
from watchrelay.kafka.written_offsets import WrittenOffsets
from watchrelay.kube.client import KubeClient
from watchrelay.model.reach import KeyRange

OLD, NEW = 1000, 20
"""Objects that are on the topic, and namespaces that come."""
FEWER, MORE, GROWTH_MAX = 200, 400, 2.2
PACKAGE = Path(watchrelay.__file__).parent
COUNTED = [f"{PACKAGE / each}" for each in ("contract/control_state", "daemon", "kafka", "plan")]


class ReadBack(TopicReads):
    """`records`: how many were asked for, by stream."""

    records: dict[str, int]

    async def read(
        self,
        topic: str,
        stream: str,
        spans: Sequence[OffsetRange],
        take: Callable[[int, Sequence[Any]], None],
        failed: Callable[[SinkUnavailable, float], None],
        *,
        keys: KeyRange,
    ) -> set[int]:
        asked = sum(span.stop - (span.start or 0) for span in spans)
        self.records[stream] = self.records.get(stream, 0) + asked
        return await super().read(topic, stream, spans, take, failed, keys=keys)


class Scanned(Reads):
    """`whole`: the ends of each topic that was read from its start; `records`: how many were
    read."""

    def count(self) -> None:
        """Begin to count."""
        self.whole, self.records = list[int](), 0
        self.reading_back = ReadBack(self.connection)
        self.reading_back.records = {}

    async def _scan(self, place: tuple[str, bytes], before: TopicContent | None) -> TopicContent:
        content = await super()._scan(place, before)
        begun = 0 if before is None else sum(before.ends.values())
        self.records += (end := sum(content.ends.values())) - begun
        if before is None:
            self.whole.append(end)
        return content

    @property
    def read_back(self) -> dict[str, int]:
        """The records that were asked for, by stream."""
        assert isinstance(self.reading_back, ReadBack)
        return {stream: asked for stream, asked in self.reading_back.records.items() if asked}


@dataclass
class Counted:
    """A daemon whose reads are counted."""

    reads: list[Scanned] = field(default_factory=list)

    def make(self, *arguments: Any, **more: Any) -> Daemon:
        """As `Daemon`."""
        counted = self

        class Counting(Daemon):
            def _make_context(self, client: KubeClient) -> DaemonContext:
                context = super()._make_context(client)
                reads = Scanned(context.reads.connection, self.settings.cluster, context.rng)
                reads.count()
                context.reads = reads
                counted.reads.append(reads)
                return context

        return Counting(*arguments, **more)


def entry(namespaces: Sequence[str]) -> dict[str, Any]:
    return {"resource": "configmaps", "namespaces": list(namespaces)}


async def whole(relay: Relay, namespaces: Sequence[str]) -> None:
    def complete(namespace: str) -> bool:
        row = relay.row(f"configmaps@{namespace}")
        return row is not None and row.complete

    await until("all are published", lambda: all(map(complete, namespaces)))


async def test_streams_that_start_on_a_new_topic_read_nothing_back(world: World) -> None:
    world.make_topic("core.configmaps")
    namespaces, counted = [f"ns-{number}" for number in range(NEW)], Counted()
    async with running(world.settings(entry(namespaces)), make=counted.make) as relay:
        await whole(relay, namespaces)
        (reads,) = counted.reads
        assert reads.read_back == {}
        assert len(reads.whole) == 1
        assert reads.records <= NEW, "those that were written as the last streams asked"


async def test_namespaces_that_join_a_topic_read_it_once_together(world: World) -> None:
    world.make_topic("core.configmaps")
    for number in range(OLD):
        metadata = {"name": f"c{number}", "namespace": "default"}
        world.cluster.registry.create("configmaps", {"metadata": metadata, "data": {}})
    namespaces, counted = [f"ns-{number}" for number in range(NEW)], Counted()
    async with running(world.settings(entry(["default"])), make=counted.make) as relay:
        await whole(relay, ["default"])
        (reads,) = counted.reads
        reads.count()
        relay.daemon.adopt(world.settings(entry(["default", *namespaces])))
        await whole(relay, namespaces)
        assert reads.read_back == {}
        assert len(reads.whole) == 1
        assert OLD < reads.records < 1.5 * OLD


async def lines_for(world: World, count: int) -> tuple[int, int]:
    """The lines that are executed for the first start of so many streams, and for an edit that
    replaces a quarter of them."""
    prefix = f"of-{count}"
    for topic in ("control", "signal", "core.configmaps"):
        world.kafka.create_topic(f"{prefix}.test.{topic}", 1)
    namespaces = [f"ns-{number}" for number in range(count * 5 // 4)]
    first, edited = (
        world.settings(entry(some), kafka={"topicPrefix": prefix}, heartbeatInterval="10m")
        for some in (namespaces[:count], namespaces[count // 4 :])
    )
    with lines_of(*COUNTED) as lines:
        async with running(first) as relay:
            await whole(relay, namespaces[:count])
            started = lines.total()
            relay.daemon.adopt(edited)
            await whole(relay, namespaces[count // 4 :])
            return started, lines.total() - started


@pytest.mark.full
async def test_no_work_of_a_start_or_an_edit_grows_with_the_number_of_streams_squared(
    world: World,
) -> None:
    fewer, more = await lines_for(world, FEWER), await lines_for(world, MORE)
    growth = [many / few for few, many in zip(fewer, more, strict=True)]
    assert max(growth) < GROWTH_MAX, growth


PARTITION, CLAIM = 3, 90


class Own:
    """What this process wrote of the partition, as the sink knows it."""

    def __init__(self, ranges: Sequence[tuple[int, int]]) -> None:
        self._written = WrittenOffsets()
        for start, stop in ranges:
            self._written.note(PARTITION, start, stop)

    def unacknowledged_ranges(self, partition: int, start: int, stop: int) -> list[tuple[int, int]]:
        return self._written.gaps(partition, start, stop)


@pytest.mark.parametrize(
    ("start", "empty_before", "own", "expected"),
    [
        (None, 40, [(40, 91)], (0, 0)),
        (None, 40, [(0, 91)], (0, 0)),
        (None, 90, [(90, 91)], (0, 0)),
        (None, 40, [(40, 60), (61, 91)], (60, 91)),
        (None, 40, [(90, 91)], (40, 91)),
        (None, 40, [], (40, 91)),
        (None, 91, [(0, 91)], (None, 91)),
        (None, None, [(0, 91)], (None, 91)),
        (20, 40, [(0, 91)], (20, 91)),
    ],
    ids=[
        "all since then is this process's",
        "all is this process's",
        "the claim follows at once",
        "another process wrote between",
        "another process wrote first",
        "this process wrote nothing that is known",
        "the topic was recreated since",
        "what the topic holds is not known",
        "the stream has a starting point",
    ],
)
def test_what_is_left_to_read_of_a_topic_that_held_nothing_of_the_stream(
    start: int | None,
    empty_before: int | None,
    own: list[tuple[int, int]],
    expected: tuple[int | None, int],
) -> None:
    left = left_to_read(Own(own), PARTITION, start, CLAIM, empty_before)
    assert left == OffsetRange(PARTITION, *expected)


def test_nothing_is_left_to_read_before_a_claim_that_is_the_first_record() -> None:
    assert left_to_read(Own([]), PARTITION, None, 0, None).stop == 0
