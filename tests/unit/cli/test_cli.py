"""The command line: what is printed where, and every exit code."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.support.daemon import command as run_program
from tests.unit.cli.conftest import GOOD
from watchrelay import __version__
from watchrelay.cli import main as cli
from watchrelay.cli.main import COMMANDS
from watchrelay.cli.options import Command
from watchrelay.core.errors import (
    Fenced,
    Forbidden,
    SinkError,
    SinkMisconfigured,
    SinkUnavailable,
    Unauthorized,
    Unavailable,
)

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def command(config: Path) -> Callable[[Callable[[], int]], int]:
    """Runs `watchrelay topics` with a body of the test's own."""

    def run(body: Callable[[], int]) -> int:
        return cli.main(["topics", "-c", str(config)], {"topics": topics(body)})

    return run


def topics(body: Callable[[], int]) -> Command:
    return COMMANDS["topics"]._replace(run=lambda **_: body())


def raising(error: BaseException) -> Callable[[], int]:
    def body() -> int:
        raise error

    return body


def test_a_good_config_is_explained_on_stdout(config: Path, capsys: Captured) -> None:
    assert cli.main(["validate", "-c", str(config)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "  pods@shop -> k8s.c.core.pods, namespace shop" in out
    assert "  k8s.c.core.events, 1 partition" in out
    assert f"warning: {config}:5: resources[1].resource: ev means events here" in out


def test_a_bad_config_is_78_with_every_problem_on_stderr(config: Path, capsys: Captured) -> None:
    config.write_text("clustr: c\nresources: []\n")
    assert cli.main(["validate", "-c", str(config)]) == 78
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        f"{config}:1: cluster: is required (name the source, such as cluster: prod-eu-1)",
        f"{config}:1: kafka: is required (it needs at least bootstrapServers)",
        f"{config}:1: clustr: unknown key (did you mean cluster?)",
        f"{config}:2: resources: must not be empty (write at least one item)",
    ]


def test_a_missing_file_is_78_and_so_is_a_bad_value_of_set(config: Path, capsys: Captured) -> None:
    assert cli.main(["validate", "-c", "nope.yaml"]) == 78
    assert cli.main(["validate", "-c", str(config), "--set", "kafka.partitions=many"]) == 78
    assert cli.main(["validate"]) == 78
    assert "no config file" in capsys.readouterr().err


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["vaildate"],
        ["validate", "--set", "kafka.partitions"],
        ["tail", "--output", "xml"],
        ["rbac", "--service-account", "x"],
        ["rbac", "--service-account", "a.b/x"],
        ["rbac", "--service-account", "a" * 64 + "/x"],
        ["demo", "--kafka", "somewhere"],
        ["snapshot", "--timeout", "5"],
        ["snapshot", "--timeout", "0"],
        ["retire"],
        ["retire", ""],
        ["tail", ""],
        ["verify", "pods", " "],
        ["snapshot", ""],
        ["demo", "--kubeconfig", ""],
        ["demo", "--kafka", ""],
        ["validate", "--set", ""],
        ["validate", "--set", "=x"],
        ["asyncapi", "--output", "xml"],
        ["run", "-x"],
    ],
)
def test_wrong_usage_is_2_and_points_to_help(argv: list[str], capsys: Captured) -> None:
    assert cli.main(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "--help" in err


@pytest.mark.parametrize("blank", ["", " "])
def test_an_empty_path_is_no_way_to_say_the_default_file(
    config: Path, blank: str, capsys: Captured
) -> None:
    config.rename(config.with_name("watchrelay.yaml"))
    message = "-c: the path is empty (name the config file, or leave it out for the usual places)\n"
    assert cli.main(["validate", "-c", blank]) == 78
    assert capsys.readouterr() == ("", message)
    done = run_program("run", "-c", blank)
    assert (done.code, done.stdout, done.stderr) == (78, "", message)


def test_an_empty_variable_is_one_that_is_not_set(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    config.rename(config.with_name("watchrelay.yaml"))
    monkeypatch.setenv("WATCHRELAY_CONFIG", "")
    assert cli.main(["validate"]) == 0
    monkeypatch.setenv("WATCHRELAY_CONFIG", " ")
    assert cli.main(["validate"]) == 78
    assert capsys.readouterr().err.startswith("WATCHRELAY_CONFIG: the path is empty")


def test_a_path_that_no_system_takes_is_one_line(capsys: Captured) -> None:
    assert cli.main(["validate", "-c", "x" * 300]) == 78
    assert capsys.readouterr().err == f"{'x' * 300}: cannot be read: File name too long\n"


def test_the_demo_makes_no_trouble_for_what_is_real(capsys: Captured) -> None:
    assert cli.main(["demo", "--trouble", "--kafka", "k:9092"]) == 2
    assert "--trouble hurts nothing real" in capsys.readouterr().err


def test_the_demo_does_not_wait_for_a_kubeconfig_that_is_not_there(capsys: Captured) -> None:
    assert cli.main(["demo", "--kubeconfig", "nope"]) == 78
    assert capsys.readouterr().err == "nope: there is no such file (named by --kubeconfig)\n"


def test_a_kubeconfig_that_may_not_be_looked_at_is_one_line_of_the_demo(
    tmp_path: Path, capsys: Captured
) -> None:
    (tmp_path / "loop").symlink_to("loop")
    for named, why in (
        (f"{tmp_path}/loop", "Too many levels of symbolic links"),
        ("x" * 300, "File name too long"),
    ):
        assert cli.main(["demo", "--kubeconfig", named]) == 78
        assert (
            capsys.readouterr().err == f"{named}: cannot be read: {why} (named by --kubeconfig)\n"
        )


def test_help_names_every_command_where_settings_come_from_and_the_exit_codes(
    capsys: Captured,
) -> None:
    assert cli.main(["--help"]) == 0
    out = capsys.readouterr().out
    for word in (
        "run",
        "validate",
        "demo",
        "tail",
        "snapshot",
        "retire",
        "topics",
        "rbac",
        "asyncapi",
        "schema",
        "version",
        "WATCHRELAY_CONFIG",
        "--set",
        "exit codes",
        "78",
    ):
        assert word in out
    for name in (
        "run",
        "validate",
        "demo",
        "tail",
        "snapshot",
        "retire",
        "topics",
        "rbac",
        "asyncapi",
        "schema",
        "version",
    ):
        assert cli.main([name, "--help"]) == 0


def test_version_is_plain_or_json(capsys: Captured) -> None:
    assert cli.main(["version"]) == 0
    assert cli.main(["--version"]) == 0
    assert cli.main(["version", "--json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [f"watchrelay {__version__}"] * 2
    assert json.loads(lines[2])["version"] == __version__


def test_schema_prints_a_json_schema(capsys: Captured) -> None:
    assert cli.main(["schema"]) == 0
    assert json.loads(capsys.readouterr().out)["properties"]["cluster"]["type"] == "string"


def test_rbac_prints_manifests_for_kubectl(config: Path, capsys: Captured) -> None:
    config.write_text(GOOD + '  - {resource: "*.example.com"}\n')
    assert cli.main(["rbac", "-c", str(config), "--service-account", "ops/relay"]) == 0
    out = capsys.readouterr().out
    made = list(yaml.safe_load_all(out))
    assert [manifest["kind"] for manifest in made] == [
        "ServiceAccount",
        "ClusterRole",
        "ClusterRoleBinding",
        "Role",
        "RoleBinding",
    ]
    assert {
        verb for manifest in made for rule in manifest.get("rules", []) for verb in rule["verbs"]
    } == {"list", "watch"}
    assert '# "*.example.com" in the config: every resource of example.com' in out
    assert "&id" not in out


def test_rbac_of_a_name_that_only_a_cluster_knows_is_78_with_the_cure(
    config: Path, capsys: Captured
) -> None:
    config.write_text(GOOD + "  - {resource: widgets}\n")
    assert cli.main(["rbac", "-c", str(config)]) == 78
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(
        f'{config}:6: resources[2].resource: "widgets" is not built into Kubernetes'
    )
    assert "write it as plural.group" in err


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (SinkUnavailable("no broker answers"), 69, "watchrelay: no broker answers"),
        (Unavailable("connection refused"), 69, "watchrelay: connection refused"),
        (Fenced("a newer relay writes pods"), 75, "watchrelay: a newer relay writes pods"),
        (SinkError("what"), 1, "watchrelay: what"),
        (Forbidden("no right to list pods"), 78, "watchrelay: no right to list pods"),
        (Unauthorized("the token is not known"), 78, "watchrelay: the token is not known"),
        (SinkMisconfigured("the broker refused the credentials"), 78, "watchrelay: the broker refused the credentials"),
        (KeyboardInterrupt(), 130, ""),
        (
            ExceptionGroup(
                "of tasks", [ExceptionGroup("inner", [SinkUnavailable("no broker answers")])]
            ),
            69,
            "watchrelay: no broker answers",
        ),
        (BaseExceptionGroup("of tasks", [KeyboardInterrupt()]), 130, ""),
    ],
)  # fmt: skip
def test_errors_become_exit_codes(
    command: Callable[[Callable[[], int]], int],
    error: BaseException,
    code: int,
    message: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert command(raising(error)) == code
    assert capfd.readouterr().err.strip() == message


def test_an_unexpected_error_is_one_line_and_its_traceback_only_at_debug(
    command: Callable[[Callable[[], int]], int], capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command(raising(ExceptionGroup("many", [ValueError("boom\nbang")]))) == 1
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert err.startswith("watchrelay: internal error: ValueError: boom bang; please report it")
    monkeypatch.setenv("WATCHRELAY_OBSERVE__LOG_LEVEL", "debug")
    assert command(raising(ValueError("boom"))) == 1
    assert "Traceback" in capsys.readouterr().err


def test_a_file_name_never_breaks_the_line(capsys: Captured) -> None:
    assert cli.main(["validate", "-c", "a\n\x1b[31mb"]) == 78
    assert capsys.readouterr().err == "a\\n\\u001b[31mb: there is no such file (named by -c)\n"


def test_verify_and_tail_say_in_the_same_plain_words_that_no_broker_answers(
    config: Path, capsys: Captured
) -> None:
    for command in (["verify"], ["tail", "--until-end"]):
        assert (
            cli.main([*command, "-c", str(config), "--set", "kafka.bootstrapServers=127.0.0.1:1"])
            == 69
        )
        last = capsys.readouterr().err.splitlines()[-1]
        assert last == (
            "watchrelay: kafka at 127.0.0.1:1 is not usable: no broker answers: Connect call failed "
            "(nothing listens there: does the broker run, and is kafka.bootstrapServers right?)"
        )


def test_help_and_version_import_nothing_heavy() -> None:
    code = (
        "import sys; from watchrelay.cli.main import main; main(['--version']); main(['--help']); "
        "heavy = {'asyncio', 'pydantic', 'yaml', 'aiohttp', 'aiokafka', 'msgspec', "
        "'logging', 'json'} & set(sys.modules); "
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_another_version_of_a_built_in_resource_is_no_unknown_name(
    config: Path, capsys: Captured
) -> None:
    config.write_text(GOOD + "  - {resource: pods/v7, id: x, topic: other}\n")
    assert cli.main(["validate", "-c", "w.yaml"]) == 0
    out = capsys.readouterr().out
    assert "Kubernetes 1.36 does not serve pods in v7 (it does in v1)" in out
    assert "not built into" not in out


def test_the_manifests_say_which_namespaces_they_need(config: Path, capsys: Captured) -> None:
    assert cli.main(["rbac", "-c", "w.yaml"]) == 0
    printed = capsys.readouterr().out
    assert "# These namespaces must exist before: watchrelay, shop" in printed
    assert "kubectl create namespace shop" in printed
