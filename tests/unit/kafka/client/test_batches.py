"""What clients may write is handed on as aiokafka hands it on; what nobody should write becomes a
record that says so."""

from __future__ import annotations

import gzip
import struct
import tracemalloc
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import Any

import cramjam
import pytest
import zstandard
from aiokafka.codec import lz4_encode
from aiokafka.consumer.fetcher import READ_COMMITTED, PartitionRecords
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords
from aiokafka.record.util import calc_crc32c
from aiokafka.structs import TopicPartition

from tests.support.rawbatches import CODECS, Raw, batch, bomb, compressed, encoded, framed
from watchrelay.contract.age import APPEND_TIME
from watchrelay.contract.headers import varint
from watchrelay.contract.records import decode
from watchrelay.core.errors import RecordRefused
from watchrelay.kafka.client.batches import HEADERS_MAX, FetchedBatches
from watchrelay.kafka.client.decompress import (
    STATE_BYTES_MAX,
    WHOLE_BYTES_MAX,
    Broken,
    TooLarge,
    Unpacked,
)
from watchrelay.kafka.client.fetched import FetchedRecords

LEGAL: list[Raw] = [
    (b"shop/a", b"{}" * 300, [(b"ce_type", b"x"), ("ü€".encode(), None), (b"", b"")]),
    (None, None, []),
    (b"", b"", [(b"h", b"\xff\x00")]),
    *(
        (b"shop/%d" % number, bytes(range(256)) * 20, [(b"n", b"%d" % number)])
        for number in range(200)
    ),
]
MIB = 1 << 20


def handed_on(data: bytes, make: Callable[[bytes], Any], *, start: int = 0) -> list[Any]:
    """The records that a consumer of aiokafka gets of one answer, fetched from offset `start`."""
    place = TopicPartition("t", 0)
    return list(PartitionRecords(place, make(data), [], start, None, None, True, READ_COMMITTED))


def fetched(data: bytes, *, limit_bytes: int = STATE_BYTES_MAX, start: int = 0) -> list[Any]:
    """The records that our consumers get of it."""
    found = FetchedRecords(
        TopicPartition("t", 0),
        FetchedBatches(data),
        [],
        start,
        None,
        None,
        True,
        READ_COMMITTED,
        limits={"t": limit_bytes},
    )
    return [each for each in found if each is not None]


def unpacked(codec: str, data: bytes, limit_bytes: int) -> int:
    """How many bytes `data` comes to."""
    body, size = Unpacked(CODECS[codec], memoryview(data), limit_bytes), 0
    while part := body.read(MIB):
        size += len(part)
    return size


def why(record: Any) -> str:
    """Why a record is refused, "" where it is not one that replaces another."""
    with pytest.raises(RecordRefused) as caught:
        decode(record.key, record.value, record.headers)
    assert str(caught.value).isprintable()
    return "" if "not a record of watchrelay" in str(caught.value) else str(caught.value)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("start", [0, 3])
def test_what_clients_write_is_handed_on_as_before(codec: str, start: int) -> None:
    data = (
        batch(LEGAL, codec=codec)
        + batch(LEGAL[:1], codec=codec, base=len(LEGAL))
        + batch(LEGAL, codec=codec, base=1000)[:-1]
    )
    expected = handed_on(data, MemoryRecords, start=start)
    assert len(expected) == len(LEGAL) + 1 - start
    assert fetched(data, start=start) == expected


@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_larger_than_ours_is_taken_apart_into_the_same_records(codec: str) -> None:
    records = [*LEGAL, (b"shop/large", b"{" * 1024 * 1024 * 3, [])]
    data = batch(records, codec=codec, base=7)
    assert fetched(data, start=7) == handed_on(data, MemoryRecords, start=7)


