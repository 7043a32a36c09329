"""One Kafka record as it is on a state topic: what it contains, and each rule of the contract it
breaks.

Written from docs/record-contract.md (sections 3 and 5) alone: nothing of the product is imported,
so that a mistake there cannot excuse itself here.
"""

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

Headers = dict[str, str]

_OBJECT_TYPE = re.compile(r"dev\.watchrelay\.object\.(added|modified|deleted|read)\.v1\Z")
_MARKER_TYPE = re.compile(r"dev\.watchrelay\.(claim|snapshot\.begin|snapshot\.end|heartbeat)\.v1\Z")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z\Z")
_SEQUENCE = re.compile(r"\d{20}\Z")
_SUM = re.compile(r"[0-9a-f]{16}\Z")
_SNAPSHOT = re.compile(r"\d+-\d+\Z")
_NUMBER = re.compile(r"\d+\Z")
_FORMS = (
    {
        "ce_time": _TIME,
        "ce_wrseen": _TIME,
        "ce_sequence": _SEQUENCE,
        "ce_wrhash": _SUM,
        "ce_wrdigest": _SUM,
    }
    | dict.fromkeys(("ce_wrsnap", "ce_wrlastsnap"), _SNAPSHOT)
    | dict.fromkeys(
        (
            "ce_wrepoch",
            "ce_wrrv",
            "ce_wrcount",
            "ce_wrpartitions",
            "ce_wrbegin",
            "ce_wrbeginoff",
            "ce_wrlastsnapoff",
        ),
        _NUMBER,
    )
)
_REASONS = frozenset({"watch", "relist", "resume", "conflated", "snapshot", "healed"})

_ALL = frozenset(
    {
        "ce_specversion",
        "ce_type",
        "ce_source",
        "ce_id",
        "ce_time",
        "ce_wrstream",
        "ce_wrepoch",
        "ce_sequence",
    }
)
_OBJECT = _ALL | {"ce_subject", "ce_kind", "ce_apiversion", "ce_name", "ce_wrrv", "ce_wrreason"}
_MARKER = _ALL | {"ce_wrconfig", "ce_wrpartitions"}
_STATE = _MARKER | {"ce_wrrv", "ce_wrcount", "ce_wrdigest"}
_REQUIRED: dict[str, frozenset[str]] = {
    "added": _OBJECT | {"content-type", "ce_wruid", "ce_wrhash"},
    "modified": _OBJECT | {"content-type", "ce_wruid", "ce_wrhash"},
    "read": _OBJECT | {"content-type", "ce_wruid", "ce_wrhash"},
    "deleted": _OBJECT,
    "claim": _MARKER,
    "begin": _STATE | {"ce_wrsnap"},
    "end": _STATE | {"ce_wrsnap", "ce_wrbegin", "ce_wrbeginoff"},
    "heartbeat": _STATE,
}
_OPTIONAL: dict[str, frozenset[str]] = {
    "added": frozenset({"ce_namespace", "ce_wrtrimmed"}),
    "modified": frozenset({"ce_namespace", "ce_wrtrimmed"}),
    "read": frozenset({"ce_namespace", "ce_wrtrimmed"}),
    "deleted": frozenset({"ce_namespace", "ce_wruid"}),
    "claim": frozenset(),
    "begin": frozenset({"ce_wrseen"}),
    "end": frozenset({"ce_wrseen"}),
    "heartbeat": frozenset({"ce_wrseen", "ce_wrlastsnap", "ce_wrlastsnapoff"}),
}


def murmur2(key: bytes) -> int:
    """The 32-bit hash of Kafka's default partitioner. Source:
    org.apache.kafka.common.utils.Utils.murmur2."""
    mask, multiplier = 0xFFFFFFFF, 0x5BD1E995
    result = (0x9747B28C ^ len(key)) & mask
    whole = len(key) // 4 * 4
    for at in range(0, whole, 4):
        word = int.from_bytes(key[at : at + 4], "little") * multiplier & mask
        word = (word ^ word >> 24) * multiplier & mask
        result = (result * multiplier & mask) ^ word
    rest = key[whole:]
    if rest:
        result = (result ^ int.from_bytes(rest, "little")) * multiplier & mask
    result = (result ^ result >> 13) * multiplier & mask
    return result ^ result >> 15


