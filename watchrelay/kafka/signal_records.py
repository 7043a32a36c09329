"""Requests of consumers, as records of the signal topic. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from watchrelay.core.errors import RecordRefused
from watchrelay.core.text import counted, short, why_broken

EXECUTE_SNAPSHOT = "execute-snapshot"
ID_BYTES_MAX = 200
"""A request's id is repeated in the index records of the control topic."""
SIGNAL_BYTES_MAX = 1024 * 1024
"""A thousand names of the longest; decoded, JSON takes twenty times its size."""
STREAMS_MAX = 1000
"""Of one request; this number is remembered for those that are to come."""


@dataclass(frozen=True, slots=True)
class SnapshotRequest:
    """A snapshot of each of `streams`; the index record of each will name `id`."""

    id: str
    streams: tuple[str, ...]


def requests_for(request_id: str, streams: Sequence[str]) -> list[SnapshotRequest]:
    """The requests of one id that together name `streams`."""
    return [
        SnapshotRequest(request_id, tuple(streams[first : first + STREAMS_MAX]))
        for first in range(0, len(streams), STREAMS_MAX)
    ]


class _Data(msgspec.Struct):
    streams: list[str]


class _SignalKind(msgspec.Struct):
    id: str
    type: str


class _Signal(_SignalKind):
    data: _Data


def signal_value(request: SnapshotRequest) -> bytes:
    """The record's value; its key is the cluster. See docs/record-contract.md, section 7."""
    return msgspec.json.encode(
        {"id": request.id, "type": EXECUTE_SNAPSHOT, "data": {"streams": list(request.streams)}}
    )


def parse_signal(value: bytes | None) -> SnapshotRequest:
    """The request in a record; `parse_signal(signal_value(r)) == r`. Raises: RecordRefused."""
    if value is None:
        raise RecordRefused("a signal without a value")
    if len(value) > SIGNAL_BYTES_MAX:
        raise RecordRefused(f"a signal of {len(value):,} bytes: {SIGNAL_BYTES_MAX:,} are taken")
    try:
        kind = msgspec.json.decode(value, type=_SignalKind)
        if kind.type != EXECUTE_SNAPSHOT:
            raise RecordRefused(
                f"a signal of type {short(repr(kind.type), 80)}: only {EXECUTE_SNAPSHOT} is known"
            )
        signal = msgspec.json.decode(value, type=_Signal)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RecordRefused(f"not a signal: {why_broken(error, value)}") from error
    size = len(signal.id.encode())
    if not 1 <= size <= ID_BYTES_MAX:
        raise RecordRefused(
            f"a signal whose id has {counted(size, 'byte')}: 1 to {ID_BYTES_MAX} are taken"
        )
    if not signal.data.streams:
        raise RecordRefused(f"signal {signal.id!r} names no stream")
    if len(signal.data.streams) > STREAMS_MAX:
        raise RecordRefused(
            f"signal {signal.id!r} names {len(signal.data.streams)} streams: {STREAMS_MAX} are "
            "taken"
        )
    return SnapshotRequest(signal.id, tuple(dict.fromkeys(signal.data.streams)))
