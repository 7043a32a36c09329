"""What operators write by habit: each mistake is answered with what to write instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from watchrelay.config.loading import load_settings
from watchrelay.core.errors import ConfigError

KAFKA, PODS = "kafka: {bootstrapServers: [k:9092]}", "resources: [{resource: pods}]"

WHOLE = {
    f"{KAFKA}\nresources: pods": "write a list, such as - resource: pods",
    f"{KAFKA}\nresources: {{resource: pods}}": "write a list, such as - resource: pods",
    f"{KAFKA}\nresources: [pods]": "write one resource, such as resource: pods",
    f"{KAFKA}\nresources: [no]": "write one resource, such as resource: pods",
    f"{KAFKA}\nresources: [{{resource: [pods]}}]": "write one resource, such as resource: pods",
    f"kafka: k:9092\n{PODS}": "it needs at least bootstrapServers",
    f"{KAFKA}\n{PODS}\nobserve: {{logLevel: WARN}}": ('must be debug, info, warning or error, not "WARN"'),
    f"{KAFKA}\n{PODS}\nheartbeatInterval: 10": "10 has no unit: write 10s",
    f"{KAFKA}\n{PODS}\nheartbeatInterval: 1 h": "such as 500ms, 10s, 5m or 1h30m",
    f"{KAFKA}\n{PODS}\nqueueBytes: 64mib": "such as 512KiB, 64MiB or 1GiB",
    f"kafka: {{bootstrapServers: 'k:9092,l:9092'}}\n{PODS}": ("write a list of brokers, such as [kafka-0:9092]"),
    f"kafka: {{bootstrapServers: [k:9092], partitions: '3'}}\n{PODS}": "write it without quotes",
    f"kafka: {{bootstrapServers: [k:9092], createTopics: 'no'}}\n{PODS}": "write it without quotes",
}  # fmt: skip
ENTRY = {
    "labelSelector: {app: web}": "such as app=web,tier in (a,b)",
    "labelSelector: 'app:web'": "leave the key out to take all objects",
    "fieldSelector: {status.phase: Running}": "such as status.phase=Running",
    "namespaces: 'shop,pay'": "write [shop,pay]",
    "namespace: [shop]": "did you mean namespaces?",
    "label_selector: app=web": "did you mean labelSelector?",
    "selector: app=web": "did you mean labelSelector?",
    "topicPrefix: x": "did you mean kafka.topicPrefix?",
    "metadataOnly: 'true'": "write it without quotes",
}
NAMES = {
    "apps/v1/deployments": "deployments.apps/v1",
    "apps/v1/Deployment": "Deployment.apps/v1",
    "/apis/apps/v1/deployments": "deployments.apps/v1",
    "apps/deployments": "deployments.apps",
    "example.com/v1/widgets": "widgets.example.com/v1",
    "v1/pods": "pods",
    "core/v1/pods": "pods",
    "/api/v1/pods": "pods",
}


def problems(tmp_path: Path, text: str) -> list[str]:
    file = tmp_path / "w.yaml"
    file.write_text(f"cluster: c\n{text}\n")
    with pytest.raises(ConfigError) as caught:
        load_settings(str(file), environ={})
    return [str(problem).removeprefix(f"{file}:") for problem in caught.value.problems]


@pytest.mark.parametrize(
    "text", WHOLE, ids=lambda text: text.replace(KAFKA, "").replace(PODS, "").strip()[:50]
)
def test_a_slip_is_answered_with_what_to_write(tmp_path: Path, text: str) -> None:
    assert problems(tmp_path, text)[-1].removesuffix(")").endswith(WHOLE[text])


@pytest.mark.parametrize("key", ENTRY, ids=lambda key: key[:50])
def test_a_slip_in_an_entry_is_answered_likewise(tmp_path: Path, key: str) -> None:
    (message,) = problems(tmp_path, f"{KAFKA}\nresources:\n  - resource: pods\n    {key}")
    assert message.startswith("5: resources[0].")
    assert ENTRY[key] in message


@pytest.mark.parametrize("name", NAMES)
def test_a_resource_as_in_a_url_or_an_api_version_is_answered_with_its_name(
    tmp_path: Path, name: str
) -> None:
    (message,) = problems(tmp_path, f"{KAFKA}\nresources: [{{resource: {name}}}]")
    assert message.endswith(f'"{name}" is not a resource name: write {NAMES[name]}')


@pytest.mark.parametrize(
    "name",
    [
        "pods/status",
        "deployments.apps/v1/scale",
        "pods/web-0",
        "a/b/c/d",
        "apps/v1/",
        "/",
        "apps//v1",
    ],
)
def test_what_has_no_certain_meaning_is_not_guessed(tmp_path: Path, name: str) -> None:
    (message,) = problems(tmp_path, f"{KAFKA}\nresources: [{{resource: '{name}'}}]")
    assert message.endswith("a version follows the slash, as in widgets.example.com/v1")


def test_no_hint_repeats_what_can_be_a_password(tmp_path: Path) -> None:
    for text in (
        f"kafka: user:hunter2@k:9092\n{PODS}",
        f"kafka: {{bootstrapServers: 'user:hunter2@k:9092'}}\n{PODS}",
        f"kafka: {{bootstrap_servers: 'user:hunter2@k:9092'}}\n{PODS}",
        f"{KAFKA}\n{PODS}\nkubernetes: user:hunter2@k:9092",
    ):
        assert "hunter2" not in "\n".join(problems(tmp_path, text))


@pytest.mark.cpu(20)
@pytest.mark.parametrize(
    "key", ["heartbeatInterval", "queueBytes", "overload", "defaults: {labelSelector"]
)
def test_a_slip_of_any_length_is_answered_at_once(tmp_path: Path, key: str) -> None:
    end = "}" if "{" in key else ""
    for long in (
        "1" * 300_000 + " x",
        "a" * 300_000,
        "1h " * 100_000,
        "'a in (" + "b," * 150_000 + "'",
    ):
        assert len(problems(tmp_path, f"{KAFKA}\n{PODS}\n{key}: {long}{end}")[-1]) < 1200