def partition_of(key: bytes, partitions: int) -> int:
    """Where records of the key stand."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def value_hash(key: bytes, value: bytes) -> int:
    """What an object adds to the digest of its partition."""
    return int.from_bytes(hashlib.sha256(key + b"\0" + value).digest()[:8], "big")


@dataclass(frozen=True, slots=True)
class Raw:
    """A record as Kafka gave it. `headers` in their order, a value None is possible in Kafka
    and wrong for us."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


@dataclass(slots=True)
class ParsedRecord:
    """A parsed record. `type` is the short one (added, ..., claim, begin, end,
    heartbeat); `problems` one line each."""

    raw: Raw
    type: str
    headers: Headers
    problems: list[str] = field(default_factory=list)

    @property
    def is_object(self) -> bool:
        """True for records of objects, false for markers."""
        return self.type in {"added", "modified", "deleted", "read"}

    @property
    def key(self) -> bytes:
        """The key; records without one are refused by `understand`."""
        assert self.raw.key is not None
        return self.raw.key

    @property
    def place(self) -> tuple[str, int, int]:
        """Topic, partition and offset."""
        return self.raw.topic, self.raw.partition, self.raw.offset

    @property
    def stream(self) -> str:
        """The stream id."""
        return self.headers["ce_wrstream"]

    @property
    def epoch(self) -> int:
        """The writer's epoch."""
        return int(self.headers["ce_wrepoch"])

    @property
    def sequence(self) -> int:
        """The place within stream, epoch and partition."""
        return int(self.headers["ce_sequence"])

    @property
    def version(self) -> int:
        """ce_wrrv as a number; a claim has none and says 0."""
        return int(self.headers.get("ce_wrrv", "0"))

    def __str__(self) -> str:
        return (
            f"{self.raw.topic}/{self.raw.partition}@{self.raw.offset} {self.type} {self.raw.key!r}"
        )


def understand(raw: Raw) -> ParsedRecord:
    """The record with every broken rule that shows without looking at other records.

    Raises: ValueError when it cannot be attributed to a stream, epoch and sequence at all.
    """
    headers = {name: (value or b"").decode() for name, value in raw.headers}
    found = _OBJECT_TYPE.match(headers.get("ce_type", "")) or _MARKER_TYPE.match(
        headers.get("ce_type", "")
    )
    if found is None or raw.key is None:
        raise ValueError(
            f"{raw.topic}/{raw.partition}@{raw.offset}: neither an object nor a marker: key "
            f"{raw.key!r}, headers {headers}"
        )
    record = ParsedRecord(raw, found[1].removeprefix("snapshot."), headers)
    record.problems.extend(_names_and_forms(record))
    if missing := _REQUIRED[record.type] - set(headers):
        if missing & {"ce_wrstream", "ce_wrepoch", "ce_sequence"}:
            raise ValueError(f"{record}: without {sorted(missing)}")
        return record  # its problems name them; what follows would fail on them
    record.problems.extend(_object_rules(record) if record.is_object else _marker_rules(record))
    return record


