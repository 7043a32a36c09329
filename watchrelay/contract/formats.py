"""Values that wrap the object: a JSON CloudEvent (format `structured`) or a Debezium change (format
`debezium`).

The object's bytes are spliced into the value and cut out of it again, never decoded: the content
hash covers these bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

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


class Envelope(Protocol):
    """One format's way to wrap. `overhead_bytes` is what a value grows by, about."""

    content_type: bytes
    overhead_bytes: int

    def wrap(self, headers: Sequence[Header], value: bytes | None, time_ms: int) -> bytes:
        """The record's value. `headers` are those of the record, `value` the object's bytes, None
        for a delete."""
        ...


class StructuredEnvelope:
    """CloudEvents 1.0, structured mode: the attributes of the headers once more, and the object as
    `data`; none for a delete."""

    content_type = STRUCTURED_TYPE
    overhead_bytes = 600

    def wrap(self, headers: Sequence[Header], value: bytes | None, time_ms: int) -> bytes:  # noqa: ARG002 (ce_time has it)
        """One CloudEvent. Every attribute is a string, spelt as in its header. Source: CloudEvents
        JSON format 1.0, 3."""
        event: dict[str, object] = {
            name[3:]: text.decode() for name, text in headers if name.startswith("ce_")
        }
        if value is not None:
            event["datacontenttype"] = JSON_TYPE.decode()
            event["data"] = msgspec.Raw(value)
        return _encode(event)


class DebeziumEnvelope:
    """Debezium's envelope, without a schema beside it.

    `before` is always null: the store keeps no former states. `op` follows the record's type;
    `source.snapshot` is "true" for records of a snapshot (which of them is the last is not known
    when its bytes are fixed).
    """

    content_type = JSON_TYPE
    overhead_bytes = 500

    def __init__(self, spec: StreamSpec, version: str) -> None:
        resource = spec.plan.selection.resource
        self._version, self._cluster = version, spec.cluster
        self._resource = {
            "group": resource.group,
            "apiVersion": resource.api_version,
            "resource": resource.plural,
            "kind": resource.kind,
        }

    def wrap(self, headers: Sequence[Header], value: bytes | None, time_ms: int) -> bytes:
        """One change event. Source: Debezium documentation, "Change event values"."""
        text_of = {name: text.decode() for name, text in headers}
        source = {
            "version": self._version,
            "connector": "watchrelay",
            "name": self._cluster,
            "ts_ms": time_ms,
            "snapshot": "true" if text_of["ce_wrreason"] == "snapshot" else "false",
            **self._resource,
            "namespace": text_of.get("ce_namespace"),
            "object": text_of["ce_name"],
            "uid": text_of.get("ce_wruid"),
            "resourceVersion": text_of.get("ce_wrrv"),
            "stream": text_of["ce_wrstream"],
            "epoch": int(text_of["ce_wrepoch"]),
            "sequence": text_of["ce_sequence"],
        }
        after = None if value is None else msgspec.Raw(value)
        verb = text_of["ce_type"].split(".")[-2]
        return _encode(
            {
                "before": None,
                "after": after,
                "source": source,
                "op": _OPERATIONS[verb],
                "ts_ms": time_ms,
            }
        )


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
    """The object's bytes in a record's value, None when it holds none; and whether there was an
    envelope around them.

    Raises: RecordRefused for an unknown content type, and for an envelope that is broken.
    """
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
