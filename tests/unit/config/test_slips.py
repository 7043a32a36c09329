"""What operators write by habit: each mistake is answered with the line that would be right, which
is then accepted."""

from __future__ import annotations

from pathlib import Path

import pytest

from watchrelay.config.loading import load_settings
from watchrelay.core.errors import ConfigError

KAFKA, PODS = "kafka: {bootstrapServers: [k:9092]}", "resources: [{resource: pods}]"

WHOLE = {
    f"{KAFKA}\nresources: pods": "resources: [{resource: pods}]",
    f"{KAFKA}\nresources: pods, services": "resources: [{resource: pods}, {resource: services}]",
    f"kafka: k:9092\n{PODS}": "kafka: {bootstrapServers: [k:9092]}",
    f"kafka: [k:9092, l:9092]\n{PODS}": "kafka: {bootstrapServers: [k:9092, l:9092]}",
    f"{KAFKA}\n{PODS}\nobserve: {{logLevel: WARN}}": "logLevel: warning",
    f"{KAFKA}\n{PODS}\nobserve: {{logLevel: INFO}}": "logLevel: info",
    f"{KAFKA}\n{PODS}\nobserve: {{logLevel: critical}}": "logLevel: error",
    f"{KAFKA}\n{PODS}\noverload: Block": "overload: block",
    f"{KAFKA}\n{PODS}\nheartbeatInterval: 10": "10s",
    f"{KAFKA}\n{PODS}\nheartbeatInterval: 1 h": "1h",
    f"{KAFKA}\n{PODS}\nheartbeatInterval: 1H30M": "1h30m",
    f"{KAFKA}\n{PODS}\nheartbeatInterval: 90min": "90m",
    f"{KAFKA}\n{PODS}\nheartbeatInterval: PT10S": "10s",
    f"{KAFKA}\n{PODS}\nheartbeatInterval: 2 hours, 5 minutes": "2h5m",
    f"{KAFKA}\n{PODS}\nqueueBytes: 64mib": "64MiB",
    f"{KAFKA}\n{PODS}\nqueueBytes: 64 mb": "64MB",
    f"{KAFKA}\n{PODS}\nqueueBytes: 1.5 gigabytes": "1.5GB",
    f"kafka: {{bootstrapServers: 'k:9092,l:9092'}}\n{PODS}": "[k:9092, l:9092]",
    f"kafka: {{bootstrapServers: [k:9092], partitions: '3'}}\n{PODS}": "3 without quotes",
    f"kafka: {{bootstrapServers: [k:9092], partitions: 3.0}}\n{PODS}": "3",
    f"kafka: {{bootstrapServers: [k:9092], createTopics: 'no'}}\n{PODS}": "false",
    f"kafka: {{bootstrapServers: [k:9092], security: {{protocol: tls}}}}\n{PODS}": "protocol: SSL",
    (
        "kafka: {bootstrapServers: [k:9092], security: {protocol: sasl_ssl, mechanism: "
        f"plain}}}}\n{PODS}"
    ): "mechanism: PLAIN",
}
ENTRY = {
    "labelSelector: {app: web, tier: 7}": "labelSelector: app=web,tier=7",
    "labelSelector: {matchLabels: {app: web}}": "labelSelector: app=web",
    (
        "labelSelector: {matchExpressions: [{key: tier, operator: In, values: [a, b]}, {key: x, "
        "operator: NotIn, values: [c]}]}"
    ): ("labelSelector: tier in (a,b),x notin (c)"),
    "labelSelector: {matchExpressions: [{key: x, operator: DoesNotExist}]}": 'labelSelector: "!x"',
    "labelSelector: [app=web, tier]": "labelSelector: app=web,tier",
    "labelSelector: 'app:web'": "app=web",
    "fieldSelector: {status.phase: Running}": "fieldSelector: status.phase=Running",
    "namespaces: shop": "[shop]",
    "namespaces: 'shop,pay'": "[shop, pay]",
    "scope: Cluster": "scope: cluster",
    "metadataOnly: 'true'": "true without quotes",
    "metadataOnly: 1": "true",
}
KEYS = {
    "namespace: shop": "namespaces: [shop]",
    "excludeNamespace: shop": "excludeNamespaces: [shop]",
    "labels: {app: web}": "labelSelector: app=web",
    "label_selector: {app: web}": "labelSelector: app=web",
    "selector: app=web": "labelSelector",
    "kind: Pod": "resource: Pod",
    "names: [a]": "name",
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
def test_a_slip_is_answered_with_the_line_that_would_be_right(tmp_path: Path, text: str) -> None:
    assert problems(tmp_path, text)[-1].rstrip(")").endswith(f"write {WHOLE[text]}")


@pytest.mark.parametrize("key", ENTRY, ids=lambda key: key[:50])
def test_a_slip_in_an_entry_is_answered_likewise(tmp_path: Path, key: str) -> None:
    (said,) = problems(tmp_path, f"{KAFKA}\nresources:\n  - resource: pods\n    {key}")
    assert said.startswith("5: resources[0].")
    assert said.removesuffix(")").endswith(f"write {ENTRY[key]}") or said.endswith(
        f"write {ENTRY[key]})"
    )


@pytest.mark.parametrize("key", KEYS)
def test_a_key_by_another_name_is_answered_with_its_own_and_the_value_as_that_takes_it(
    tmp_path: Path, key: str
) -> None:
    (said,) = problems(tmp_path, f"{KAFKA}\nresources:\n  - resource: pods\n    {key}")
    assert said.endswith(f"unknown key (did you mean {KEYS[key]}?)")


@pytest.mark.parametrize("name", NAMES)
def test_a_resource_as_in_a_url_or_an_api_version_is_answered_with_its_name(
    tmp_path: Path, name: str
) -> None:
    (said,) = problems(tmp_path, f"{KAFKA}\nresources: [{{resource: {name}}}]")
    assert said.endswith(f'"{name}" is not a resource name: write {NAMES[name]}')


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
    (said,) = problems(tmp_path, f"{KAFKA}\nresources: [{{resource: '{name}'}}]")
    assert said.endswith("a version follows the slash, as in widgets.example.com/v1")


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ("[pods]", "3: resources[0]: must be a mapping of keys (write {resource: pods})"),
        (
            "[no]",
            (
                "3: resources[0]: must be a mapping of keys, not true or false (write {resource: "
                '"no"})'
            ),
        ),
        (
            "{resource: pods}",
            (
                "3: resources: must be a list, not a mapping (write - before it, as in - resource: "
                "pods)"
            ),
        ),
        (
            "{pods: {namespaces: [a]}}",
            "3: resources: must be a list, not a mapping (write - resource: pods)",
        ),
        (
            "{web: {resource: deployments.apps}}",
            "3: resources: must be a list, not a mapping (write - resource: deployments.apps)",
        ),
        ("[pods: ]", "3: resources[0].pods: unknown key (write resource: pods)"),
        (
            "[{resource: [pods, services]}]",
            (
                "3: resources[0].resource: must be text, not a list "
                "(one entry names one resource: write resources: [{resource: pods}, "
                "{resource: services}])"
            ),
        ),
        (
            "[{resource: 'pods,services'}]",
            (
                '3: resources[0].resource: "pods,services" has a comma in it: one entry names one '
                "resource"
            ),
        ),
        (
            "[{resource: pods, namespaces: ['*']}]",
            (
                '3: resources[0].namespaces[0]: "*" is not a namespace: leave the key out for all '
                "namespaces"
            ),
        ),
        (
            "[{resource: deployments, apiVersion: apps/v1}]",
            (
                "3: resources[0].apiVersion: unknown key "
                "(group and version are parts of the resource: write resource: "
                "deployments.apps or deployments.apps/v1)"
            ),
        ),
    ],
)
def test_entries_in_another_form_are_answered_with_the_one_that_is_taken(
    tmp_path: Path, entries: str, said: str
) -> None:
    assert said in problems(tmp_path, f"{KAFKA}\nresources: {entries}")


def test_no_hint_repeats_what_can_be_a_password(tmp_path: Path) -> None:
    for text in (
        f"kafka: user:hunter2@k:9092\n{PODS}",
        f"kafka: {{bootstrap_servers: 'user:hunter2@k:9092'}}\n{PODS}",
    ):
        assert "hunter2" not in "\n".join(problems(tmp_path, text))


@pytest.mark.timeout(20)
@pytest.mark.parametrize("key", ["heartbeatInterval", "queueBytes", "overload"])
def test_a_slip_of_any_length_is_answered_at_once(tmp_path: Path, key: str) -> None:
    for long in ("1" * 300_000 + " x", "a" * 300_000, "1h " * 100_000):
        assert len(problems(tmp_path, f"{KAFKA}\n{PODS}\n{key}: {long}")[-1]) < 300
