"""Records by another writer: which of them readers ignore, and how the others are held."""

from __future__ import annotations

from tests.vectors.document import Vector
from tests.vectors.scenarios import last_offset, published
from watchrelay.contract.records import content_hash
from watchrelay.contract.wire import WireRecord

_BROKEN_OBJECTS: tuple[tuple[str, bytes | None], ...] = (
    ("ce_time", None),
    ("ce_wrstream", None),
    ("ce_wrreason", None),
    ("ce_wrreason", b"other"),
    ("ce_wrtrimmed", b"other"),
    ("ce_wrepoch", b"+7"),
    ("ce_wrepoch", b"-1"),
    ("ce_wrepoch", b" 7"),
    ("ce_wrepoch", b"0x7"),
    ("ce_wrepoch", b"9007199254740992"),
    ("ce_wrepoch", "\u0667".encode()),
    ("ce_sequence", b""),
    ("ce_sequence", b"-1"),
    ("ce_sequence", b"1" * 21),
    ("ce_wrhash", None),
    ("ce_wrhash", b"+123456789abcdef"),
    ("ce_wrhash", b"0x23456789abcdef"),
    ("content-type", None),
    ("content-type", b"text/plain"),
    ("ce_type", b"dev.watchrelay.object.deleted.v1"),
)
_BROKEN_HEARTBEATS: tuple[tuple[str, bytes | None], ...] = (
    ("ce_wrconfig", None),
    ("ce_wrpartitions", None),
    ("ce_wrpartitions", b"0"),
    ("ce_wrpartitions", b"100001"),
    ("ce_wrrv", None),
    ("ce_wrcount", b"1" * 21),
    ("ce_wrdigest", b"7"),
    ("ce_wrlastsnap", None),
    ("ce_wrlastsnapoff", b"9223372036854775808"),
    ("ce_type", b"dev.watchrelay.snapshot.begin.v1"),
)


def _with(record: WireRecord, **headers: bytes | None) -> WireRecord:
    held = dict(record.headers) | {
        name.replace("content_type", "content-type"): value for name, value in headers.items()
    }
    return WireRecord(
        record.key, record.value, [(name, each) for name, each in held.items() if each is not None]
    )


def refused() -> Vector:
    """Each way in which a record is none of the contract."""
    log, writer = published("shop/a")
    record = writer.put("shop/a", 2)
    for name, value in _BROKEN_OBJECTS:
        log.append(_with(record, **{name.replace("-", "_"): value}))
    log.append(WireRecord(b"shop/\xff", record.value, record.headers))
    writer.beat()
    heartbeat = log.records[last_offset(log)]
    for name, value in _BROKEN_HEARTBEATS:
        log.append(_with(heartbeat, **{name: value}))
    for key in (
        b"%wr/heartbeat/pods/1",
        b"%wr/heartbeat/nodes/0",
        b"%wr/heartbeat/pods/x",
        b"heartbeat",
    ):
        log.append(WireRecord(key, None, heartbeat.headers))
    log.append(WireRecord(heartbeat.key, b"{}", heartbeat.headers))
    writer.put("shop/a", 3)
    writer.beat()
    return Vector(
        "refused-records",
        "Records by another writer that are ignored: a header missing, or with a value that the "
        "contract does not allow; a key that is not UTF-8; a marker under another key.",
        [log],
    )


def judged_by_bytes() -> Vector:
    """A value that is not what its header says, and a marker of a writer that believed it."""
    log, writer = published("shop/a")
    written = writer.put("shop/a", 2, lose=True)
    assert written.value is not None
    log.append(WireRecord(written.key, written.value.replace(b"Gr", b"gr"), written.headers))
    writer.beat()
    writer.put("shop/a", 3)
    writer.beat()
    return Vector(
        "judged-by-bytes",
        "F34: a value that is not what its ce_wrhash says is held, and counts by its bytes: the "
        "marker of a writer that believed the header does not agree.",
        [log],
    )


def held_as_written() -> Vector:
    """Records that no relay would write, and that readers hold until they are corrected."""
    log, writer = published("shop/a")
    odd = (
        (b"shop/a", b"\xff no JSON"),
        (b"no-slash", b"{}"),
        (b"%wr/claim/pods/0", b"[]"),
        (b"", b""),
    )
    for key, value in odd:
        record = writer.put("shop/a", 2, lose=True)
        changed = _with(
            record, ce_wrhash=b"%016x" % content_hash(key, value), ce_specversion=b"2.0"
        )
        log.append(WireRecord(key, value, changed.headers))
    writer.beat()
    return Vector(
        "held-as-written",
        "What is no JSON, a key that no object can have, another ce_specversion: readers hold what "
        "is well formed by its headers, whatever it says, until the writer corrects it.",
        [log],
    )


def vectors() -> list[Vector]:
    """All of them."""
    return [refused(), judged_by_bytes(), held_as_written()]
