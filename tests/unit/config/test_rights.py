"""The rights a config needs: list and watch on what it names, nothing else; and what cannot be
granted offline."""

from __future__ import annotations

from typing import Any

from watchrelay.config import Settings
from watchrelay.config.checks import warnings
from watchrelay.config.rights import Rule, manifests, rights
from watchrelay.config.settings import with_defaults
from watchrelay.config.streams import plan


def settings(*entries: dict[str, Any], **more: Any) -> Settings:
    raw = {
        "cluster": "c",
        "kafka": {"bootstrapServers": ["k:1"]},
        "resources": list(entries),
        **more,
    }
    return with_defaults(Settings.model_validate(raw))


def test_rules_are_grouped_by_group_and_sorted_and_never_more_than_list_and_watch() -> None:
    granted, unresolved = rights(
        settings(
            {"resource": "Deployment"},
            {"resource": "svc"},
            {"resource": "po"},
            {"resource": "widgets.example.com/v1"},
            {"resource": "*.x.io"},
        )
    )
    assert not unresolved
    assert granted.cluster == (
        Rule("", ("pods", "services")),
        Rule("apps", ("deployments",)),
        Rule("example.com", ("widgets",)),
        Rule("x.io", ("*",)),
    )
    made = manifests(granted, namespace="ops", name="relay")
    assert [manifest["kind"] for manifest in made] == [
        "ServiceAccount",
        "ClusterRole",
        "ClusterRoleBinding",
    ]
    assert all(rule["verbs"] == ["list", "watch"] for rule in made[1]["rules"])
    assert made[2]["subjects"] == [{"kind": "ServiceAccount", "name": "relay", "namespace": "ops"}]


def test_namespaces_get_roles_of_their_own_unless_the_watch_is_cluster_wide() -> None:
    granted, _ = rights(
        settings(
            {"resource": "pods", "namespaces": ["shop", "pay"]},
            {"resource": "cm", "namespaces": ["shop"], "scope": "cluster"},
            {"resource": "jobs", "namespaces": ["shop"]},
        )
    )
    assert granted.cluster == (Rule("", ("configmaps",)),)
    assert granted.namespaced == {
        "pay": (Rule("", ("pods",)),),
        "shop": (Rule("", ("pods",)), Rule("batch", ("jobs",))),
    }
    kinds = [
        (manifest["kind"], manifest["metadata"].get("namespace"))
        for manifest in manifests(granted, namespace="n", name="r")
    ]
    assert kinds[1:] == [
        ("ClusterRole", None),
        ("ClusterRoleBinding", None),
        ("Role", "pay"),
        ("RoleBinding", "pay"),
        ("Role", "shop"),
        ("RoleBinding", "shop"),
    ]


def test_a_single_object_is_granted_alone_and_nothing_is_granted_twice() -> None:
    granted, _ = rights(
        settings(
            {"resource": "cm", "name": "a", "namespaces": ["shop"]},
            {"resource": "cm", "name": "b", "namespaces": ["shop"], "id": "b"},
            {"resource": "secrets", "name": "s"},
            {"resource": "pods"},
            {"resource": "pods", "namespaces": ["shop"], "id": "again"},
            {"resource": "pods", "name": "x", "id": "one"},
        )
    )
    assert granted.cluster == (Rule("", ("pods",)), Rule("", ("secrets",), ("s",)))
    assert granted.namespaced == {"shop": (Rule("", ("configmaps",), ("a", "b")),)}


def test_what_only_a_cluster_can_name_is_reported_with_the_cure() -> None:
    _, unresolved = rights(
        settings(
            {"resource": "widgets"},
            {"resource": "Widget.example.com"},
            {"resource": "pods"},
            {"resource": "nodes", "namespaces": ["a"]},
        )
    )
    assert [(entry.index, entry.message.split(":")[0]) for entry in unresolved] == [
        (
            0,
            (
                '"widgets" is not built into Kubernetes, so its group is unknown without asking a '
                "cluster"
            ),
        ),
        (1, '"Widget.example.com" is a Kind'),
        (3, "nodes is cluster-scoped"),
    ]
    assert all(entry.hint for entry in unresolved)


def test_streams_and_topics_follow_from_the_config() -> None:
    planned = plan(
        settings(
            {"resource": "po", "namespaces": ["shop", "pay"]},
            {"resource": "Deployment", "namespaces": ["a", "b"], "scope": "cluster"},
            {
                "resource": "ev",
                "id": "happenings",
                "namespaces": ["x"],
                "topic": "t",
                "partitions": 6,
            },
            {"resource": "widgets.example.com/v1"},
            {"resource": "gadgets"},
            {"resource": "*.policy"},
        )
    )
    assert [(stream.id, stream.topic, stream.partitions) for stream in planned] == [
        ("pods@shop", "k8s.c.core.pods", 1),
        ("pods@pay", "k8s.c.core.pods", 1),
        ("deployments.apps", "k8s.c.apps.deployments", 1),
        ("happenings@x", "t", 6),
        ("widgets.example.com", "k8s.c.example.com.widgets", 1),
        ("gadgets", None, 1),
        ("poddisruptionbudgets.policy", "k8s.c.policy.poddisruptionbudgets", 1),
    ]


def test_what_is_legal_and_surprising_is_warned_of() -> None:
    entries: list[dict[str, Any]] = [
        {"resource": "events"},
        {"resource": "nodes", "namespaces": ["a"]},
        {"resource": "pdos"},
        {"resource": "secrets", "includeSecretData": True},
        {"resource": "deploymentz.apps"},
    ]
    security = {
        "protocol": "SASL_PLAINTEXT",
        "mechanism": "PLAIN",
        "username": "u",
        "password": "p",
    }
    kafka = {
        "bootstrapServers": ["k:1"],
        "replicationFactor": 1,
        "minInsyncReplicas": 1,
        "security": security,
    }
    warned = [
        ".".join(str(part) for part in path)
        for _, path, _, _ in warnings(settings(*entries, kafka=kafka))
    ]
    assert warned == [
        "kafka.security.protocol",
        "kafka.security.password",
        "kafka.replicationFactor",
        "resources.0.resource",
        "resources.1.namespaces",
        "resources.2.resource",
        "resources.3.includeSecretData",
        "resources.4.resource",
    ]


def test_discovery_is_granted_where_it_is_asked_for_also_beside_roles_of_namespaces_alone() -> None:
    granted, _ = rights(settings({"resource": "pods", "namespaces": ["shop"]}))
    usual = manifests(granted, namespace="ops", name="relay")
    assert [each["kind"] for each in usual] == ["ServiceAccount", "Role", "RoleBinding"]
    made = manifests(granted, namespace="ops", name="relay", discovery=True)
    assert [each["kind"] for each in made] == [
        "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding",
    ]  # fmt: skip
    assert made[1]["rules"] == [
        {
            "nonResourceURLs": ["/api", "/api/*", "/apis", "/apis/*", "/version"],
            "verbs": ["get"],
        }
    ]
