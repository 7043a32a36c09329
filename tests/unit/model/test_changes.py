"""The block of an entry: hash, uid and compressed bytes."""

import pytest

from watchrelay.model.changes import Entry, length_prefixed


@pytest.mark.parametrize("uid", ["", "u", "\u00e9", "u" * 256, "u" * 70_000])
@pytest.mark.parametrize("value_hash", [0, 2**64 - 1])
def test_an_entry_has_what_it_was_made_of(uid: str, value_hash: int) -> None:
    entry = Entry.of(uid, "7", 2, value_hash=value_hash, packed=b"packed", position=3)
    for packed in (b"packed", b"", b"packed again"):
        entry.packed = packed
        assert (entry.uid, entry.hash, entry.packed) == (uid, value_hash, packed)
    assert (entry.resource_version, entry.partition, entry.position) == ("7", 2, 3)


@pytest.mark.parametrize("other", ["", "u1", "u100", "10", "u11"])
def test_a_uid_is_another_also_where_it_begins_or_ends_alike(other: str) -> None:
    entry = Entry.of("u10", "7", 0, packed=b"packed")
    assert entry.has_uid(length_prefixed("u10"))
    assert not entry.has_uid(length_prefixed(other))
    assert entry.has_tail(length_prefixed("u10") + b"packed")
    assert not entry.has_tail(length_prefixed(other) + b"packed")


@pytest.mark.parametrize("packed", [b"", b"packe", b"acked", b"packed!", b"!packed"])
def test_other_bytes_are_another_tail(packed: bytes) -> None:
    entry = Entry.of("u10", "7", 0, packed=b"packed")
    assert not entry.has_tail(length_prefixed("u10") + packed)
    assert not entry.has_tail(packed)


def test_a_byte_that_moves_from_the_uid_to_the_value_is_a_difference() -> None:
    entry = Entry.of("ab", "7", 0, packed=b"c")
    assert not entry.has_tail(length_prefixed("a") + b"bc")
