"""Fetched record batches, parsed within bounds.

aiokafka 0.14 decompresses a batch whatever its size, builds as many headers as a record claims to
have, and stops at a header name that is not UTF-8: the same record is fetched and fails forever.
Brokers check none of these. Here a record that cannot be read is replaced by one that says so
(`contract.headers.UNREADABLE`), and reading goes on behind it. An ordinary batch is still parsed by
aiokafka's C reader, at the price of a comparison per record.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Final

from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import DefaultRecord, DefaultRecordBatch
from aiokafka.record.legacy_records import LegacyRecordBatch

from watchrelay.contract.headers import UNREADABLE
from watchrelay.core.text import counted, short
from watchrelay.kafka.client.decompress import NAMES, Broken, TooLarge, Unpacker

HEADERS_MAX: Final = 256
"""Of one record. A header of two bytes becomes a pair of objects: unpacked, a batch of zeros would
be a list of sixty million."""
FETCHED_BYTES_MAX: Final = 64 * 1024 * 1024
"""Decompressed, of one fetch of one partition: after so many bytes the rest is fetched again. A
fetch of 1 MiB can hold a thousand batches that are each within the limit. An ordinary fetch of
4 MiB comes to about this much."""
_ORDINARY_BYTES = 1024 * 1024
"""Unpacked, twice what a relay packs into a batch of several records. A larger one is taken apart
here, with its counts in view."""

_LENGTH = struct.Struct(">qi")
BATCH_HEAD = struct.Struct(">qiibIhiqqqhii")
"""Base offset, length, leader epoch, magic, checksum, attributes, last offset delta, first and
highest time, producer, its epoch, base sequence, number of records. Source: Kafka protocol guide,
"Record Batch"."""
_MAGIC_AT, _ATTRIBUTES_AT = 16, 21
_CODECS, _APPEND_TIME = 7, 8
_LEAST_BYTES = 26
"""Of a message in the oldest format."""
_VARINT_MAX = 10


class FetchedBatches:
    """The batches of one partition in one answer, in aiokafka's shape (`MemoryRecords`).

    The last may be cut off; after `FETCHED_BYTES_MAX` there is no next one.
    """

    def __init__(self, data: bytes, unpacker: Unpacker) -> None:
        self._data, self._unpacker = memoryview(data), unpacker
        self._at = self._handed_on = 0
        self._stop = self._end()

    def size_in_bytes(self) -> int:
        """Of the whole answer."""
        return len(self._data)

    def has_next(self) -> bool:
        """Whether a whole batch is left to hand on."""
        return self._stop > 0 and self._handed_on < FETCHED_BYTES_MAX

    def next_batch(self) -> Any:
        """The next batch, None if there is none."""
        if not self.has_next():
            return None
        data = self._data[self._at : self._stop]
        self._at = self._stop
        self._stop = self._end()
        if len(data) < _LEAST_BYTES:
            raise CorruptRecordException(f"a batch of {len(data)} bytes")
        magic = data[_MAGIC_AT]
        return FetchedBatch(data, self) if magic >= 2 else FetchedLegacyBatch(data, magic, self)

    def unpacked(self, codec: int, data: memoryview) -> bytes | memoryview:
        """Made plain and counted. Raises: TooLarge, Broken."""
        try:
            plain = self._unpacker.unpack(codec, data) if codec else data
        except TooLarge:
            self._handed_on += self._unpacker.limit_bytes  # the work was done all the same
            raise
        self._handed_on += len(plain)
        return plain

    def why(self, error: TooLarge | Broken, codec: int, size: int) -> str:
        """What is wrong with a batch that cannot be unpacked, and who can do something about it."""
        packed = f"of {size:,} bytes, {NAMES.get(codec, f'codec {codec}')},"
        if isinstance(error, Broken):
            return (
                f"{packed} cannot be unpacked ({short(str(error))}): passed over; find out "
                "who writes to this topic"
            )
        limit = self._unpacker.limit_bytes
        too_large = f"unpacks to more than {limit:,} bytes, and no relay writes that"
        return f"{packed} {too_large}: passed over; find out who else may write to this topic"

    def _end(self) -> int:
        if len(self._data) - self._at < _LENGTH.size:
            return 0
        stop: int = self._at + _LENGTH.size + _LENGTH.unpack_from(self._data, self._at)[1]
        return stop if self._at < stop <= len(self._data) else 0


def stand_in(offset: int, time_ms: int, why: str) -> Any:
    """A record in place of what cannot be read."""
    return DefaultRecord(offset, time_ms, 0, None, None, [(UNREADABLE, why.encode())])


class FetchedBatch:
    """A batch of today's format, in aiokafka's shape (`DefaultRecordBatch`)."""

    def __init__(self, data: memoryview, batches: FetchedBatches) -> None:
        self._data, self._batches = data, batches
        self._packed = batch = DefaultRecordBatch(data)
        self.base_offset, self.next_offset, self.producer_id = (
            batch.base_offset,
            batch.next_offset,
            batch.producer_id,
        )
        self.is_control_batch, self.is_transactional = (
            batch.is_control_batch,
            batch.is_transactional,
        )
        self.validate_crc = batch.validate_crc

    def __next__(self) -> Any:
        """The first record of a control batch, which brokers write."""
        return next(self._packed)

    def __iter__(self) -> Iterator[Any]:
        codec = self._packed.attributes & _CODECS
        try:
            body = self._batches.unpacked(codec, self._data[BATCH_HEAD.size :])
        except (TooLarge, Broken) as error:
            # At its last offset: a reader that began in the middle of the batch sees it, too.
            yield stand_in(
                self.next_offset - 1,
                self._packed.max_timestamp,
                self._named(self._batches.why(error, codec, len(self._data))),
            )
            return
        last = self.base_offset - 1
        try:
            for record in self._read(body):
                if not last < record.offset < self.next_offset or len(record.headers) > HEADERS_MAX:
                    break
                last = record.offset
                yield record
            else:
                return
        except (CorruptRecordException, ValueError):
            pass
        # once more from its first record: what was handed on already is passed over by its offset
        yield from self._taken_apart(body)

    def _read(self, body: bytes | memoryview) -> Any:
        """The records, by aiokafka's reader where the batch is of an ordinary size."""
        if len(body) > _ORDINARY_BYTES:
            return self._taken_apart(body)
        return (
            DefaultRecordBatch(self._plain(body))
            if self._packed.attributes & _CODECS
            else self._packed
        )

    def _named(self, what: str) -> str:
        first, last = self.base_offset, self.next_offset - 1
        return (
            "a batch "
            f"({f'offset {first}' if first == last else f'offsets {first} to {last}'}) {what}"
        )

    def _plain(self, body: bytes | memoryview) -> bytes:
        """The batch as if it had not been compressed."""
        head = bytearray(self._data[: BATCH_HEAD.size])
        head[_ATTRIBUTES_AT + 1] &= ~_CODECS
        return b"".join((head, body))

    def _taken_apart(self, body: bytes | memoryview) -> Iterator[Any]:
        """The records one by one: one that is broken hides none behind it, as long as it says where
        it ends."""
        head, view = BATCH_HEAD.unpack_from(self._data), memoryview(body)
        timed = first_ms, highest_ms, _ = head[7], head[8], bool(head[5] & _APPEND_TIME)
        offset, at = self.base_offset - 1, 0
        for _ in range(head[12]):
            offset = min(offset + 1, self.next_offset - 1)
            try:
                start, at = _span(view, at)
            except Broken as error:
                yield stand_in(
                    self.next_offset - 1,
                    highest_ms,
                    self._named(f"cannot be read from offset {offset} on: {error}"),
                )
                return
            try:
                record = self._record(view[:at], start + 1, offset, *timed)
            except Broken as error:
                record = stand_in(offset, first_ms, f"a record that {error}")
            offset = record.offset
            yield record

    def _record(
        self, data: memoryview, at: int, least: int, first_ms: int, highest_ms: int, by_broker: bool
    ) -> Any:
        """The record that ends where `data` does. Raises: Broken, going on from "a record that"."""
        delta_ms, at = _varint(data, at)
        delta, at = _varint(data, at)
        offset = self.base_offset + delta
        if not least <= offset < self.next_offset:  # brokers put no uncompressed record right
            raise Broken(
                f"says that its offset is {offset}, in a batch of offsets {self.base_offset} to "
                f"{self.next_offset - 1}"
            )
        return DefaultRecord(
            offset,
            highest_ms if by_broker else first_ms + delta_ms,
            int(by_broker),
            *_content(data, at),
        )


