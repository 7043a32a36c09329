"""Scenarios of readers that begin at the start of a partition.

Output: vectors without `expect`.
"""

from __future__ import annotations

from dataclasses import replace

from tests.support.stream_log import NODES, PODS, SERVICES, Log, Writer, resend, stream
from tests.vectors.document import Vector
from watchrelay.contract.wire import WireRecord
from watchrelay.model.streams import Format


def published(*names: str, epoch: int = 7) -> tuple[Log, Writer]:
    """A log with a first snapshot of these pods and a heartbeat."""
    log = Log()
    writer = Writer(stream(), [log], epoch=epoch)
    writer.first(*names)
    writer.beat()
    return log, writer


def last_offset(log: Log) -> int:
    """The offset of its newest record."""
    return log.end - 1


def happy_path() -> Vector:
    log, writer = published("shop/a", "shop/b", "shop/c")
    writer.put("shop/a", 2)
    writer.delete("shop/b")
    writer.put("shop/d")
    writer.beat()
    writer.snapshot()
    writer.delete("shop/c")
    writer.put("shop/c", 3, uid="u-other")
    writer.beat()
    return Vector(
        "happy-path",
        "A first snapshot, changes, a second snapshot, a recreated object: nothing to complain of.",
        [log],
    )


def empty_stream() -> Vector:
    log, writer = published()
    writer.snapshot()
    writer.beat()
    return Vector(
        "empty-stream",
        "A stream without objects has markers too, with count 0, and is proven.",
        [log],
    )


def cluster_scoped() -> Vector:
    log = Log()
    writer = Writer(stream(NODES), [log], epoch=1)
    writer.first("n1", "n2")
    writer.delete("n1")
    writer.beat()
    return Vector("cluster-scoped", "Keys of cluster-scoped objects begin with a slash.", [log])


def duplicates() -> Vector:
    log, writer = published("shop/a")
    batch = [writer.put("shop/a", 2), writer.put("shop/b"), *writer.beat()]
    resend(log, *batch)
    writer.put("shop/a", 3)
    writer.beat()
    resend(log, *batch)
    writer.delete("shop/b")
    writer.beat()
    return Vector(
        "duplicates",
        "A batch stands twice, at once and once more behind newer ones: equal positions are "
        "equal records, the second is ignored.",
        [log],
    )


def resends() -> Vector:
    log, writer = published("shop/a")
    first = writer.put("shop/a", 2)
    cut = log.end
    rest = [writer.put("shop/b"), writer.put("shop/a", 3)]
    log.records = {at: each for at, each in log.records.items() if at < cut}
    log.end = cut
    resend(log, first, *rest)
    writer.beat()
    return Vector(
        "resend-of-a-cut-batch",
        "F10: the connection broke within a batch, its first record stands; the whole batch "
        "comes again with the same bytes and positions.",
        [log],
    )


def stale_epochs() -> Vector:
    log, old = published("shop/a", "shop/b")
    new = Writer(stream(), [log], epoch=9, before=old)
    new.claim()
    new.delete("shop/b")
    old.put("shop/b", 5)
    old.delete("shop/a")
    old.beat()
    new.beat()
    new.put("shop/c")
    new.beat()
    return Vector(
        "stale-epochs",
        "A former writer goes on behind a newer claim: its records, markers included, are ignored.",
        [log],
    )


def healed() -> Vector:
    log, old = published("shop/a", "shop/b")
    new = Writer(stream(), [log], epoch=8, before=old)
    new.claim()
    new.delete("shop/b")
    old.put("shop/b", 5)
    old.put("shop/a", 5)
    new.delete("shop/b", reason="healed")
    new.republish("shop/a", reason="healed")
    new.beat()
    return Vector(
        "healed",
        "F7: what a former writer said is said again as it truly is: a null for the dead "
        "key, a read for the living. "
        "The table that ignores headers is right again too.",
        [log],
    )


def zombie_late_duplicate() -> Vector:
    log, writer = published("shop/a")
    late = writer.put("shop/b")
    writer.put("shop/a", 2)
    writer.delete("shop/b")
    writer.beat()
    resend(log, late)
    writer.delete("shop/b", reason="healed")
    writer.beat()
    return Vector(
        "late-duplicate-healed",
        "F7: a request lands once more behind newer batches; readers ignore it, and a healed "
        "null buries it for tables.",
        [log],
    )


def gap_in_compacted_history() -> Vector:
    log, writer = published("shop/a", "shop/b")
    writer.put("shop/a", 2)
    writer.delete("shop/b")
    writer.put("shop/a", 3)
    writer.put("shop/c")
    writer.beat()
    log.compact(up_to=last_offset(log))
    writer.put("shop/a", 4)
    writer.beat()
    return Vector(
        "compaction-holes",
        "Compaction took records and markers: gaps unprove until the next marker agrees, which "
        "it does, for what is left is the newest.",
        [log],
    )


def crashed_snapshot() -> Vector:
    log, old = published("shop/a", "shop/b")
    old.begin()
    old.republish("shop/a")
    new = Writer(stream(), [log], epoch=8, before=old)
    new.claim()
    new.beat()
    new.put("shop/a", 2)
    new.snapshot()
    new.beat()
    return Vector(
        "snapshot-cut-short",
        "A begin without an end: the writer died; a new epoch voids it, the next snapshot is "
        "right.",
        [log],
    )


def trimmed() -> Vector:
    log, writer = published("shop/a")
    writer.put("shop/a", 2, trimmed="fields")
    writer.put("shop/b", 3, trimmed="stub")
    writer.beat()
    return Vector(
        "trimmed",
        "Objects too large for the topic: count and digest speak of what was published.",
        [log],
    )


