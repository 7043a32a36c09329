"""The headers of the record contract, as JSON Schemas: which each type of record has, and their
format. Source: docs/record-contract.md, 3."""

from __future__ import annotations

from typing import Any, Final

OBJECT_TYPES: Final = ("added", "modified", "read", "deleted")
MARKER_TYPES: Final = ("claim", "begin", "end", "heartbeat")
TYPES: Final[dict[str, str]] = {
    **{verb: f"dev.watchrelay.object.{verb}.v1" for verb in OBJECT_TYPES},
    "claim": "dev.watchrelay.claim.v1",
    "begin": "dev.watchrelay.snapshot.begin.v1",
    "end": "dev.watchrelay.snapshot.end.v1",
    "heartbeat": "dev.watchrelay.heartbeat.v1",
}
"""ce_type by its short name."""

_TIME = r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$"
_SUM = "^[0-9a-f]{16}$"
_NUMBER = "^[0-9]+$"
_SNAPSHOT = "^[0-9]+-[0-9]+$"


def _text(description: str, pattern: str = "", **more: Any) -> dict[str, Any]:
    return {
        "type": "string",
        "description": description,
        **({"pattern": pattern} if pattern else {}),
        **more,
    }


HEADERS: Final[dict[str, dict[str, Any]]] = {
    "ce_specversion": _text("Version of CloudEvents.", const="1.0"),
    "ce_type": _text("What the record is; its effect follows from this alone."),
    "ce_source": _text(
        "/clusters/<cluster>/apis/<group>/<version>/<resource>, or "
        "/clusters/<cluster>/api/v1/<resource>."
    ),
    "ce_subject": _text("<namespace>/<name>, or <name> of what is cluster-scoped."),
    "ce_id": _text("<stream>.<epoch>.<partition>.<sequence>; a resend has the same."),
    "ce_time": _text("When the record was queued.", _TIME),
    "content-type": _text("Media type of the value; absent without one."),
    "ce_kind": _text("Kind of the object."),
    "ce_apiversion": _text("apiVersion of the object."),
    "ce_name": _text("Name of the object."),
    "ce_namespace": _text("Namespace of the object; absent of what is cluster-scoped."),
    "ce_wruid": _text("uid of the object; absent on a healed null."),
    "ce_wrrv": _text(
        "resourceVersion of the object; on markers the frontier, of which 0 claims nothing."
    ),
    "ce_wrstream": _text("Stream id."),
    "ce_wrepoch": _text("Epoch: the tenure of one writer.", _NUMBER),
    "ce_sequence": _text(
        "Place within stream, epoch and partition, from 1, without gaps.", r"^\d{20}$"
    ),
    "ce_wrhash": _text("First 8 bytes of SHA-256(key, one zero byte, bytes of the object).", _SUM),
    "ce_wrreason": _text(
        "Why the record was published.",
        enum=["watch", "relist", "resume", "conflated", "snapshot", "healed"],
    ),
    "ce_wrtrimmed": _text(
        "What is left of an object too large for the topic.", enum=["fields", "stub"]
    ),
    "ce_wrcount": _text("Live objects of the stream in this partition.", _NUMBER),
    "ce_wrdigest": _text("Sum of their hashes mod 2^64.", _SUM),
    "ce_wrconfig": _text("Hash of what decides which objects and which content the stream holds."),
    "ce_wrpartitions": _text("Number of partitions of the stream.", _NUMBER),
    "ce_wrseen": _text("When the API server last sent something on this stream.", _TIME),
    "ce_wrsnap": _text("Id of the snapshot.", _SNAPSHOT),
    "ce_wrbegin": _text("Sequence of this snapshot's begin in this partition.", _NUMBER),
    "ce_wrbeginoff": _text("Offset of this snapshot's begin in this partition.", _NUMBER),
    "ce_wrlastsnap": _text(
        "Id of the last snapshot that is complete in this partition.", _SNAPSHOT
    ),
    "ce_wrlastsnapoff": _text("Offset of its begin in this partition.", _NUMBER),
}

_ALL = (
    "ce_specversion",
    "ce_type",
    "ce_source",
    "ce_id",
    "ce_time",
    "ce_wrstream",
    "ce_wrepoch",
    "ce_sequence",
)
_OBJECT = (*_ALL, "ce_subject", "ce_kind", "ce_apiversion", "ce_name", "ce_wrrv", "ce_wrreason")
_MARKER = (*_ALL, "ce_wrconfig", "ce_wrpartitions")
_STATE = (*_MARKER, "ce_wrrv", "ce_wrcount", "ce_wrdigest")
_VALUE = ("content-type", "ce_wruid", "ce_wrhash")

REQUIRED: Final[dict[str, tuple[str, ...]]] = {
    **dict.fromkeys(("added", "modified", "read"), (*_OBJECT, *_VALUE)),
    "deleted": _OBJECT,
    "claim": _MARKER,
    "begin": (*_STATE, "ce_wrsnap"),
    "end": (*_STATE, "ce_wrsnap", "ce_wrbegin", "ce_wrbeginoff"),
    "heartbeat": _STATE,
}
OPTIONAL: Final[dict[str, tuple[str, ...]]] = {
    **dict.fromkeys(("added", "modified", "read"), ("ce_namespace", "ce_wrtrimmed")),
    "deleted": ("ce_namespace", "ce_wruid"),
    "claim": (),
    "begin": ("ce_wrseen",),
    "end": ("ce_wrseen",),
    "heartbeat": ("ce_wrseen", "ce_wrlastsnap", "ce_wrlastsnapoff"),
}


def headers_schema(name: str, content_type: str, *, enveloped: bool) -> dict[str, Any]:
    """The schema of the headers of one type of record.

    Args:
        name: short name of the type, a key of `TYPES`.
        content_type: of the stream's format.
        enveloped: in that format a delete has a value, and its tombstone is a record of its own.
    """
    fixed = {"ce_type": {"const": TYPES[name]}, "content-type": {"const": content_type}}
    names = [
        *REQUIRED[name],
        *OPTIONAL[name],
        *(("content-type",) if name == "deleted" and enveloped else ()),
    ]
    return {
        "type": "object",
        "required": list(REQUIRED[name]),
        "properties": {each: {**HEADERS[each], **fixed.get(each, {})} for each in names},
    }
