"""Transactions that other programs leave open: they hold back what readers of committed records may
read, and nothing else tells of them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from watchrelay.core.errors import TransactionOpen
from watchrelay.kafka.client import TopicPartition
from watchrelay.kafka.cursor import Cursor

HELD_BACK_AFTER_S: Final = 20.0
"""Those of a relay end within a second, and 15 s after it died."""


class OpenTransactions:
    """Notices where one consumer of committed records is held back, from its answers alone."""

    def __init__(self, servers: str) -> None:
        self._servers = servers
        self._since: dict[TopicPartition, tuple[int, float]] = {}
        """By partition whose committed records are all read while there are more: the offset
        where the oldest open transaction begins, and when that was first seen."""

    @property
    def any_open(self) -> bool:
        """Whether a partition was held back at the last look, for however short a time."""
        return bool(self._since)

    def held_back(
        self, consumer: Any, cursors: Mapping[TopicPartition, Cursor]
    ) -> dict[TopicPartition, TransactionOpen]:
        """Look at all partitions that matter, which are assigned: those held back for
        `HELD_BACK_AFTER_S` or more, each with what to tell."""
        now_s, before, self._since = asyncio.get_running_loop().time(), self._since, {}
        for place, cursor in cursors.items():
            stable, end = consumer.last_stable_offset(place), consumer.highwater(place)
            if stable is None or end is None or not 0 <= stable < end or cursor.next < stable:
                continue
            offset, since_s = before.get(place, (stable, now_s))
            self._since[place] = (stable, since_s if offset == stable else now_s)
        return {
            place: self._error(place, offset)
            for place, (offset, since_s) in self._since.items()
            if now_s - since_s >= HELD_BACK_AFTER_S
        }

    def _error(self, place: TopicPartition, offset: int) -> TransactionOpen:
        command = (
            f"kafka-transactions.sh --bootstrap-server {self._servers} abort "
            f"--topic {place.topic} --partition {place.partition} --start-offset {offset}"
        )
        return TransactionOpen(
            f"topic {place.topic} partition {place.partition}: an open transaction at offset "
            f"{offset} holds back all later records from readers of committed records until it "
            f"ends: stop the program that left it open, or abort it with: {command}",
            cure=command,
        )
