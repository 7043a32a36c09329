"""Where the log of a partition starts after the begin of the newest snapshot, another one is
published."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

import pytest

from tests.support.relays import KEYS, Rig, until, virtual
from watchrelay.contract.records import LogRecord
from watchrelay.publish.snapshots import REMOVED_EVERY_S

MESSAGE = "records removed: publishing a snapshot"


class Log:
    """Has no records but the relay's, and starts where the test says."""

    def __init__(self) -> None:
        self.starts: dict[int, int] = {}

    def log_start(self, partition: int) -> int:
        return self.starts.get(partition, 0)

    def owns(self, key: bytes) -> bool:
        return True

    def unacknowledged_ranges(self, partition: int, start: int, stop: int) -> list[tuple[int, int]]:
        return []

    async def read(
        self,
        ranges: Mapping[int, Sequence[tuple[int, int]]],
        take: Callable[[int, int, LogRecord], None],
    ) -> None:
        raise AssertionError("nothing is to be read")


def begins(rig: Rig) -> int:
    return len(rig.markers("begin")) // 2


@virtual
async def test_it_is_published_at_once_with_a_warning_that_names_the_partition(
    caplog: pytest.LogCaptureFixture,
) -> None:

    with caplog.at_level(logging.WARNING):
        log = Log()
        rig = Rig(partitions=2, gap_reader=log)
        async with rig.running():
            rig.store.put(KEYS[0], b"{}")
            rig.sync()
            await until(lambda: rig.status.complete)
            await asyncio.sleep(60)
            assert begins(rig) == 1
            begin = rig.relay._queues.by_partition[1].last_snapshot
            assert begin is not None
            log.starts = {0: 0, 1: begin[1]}
            await asyncio.sleep(60)
            assert (begins(rig), caplog.messages.count(MESSAGE)) == (1, 0), "it is there still"
            log.starts[1] = begin[1] + 1
            await asyncio.sleep(10.5)
            assert (begins(rig), caplog.messages.count(MESSAGE)) == (2, 1)
            (line,) = [each for each in caplog.records if each.message == MESSAGE]
            assert vars(line)["partition"] == 1
            await asyncio.sleep(1000)
            assert begins(rig) == 2, "the newer one is there"


@virtual
async def test_where_each_is_removed_soon_they_are_published_every_few_minutes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = Log()
    rig = Rig(partitions=2, gap_reader=log)
    async with rig.running():
        rig.store.put(KEYS[0], b"{}")
        rig.sync()
        await until(lambda: rig.status.complete)
        log.starts = {0: 1 << 40}
        await asyncio.sleep(10 * REMOVED_EVERY_S)
        assert 9 <= begins(rig) <= 12
