"""The codec of state topics: records to bytes and back, version 1 of `docs/record-contract.md`.

The order of headers is fixed. Those that are constant for a writer come first and are encoded once:
cheap to build, and they compress well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from hashlib import sha256
from typing import Literal, get_args

import msgspec

from watchrelay import __version__
from watchrelay.contract.formats import (
    JSON_TYPE,
    Envelope,
    debezium_envelope,
    structured_envelope,
    unwrap,
)
from watchrelay.contract.headers import (
    LENGTHS,
    UNREADABLE,
    Header,
    HeaderBlock,
    encode_headers,
    starts_of,
    varint,
)
from watchrelay.contract.wire import MarkerKind, Reason, Verb, WireRecord
from watchrelay.core.errors import RecordRefused
from watchrelay.core.text import short
from watchrelay.core.timestamps import rfc3339
from watchrelay.model.streams import StreamSpec

Trimmed = Literal["", "fields", "stub"]

DIGEST_MASK = (1 << 64) - 1
_DIGITS_MAX = 20
"""Those of ce_sequence."""
SEQUENCE_BITS = 67
"""Enough for a sequence of `_DIGITS_MAX` digits."""
_MARKER_PREFIX = b"%wr/"
_OFFSET_MAX = (1 << 63) - 1
"""Clients fail to seek to a higher one."""
PARTITIONS_MAX = 100_000
"""More than any topic has: readers allocate this many of something."""
EPOCH_MAX = (1 << 53) - 1
"""Its base is a JSON number on the control topic, which every reader must read alike."""

VERB_TYPES: dict[Verb, bytes] = {
    verb: b"dev.watchrelay.object.%b.v1" % verb.encode() for verb in get_args(Verb)
}
MARKER_TYPES: dict[MarkerKind, bytes] = {
    "claim": b"dev.watchrelay.claim.v1",
    "begin": b"dev.watchrelay.snapshot.begin.v1",
    "end": b"dev.watchrelay.snapshot.end.v1",
    "heartbeat": b"dev.watchrelay.heartbeat.v1",
}
_VERBS = {wire: verb for verb, wire in VERB_TYPES.items()}
_MARKERS = {wire: kind for kind, wire in MARKER_TYPES.items()}
_REASONS: dict[bytes, Reason] = {reason.encode(): reason for reason in get_args(Reason)}
_TRIMMED: dict[bytes, Trimmed] = {trimmed.encode(): trimmed for trimmed in get_args(Trimmed)}

_fresh_hash = sha256().copy
"""A copy costs less than a new one, for which OpenSSL looks the algorithm up."""
_record: partial[WireRecord] = partial(tuple.__new__, WireRecord)
"""`WireRecord` from a tuple, without the function that a NamedTuple has for names and defaults."""

_TIME, _NAMESPACE, _NAME, _SUBJECT = map(
    starts_of, ("ce_time", "ce_namespace", "ce_name", "ce_subject")
)
_UID, _VERSION, _ID = map(starts_of, ("ce_wruid", "ce_wrrv", "ce_id"))
_HASH, _SEQUENCE = starts_of("ce_wrhash")[16], starts_of("ce_sequence")[20]
_VARYING = 9
"""Headers of an object that has a namespace, uid, version and value: the time and those above."""


def content_hash(key: bytes, value: bytes) -> int:
    """ce_wrhash: first 8 bytes, big-endian, of SHA-256(key, one zero byte, value). Record
    contract 3."""
    hashed = _fresh_hash()
    hashed.update(key + b"\0")
    hashed.update(value)
    return int.from_bytes(hashed.digest()[:8], "big")


class Marker(msgspec.Struct, frozen=True, gc=False):
    """The content of a marker, without its position; a field at its default is not sent. A
    claim has none of these, `begin_*` are of an end, `last_snapshot*` of a heartbeat (record
    contract 3)."""

    kind: MarkerKind
    frontier: str = ""
    count: int = 0
    digest: int = 0
    seen_ms: int | None = None
    snapshot: str = ""
    begin_sequence: int = 0
    begin_offset: int = 0
    last_snapshot: str = ""
    last_snapshot_offset: int = 0


class CloudEvents:
    """Renders the records of one writer (one stream, one epoch) as CloudEvents 1.0, binary
    mode. With an `envelope` the object is inside it; a delete is a value too, its tombstone a
    record of its own."""

    def __init__(self, spec: StreamSpec, epoch: int, envelope: Envelope | None = None) -> None:
        self._envelope = envelope
        self.content_type = JSON_TYPE if envelope is None else envelope.content_type
        resource = spec.plan.selection.resource
        self.spec, self.epoch = spec, epoch
        self._cut = len(spec.key_prefix)
        self._time_ms, self._time = -1, b""
        self._timed: dict[tuple[Verb, Reason], bytes] = {}
        """Of `_starts`, those in use, with that time after them."""
        stream = spec.stream.encode()
        common: tuple[Header, ...] = (
            ("ce_specversion", b"1.0"),
            ("ce_source", spec.source.encode()),
            ("ce_wrstream", stream),
            ("ce_wrepoch", b"%d" % epoch),
        )
        described = (
            *common,
            ("ce_kind", resource.kind.encode()),
            ("ce_apiversion", resource.api_version.encode()),
        )
        typed: Header = ("content-type", self.content_type)
        self._objects: dict[tuple[Verb, Reason], tuple[Header, ...]] = {
            (verb, reason): (
                *described,
                *(() if verb == "deleted" else (typed,)),
                ("ce_type", wire),
                ("ce_wrreason", name),
            )
            for verb, wire in VERB_TYPES.items()
            for name, reason in _REASONS.items()
        }
        pinned: tuple[Header, ...] = (
            ("ce_wrconfig", spec.config_hash.encode()),
            ("ce_wrpartitions", b"%d" % spec.partitions),
        )
        self._starts = {
            kinds: varint(len(headers) + _VARYING) + encode_headers(headers)
            for kinds, headers in self._objects.items()
        }
        self._markers = {
            kind: HeaderBlock.of((*common, *pinned, ("ce_type", wire)))
            for kind, wire in MARKER_TYPES.items()
        }
        name = stream.replace(b"%", b"%%")
        self._ids = [
            b"%b.%d.%d.%%d" % (name, epoch, partition) for partition in range(spec.partitions)
        ]
        longest = len(self._ids[-1] % (10**_DIGITS_MAX - 1))
        self._short = LENGTHS if longest < LENGTHS and envelope is None else 0
        """Below this many bytes of key, uid and version each header's length is known beforehand;
        0: a ce_id's may not be, or there is an envelope."""
        self._marker_keys = {
            kind: [
                b"%%wr/%b/%b/%d" % (kind.encode(), stream, partition)
                for partition in range(spec.partitions)
            ]
            for kind in MARKER_TYPES
        }
        one = self._objects["modified", "watch"]
        self.overhead_bytes = sum(len(name) + len(value) + 2 for name, value in one) + 300
        self.overhead_bytes += envelope.overhead_bytes if envelope is not None else 0
        """What headers and envelope of one object come to, about."""

    def object(
        self,
        partition: int,
        sequence: int,
        key: bytes,
        value: bytes | None,
        verb: Verb,
        reason: Reason,
        uid: str,
        version: str,
        value_hash: int,
        time_ms: int,
        trimmed: Trimmed = "",
        tombstone: bool = False,
    ) -> WireRecord:
        """One object's record. Positional, for this is the hot path; an empty `uid` or
        `version` has no header. `tombstone`: the null after a delete that is a value
        (formats with an envelope)."""
        subject = key[self._cut :]
        namespace, _, name = subject.partition(b"/")
        who, at = uid.encode(), version.encode()
        if time_ms != self._time_ms:
            self._time_ms, self._time = time_ms, rfc3339(time_ms).encode()
            self._timed.clear()
        time, place = self._time, self._ids[partition] % sequence
        if (
            value is not None
            and who
            and at
            and namespace
            and not trimmed
            and len(key) + len(who) + len(at) < self._short
        ):
            return _record((key, value, HeaderBlock(b"".join((
                self._timed.get((verb, reason)) or self._timed_start(verb, reason),
                _NAMESPACE[len(namespace)], namespace, _NAME[len(name)], name,
                _SUBJECT[len(subject)], subject, _UID[len(who)], who, _VERSION[len(at)], at,
                _HASH, b"%016x" % value_hash, _ID[len(place)], place,
                _SEQUENCE, b"%020d" % sequence,
            )))))  # fmt: skip
        varying = (
            ("ce_time", time),
            ("ce_namespace", namespace),
            ("ce_name", name),
            ("ce_subject", subject.removeprefix(b"/")),
            ("ce_wruid", who),
            ("ce_wrrv", at),
            ("ce_wrhash", b"" if value is None else b"%016x" % value_hash),
            ("ce_wrtrimmed", trimmed.encode()),
            ("ce_id", place),
            ("ce_sequence", b"%020d" % sequence),
        )
        headers = [*self._objects[verb, reason], *(each for each in varying if each[1])]
        # A healed delete is a null in every format: it replaces a record of a former writer.
        healed = verb == "deleted" and reason == "healed"
        if self._envelope is not None and not tombstone and not healed:
            if verb == "deleted":
                headers.append(("content-type", self.content_type))
            value = self._envelope.wrap(headers, value, time_ms)
        return WireRecord(key, value, HeaderBlock.of(headers))

    def _timed_start(self, verb: Verb, reason: Reason) -> bytes:
        time = self._time
        start = b"".join((self._starts[verb, reason], _TIME[len(time)], time))
        self._timed[verb, reason] = start
        return start

    def marker(self, partition: int, sequence: int, time_ms: int, marker: Marker) -> WireRecord:
        """One marker's record: a tombstone of a key that never existed."""
        kind = marker.kind
        headers = [("ce_time", rfc3339(time_ms).encode())]
        if kind != "claim":
            headers += (
                ("ce_wrrv", marker.frontier.encode()),
                ("ce_wrcount", b"%d" % marker.count),
                ("ce_wrdigest", b"%016x" % marker.digest),
            )
            if marker.seen_ms is not None:
                headers.append(("ce_wrseen", rfc3339(marker.seen_ms).encode()))
        if marker.snapshot:
            headers.append(("ce_wrsnap", marker.snapshot.encode()))
        if kind == "end":
            headers += (
                ("ce_wrbegin", b"%d" % marker.begin_sequence),
                ("ce_wrbeginoff", b"%d" % marker.begin_offset),
            )
        if marker.last_snapshot:
            headers += (
                ("ce_wrlastsnap", marker.last_snapshot.encode()),
                ("ce_wrlastsnapoff", b"%d" % marker.last_snapshot_offset),
            )
        headers += (
            ("ce_id", self._ids[partition] % sequence),
            ("ce_sequence", b"%020d" % sequence),
        )
        block = self._markers[kind].extended(headers)
        return WireRecord(self._marker_keys[kind][partition], None, block)


