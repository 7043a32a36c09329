"""What a producer writes: produce requests taken apart, answers put together, and a transport for a
Link without a socket. Source: Kafka protocol guide, Produce v7."""

import asyncio
import struct
from collections.abc import Sequence
from typing import Any

from watchrelay.kafka.client.link import Link

_HEAD = struct.Struct(">qhii")
"""Producer id, epoch, first sequence, number of records: at the end of a batch's header."""
_HEAD_AT, _TIMESTAMP_AT = 43, 27
_ATTRIBUTES_AT, _TRANSACTIONAL = 22, 16


def batch_head(data: bytes) -> tuple[int, int, int, int]:
    """Producer id, epoch, first sequence and number of records of a batch."""
    producer_id, epoch, sequence, count = _HEAD.unpack_from(data, _HEAD_AT)
    return producer_id, epoch, sequence, count


def is_transactional(data: bytes) -> bool:
    """Whether a batch is part of a transaction."""
    return bool(data[_ATTRIBUTES_AT] & _TRANSACTIONAL)


def transactional_id(data: bytes) -> str:
    """The one of a request, "" for none."""
    at = _transactional_id_at(data)
    length = max(0, struct.unpack_from(">h", data, at)[0])
    return data[at + 2 : at + 2 + length].decode()


def _transactional_id_at(data: bytes) -> int:
    return 14 + int(struct.unpack_from(">h", data, 12)[0])


def produce_request(data: bytes) -> tuple[int, list[tuple[str, int, bytes]]]:
    """Correlation id, and the batches by topic and partition."""
    size, key, version, correlation = struct.unpack_from(">ihhi", data)
    assert (size, key, version) == (len(data) - 4, 0, 7)
    at = _transactional_id_at(data)
    at += 2 + max(0, struct.unpack_from(">h", data, at)[0])
    acks, _, topics = struct.unpack_from(">hii", data, at)
    assert acks == -1
    at += 10
    batches = []
    for _ in range(topics):
        (length,) = struct.unpack_from(">h", data, at)
        topic = data[at + 2 : at + 2 + length].decode()
        (partitions,) = struct.unpack_from(">i", data, at + 2 + length)
        at += 6 + length
        for _ in range(partitions):
            index, size = struct.unpack_from(">ii", data, at)
            batches.append((topic, index, data[at + 8 : at + 8 + size]))
            at += 8 + size
    assert at == len(data)
    return correlation, batches


def first_timestamp_ms(data: bytes) -> int:
    """The time of the first record of a batch."""
    at_ms: int = struct.unpack_from(">q", data, _TIMESTAMP_AT)[0]
    return at_ms


def answer_frame(
    correlation: int,
    answers: Sequence[tuple[str, int, int, int]],
    *,
    appended_ms: int = -1,
    log_start: int = 0,
) -> bytes:
    """The answer to a request: topic, partition, error code and offset of each batch;
    `appended_ms`: when they were appended, where the topic has LogAppendTime."""
    parts = [struct.pack(">ii", correlation, len(answers))]
    for topic, index, code, offset in answers:
        name = topic.encode()
        parts.append(struct.pack(">h", len(name)) + name)
        parts.append(struct.pack(">iihqqq", 1, index, code, offset, appended_ms, log_start))
    body = b"".join(parts) + struct.pack(">i", 0)
    return struct.pack(">i", len(body)) + body


class FakeTransport(asyncio.Transport):
    """Keeps what is written; the test answers."""

    def __init__(self, link: Link) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.ended = False
        self._link = link

    def write(self, data: Any) -> None:
        assert not self.ended, "a byte after the end"
        self.written.append(bytes(data))

    def receive(self, data: bytes) -> None:
        """The broker says something."""
        if not self.ended:
            self._link.data_received(data)

    def lose(self) -> None:
        """The connection ends."""
        self.ended = True
        self._link.connection_lost(None)

    def abort(self) -> None:
        self.ended = True

    def is_closing(self) -> bool:
        return self.ended

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        assert protocol is self._link

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing is buffered."""
