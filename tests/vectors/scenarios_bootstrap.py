"""Scenarios of readers that find their starting point: by the control topic, or by heartbeats.

Output: vectors without `expect`.
"""

from __future__ import annotations

from tests.support.stream_log import Log, Writer, stream
from tests.vectors.document import Vector, claim, description

_STREAM = stream()


def _history() -> tuple[Log, Writer]:
    """A first snapshot, a delete, a second snapshot, more changes. The first writer's epoch is 1:
    claim at offset 0, epochBase 1."""
    log = Log()
    writer = Writer(_STREAM, [log], epoch=2)
    writer.first("shop/a", "shop/b", "shop/c")
    writer.beat()
    writer.delete("shop/b")
    writer.snapshot()
    writer.put("shop/a", 2)
    writer.beat()
    return log, writer


def by_index() -> Vector:
    log, writer = _history()
    control = [
        (0, "stream/pods", description(1)),
        (1, "claim/pods", claim("w1")),
        (2, "snapshot/pods", writer.index()),
    ]
    return Vector(
        "bootstrap-by-index",
        "The index record is of the newest claim's epoch (epochBase 1 + offset 1): start at its "
        "begin; nothing before its end is judged.",
        [log], bootstrap="control", control=control,
    )  # fmt: skip


def by_claim() -> Vector:
    log, writer = _history()
    origin = writer.origin()
    new = Writer(_STREAM, [log], epoch=4, before=writer)
    new.claim()
    new.delete("shop/c")
    writer.snapshot()
    zombie_index = writer.index()
    new.beat()
    control = [
        (0, "stream/pods", description(1)),
        (1, "claim/pods", claim("w1")),
        (3, "claim/pods", claim("w2", origin)),
        (4, "snapshot/pods", zombie_index),
    ]
    return Vector(
        "bootstrap-by-claim",
        "F3: a former writer completed a snapshot behind a newer claim and wrote the index. "
        "Its epoch is not the newest claim's, so the "
        "`from` of that claim counts.",
        [log], bootstrap="control", control=control,
    )  # fmt: skip


def of_a_later_release() -> Vector:
    log, writer = _history()
    for offset, record in log.records.items():
        more = ((b"ce_wrlater", b"one"), (b"later", b"two"))
        headers = (*record.headers, *((name.decode(), value) for name, value in more))
        log.records[offset] = record._replace(headers=headers)
    later: dict[str, object] = {"later": {"deep": [1, None, "x"]}}
    control: list[tuple[int, str, dict[str, object] | None]] = [
        (
            0,
            "stream/pods",
            description(1) | {"ignoreChanges": ["status"], "publishWhen": []} | later,
        ),
        (1, "claim/pods", claim("w1") | later),
        (2, "snapshot/pods", writer.index() | later),
        (3, "later/pods", later),
    ]
    return Vector(
        "bootstrap-of-a-later-release",
        "Fields of control records and headers of records that a reader does not know mean nothing "
        "to it: it reads as from bootstrap-by-index.",
        [log], bootstrap="control", control=control,
    )  # fmt: skip


def claimed_twice() -> Vector:
    log, writer = _history()
    control = [
        (0, "stream/pods", description(1)),
        (1, "claim/pods", claim("w1")),
        (2, "claim/pods", claim("w1")),
        (3, "snapshot/pods", writer.index()),
    ]
    return Vector(
        "bootstrap-claimed-twice",
        "F14: a claim was appended twice, its outcome unknown: the epoch is that of the first "
        "record with this instance.",
        [log], bootstrap="control", control=control,
    )  # fmt: skip


def released() -> Vector:
    log, writer = _history()
    control: list[tuple[int, str, dict[str, object] | None]] = [
        (0, "stream/pods", description(1)),
        (1, "claim/pods", claim("w1")),
        (2, "snapshot/pods", writer.index()),
        (3, "release/pods", {"epoch": 2}),
    ]
    return Vector(
        "bootstrap-released", "F28: the writer has written its last record: nothing changes for a reader.", [log],
        bootstrap="control", control=control,
    )  # fmt: skip


def within_transactions() -> Vector:
    log = Log()
    writer = Writer(_STREAM, [log], epoch=2)
    writer.first("shop/a", "shop/b")
    log.end += 1  # the marker of the commit
    writer.snapshot()
    log.end += 1
    log.end += 2  # a record that was aborted, and the marker of that; its position is used again
    writer.put("shop/a", 2)
    log.end += 1
    writer.beat()
    log.end += 1
    control: list[tuple[int, str, dict[str, object] | None]] = [
        (0, "stream/pods", description(1)),
        (1, "claim/pods", {**claim("w1"), "ids": ["k8s.c.pods"]}),
        (2, "snapshot/pods", writer.index()),
    ]
    return Vector(
        "bootstrap-transactional",
        "F29: a claim with transactional ids, and offsets of the markers of transactions and of an "
        "aborted record: nothing changes for a reader of committed records.",
        [log], bootstrap="control", control=control,
    )  # fmt: skip