def encoder_for(spec: StreamSpec, epoch: int) -> CloudEvents:
    """The renderer of the stream's format."""
    match spec.format:
        case "cloudevents":
            return CloudEvents(spec, epoch)
        case "structured":
            return CloudEvents(spec, epoch, structured_envelope())
        case "debezium":
            return CloudEvents(spec, epoch, debezium_envelope(spec, __version__))


# ---- bytes -> records ----------------------------------------------------------------------------


class ObjectRecord(msgspec.Struct, frozen=True, gc=False):
    """One object's record, read from a topic.

    `value` is the object's bytes in every format, None only for "deleted"; `value_hash` then is
    0; "" is absent. `enveloped`: the value wrapped the object."""

    stream: str
    epoch: int
    sequence: int
    verb: Verb
    key: bytes
    value: bytes | None
    value_hash: int
    uid: str
    version: str
    reason: Reason
    time: str
    trimmed: Trimmed = ""
    enveloped: bool = False


class MarkerRecord(msgspec.Struct, frozen=True, gc=False):
    """One marker, read from a topic. What does not apply to its kind is "", 0 or None."""

    stream: str
    epoch: int
    sequence: int
    kind: MarkerKind
    partition: int
    time: str
    config: str
    partitions: int
    frontier: str = ""
    count: int = 0
    digest: int = 0
    seen: str = ""
    snapshot: str = ""
    begin_sequence: int = 0
    begin_offset: int = 0
    last_snapshot: str = ""
    last_snapshot_offset: int | None = None

    @property
    def retires(self) -> bool:
        """It ends the stream, as `watchrelay retire` leaves it."""
        return (self.kind, self.count, self.frontier) == ("end", 0, "0")


