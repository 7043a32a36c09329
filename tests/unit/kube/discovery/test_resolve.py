"""What a resource of the config means, without sockets."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.kube.served import dumps
from watchrelay.kube.discovery.catalog import (
    ApiCatalog,
    ApiGroup,
    NotDiscovery,
    Version,
    is_aggregated,
    parse_aggregated,
)
from watchrelay.kube.discovery.resolve import Found, Impossible, Missing, Unknown, resolve
from watchrelay.model.resources import Resource, ServedResource


def served(
    text: str,
    *short: str,
    group: str = "",
    version: str = "v1",
    cluster: bool = False,
    watchable: bool = True,
) -> ServedResource:
    """`pods/Pod` -> what discovery says of it."""
    plural, kind = text.split("/")
    return ServedResource(
        Resource(group, version, plural, kind, not cluster), kind.lower(), short, watchable
    )


def group(
    name: str, *texts: str, version: str = "v1", more: tuple[Version, ...] = (), fresh: bool = True
) -> ApiGroup:
    return ApiGroup(
        name,
        (
            Version(
                version, fresh, tuple(served(text, group=name, version=version) for text in texts)
            ),
            *more,
        ),
    )


CORE = ApiGroup(
    "",
    (
        Version(
            "v1",
            fresh=True,
            served=(
                served("pods/Pod", "po"),
                served("secrets/Secret"),
                served("events/Event", "ev"),
                served("nodes/Node", "no", cluster=True),
                served("bindings/Binding", watchable=False),
            ),
        ),
    ),
)
APPS = ApiGroup(
    "apps",
    (
        Version("v1", True, (served("deployments/Deployment", "deploy", group="apps"),)),
        Version(
            "v1beta1",
            True,
            (
                served("deployments/Deployment", "deploy", group="apps", version="v1beta1"),
                served("oldthings/OldThing", group="apps", version="v1beta1"),
            ),
        ),
    ),
)
EVENTS = group("events.k8s.io", "events/Event")
EXAMPLE = group("example.com", "widgets/Widget", "gadgets/Gadget", version="v2", more=(
    Version("v1", True, (served("widgets/Widget", group="example.com"), served("relics/Relic", group="example.com"))),
))  # fmt: skip
OTHER = group("other.example.org", "gadgets/Gadget")
METRICS = ApiGroup(
    "metrics.k8s.io",
    (
        Version(
            "v1beta1", True, (served("pods/PodMetrics", group="metrics.k8s.io", watchable=False),)
        ),
    ),
)
CATALOG = ApiCatalog((CORE, APPS, EVENTS, EXAMPLE, OTHER, METRICS))


def found(written: str, catalog: ApiCatalog = CATALOG) -> list[str]:
    result = resolve(written, catalog)
    assert isinstance(result, Found), result
    return [str(resource) for resource in result.resources]


@pytest.mark.parametrize(
    ("written", "means"),
    [
        ("pods", "pods/v1"), ("pod", "pods/v1"), ("po", "pods/v1"), ("Pod", "pods/v1"), ("PODS", "pods/v1"),
        ("pods/v1", "pods/v1"), ("pods.v1", "pods/v1"),
        ("deploy", "deployments.apps/v1"), ("deployments.apps", "deployments.apps/v1"), ("Deployment.apps", "deployments.apps/v1"),
        ("deployments.v1.apps", "deployments.apps/v1"), ("deployments.v1beta1.apps", "deployments.apps/v1beta1"),
        ("deployments.apps/v1beta1", "deployments.apps/v1beta1"), ("oldthings", "oldthings.apps/v1beta1"),
        ("widgets", "widgets.example.com/v2"), ("widgets.example.com/v1", "widgets.example.com/v1"),
        ("relics.example.com", "relics.example.com/v1"), ("widgets/v1", "widgets.example.com/v1"),
        ("events.events.k8s.io", "events.events.k8s.io/v1"),
    ],
)  # fmt: skip
def test_T79_a_name_means_what_kubectl_means_by_it(written: str, means: str) -> None:
    assert found(written) == [means]


def test_T79_a_name_of_several_groups_is_the_first_ones_with_a_warning() -> None:
    result = resolve("events", CATALOG)
    assert isinstance(result, Found)
    assert [str(r) for r in result.resources] == ["events/v1"]
    assert "events.events.k8s.io" in result.warnings[0]
    gadgets = resolve("gadgets", CATALOG)
    assert isinstance(gadgets, Found)
    assert gadgets.resources[0].group == "example.com"
    assert "gadgets.other.example.org" in gadgets.warnings[0]


def test_a_namesake_that_cannot_be_watched_is_no_reason_to_warn() -> None:
    result = resolve("pods", CATALOG)
    assert isinstance(result, Found)
    assert result.warnings == ()


def test_a_preferred_version_goes_before_an_older_groups_other_version() -> None:
    first = group(
        "a.example.com",
        "others/Other",
        version="v2",
        more=(Version("v1", True, (served("things/Thing", group="a.example.com"),)),),
    )
    second = group("b.example.com", "things/Thing")
    assert found("things", ApiCatalog((first, second))) == ["things.b.example.com/v1"]


def test_a_plural_goes_before_a_short_name() -> None:
    catalog = ApiCatalog(
        (
            ApiGroup("", (Version("v1", True, (served("services/Service", "po"),)),)),
            group("example.com", "po/Po"),
        )
    )
    assert found("po", catalog) == ["po.example.com/v1"]


def test_a_wildcard_is_everything_watchable_of_the_group_in_its_best_version() -> None:
    assert found("*.example.com") == [
        "widgets.example.com/v2",
        "gadgets.example.com/v2",
        "relics.example.com/v1",
    ]
    assert found("*.example.com/v1") == ["widgets.example.com/v1", "relics.example.com/v1"]
    assert isinstance(resolve("*.metrics.k8s.io", CATALOG), Missing)
    assert isinstance(resolve("*.nowhere.example.com", CATALOG), Missing)


def test_no_wildcard_reaches_secrets() -> None:
    assert isinstance(resolve("*.core", CATALOG), Impossible)
    assert found("secrets") == ["secrets/v1"]


@pytest.mark.parametrize(
    "written",
    [
        "",
        "*",
        "po ds",
        "pods/v1/log",
        "widgets.Example.com",
        "-pods",
        "pods.",
        ".apps",
        "a..b",
        "pods\n.apps",
        "*.*",
    ],
)
def test_a_name_that_is_none_is_impossible(written: str) -> None:
    assert isinstance(resolve(written, CATALOG), Impossible)


@pytest.mark.parametrize(
    "written",
    [
        "pods/v9",
        "deploymentz.apps",
        "deployments.apps/v9",
        "pods/log",
        "foos.events.k8s.io",
    ],
)
def test_what_a_built_in_group_does_not_serve_will_not_come(written: str) -> None:
    assert isinstance(resolve(written, CATALOG), Impossible)


@pytest.mark.parametrize(
    "written",
    [
        "gizmos",
        "gizmos/v1",
        "gizmos.example.com",
        "gizmos.new.example.net",
        "gizmos.new.example.net/v1",
        "widgets.example.com/v3",
        "Gizmo",
    ],
)
def test_T75_what_a_crd_may_bring_is_waited_for(written: str) -> None:
    assert isinstance(resolve(written, CATALOG), Missing)


def test_a_slip_of_the_pen_is_answered_with_the_nearest_name() -> None:
    result = resolve("deploymnets", CATALOG)
    assert isinstance(result, Missing)
    assert "did you mean deployments.apps?" in result.reason
    other = resolve("deployments.apps/v9", CATALOG)
    assert isinstance(other, Impossible)
    assert "v1, v1beta1" in other.reason


def test_T61_what_cannot_be_watched_is_impossible() -> None:
    result = resolve("bindings", CATALOG)
    assert isinstance(result, Impossible)
    assert "cannot be watched" in result.reason


def test_T78_what_a_stale_group_serves_is_unknown_not_absent() -> None:
    stale = ApiGroup(
        "example.com", tuple(replace(v, fresh=False, served=()) for v in EXAMPLE.versions)
    )
    catalog = ApiCatalog((CORE, stale, APPS))
    for written in (
        "widgets.example.com",
        "widgets.example.com/v1",
        "*.example.com",
        "widgets",
        "widgets.v1.example.com",
    ):
        assert isinstance(resolve(written, catalog), Unknown), written
    assert found("pods", catalog) == ["pods/v1"]
    widgets = Resource("example.com", "v1", "widgets", "Widget", True)
    assert catalog.availability(widgets).state == "unknown"


def test_T78_a_group_of_which_one_version_is_stale_is_known_in_part() -> None:
    half = ApiGroup(
        "example.com", (replace(EXAMPLE.versions[0], fresh=False, served=()), EXAMPLE.versions[1])
    )
    result = resolve("*.example.com", ApiCatalog((half,)))
    assert isinstance(result, Found)
    assert result.warnings, "what is unknown is named"
    assert [str(r) for r in result.resources] == ["widgets.example.com/v1", "relics.example.com/v1"]
    assert found("widgets.example.com", ApiCatalog((half,))) == ["widgets.example.com/v1"]


@pytest.mark.parametrize(
    ("resource", "state", "reason"),
    [
        ("widgets.example.com/v1", "served", ""),
        ("gadgets.example.com/v1", "hidden", "gadgets.example.com is served in v2, not as gadgets.example.com/v1"),
        ("widgets.example.com/v3", "hidden", "widgets.example.com is served in v2, v1, not as widgets.example.com/v3"),
        ("sprockets.example.com/v1", "gone", ""),
        ("widgets.gone.example.com/v1", "gone", ""),
        ("deployments.apps/v1beta2", "hidden", "deployments.apps is served in v1, v1beta1, not as deployments.apps/v1beta2"),
        ("daemonsets.apps/v1", "hidden", "daemonsets.apps is served in no version"),
        ("ingresses.extensions/v1beta1", "hidden", "ingresses.extensions is served in no version"),
        ("podpresets.settings.k8s.io/v1alpha1", "hidden", "podpresets.settings.k8s.io is served in no version"),
        ("podsecuritypolicies.policy/v1beta1", "hidden", "podsecuritypolicies.policy is served in no version"),
    ],
)  # fmt: skip
def test_T77_a_resource_is_gone_when_no_version_serves_it_and_none_of_kubernetes_itself_ever_is(
    resource: str, state: str, reason: str
) -> None:
    plural, _, rest = resource.partition(".")
    name, version = rest.split("/")
    found = CATALOG.availability(Resource(name, version, plural, "Kind", True))
    assert found.state == state
    assert found.reason.startswith(reason)
    assert bool(found.reason) == (state == "hidden")


def test_T77_a_resource_that_is_defined_again_with_another_scope_is_another_one() -> None:
    widgets = Resource("example.com", "v1", "widgets", "Widget", namespaced=False)
    assert CATALOG.availability(widgets).state == "gone"
    assert CATALOG.availability(widgets, any_scope=True).state == "served"


def test_the_text_of_a_version_that_ended_is_that_of_the_entry_which_names_it() -> None:
    resolution = resolve("gadgets.example.com/v1", CATALOG)
    assert isinstance(resolution, Missing)
    gadgets = Resource("example.com", "v1", "gadgets", "Gadget", namespaced=True)
    assert CATALOG.availability(gadgets).reason == resolution.reason


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"<html>", b'{"items":5}', b'{"items":[{"versions":[{"resources":[{}]}]}]}'],
)
def test_a_body_that_is_no_discovery_is_reported_as_such(body: bytes) -> None:
    with pytest.raises(NotDiscovery):
        list(parse_aggregated(body))


def test_discovery_with_null_where_lists_may_be_is_understood() -> None:
    body = {
        "items": [
            {
                "metadata": None,
                "versions": [
                    {
                        "version": "v1",
                        "resources": [{"resource": "pods", "responseKind": None, "verbs": None}],
                    }
                ],
            }
        ]
    }
    ((_, only),) = parse_aggregated(dumps(body))
    assert only == ApiGroup(
        "",
        (
            Version(
                "v1", True, (ServedResource(Resource("", "v1", "pods", "", False), "", (), False),)
            ),
        ),
    )
    assert list(parse_aggregated(b'{"items":null}')) == []


@pytest.mark.parametrize(
    ("content_type", "aggregated"),
    [
        ("application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList", True),
        ("application/json; as=APIGroupDiscoveryList; v=v2beta1; g=apidiscovery.k8s.io", True),
        ("application/json", False),
        ("", False),
    ],
)
def test_T79_the_content_type_says_which_form_came(content_type: str, aggregated: bool) -> None:
    assert is_aggregated(content_type) is aggregated
