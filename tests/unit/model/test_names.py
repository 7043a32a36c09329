"""How resources are named, and what the names of built-in ones mean without a server."""

from __future__ import annotations

import pytest

from watchrelay.model.builtin import BUILTIN, GROUPS, resolve
from watchrelay.model.names import ResourceName, parse_name


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("pods", ResourceName("pods")),
        ("Pod", ResourceName("Pod")),
        ("pods/v1", ResourceName("pods", None, "v1")),
        ("deployments.apps", ResourceName("deployments", "apps")),
        ("deployments.v1.apps", ResourceName("deployments", "apps", "v1")),
        ("widgets.example.com/v1beta2", ResourceName("widgets", "example.com", "v1beta2")),
        ("*.example.com", ResourceName("*", "example.com")),
    ],
)
def test_a_name_is_split_as_kubectl_splits_it(text: str, parts: ResourceName) -> None:
    assert parse_name(text) == parts


@pytest.mark.parametrize(
    "text",
    [
        "",
        "*",
        "*.",
        "a b",
        "pods.",
        "pods.core",
        "*.core",
        "a/b",
        "a.B.c",
        "9x",
        "-a",
        "a_b",
        "a.v1.b/v1",
        "pods/",
    ],
)
def test_what_cannot_name_a_resource_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_name(text)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("po", ["pods"]),
        ("Pod", ["pods"]),
        ("deploy", ["deployments.apps"]),
        ("HPA", ["horizontalpodautoscalers.autoscaling"]),
        ("events", ["events", "events.events.k8s.io"]),
        ("events.events.k8s.io", ["events.events.k8s.io"]),
        ("deployments.apps/v1", ["deployments.apps"]),
        ("deployments.apps/v9", []),
        ("widgets", []),
        ("*.policy", ["poddisruptionbudgets.policy"]),
        ("*.example.com", []),
    ],
)
def test_a_built_in_name_means_what_kubectl_means_by_it(text: str, meant: list[str]) -> None:
    assert [builtin.resource.qualified for builtin in resolve(parse_name(text))] == meant


def test_a_version_that_is_not_given_is_the_preferred_one() -> None:
    assert resolve(parse_name("hpa"))[0].resource.version == "v2"
    assert (
        resolve(parse_name("horizontalpodautoscalers.v1.autoscaling"))[0].resource.version == "v1"
    )


def test_the_table_is_whole() -> None:
    assert len({(b.resource.group, b.resource.version, b.resource.plural) for b in BUILTIN}) == len(
        BUILTIN
    )
    assert {"", "apps", "batch", "rbac.authorization.k8s.io", "resource.k8s.io"} <= GROUPS
    unwatchable = {b.resource.plural for b in BUILTIN if not b.watchable}
    assert {"bindings", "componentstatuses", "tokenreviews"} <= unwatchable
    assert not {"pods", "secrets", "leases"} & unwatchable