def _foreign(log: Log) -> None:
    log.append(WireRecord(b"other", b"{}", []))
    log.append(WireRecord(b"\xff\xfe", b"\x00\x01", [("trace", b"x")]))


def foreign_records() -> Vector:
    log, writer = published("shop/a")
    _foreign(log)
    writer.put("shop/a", 2)
    writer.beat()
    return Vector(
        "foreign-records",
        "Records without our headers are refused, counted, and disturb nothing.",
        [log],
    )


def unknown_version() -> Vector:
    log, writer = published("shop/a", "shop/b")
    record = writer.put("shop/a", 2)
    at = last_offset(log)
    renamed = [
        (name, value.replace(b".v1", b".v2") if name == "ce_type" else value)
        for name, value in record.headers
    ]
    log.records[at] = WireRecord(record.key, record.value, renamed)
    writer.beat()
    writer.snapshot()
    writer.beat()
    return Vector(
        "unknown-contract-version",
        "A record of another contract version is refused, not guessed at; its place is a "
        "gap, and the state is not proven until the next "
        "snapshot's end.",
        [log],
    )


def broken_headers() -> Vector:
    log, writer = published("shop/a")
    for name, value in (("ce_wrepoch", b"seven"), ("ce_sequence", None), ("ce_wrhash", b"12")):
        record = writer.put("shop/a", 2, lose=True)
        headers = [
            (each, value if each == name else held)
            for each, held in record.headers
            if each != name or value is not None
        ]
        log.append(replace_headers(record, headers))
    writer.put("shop/a", 3)
    writer.beat()
    return Vector(
        "broken-headers",
        "A header that is missing or does not parse: the record is refused.",
        [log],
    )


def replace_headers(record: WireRecord, headers: list[tuple[str, bytes | None]]) -> WireRecord:
    return WireRecord(
        record.key, record.value, [(name, value) for name, value in headers if value is not None]
    )


def several_streams() -> Vector:
    log = Log()
    pods = Writer(stream(PODS, prefix=b"pods/"), [log], epoch=5)
    services = Writer(stream(SERVICES, prefix=b"services/"), [log], epoch=2)
    pods.first("shop/a", "shop/b")
    services.first("shop/a")
    pods.beat()
    services.beat()
    pods.put("shop/a", 2)
    lost = last_offset(log)
    services.put("shop/b")
    pods.beat()
    services.beat()
    return Vector(
        "several-streams",
        "Two resources on one topic: epochs, sequences and digests are each stream's own; "
        "one reads again, the other ignores what "
        "it knows.",
        [log],
        {0: [lost]},
    )


def one_of_several_streams() -> Vector:
    several = several_streams()
    return replace(
        several, name="one-of-several-streams", about="Only one of the streams on the topic is wanted: the others' records are passed over.",
        lost={}, streams=("services",),
    )  # fmt: skip


def epochs_per_partition() -> Vector:
    logs = [Log(), Log()]
    old = Writer(stream(partitions=2), logs, epoch=3)
    names = [f"shop/{letter}" for letter in "abcdef"]
    old.first(*names)
    old.beat()
    for name in names:
        old.put(name, 2)
    new = Writer(stream(partitions=2), logs, epoch=4, before=old)
    new.claim()
    for name in names[:3]:
        new.put(name, 3)
    new.beat()
    return Vector(
        "epochs-per-partition",
        "F2: epoch and sequence are kept per partition: what the former writer said in one "
        "partition before the new claim there counts.",
        logs,
    )


def lower_epochs_after_a_lost_control_topic() -> Vector:
    log, old = published("shop/a", epoch=40)
    new = Writer(stream(), [log], epoch=41, before=old)
    new.claim()
    new.put("shop/b")
    new.beat()
    return Vector(
        "control-topic-lost",
        "F15: a control topic that was recreated: epochBase keeps epochs going up.",
        [log],
    )


def truncated() -> Vector:
    log, writer = published("shop/a", "shop/b", "shop/c")
    writer.put("shop/a", 2)
    start = log.end
    writer.put("shop/b", 2)
    writer.beat()
    writer.put("shop/d")
    writer.beat()
    log.truncate(start)
    writer.snapshot()
    writer.beat()
    return Vector(
        "truncated-by-retention",
        "The log begins in the middle: markers disagree, the snapshot they name is out of "
        "reach, so reading again begins at the start; "
        "the next end proves what it holds.",
        [log],
    )


def _formatted(kind: Format) -> Vector:
    log = Log()
    writer = Writer(stream(form=kind), [log], epoch=2)
    writer.first("shop/a", "shop/b")
    writer.put("shop/a", 2)
    writer.delete("shop/b")
    writer.beat()
    writer.snapshot()
    writer.beat()
    return Vector(
        f"format-{kind}",
        "The object inside an envelope: the effect follows from the type, the hash speaks of "
        "the object's own bytes, a delete has a value "
        "and its tombstone is a record of its own.",
        [log],
    )


def vectors() -> list[Vector]:
    """All of them."""
    return [
        happy_path(),
        empty_stream(),
        cluster_scoped(),
        duplicates(),
        resends(),
        stale_epochs(),
        healed(),
        zombie_late_duplicate(),
        gap_in_compacted_history(),
        crashed_snapshot(),
        trimmed(),
        foreign_records(),
        unknown_version(),
        broken_headers(),
        several_streams(),
        one_of_several_streams(),
        epochs_per_partition(),
        lower_epochs_after_a_lost_control_topic(),
        truncated(),
        _formatted("structured"),
        _formatted("debezium"),
    ]
