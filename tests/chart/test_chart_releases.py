"""Releases with odd but legal names and values: names that the API takes, and alerts and dashboards
that ask for what is scraped."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.charttools import CHART, HELMS, program, rendered, run, template, values_file

pytestmark = pytest.mark.usefixtures("tools")

CONFIG = {
    "cluster": "prod.eu-1.example",
    "kafka": {"bootstrapServers": ["k:1"]},
    "resources": [{"resource": "pods"}],
}
MONITORED: dict[str, Any] = {
    "podMonitor": {"enabled": True},
    "prometheusRule": {"enabled": True},
    "dashboards": {"enabled": True},
}
BY_SERVICE = {**MONITORED, "podMonitor": {"enabled": False}, "serviceMonitor": {"enabled": True}}
RELEASES = (
    "watchrelay",
    "my.rel.v2",
    "1st",
    "7watchrelay",
    "a" * 53,
    "a." * 25 + "b",
    "a" + "-" * 50 + "b",
)
OVERRIDES: dict[str, dict[str, Any]] = {
    "none": {},
    "nameOverride": {"nameOverride": "relay"},
    "fullnameOverride": {"fullnameOverride": "the-relay"},
    "both": {"nameOverride": "relay", "fullnameOverride": "x"},
    "long ones": {"nameOverride": "n" * 50, "fullnameOverride": "f" * 49 + "g"},
    "long and with dashes": {"nameOverride": "n" * 48 + "-m"},
    "an account that is there": {"serviceAccount": {"create": False, "name": "shared"}},
}
LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
PATH_SEGMENT = re.compile(r"[^/%]+")
VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")


def of_kind(objects: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [each for each in objects if each["kind"] == kind]


def takes(object_: dict[str, Any]) -> bool:
    """The API takes its name, and its labels. Source: the API server's validation of names."""
    kind, name = object_["kind"], object_["metadata"]["name"]
    if kind == "Service":
        legal = len(name) <= 63 and LABEL.fullmatch(name)
    elif kind.endswith(("Role", "RoleBinding")):
        legal = PATH_SEGMENT.fullmatch(name)
    else:
        legal = len(name) <= (63 if kind in {"Pod", "Deployment"} else 253) and SUBDOMAIN.fullmatch(
            name
        )
    template_of_pod = object_.get("spec", {}).get("template", {}).get("metadata", {})
    values = (*object_["metadata"]["labels"].values(), *template_of_pod.get("labels", {}).values())
    return bool(legal) and all(len(value) <= 63 and VALUE.fullmatch(value) for value in values)


def leaves(value: Any, path: tuple[object, ...] = ()) -> list[tuple[tuple[object, ...], Any]]:
    """Every value in a manifest that is neither map nor list, with its path."""
    inside = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else None
    )
    return (
        [(path, value)]
        if inside is None
        else [leaf for key, each in inside for leaf in leaves(each, (*path, key))]
    )


@pytest.mark.parametrize("odd", ["123", "0x10", "true", "null"])
@pytest.mark.parametrize(
    ("authority", "monitored"), [("existingSecret", MONITORED), ("existingConfigMap", BY_SERVICE)]
)
def test_a_name_that_reads_as_a_number_or_a_constant_of_yaml_stays_text(
    odd: str, authority: str, monitored: dict[str, Any], tmp_path: Path
) -> None:
    def typed(name: str) -> list[tuple[tuple[object, ...], type]]:
        config = {
            **CONFIG,
            "resources": [{"resource": "pods", "namespaces": [name]}, {"resource": "nodes"}],
        }
        kafka = {
            "auth": {"existingSecret": name, "keys": {"username": name, "password": name}},
            "ca": {authority: name},
        }
        more = {**monitored, "networkPolicy": {"enabled": True}, "serviceAccount": {"name": name}}
        objects = rendered(
            values_file(tmp_path, config, kafka=kafka, **more), release=name, namespace=name
        )
        return [(path, type(value)) for path, value in leaves(dict(enumerate(objects)))]

    named = typed("name")
    assert set(typed(odd)) == set(named)
    assert len(named) > 300


