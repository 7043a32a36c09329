"""Topics read by confluent-kafka, up to their ends and until a condition holds."""

import json
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from tests.support.checked_topics import CheckedTopics, Writer
from tests.support.process import wait_until
from tests.support.wirerules import Raw

_REQUEST_TIMEOUT_S = 10.0
_BATCH = 500


def _place(message: Message) -> tuple[str, int, int]:
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    assert topic is not None, "a message without its topic"
    assert partition is not None, "a message without its partition"
    assert offset is not None, "a message without its offset"
    return topic, partition, offset


class TopicReader(CheckedTopics):
    """Reads each partition of its topics from its start; a context manager."""

    def __init__(self, bootstrap: str, *topics: str, writers: Sequence[Writer] = ()) -> None:
        super().__init__(*topics, writers=writers)
        self.transactional = False
        """Offsets may lack: there are the markers of transactions, and what was aborted."""
        self._bootstrap = bootstrap
        self._consumer = self._connect()
        self._next: dict[tuple[str, int], int] = {}
        self.times_ms: tuple[int, int] | None = None
        """The lowest and the highest time of a record."""
        self.timestamp_types = set[int]()
        """As confluent-kafka counts: 1 CreateTime, 2 LogAppendTime."""
        self._unread = ""
        """Why the last `read` could not tell where the ends are."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def _connect(self) -> Consumer:
        return _consumer(
            self._bootstrap,
            {
                "auto.offset.reset": "error",
                "reconnect.backoff.max.ms": 200,
                "fetch.wait.max.ms": 20,
                "enable.partition.eof": True,  # the end may be the marker of a commit
                "topic.metadata.refresh.fast.interval.ms": 50,
            },
        )

    def _assign(self) -> bool:
        """Starts reading partitions not known before; True once every topic is there."""
        missing = False
        fresh = False
        for topic in self.topics:
            known: dict[int, Any] = (
                self._consumer.list_topics(topic, timeout=_REQUEST_TIMEOUT_S)
                .topics[topic]
                .partitions
            )
            missing = missing or not known
            for partition in known:
                fresh = fresh or (topic, partition) not in self._next
                self._next.setdefault((topic, partition), 0)
        if fresh:
            self._seek()
        return not missing

    def read(self) -> int:
        """Reads what is on the topics now, up to their ends at the call; the
        number of records read.

        0 too when the brokers cannot say where the ends are.
        """
        try:
            if len({topic for topic, _ in self._next}) < len(self.topics) and not self._assign():
                return 0
            ends = {place: _end(self._consumer, *place) for place in self._next}
        except KafkaException as away:
            # a broker is away, or has just come back and leads nothing yet
            self._unread = str(away)
            self._begin_again()
            return 0
        self._unread = ""
        before = len(self.records)

        def reached() -> bool:
            return all(self._next[place] >= end for place, end in ends.items())

        def came() -> bool:
            messages = self._consumer.consume(_BATCH, timeout=0.05)
            for message in messages:
                error = message.error()
                if error is None:
                    self._received(message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    topic, partition, end = _place(message)
                    self._next[topic, partition] = end
            return bool(messages) or reached()

        while not reached():
            # each time from the start: a long log on a slow machine is no failure
            wait_until(f"{self.topics} are read to their ends", came)
        return len(self.records) - before

    def _begin_again(self) -> None:
        """Reads on with a new consumer: librdkafka keeps the answer of a broker that had not loaded
        its topics yet, "unknown partition", for as long as records come, and a metadata request for
        the topics does not change that.
        """
        self._consumer.close()
        self._consumer = self._connect()
        self._seek()

    def _seek(self) -> None:
        self._consumer.assign(
            [
                TopicPartition(topic, at, offset or OFFSET_BEGINNING)
                for (topic, at), offset in self._next.items()
            ]
        )

    def read_until(
        self, claim: str, condition: Callable[[], object], *, deadline_s: float = 90.0
    ) -> None:
        """Reads on until the condition holds; raises TimeoutError naming the claim, with the
        problems found so far."""

        def holds() -> bool:
            self.read()
            return bool(condition())

        try:
            wait_until(claim, holds, deadline_s=deadline_s)
        except TimeoutError as late:
            raise TimeoutError(f"{late}; {self.describe()}") from None

    def _received(self, message: Message) -> None:
        topic, partition, offset = _place(message)
        expected = self._next[topic, partition]
        if offset < expected or (offset > expected and not self.transactional):
            self.problems.append(f"{topic}/{partition}: offset {offset} follows {expected - 1}")
        self._next[topic, partition] = offset + 1
        kind, at_ms = message.timestamp()
        self.timestamp_types.add(kind)
        low, high = self.times_ms or (at_ms, at_ms)
        self.times_ms = min(low, at_ms), max(high, at_ms)
        key, value = message.key(), message.value()
        headers: Iterable[tuple[str, bytes | None]] = message.headers() or []  # type: ignore[assignment]  # a dict only when produced
        self.take(Raw(topic, partition, offset, _bytes(key), _bytes(value), tuple(headers)))

    def describe(self) -> str:
        """The state of everything, in one line, for failures."""
        unread = f"; the ends cannot be read: {self._unread}" if self._unread else ""
        return super().describe() + unread

    def assert_one_owner_at_a_time(self, topic: str) -> None:
        """Read to the end what was written within transactions. A table that ignores headers is
        right at every moment: no record of a former owner is behind the claim of the next."""
        self.transactional = True
        self.read()
        assert not self.problems, self.problems
        assert self.stale == 0
        held = {
            key: held.value
            for partition in self.partitions.values()
            for key, held in partition.held.items()
        }
        assert self.plain[topic] == held


def read_control(bootstrap: str, topic: str) -> list[tuple[int, str, Any]]:
    """All records of a control topic: offset, key, decoded value."""
    consumer = _consumer(bootstrap)
    try:
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        end = _end(consumer, topic, 0)
        read: list[tuple[int, str, Any]] = []

        def reached() -> bool:
            for message in consumer.consume(_BATCH, timeout=0.1):
                offset, key, value = (
                    message.offset(),
                    _bytes(message.key()),
                    _bytes(message.value()),
                )
                assert message.error() is None, message.error()
                assert offset is not None, "a message without its offset"
                assert key is not None, "a control record without its key"
                read.append((offset, key.decode(), None if value is None else json.loads(value)))
            return bool(not end or (read and read[-1][0] >= end - 1))

        wait_until(f"{topic} is read to its end", reached)
        return read
    finally:
        consumer.close()


def _bytes(text: str | bytes | None) -> bytes | None:
    return text.encode() if isinstance(text, str) else text


def _consumer(bootstrap: str, settings: dict[str, Any] | None = None) -> Consumer:
    """A consumer in a group of its own."""
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": uuid.uuid4().hex,
            "enable.auto.commit": False,
            "log_level": 0,
            **(settings or {}),
        }
    )


def _end(consumer: Consumer, topic: str, partition: int) -> int:
    _, high = consumer.get_watermark_offsets(
        TopicPartition(topic, partition), timeout=_REQUEST_TIMEOUT_S, cached=False
    )
    return int(high)
