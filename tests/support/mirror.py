"""A copy of topics on another cluster, as a mirror makes it: other offsets, the producer's
timestamps, perhaps other names."""

from collections.abc import Callable, Sequence

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition


async def records_of(bootstrap: str, topic: str) -> list[ConsumerRecord]:
    """All records of the partition 0 of a topic."""
    place = TopicPartition(topic, 0)
    async with AIOKafkaConsumer(
        bootstrap_servers=bootstrap, auto_offset_reset="earliest"
    ) as consumer:
        consumer.assign([place])
        end = (await consumer.end_offsets([place]))[place]
        found: list[ConsumerRecord] = []
        while await consumer.position(place) < end:
            found.append(await consumer.getone())
        return found


def compacted(records: Sequence[ConsumerRecord]) -> list[ConsumerRecord]:
    """What the log cleaner leaves: the newest record of each key."""
    newest = {record.key: record for record in records}
    return sorted(newest.values(), key=lambda record: record.offset)


async def mirror(
    source: str,
    target: str,
    topics: Sequence[str],
    *,
    ahead: int = 0,
    name: Callable[[str], str] = lambda topic: topic,
) -> None:
    """Append the compacted records of each topic to that of its `name` on `target`, where their
    offsets begin at `ahead`: for so many, a key is written there before."""
    async with AIOKafkaProducer(bootstrap_servers=target) as producer:
        for topic in topics:
            for number in range(ahead):
                await producer.send_and_wait(name(topic), key=b"%d" % number, value=b"{}")
            for record in compacted(await records_of(source, topic)):
                await producer.send_and_wait(
                    name(topic),
                    key=record.key,
                    value=record.value,
                    headers=list(record.headers),
                    timestamp_ms=record.timestamp,
                )