@pytest.mark.parametrize(
    ("release", "what"),
    [(release, "none") for release in RELEASES]
    + [("a" * 53, what) for what in OVERRIDES if what != "none"],
)
def test_the_api_takes_every_name(release: str, what: str, tmp_path: Path) -> None:
    values = values_file(
        tmp_path,
        CONFIG,
        **MONITORED,
        **OVERRIDES[what],
        kafka={"auth": {"inline": {"username": "u"}}, "ca": {"inline": "x"}},
    )
    objects = rendered(values, release=release)
    assert len(objects) >= 13
    assert [each["metadata"]["name"] for each in objects if not takes(each)] == []


@pytest.mark.parametrize(
    "override", ["Relay", "my relay", "relay.prod", "-relay", "relay-", "1relay", "r" * 51]
)
def test_an_override_that_makes_no_name_is_refused_by_its_key(
    override: str, tmp_path: Path
) -> None:
    for key in ("nameOverride", "fullnameOverride"):
        done = template(values_file(tmp_path, CONFIG, **{key: override}))
        assert done.returncode != 0
        assert key in done.stderr


def scraped(objects: list[dict[str, Any]], kind: str) -> dict[str, str]:
    """The labels that prometheus-operator gives the series of the pod. Source: its documentation,
    `jobLabel`, `podTargetLabels`."""
    (monitor,) = of_kind(objects, kind)
    (pod,) = [
        each["spec"]["template"]["metadata"]["labels"] for each in of_kind(objects, "Deployment")
    ]
    (service,) = [each["metadata"]["labels"] for each in of_kind(objects, "Service")]
    labelled = service if kind == "ServiceMonitor" else pod
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labelled.items()
    more = {
        re.sub(r"[^a-zA-Z0-9_]", "_", label): pod[label]
        for label in monitor["spec"]["podTargetLabels"]
    }
    return {
        "job": labelled[monitor["spec"]["jobLabel"]],
        "namespace": monitor["metadata"]["namespace"],
        **more,
    }


def asked_by_rules(objects: list[dict[str, Any]]) -> list[str]:
    (made,) = of_kind(objects, "PrometheusRule")
    return [rule["expr"] for group in made["spec"]["groups"] for rule in group["rules"]]


def asked_by_dashboards(objects: list[dict[str, Any]]) -> list[str]:
    boards = [
        json.loads(text)
        for each in of_kind(objects, "ConfigMap")
        if "-dashboard-" in each["metadata"]["name"]
        for text in each["data"].values()
    ]
    assert len(boards) == 3
    assert all(len(board["uid"]) <= 40 for board in boards)
    return [
        target["expr"]
        for board in boards
        for panel in board["panels"]
        for target in panel.get("targets", ())
    ]


@pytest.mark.parametrize("what", OVERRIDES)
def test_alerts_and_dashboards_ask_for_the_job_that_is_scraped(what: str, tmp_path: Path) -> None:
    for kind, monitored in (("PodMonitor", MONITORED), ("ServiceMonitor", BY_SERVICE)):
        objects = rendered(values_file(tmp_path, CONFIG, **monitored, **OVERRIDES[what]))
        labels = scraped(objects, kind)
        for expression in [*asked_by_rules(objects), *asked_by_dashboards(objects)]:
            assert set(re.findall(r'job="(.*?)"', expression)) == {labels["job"]}, expression


def series(name: str, labels: dict[str, str], values: str, **more: str) -> dict[str, str]:
    named = ",".join(f'{label}="{value}"' for label, value in {**labels, **more}.items())
    return {"series": f"{name}{{{named}}}", "values": values}


