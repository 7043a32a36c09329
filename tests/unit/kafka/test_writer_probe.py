"""The newest record of a stream at the end of a partition that others fill too."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition

from watchrelay.kafka.writer_probe import WriterProbe

PLACE = TopicPartition("k8s.t.all", 0)


class Consumer:
    """A partition of `end` records, all of them of stream pods but those at `nodes`."""

    def __init__(self, end: int, *, nodes: int) -> None:
        self._end, self._nodes, self._at = end, nodes, 0

    async def beginning_offsets(self, places: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(places, 0)

    async def end_offsets(self, places: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(places, self._end)

    def assign(self, _places: list[TopicPartition]) -> None: ...

    def seek(self, _place: TopicPartition, offset: int) -> None:
        self._at = offset

    async def position(self, _place: TopicPartition) -> int:
        return self._at

    async def getmany(
        self, place: TopicPartition, *, timeout_ms: int, max_records: int
    ) -> dict[TopicPartition, list[Any]]:
        start, self._at = self._at, min(self._end, self._at + max_records)
        return {place: [self._record(offset) for offset in range(start, self._at)]}

    def _record(self, offset: int) -> Any:
        stream = b"nodes" if offset == self._nodes else b"pods"
        return SimpleNamespace(
            key=b"k", timestamp=offset, headers=[("ce_wrstream", stream), ("ce_wrepoch", b"7")]
        )


@pytest.mark.parametrize(
    ("end", "nodes", "at_ms"), [(1000, 3, 3), (9000, 8000, 8000), (9000, 3, None)]
)
async def test_the_newest_record_is_looked_for_near_the_end(
    end: int, nodes: int, at_ms: int | None
) -> None:
    probe = WriterProbe(Consumer(end, nodes=nodes), PLACE, "nodes")
    newest = await probe.newest()
    assert (newest.at_ms if newest else None) == at_ms
