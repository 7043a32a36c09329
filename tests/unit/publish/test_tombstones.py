"""A log whose deletes are values: where a tombstone is pending."""

from __future__ import annotations

import dataclasses

import pytest

from tests.support.relays import spec_of
from watchrelay.contract.records import ObjectRecord, decode, encoder_for
from watchrelay.contract.wire import WireRecord
from watchrelay.model.streams import StreamSpec
from watchrelay.publish.recovery import LogRecovery


def deleted(sequence: int, *, tombstone: bool = False) -> WireRecord:
    encoder = encoder_for(_spec(), 1)
    return encoder.object(
        0, sequence, b"n/a", None, "deleted", "watch", "u", "7", 0, 1, "", tombstone
    )


def _spec() -> StreamSpec:
    return dataclasses.replace(spec_of(), format="structured")


@pytest.mark.parametrize(
    ("records", "pending"),
    [
        ([deleted(1)], True),
        ([deleted(1), deleted(2, tombstone=True)], False),
        ([deleted(1), deleted(2, tombstone=True), deleted(1)], True),
        ([deleted(1), deleted(2, tombstone=True), deleted(1), deleted(2, tombstone=True)], False),
    ],
)
def test_a_tombstone_is_pending_where_the_last_record_of_a_deleted_key_is_a_value(
    records: list[WireRecord], pending: bool
) -> None:
    recovery = LogRecovery("pods", 0, partitions=1, pack=lambda _value, _version: b"")
    for record in records:
        decoded = decode(*record)
        assert isinstance(decoded, ObjectRecord)
        recovery.apply([decoded])
    assert (b"n/a" in recovery.to_repair) == pending
