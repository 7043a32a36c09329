"""Fetched record batches, parsed within bounds.

aiokafka 0.14 decompresses a batch whatever its size, builds as many headers as a record claims to
have, and stops at a header name that is not UTF-8: the same record is fetched and fails forever.
Brokers check none of these. Here a record that cannot be read is replaced by one that says so
(`contract.headers.UNREADABLE`), and reading goes on after it. An ordinary batch is still parsed by
aiokafka's C reader, at the price of a comparison per record; a larger one is unpacked in pieces.
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
from watchrelay.kafka.client.decompress import (
    NAMES,
    PIECE_BYTES,
    STATE_BYTES_MAX,
    WHOLE_BYTES_MAX,
    Broken,
    Misshapen,
    TooLarge,
    Unpacked,
)

HEADERS_MAX: Final = 256
"""Of one record. A header of two bytes becomes a pair of objects: unpacked, a batch of zeros would
be a list of sixty million."""
_ORDINARY_BYTES = 1024 * 1024
"""Unpacked, twice what a relay packs into a batch of several records. A larger one is taken apart
here, with its counts in view."""

_LENGTH = struct.Struct(">qi")
_LEADER_EPOCH = struct.Struct(">i")
BATCH_HEAD = struct.Struct(">qiibIhiqqqhii")
"""Base offset, length, leader epoch, magic, checksum, attributes, last offset delta, first and
highest time, producer, its epoch, base sequence, number of records. Source: Kafka protocol guide,
"Record Batch"."""
_MAGIC_AT, _ATTRIBUTES_AT = 16, 21
_CODECS, _APPEND_TIME = 7, 8
_LEAST_BYTES = 26
"""Of a message in the oldest format."""

Records = Iterator[Any]
"""Records, and None where nothing was found for a while: the caller may pause there."""


class FetchedBatches:
    """The batches of one partition in one answer, in aiokafka's shape (`MemoryRecords`); the last
    may be cut off. `unpacked_bytes_max`: what one of them may come to."""

    def __init__(self, data: bytes) -> None:
        self.unpacked_bytes_max = STATE_BYTES_MAX
        self._data = memoryview(data)
        self._at = 0
        self._stop = self._end()

    def size_in_bytes(self) -> int:
        """Of the whole answer."""
        return len(self._data)

    def has_next(self) -> bool:
        """Whether a whole batch is left to hand on."""
        return self._stop > 0

    def next_batch(self) -> Any:
        """The next batch, None if there is none."""
        if not self.has_next():
            return None
        data = self._data[self._at : self._stop]
        self._at = self._stop
        self._stop = self._end()
        if len(data) < _LEAST_BYTES:
            raise CorruptRecordException(f"a batch of {len(data)} bytes")
        if (magic := data[_MAGIC_AT]) < 2:
            return FetchedLegacyBatch(data, magic, self.unpacked_bytes_max)
        return FetchedBatch(data, self.unpacked_bytes_max)

    def _end(self) -> int:
        if len(self._data) - self._at < _LENGTH.size:
            return 0
        stop: int = self._at + _LENGTH.size + _LENGTH.unpack_from(self._data, self._at)[1]
        return stop if self._at < stop <= len(self._data) else 0


def _why(error: TooLarge | Broken, codec: int, size: int) -> str:
    """What is wrong with a batch that cannot be unpacked, and who can do something about it."""
    packed = f"of {size:,} bytes, {NAMES.get(codec, f'codec {codec}')},"
    if isinstance(error, Broken):
        return (
            f"{packed} cannot be unpacked ({short(str(error))}): passed over; find out "
            "who writes to this topic"
        )
    too_large = f"unpacks to more than {error.limit_bytes:,} bytes, and no relay writes that"
    return f"{packed} {too_large}: passed over; find out who else may write to this topic"


def stand_in(offset: int, time_ms: int, why: str) -> Any:
    """A record in place of what cannot be read."""
    return DefaultRecord(offset, time_ms, 0, None, None, [(UNREADABLE, why.encode())])


class FetchedBatch:
    """A batch of today's format, in aiokafka's shape (`DefaultRecordBatch`)."""

    def __init__(self, data: memoryview, unpacked_bytes_max: int) -> None:
        self._data, self._unpacked_bytes_max = data, unpacked_bytes_max
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
        (self.leader_epoch,) = _LEADER_EPOCH.unpack_from(data, _LENGTH.size)

    def control_key(self) -> bytes:
        """The key of a control batch's first record; b"" where it is not as brokers write it, which
        compress none."""
        if self._packed.attributes & _CODECS:
            return b""
        try:
            record = next(self._packed, None)
        except (CorruptRecordException, ValueError):
            return b""
        return (record.key or b"") if record is not None else b""

    def __iter__(self) -> Records:
        codec = self._packed.attributes & _CODECS
        try:
            body = self._unpacked(codec)
            start = body.read(_ORDINARY_BYTES + 1)
            if len(start) <= _ORDINARY_BYTES:
                yield from self._ordinary(start)
                return
            while body.read(PIECE_BYTES):  # none of its records is handed on if it is too large
                yield None
            yield from self._taken_apart(self._unpacked(codec))
        except (TooLarge, Broken) as error:
            # At its last offset: a reader that began in the middle of the batch sees it, too.
            yield stand_in(
                self.next_offset - 1,
                self._packed.max_timestamp,
                self._named(_why(error, codec, len(self._data))),
            )

    def _unpacked(self, codec: int) -> Unpacked:
        body = self._data[BATCH_HEAD.size :]
        return Unpacked(codec, body, self._unpacked_bytes_max if codec else len(body))

    def _ordinary(self, body: bytes) -> Records:
        """The records, by aiokafka's reader up to the first that is not valid."""
        is_packed = self._packed.attributes & _CODECS
        last, stop = self.base_offset - 1, self.next_offset
        try:
            for record in DefaultRecordBatch(self._plain(body)) if is_packed else self._packed:
                offset = record.offset
                if not last < offset < stop or len(record.headers) > HEADERS_MAX:
                    break
                last = offset
                yield record
            else:
                return
        except (CorruptRecordException, ValueError):
            pass
        # once more from its first record: what was handed on already is passed over by its offset
        yield from self._taken_apart(Unpacked(0, memoryview(body), len(body)))

    def _named(self, what: str) -> str:
        first, last = self.base_offset, self.next_offset - 1
        return (
            "a batch "
            f"({f'offset {first}' if first == last else f'offsets {first} to {last}'}) {what}"
        )

    def _plain(self, body: bytes) -> bytes:
        """The batch as if it had not been compressed."""
        head = bytearray(self._data[: BATCH_HEAD.size])
        head[_ATTRIBUTES_AT + 1] &= ~_CODECS
        return b"".join((head, body))

    def _taken_apart(self, body: Unpacked) -> Records:
        """The records one by one: one that is broken hides none after it, if it says where it ends.
        Raises: TooLarge, Broken of the whole batch."""
        head = BATCH_HEAD.unpack_from(self._data)
        timed = first_ms, highest_ms, _ = head[7], head[8], bool(head[5] & _APPEND_TIME)
        offset = self.base_offset - 1
        for _ in range(head[12]):
            least, offset = offset + 1, min(offset + 1, self.next_offset - 1)
            try:
                length = body.length()
                stop = body.position + length
                try:
                    record = self._record(body, stop, least, *timed)
                except Misshapen as error:
                    record = stand_in(offset, first_ms, f"a record that {error}")
                    yield from body.skip(stop - body.position)
            except Broken as error:
                yield stand_in(
                    self.next_offset - 1,
                    highest_ms,
                    self._named(f"cannot be read from offset {offset} on: {error}"),
                )
                return
            offset = record.offset
            yield record

    def _record(
        self, data: Unpacked, stop: int, least: int, first_ms: int, highest_ms: int, by_broker: bool
    ) -> Any:
        """The record that ends at `stop`. Raises: Misshapen, Broken."""
        if (size := stop - data.position) > WHOLE_BYTES_MAX:
            raise Misshapen(f"has {size:,} bytes: {WHOLE_BYTES_MAX:,} are taken")
        data.exactly(1)  # attributes: there are none
        delta_ms, delta = data.varint(stop), data.varint(stop)
        offset = self.base_offset + delta
        if not least <= offset < self.next_offset:  # brokers correct none in uncompressed batches
            raise Misshapen(
                f"says that its offset is {offset}, in a batch of offsets {self.base_offset} to "
                f"{self.next_offset - 1}"
            )
        return DefaultRecord(
            offset,
            highest_ms if by_broker else first_ms + delta_ms,
            int(by_broker),
            *_content(data, stop),
        )


