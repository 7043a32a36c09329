"""The part of a consumer that a reading moves: what is assigned, and where it is."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

from aiokafka import TopicPartition


class Positioned:
    """A consumer to whose partitions brokers answer at any time; a test may set `positions`."""

    def __init__(self) -> None:
        self.positions: dict[TopicPartition, int] = {}
        assignment = SimpleNamespace(state_value=self._state)
        self._subscription = SimpleNamespace(subscription=SimpleNamespace(assignment=assignment))

    def _state(self, place: TopicPartition) -> Any:
        return SimpleNamespace(has_valid_position=True, position=self.positions[place])

    def assign(self, places: Collection[TopicPartition]) -> None:
        self.positions = dict.fromkeys(places, 0)

    def seek(self, place: TopicPartition, offset: int) -> None:
        self.positions[place] = offset

    def last_stable_offset(self, _: TopicPartition) -> int | None:
        return None

    def highwater(self, _: TopicPartition) -> int | None:
        return None

    def last_poll_timestamp(self, _: TopicPartition) -> int:
        return int(asyncio.get_running_loop().time() * 1000) + 1
