"""Values that wrap the object: a JSON CloudEvent (format `structured`) or a Debezium change (format
`debezium`).

The object's bytes are spliced into the value and cut out of it again, never decoded: the content
hash covers these bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgspec

from watchrelay.contract.headers import Header
from watchrelay.core.errors import RecordRefused
from watchrelay.core.text import BROKEN_JSON, short, why_broken
from watchrelay.model.streams import StreamSpec

STRUCTURED_TYPE: Final = b"application/cloudevents+json"
JSON_TYPE: Final = b"application/json"
CHANGE_PREFIX: Final = b'{"before":'
"""How each value of format `debezium` begins. An object's own JSON has apiVersion and kind beside
it, a change has neither."""


_OPERATIONS = {"added": "c", "modified": "u", "deleted": "d", "read": "r"}
_encode = msgspec.json.Encoder().encode


class Envelope(NamedTuple):
    """One format's way to wrap. `overhead_bytes`: what a value grows by, about. `wrap`: the
    value of headers, the object's bytes (None for a delete) and the time."""

    content_type: bytes
    overhead_bytes: int
    wrap: Callable[[Sequence[Header], bytes | None, int], bytes]


def structured_envelope() -> Envelope:
    """CloudEvents JSON format 1.0, 3: the attributes of the headers once more, each a string,
    and the object as `data`; none for a delete."""

    def wrap(headers: Sequence[Header], value: bytes | None, _time_ms: int) -> bytes:
        event: dict[str, object] = {
            name[3:]: text.decode() for name, text in headers if name.startswith("ce_")
        }
        if value is not None:
            event["datacontenttype"] = JSON_TYPE.decode()
            event["data"] = msgspec.Raw(value)
        return _encode(event)

    return Envelope(STRUCTURED_TYPE, 600, wrap)


def debezium_envelope(spec: StreamSpec, version: str) -> Envelope:
    """Debezium's envelope, without a schema. Source: Debezium documentation, "Change event values".

    `before` is always null: the store keeps no former states. `source.snapshot` is "true" for each
    record of a snapshot: which is the last is not known yet."""
    resource = spec.plan.selection.resource

    def wrap(headers: Sequence[Header], value: bytes | None, time_ms: int) -> bytes:
        text_of = {name: text.decode() for name, text in headers}
        source = {
            "version": version,
            "connector": "watchrelay",
            "name": spec.cluster,
            "ts_ms": time_ms,
            "snapshot": "true" if text_of["ce_wrreason"] == "snapshot" else "false",
            "group": resource.group,
            "apiVersion": resource.api_version,
            "resource": resource.plural,
            "kind": resource.kind,
            "namespace": text_of.get("ce_namespace"),
            "object": text_of.get("ce_name"),
            "uid": text_of.get("ce_wruid"),
            "resourceVersion": text_of.get("ce_wrrv"),
            "stream": text_of["ce_wrstream"],
            "epoch": int(text_of["ce_wrepoch"]),
            "sequence": text_of["ce_sequence"],
        }
        return _encode(
            {
                "before": None,
                "after": None if value is None else msgspec.Raw(value),
                "source": source,
                "op": _OPERATIONS[text_of["ce_type"].split(".")[-2]],
                "ts_ms": time_ms,
            }
        )

    return Envelope(JSON_TYPE, 500, wrap)


class _Event(msgspec.Struct):
    specversion: str
    data: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _Change(msgspec.Struct):
    op: str
    after: msgspec.Raw
    kind: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_event = msgspec.json.Decoder(_Event).decode
_change = msgspec.json.Decoder(_Change).decode


def unwrap(content_type: bytes, value: bytes) -> tuple[bytes | None, bool]:
    """The object's bytes in a record's value, None when it holds none; and whether it had an
    envelope.

    Raises: RecordRefused for an unknown content type, and for a broken envelope."""
    if content_type == STRUCTURED_TYPE:
        try:
            event = _event(value)
        except BROKEN_JSON as error:
            raise RecordRefused(
                f"the value is not a CloudEvent: {why_broken(error, value)}"
            ) from error
        if event.specversion != "1.0":
            raise RecordRefused(f"a CloudEvent of specversion {short(event.specversion)}")
        return _bytes(event.data), True
    if content_type != JSON_TYPE:
        raise RecordRefused(
            f"content-type {short(content_type.decode(errors='replace'))} is not read by this "
            "version"
        )
    if value.startswith(CHANGE_PREFIX):
        try:
            change = _change(value)
        except BROKEN_JSON:
            return value, False  # an object that happens to begin so
        if change.kind is msgspec.UNSET and change.op in _OPERATIONS.values():
            return _bytes(change.after), True
    return value, False


def _bytes(raw: msgspec.Raw | msgspec.UnsetType) -> bytes | None:
    if isinstance(raw, msgspec.UnsetType):
        return None
    text = bytes(raw)
    return None if text == b"null" else text
