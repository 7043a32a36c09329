"""What is reported of streams and topics without a cluster: nothing that turns out otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from watchrelay.cli import main as cli
from watchrelay.cli.audits import never_published
from watchrelay.config import Settings, load_settings
from watchrelay.config.checks import warnings
from watchrelay.config.streams import may_mean, plan

GROUP = "cert-manager.io"
BY_RESOURCE, BY_GROUP = "{prefix}.{cluster}.{group}.{resource}", "{prefix}.{cluster}.{group}"


def settings_of(directory: Path, *resources: str, template: str = BY_RESOURCE) -> Settings:
    entries = "".join(
        f"  - {each if each.startswith('{') else f'resource: {each}'}\n" for each in resources
    )
    file = directory / "watchrelay.yaml"
    file.write_text(
        "cluster: c\nkafka: {bootstrapServers: [k:9092], topicTemplate: "
        f"'{template}'}}\nresources:\n{entries}"
    )
    return load_settings(str(file), environ={})


@pytest.mark.parametrize(
    "name", ["Certificate", "certificate", "Certificates", "cert", "gatewayclass"]
)
def test_the_topic_of_what_may_be_no_plural_is_not_known(tmp_path: Path, name: str) -> None:
    (stream,) = plan(settings_of(tmp_path, f"{name}.{GROUP}"))
    assert (stream.topic, stream.certain) == (None, False)
    (stream,) = plan(settings_of(tmp_path, f"{name}.{GROUP}", template=BY_GROUP))
    assert (stream.topic, stream.certain) == (f"k8s.c.{GROUP}", False)


@pytest.mark.parametrize(
    ("name", "called", "topic"),
    [
        (f"certificates.{GROUP}", f"certificates.{GROUP}", f"k8s.c.{GROUP}.certificates"),
        ("Deployment.apps", "deployments.apps", "k8s.c.apps.deployments"),
        ("po", "pods", "k8s.c.core.pods"),
    ],
)
def test_plurals_and_what_is_built_in_are_known(
    tmp_path: Path, name: str, called: str, topic: str
) -> None:
    (stream,) = plan(settings_of(tmp_path, name))
    assert (stream.id, stream.topic, stream.certain) == (called, topic, True)
    assert list(warnings(settings_of(tmp_path, name)))[:-1] == []


def test_validate_calls_an_id_provisional_that_only_a_cluster_can_tell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings_of(
        tmp_path,
        f"Certificate.{GROUP}",
        f"issuers.{GROUP}",
        f"{{resource: Order.{GROUP}, id: orders}}",
        f'"*.{GROUP}.example"',
    )
    assert cli.main(["validate", "-c", str(tmp_path / "watchrelay.yaml")]) == 0
    lines = capsys.readouterr().out.splitlines()
    streams = [line.strip().partition(", all namespaces")[0] for line in lines if " -> " in line]
    unknown = "a topic per resource, known once the cluster is asked"
    assert streams == [
        f"certificate.{GROUP} (provisional) -> {unknown}",
        f"issuers.{GROUP} -> k8s.c.{GROUP}.issuers",
        f"orders -> {unknown}",
        f"*.{GROUP}.example -> {unknown}",
    ]


def test_a_stream_is_awaited_and_missed_by_what_its_entry_may_mean(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, f"Certificate.{GROUP}", f"issuers.{GROUP}")

    def awaited(stream: str) -> bool:
        return any(may_mean(each, stream) for each in plan(settings))

    assert awaited(f"certificates.{GROUP}")
    assert awaited(f"issuers.{GROUP}")
    assert not awaited("certificates.example.com")
    assert never_published(settings, []) == [f"issuers.{GROUP}"], (
        "of a kind it is not certain what its stream is called"
    )