Decoded = ObjectRecord | MarkerRecord


class Foreign(msgspec.Struct, frozen=True, gc=False):
    """A record that readers ignore, for `decode` refuses it or it is of another stream: tables that
    ignore headers show it, and compaction prefers it to the true record of its key. `named`: it has
    the stream's ce_wrstream."""

    key: bytes
    named: bool


class OtherCluster(msgspec.Struct, frozen=True, gc=False):
    """A marker that names another cluster. Readers, which do not judge the source, take it by its
    position; to a writer it proves nothing. `why`: the message for an operator where it counts."""

    epoch: int
    sequence: int
    why: str


LogRecord = Decoded | Foreign | OtherCluster
"""What is read back of one stream."""


def stream_named(headers: Sequence[Header]) -> bytes | None:
    """The stream of which a record says that it is, as `decode` takes it: the last header counts.
    None: of none. Such a record may hide one of any stream."""
    for name, value in reversed(headers):
        if name == "ce_wrstream":
            return value
    return None


def foreign_of(key: bytes | None, headers: Sequence[Header], stream: str) -> Foreign | None:
    """What a record that is refused, or of another stream, may hide of `stream`; None for nothing:
    no object has its key, nor could a record that repairs it."""
    if key is None or key.startswith(_MARKER_PREFIX) or not _is_utf8(key):
        return None
    return Foreign(key, stream_named(headers) == stream.encode())