def judged(
    directory: Path,
    releases: list[list[dict[str, Any]]],
    given: list[dict[str, str]],
    at: str,
    expected: dict[str, list[dict[str, str]]],
) -> None:
    """The rules of these releases together, as one Prometheus evaluates them, fire what is expected
    after `at`."""
    files = []
    for number, objects in enumerate(releases):
        (rule,) = of_kind(objects, "PrometheusRule")
        for group in rule["spec"]["groups"]:
            for each in group["rules"]:
                each["annotations"] = {}
        files.append(directory / f"rules-{number}.yaml")
        files[-1].write_text(
            yaml.safe_dump(
                {
                    "groups": [
                        {**group, "name": f"{group['name']}-{number}"}
                        for group in rule["spec"]["groups"]
                    ]
                }
            )
        )
    checks = [
        {
            "alertname": name,
            "eval_time": at,
            "exp_alerts": [{"exp_labels": labels} for labels in fired],
        }
        for name, fired in expected.items()
    ]
    cases = {"rule_files": [str(file) for file in files], "evaluation_interval": "30s"}
    file = directory / "cases.yaml"
    file.write_text(
        yaml.safe_dump(
            {
                **cases,
                "tests": [{"interval": "30s", "input_series": given, "alert_rule_test": checks}],
            }
        )
    )
    done = run(program("promtool"), "test", "rules", file)
    assert done.returncode == 0, done.stdout + done.stderr


def test_two_releases_in_a_namespace_are_judged_each_by_its_own_alerts(tmp_path: Path) -> None:
    """Both relay the same cluster, to two Kafkas; the second is slow on purpose, and gone in the
    end."""
    slow = {**MONITORED, "prometheusRule": {"enabled": True, "thresholds": {"lagSeconds": 60}}}
    first = rendered(values_file(tmp_path, CONFIG, **MONITORED), release="rel")
    second = rendered(values_file(tmp_path, CONFIG, **slow), release="rel.2")
    one, two = scraped(first, "PodMonitor"), scraped(second, "PodMonitor")
    stream = {"cluster": "prod.eu-1.example", "stream": "pods"}
    given = [
        series("up", one, "1x60"),
        series("watchrelay_stream_owned", one | stream, "1x60"),
        series("watchrelay_stream_owned", two | stream, "1x60"),
    ]
    for labels in (one, two):
        given += [
            series("watchrelay_relay_lag_seconds_bucket", labels | stream, values, le=le)
            for le, values in (("10", "0x60"), ("30", "0+9x60"), ("+Inf", "0+9x60"))
        ]
    lags = {"severity": "warning", "namespace": "ns", **stream}
    gone = {"severity": "critical", "job": "watchrelay", "namespace": "ns"}
    judged(
        tmp_path,
        [first, second],
        given,
        "20m",
        {"WatchRelayStreamOwnedTwice": [], "WatchRelayLagHigh": [lags], "WatchRelayDown": [gone]},
    )


def test_two_processes_of_one_release_that_own_a_stream_are_seen(tmp_path: Path) -> None:
    objects = rendered(
        values_file(tmp_path, CONFIG, nameOverride="relay", **BY_SERVICE), release="my.rel"
    )
    stream = {**scraped(objects, "ServiceMonitor"), "cluster": "c", "stream": "pods"}
    given = [series("watchrelay_stream_owned", stream, "1x60", pod=pod) for pod in ("a", "b")]
    twice = {"severity": "warning", "namespace": "ns", "cluster": "c", "stream": "pods"}
    judged(tmp_path, [objects], given, "5m", {"WatchRelayStreamOwnedTwice": [twice]})


def test_alerts_follow_a_scrape_that_is_not_of_this_chart(tmp_path: Path) -> None:
    objects = rendered(values_file(tmp_path, CONFIG, **MONITORED))
    labels = {"job": "watchrelay", "namespace": "ns"}
    waiting = series(
        "watchrelay_stream_state", labels, "1x60", cluster="c", stream="pods", state="waiting"
    )
    waits = {"severity": "warning", "namespace": "ns", "cluster": "c", "stream": "pods"}
    judged(
        tmp_path,
        [objects],
        [series("up", labels, "1x60"), waiting],
        "20m",
        {"WatchRelayStreamWaiting": [waits], "WatchRelayDown": []},
    )


