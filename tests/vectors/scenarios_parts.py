"""Scenarios of a stream that is split over several writers, and of one that is resized.

Output: vectors without `expect`.
"""

from __future__ import annotations

from tests.support.stream_log import Log, Writer, stream
from tests.vectors.document import Vector, claim, description
from watchrelay.contract.control import VALUES_MAX

Control = list[tuple[int, str, dict[str, object] | None]]

_STREAM = stream(partitions=2)
_NAMES = tuple(f"shop/{letter}" for letter in "abcdef")


def _whole() -> tuple[list[Log], Writer, Control]:
    """One writer of both partitions: epoch 2, a snapshot, a delete."""
    logs = [Log(), Log()]
    writer = Writer(_STREAM, logs, epoch=2)
    writer.first(*_NAMES)
    writer.delete("shop/d")
    writer.snapshot()
    writer.beat()
    control: Control = [
        (0, "stream/pods", description(2)),
        (1, "claim/pods", claim("w1")),
        (2, "snapshot/pods", writer.index()),
    ]
    return logs, writer, control


def _split() -> tuple[list[Log], Writer, list[Writer], Control]:
    """Two parts of one partition each go on behind it; the first one has had a snapshot."""
    logs, whole, control = _whole()
    parts = [Writer(_STREAM, logs, epoch=4, before=whole, own=[0])]
    parts.append(Writer(_STREAM, logs, epoch=5, before=whole, own=[1]))
    for part in parts:
        part.claim()
        for name in part.names():
            part.put(name, 2)
        part.beat()
    parts[0].snapshot()
    parts[0].beat()
    control += [
        (3, "claim/pods%0/2", claim("p0", whole.origin_of(0), [0])),
        (4, "claim/pods%1/2", claim("p1", whole.origin_of(1), [1])),
        (5, "claim/pods", claim("none", None, [])),
        (6, "snapshot/pods%0/2", parts[0].index()),
    ]
    return logs, whole, parts, control


def split() -> Vector:
    logs, _, _, control = _split()
    return Vector(
        "parts-split",
        "A4, A7: each partition by the newest claim that names it: partition 0 by the index "
        "record of its part, partition 1 by the `from` of its own. The plain claim of no "
        "partition counts for none.",
        logs, bootstrap="control", control=control,
    )  # fmt: skip


def split_in_part() -> Vector:
    logs, whole, control = _whole()
    part = Writer(_STREAM, logs, epoch=5, before=whole, own=[1])
    part.claim()
    part.snapshot()
    whole.beat(0)
    control += [
        (4, "claim/pods%1/2", claim("p1", whole.origin_of(1), [1])),
        (5, "snapshot/pods%1/2", part.index()),
    ]
    return Vector(
        "parts-begun",
        "One part has claimed, the other has not: partition 0 is still that of the whole "
        "stream's writer, whose index record counts for it.",
        logs, bootstrap="control", control=control,
    )  # fmt: skip


def former_part() -> Vector:
    logs, whole, parts, control = _split()
    new = Writer(_STREAM, logs, epoch=9, before=parts[0], own=[0])
    origin = parts[0].origin_of(0)
    new.claim()
    new.beat()
    parts[0].snapshot()
    control += [
        (7, "snapshot/pods", whole.index()),
        (8, "claim/pods%0/2", claim("p2", origin, [0])),
        (9, "snapshot/pods%0/2", parts[0].index()),
    ]
    return Vector(
        "parts-claimed-again",
        "F3 of a part: the index of its former writer does not count, nor does one that the "
        "former writer of the whole stream wrote late.",
        logs, bootstrap="control", control=control,
    )  # fmt: skip


def joined() -> Vector:
    logs, _, parts, control = _split()
    whole = Writer(_STREAM, logs, epoch=9, before=parts[0])
    whole.held[1] = dict(parts[1].held[1])
    origins = [parts[0].origin_of(0), parts[1].origin_of(1)]
    whole.version = max(each.version for each in parts)
    whole.claim()
    whole.delete("shop/a")
    whole.beat()
    merged: dict[str, object] = {
        field: {name: each for origin in origins for name, each in _named(origin, field).items()}
        for field in ("snapshot", "begin")
    }
    control += [
        (7, "release/pods%0/2", {"epoch": 4}),
        (8, "claim/pods", claim("w2", merged)),
    ]
    return Vector(
        "parts-joined",
        "The stream is not split any more. Its partitions have had their last snapshots from "
        "different writers, so `from` is by partition.",
        logs, bootstrap="control", control=control,
    )  # fmt: skip


def resized() -> Vector:
    logs = [Log() for _ in range(4)]
    spec = stream(partitions=4)
    names = tuple(f"shop/{letter}" for letter in "abcdefghijkl")
    halves = [Writer(spec, logs, epoch=2 + at, own=[2 * at, 2 * at + 1]) for at in range(2)]
    for half in halves:
        half.first(*names)
        half.snapshot()
    # parts of three have the partitions 0 and 1, 2, 3: the first half is one of them
    middle = Writer(spec, logs, epoch=6, before=halves[1], own=[2])
    middle.claim()
    middle.snapshot()
    halves[1].beat(3)
    control: Control = [
        (0, "stream/pods", description(4)),
        (1, "claim/pods%0/2", claim("h0", None, [0, 1])),
        (2, "claim/pods%1/2", claim("h1", None, [2, 3])),
        (3, "snapshot/pods%0/2", halves[0].index()),
        (4, "snapshot/pods%1/2", halves[1].index()),
        (5, "claim/pods%1/3", claim("t1", halves[1].origin_of(2), [2])),
        (6, "snapshot/pods%1/3", middle.index()),
    ]
    return Vector(
        "parts-resized",
        "From two parts to three, in the middle of it: partition 2 by the new layout, 3 still by "
        "the old one, whose claim is the newest that names it.",
        logs, bootstrap="control", control=control,
    )  # fmt: skip


def unknown_records() -> Vector:
    logs, _, control = _whole()
    control += [
        (3, "lease/pods", {"holder": "of a later version"}),
        (4, "claim/pods%3/2", claim("no part", None, [1])),
        (5, "stream/pods%0/2", description(2)),
    ]
    return Vector(
        "bootstrap-unknown-control-records",
        "A7: control records of kinds and keys that a reader does not know are ignored.",
        logs, bootstrap="control", control=control,
    )  # fmt: skip


def too_many_values() -> Vector:
    logs, _, control = _whole()
    control += [(3, "claim/pods", {**claim("late"), "version": "," * VALUES_MAX})]
    return Vector(
        "bootstrap-too-many-values",
        "A control record with more than 700,000 commas and opening brackets, also within strings, "
        "is ignored: a reader need not decode what takes a hundred times its size.",
        logs, bootstrap="control", control=control,
    )  # fmt: skip


def _named(origin: dict[str, object], field: str) -> dict[str, object]:
    named = origin[field]
    assert isinstance(named, dict)
    return named


def vectors() -> list[Vector]:
    """All of them."""
    return [
        split(),
        split_in_part(),
        former_part(),
        joined(),
        resized(),
        unknown_records(),
        too_many_values(),
    ]
