"""Whatever a batch holds, reading ends behind it: with the records that a client wrote, or with one
that says why there are none.

As in `test_hostile.py`, inputs are legal ones with pieces cut and put in; the checksum is right, as
brokers see to.
"""

from __future__ import annotations

import pytest
from aiokafka.record.memory_records import MemoryRecords
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.properties.test_hostile import FUZZ, spoiled
from tests.support.extent import examples
from tests.support.rawbatches import CODECS, Raw, compressed, encoded, framed
from tests.unit.kafka.client.test_batches import fetched, handed_on
from watchrelay.contract.headers import UNREADABLE
from watchrelay.contract.records import decode
from watchrelay.core.errors import RecordRefused

_PIECES = [
    b"\x00",
    b"\x01",
    b"\xff",
    b"\xfe\xff\xff\xff\x0f",
    b"\x80" * 11,
    b"\x28\xb5\x2f\xfd",
    b"\x82SNAPPY\x00",
    b"\x1f\x8b",
    b"\x7f\xff\xff\xff",
]
_edits = st.lists(
    st.tuples(
        st.integers(0, 10_000), st.integers(0, 8), st.sampled_from(_PIECES) | st.binary(max_size=6)
    ),
    max_size=4,
)
_bytes = st.none() | st.binary(max_size=40)
_names = st.text(max_size=8).map(lambda name: name.encode(errors="replace"))
_records: st.SearchStrategy[list[Raw]] = st.lists(
    st.tuples(_bytes, _bytes, st.lists(st.tuples(_names, _bytes), max_size=4)),
    min_size=1,
    max_size=6,
)
_LIMIT_BYTES = 1 << 20


def plain(records: list[Raw]) -> bytes:
    return b"".join(encoded(record, index) for index, record in enumerate(records))


@settings(FUZZ, max_examples=examples(200))
@given(_records, st.sampled_from(sorted(CODECS)), st.integers(0, 1 << 40))
def test_whatever_a_client_may_write_is_handed_on_as_it_was_written(
    records: list[Raw], codec: str, base: int
) -> None:
    data = framed(compressed(plain(records), codec), len(records), codec=codec, base=base)
    found = fetched(data, start=base)
    assert found == handed_on(data, MemoryRecords, start=base)
    assert [(each.key, each.value) for each in found] == [(key, value) for key, value, _ in records]


@settings(FUZZ, max_examples=examples(300))
@given(_records, st.sampled_from(sorted(CODECS)), _edits, _edits, st.integers(-2, 9))
def test_whatever_a_batch_holds_is_records_or_refused_and_the_next_one_is_read(
    records: list[Raw],
    codec: str,
    inner: list[tuple[int, int, bytes]],
    outer: list[tuple[int, int, bytes]],
    more: int,
) -> None:
    body = spoiled(compressed(spoiled(plain(records), inner), codec), outer)
    broken = framed(body, max(1, len(records) + more), codec=codec)
    behind = framed(plain([(b"k", b"v", [])]), 1, base=100)
    found = fetched(broken + behind, limit_bytes=_LIMIT_BYTES)
    assert (found[-1].offset, found[-1].key) == (100, b"k")
    assert [each.offset for each in found] == sorted({each.offset for each in found})
    for each in found:
        assert all(name == UNREADABLE or name.encode() is not None for name, _ in each.headers)
        with pytest.raises(RecordRefused) as caught:
            decode(each.key, each.value, each.headers)
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 2000