class FetchedLegacyBatch:
    """A message of a format before headers, perhaps with others inside: nothing of ours, in
    aiokafka's shape (`LegacyRecordBatch`)."""

    is_control_batch = is_transactional = False
    producer_id = None

    def __init__(self, data: memoryview, magic: int, batches: FetchedBatches) -> None:
        self._data, self._magic, self._batches = data, magic, batches
        self._packed = LegacyRecordBatch(data, magic)
        self.next_offset, self.validate_crc = self._packed.next_offset, self._packed.validate_crc

    def __iter__(self) -> Iterator[Any]:
        codec = self._data[_MAGIC_AT + 1] & _CODECS
        try:
            if codec:  # unpacked for its size alone: aiokafka does it again
                place = _LEAST_BYTES - 8 + 8 * self._magic
                place += 4 + max(0, struct.unpack_from(">i", self._data, place)[0])
                self._batches.unpacked(codec, self._data[place + 4 :])
            yield from self._packed
        except (TooLarge, Broken) as error:
            yield stand_in(
                self.next_offset - 1,
                0,
                f"a message {self._batches.why(error, codec, len(self._data))}",
            )
        except (AssertionError, CorruptRecordException, ValueError, struct.error) as error:
            yield stand_in(
                self.next_offset - 1,
                0,
                f"a message of an old format cannot be read: {short(str(error))}",
            )


