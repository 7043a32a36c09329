"""Which parts of an object too large for the topic are left out, in which order."""

from __future__ import annotations

import msgspec
import zstandard

from watchrelay.contract.records import Trimmed
from watchrelay.model.paths import LAST_APPLIED

_KEPT = ("apiVersion", "kind", "metadata")
_METADATA_OF_SMALLEST = (
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
)
_OVERHEAD_BYTES = 1536
"""Upper bound of headers, key and framing of one record."""

_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode
_OPENING_BRACE = ord("{")


def packed_max(message_bytes: int) -> int:
    """The size up to which compressed values fit a topic with this `max.message.bytes`. A twentieth
    is reserved for differences between compressors."""
    return max(0, message_bytes - message_bytes // 20 - _OVERHEAD_BYTES)


def trim(value: bytes, packed_max: int) -> tuple[bytes, Trimmed]:
    """The largest form of the object that fits in `packed_max` compressed: whole (""), without some
    fields, or a stub; the smallest where none does."""
    compress = zstandard.ZstdCompressor(level=1).compress
    form: tuple[bytes, Trimmed] = (value, "")
    while len(compress(form[0])) > packed_max and (smaller := next_smaller(*form)) is not None:
        form = smaller
    return form


def next_smaller(value: bytes, trimmed: Trimmed) -> tuple[bytes, Trimmed] | None:
    """The next smaller form of a value in form `trimmed`; None if there is none, or if it nests too
    deep for what is left of the call stack."""
    steps: list[tuple[bytes, Trimmed]] = []
    try:
        if not trimmed:
            steps.append((without_fields(value), "fields"))
        if trimmed != "stub":
            steps.append((stub(value), "stub"))
        steps.append((stub(value, smallest=True), "stub"))
    except RecursionError:
        return None
    return next((step for step in steps if len(step[0]) < len(value)), None)


def without_fields(value: bytes) -> bytes:
    """The object without managedFields and the last-applied annotation, which `keepManagedFields`
    and `keepLastApplied` left in it."""
    fields = _decode(value)
    if "metadata" in fields:
        metadata = _decode(fields["metadata"])
        metadata.pop("managedFields", None)
        held = metadata.get("annotations")
        # an aggregated API server may send null, or another type
        if held is not None and memoryview(held)[0] == _OPENING_BRACE:
            annotations = _decode(held)
            if annotations.pop(LAST_APPLIED, None) is not None:
                metadata["annotations"] = msgspec.Raw(_encode(annotations))
        fields["metadata"] = msgspec.Raw(_encode(metadata))
    return _encode(fields)


def stub(value: bytes, *, smallest: bool = False) -> bytes:
    """The object's metadata alone; `smallest`: only its names, uid, versions and timestamps."""
    fields = {name: raw for name, raw in _decode(value).items() if name in _KEPT}
    if smallest and "metadata" in fields:
        metadata = {
            name: raw
            for name, raw in _decode(fields["metadata"]).items()
            if name in _METADATA_OF_SMALLEST
        }
        fields["metadata"] = msgspec.Raw(_encode(metadata))
    return _encode(fields)
