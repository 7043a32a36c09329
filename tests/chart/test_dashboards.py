"""The committed dashboards: proof that each expression is PromQL on metrics that exist;
conventions."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.charttools import ROOT, program, run
from tests.support.dashboards import FILES, dashboard, panels, queries
from tests.support.metricnames import exposed, unknown_names
from watchrelay.observe.metrics import CATALOGUE

NOT_SHOWN = {
    "kube_request_duration_seconds": "watches answer at once; slow lists are seen in list_duration_seconds",
    "topics_at_risk": "an alert and the status page name the setting and its cure",
    "clock_offset_seconds": "an alert and the status page name it, with the cure",
    "last_event_timestamp_seconds": "its age, which no clock touches, is shown",
    "last_heard_timestamp_seconds": "its age, which no clock touches, is shown",
    "log_lines_dropped": "the log itself tells how many, once it is read",
    "config_last_reload_success_timestamp_seconds": "the hash and the verdict on the newest config are shown",
}
"""Metrics on no dashboard, with the reason."""

each_dashboard = pytest.mark.parametrize(
    "board", [dashboard(path.stem) for path in FILES], ids=[path.stem for path in FILES]
)


def test_each_has_a_picture_in_the_docs_small_enough_for_a_page() -> None:
    sizes = {
        path.stem: (ROOT / "docs" / "images" / f"dashboard-{path.stem}.png").stat().st_size
        for path in FILES
    }
    assert {name: size for name, size in sizes.items() if not 20_000 < size < 150_000} == {}, (
        "run `make dashboards-shots`"
    )


def test_what_draws_them_is_pinned_by_hashes_without_addresses() -> None:
    lock = json.loads((ROOT / "tests" / "dashboards" / "render" / "package-lock.json").read_text())
    packages = {name: package for name, package in lock["packages"].items() if name}
    assert [
        name
        for name, package in packages.items()
        if not package.get("integrity") or "resolved" in package
    ] == []


def test_there_are_three() -> None:
    assert [path.stem for path in FILES] == ["fleet", "kafka", "stream"]


def test_every_expression_names_metrics_and_labels_that_exist() -> None:
    assert {
        query.where: unknown_names(query.expression)
        for query in queries()
        if unknown_names(query.expression)
    } == {}


def test_every_metric_is_shown_or_has_a_reason_why_not() -> None:
    named = {
        name
        for query in queries()
        for name in re.findall(r"watchrelay_[a-z0-9_]+", query.expression)
    }
    shown = {
        name
        for name in CATALOGUE
        if any(
            series in named
            for series in exposed()
            if re.fullmatch(rf"watchrelay_{name}(_total|_bucket|_sum|_count)?", series)
        )
    }
    assert set(CATALOGUE) - shown == set(NOT_SHOWN)


@pytest.mark.usefixtures("tools")
def test_every_expression_is_promql(tmp_path: Path) -> None:
    rules = [
        {"record": f"panel:{number}", "expr": query.expression}
        for number, query in enumerate(queries())
    ]
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboards", "rules": rules}]}))
    done = run(program("promtool"), "check", "rules", file)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.usefixtures("tools")
def test_a_stream_that_waits_in_two_replicas_is_counted_once(tmp_path: Path) -> None:
    (waiting,) = (query for query in queries() if query.where == "fleet: Waiting")
    state = 'watchrelay_stream_state{job="watchrelay",namespace="ns",cluster="c",stream="pods",%s}'
    series = [
        {"series": state % f'state="waiting",instance="{replica}"', "values": "1"}
        for replica in ("a", "b")
    ]
    asked = {"expr": waiting.expression, "eval_time": "0", "exp_samples": [{"value": 1}]}
    cases = [{"input_series": series, "promql_expr_test": [asked]}]
    file = tmp_path / "cases.yaml"
    file.write_text(yaml.safe_dump({"tests": cases}))
    done = run(program("promtool"), "test", "rules", file)
    assert done.returncode == 0, done.stdout + done.stderr


@each_dashboard
def test_the_dashboard_keeps_the_conventions(board: dict[str, Any]) -> None:
    assert len(board["uid"]) <= 40
    assert (board["schemaVersion"], board["editable"], board["timezone"]) == (42, False, "")
    variables = [each["name"] for each in board["templating"]["list"]]
    assert variables[:3] == ["datasource", "namespace", "cluster"]
    assert "watchrelay" in board["tags"]
    assert board["links"][0]["tags"] == ["watchrelay"]
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)
    used = set(re.findall(r"\$(\w+)", json.dumps(board))) | {"datasource"}
    assert used - {"__rate_interval", "__range", "__all"} <= set(variables)
    assert set(variables) <= used


@each_dashboard
def test_every_panel_says_what_it_shows_in_a_unit_and_asks_for_our_job(
    board: dict[str, Any],
) -> None:
    for panel in panels(board):
        defaults = panel["fieldConfig"]["defaults"]
        assert panel["title"], panel
        assert panel["description"].endswith("."), panel["title"]
        assert defaults["unit"], panel["title"]
        assert defaults["noValue"], panel["title"]
        for target in panel["targets"]:
            assert target["datasource"]["uid"] == "${datasource}"
            for matchers in re.findall(r"\{([^{}]*)\}", target["expr"]):
                assert re.match(
                    r'job="watchrelay",namespace=~"\$namespace",cluster=~?"\$cluster"', matchers
                ), target["expr"]
            assert not re.search(r"rate\([^\[]*\[(?!\$__rate_interval)", target["expr"]), target[
                "expr"
            ]
            assert re.search(r"_total\b|_bucket\b", target["expr"]) or "rate(" not in target["expr"]


@each_dashboard
def test_no_panel_covers_another(board: dict[str, Any]) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert at["x"] + at["w"] <= 24, panel["title"]
        assert not cells & taken, panel["title"]
        taken |= cells
