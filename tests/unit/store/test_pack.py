"""Packed objects come back as they were, whatever was learnt in between."""

from collections.abc import Iterator
from types import MethodType
from typing import cast

import msgspec

from tests.support.pods import pod
from watchrelay.store.pack import ObjectCompressor

PODS = [msgspec.json.encode(pod(number)) for number in range(400)]


def test_what_was_packed_before_training_is_read_after_it() -> None:
    packer = ObjectCompressor()
    before = [packer.pack(value) for value in PODS]
    assert packer.train(PODS)
    after = [packer.pack(value) for value in PODS]
    assert [packer.unpack(packed) for packed in before] == PODS
    assert [packer.unpack(memoryview(packed)) for packed in after] == PODS
    assert sum(map(len, after)) * 2 < sum(map(len, before))


def test_equal_values_pack_to_equal_bytes_whatever_was_packed_in_between() -> None:
    packer = ObjectCompressor()
    packer.train(PODS)
    first = [packer.pack(value) for value in PODS]
    packer.pack(b"x" * 3_000_000)
    assert [packer.pack(value) for value in reversed(PODS)] == first[::-1]


def test_too_little_to_learn_from_is_no_error() -> None:
    packer = ObjectCompressor()
    assert not packer.train([b"{}"] * 3)
    assert packer.trained
    assert packer.unpack(packer.pack(b"{}")) == b"{}"


def test_large_samples_do_not_hold_up_the_loop() -> None:
    packer = ObjectCompressor()
    taken = 0

    def large() -> Iterator[bytes]:
        nonlocal taken
        for number in range(400):
            taken += 1
            yield PODS[number] * 250

    assert packer.train(large())
    assert taken <= 40


def test_packers_without_a_dictionary_share_one_compressor() -> None:
    one, other = (cast("MethodType", ObjectCompressor().pack) for _ in range(2))
    assert one.__self__ is other.__self__