def _is_utf8(key: bytes) -> bool:
    try:
        key.decode()
    except UnicodeDecodeError:
        return False
    return True


def decode(key: bytes | None, value: bytes | None, headers: Iterable[Header]) -> Decoded:
    """The content of a record. Raises: RecordRefused, naming the rule; skip it, count it,
    report it."""
    held = dict(headers)
    kind = held.get("ce_type")
    if kind is None or "ce_wrstream" not in held:
        refuse_unreadable(held)
        raise RecordRefused("not a record of watchrelay: it has no ce_type and ce_wrstream headers")
    if key is None:
        raise RecordRefused("a record without a key")
    try:
        if not key.isascii():
            key.decode()
        verb = _VERBS.get(kind)
        if verb is not None:
            return _decode_object(verb, key, value, held)
        marker = _MARKERS.get(kind)
        if marker is not None:
            return _decode_marker(marker, key, value, held)
    except KeyError as error:
        raise RecordRefused(f"header {error.args[0]} is missing") from error
    except ValueError as error:
        raise RecordRefused(f"a header or the key does not parse: {short(str(error))}") from error
    except (AttributeError, TypeError) as error:
        if None not in held.values():  # Kafka knows headers without a value
            raise
        raise RecordRefused("a header that must have a value is null") from error
    raise RecordRefused(
        f"ce_type {short(kind.decode(errors='replace'))} is not of this contract version"
    )


def refuse_unreadable(headers: Mapping[str, bytes]) -> None:
    """Raises: RecordRefused, with the reason, for a record that could not be read."""
    if UNREADABLE in headers:
        raise RecordRefused(headers[UNREADABLE].decode())


