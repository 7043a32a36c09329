"""The bytes that Kafka gets of any records, read by aiokafka's own reader."""

import random

import pytest
from aiokafka.record.default_records import DefaultRecordBatch
from hypothesis import given
from hypothesis import strategies as st

from watchrelay.contract.headers import varint
from watchrelay.contract.wire import WireRecord
from watchrelay.kafka.client.record_batch import OVERHEAD_BYTES, PackedBatch, Packer
from watchrelay.kafka.partition import TopicLimits

HEADERS = st.lists(
    st.tuples(
        st.sampled_from(["ce_id", "ce_wrhash", "content-type", "ä"]), st.binary(max_size=300)
    ),
    max_size=4,
)
RECORDS = st.lists(
    st.builds(WireRecord, st.binary(max_size=40), st.none() | st.binary(max_size=600), HEADERS),
    max_size=30,
)


def pack(
    records: list[WireRecord],
    *,
    most: int = 1000,
    batch_bytes: int = 1 << 20,
    limit_bytes: int = 1 << 20,
) -> tuple[list[PackedBatch], int | None]:
    """All of them, or those before one that is too large, and its index."""
    packer, batches, at = Packer(), list[PackedBatch](), 0
    while at < len(records):
        batch = packer.pack(
            records[at:], most=most, limits=TopicLimits(limit_bytes, batch_bytes), now_ms=1234
        )
        if isinstance(batch, int):
            return batches, at + batch
        batches.append(batch)
        at += batch.count
    return batches, None


def built(batch: PackedBatch, producer: tuple[int, int, int] = (1, 2, 3)) -> bytes:
    batch.stamp(*producer)
    return batch.data


def read(data: bytes) -> list[WireRecord]:
    batch = DefaultRecordBatch(data)
    assert batch.validate_crc()
    return [WireRecord(record.key, record.value, list(record.headers)) for record in batch]


def noise(size: int) -> bytes:
    return random.Random(size).randbytes(size)


@given(RECORDS, st.integers(200, 2000))
def test_what_was_packed_is_read_back_in_order_and_within_the_bound(
    records: list[WireRecord], batch_bytes: int
) -> None:
    batches, too_large = pack(records, batch_bytes=batch_bytes)
    assert too_large is None
    assert [record for batch in batches for record in read(built(batch))] == records
    for batch in batches:
        assert batch.size == len(built(batch))
        assert batch.raw_bytes + OVERHEAD_BYTES <= batch_bytes or batch.count == 1


@given(RECORDS, st.integers(70, 700))
def test_the_first_record_over_the_limit_is_named_before_anything_is_packed(
    records: list[WireRecord], limit_bytes: int
) -> None:
    batches, too_large = pack(records, limit_bytes=limit_bytes)
    if too_large is None:
        assert sum(batch.count for batch in batches) == len(records)
        assert all(batch.size <= limit_bytes for batch in batches)
    else:
        assert not batches
        alone = [pack([record])[0][0].size > limit_bytes for record in records]
        assert alone.index(True) == too_large


@given(RECORDS, st.integers(1, 5))
def test_a_batch_has_at_most_as_many_records_as_it_may(
    records: list[WireRecord], most: int
) -> None:
    batches, _ = pack(records, most=most)
    assert [record for batch in batches for record in read(built(batch))] == records
    assert all(batch.count == most for batch in batches[:-1])


def test_a_resend_differs_in_nothing_but_who_sent_it() -> None:
    batch = pack([WireRecord(b"k", b"v" * 100, [("a", b"b")])])[0][0]
    first, second = built(batch, (1, 0, 0)), built(batch, (9, 0, 77))
    assert first[OVERHEAD_BYTES:] == second[OVERHEAD_BYTES:]
    assert read(first) == read(second)
    again = DefaultRecordBatch(second)
    assert (again.producer_id, again.base_sequence) == (9, 77)


def test_the_time_is_that_of_packing_for_each_record() -> None:
    batch = DefaultRecordBatch(built(pack([WireRecord(b"k", None, [])] * 3)[0][0]))
    assert [record.timestamp for record in batch] == [1234] * 3


def test_what_does_not_shrink_is_sent_as_it_is() -> None:
    record = WireRecord(b"k", noise(2000), [])
    data = built(pack([record])[0][0])
    assert DefaultRecordBatch(data).compression_type == 0
    assert read(data) == [record]


def test_what_shrinks_is_compressed_with_zstd() -> None:
    data = built(pack([WireRecord(b"k", b"v" * 5000, [])])[0][0])
    assert DefaultRecordBatch(data).compression_type == 4
    assert len(data) < 200


def test_a_large_value_and_a_long_header_are_read_back() -> None:
    record = WireRecord(b"k" * 9000, noise(200_000), [("ce_wrbegin", b"x" * 70_000)])
    assert read(built(pack([record])[0][0])) == [record]


@pytest.mark.parametrize(
    ("number", "encoded"),
    [(0, "00"), (1, "02"), (63, "7e"), (64, "8001"), (8191, "fe7f"), (8192, "808001")],
)
def test_lengths_are_zigzag_varints(number: int, encoded: str) -> None:
    assert varint(number).hex() == encoded
