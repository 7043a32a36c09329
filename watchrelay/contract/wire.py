"""The values of the record contract: verbs, reasons, positions, records, batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from watchrelay.contract.headers import Header, HeaderBlock

Verb = Literal["added", "modified", "deleted", "read"]
Reason = Literal["watch", "relist", "resume", "conflated", "snapshot", "healed"]
MarkerKind = Literal["claim", "begin", "end", "heartbeat"]


class Position(NamedTuple):
    """Place of a record within one stream and partition; ordered as a tuple."""

    epoch: int
    sequence: int


class WireRecord(NamedTuple):
    """One Kafka record ready to append; value None is a tombstone."""

    key: bytes
    value: bytes | None
    headers: Sequence[Header] | HeaderBlock


class Batch(NamedTuple):
    """Records of one partition that are sent together, in order; `stream`: whose status reports
    them."""

    topic: str
    partition: int
    records: list[WireRecord]
    stream: str = ""


class Receipt(NamedTuple):
    """The broker acknowledged a batch: record i of it is at `offsets[i]`."""

    offsets: list[int]
