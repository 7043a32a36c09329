"""The AsyncAPI document: what AsyncAPI 3.0 requires is there, and what it says is what the relay
does."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.relays import spec_of
from tests.support.wirerules import _OPTIONAL, _REQUIRED
from tests.unit.daemon.conftest import settings_of
from watchrelay.admin.asyncapi import document
from watchrelay.cli import main as cli
from watchrelay.config import Settings, load_settings
from watchrelay.contract.records import Marker, encoder_for
from watchrelay.plan.kafka import control_spec, signal_spec

_KEY = re.compile(r"[\w.\-]+\Z")
_FORMATS = ("cloudevents", "structured", "debezium")
# Which fields an object may have, and which it must. Source: AsyncAPI 3.0.0 specification.
_ROOT = {
    "asyncapi",
    "id",
    "info",
    "servers",
    "defaultContentType",
    "channels",
    "operations",
    "components",
}
_CHANNEL = {
    "address",
    "messages",
    "title",
    "summary",
    "description",
    "servers",
    "parameters",
    "tags",
    "externalDocs",
    "bindings",
}
_OPERATION = {
    "action",
    "channel",
    "title",
    "summary",
    "description",
    "security",
    "tags",
    "bindings",
    "traits",
    "messages",
    "reply",
}
_MESSAGE = {
    "headers",
    "payload",
    "correlationId",
    "contentType",
    "name",
    "title",
    "summary",
    "description",
    "tags",
    "bindings",
    "examples",
}
_SERVER = {
    "host",
    "protocol",
    "protocolVersion",
    "pathname",
    "description",
    "title",
    "summary",
    "variables",
    "security",
    "bindings",
}
_KAFKA = {"topic", "partitions", "replicas", "topicConfiguration", "bindingVersion"}


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "watchrelay.yaml"
    file.write_text(
        "cluster: c\nkafka: {bootstrapServers: [a:9092, b:9092], partitions: 4}\nresources:\n"
        "  - {resource: pods, namespaces: [shop, pay], snapshotInterval: 15m}\n  - "
        "{resource: nodes, topic: many}\n"
        "  - {resource: services, topic: many}\n  - {resource: widgets}\n  - {resource: "
        '"*.example.com"}\n'
    )
    return file


def made(*sets: str) -> tuple[Settings, dict[str, Any]]:
    settings = load_settings(None, list(sets))
    return settings, document(settings)


def refs(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if "$ref" in node:
            yield node["$ref"]
        for value in node.values():
            yield from refs(value)
    elif isinstance(node, list):
        for value in node:
            yield from refs(value)


def at(root: Any, ref: str) -> Any:
    assert ref.startswith("#/"), ref
    for part in ref[2:].split("/"):
        root = root[part.replace("~1", "/").replace("~0", "~")]
    return root


@pytest.mark.parametrize("format_", _FORMATS)
def test_it_is_a_document_of_asyncapi_3(config: Path, format_: str) -> None:
    _, root = made(f"kafka.format={format_}")
    assert root["asyncapi"] == "3.0.0"
    assert set(root) <= _ROOT
    assert {"title", "version"} <= set(root["info"])
    for name, server in root["servers"].items():
        assert _KEY.match(name)
        assert {"host", "protocol"} <= set(server) <= _SERVER
    for name, channel in root["channels"].items():
        assert _KEY.match(name)
        assert set(channel) <= _CHANNEL
        assert isinstance(channel["address"], str | None)
        assert set(channel["bindings"]["kafka"]) <= _KAFKA
        assert channel["bindings"]["kafka"]["partitions"] > 0
    for name, operation in root["operations"].items():
        assert _KEY.match(name)
        assert {"action", "channel"} <= set(operation) <= _OPERATION
        assert operation["action"] in {"send", "receive"}
        channel = operation["channel"]["$ref"]
        assert all(
            message["$ref"].startswith(f"{channel}/messages/") for message in operation["messages"]
        )
    for message in root["components"]["messages"].values():
        assert set(message) <= _MESSAGE
        assert {"payload", "name"} <= set(message)
    assert json.loads(json.dumps(root)) == root


@pytest.mark.parametrize("format_", _FORMATS)
def test_every_reference_resolves_and_every_part_is_referred_to(config: Path, format_: str) -> None:
    _, root = made(f"kafka.format={format_}")
    used = set(refs(root))
    for ref in used:
        at(root, ref)
    parts = {
        f"#/components/{kind}/{name}" for kind, held in root["components"].items() for name in held
    }
    assert parts - used <= {"#/components/schemas/nothing"}


def test_a_topic_is_one_channel_with_the_settings_that_it_is_created_with(config: Path) -> None:
    settings, root = made()
    channels = root["channels"]
    pods = channels["k8s.c.core.pods"]
    assert pods["address"] == "k8s.c.core.pods"
    assert "pods@shop (snapshot every 15m)" in pods["description"]
    assert "pods@pay" in pods["description"]
    kafka = pods["bindings"]["kafka"]
    assert (kafka["partitions"], kafka["replicas"]) == (4, 3)
    assert kafka["topicConfiguration"]["cleanup.policy"] == ["compact", "delete"]
    assert kafka["topicConfiguration"]["max.message.bytes"] == 4 * 1024 * 1024
    assert kafka["topicConfiguration"]["min.compaction.lag.ms"] >= 2 * 15 * 60_000
    assert "nodes" in channels["many"]["title"]
    assert channels["unresolved-widgets"]["address"] is None
    control, signal = channels[control_spec(settings).name], channels[signal_spec(settings).name]
    assert set(control["messages"]) == {"claim", "release", "stream", "snapshot"}
    assert set(signal["messages"]) == {"signal"}
    assert root["operations"][f"read.{signal_spec(settings).name}"]["action"] == "receive"


def test_the_headers_are_those_of_the_contract(config: Path) -> None:
    _, root = made()
    for kind in ("added", "modified", "read", "deleted", "claim", "begin", "end", "heartbeat"):
        schema = root["components"]["messages"][kind]["headers"]
        required = set(schema["required"])
        # A list that was written from the contract's page alone.
        assert required == _REQUIRED[kind]
        assert set(schema["properties"]) - required == _OPTIONAL[kind]


@pytest.mark.parametrize("format_", _FORMATS)
def test_what_the_encoder_writes_fits_the_schemas(config: Path, format_: str) -> None:
    _, root = made(f"kafka.format={format_}")
    encoder = (
        encoder_for(spec_of(), 17)
        if format_ == "cloudevents"
        else encoder_for(_formatted(format_), 17)
    )
    records = {
        verb: encoder.object(
            0,
            1,
            b"shop/web",
            None if verb == "deleted" else b'{"kind":"Pod"}',
            verb,
            "watch",
            "u",
            "4",
            7,
            1,
        )
        for verb in ("added", "modified", "read", "deleted")
    }
    records |= {
        kind: encoder.marker(
            0, 1, 1, Marker(kind, "4", snapshot="1-1" if kind in "begin end" else "")
        )
        for kind in ("begin", "end")
    }
    for kind, record in records.items():
        schema = root["components"]["messages"][kind]["headers"]
        headers = {name: value.decode() for name, value in record.headers}
        assert set(schema["required"]) <= set(headers) <= set(schema["properties"])
        for name, value in headers.items():
            rule = schema["properties"][name]
            assert re.search(rule.get("pattern", ""), value), name
            assert rule.get("const", value) == value, name
            assert value in rule.get("enum", [value]), name


def _formatted(format_: str) -> Any:
    import dataclasses

    return dataclasses.replace(spec_of(), format=format_)  # type: ignore[arg-type]


def test_the_command_prints_the_same_as_json_and_as_yaml(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["asyncapi", "-c", str(config)]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert cli.main(["asyncapi", "-c", str(config), "--output", "yaml"]) == 0
    text = capsys.readouterr().out
    assert yaml.safe_load(text) == printed == made()[1]
    assert "&id" not in text


def test_brokers_with_tls_are_kafka_secure(config: Path) -> None:
    _, root = made("kafka.security.protocol=SSL")
    assert {server["protocol"] for server in root["servers"].values()} == {"kafka-secure"}


def test_keys_begin_with_the_resource_where_several_may_stand_on_a_topic() -> None:
    entries: list[str | dict[str, Any]] = [
        {"resource": "pods", "topic": "a"},
        {"resource": "*.example.com", "topic": "b"},
        {"resource": "po", "topic": "a", "id": "x"},
    ]
    entries += [
        {"resource": "nodes", "topic": "c"},
        {"resource": "Widget.example.com", "topic": "c"},
    ]
    channels = document(settings_of(entries))["channels"]
    assert {
        topic: "Keys of objects: pods/<namespace>" in channels[topic]["description"]
        for topic in "abc"
    } == {
        "a": False,
        "b": True,
        "c": True,
    }