def test_the_alerts_of_the_group_follow_the_number_of_replicas(tmp_path: Path) -> None:
    """A roll-out assigns the streams four times for each pod."""
    objects = rendered(values_file(tmp_path, CONFIG, replicas=6, **MONITORED))
    labels = {**scraped(objects, "PodMonitor"), "cluster": "c"}
    fired = {"severity": "warning", "namespace": "ns", "cluster": "c"}
    name = "watchrelay_group_rebalances_total"
    given = [series(name, labels, "0x10 0+2x12 24x60", reason="joined")]
    judged(tmp_path, [objects], given, "15m", {"WatchRelayGroupFlapping": []})
    given = [series(name, labels, "0+2x60", reason="joined")]
    judged(tmp_path, [objects], given, "20m", {"WatchRelayGroupFlapping": [fired]})
    for members, missing in (("6x60", []), ("5x60", [fired]), ("0x60", [fired])):
        given = [series("watchrelay_group_members", labels, members)]
        judged(tmp_path, [objects], given, "20m", {"WatchRelayReplicaMissing": missing})


RATIOS = ("listErrorRatio", "watchErrorRatio", "queueRatio")
NUMBERS = (
    "missedChanges",
    "lagSeconds",
    "kafkaSilentSeconds",
    "snapshotIntervals",
    "claims",
    "rebalances",
    "stateAgeSeconds",
)


def test_every_threshold_of_the_values_reaches_its_alert_and_the_defaults_are_those_of_the_rule_file(
    tmp_path: Path,
) -> None:
    def asked(**thresholds: float) -> str:
        values = values_file(
            tmp_path, CONFIG, prometheusRule={"enabled": True, "thresholds": thresholds}
        )
        return "\n".join(asked_by_rules(rendered(values)))

    marked = re.findall(
        r"([0-9.]+) # (\w+)$",
        (CHART / "files" / "rules" / "watchrelay.yaml").read_text(),
        re.MULTILINE,
    )
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())["prometheusRule"]["thresholds"]
    # those are no thresholds: the chart and the config have them
    own = {"replicas", "standbys"}
    assert {name: float(value) for value, name in marked if name not in own} == defaults
    assert set(defaults) == {*RATIOS, *NUMBERS}
    plain, changed = asked(), asked(**dict.fromkeys(RATIOS, 0.9), **dict.fromkeys(NUMBERS, 77))
    assert "#" not in plain
    assert (changed.count(" 0.9"), changed.count("77")) == (len(RATIOS), len(NUMBERS))


def test_how_long_an_alert_must_hold_is_a_value_and_unknown_alerts_are_refused(
    tmp_path: Path,
) -> None:
    values = values_file(
        tmp_path, CONFIG, prometheusRule={"enabled": True, "for": {"WatchRelayDown": "1h30m"}}
    )
    (made,) = of_kind(rendered(values), "PrometheusRule")
    held = {rule["alert"]: rule.get("for") for rule in made["spec"]["groups"][0]["rules"]}
    assert (held["WatchRelayDown"], held["WatchRelayStreamUnowned"]) == ("1h30m", "2m")
    for wrong in (
        {"for": {"WatchRelayGone": "1m"}},
        {"disabled": ["WatchRelayGone"]},
        {"for": {"WatchRelayDown": "long"}},
        {"thresholds": {"lag": 1}},
    ):
        assert (
            template(
                values_file(tmp_path, CONFIG, prometheusRule={"enabled": True, **wrong})
            ).returncode
            != 0
        )