@pytest.mark.parametrize("size", [300, 3 * MIB], ids=["ordinary", "taken apart"])
@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_the_time_that_a_broker_has_set_comes_with_its_type(codec: str, size: int) -> None:
    records: list[Raw] = [(b"shop/a", b"{" * size, []), (b"shop/b", b"{}", [])]
    data = bytearray(batch(records, codec=codec))
    data[22] |= 8  # LogAppendTime: the broker writes the highest time, and the checksum again
    data[35:43] = struct.pack(">q", 99)
    data[17:21] = struct.pack(">I", calc_crc32c(bytes(data[21:])))
    times = [(each.timestamp, each.timestamp_type) for each in fetched(bytes(data))]
    assert times == [(99, APPEND_TIME)] * 2
    plain = fetched(batch(records, codec=codec))
    assert {each.timestamp_type for each in plain} == {0}


@pytest.mark.parametrize(
    "body",
    [
        lambda plain: zstandard.ZstdCompressor(write_content_size=False).compress(plain),
        lambda plain: compressed(plain[:99], "zstd") + compressed(plain[99:], "zstd"),
        lambda plain: zstandard.ZstdCompressor(write_checksum=True).compress(plain),
    ],
    ids=["no size", "two frames", "checksum"],
)
def test_every_form_of_zstd_is_read(body: Callable[[bytes], bytes]) -> None:
    plain = b"".join(encoded(record, index) for index, record in enumerate(LEGAL))
    assert fetched(framed(body(plain), len(LEGAL), codec="zstd")) == fetched(batch(LEGAL))


def test_members_of_gzip_blocks_of_lz4_and_plain_snappy_are_read() -> None:
    plain = bytes(range(256)) * 40_000
    packed = {
        "gzip": gzip.compress(plain[:500]) + gzip.compress(plain[500:]),
        "lz4": bytes(lz4_encode(plain)),  # of blocks that need none before them
        "snappy": bytes(cramjam.snappy.compress_raw(plain)),
    }
    packed["lz4"] += packed["lz4"]  # frames
    for codec, data in packed.items():
        body = Unpacked(CODECS[codec], memoryview(data), 2 * len(plain))
        expected = plain * 2 if codec == "lz4" else plain
        assert body.read(3 * len(plain)) == expected


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_exactly_the_limit_is_unpacked_and_a_byte_more_is_not(codec: str) -> None:
    packed = compressed(bytes(3 * MIB), codec)
    assert unpacked(codec, packed, 3 * MIB) == 3 * MIB
    with pytest.raises(TooLarge):
        unpacked(codec, packed, 3 * MIB - 1)


def zeros(codec: str) -> bytes:
    return compressed(bytes(64 * MIB), codec)


def lying() -> bytes:
    packed = bytearray(zeros("zstd"))
    struct.pack_into("<I", packed, 5, 1000)  # the frame's content size, in four bytes
    return bytes(packed)


BOMBS: dict[str, Callable[[], bytes]] = {
    **{codec: partial(zeros, codec) for codec in ("gzip", "snappy", "lz4", "zstd")},
    "zstd, no size": lambda: zstandard.ZstdCompressor(write_content_size=False).compress(
        bytes(64 * MIB)
    ),
    "zstd, a size that is a lie": lying,
    "zstd, many frames": lambda: compressed(bytes(MIB), "zstd") * 64,
    "snappy, plain": lambda: bytes(cramjam.snappy.compress_raw(bytes(64 * MIB))),
    "snappy, a size that is a lie": lambda: b"\xff\xff\xff\xff\x0f" + b"\0" * 9,
    "lz4, many frames": lambda: compressed(bytes(MIB), "lz4") * 64,
}


@pytest.mark.parametrize("kind", BOMBS)
def test_no_bomb_takes_more_memory_than_its_limit(kind: str) -> None:
    packed = BOMBS[kind]()
    tracemalloc.start()
    try:
        with pytest.raises((TooLarge, Broken)):
            unpacked(kind.partition(",")[0], packed, 4 * MIB)
        assert tracemalloc.get_traced_memory()[1] < 10 * MIB
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_a_bomb_is_reported_with_offsets_and_sizes_and_reading_goes_on_behind_it(
    codec: str,
) -> None:
    bombs = bomb(codec, 9, base=1)
    data = batch(LEGAL[:1], base=0) + bombs + batch(LEGAL[:1], base=2)
    before, skipped, behind = fetched(data, limit_bytes=8 * MIB)
    assert (before.offset, skipped.offset, behind.offset) == (0, 1, 2)
    assert why(skipped) == (
        f"a batch (offset 1) of {len(bombs):,} bytes, {codec}, unpacks to more than "
        "8,388,608 bytes, and no relay writes that: "
        "passed over; find out who else may write to this topic"
    )


