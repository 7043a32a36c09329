"""Partitions are those of Kafka's default partitioner."""

import pytest
from aiokafka.partitioner import murmur2 as theirs
from hypothesis import given
from hypothesis import strategies as st

from watchrelay.contract.partitioning import murmur2, partition_of


@pytest.mark.parametrize(
    ("data", "signed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_gives_the_values_of_kafkas_own_test(data: bytes, signed: int) -> None:
    assert murmur2(data) == signed % 2**32


@given(st.binary(max_size=700))
def test_murmur2_agrees_with_an_independent_client(data: bytes) -> None:
    assert murmur2(data) == theirs(data) % 2**32


def test_the_sign_bit_is_cleared_not_negated() -> None:
    assert partition_of(b"21", 1000) == ((-973932308) & 0x7FFFFFFF) % 1000
