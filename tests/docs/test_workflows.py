"""The workflows, which run on the project's host and nowhere else: what can be checked without
running them: what they call is there, what they install is pinned by hash, and no step has more
rights than it needs."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.jsonschemas import by_schema
from tests.support.shellwords import complaints
from tools.docs.pages import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


@pytest.fixture(params=WORKFLOWS, ids=lambda path: path.stem)
def workflow(request: pytest.FixtureRequest) -> dict[Any, Any]:
    path: Path = request.param
    return dict(yaml.safe_load(path.read_text()))


def steps(workflow: dict[Any, Any]) -> list[dict[str, Any]]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_it_is_written_as_workflows_are(path: Path, tmp_path: Path) -> None:
    assert by_schema("github-workflows", path) == ""
    wrong = tmp_path / "wrong.yml"
    wrong.write_text(path.read_text().replace("timeout-minutes:", "timeout-minute:"))
    assert "timeout-minute" in by_schema("github-workflows", wrong), "a check that finds nothing"


def test_what_is_promised_to_be_released_has_a_job_that_makes_and_signs_it() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())["jobs"]
    scripts = {
        name: "\n".join(step.get("run", "") for step in job["steps"]) for name, job in jobs.items()
    }
    for job, words in {
        "package": ('uv" publish --trusted-publishing always', 'pypi-attestations" sign'),
        "image": ("make image", "skopeo copy", 'sigstore" sign'),
        "chart": ("package helm/watchrelay", "push", 'sigstore" sign'),
    }.items():
        assert [word for word in words if word not in scripts[job]] == []
        assert jobs[job]["permissions"]["id-token"] == "write"
    (tested,) = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text())[
        "jobs"
    ].values()
    assert tested["steps"][-1]["run"] == ".ci/run"


def test_rights_are_read_unless_a_job_names_more_and_no_job_runs_forever(
    workflow: dict[Any, Any],
) -> None:
    assert workflow["permissions"] == {"contents": "read"}
    assert all(job.get("timeout-minutes", 0) for job in workflow["jobs"].values())


def test_actions_of_others_are_pinned_by_sha(workflow: dict[Any, Any]) -> None:
    used = [step["uses"] for step in steps(workflow) if "uses" in step]
    assert [each for each in used if not re.search(r"@[0-9a-f]{40}$", each)] == []


def test_what_is_installed_is_pinned_by_hash(workflow: dict[Any, Any]) -> None:
    installs = [
        line
        for step in steps(workflow)
        for line in step.get("run", "").splitlines()
        if re.search(r"\bpip\"? install", line)
    ]
    assert [
        line
        for line in installs
        if not re.search(r"--no-deps --require-hashes -r requirements/\w+\.txt$", line)
    ] == []


def test_what_others_say_is_never_part_of_a_script(workflow: dict[Any, Any]) -> None:
    """Values reach scripts by the environment: an expression within a script is replaced before the
    shell reads it."""
    assert [step["name"] for step in steps(workflow) if "${{" in step.get("run", "")] == []


def test_targets_and_files_that_scripts_name_are_there(workflow: dict[Any, Any]) -> None:
    lines = [line.strip() for step in steps(workflow) for line in step.get("run", "").splitlines()]
    wrong = [
        complaint
        for line in lines
        if re.match(r"(sudo .*)?make ", line)
        for complaint in complaints(re.sub(r"^sudo.* make", "make", line))
    ]
    assert wrong == []
    named = {
        word
        for line in lines
        for word in re.findall(r"(?:tools|requirements|helm|\.ci)/[\w./-]+", line)
        if not word.endswith("/")
    }
    assert {
        word for word in named if not (ROOT / word).exists() and "tools/bin" not in word
    } == set()
