"""Records, also such as no client would write: record batches byte by byte, and the way to a
broker."""

import asyncio
import gzip
import struct
from collections.abc import Sequence

import cramjam
import zstandard
from aiokafka import AIOKafkaProducer
from aiokafka.codec import snappy_encode
from aiokafka.record.util import calc_crc32c

from watchrelay.contract.headers import varint

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
_CHECKED = struct.Struct(">hiqqqhii")
_HEAD = struct.Struct(">qiibI")

Raw = tuple[bytes | None, bytes | None, Sequence[tuple[bytes, bytes | None]]]
"""Key, value, headers: names as bytes."""


def sized(data: bytes | None) -> bytes:
    return b"\x01" if data is None else varint(len(data)) + data


def encoded(record: Raw, index: int) -> bytes:
    """One record, its length before it."""
    key, value, headers = record
    pairs = b"".join(sized(name) + sized(text) for name, text in headers)
    body = b"\0\0" + varint(index) + sized(key) + sized(value) + varint(len(headers)) + pairs
    return varint(len(body)) + body


def compressed(body: bytes, codec: str) -> bytes:
    match codec:
        case "gzip":
            return gzip.compress(body, 6)
        case "snappy":
            return bytes(snappy_encode(body))
        case "lz4":
            return bytes(cramjam.lz4.compress(body))
        case "zstd":
            return zstandard.ZstdCompressor(level=1).compress(body)
        case _:
            return body


def framed(
    body: bytes,
    count: int,
    *,
    codec: str = "none",
    base: int = 0,
    attributes: int = 0,
    times_ms: tuple[int, int] = (7, 7),
    producer: tuple[int, int, int] = (-1, -1, -1),
) -> bytes:
    """A batch of `count` records around `body`, which is compressed already. `attributes`: bits
    beside those of the codec; `times_ms`: base and greatest; `producer`: id, epoch, sequence."""
    flags = CODECS[codec] | attributes
    checked = _CHECKED.pack(flags, count - 1, *times_ms, *producer, count) + body
    return _HEAD.pack(base, len(checked) + _HEAD.size - 12, -1, 2, calc_crc32c(checked)) + checked


def batch(records: Sequence[Raw], *, codec: str = "none", base: int = 0) -> bytes:
    """A batch as a client writes it."""
    body = b"".join(encoded(record, index) for index, record in enumerate(records))
    return framed(compressed(body, codec), len(records), codec=codec, base=base)


def bomb(codec: str, megabytes: int, *, base: int = 0) -> bytes:
    """A small batch of one record whose value is `megabytes` of zeros."""
    return batch([(b"bomb", bytes(megabytes << 20), [])], codec=codec, base=base)


class RawBatch:
    """Finished bytes with the methods of aiokafka's BatchBuilder that its producer calls: it sends them
    as they are."""

    def __init__(self, data: bytes, count: int) -> None:
        self._data, self._count = data, count

    def record_count(self) -> int:
        return self._count

    def size(self) -> int:
        return len(self._data)

    def closed(self) -> bool:
        return True

    def close(self) -> None:
        """Nothing can be added."""

    def _set_producer_state(self, *_: int) -> None:
        """The bytes stay as they are."""

    def _build(self) -> bytes:
        return self._data


def send(bootstrap: str, topic: str, *batches: bytes, partition: int = 0) -> list[int]:
    """Appends batches of one record each, or as many as their last offset says, and returns the
    offset of each batch's first record."""
    return asyncio.run(_send(bootstrap, topic, batches, partition))


async def _send(bootstrap: str, topic: str, batches: Sequence[bytes], partition: int) -> list[int]:
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all", max_request_size=32 << 20)
    await producer.start()
    try:
        offsets = []
        for data in batches:
            (last,) = struct.unpack_from(">i", data, 23)
            sent = await producer.send_batch(RawBatch(data, last + 1), topic, partition=partition)
            offsets.append((await sent).offset)
        return offsets
    finally:
        await producer.stop()