@pytest.mark.parametrize(
    ("base", "address"),
    [
        ("", r"https://github\.com/[\w-]+/watchrelay/blob/v[0-9.]+/docs/runbooks/WatchRelay\w+\.md"),
        ("https://git.example.com/a", r"https://git\.example\.com/a/docs/runbooks/WatchRelay\w+\.md"),
        ("https://git.example.com/a/", r"https://git\.example\.com/a/docs/runbooks/WatchRelay\w+\.md"),
    ],
)  # fmt: skip
def test_every_runbook_link_is_an_address(base: str, address: str, tmp_path: Path) -> None:
    (made,) = of_kind(
        rendered(
            values_file(tmp_path, CONFIG, prometheusRule={"enabled": True, "runbookBaseUrl": base})
        ),
        "PrometheusRule",
    )
    links = [
        rule["annotations"]["runbook_url"]
        for group in made["spec"]["groups"]
        for rule in group["rules"]
    ]
    assert len(links) == len({*links}) == 24
    assert [link for link in links if not re.fullmatch(address, link)] == []


@pytest.mark.parametrize(
    ("one", "two", "where"),
    [
        ("rel", "rel-2", ("ns", "ns")),
        ("rel", "rel", ("ns", "other")),
        ("rel", "rel.2", ("ns", "ns")),
    ],
)
@pytest.mark.parametrize("what", ["none", "nameOverride"])
def test_two_releases_do_not_claim_each_others_objects(
    one: str, two: str, where: tuple[str, str], what: str, tmp_path: Path
) -> None:
    more = {
        **MONITORED,
        **OVERRIDES[what],
        "dashboards": {"enabled": True, "namespace": "monitoring"},
    }
    config = {
        **CONFIG,
        "resources": [{"resource": "pods", "namespaces": ["shop"]}, {"resource": "nodes"}],
    }
    made = []
    for release, namespace in zip((one, two), where, strict=True):
        objects = rendered(
            values_file(tmp_path, config, **more), release=release, namespace=namespace
        )
        made.append(
            {
                (each["kind"], each["metadata"].get("namespace", ""), each["metadata"]["name"])
                for each in objects
            }
        )
        assert len(made[-1]) == len(objects)
    assert made[0] & made[1] == set()


@pytest.mark.parametrize("what", ["none", "nameOverride"])
def test_the_network_policy_selects_the_relay_and_the_pod_of_helm_test(
    what: str, tmp_path: Path
) -> None:
    objects = rendered(
        values_file(tmp_path, CONFIG, networkPolicy={"enabled": True}, **OVERRIDES[what])
    )
    (policy,) = of_kind(objects, "NetworkPolicy")
    selector = policy["spec"]["podSelector"]
    (term,) = selector["matchExpressions"]
    assert term["operator"] == "In"
    (deployment,) = of_kind(objects, "Deployment")
    for pod in (deployment["spec"]["template"], *of_kind(objects, "Pod")):
        labels = pod["metadata"]["labels"]
        assert selector["matchLabels"].items() <= labels.items()
        assert labels[term["key"]] in term["values"]


@pytest.mark.parametrize("helm", HELMS)
def test_namespaces_switches_and_accounts_render(helm: str, tmp_path: Path) -> None:
    config = {
        **CONFIG,
        "resources": [
            {"resource": "pods", "namespaces": ["shop", "pay"]},
            {"resource": "pods", "namespaces": ["rest"], "id": "rest"},
        ],
    }
    for more in (
        {"serviceMonitor": {"enabled": True}},
        {"serviceAccount": {"create": False}, "rbac": {"create": False}},
        {"serviceAccount": {"create": False, "name": "shared"}},
        {"serviceAccount": {"create": False, "name": "shared"}, "rbac": {"create": False}},
        {"prometheusRule": {"enabled": True, "disabled": ["WatchRelayDown"]}},
    ):
        objects = rendered(values_file(tmp_path, config, **more), helm=helm)
        assert {each["metadata"]["namespace"] for each in of_kind(objects, "Role")} in (
            {"shop", "pay", "rest"},
            set(),
        )
