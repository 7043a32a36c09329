"""File, environment and `--set`: which wins, how values are written in each, what is reported when
they are wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from watchrelay.config import Settings, load, load_settings, parse_set
from watchrelay.core.errors import ConfigError

FILE = """\
cluster: file
kafka:
  bootstrapServers: [file:9092]
  partitions: 3
resources:
  - resource: pods
    labelSelector: app=web
  - resource: nodes
"""


@pytest.fixture
def config(tmp_path: Path) -> str:
    file = tmp_path / "w.yaml"
    file.write_text(FILE)
    return str(file)


def refusal(config: str | None, *sets: str, **environ: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_settings(config, sets, environ=environ)
    return str(caught.value)


def test_the_environment_wins_over_the_file_and_set_over_both(config: str) -> None:
    environ = {"WATCHRELAY_CLUSTER": "env", "WATCHRELAY_KAFKA__PARTITIONS": "4"}
    settings = load_settings(config, ["kafka.partitions=5"], environ=environ)
    assert (settings.cluster, settings.kafka.partitions, settings.kafka.bootstrap_servers) == (
        "env",
        5,
        ("file:9092",),
    )


def test_values_in_the_environment_are_read_by_what_the_key_is(config: str) -> None:
    environ = {
        "WATCHRELAY_CLUSTER": "007",
        "WATCHRELAY_KAFKA__BOOTSTRAP_SERVERS": "a:1, b:2",
        "WATCHRELAY_KAFKA__CREATE_TOPICS": "False",
        "WATCHRELAY_HEARTBEAT_INTERVAL": "2s",
        "WATCHRELAY_KAFKA__SECURITY": '{"protocol": "SSL", "caFile": "/ca"}',
        "WATCHRELAY_DEFAULTS__SNAPSHOT_INTERVAL": "0",
        "WATCHRELAY_RESOURCES__1__EXCLUDE_NAMESPACES": '["kube-system"]',
        "WATCHRELAY_RESOURCES__2__RESOURCE": "services",
    }
    settings = load_settings(config, environ=environ)
    assert settings.cluster == "007"
    assert settings.kafka.bootstrap_servers == ("a:1", "b:2")
    assert settings.kafka.create_topics is False
    assert settings.heartbeat_interval_s == 2.0
    assert (settings.kafka.security.protocol, settings.kafka.security.ca_file) == ("SSL", "/ca")
    assert [entry.snapshot_interval_s for entry in settings.resources] == [0.0, 0.0, 0.0]
    assert settings.resources[1].exclude_namespaces == ("kube-system",)
    assert [entry.resource for entry in settings.resources] == ["pods", "nodes", "services"]


def test_values_of_set_are_yaml_and_lists_may_have_commas(config: str) -> None:
    settings = load_settings(
        config,
        [
            "cluster=123",
            "kafka.bootstrapServers=a:1,b:2",
            "resources[0].labelSelector=app=db,tier in (a, b)",
            "resources.1.drop=[status, metadata.labels]",
            "resources.1.namespaces=",
            "kafka.security={protocol: SSL}",
            'kafka.topicPrefix="quoted"',
            "resources.2={resource: services, pageSize: 7}",
        ],
        environ={},
    )
    assert settings.cluster == "123"
    assert settings.kafka.bootstrap_servers == ("a:1", "b:2")
    assert settings.resources[0].label_selector == "app=db,tier in (a, b)"
    assert settings.resources[1].drop == ("status", "metadata.labels")
    assert settings.resources[1].namespaces == ()
    assert settings.kafka.security.protocol == "SSL"
    assert settings.kafka.topic_prefix == "quoted"
    assert settings.resources[2].page_size == 7


def test_everything_can_be_set_without_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    environ = {
        "WATCHRELAY_CLUSTER": "c",
        "WATCHRELAY_KAFKA__BOOTSTRAP_SERVERS": "k:9092",
        "WATCHRELAY_RESOURCES": '[{"resource": "pods"}]',
    }
    loaded = load(environ=environ)
    assert (loaded.file, loaded.settings.cluster) == (None, "c")
    del environ["WATCHRELAY_RESOURCES"]
    message = refusal(None, **environ)
    assert message.startswith("no config file (")
    assert "resources: is required" in message


def test_the_file_is_the_one_of_c_then_of_the_variable_then_of_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("one", "two", "watchrelay"):
        (tmp_path / f"{name}.yaml").write_text(FILE.replace("cluster: file", f"cluster: {name}"))
    assert load_settings("one.yaml", environ={"WATCHRELAY_CONFIG": "two.yaml"}).cluster == "one"
    assert load_settings(environ={"WATCHRELAY_CONFIG": "two.yaml"}).cluster == "two"
    assert load_settings(environ={}).cluster == "watchrelay"


def test_unknown_variables_are_refused_with_the_nearest_name(config: str) -> None:
    assert (
        refusal(config, WATCHRELAY_KAFKA__TOPIC_PREFX="x")
        == "WATCHRELAY_KAFKA__TOPIC_PREFX: is not a setting"
        " (did you mean WATCHRELAY_KAFKA__TOPIC_PREFIX?)"
    )
    assert "did you mean WATCHRELAY_CLUSTER?" in refusal(config, WATCHRELAY_CLUSTR="x")
    assert "did you mean WATCHRELAY_RESOURCES__0__TOPIC?" in refusal(
        config, WATCHRELAY_RESOURCES__1__TOPICS="x"
    )
    assert "is not a setting" in refusal(config, WATCHRELAY_ZZZZ="x")


def test_what_the_kubelet_says_of_a_service_named_watchrelay_is_no_setting(config: str) -> None:
    environ = {
        "WATCHRELAY_SERVICE_HOST": "10.0.0.1",
        "WATCHRELAY_SERVICE_PORT": "8080",
        "WATCHRELAY_SERVICE_PORT_HTTP": "8080",
        "WATCHRELAY_PORT": "tcp://10.0.0.1:8080",
        "WATCHRELAY_PORT_8080_TCP": "tcp://10.0.0.1:8080",
        "WATCHRELAY_PORT_8080_TCP_ADDR": "10.0.0.1",
        "WATCHRELAY_METRICS_SERVICE_HOST": "10.0.0.1",
        "WATCHRELAY_METRICS_PORT_80_TCP_PROTO": "tcp",
        "WATCHRELAY_TOOLS": "/cache",
    }
    assert load_settings(config, environ=environ).cluster == "file"


@pytest.mark.parametrize("name", ["watchrelay_kafka__partitions", "Watchrelay_Kafka__Partitions"])
def test_a_setting_in_lower_case_is_refused(config: str, name: str) -> None:
    """It would be passed over without a word: names of variables are case-sensitive."""
    assert refusal(config, **{name: "3"}) == (
        f"{name}: is not a setting (names are in upper case: WATCHRELAY_KAFKA__PARTITIONS)"
    )
    load_settings(config, environ={"watchrelay_home": "/somewhere"})  # of another program


def test_a_wrong_value_names_its_source_instead_of_a_line(config: str) -> None:
    assert refusal(config, WATCHRELAY_KAFKA__PARTITIONS="many") == (
        'WATCHRELAY_KAFKA__PARTITIONS: kafka.partitions: must be a whole number, not "many"'
    )
    assert refusal(config, WATCHRELAY_RESOURCES="pods") == (
        "WATCHRELAY_RESOURCES: resources: must be a list, not a single value"
        " (write a list, such as - resource: pods)"
    )
    assert (
        refusal(config, "kafka.partitons=1")
        == "--set: kafka.partitons: unknown key (did you mean partitions?)"
    )
    assert refusal(config, "resources[9].name=x") == (
        "--set: resources[9].name: there is no [9]: resources has 2 entries, the first is 0"
    )
    assert (
        refusal(config, "resources.name=x")
        == "--set: resources.name: resources has no keys: write resources[0]"
    )
    assert refusal(config, "kafka[0]=x") == "--set: kafka[0]: kafka has no items"
    assert refusal(config, "cluster.x=1") == "--set: cluster.x: cluster has no keys"


def test_bytes_that_are_no_text_are_refused_by_the_name_of_their_source(config: str) -> None:
    bytes_as_python_has_them = "a\udcff"
    assert refusal(config, f"cluster={bytes_as_python_has_them}") == "--set: cluster: is not UTF-8"
    assert (
        refusal(config, WATCHRELAY_CLUSTER=bytes_as_python_has_them)
        == "WATCHRELAY_CLUSTER: cluster: is not UTF-8"
    )


def test_a_value_that_is_overridden_is_not_complained_of(config: str, tmp_path: Path) -> None:
    (tmp_path / "w.yaml").write_text(FILE.replace("partitions: 3", "partitions: many"))
    assert load_settings(config, ["kafka.partitions=2"], environ={}).kafka.partitions == 2


def test_sections_are_overlaid_key_by_key_and_lists_as_a_whole(config: str, tmp_path: Path) -> None:
    (tmp_path / "w.yaml").write_text(
        FILE.replace(
            "  partitions: 3",
            "  security: {protocol: SSL, caFile: /file, certFile: /c, keyFile: /k}",
        )
    )
    environ = {
        "WATCHRELAY_KAFKA__SECURITY": '{"caFile": "/env"}',
        "WATCHRELAY_RESOURCES": '[{"resource": "services", "pageSize": 7}]',
    }
    settings = load_settings(
        config, ["kafka.security.certFile=/set", "resources[0].pageSize=8"], environ=environ
    )
    security = settings.kafka.security
    assert (security.protocol, security.ca_file, security.cert_file, security.key_file) == (
        "SSL",
        "/env",
        "/set",
        "/k",
    )
    assert [
        (entry.resource, entry.page_size, entry.label_selector) for entry in settings.resources
    ] == [("services", 8, "")]
    assert (
        load_settings(config, ["kafka.security=null"], environ={}).kafka.security.protocol
        == "PLAINTEXT"
    )


def test_the_source_of_each_value_survives_the_overlay(config: str, tmp_path: Path) -> None:
    (tmp_path / "w.yaml").write_text(
        FILE.replace("  partitions: 3", "  security: {protocol: SSL, caFile: 1}\nobserve: text")
    )
    environ = {
        "WATCHRELAY_KAFKA__SECURITY": '{"certFile": 2}',
        "WATCHRELAY_OBSERVE__LOG_LEVEL": "debug",
        "WATCHRELAY_RESOURCES__1__PAGE_SIZE": "many",
    }
    assert refusal(config, "resources[0].labelSelector=a b", **environ).replace(
        f"{tmp_path}/", ""
    ).splitlines() == [
        "w.yaml:4: kafka.security.caFile: must be text, not 1 (put it in quotes)",
        "w.yaml:5: observe: must be a mapping of keys, not a single value",
        (
            "WATCHRELAY_KAFKA__SECURITY: kafka.security.certFile: must be text, not 2 (put it in "
            "quotes)"
        ),
        "WATCHRELAY_OBSERVE__LOG_LEVEL: observe.logLevel: observe has no keys",
        (
            "WATCHRELAY_RESOURCES__1__PAGE_SIZE: resources[1].pageSize: must be a whole number, "
            'not "many"'
        ),
        (
            '--set: resources[0].labelSelector: "a b" is not a label selector: write terms such '
            "as app=web, tier in (a,b) or !canary with commas between them, or leave the key out "
            "to take all objects"
        ),
    ]


def test_the_librarys_own_sources_are_not_asked(
    config: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLUSTER", "process")
    monkeypatch.setenv("WATCHRELAY_CLUSTER", "process")
    (tmp_path / ".env").write_text("CLUSTER=dotenv\n")
    assert load_settings(config, environ={}).cluster == "file"


def test_the_form_of_set_is_checked_apart_from_its_value() -> None:
    assert parse_set("resources[0].labelSelector=a=b") == (("resources", 0, "labelSelector"), "a=b")
    assert parse_set("resources.0.name=") == (("resources", 0, "name"), "")
    for wrong in ("kafka.partitions", "=x", "kafka..x=1", "0=1", "a-b=1", "a[x]=1"):
        with pytest.raises(ValueError, match=r"is not path\.to\.key=VALUE"):
            parse_set(wrong)


@pytest.mark.parametrize(
    "name",
    ["a" + ".a" * 3000, f"resources[{'9' * 5000}].id", "resources[٣].id", "a" + "[0]" * 3000],
)
def test_a_path_without_end_or_an_index_of_other_digits_is_no_path(name: str) -> None:
    with pytest.raises(ValueError, match=r"is not path\.to\.key=VALUE"):
        parse_set(f"{name}=1")


@pytest.mark.parametrize("index", ["9" * 5000, "٣", ""])
def test_an_index_of_a_variable_that_is_no_number_is_no_setting(config: str, index: str) -> None:
    with pytest.raises(ConfigError, match="is not a setting"):
        load_settings(config, environ={f"WATCHRELAY_RESOURCES__{index}__ID": "x"})


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("kafka.bootstrapServers", f"kafka:{'0' * 5000}", "is not host:port"),
        ("observe.listen", f":{'0' * 5000}", "is not host:port"),
        ("kafka.bootstrapServers", "kafka..svc:9092", "is not host:port"),
        ("kafka.bootstrapServers", f"{'a' * 64}.svc:9092", "is not host:port"),
        ("observe.listen", "a..b:8080", "is not host:port"),
        ("heartbeatInterval", f"{'9' * 5000}d", "is not a duration"),
    ],
)
def test_a_number_of_thousands_of_digits_or_a_host_that_cannot_be_is_refused_in_words_of_our_own(
    config: str, key: str, value: str, expected: str
) -> None:
    with pytest.raises(ConfigError, match=expected):
        load_settings(config, [f"{key}={value}"], environ={})


def test_an_empty_section_is_a_section_left_out(tmp_path: Path) -> None:
    file = tmp_path / "w.yaml"
    file.write_text(FILE + "kubernetes:\ndefaults:\nobserve:\n")
    assert load_settings(str(file), environ={}).observe.log_level == "info"


def test_anchors_and_merge_keys_work_in_files(tmp_path: Path) -> None:
    file = tmp_path / "w.yaml"
    file.write_text(
        "cluster: c\nkafka: {bootstrapServers: [k:1]}\nresources:\n"
        "  - &a {resource: pods, pageSize: 7, namespaces: [x]}\n  - {<<: *a, resource: "
        "nodes, namespaces: []}\n"
    )
    second = load_settings(str(file), environ={}).resources[1]
    assert (second.resource, second.page_size, second.namespaces) == ("nodes", 7, ())


def test_code_uses_snake_case_and_files_do_not(config: str) -> None:
    base = load_settings(config, environ={})
    alias: Any = {"heartbeatInterval": "2s"}
    settings = Settings(cluster="x", kafka=base.kafka, resources=base.resources, **alias)
    assert settings.heartbeat_interval_s == 2.0
    assert refusal(config, WATCHRELAY_heartbeat_interval="2s") == (
        "WATCHRELAY_heartbeat_interval: is not a setting (see `watchrelay schema` for the keys; "
        "WATCHRELAY_A__B sets a.b)"
    )
