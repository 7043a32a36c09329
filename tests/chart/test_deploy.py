"""Deploy/: proof that its configs are good, its references lead somewhere, and its rights are the
relay's."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.charttools import CHART, ROOT, program, python_program, run
from tests.support.jsonschemas import by_schema
from tests.support.kafkarights import PREFIX, RIGHTS, TRANSACTION_RIGHTS, names
from watchrelay import __version__
from watchrelay.config import load_settings

DEPLOY = ROOT / "deploy"
_KINDS = {"topic": "Topic", "group": "Group", "transactionalId": "TransactionalId"}
"""What Strimzi calls the kinds of things that rights are on."""
COMPOSE = DEPLOY / "compose"


def _yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


@pytest.mark.parametrize(
    "file",
    [DEPLOY / "example" / "watchrelay.yaml", COMPOSE / "watchrelay.yaml"],
    ids=["example", "compose"],
)
def test_the_config_is_good(file: Path) -> None:
    assert load_settings(str(file), environ={}).resources


def test_every_file_that_a_kustomization_names_is_there_and_the_other_way_round() -> None:
    base, example = (
        _yaml(DEPLOY / "base" / "kustomization.yaml"),
        _yaml(DEPLOY / "example" / "kustomization.yaml"),
    )
    assert {path.name for path in (DEPLOY / "base").iterdir()} == {
        "kustomization.yaml",
        *base["resources"],
    }
    named = {
        *example["resources"],
        *(each.partition("=")[2] for each in example["configMapGenerator"][0]["files"]),
    } - {"../base"}
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
    files = [
        DEPLOY / "base" / "deployment.yaml",
        DEPLOY / "base" / "service.yaml",
        DEPLOY / "example" / "namespace.yaml",
    ]
    done = run(
        python_program("kubernetes-validate"),
        "--strict",
        "-k",
        "1.36",
        *files,
        DEPLOY / "example" / "rbac.yaml",
    )
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


def test_compose_is_as_its_specification_says(tmp_path: Path) -> None:
    assert by_schema("compose-spec", COMPOSE / "compose.yaml") == ""
    wrong = tmp_path / "compose.yaml"
    wrong.write_text(
        (COMPOSE / "compose.yaml").read_text().replace("cap_drop: [ALL]", "cap_dropp: [ALL]")
    )
    assert "cap_dropp" in by_schema("compose-spec", wrong), "a check that finds nothing"


def test_every_image_is_named_by_a_version_or_a_digest() -> None:
    composed = [
        service["image"] for service in _yaml(COMPOSE / "compose.yaml")["services"].values()
    ]
    deployed = [
        each["image"]
        for each in _yaml(DEPLOY / "base" / "deployment.yaml")["spec"]["template"]["spec"][
            "containers"
        ]
    ]
    assert [
        each
        for each in [*composed, *deployed]
        if not re.search(r":v?\d+\.\d+\.\d+$|@sha256:[0-9a-f]{64}$", each)
    ] == []


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


def test_strimzis_objects_have_the_fields_that_its_operators_know() -> None:
    """Source: the CRDs of Strimzi 1.2, with which an API server took these files; its v1 began with
    0.49."""
    user, topics = (
        _yaml(DEPLOY / "strimzi" / "user.yaml"),
        list(yaml.safe_load_all((DEPLOY / "strimzi" / "topics.yaml").read_text())),
    )
    for each in (user, *topics):
        assert each["apiVersion"] == "kafka.strimzi.io/v1"
        assert "strimzi.io/cluster" in each["metadata"]["labels"]
    assert user["kind"] == "KafkaUser"
    assert set(user["spec"]) == {"authentication", "authorization"}
    assert (user["spec"]["authentication"], user["spec"]["authorization"]["type"]) == (
        {"type": "tls"},
        "simple",
    )
    for acl in user["spec"]["authorization"]["acls"]:
        assert set(acl) == {"resource", "operations"}
        assert set(acl["operations"]) <= {"Read", "Write", "Create", "Describe", "DescribeConfigs"}
    for topic in topics:
        assert topic["kind"] == "KafkaTopic"
        assert set(topic["spec"]) == {"partitions", "replicas", "config"}
        assert all(isinstance(value, str) for value in topic["spec"]["config"].values())


def test_strimzis_user_and_the_documentation_name_the_rights_that_a_relay_is_shown_to_need_and_no_more() -> (
    None
):
    """tests/integration/test_kafka_rights_real.py shows it on a broker that denies all else."""
    spec = _yaml(DEPLOY / "strimzi" / "user.yaml")["spec"]
    acls = spec["authorization"]["acls"]
    wanted = sorted(
        [
            *(("Topic", PREFIX, right) for right in names(RIGHTS)),
            ("Group", PREFIX, "READ"),
            *(("TransactionalId", PREFIX, right) for right in names(TRANSACTION_RIGHTS)),
        ]
    )
    assert {each["resource"]["patternType"] for each in acls} == {"prefix"}
    assert sorted(
        (_KINDS[each["resource"]["type"]], each["resource"]["name"], operation.upper())
        for each in acls
        for operation in each["operations"]
    ) == sorted((kind, name, right.replace("_", "")) for kind, name, right in wanted)
    rows = re.findall(
        r"^\| (\w+) `(.*?)` \(prefix\) ([A-Z_]+) \|",
        (ROOT / "docs" / "install.md").read_text(),
        re.MULTILINE,
    )
    assert sorted(rows) == wanted


def test_the_image_is_built_of_what_the_docker_ignore_lets_in() -> None:
    let_in = {
        line[1:]
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    copied = {
        word
        for line in re.findall(
            r"^COPY (?!--from)(.*) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE
        )
        for word in line.split()
    }
    assert copied == let_in


def _pins(name: str) -> dict[str, str]:
    return dict(
        re.findall(
            r"^([\w.-]+)==([\w.]+)",
            (ROOT / "requirements" / f"{name}.txt").read_text(),
            re.MULTILINE,
        )
    )


def test_the_image_holds_what_every_key_of_the_config_needs_in_the_versions_that_are_tested() -> (
    None
):
    run, image, dev = _pins("run"), _pins("image"), _pins("dev")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    named = {
        re.split(r"[\[<>=]", requirement)[0]
        for requirements in extras.values()
        for requirement in requirements
    }
    assert run.items() <= image.items()
    assert named <= image.keys()
    assert {name: image[name] for name in image.keys() & dev.keys()} == {
        name: dev[name] for name in image.keys() & dev.keys()
    }
    signer = {
        "aws-msk-iam-sasl-signer-python",
        "boto3",
        "botocore",
        "jmespath",
        "python-dateutil",
        "s3transfer",
    }
    assert image.keys() - dev.keys() <= signer | {"click", "six", "urllib3"}, (
        "only what signs for AWS is tried in the image alone"
    )


@pytest.mark.usefixtures("tools")
def test_hadolint_finds_nothing_in_the_dockerfile() -> None:
    done = run(python_program("hadolint"), ROOT / "Dockerfile")
    assert done.returncode == 0, done.stdout + done.stderr
