"""A connection to the coordinator of a transactional id: take the id, add partitions, commit."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from aiokafka import TopicPartition
from aiokafka.protocol.coordination import FindCoordinatorRequest
from aiokafka.protocol.transaction import (
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
)

from watchrelay.kafka.client.coordinator import Asked
from watchrelay.kafka.client.link import no_surprises

_TRANSACTION: Final = 1
"""In a request for a coordinator: of a transactional id, not of a group."""
_NO_PRODUCER: Final = (-1, -1)


class TransactionCoordinator:
    """One transactional id at the broker that coordinates it.

    Every method but `close` raises KafkaError or OSError when no broker answers. A code is an error
    code of the Kafka protocol, 0 for none; `producer` is a producer id and its epoch.
    """

    def __init__(self, asked: Asked, transactional_id: str) -> None:
        self._asked, self._id = asked, transactional_id

    async def take(self, *, timeout_s: float) -> tuple[int, tuple[int, int]]:
        """The code, and the producer that has the id from now on: the one before is fenced, its
        open transaction is aborted. A transaction open for `timeout_s` is aborted."""
        answer = await self._asked.answer(InitProducerIdRequest(self._id, int(timeout_s * 1000)))
        with no_surprises():
            return answer.error_code, (answer.producer_id, answer.producer_epoch)

    async def add(
        self, producer: tuple[int, int], places: Collection[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """The code of each partition, which is part of the transaction if that is 0. The first ones
        open it."""
        topics: dict[str, list[int]] = {}
        for topic, partition in places:
            topics.setdefault(topic, []).append(partition)
        answer = await self._asked.answer(
            AddPartitionsToTxnRequest(self._id, *producer, [*topics.items()])
        )
        with no_surprises():
            return {
                TopicPartition(topic, partition): code
                for topic, codes in answer.errors
                for partition, code in codes
            }

    async def commit(self, producer: tuple[int, int]) -> int:
        """The code. The same question again gets the same answer."""
        answer = await self._asked.answer(EndTxnRequest(self._id, *producer, True))
        with no_surprises():
            return int(answer.error_code)

    async def check(self) -> int:
        """The code of a request that needs the right to write under the id and changes nothing."""
        answer = await self._asked.answer(EndTxnRequest(self._id, *_NO_PRODUCER, False))
        with no_surprises():
            return int(answer.error_code)

    def close(self) -> None:
        """At once. An open transaction stays open."""
        self._asked.close()


def find_transaction_coordinator(transactional_id: str) -> Any:
    """The request for the address of a transactional id's coordinator."""
    return FindCoordinatorRequest(transactional_id, _TRANSACTION)