def test_a_bomb_is_reported_to_a_reader_that_begins_in_its_middle() -> None:
    records: Sequence[Raw] = [(b"k", bytes(MIB), [])] * 12
    skipped, behind = fetched(
        batch(records, codec="zstd", base=5) + batch(LEGAL[:1], base=17),
        limit_bytes=8 * MIB,
        start=11,
    )
    assert (skipped.offset, behind.offset) == (16, 17)
    assert "(offsets 5 to 16)" in why(skipped)


@pytest.mark.parametrize("codec", CODECS)
def test_a_header_whose_name_is_not_utf_8_costs_its_record_alone(codec: str) -> None:
    records: list[Raw] = [
        LEGAL[0],
        (b"shop/b", b"{}", [(b"ce_type", b"x"), (b"ce_\xff\x1b[2J", b"v")]),
        LEGAL[0],
    ]
    first, skipped, last = fetched(batch(records, codec=codec))
    assert why(skipped) == r"a record that has a header whose name is not UTF-8: b'ce_\xff\x1b[2J'"
    assert (skipped.key, skipped.offset) == (None, 1)
    assert [first, last] == [
        record for record in fetched(batch([LEGAL[0]] * 3)) if record.offset != 1
    ]


@pytest.mark.parametrize("codec", ["none", "zstd"])
@pytest.mark.parametrize("padding", [b"", bytes(2 * MIB)], ids=["ordinary", "large"])
def test_a_record_with_headers_without_measure_is_not_handed_on(codec: str, padding: bytes) -> None:
    records: list[Raw] = [
        (b"k", padding, [(b"", b"")] * HEADERS_MAX),
        (b"k", b"", [(b"", b"")] * (HEADERS_MAX + 1)),
        LEGAL[0],
    ]
    legal, skipped, last = fetched(batch(records, codec=codec))
    assert (len(legal.headers), last.key) == (HEADERS_MAX, b"shop/a")
    assert why(skipped) == "a record that has 257 headers: 256 are taken"


def test_fifteen_million_headers_are_counted_and_not_made() -> None:
    skipped = varint(15 * MIB)
    body = b"\0\0\0\x01\x01" + skipped + bytes(30 * MIB)
    data = framed(compressed(varint(len(body)) + body, "zstd"), 1, codec="zstd")
    assert len(data) < 20_000
    (record,) = fetched(data)
    assert why(record) == "a record that has 15728640 headers: 256 are taken"


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "zstd"])
def test_a_record_larger_than_any_is_passed_over_and_the_next_one_read(codec: str) -> None:
    records: list[Raw] = [(b"k", bytes(WHOLE_BYTES_MAX), []), LEGAL[0]]
    skipped, last = fetched(batch(records, codec=codec))
    assert (skipped.offset, last.key) == (0, b"shop/a")
    assert why(skipped) == "a record that has 41,943,050 bytes: 41,943,040 are taken"


def tiny_blocks(codec: str) -> bytes:
    """As much work to unpack as a few hundred kilobytes can be."""
    match codec:
        case "gzip":
            return gzip.compress(b"") * 60_000
        case "snappy":
            return b"\x82SNAPPY\0\0\0\0\1\0\0\0\1" + b"\0\0\0\3\1\0a" * 60_000
        case "lz4":
            return b"\x04\x22\x4d\x18\x60\x40\x82" + b"\2\0\0\0\x10a" * 60_000 + b"\0\0\0\0"
        case _:
            return zstandard.ZstdCompressor().compress(b"") * 60_000


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_blocks_without_measure_are_not_all_unpacked(codec: str) -> None:
    (skipped,) = fetched(framed(tiny_blocks(codec), 1, codec=codec))
    cut_off = "a record that ends after its batch"
    assert ("it has more than 50,000 blocks" in why(skipped)) or cut_off in why(skipped)


