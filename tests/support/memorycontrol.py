"""A control topic in memory, with the process that writes and follows it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

from watchrelay.contract.control import Value, parse_control_value
from watchrelay.contract.wire import Batch, Receipt
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.control_topic import ControlTopic

DESCRIBED: Value = {"topic": "t", "partitions": 1}


class MemoryControl:
    """The topic and its tail: what is appended is read at once, unless `deaf`."""

    def __init__(self) -> None:
        self.records: list[tuple[str, Value | None]] = []
        self.deaf = False
        self._unread: list[SimpleNamespace] = []
        self.control = ControlTopic(
            KafkaConnection(bootstrap_servers=("nowhere:1",)), "control", self, holder="h"
        )
        self.begin()

    def begin(self) -> None:
        self.control.began(len(self.records))
        self.control.moved(len(self.records))

    async def deliver(self, batch: Batch) -> Receipt:
        (record,) = batch.records
        offset = len(self.records)
        self.records.append(
            (
                record.key.decode(),
                None if record.value is None else parse_control_value(record.value),
            )
        )
        self._unread.append(
            SimpleNamespace(offset=offset, key=record.key, value=record.value, headers=())
        )
        if not self.deaf:
            self.read_all()
        await asyncio.sleep(0)
        return Receipt([offset])

    def read_all(self) -> None:
        """Read what was appended while `deaf`."""
        for record in self._unread:
            self.control.take(record)
        self._unread.clear()
        self.control.moved(len(self.records))

    def lose(self) -> None:
        """The topic is deleted."""
        self.records.clear()
        self.control.started_over()

    async def claim(self, stream: str = "pods", *, transactional_id: str = "") -> int:
        origin = await self.control.read_starting_point(stream, 1)
        return await self.control.claim(
            stream,
            DESCRIBED,
            starting_point=origin,
            highest_epoch=self.nothing,
            transactional_id=transactional_id,
        )

    async def nothing(self) -> int:
        return 0
