"""Room: chart tests.  In: deploy/.  Out: proof that its configs are good, its references lead somewhere, and its rights are the relay's."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.charttools import CHART, ROOT, program, python_program, run
from tests.support.kafkarights import PREFIX, RIGHTS, names
from watchrelay import __version__
from watchrelay.config import load_settings

DEPLOY = ROOT / "deploy"
COMPOSE = DEPLOY / "compose"


def _yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


@pytest.mark.parametrize("file", [DEPLOY / "example" / "watchrelay.yaml", COMPOSE / "watchrelay.yaml"], ids=["example", "compose"])
def test_the_config_is_good(file: Path) -> None:
    assert load_settings(str(file), environ={}).resources


def test_every_file_that_a_kustomization_names_is_there_and_the_other_way_round() -> None:
    base, example = _yaml(DEPLOY / "base" / "kustomization.yaml"), _yaml(DEPLOY / "example" / "kustomization.yaml")
    assert {path.name for path in (DEPLOY / "base").iterdir()} == {"kustomization.yaml", *base["resources"]}
    named = {*example["resources"], *(each.partition("=")[2] for each in example["configMapGenerator"][0]["files"])} - {"../base"}
    assert {path.name for path in (DEPLOY / "example").iterdir()} == {"kustomization.yaml", *named}
    assert example["images"][0]["newTag"] == __version__


def test_the_overlays_config_map_is_the_one_that_the_base_mounts() -> None:
    (generated,) = _yaml(DEPLOY / "example" / "kustomization.yaml")["configMapGenerator"]
    pod = _yaml(DEPLOY / "base" / "deployment.yaml")["spec"]["template"]["spec"]
    mounted = {volume["configMap"]["name"] for volume in pod["volumes"] if "configMap" in volume}
    assert mounted == {generated["name"]}
    assert pod["serviceAccountName"] == "watchrelay"


@pytest.mark.usefixtures("tools")
def test_kubernetes_takes_the_plain_manifests() -> None:
    files = [DEPLOY / "base" / "deployment.yaml", DEPLOY / "base" / "service.yaml", DEPLOY / "example" / "namespace.yaml"]
    done = run(python_program("kubernetes-validate"), "--strict", "-k", "1.36", *files, DEPLOY / "example" / "rbac.yaml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_file_that_compose_mounts_is_there_and_every_dependency_is_a_service() -> None:
    services = _yaml(COMPOSE / "compose.yaml")["services"]
    assert set(services) == {"kafka", "relay", "prometheus", "grafana"}
    for service in services.values():
        for mount in service.get("volumes", ()):
            if mount.startswith("."):
                assert (COMPOSE / mount.partition(":")[0]).exists(), mount
        assert set(service.get("depends_on", ())) <= set(services)
    assert services["relay"]["image"] == f"watchrelay:{__version__}"


def test_compose_scrapes_and_reads_where_the_relay_listens() -> None:
    settings = load_settings(str(COMPOSE / "watchrelay.yaml"), environ={})
    (job,) = _yaml(COMPOSE / "prometheus.yaml")["scrape_configs"]
    assert job["static_configs"][0]["targets"] == [settings.observe.listen]
    assert job["job_name"] == "watchrelay"
    kafka = _yaml(COMPOSE / "compose.yaml")["services"]["kafka"]["environment"]
    assert f"HOST://{settings.kafka.bootstrap_servers[0]}" in kafka["KAFKA_ADVERTISED_LISTENERS"]


@pytest.mark.usefixtures("tools")
def test_promtool_takes_the_scrape_config(tmp_path: Path) -> None:
    config = _yaml(COMPOSE / "prometheus.yaml")
    config["rule_files"] = [str(CHART / "files" / "rules" / "watchrelay.yaml")]
    file = tmp_path / "prometheus.yaml"
    file.write_text(yaml.safe_dump(config))
    done = run(program("promtool"), "check", "config", file)
    assert done.returncode == 0, done.stdout + done.stderr


def test_strimzis_user_and_the_documentation_name_the_rights_that_a_relay_is_shown_to_need_and_no_more() -> None:
    """tests/integration/test_kafka_rights_real.py shows it on a broker that denies all else."""
    spec = _yaml(DEPLOY / "strimzi" / "user.yaml")["spec"]
    acls = spec["authorization"]["acls"]
    assert {(each["resource"]["type"], each["resource"]["name"], each["resource"]["patternType"]) for each in acls} == {
        ("topic", PREFIX, "prefix")
    }
    wanted = sorted(names(RIGHTS))
    assert sorted(operation.upper() for each in acls for operation in each["operations"]) == [each.replace("_", "") for each in wanted]
    rows = re.findall(r"^\| (\w+) `(.*?)` \(prefix\) ([A-Z_]+) \|", (ROOT / "docs" / "install.md").read_text(), re.MULTILINE)
    assert sorted(rows) == [("Topic", PREFIX, right) for right in wanted]


def test_the_image_is_built_of_what_the_docker_ignore_lets_in() -> None:
    let_in = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {
        word for line in re.findall(r"^COPY (?!--from)(.*) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE) for word in line.split()
    }
    assert copied == let_in


def _pins(name: str) -> set[str]:
    return set(re.findall(r"^[\w.-]+==[\w.]+", (ROOT / "requirements" / f"{name}.txt").read_text(), re.MULTILINE))


def test_the_image_holds_what_runs_and_what_the_demo_needs_in_the_versions_that_are_tested() -> None:
    assert _pins("run") <= _pins("image") <= _pins("dev")
    assert {pin.partition("==")[0] for pin in _pins("image") - _pins("run")} == {"confluent-kafka"}


@pytest.mark.usefixtures("tools")
def test_hadolint_finds_nothing_in_the_dockerfile() -> None:
    done = run(python_program("hadolint"), ROOT / "Dockerfile")
    assert done.returncode == 0, done.stdout + done.stderr
