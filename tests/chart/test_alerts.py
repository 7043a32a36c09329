"""The alert rules, runbooks, promtool cases: proof that each alert fires, is explained, names what
exists."""

import functools
import re
from typing import Any

import pytest
import yaml

from tests.support.charttools import CHART, ROOT, program, run
from tests.support.metricnames import unknown_names

RULES = CHART / "files" / "rules" / "watchrelay.yaml"
CASES = sorted((ROOT / "tests" / "alerts").glob("*_test.yaml"))
RUNBOOKS = ROOT / "docs" / "runbooks"
ALERTS: list[dict[str, Any]] = [
    rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]
]


@functools.cache
def _cases() -> list[dict[str, Any]]:
    return [case for path in CASES for case in yaml.safe_load(path.read_text())["tests"]]


each_alert = pytest.mark.parametrize("alert", ALERTS, ids=lambda rule: rule["alert"])


@each_alert
def test_the_alert_asks_for_metrics_that_exist_of_our_job_alone(alert: dict[str, Any]) -> None:
    assert unknown_names(alert["expr"]) == set()
    assert all(
        matchers.startswith('job="watchrelay"')
        for matchers in re.findall(r"\{(.*?)\}", alert["expr"])
    ), alert["expr"]


@each_alert
def test_the_alert_says_how_bad_it_is_and_what_to_do(alert: dict[str, Any]) -> None:
    assert alert["labels"]["severity"] in {"critical", "warning"}
    assert alert["keep_firing_for"]
    assert set(alert["annotations"]) == {"summary", "description", "runbook_url"}
    assert alert["annotations"]["runbook_url"] == f"docs/runbooks/{alert['alert']}.md"
    text = (RUNBOOKS / f"{alert['alert']}.md").read_text()
    assert text.startswith(f"# {alert['alert']}: ")
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == [
        "Meaning",
        "Impact",
        "Diagnosis",
        "Mitigation",
    ]
    assert unknown_names(" ".join(re.findall(r"`(.*?)`", text))) == set()


def test_every_runbook_is_that_of_an_alert_and_listed() -> None:
    names = [alert["alert"] for alert in ALERTS]
    assert sorted(names) == sorted(path.stem for path in RUNBOOKS.glob("WatchRelay*.md"))
    assert re.findall(r"^\| \[(\w+)\]", (RUNBOOKS / "README.md").read_text(), re.MULTILINE) == names
    links = [
        (path, link)
        for path in RUNBOOKS.glob("*.md")
        for link in re.findall(r"\]\(([\w.]+)\)", path.read_text())
    ]
    assert [(path.name, link) for path, link in links if not (RUNBOOKS / link).exists()] == []


def test_what_runbooks_quote_from_the_log_is_logged_by_default() -> None:
    reference = (ROOT / "docs" / "reference" / "logs.md").read_text()
    logged = re.findall(r"^\| (?:error|warning|info)\b.*?\| (.*?) \|", reference, re.MULTILINE)
    quoted = {
        phrase
        for path in RUNBOOKS.glob("*.md")
        for line in path.read_text().splitlines()
        if re.search(r"\blogs?\b", re.sub(r"`.*?`", "", line))
        for phrase in re.findall(r"`((?!kubectl|helm|watchrelay)[a-z][\w.;,]* [\w.;, ]+)`", line)
    }
    assert quoted
    assert [each for each in quoted if not any(line.startswith(each) for line in logged)] == []


@each_alert
def test_the_alert_has_a_case_that_fires_and_one_that_does_not(alert: dict[str, Any]) -> None:
    fires = silent = 0
    for case in _cases():
        for check in case["alert_rule_test"]:
            if check["alertname"] == alert["alert"]:
                fires += bool(check["exp_alerts"])
                silent += not check["exp_alerts"]
    assert (fires > 0, silent > 0) == (True, True)


@pytest.mark.usefixtures("tools")
def test_promtool_takes_the_rules_and_every_case_holds() -> None:
    checked = run(program("promtool"), "check", "rules", "--lint=all", "--lint-fatal", RULES)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    tested = run(program("promtool"), "test", "rules", *CASES, timeout_s=300.0)
    assert tested.returncode == 0, tested.stdout + tested.stderr
