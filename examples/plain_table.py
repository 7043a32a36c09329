#!/usr/bin/env python3
"""A table that knows nothing of watchrelay: it ignores every header, takes the newest value of each key, and null for delete. Still right.

    python examples/plain_table.py localhost:9092 k8s.prod.core.pods                 print the table as one JSON object, as it is now

That is what a KTable, Flink's upsert-kafka or a JDBC sink does. What such a reader does not get: proof that it is right, and protection
from what a former writer said late, until the relay has said it again (one heartbeat, as a rule).
"""

import asyncio
import json
import sys

from aiokafka import AIOKafkaConsumer, TopicPartition


async def table(bootstrap: str, topics: list[str]) -> dict[str, object]:
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest", enable_auto_commit=False)
    await consumer.start()
    rows: dict[str, object] = {}
    try:
        await consumer.topics()
        partitions = [TopicPartition(topic, partition) for topic in topics for partition in await consumer._client._wait_on_metadata(topic)]
        ends = await consumer.end_offsets(partitions)
        begins = await consumer.beginning_offsets(partitions)
        consumer.assign(partitions)
        for partition, offset in begins.items():
            consumer.seek(partition, offset)
        while behind := [partition for partition in partitions if await consumer.position(partition) < ends[partition]]:
            for messages in (await consumer.getmany(*behind, timeout_ms=500)).values():
                for message in messages:
                    if message.value is None:
                        rows.pop(message.key.decode(), None)
                    else:
                        rows[message.key.decode()] = json.loads(message.value)
    finally:
        await consumer.stop()
    return rows


def main() -> int:
    if len(sys.argv) < 3:
        print("usage: plain_table.py HOST:PORT TOPIC...", file=sys.stderr)
        return 2
    print(json.dumps(asyncio.run(table(sys.argv[1], sys.argv[2:])), ensure_ascii=False))
    return 0


if __name__ == "__main__":
    sys.exit(main())
