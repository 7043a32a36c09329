"""Frames and records decoded a second time, and where the product's decoders disagree.

Written with Python's own `json` and by regular expressions: slow, and with none of the
shortcuts of the first one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from watchrelay.contract.records import Decoded, MarkerRecord, ObjectRecord
from watchrelay.model.frames import Bookmark, Failure, Frame, ObjectFrame

_VERBS = {"ADDED", "MODIFIED", "DELETED"}


def wrong_frames(data: bytes, frames: Sequence[Frame]) -> list[str]:
    """What of `frames` does not follow from the lines of `data`. A line that is not blank
    has one frame, up to one that ends it all; what is behind the last line end has one only if
    it is whole."""
    lines = [each.strip() for each in data.split(b"\n")]
    cut = bool(lines[-1]) and not isinstance(_read(lines[-1]), dict)
    lines = [each for each in (lines[:-1] if cut else lines) if each]
    found = [
        f"{problem} in {line[:300]!r}"
        for line, frame in zip(lines, frames, strict=False)
        if (problem := _wrong_frame(line, frame))
    ]
    ends = next((at for at, line in enumerate(lines) if _ends(line)), len(lines) - 1)
    if len(frames) > ends + 1:
        found.append(f"{len(frames)} frames of {ends + 1} lines")
    elif len(frames) < ends + 1 and not (frames and isinstance(frames[-1], Failure)):
        found.append(f"{ends + 1 - len(frames)} lines have no frame")
    return found


def _read(line: bytes) -> object:
    """The JSON of `line`; None where that is no JSON, nested beyond what is read here, or holds
    half a surrogate pair."""
    try:
        content: object = json.loads(line.decode())
        json.dumps(content, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return None
    return content


def _ends(line: bytes) -> bool:
    """An ERROR line, which nothing comes behind."""
    content = _read(line)
    return isinstance(content, dict) and content.get("type") == "ERROR"


def _wrong_frame(line: bytes, frame: Frame) -> str:
    if isinstance(frame, Failure):
        return ""
    try:
        content = json.loads(line.decode(), object_pairs_hook=_once)
    except RecursionError:
        return ""
    except ValueError as error:
        return f"a frame of what is no JSON: {error}"
    inner = content.get("object")
    if isinstance(frame, Bookmark):
        return "" if content.get("type") == "BOOKMARK" else "a bookmark of another type"
    assert isinstance(frame, ObjectFrame)
    metadata = inner["metadata"]
    identity = (
        content["type"],
        metadata.get("namespace") or "",
        metadata["name"],
        metadata.get("uid") or "",
        metadata["resourceVersion"],
    )
    if (
        identity != (frame.type, frame.namespace, frame.name, frame.uid, frame.resource_version)
        or frame.type not in _VERBS
    ):
        return f"another object: {identity}"
    fields = {name: json.loads(bytes(raw)) for name, raw in frame.fields.items()}
    if fields != {"apiVersion": "v1", "kind": "Pod"} | json.loads(line.decode())["object"]:
        return "other fields"
    return ""


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key occurs twice")
    return found


_NUMBER = re.compile(rb"[0-9]{1,20}\Z")
_HEX = re.compile(rb"[0-9a-fA-F]{16}\Z")
_EPOCH_MAX, _OFFSET_MAX = 2**53 - 1, 2**63 - 1


def wrong_record(
    key: bytes | None, value: bytes | None, headers: Mapping[str, bytes | None], record: Decoded
) -> list[str]:
    """What of `record` does not follow from the headers, or should have been refused."""
    held = {name: header or b"" for name, header in headers.items()}
    numbers = {"ce_wrepoch": record.epoch, "ce_sequence": record.sequence}
    texts = {"ce_wrstream": record.stream, "ce_time": record.time}
    if isinstance(record, ObjectRecord):
        found = _wrong_object(key, value, held, record)
        texts |= {"ce_wruid": record.uid, "ce_wrrv": record.version, "ce_wrreason": record.reason}
    else:
        found = _wrong_marker(key, value, held, record)
        numbers["ce_wrpartitions"] = record.partitions
        if record.kind != "claim":
            numbers["ce_wrcount"], texts["ce_wrrv"] = record.count, record.frontier
        if record.kind == "end":
            numbers |= {"ce_wrbegin": record.begin_sequence, "ce_wrbeginoff": record.begin_offset}
        if record.kind == "heartbeat" and record.last_snapshot_offset is not None:
            numbers["ce_wrlastsnapoff"] = record.last_snapshot_offset
    found += [
        f"{name} read as {number}"
        for name, number in numbers.items()
        if not _is(held.get(name, b""), number)
    ]
    found += [
        f"{name} read as {text!r}"
        for name, text in texts.items()
        if held.get(name, b"") != text.encode()
    ]
    if record.epoch > _EPOCH_MAX:
        found.append("an epoch that nothing can be above")
    return found


def _wrong_object(
    key: bytes | None, value: bytes | None, held: Mapping[str, bytes], record: ObjectRecord
) -> list[str]:
    found = []
    if key is None or record.key != key or key.decode(errors="replace").encode() != key:
        found.append(f"the key {key!r}")
    if (record.value is None) != (record.verb == "deleted"):
        found.append(f"a {record.verb} with value {record.value!r}")
    if record.value is not None and not _is(held.get("ce_wrhash", b""), record.value_hash, base=16):
        found.append(f"the hash {held.get('ce_wrhash')!r}")
    if record.value is not None and not record.enveloped and record.value != value:
        found.append("another value")
    if record.verb.encode() not in held["ce_type"]:
        found.append("another verb")
    return found


def _wrong_marker(
    key: bytes | None, value: bytes | None, held: Mapping[str, bytes], record: MarkerRecord
) -> list[str]:
    shape = re.fullmatch(
        rb"%wr/(claim|begin|end|heartbeat)/(.+)/([0-9]{1,20})", key or b"", re.DOTALL
    )
    if (
        value is not None
        or shape is None
        or (shape[1].decode(), shape[2].decode()) != (record.kind, record.stream)
    ):
        return [f"a marker of {key!r}, {value!r}"]
    found = [] if int(shape[3]) == record.partition else ["another partition"]
    if record.kind != "claim" and not _is(held.get("ce_wrdigest", b""), record.digest, base=16):
        found.append(f"the digest {held.get('ce_wrdigest')!r}")
    if max(record.begin_offset, record.last_snapshot_offset or 0) > _OFFSET_MAX:
        found.append("an offset that no client can go to")
    return found


def _is(text: bytes, number: int, *, base: int = 10) -> bool:
    return bool((_NUMBER if base == 10 else _HEX).match(text)) and int(text, base) == number
