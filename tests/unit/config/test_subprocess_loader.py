"""Room: config.  In: good and bad files, read by a child process.  Out: the same values as read
here, the same problems, no pydantic."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from watchrelay.config import Settings, load_settings
from watchrelay.config.subprocess_loader import Asked, ConfigReader, Values, plain
from watchrelay.core.errors import ConfigError
from watchrelay.daemon.plan import config_hash

EVERYTHING = """\
cluster: prod
kubernetes: {context: there}
kafka:
  bootstrapServers: [a:9092, b:9092]
  security: {protocol: SASL_SSL, mechanism: PLAIN, username: u, password: hunter2}
defaults: {pageSize: 100}
resources:
- resource: pods
- {resource: secrets, namespaces: [a, b], drop: [data.extra], snapshotInterval: 10m}
observe: {logLevel: debug}
"""


def written(tmp_path: Path, text: str) -> str:
    file = tmp_path / "watchrelay.yaml"
    file.write_text(text)
    return str(file)


def same(here: Any, there: Any) -> bool:
    """Each field of the checked settings has its like in the plain ones, at every depth."""
    if isinstance(there, Values):
        names = set(type(here).model_fields)
        return names == set(vars(there)) and all(
            same(getattr(here, name), getattr(there, name)) for name in names
        )
    if isinstance(here, tuple):
        return len(here) == len(there) and all(map(same, here, there))
    if hasattr(here, "get_secret_value"):
        return bool(here.get_secret_value() == there.get_secret_value())
    return type(here) is type(there) and here == there


def test_the_child_reads_every_value_as_it_is_read_here(tmp_path: Path) -> None:
    file = written(tmp_path, EVERYTHING)
    sets = ["kafka.topicPrefix=x", "resources[0].labelSelector=app=web"]
    there = ConfigReader.start(Asked(file, sets)).settings()
    here = load_settings(file, sets)
    assert same(here, there)
    assert (there.kafka.topic_prefix, there.resources[0].label_selector) == ("x", "app=web")


def test_the_child_sees_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATCHRELAY_CONFIG", written(tmp_path, EVERYTHING))
    monkeypatch.setenv("WATCHRELAY_KAFKA__PARTITIONS", "3")
    assert ConfigReader.start(Asked(None, [])).settings().kafka.partitions == 3


def test_every_problem_comes_back_as_it_would_be_said_here(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        EVERYTHING.replace("cluster: prod", "clustr: prod") + "shutdown: {drainTimeout: soon}\n",
    )
    with pytest.raises(ConfigError) as there:
        ConfigReader.start(Asked(file, [])).settings()
    with pytest.raises(ConfigError) as here:
        load_settings(file, [])
    assert len(there.value.problems) >= 2
    assert there.value.problems == here.value.problems


@pytest.mark.parametrize(
    "executable",
    ["/nonexistent/python", None, "/bin/false", "/bin/echo"],
    ids=["cannot be started", "not known", "fails", "says something else"],
)
def test_where_no_process_can_read_the_config_it_is_read_here(
    tmp_path: Path, executable: str | None
) -> None:
    file = written(tmp_path, EVERYTHING)
    assert same(
        load_settings(file, []),
        ConfigReader.start(Asked(file, []), executable=executable).settings(),
    )


def test_a_file_that_is_open_for_this_program_alone_is_read_as_process_substitution_gives_it() -> (
    None
):
    reading, writing = os.pipe()
    os.set_inheritable(reading, True)
    os.write(writing, EVERYTHING.encode())
    os.close(writing)
    assert ConfigReader.start(Asked(f"/dev/fd/{reading}", [])).settings().cluster == "prod"
    os.close(reading)


def test_modules_of_the_working_directory_are_none_of_the_childs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(tmp_path, EVERYTHING)
    for name in ("yaml", "json", "watchrelay"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    assert ConfigReader.start(Asked(file, [])).settings().cluster == "prod"
    assert not (tmp_path / "imported").exists()


def test_a_python_that_talks_when_it_starts_is_listened_past(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('hello')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert ConfigReader.start(Asked(written(tmp_path, EVERYTHING), [])).settings().cluster == "prod"


def test_plain_settings_are_frozen_equal_by_value_and_show_no_password(tmp_path: Path) -> None:
    settings = load_settings(written(tmp_path, EVERYTHING), [])
    one, two = plain(settings), plain(settings)
    assert one == two
    assert hash(one) == hash(two)
    assert one != plain(load_settings(written(tmp_path, EVERYTHING), ["cluster=other"]))
    assert "hunter2" not in repr(one)
    with pytest.raises(AttributeError, match="frozen"):
        one.cluster = "other"


def test_an_edit_is_compared_by_the_child_with_the_settings_in_force(tmp_path: Path) -> None:
    file = written(tmp_path, EVERYTHING)
    held = ConfigReader.start(Asked(file, [])).settings()
    same_again = ConfigReader.start(Asked(file, [], held=held, connected=True)).edit()
    assert (same_again.settings, same_again.kept) == (held, ())
    assert held.kafka.security.password is not None
    written(
        tmp_path,
        EVERYTHING.replace("hunter2", "hunter3").replace("- resource: pods", "- resource: nodes"),
    )
    edit = ConfigReader.start(Asked(file, [], held=held, connected=True)).edit()
    assert [entry.resource for entry in edit.settings.resources] == ["nodes", "secrets"]
    assert edit.kept == ("kafka.security.password",)
    assert edit.settings.kafka == held.kafka
    assert [
        str(place).startswith(f"{file}:{line}: ")
        for place, line in zip(edit.places, (8, 9), strict=True)
    ] == [True, True]
    with pytest.raises(ConfigError, match="clustr"):
        ConfigReader.start(
            Asked(written(tmp_path, EVERYTHING.replace("cluster:", "clustr:")), [], held=held)
        ).edit()


def test_the_hash_of_a_config_is_the_same_whoever_read_it_and_another_for_another_config(
    tmp_path: Path,
) -> None:
    file = written(tmp_path, EVERYTHING)
    settings = load_settings(file, [])
    assert config_hash(settings) == config_hash(plain(settings))
    others: list[Settings] = [
        load_settings(file, [change]) for change in ("cluster=other", "resources[1].pageSize=7")
    ]
    assert len({config_hash(each) for each in (settings, *others)}) == 3
    assert config_hash(load_settings(file, ["kafka.security.password=other"])) == config_hash(
        settings
    )


def test_the_daemon_loads_neither_pydantic_nor_what_checks_a_config() -> None:
    asked = (
        "import json, sys, watchrelay.cli.run, watchrelay.daemon.daemon; "
        "print(json.dumps(sorted(sys.modules)))"
    )
    out = subprocess.run(
        [sys.executable, "-c", asked], capture_output=True, check=True, env=dict(os.environ)
    ).stdout
    loaded = set(json.loads(out))
    assert "watchrelay.daemon.daemon" in loaded
    of_the_config = {name for name in loaded if name.startswith(("pydantic", "watchrelay.config."))}
    assert of_the_config == {
        f"watchrelay.config.{name}" for name in ("locate", "streams", "subprocess_loader", "tree")
    }, "tree reads kubeconfigs, too"
