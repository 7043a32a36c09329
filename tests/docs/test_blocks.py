"""Every fenced block of every page: proof that each is held true by something, and that what can be
judged without running it is right."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.docpages import Block, all_blocks
from tests.support.metricnames import unknown_names
from tests.support.shellwords import complaints
from tools.docs.pages import ROOT
from watchrelay.config import load_settings

BLOCKS = all_blocks()
VERBS = {
    "text": {"prints", ""},
    "sh": {"run", "background", "parsed", "cluster", "helm"},
    "python": {"file", "compiled"},
    "yaml": {"file", "config", "resources", "prometheus", "parsed"},
    "java": {"sample"},
    "sql": {"sample", "systems"},
    "properties": {"systems"},
}
"""What may hold a block of a language true. Languages that are not here need nothing: they are
output, or judged by another test."""

NEEDS_REASON = {"parsed", "cluster", "compiled"}
TALKATIVE = {"watchrelay", "make"}


def of(language: str, *verbs: str) -> list[Any]:
    return [
        pytest.param(each, id=each.place)
        for each in BLOCKS
        if each.language == language and (not verbs or each.verb in verbs)
    ]


def test_every_block_says_how_it_is_held_true() -> None:
    wrong = [f"{each.place}: {each.language} with {each.verb or 'no comment'!r}" for each in BLOCKS if each.language in VERBS
             and each.verb not in VERBS[each.language] and each.page != "README.md" and not each.page.startswith("helm/")]  # fmt: skip
    assert wrong == []
    assert [
        each.place for each in BLOCKS if each.verb in NEEDS_REASON and len(each.rest) < 10
    ] == []


def test_the_tests_that_reasons_name_are_there() -> None:
    named = {
        (each.place, path) for each in BLOCKS for path in re.findall(r"tests/[\w/]+\.py", each.rest)
    }
    assert named
    assert {place for place, path in named if not (ROOT / path).is_file()} == set()


@pytest.mark.parametrize("block", of("sh"))
def test_commands_take_these_arguments_and_files_are_there(block: Block) -> None:
    assert [complaint for line in block.lines() for complaint in complaints(line)] == []


def test_so_do_commands_in_blocks_without_a_language() -> None:
    wrong = []
    for block in (each for each in BLOCKS if each.language == ""):
        for line in block.lines():
            if line.split()[0].rpartition("/")[2] in TALKATIVE:
                wrong += [f"{block.place}: {complaint}" for complaint in complaints(line)]
    assert wrong == []


def test_so_do_commands_within_a_line() -> None:
    """`watchrelay ...` and `make ...` in running text: the command or the target exists."""
    wrong = []
    for page in {each.page for each in BLOCKS}:
        for quoted in re.findall(r"`((?:watchrelay|make) [^`]+)`", (ROOT / page).read_text()):
            line = re.sub(r"\[[^\]]*\]|\.\.\.|…", "", quoted)
            if re.search(r"[A-Z]{4,}(?![A-Z_=])|=n\b|COMMAND", line) or "<" in line:
                continue  # a pattern, not a command
            wrong += [
                f"{page}: {quoted}: {complaint}"
                for complaint in complaints(line)
                if "required: STREAM" not in complaint
            ]
    assert wrong == []


MINIMAL: dict[str, Any] = {
    "cluster": "c",
    "kafka": {"bootstrapServers": ["kafka:9092"]},
    "resources": [{"resource": "pods"}],
}


@pytest.mark.parametrize("block", of("yaml"))
def test_configs_are_good(block: Block, tmp_path: Path) -> None:
    config = yaml.safe_load(block.text)
    if block.verb == "prometheus" or (isinstance(config, dict) and "apiVersion" in config):
        return  # judged by promtool and by Kubernetes' schemas, where the tools of the chart are
    if block.verb == "resources":
        config = {"resources": config}
    elif "config" in config:
        config = configured_by_the_chart(config)
    assert config.keys() & {"cluster", "kafka", "resources", "acceptWarnings"}, "nothing judges it"
    file = tmp_path / "watchrelay.yaml"
    kafka = {**MINIMAL["kafka"], **config.get("kafka", {})}
    file.write_text(yaml.safe_dump({**MINIMAL, **config, "kafka": kafka}))
    assert load_settings(str(file), environ={}).resources


def configured_by_the_chart(values: dict[str, Any]) -> dict[str, Any]:
    """The config that the chart makes of its values: credentials are files."""
    config: dict[str, Any] = values["config"]
    files = {
        f"{name}File": f"/{name}"
        for name in values.get("kafka", {}).get("auth", {}).get("keys", {})
    }
    files |= {"caFile": "/ca"} if "ca" in values.get("kafka", {}) else {}
    kafka = config.get("kafka", {})
    return {
        **config,
        "kafka": {**kafka, "security": {**kafka.get("security", {}), **files}} if files else kafka,
    }


@pytest.mark.parametrize("block", of("python"))
def test_python_compiles(block: Block) -> None:
    text = block.text
    if "async with" in text and "async def" not in text:
        text = "async def page():\n" + "\n".join(f"    {line}" for line in text.splitlines())
    compile(text, block.place, "exec")


@pytest.mark.parametrize("block", of("json"))
def test_json_is_json(block: Block) -> None:
    for line in block.lines():
        json.loads(line)


def test_metrics_named_anywhere_are_exposed() -> None:
    assert {page: names for page in {each.page for each in BLOCKS} | {"docs/observe.md", "docs/guarantees.md", "docs/capacity.md"}
            if (names := unknown_names(_without_globs((ROOT / page).read_text())))} == {}  # fmt: skip


def _without_globs(text: str) -> str:
    return re.sub(r"watchrelay_(?:…|<|\*)", "", text)