def _span(data: memoryview, at: int) -> tuple[int, int]:
    """Where the record whose length is at `at` begins and ends. Raises: Broken."""
    length, start = _varint(data, at)
    if length < 0 or start + length > len(data):
        raise Broken("a record that ends behind its batch")
    return start, start + length


def _content(
    record: memoryview, at: int
) -> tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]:
    """Key, value and headers. Raises: Broken, going on from "a record that"."""
    key, at = _bytes(record, at)
    value, at = _bytes(record, at)
    count, at = _varint(record, at)
    if not 0 <= count <= HEADERS_MAX:
        raise Broken(f"has {counted(count, 'header')}: {HEADERS_MAX} are taken")
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        name, at = _bytes(record, at)
        content, at = _bytes(record, at)
        try:
            headers.append(((name or b"").decode(), content))
        except UnicodeDecodeError as error:
            raise Broken(f"has a header whose name is not UTF-8: {short(repr(name))}") from error
    if at != len(record):
        raise Broken(f"has {counted(len(record) - at, 'byte')} more than it says")
    return key, value, headers


def _bytes(data: memoryview, at: int) -> tuple[bytes | None, int]:
    length, at = _varint(data, at)
    if length < 0:
        return None, at
    if at + length > len(data):
        raise Broken("ends before it says")
    return bytes(data[at : at + length]), at + length


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """A zigzag varint, and the position behind it. Raises: Broken."""
    number = shift = 0
    for byte in data[at : at + _VARINT_MAX]:
        number |= (byte & 127) << shift
        shift += 7
        at += 1
        if byte < 128:
            return number >> 1 ^ -(number & 1), at
    raise Broken("ends in a number")