def _decode_object(
    verb: Verb, key: bytes, value: bytes | None, held: dict[str, bytes]
) -> ObjectRecord:
    value_hash, enveloped = 0, False
    if verb == "deleted":
        if value is not None:
            value, enveloped = unwrap(held.get("content-type", JSON_TYPE), value)
            if value is not None:
                raise RecordRefused("a delete with a value that holds an object")
    else:
        if value is not None:
            value, enveloped = unwrap(held["content-type"], value)
        if value is None:
            raise RecordRefused(f"type {verb} without a value")
        value_hash = _hex64(held["ce_wrhash"])
    reason = _REASONS.get(held["ce_wrreason"])
    trimmed = _TRIMMED.get(held.get("ce_wrtrimmed", b""))
    if reason is None or trimmed is None:
        raise RecordRefused(
            "ce_wrreason or ce_wrtrimmed has a value that is not of this contract version"
        )
    return ObjectRecord(
        held["ce_wrstream"].decode(),
        parse_epoch(held["ce_wrepoch"]),
        _number(held["ce_sequence"]),
        verb,
        key,
        value,
        value_hash,
        held.get("ce_wruid", b"").decode(),
        held.get("ce_wrrv", b"").decode(),
        reason,
        held["ce_time"].decode(),
        trimmed,
        enveloped,
    )


def _decode_marker(
    kind: MarkerKind, key: bytes, value: bytes | None, held: dict[str, bytes]
) -> MarkerRecord:
    stream = held["ce_wrstream"].decode()
    shape, _, partition = key.rpartition(b"/")
    if value is not None or shape != b"%%wr/%b/%b" % (kind.encode(), stream.encode()):
        raise RecordRefused(f"a {kind} marker whose key or value is not a marker's")
    number, partitions = _number(partition), _number(held["ce_wrpartitions"])
    if not number < partitions <= PARTITIONS_MAX:
        raise ValueError(
            f"partition {number} of {partitions}: a stream has 1 to {PARTITIONS_MAX} partitions, "
            "the first is 0"
        )
    measured = kind != "claim"
    ends = kind == "end"
    last = held.get("ce_wrlastsnapoff") if kind == "heartbeat" else None
    return MarkerRecord(
        stream=stream,
        epoch=parse_epoch(held["ce_wrepoch"]),
        sequence=_number(held["ce_sequence"]),
        kind=kind,
        partition=number,
        time=held["ce_time"].decode(),
        config=held["ce_wrconfig"].decode(),
        partitions=partitions,
        frontier=held["ce_wrrv"].decode() if measured else "",
        count=_number(held["ce_wrcount"]) if measured else 0,
        digest=_hex64(held["ce_wrdigest"]) if measured else 0,
        seen=held.get("ce_wrseen", b"").decode(),
        snapshot=held["ce_wrsnap"].decode() if kind in {"begin", "end"} else "",
        begin_sequence=_number(held["ce_wrbegin"]) if ends else 0,
        begin_offset=_offset(held["ce_wrbeginoff"]) if ends else 0,
        last_snapshot=held["ce_wrlastsnap"].decode() if last is not None else "",
        last_snapshot_offset=_offset(last) if last is not None else None,
    )


def _number(text: bytes) -> int:
    """Digits alone: `int` takes signs, blanks and underscores, and numbers beyond other readers."""
    if not text.isdigit() or len(text) > _DIGITS_MAX:
        raise ValueError(
            f"{text.decode(errors='replace')!r} is not a number of up to {_DIGITS_MAX} digits"
        )
    return int(text)


def _offset(text: bytes) -> int:
    if (offset := _number(text)) > _OFFSET_MAX:
        raise ValueError(f"offset {offset} exceeds the maximum {_OFFSET_MAX}")
    return offset


def parse_epoch(text: bytes) -> int:
    """ce_wrepoch as a number. Raises: ValueError, also for one that no base can lead to."""
    if (epoch := _number(text)) > EPOCH_MAX:
        raise ValueError(f"epoch {epoch} exceeds the maximum {EPOCH_MAX}")
    return epoch


def _hex64(text: bytes) -> int:
    if len(text) != 16 or not text.isalnum() or text[1] in b"xX":
        raise ValueError(f"{text.decode(errors='replace')!r} is not 16 hex digits")
    return int(text, 16)