def no_snapshot_yet() -> Vector:
    log = Log()
    writer = Writer(_STREAM, [log], epoch=2)
    writer.first("shop/a")
    writer.beat()
    control = [(0, "stream/pods", description(1)), (1, "claim/pods", claim("w1"))]
    return Vector(
        "bootstrap-without-snapshot",
        "A claim, no index and no `from`: the start.",
        [log],
        bootstrap="control",
        control=control,
    )


def retired() -> Vector:
    log, writer = _history()
    for name in ("shop/a", "shop/c"):
        writer.delete(name)
    writer.snapshot()
    control = [
        (0, "stream/pods", description(1)),
        (1, "claim/pods", claim("w1")),
        (2, "snapshot/pods", writer.index()),
        (3, "snapshot/pods", None),
        (4, "claim/pods", None),
        (5, "stream/pods", None),
    ]
    return Vector(
        "bootstrap-retired", "A retired stream is described no more; its topic ends in an empty snapshot.", [log],
        bootstrap="control", control=control,
    )  # fmt: skip


def several_partitions() -> Vector:
    logs = [Log(), Log()]
    writer = Writer(stream(partitions=2), logs, epoch=2)
    writer.first(*(f"shop/{letter}" for letter in "abcdef"))
    writer.delete("shop/d")
    writer.snapshot()
    writer.put("shop/a", 2)
    writer.beat()
    control = [
        (0, "stream/pods", description(2)),
        (1, "claim/pods", claim("w1")),
        (2, "snapshot/pods", writer.index()),
    ]
    return Vector(
        "bootstrap-partitions",
        "Each partition is begun at its own offset.",
        logs,
        bootstrap="control",
        control=control,
    )


def by_heartbeat() -> Vector:
    log, writer = _history()
    new = Writer(_STREAM, [log], epoch=4, before=writer)
    new.claim()
    new.beat()
    writer.snapshot()
    writer.beat()
    return Vector(
        "bootstrap-by-heartbeat",
        "F20: without the control topic the newest heartbeat of the highest epoch counts, not "
        "the last one, which is a former writer's.",
        [log], bootstrap="heartbeats",
    )  # fmt: skip


def _slow() -> tuple[Log, list[tuple[int, str, dict[str, object] | None]]]:
    """A log of which compaction took the end of the snapshot that a reader starts in, and a
    tombstone that it never saw."""
    log, writer = _history()
    origin = writer.origin()
    gone, (writer_begin,) = log.end, [begin for _, begin in filter(None, writer.last_snapshot)]
    writer.delete("shop/c")
    new = Writer(_STREAM, [log], epoch=4, before=writer)
    new.claim()
    new.snapshot()
    new.beat()
    end = next(
        at
        for at, record in log.records.items()
        if at > writer_begin and record.key.startswith(b"%wr/end/")
    )
    del log.records[end], log.records[gone]
    return log, [
        (0, "stream/pods", description(1)),
        (1, "claim/pods", claim("w1")),
        (3, "claim/pods", claim("w2", origin)),
    ]


def swept() -> Vector:
    log, control = _slow()
    *older, _newest = [
        at for at, record in log.records.items() if record.key.startswith(b"%wr/heartbeat/")
    ]
    for at in older:
        del log.records[at]
    return Vector(
        "bootstrap-then-sweep",
        "A slow reader: the end of the snapshot it started in was compacted, and so was a "
        "tombstone; the next end sweeps the dead key.",
        [log], bootstrap="control", control=control,
    )  # fmt: skip


def judged_behind_a_lost_end() -> Vector:
    log, control = _slow()
    return Vector(
        "bootstrap-then-judged",
        "The end of the snapshot started in was compacted, and a heartbeat that names it is "
        "left: it stands behind that end, so the next "
        "marker that disagrees is judged.",
        [log], bootstrap="control", control=control,
    )  # fmt: skip


def no_heartbeat() -> Vector:
    log = Log()
    Writer(_STREAM, [log], epoch=2).first("shop/a")
    return Vector(
        "bootstrap-without-heartbeat",
        "No heartbeat in reach: the start.",
        [log],
        bootstrap="heartbeats",
    )


def partition_counts_differ() -> Vector:
    log, writer = _history()
    index = writer.index()
    places = index["partitions"]
    assert isinstance(places, list)
    index["partitions"] = [
        *places,
        {"partition": 1, "begin": 0, "end": 1, "count": 0, "digest": "0" * 16},
    ]
    control = [
        (0, "stream/pods", description(1)),
        (1, "claim/pods", claim("w1")),
        (2, "snapshot/pods", index),
    ]
    return Vector(
        "bootstrap-odd-index", "An index record that does not speak of exactly the stream's partitions is not used.", [log],
        bootstrap="control", control=control,
    )  # fmt: skip


def vectors() -> list[Vector]:
    """All of them."""
    return [
        by_index(),
        by_claim(),
        of_a_later_release(),
        claimed_twice(),
        released(),
        within_transactions(),
        no_snapshot_yet(),
        retired(),
        several_partitions(),
        by_heartbeat(),
        swept(),
        judged_behind_a_lost_end(),
        no_heartbeat(),
        partition_counts_differ(),
    ]
