"""Files that hold no config, are none, or cannot be read: each has one message with the cure."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.unit.config.problems import problems
from watchrelay.config import load_settings
from watchrelay.core.errors import ConfigError

UNREADABLE = {
    "": "w.yaml:1: the file is empty (it needs at least the keys cluster, kafka and resources)",
    "# nothing\n": "w.yaml:1: the file is empty (it needs at least the keys cluster, kafka and resources)",
    "- a\n": ("w.yaml:1: the file is not a mapping of keys (it needs at least the keys cluster, kafka and resources)"),
    "text\n": "w.yaml:1: the file is not a mapping of keys (it needs at least the keys cluster, kafka and resources)",
    "a:\n\t- b\n": "w.yaml:2: not YAML: a tab in the indentation (indent with spaces)",
    "a: b: c\n": "w.yaml:1: not YAML: mapping values are not allowed in this context, at column 5 (check the quotes, brackets, colons and indentation here)",
    'a: "b\n': (
        "w.yaml:1: not YAML: found unexpected end of stream, at column 1 (check the quotes, brackets, colons and indentation here)"
    ),
    "a: [b\n": (
        "w.yaml:1: not YAML: did not find expected ',' or ']', at column 1 (check the quotes, brackets, colons and indentation here)"
    ),
    "a: b\n---\nc: d\n": (
        "w.yaml:2: a second document starts here: a config file is one document (remove what "
        "follows this ---)"
    ),
    "a: *b\n": ("w.yaml:1: a word begins with *, which makes it an alias, and no & defines it before (put the value in quotes)"),
    "a: &b [*b]\n": "w.yaml:1: a word begins with *, which makes it an alias, and no & defines it before (put the value in quotes)",
    "a: &b c\nd: &b e\n": ("w.yaml:2: an anchor (&) is defined twice (give one of the two another name)"),
    "a: \x01\n": "w.yaml:1: not YAML: a control character (is this a text file?)",
    "a: " + "[" * 5000: "w.yaml:1: nested deeper than 50 levels",
    "a: " + "x" * (1 << 20): "w.yaml: is larger than 1 MiB (is this the config file?)",
}  # fmt: skip


@pytest.mark.parametrize("text", UNREADABLE, ids=lambda text: text[:12])
def test_a_file_that_is_no_config_is_refused_with_its_line(tmp_path: Path, text: str) -> None:
    assert problems(tmp_path, text) == [UNREADABLE[text]]


def test_a_file_that_is_not_utf8_is_refused_with_its_line(tmp_path: Path) -> None:
    assert problems(tmp_path, b"a: b\nc: \xff\n") == [
        "w.yaml:2: not UTF-8: byte 0xff (save the file as UTF-8)"
    ]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("? [a]\n: b", "w.yaml:1: a key must be text"),
        ("<<: x", "w.yaml:1: << needs a mapping"),
        ("<<: [x, y]", "w.yaml:1: << needs a mapping"),
    ],
)
def test_a_key_or_a_merge_of_the_wrong_kind_is_refused_with_its_line(
    tmp_path: Path, line: str, problem: str
) -> None:
    assert problem in problems(tmp_path, f"{line}\ncluster: c\n")


def test_aliases_of_aliases_are_stopped_before_they_fill_the_memory(tmp_path: Path) -> None:
    lines = [
        "a0: &a0 [x,x,x,x,x,x,x,x,x]",
        *(f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 30)),
    ]
    assert "expands to more than 100000 values" in problems(tmp_path, "\n".join(lines))[0]
    merges = [
        "m0: &m0 {}",
        *(f"m{i}: &m{i} {{<<: [{','.join([f'*m{i - 1}'] * 9)}]}}" for i in range(1, 30)),
    ]
    assert "expands to more than 100000 values" in problems(tmp_path, "\n".join(merges))[0]


def test_a_missing_file_a_directory_and_no_file_at_all_have_different_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("link").symlink_to("..data/gone")
    for config, environ, problem in (
        ("nope.yaml", {}, "nope.yaml: there is no such file (named by -c)"),
        (
            None,
            {"WATCHRELAY_CONFIG": "nope.yaml"},
            "nope.yaml: there is no such file (named by WATCHRELAY_CONFIG)",
        ),
        (str(tmp_path), {}, f"{tmp_path}: is a directory, not a file"),
        ("-", {}, "-: there is no such file (/dev/stdin is standard input)"),
        ("link", {}, "link: is a link to ..data/gone, which is not there (named by -c)"),
        (
            None,
            {},
            (
                "no config file (name one with -c FILE or $WATCHRELAY_CONFIG; looked for "
                "watchrelay.yaml and /etc/watchrelay/config.yaml)"
            ),
        ),
    ):
        with pytest.raises(ConfigError) as caught:
            load_settings(config, environ=environ)
        assert str(caught.value) == problem


def test_a_pipe_that_nobody_writes_to_is_no_reason_to_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="pipe: cannot be read: it is a pipe without a writer"):
        load_settings(str(tmp_path / "pipe"), environ={})