def _names_and_forms(record: ParsedRecord) -> Iterator[str]:
    names = [name for name, _ in record.raw.headers]
    required, optional = _REQUIRED[record.type], _OPTIONAL[record.type]
    for name in sorted(required - set(names)):
        yield f"header {name} is missing"
    for name in sorted(set(names) - required - optional):
        yield f"header {name} does not belong on {record.type}"
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"header {name} is there twice"
    for name, value in record.raw.headers:
        if not value:
            yield f"header {name} is empty: it should be absent"
    headers = record.headers
    if headers.get("ce_specversion") != "1.0":
        yield f"ce_specversion is {headers.get('ce_specversion')!r}"
    for name, form in _FORMS.items():
        if name in headers and not form.match(headers[name]):
            yield f"{name} has not its form: {headers[name]!r}"
    place = [
        headers.get("ce_wrstream"),
        headers.get("ce_wrepoch"),
        str(record.raw.partition),
        headers.get("ce_sequence", "").lstrip("0"),
    ]
    if headers.get("ce_id") != ".".join(str(part) for part in place):
        yield f"ce_id is {headers.get('ce_id')!r}, not {place}"


def _source(api_version: str) -> re.Pattern[str]:
    path = f"api/{api_version}" if "/" not in api_version else f"apis/{api_version}"
    return re.compile(rf"/clusters/[A-Za-z0-9._-]+/{re.escape(path)}/[a-z0-9-]+\Z")


def _object_rules(record: ParsedRecord) -> Iterator[str]:
    headers, raw = record.headers, record.raw
    name, namespace = headers["ce_name"], headers.get("ce_namespace")
    plain = f"{namespace or ''}/{name}".encode()
    if record.key != plain and not record.key.endswith(b"/" + plain):
        yield f"the key is not made of namespace and name ({namespace!r}, {name!r})"
    if headers["ce_subject"] != (f"{namespace}/{name}" if namespace else name):
        yield f"ce_subject is {headers['ce_subject']!r}"
    if not _source(headers["ce_apiversion"]).match(headers["ce_source"]):
        yield f"ce_source is {headers['ce_source']!r}"
    if headers["ce_wrreason"] not in _REASONS:
        yield f"ce_wrreason is {headers['ce_wrreason']!r}"
    if headers.get("ce_wrtrimmed", "stub") not in {"fields", "stub"}:
        yield f"ce_wrtrimmed is {headers['ce_wrtrimmed']!r}"
    if record.type == "deleted":
        if raw.value is not None:
            yield "a delete has a value"
        if ("ce_wruid" in headers) == (headers["ce_wrreason"] == "healed"):
            yield "ce_wruid belongs on each delete but a healed null"
        return
    if raw.value is None:
        yield f"{record.type} has no value"
        return
    if headers["content-type"] != "application/json":
        yield f"content-type is {headers['content-type']!r}"
    if int(headers["ce_wrhash"], 16) != value_hash(record.key, raw.value):
        yield "ce_wrhash is not the hash of key and value"
    yield from _value_rules(headers, json.loads(raw.value))


def _value_rules(headers: Headers, value: dict[str, Any]) -> Iterator[str]:
    metadata = value.get("metadata", {})
    pairs = (
        ("ce_kind", value.get("kind")),
        ("ce_apiversion", value.get("apiVersion")),
        ("ce_name", metadata.get("name")),
        ("ce_namespace", metadata.get("namespace")),
        ("ce_wruid", metadata.get("uid")),
        ("ce_wrrv", metadata.get("resourceVersion")),
    )
    for header, expected in pairs:
        if headers.get(header) != expected:
            yield f"{header} says {headers.get(header)!r}, the value {expected!r}"


def _marker_rules(record: ParsedRecord) -> Iterator[str]:
    headers = record.headers
    expected = f"%wr/{record.type}/{record.stream}/{record.raw.partition}".encode()
    if record.key != expected:
        yield f"the marker's key is not {expected!r}"
    if record.raw.value is not None:
        yield "a marker has a value"
    if not re.match(r"/clusters/[^/]+/(api/v\w+|apis/[^/]+/v\w+)/[^/]+\Z", headers["ce_source"]):
        yield f"ce_source is {headers['ce_source']!r}"
    if ("ce_wrlastsnap" in headers) != ("ce_wrlastsnapoff" in headers):
        yield "ce_wrlastsnap and ce_wrlastsnapoff belong together"
