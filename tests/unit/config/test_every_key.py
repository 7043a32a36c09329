"""Each key of the design's sample config is accepted, and never ignored."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from watchrelay.config import Settings, load_settings
from watchrelay.config.keys import env_name, env_path, every_key
from watchrelay.config.settings import with_defaults
from watchrelay.config.tree import read_yaml

BASE: dict[str, Any] = {
    "cluster": "c",
    "kafka.bootstrapServers": ["k:9092"],
    "resources[0].resource": "pods",
}


def section(protocol: str, **keys: str) -> dict[str, Any]:
    """Keys of `kafka.security`."""
    return {f"kafka.security.{key}": value for key, value in {"protocol": protocol, **keys}.items()}


SAMPLE: list[tuple[str, Any, dict[str, Any]]] = [
    ("cluster", "prod-eu-1", {}),
    ("kubernetes.kubeconfig", "/etc/kube/config", {}),
    ("kubernetes.context", "prod", {}),
    ("kafka.bootstrapServers", ["kafka-0:9092", "kafka-1:9092"], {}),
    *(
        (f"kafka.security.{key}", value, section("SASL_SSL", **beside))
        for key, value, beside in (
            ("mechanism", "SCRAM-SHA-512", {"usernameFile": "/u", "passwordFile": "/p"}),
            ("usernameFile", "/u", {"mechanism": "SCRAM-SHA-256", "passwordFile": "/p"}),
            ("passwordFile", "/p", {"mechanism": "PLAIN", "usernameFile": "/u"}),
            ("username", "u", {"mechanism": "SCRAM-SHA-256", "passwordFile": "/p"}),
            ("password", "p", {"mechanism": "PLAIN", "usernameFile": "/u"}),
            ("tokenFile", "/t", {"mechanism": "OAUTHBEARER"}),
            ("tokenCommand", "print-token --now", {"mechanism": "OAUTHBEARER"}),
            ("awsRegion", "eu-west-1", {"mechanism": "AWS_MSK_IAM"}),
        )
    ),
    ("kafka.security.protocol", "SSL", {}),
    ("kafka.security.caFile", "/ca.crt", section("SSL")),
    ("kafka.security.certFile", "/c", section("SSL", keyFile="/k")),
    ("kafka.security.keyFile", "/k", section("SSL", certFile="/c")),
    ("kafka.security.keyPasswordFile", "/p", section("SSL", certFile="/c", keyFile="/k")),
    ("kafka.security.checkHostname", False, section("SSL")),
    ("kafka.topicPrefix", "k8s", {}),
    ("kafka.topicTemplate", "{prefix}.{cluster}.{group}.{resource}", {}),
    ("kafka.createTopics", True, {}),
    ("kafka.partitions", 6, {}),
    ("kafka.replicationFactor", 3, {}),
    ("kafka.minInsyncReplicas", 2, {}),
    ("kafka.format", "cloudevents", {}),
    ("kafka.format", "structured", {}),
    ("kafka.format", "debezium", {}),
    ("kafka.delivery", "idempotent", {}),
    ("kafka.delivery", "transactional", {}),
    ("kafka.flushInterval", "10ms", {}),
    ("overload", "conflate", {}),
    ("overload", "block", {}),
    ("queueBytes", "64MiB", {}),
    ("heartbeatInterval", "10s", {}),
    ("acceptWarnings", ["one-replica"], {}),
    ("resources[0].resource", "deployments.apps", {}),
    ("resources[0].id", "my-pods@x.y", {}),
    ("resources[0].name", "one-object", {}),
    ("resources[0].split", 3, {"kafka.partitions": 6}),
    *(
        (f"{where}.{key}", value, beside)
        for where in ("resources[0]", "defaults")
        for key, value, beside in (
            ("namespaces", ["shop", "pay"], {}),
            ("scope", "namespace", {}),
            ("scope", "cluster", {}),
            ("excludeNamespaces", ["kube-system"], {}),
            ("labelSelector", "app=web", {}),
            ("fieldSelector", "spec.nodeName=n1", {}),
            ("metadataOnly", False, {}),
            ("initialList", "auto", {}),
            ("initialList", "paged", {}),
            ("initialList", "streaming", {}),
            ("listSemantic", "mostRecent", {}),
            ("listSemantic", "any", {}),
            ("pageSize", 500, {}),
            ("pageSize", 0, {}),
            ("bookmarks", True, {}),
            ("drop", ["status.conditions"], {}),
            ("redact", ["data.*"], {}),
            ("keepManagedFields", True, {}),
            ("keepLastApplied", True, {}),
            ("includeSecretData", False, {}),
            ("includeSecretData", True, {"resources[0].resource": "secrets"}),
            ("suppressUnchanged", True, {}),
            ("ignoreChanges", ["status.conditions[*].lastHeartbeatTime"], {}),
            ("publishWhen", ["spec", "metadata.labels"], {}),
            ("publishWhen", [], {}),
            ("topic", "other-topic", {}),
            ("partitions", 1, {}),
            ("snapshotInterval", "15m", {}),
            ("snapshotInterval", 0, {}),
            ("relistInterval", "6h", {}),
            ("relistInterval", 0, {}),
        )
    ),
    ("observe.listen", "0.0.0.0:8080", {}),
    ("observe.logFormat", "auto", {}),
    ("observe.logLevel", "info", {}),
    ("observe.runbookBaseUrl", "https://git.example.com/watchrelay", {}),
    ("shutdown.drainTimeout", "20s", {}),
    ("sharding.enabled", False, {}),
    ("sharding.enabled", True, {}),
    ("sharding.sessionTimeout", "10s", {}),
    ("sharding.standbys", 0, {}),
    ("sharding.standbys", 2, {}),
    ("sharding.balanceAfter", "15m", {}),
    ("sharding.instance", "relay-0", {}),
    ("revision", 7, {}),
]  # fmt: skip


def written(values: dict[str, Any]) -> str:
    """The values as a YAML file."""
    root: dict[str, Any] = {"resources": [{}]}
    for path, value in values.items():
        *parents, last = path.split(".")
        here: Any = root
        for part in parents:
            here = root["resources"][0] if part == "resources[0]" else here.setdefault(part, {})
        here[last] = value
    return yaml.safe_dump(root)


def _attribute(section: Any, key: str) -> str:
    fields: dict[str, Any] = type(section).model_fields
    return next(name for name, info in fields.items() if info.alias == key)


def value_of(settings: Settings, path: str) -> Any:
    here: Any = settings
    for part in path.replace("[0]", ".0").split("."):
        here = here[0] if part == "0" else getattr(here, _attribute(here, part))
    return here


@pytest.mark.parametrize(
    ("path", "value", "beside"), SAMPLE, ids=[f"{path}={value}" for path, value, _ in SAMPLE]
)
def test_every_key_of_the_sample_is_honoured(
    tmp_path: Path, path: str, value: Any, beside: dict[str, Any]
) -> None:
    file = tmp_path / "w.yaml"
    file.write_text(written({**BASE, **beside, path: value}))
    settings = load_settings(str(file), environ={})
    held = value_of(settings, path)
    expected = {
        "64MiB": 64 << 20,
        "10ms": 0.01,
        "10s": 10.0,
        "15m": 900.0,
        "6h": 21600.0,
        "20s": 20.0,
        "print-token --now": ("print-token", "--now"),
        "p": held,
    }.get(
        value if isinstance(value, str) else "", tuple(value) if isinstance(value, list) else value
    )
    assert held == expected
    if path.startswith("defaults."):
        assert value_of(settings, path.replace("defaults", "resources[0]")) == expected


def test_the_sample_names_every_key_there_is() -> None:
    def plain(path: tuple[str | int, ...]) -> str:
        return ".".join(str(part) for part in path).replace(".0", "[0]")

    leaves = {plain(path) for path in every_key()} - {
        "kubernetes",
        "kafka",
        "kafka.security",
        "defaults",
        "resources",
    }
    leaves -= {"observe", "shutdown", "sharding"}
    assert leaves == {re.sub(r"\.0", "[0]", path) for path, _, _ in SAMPLE}


def test_every_key_has_a_variable_of_its_own_that_finds_it_again() -> None:
    names = {path: env_name(path) for path in every_key()}
    assert len(set(names.values())) == len(names)
    for path, name in names.items():
        assert env_path(name) == path
    assert env_name(("kafka", "minInsyncReplicas")) == "WATCHRELAY_KAFKA__MIN_INSYNC_REPLICAS"


def test_merging_defaults_twice_changes_nothing() -> None:
    text = (
        "cluster: c\nkafka: {bootstrapServers: [k:1]}\ndefaults: {pageSize: 7, bookmarks: "
        "false}\nresources: [{resource: po, pageSize: 9}]"
    )
    once = with_defaults(Settings.model_validate(read_yaml(text, "").value))
    assert with_defaults(once) == once
    assert (once.resources[0].page_size, once.resources[0].bookmarks) == (9, False)
