"""Which edits of a config are taken while the relay runs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from watchrelay.config import Loaded, load
from watchrelay.config.edits import read_edit, take
from watchrelay.core.errors import ConfigError
from watchrelay.plan.streams import config_hash

_BASE: dict[str, Any] = {
    "cluster": "test",
    "kafka": {"bootstrapServers": ["a:1"]},
    "resources": [{"resource": "pods"}, {"resource": "nodes"}],
}


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., Loaded]:
    def written(**keys: Any) -> Loaded:
        file = tmp_path / "watchrelay.yaml"
        file.write_text(yaml.safe_dump({**_BASE, **keys}, sort_keys=False))
        return load(str(file), environ={})

    return written


HOT: list[dict[str, Any]] = [
    {"resources": [{"resource": "pods", "labelSelector": "a=b"}]},
    {"defaults": {"snapshotInterval": "5m"}},
    {"heartbeatInterval": "3s"},
    {"observe": {"logLevel": "debug", "logFormat": "json"}},
    {"shutdown": {"drainTimeout": "3s"}},
]


@pytest.mark.parametrize("edit", HOT, ids=lambda edit: next(iter(edit)))
def test_what_streams_and_logs_go_by_is_taken(
    read: Callable[..., Loaded], edit: dict[str, Any]
) -> None:
    held, loaded = read().settings, read(**edit)
    taken = take(held, loaded)
    assert taken.kept == ()
    assert taken.settings == loaded.settings != held


COLD: list[tuple[dict[str, Any], list[str]]] = [
    ({"cluster": "other"}, ["cluster"]),
    (
        {"kubernetes": {"kubeconfig": "/k", "context": "c"}},
        ["kubernetes.kubeconfig", "kubernetes.context"],
    ),
    (
        {
            "kafka": {
                "bootstrapServers": ["b:1"],
                "format": "debezium",
                "security": {"protocol": "SSL"},
            }
        },
        ["kafka.bootstrapServers", "kafka.security.protocol", "kafka.format"],
    ),
    ({"queueBytes": "1MiB"}, ["queueBytes"]),
    ({"observe": {"listen": "127.0.0.1:1"}}, ["observe.listen"]),
]


@pytest.mark.parametrize(("edit", "names"), COLD, ids=lambda value: next(iter(value)))
def test_what_only_a_restart_can_change_is_named_and_keeps_its_value(
    read: Callable[..., Loaded], edit: dict[str, Any], names: list[str]
) -> None:
    held = read().settings
    taken = take(held, read(**edit, resources=[{"resource": "pods"}]))
    assert list(taken.kept) == names
    assert [entry.resource for entry in taken.settings.resources] == ["pods"], "the rest is taken"
    assert take(held, read()).kept == ()
    assert taken.settings.model_copy(update={"resources": held.resources}) == held
    assert take(held, read(**edit, revision=7)).settings.revision == 0, "it is not that config"
    assert take(held, read(revision=7)).settings.revision == 7


def test_before_anything_is_connected_only_the_address_and_the_cluster_are_kept(
    read: Callable[..., Loaded],
) -> None:
    held = read().settings
    edited = read(
        cluster="other",
        kubernetes={"kubeconfig": "/k"},
        observe={"listen": "127.0.0.1:1", "logLevel": "debug"},
    )
    taken = read_edit(str(edited.file), [], held, connected=False, environ={})
    assert taken.kept == ("cluster", "observe.listen")
    assert taken.settings.kubernetes.kubeconfig == "/k"
    assert (
        taken.settings.cluster,
        taken.settings.observe.listen,
        taken.settings.observe.log_level,
    ) == ("test", ":8080", "debug")


def test_what_cannot_stand_with_a_kept_value_is_refused_with_its_line(
    read: Callable[..., Loaded],
) -> None:
    """Both topics would be one under the template that stays in force."""
    two = [{"resource": "pods"}, {"resource": "nodes", "partitions": 2}]
    template = {"bootstrapServers": ["a:1"], "topicTemplate": "{prefix}.{cluster}"}
    held = read(kafka=template).settings
    edited = read(resources=two)
    with pytest.raises(ConfigError) as caught:
        take(held, edited)
    message = str(caught.value)
    assert f"{edited.file}:" in message
    assert "resources[1].partitions: 2 here, but 1 in resources[0]" in message
    assert "until a restart these keep their old values: kafka.topicTemplate" in message


EVERYTHING = """\
cluster: prod
kubernetes: {context: there}
kafka:
  bootstrapServers: [a:9092, b:9092]
  security: {protocol: SASL_SSL, mechanism: PLAIN, username: u, password: hunter2}
defaults: {pageSize: 100}
resources:
- resource: pods
- {resource: secrets, namespaces: [a, b], drop: [data.extra], snapshotInterval: 10m}
observe: {logLevel: debug}
"""


def test_an_edited_file_is_compared_with_the_settings_in_force(tmp_path: Path) -> None:
    file = tmp_path / "watchrelay.yaml"
    file.write_text(EVERYTHING)
    current = load(str(file), environ={}).settings
    unchanged = read_edit(str(file), [], current, connected=True, environ={})
    assert (unchanged.settings, unchanged.kept) == (current, ())
    file.write_text(
        EVERYTHING.replace("hunter2", "hunter3").replace("- resource: pods", "- resource: nodes")
    )
    edit = read_edit(str(file), [], current, connected=True, environ={})
    assert [entry.resource for entry in edit.settings.resources] == ["nodes", "secrets"]
    assert edit.kept == ("kafka.security.password",)
    assert edit.settings.kafka == current.kafka
    assert [
        str(place).startswith(f"{file}:{line}: ")
        for place, line in zip(edit.places, (8, 9), strict=True)
    ] == [True, True]
    file.write_text(EVERYTHING.replace("cluster:", "clustr:"))
    with pytest.raises(ConfigError, match="clustr"):
        read_edit(str(file), [], current, connected=True, environ={})


def test_the_hash_of_a_config_changes_with_its_values_but_not_with_a_password(
    tmp_path: Path,
) -> None:
    file = tmp_path / "watchrelay.yaml"
    file.write_text(EVERYTHING)
    settings, *others = (
        load(str(file), sets, environ={}).settings
        for sets in ([], ["cluster=other"], ["resources[1].pageSize=7"])
    )
    assert len({config_hash(each) for each in (settings, *others)}) == 3
    password = load(str(file), ["kafka.security.password=other"], environ={}).settings
    assert config_hash(password) == config_hash(settings)
    replica = load(str(file), ["sharding.instance=watchrelay-1"], environ={}).settings
    assert config_hash(replica) == config_hash(settings), "replicas have one config"
    same_host = load(str(file), ["observe.listen=127.0.0.1:8081"], environ={}).settings
    assert config_hash(same_host) == config_hash(settings), "they may run on one host"
    revised = load(str(file), ["revision=7"], environ={}).settings
    assert config_hash(revised) == config_hash(settings)


def test_settings_are_frozen(read: Callable[..., Loaded]) -> None:
    with pytest.raises(ValidationError, match="frozen"):
        read().settings.cluster = "other"


def test_a_file_descriptor_of_a_process_substitution_is_read() -> None:
    reading, writing = os.pipe()
    os.write(writing, EVERYTHING.encode())
    os.close(writing)
    assert load(f"/dev/fd/{reading}", environ={}).settings.cluster == "prod"
    os.close(reading)
