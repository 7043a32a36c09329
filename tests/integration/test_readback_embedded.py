"""An embedded Kafka that goes away in between: spans of a topic, read once, in order."""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from tests.support.sinkparts import QUICK, batch, running_sink
from watchrelay.core.errors import SinkUnavailable
from watchrelay.demo.kafka import FETCH, EmbeddedKafka
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.range_reader import OffsetRange, RangeReader

NOT_LEADER = 6


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka.start() as broker:
        broker.create_topic("t", 3)
        yield broker


async def filled(kafka: EmbeddedKafka) -> None:
    async with running_sink(kafka.bootstrap, QUICK) as running:
        for start in range(0, 60, 20):
            await running.sink.deliver(
                batch("t", 0, *(f"n{number}" for number in range(start, start + 20)))
            )
        await running.sink.deliver(batch("t", 1, "x", "y", "z"))


class Taken:
    """What was handed over."""

    def __init__(self) -> None:
        self.keys: dict[int, list[str]] = {0: [], 1: [], 2: []}

    def __call__(self, partition: int, records: Sequence[Any]) -> None:
        self.keys[partition].extend(record.key.decode() for record in records)


def reading(
    kafka: EmbeddedKafka, spans: list[OffsetRange], taken: Taken, **more: Any
) -> RangeReader:
    return RangeReader(
        KafkaConnection(bootstrap_servers=(kafka.bootstrap,)), "t", spans, taken, **more
    )


async def test_spans_are_read_from_their_start_to_their_end_and_no_further(
    kafka: EmbeddedKafka,
) -> None:
    await filled(kafka)
    taken = Taken()
    read = reading(
        kafka, [OffsetRange(0, 15, 42), OffsetRange(1, None, 2), OffsetRange(2, None, 0)], taken
    )
    await read.run()
    assert taken.keys == {0: [f"n{number}" for number in range(15, 42)], 1: ["x", "y"], 2: []}
    assert (read.begun, read.whole) == ({0: 15, 1: 0}, {1})


@pytest.mark.parametrize("error", [ValueError("odd"), OSError("full"), SinkUnavailable("away")])
async def test_an_error_of_the_taker_ends_it_and_no_record_is_taken_twice(
    kafka: EmbeddedKafka, error: Exception
) -> None:
    class Failing(Taken):
        def __call__(self, partition: int, records: Sequence[Any]) -> None:
            super().__call__(partition, records)
            raise error

    await filled(kafka)
    taken, failures = Failing(), list[SinkUnavailable]()
    read = reading(
        kafka, [OffsetRange(1, None, 3)], taken, failed=lambda why, _wait_s: failures.append(why)
    )
    with pytest.raises(type(error), match=str(error)):
        async with asyncio.timeout(10.0):
            await read.run()
    assert (taken.keys[1], failures) == (["x", "y", "z"], [])


async def test_an_offset_of_a_recreated_topic_means_the_start(
    kafka: EmbeddedKafka,
) -> None:
    await filled(kafka)
    taken = Taken()
    read = reading(kafka, [OffsetRange(1, 900, 3)], taken)
    await read.run()
    assert (taken.keys[1], read.whole) == (["x", "y", "z"], {1})


async def test_a_broker_that_goes_away_in_between_delays_it_and_nothing_is_read_twice(
    kafka: EmbeddedKafka,
) -> None:
    await filled(kafka)
    taken, failures = Taken(), list[str]()

    def failed(error: SinkUnavailable, _wait_s: float) -> None:
        failures.append(str(error))
        kafka.broker_up()

    read = reading(kafka, [OffsetRange(0, None, 60)], taken, failed=failed)
    kafka.broker_down()
    async with asyncio.timeout(60):
        await read.run()
    assert taken.keys[0] == [f"n{number}" for number in range(60)]
    assert kafka.bootstrap in failures[0]
    kafka.push_request_errors(FETCH, [NOT_LEADER] * 2)
    taken = Taken()
    async with asyncio.timeout(60):
        await reading(kafka, [OffsetRange(0, 30, 60)], taken).run()
    assert taken.keys[0] == [f"n{number}" for number in range(30, 60)]
