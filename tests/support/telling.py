"""Stories put on a Kafka: the logs of `tests.support.story` appended to real topics, offset by
offset.

Room: test support.  In: a bootstrap address, logs.  Out: the same records on the broker, from where
the last call stopped.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Self

from aiokafka import AIOKafkaProducer

from tests.support.story import Log
from watchrelay.kafka.client.patches import patch_client


class Teller:
    """Appends what logs gained since the last time. Use: `async with Teller(bootstrap) as
    teller`."""

    def __init__(self, bootstrap: str) -> None:
        self._producer = AIOKafkaProducer(bootstrap_servers=bootstrap, linger_ms=1)
        patch_client(self._producer.client)
        self._told: dict[tuple[str, int], int] = {}

    async def __aenter__(self) -> Self:
        await self._producer.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._producer.stop()

    async def tell(self, topic: str, logs: Sequence[Log]) -> None:
        """Append the new records of each log to its partition; offsets on the broker are those of
        the log."""
        for partition, log in enumerate(logs):
            for offset in range(self._told.get((topic, partition), 0), log.end):
                record = log.records[offset]
                sent = await self._producer.send(
                    topic, record.value, record.key, partition, headers=list(record.headers)
                )
                if offset == log.end - 1:
                    assert (await sent).offset == offset, "the topic had other records before"
            self._told[topic, partition] = log.end

    async def say(
        self,
        topic: str,
        key: str | None,
        value: dict[str, object] | bytes | None,
        partition: int = 0,
    ) -> int:
        """One record without headers; its offset."""
        data = json.dumps(value).encode() if isinstance(value, dict) else value
        return int(
            (
                await self._producer.send_and_wait(
                    topic, data, None if key is None else key.encode(), partition
                )
            ).offset
        )