def test_a_batch_that_no_codec_can_unpack_is_reported_and_skipped() -> None:
    data = framed(b"no zstd at all", 3, codec="zstd") + batch(LEGAL[:1], base=3)
    skipped, behind = fetched(data)
    assert (skipped.offset, behind.offset) == (2, 3)
    assert why(skipped).startswith(
        "a batch (offsets 0 to 2) of 75 bytes, zstd, cannot be unpacked ("
    )


@pytest.mark.full
def test_however_many_records_are_in_a_batch_a_few_are_in_memory() -> None:
    count = (STATE_BYTES_MAX - MIB) // 7
    data = framed(compressed(b"\x0c\0\0\0\x01\0\0" * count, "zstd"), count, codec="zstd")
    found = FetchedRecords(
        TopicPartition("t", 0),
        FetchedBatches(data),
        [],
        0,
        None,
        None,
        True,
        READ_COMMITTED,
        limits={},
    )
    tracemalloc.start()
    try:
        handed = sum(record is not None for record in islice(found, 100_000))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    print(f"{count:,} records: peak {peak >> 10:,} KiB")
    assert handed > 90_000
    assert peak < 4 * MIB


@pytest.mark.parametrize("magic", [0, 1])
def test_a_bomb_in_an_old_format_is_reported_and_a_legal_message_read(magic: int) -> None:
    def message(size: int) -> bytes:
        builder = LegacyRecordBatchBuilder(magic, 1, 99 * MIB)
        builder.append(0, 7, b"k", bytes(size))
        return bytes(builder.build())

    assert [record.value for record in fetched(message(1000))] == [bytes(1000)]
    (skipped,) = fetched(message(9 * MIB), limit_bytes=8 * MIB)
    assert "unpacks to more than 8,388,608 bytes" in why(skipped)


@pytest.mark.parametrize("delta", [3, 1 << 30, 0])
def test_a_record_with_the_offset_of_another_does_not_lead_readers_astray(delta: int) -> None:
    body = encoded(LEGAL[0], 0) + encoded((b"k", b"v", []), delta) + encoded(LEGAL[0], 2)
    first, skipped, last = fetched(framed(body, 3, base=5))
    assert (first.offset, skipped.offset, last.offset) == (5, 6, 7)
    assert (
        why(skipped)
        == f"a record that says that its offset is {5 + delta}, in a batch of offsets 5 to 7"
    )


# ---- the defects: a test that fails here says that `batches` is needless -------------------------


def test_aiokafka_ends_at_a_header_whose_name_is_not_utf_8() -> None:
    data = batch([(b"a", b"1", [(b"\xff", b"")]), (b"b", b"2", [])])
    with pytest.raises(UnicodeDecodeError):
        handed_on(data, MemoryRecords)


def test_aiokafka_decompresses_without_a_bound() -> None:
    data = bomb("zstd", 9)
    assert why(fetched(data, limit_bytes=MIB)[0])
    assert not why(handed_on(data, MemoryRecords)[0])


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(
    "body",
    [
        encoded((None, None, []), 0),
        encoded((b"\0", None, []), 0),
        encoded((b"k", b"v", [(b"\xff", b"")]), 0),
        b"\xff" * 20,
        b"",
    ],
    ids=["no key", "a short key", "a header whose name is not UTF-8", "no record", "nothing"],
)
def test_a_control_batch_that_no_broker_wrote_is_passed_over(body: bytes, codec: str) -> None:
    control = framed(compressed(body, codec), 1, codec=codec, attributes=0x30, producer=(7, 0, 0))
    after = batch([(b"after", b"", [])], base=1)
    assert [each.key for each in fetched(control + after)] == [b"after"]
