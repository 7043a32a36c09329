"""Headers as a record holds them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from watchrelay.contract.headers import LENGTHS, HeaderBlock, encode_headers, starts_of, varint

HEADERS = st.lists(st.tuples(st.text(max_size=40), st.binary(max_size=300)), max_size=40)


@given(headers=HEADERS)
def test_a_block_reads_as_the_headers_it_was_made_of(headers: list[tuple[str, bytes]]) -> None:
    block = HeaderBlock.of(headers)
    assert list(block) == headers
    assert len(block) == len(headers)
    assert block.encoded == varint(len(headers)) + encode_headers(headers)


@given(value=st.binary(max_size=LENGTHS - 1))
def test_the_start_of_a_header_and_its_value_are_the_header(value: bytes) -> None:
    assert starts_of("ce_name")[len(value)] + value == encode_headers([("ce_name", value)])