class FetchedLegacyBatch:
    """A message of a format before headers, perhaps with others inside, in aiokafka's shape
    (`LegacyRecordBatch`). No relay writes one."""

    is_control_batch = is_transactional = False
    producer_id = None
    base_offset = 0
    leader_epoch = -1

    def __init__(self, data: memoryview, magic: int, unpacked_bytes_max: int) -> None:
        self._data, self._magic = data, magic
        self._unpacked_bytes_max = min(unpacked_bytes_max, WHOLE_BYTES_MAX)
        self._packed = LegacyRecordBatch(data, magic)
        self.next_offset, self.validate_crc = self._packed.next_offset, self._packed.validate_crc

    def __iter__(self) -> Records:
        codec = self._data[_MAGIC_AT + 1] & _CODECS
        try:
            if codec:  # unpacked for its size alone: aiokafka does it again
                place = _LEAST_BYTES - 8 + 8 * self._magic
                place += 4 + max(0, struct.unpack_from(">i", self._data, place)[0])
                body = Unpacked(codec, self._data[place + 4 :], self._unpacked_bytes_max)
                while body.read(PIECE_BYTES):
                    yield None
            yield from self._packed
        except (TooLarge, Broken) as error:
            yield stand_in(
                self.next_offset - 1,
                0,
                f"a message {_why(error, codec, len(self._data))}",
            )
        except (AssertionError, CorruptRecordException, ValueError, struct.error) as error:
            yield stand_in(
                self.next_offset - 1,
                0,
                f"a message of an old format cannot be read: {short(str(error))}",
            )


def _content(
    record: Unpacked, stop: int
) -> tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]:
    """Key, value and headers. Raises: Misshapen, Broken."""
    key, value = _bytes(record, stop), _bytes(record, stop)
    count = record.varint(stop)
    if not 0 <= count <= HEADERS_MAX:
        raise Misshapen(f"has {counted(count, 'header')}: {HEADERS_MAX} are taken")
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        name, content = _bytes(record, stop), _bytes(record, stop)
        try:
            headers.append(((name or b"").decode(), content))
        except UnicodeDecodeError as error:
            raise Misshapen(f"has a header whose name is not UTF-8: {short(repr(name))}") from error
    if (left := stop - record.position) != 0:
        raise Misshapen(f"has {counted(left, 'byte')} more than it says")
    return key, value, headers


def _bytes(record: Unpacked, stop: int) -> bytes | None:
    length = record.varint(stop)
    if length < 0:
        return None
    if record.position + length > stop:
        raise Misshapen("ends before it says")
    return record.exactly(length)
