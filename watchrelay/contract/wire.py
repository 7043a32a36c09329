"""What is published: names of the contract (`docs/record-contract.md`) as values.

Room: model. In: relay makes these. Out: codec renders them, sink sends them, consumer reads them
back.
"""

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
    """One Kafka record ready to append. Shape: value None is a tombstone; headers in the order they
    are written."""

    key: bytes
    value: bytes | None
    headers: Sequence[Header] | HeaderBlock


class Batch(NamedTuple):
    """Records of one partition that are sent together, in order; one outstanding per partition.
    `stream`: whose row speaks of them."""

    topic: str
    partition: int
    records: list[WireRecord]
    stream: str = ""


class Receipt(NamedTuple):
    """The broker acknowledged a batch: record i of it stands at `offsets[i]`."""

    offsets: list[int]
