"""The config's topics as an AsyncAPI 3.0 document, made without any connection."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from watchrelay import __version__
from watchrelay.config import Settings
from watchrelay.config.streams import Planned, plan, shared_topics
from watchrelay.config.values import duration_text
from watchrelay.contract.records import MARKER_TYPES as MARKER_WIRE_TYPES
from watchrelay.contract.records import VERB_TYPES
from watchrelay.kafka.signal_records import EXECUTE_SNAPSHOT
from watchrelay.kafka.topic_config import TopicSpec
from watchrelay.plan.kafka import control_spec, signal_spec

ASYNCAPI: Final = "3.0.0"
BINDING: Final = "0.5.0"
"""Version of the Kafka bindings; the first that has every topic config."""

_STRUCTURED, _JSON = "application/cloudevents+json", "application/json"
_TITLES = {
    "added": "an object that was not published before",
    "modified": "an object with a new state",
    "read": "an object published again with its current value",
    "deleted": "an object that is gone",
    "claim": "a writer opens a new epoch",
    "begin": "a snapshot begins",
    "end": "a snapshot is complete",
    "heartbeat": "count, digest and freshness of the state",
}
_CONTROL = {
    "claim": "claim/<stream>: who writes a stream; its offset makes the epoch",
    "release": "release/<stream>: the writer of an epoch has written its last record",
    "stream": "stream/<stream>: the topic of a stream, and what determines its content",
    "snapshot": "snapshot/<stream>: the newest complete snapshot",
}


def document(settings: Settings) -> dict[str, Any]:
    """The document, of plain values; equal at every call."""
    channels, operations = _channels(settings), {}
    security = settings.kafka.security.protocol
    for key, channel in channels.items():
        receives = channel["bindings"]["kafka"].get("topic") == signal_spec(settings).name
        operations[f"{'read' if receives else 'write'}.{key}"] = {
            "action": "receive" if receives else "send",
            "title": (
                f"the relay {'reads requests from' if receives else 'writes'} {channel['title']}"
            ),
            "channel": {"$ref": f"#/channels/{key}"},
            "messages": [
                {"$ref": f"#/channels/{key}/messages/{name}"} for name in channel["messages"]
            ],
        }
    return {
        "asyncapi": ASYNCAPI,
        "info": {
            "title": f"watchrelay {settings.cluster}",
            "version": __version__,
            "description": (
                f"Changes of Kubernetes resources of cluster {settings.cluster}, in order, "
                "with snapshots. "
                f"Record contract version 1, format {settings.kafka.format}."
            ),
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": _JSON,
        "servers": {
            f"kafka-{number}": {
                "host": host,
                "protocol": "kafka" if security == "PLAINTEXT" else "kafka-secure",
                "description": f"Reached by {security}.",
            }
            for number, host in enumerate(settings.kafka.bootstrap_servers)
        },
        "channels": channels,
        "operations": operations,
        "components": {"messages": _messages(settings), "schemas": _schemas(settings)},
    }


# ---- channels ------------------------------------------------------------------------------------


def _channels(settings: Settings) -> dict[str, Any]:
    by_topic: dict[str, list[Planned]] = {}
    shared = shared_topics(settings, ((entry, ()) for entry in settings.resources))
    for planned in plan(settings):
        by_topic.setdefault(planned.topic or f"unresolved-{_key(planned.id)}", []).append(planned)
    channels = {
        _key(name): _state_channel(settings, streams, shared=name in shared)
        for name, streams in by_topic.items()
    }
    control, signal = control_spec(settings), signal_spec(settings)
    channels[control.name] = _channel(
        control,
        "the control topic",
        "Claims, descriptions of streams, index of snapshots.",
        _CONTROL,
    )
    channels[signal.name] = _channel(
        signal,
        "the signal topic",
        "Requests of consumers to the relay; the key is the cluster.",
        ("signal",),
    )
    return channels


def _state_channel(settings: Settings, streams: list[Planned], *, shared: bool) -> dict[str, Any]:
    first, topic = streams[0], streams[0].topic
    spec = TopicSpec(
        name=topic or "",
        partitions=first.partitions,
        replication_factor=settings.kafka.replication_factor,
        min_insync_replicas=settings.kafka.min_insync_replicas,
        snapshot_interval_s=max(each.entry.snapshot_interval_s for each in streams),
        keeps_all=any(each.entry.snapshot_interval_s == 0 for each in streams),
    )
    about = ", ".join(_with_interval(each) for each in streams)
    what = ", ".join(dict.fromkeys(each.what for each in streams))
    names = (
        "pods/<namespace>/<name> and the like"
        if shared
        else "<namespace>/<name>, or /<name> of what is cluster-scoped"
    )
    channel = _channel(
        spec, what, f"Streams: {about}. Keys of objects: {names}.", (*OBJECT_TYPES, *MARKER_TYPES)
    )
    if topic is None:
        channel["description"] += " Its topic is known once the relay has connected to the cluster."
    return channel


def _with_interval(stream: Planned) -> str:
    interval = stream.entry.snapshot_interval_s
    return (
        f"{stream.id} "
        f"({f'snapshot every {duration_text(interval)}' if interval else 'no periodic snapshot'})"
    )


def _channel(
    spec: TopicSpec, title: str, description: str, messages: Iterable[str]
) -> dict[str, Any]:
    kinds = {"state": "", "control": "control.", "signal": ""}
    kafka: dict[str, Any] = {
        "partitions": spec.partitions,
        "replicas": spec.replication_factor,
        "topicConfiguration": {
            name: _setting(name, value) for name, value in spec.configs().items()
        },
        "bindingVersion": BINDING,
    }
    if spec.name:
        kafka = {"topic": spec.name, **kafka}
    return {
        "address": spec.name or None,
        "title": title,
        "description": description,
        "messages": {
            name: {"$ref": f"#/components/messages/{kinds[spec.kind]}{name}"} for name in messages
        },
        "bindings": {"kafka": kafka},
    }


def _setting(name: str, value: str) -> object:
    if name == "cleanup.policy":
        return value.split(",")
    return int(value) if value.isdigit() else value


def _key(text: str) -> str:
    return re.sub(r"[^\w.-]", "_", text)


# ---- messages ------------------------------------------------------------------------------------


def _messages(settings: Settings) -> dict[str, Any]:
    content_type = _STRUCTURED if settings.kafka.format == "structured" else _JSON
    enveloped = settings.kafka.format != "cloudevents"
    messages: dict[str, Any] = {}
    for name in (*OBJECT_TYPES, *MARKER_TYPES):
        marker = name in MARKER_TYPES
        payload = "nothing" if marker else "delete" if name == "deleted" else "value"
        messages[name] = {
            "name": name,
            "title": _TITLES[name],
            **({} if marker else {"contentType": content_type}),
            "headers": _headers(name, content_type, enveloped=enveloped),
            "payload": {"$ref": f"#/components/schemas/{payload}"},
            "bindings": _keyed(
                {"$ref": f"#/components/schemas/{'markerKey' if marker else 'objectKey'}"}
            ),
        }
    for kind, title in _CONTROL.items():
        key = {"type": "string", "pattern": f"^{kind}/"}
        messages[f"control.{kind}"] = _json_message(kind, title, key)
    messages["signal"] = _json_message(
        "signal",
        "a request for snapshots; the index record of each names its id",
        {"type": "string", "const": settings.cluster},
    )
    return messages


def _json_message(name: str, title: str, key: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": name,
        "title": title,
        "contentType": _JSON,
        "payload": {"$ref": f"#/components/schemas/{name}"},
        "bindings": _keyed(key),
    }


def _keyed(key: dict[str, Any]) -> dict[str, Any]:
    return {"kafka": {"key": key, "bindingVersion": BINDING}}


# ---- headers: docs/record-contract.md, 3 ---------------------------------------------------------


OBJECT_TYPES: Final = ("added", "modified", "read", "deleted")
MARKER_TYPES: Final = ("claim", "begin", "end", "heartbeat")
TYPES: Final = {
    str(name): wire.decode() for name, wire in (*VERB_TYPES.items(), *MARKER_WIRE_TYPES.items())
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
    "ce_wrseen": _text(
        "When the API server last sent something on this stream, or showed that nothing is newer, "
        "as the marker was queued.",
        _TIME,
    ),
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


def _headers(name: str, content_type: str, *, enveloped: bool) -> dict[str, Any]:
    """The schema of the headers of the record type `name`; `enveloped`: a delete has a value."""
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


# ---- schemas -------------------------------------------------------------------------------------


def _schemas(settings: Settings) -> dict[str, Any]:
    value, delete = _values(settings.kafka.format)
    return {
        "object": _object(
            {"apiVersion": _STRING, "kind": _STRING, "metadata": {"type": "object"}},
            "The object, as the API server has it.",
        ),
        "value": value,
        "delete": delete,
        "nothing": {"type": "null", "description": "No value: a tombstone."},
        "objectKey": {
            "type": "string",
            "pattern": "^[^%]*/[^/%]+$",
            "description": "<namespace>/<name>, prefixed on shared topics.",
        },
        "markerKey": {
            "type": "string",
            "pattern": "^%wr/(claim|begin|end|heartbeat)/[^/]+/[0-9]+$",
        },
        "claim": _object(
            {
                **dict.fromkeys(("holder", "instance", "version", "time"), _STRING),
                "from": {"type": ["object", "null"]},
            },
            "Epoch: epochBase of the stream's description plus the offset of the first record "
            "with this instance.",
        ),
        "release": _object({"epoch": _INTEGER}, "Written when a stream moves to another replica."),
        "stream": _object(
            {
                **dict.fromkeys(("topic", "keyFormat", "resource", "kind", "configHash"), _STRING),
                "partitions": _INTEGER,
                "epochBase": _INTEGER,
                "namespace": {"type": ["string", "null"]},
                "selectors": {"type": "object"},
            },
            "What determines the stream's content.",
        ),
        "snapshot": _object(
            {
                **dict.fromkeys(("snapshot", "rv", "time"), _STRING),
                "epoch": _INTEGER,
                "count": _INTEGER,
                "requests": {"type": "array", "items": _STRING},
                "partitions": {
                    "type": "array",
                    "items": {"$ref": "#/components/schemas/snapshotPartition"},
                },
            },
            "A complete snapshot; it counts if its epoch is that of the newest claim.",
        ),
        "snapshotPartition": _object(
            {**dict.fromkeys(("partition", "begin", "end", "count"), _INTEGER), "digest": _STRING},
            "",
        ),
        "signal": _object(
            {
                "id": {"type": "string", "minLength": 1, "maxLength": 200},
                "type": {"type": "string", "const": EXECUTE_SNAPSHOT},
                "data": _object(
                    {"streams": {"type": "array", "items": _STRING, "minItems": 1}}, "Stream ids."
                ),
            },
            "Shaped as Debezium's signals.",
        ),
    }


_STRING: Final = {"type": "string"}
_INTEGER: Final = {"type": "integer"}
_THE_OBJECT: Final = {"$ref": "#/components/schemas/object"}


def _object(properties: dict[str, Any], description: str) -> dict[str, Any]:
    return {
        "type": "object",
        **({"description": description} if description else {}),
        "required": list(properties),
        "properties": properties,
    }


def _values(form: str) -> tuple[dict[str, Any], dict[str, Any]]:
    null: dict[str, Any] = {
        "type": "null",
        "description": "The tombstone after the delete, a record of its own.",
    }
    match form:
        case "structured":
            event = dict.fromkeys(
                ("specversion", "type", "source", "id", "time", "subject"), _STRING
            )
            about = "A CloudEvent with the attributes of the headers"
            gone = _object(event, f"{about}, without data.")
            return _object(
                {**event, "datacontenttype": _STRING, "data": _THE_OBJECT}, f"{about}."
            ), {"oneOf": [gone, null]}
        case "debezium":
            fields = {"before": {"type": "null"}, "source": {"type": "object"}, "ts_ms": _INTEGER}
            kept = _object(
                {**fields, "after": _THE_OBJECT, "op": {"enum": ["c", "u", "r"]}},
                "A change as Debezium writes it.",
            )
            gone = _object(
                {**fields, "after": {"type": "null"}, "op": {"const": "d"}},
                "A delete as Debezium writes it.",
            )
            return kept, {"oneOf": [gone, null]}
        case _:
            return _THE_OBJECT, {"$ref": "#/components/schemas/nothing"}
