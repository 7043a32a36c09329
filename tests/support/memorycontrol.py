"""A control topic in memory, with the process that writes and follows it."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

from watchrelay.contract.control import Value
from watchrelay.contract.wire import Batch, Receipt
from watchrelay.core.errors import RecordTooLarge
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.control_topic import ControlTopic
from watchrelay.observe.status import StatusRegistry

DESCRIBED: Value = {"topic": "t", "partitions": 1}


def record_of(offset: int, key: bytes, value: bytes | None) -> SimpleNamespace:
    """As the follower of a topic hands it on."""
    return SimpleNamespace(offset=offset, key=key, value=value, headers=())


class MemoryControl:
    """The topic and its tail: what is appended is read at once, unless `deaf`."""

    def __init__(self) -> None:
        self.records: list[tuple[str, Value | None]] = []
        self.deaf = False
        self.limit = self.grown = 1 << 20
        """What the topic takes, as the process knows it, and as it is by now."""
        self.bounded_by = "max.message.bytes"
        self.followers: list[ControlTopic] = []
        """Those of other processes."""
        self._unread: list[SimpleNamespace] = []
        self.statuses = StatusRegistry()
        self.problems = self.statuses.problems
        self.control = ControlTopic(
            KafkaConnection(bootstrap_servers=("nowhere:1",)),
            "control",
            self,
            holder="h",
            statuses=self.statuses,
            reread_limit=self._reread_limit,
        )
        self.begin()

    async def _reread_limit(self) -> bool:
        before, self.limit = self.limit, self.grown
        return self.limit > before

    def begin(self) -> None:
        self.control.began(len(self.records))
        self.control.moved(len(self.records))

    async def deliver(self, batch: Batch) -> Receipt:
        (record,) = batch.records
        if len(record.value or b"") > self.limit:
            raise RecordTooLarge("too large", index=0, setting=self.bounded_by)
        offset = len(self.records)
        self.records.append(
            (
                record.key.decode(),
                None if record.value is None else json.loads(record.value),
            )
        )
        self._follow(record_of(offset, record.key, record.value))
        await asyncio.sleep(0)
        return Receipt([offset])

    def put(self, key: str, value: bytes | None) -> None:
        """Append a record of another writer."""
        self.records.append((key, None))
        self._follow(record_of(len(self.records) - 1, key.encode(), value))

    def _follow(self, record: SimpleNamespace) -> None:
        self._unread.append(record)
        if not self.deaf:
            self.read_all()

    def read_all(self) -> None:
        """Read what was appended while `deaf`."""
        for record in self._unread:
            for each in (self.control, *self.followers):
                each.take(record)
        self._unread.clear()
        for each in (self.control, *self.followers):
            each.moved(len(self.records))

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
