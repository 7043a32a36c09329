#!/usr/bin/env python3
"""A table that knows nothing of watchrelay: it ignores every header, takes the newest value of each
key, and null for delete. Still right.

    python examples/plain_table.py localhost:9092 k8s.prod.core.pods                 print the table
    as one JSON object, as it is now

That is what a KTable, Flink's upsert-kafka or a JDBC sink does. What such a reader does not get:
proof that it is right, and protection from a record that a former writer published late, until the
relay has repaired it (one heartbeat, as a rule).
"""

import asyncio
import json
import logging
import os
import sys

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaConnectionError, KafkaError

# errors are printed below, once
logging.getLogger("aiokafka").addHandler(logging.NullHandler())


class NoTopic(Exception):
    """A topic is not there."""


async def table(bootstrap: str, topics: list[str]) -> tuple[dict[str, object], int]:
    """The rows, and how many records are none of ours. Raises: NoTopic."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap, auto_offset_reset="earliest", enable_auto_commit=False
    )
    rows: dict[str, object] = {}
    foreign = 0
    try:
        await consumer.start()
        missing = sorted(set(topics) - await consumer.topics())
        if missing:  # asked for by name it might be made, or waited for
            raise NoTopic(
                f"topic {', '.join(missing)} is not there, or may not be seen: check the name, "
                "or grant READ on it"
            )
        partitions = [
            TopicPartition(topic, partition)
            for topic in topics
            for partition in await consumer._client._wait_on_metadata(topic)
        ]
        ends = await consumer.end_offsets(partitions)
        begins = await consumer.beginning_offsets(partitions)
        consumer.assign(partitions)
        for partition, offset in begins.items():
            consumer.seek(partition, offset)
        while behind := [
            partition
            for partition in partitions
            if await consumer.position(partition) < ends[partition]
        ]:
            for messages in (await consumer.getmany(*behind, timeout_ms=500)).values():
                for message in messages:
                    try:
                        key = (message.key or b"").decode()
                        row = None if message.value is None else json.loads(message.value)
                    except (ValueError, RecursionError):
                        key = ""
                    if not key:
                        # somebody else's: a record of the relay has a key, and JSON or nothing
                        # behind it
                        foreign += 1
                    elif row is None:
                        rows.pop(key, None)
                    else:
                        rows[key] = row
    finally:
        await consumer.stop()
    return rows, foreign


def main() -> int:
    if len(sys.argv) < 3:
        print("usage: plain_table.py HOST:PORT TOPIC...", file=sys.stderr)
        return 2
    try:
        rows, foreign = asyncio.run(table(sys.argv[1], sys.argv[2:]))
        if foreign:
            print(
                f"{foreign} records without a key, or without JSON, were passed over",
                file=sys.stderr,
            )
        print(json.dumps(rows, ensure_ascii=False), flush=True)
    except NoTopic as error:
        print(error, file=sys.stderr)
    except (KafkaError, ValueError) as error:  # the second is of an address that is none
        why = "no broker answers" if isinstance(error, KafkaConnectionError) else error
        print(f"kafka at {sys.argv[1]} cannot be read: {why}", file=sys.stderr)
    except BrokenPipeError:
        # what is buffered still would fail again at the exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print("nobody reads the output any more", file=sys.stderr)
    else:
        return 0
    return 1


if __name__ == "__main__":
    sys.exit(main())
