"""What guarantees.md and security.md promise: each row names its test, and each test that is named
exists."""

import re
from fnmatch import fnmatch
from pathlib import Path

import pytest

from tools.docs.pages import ROOT

TABLES = {
    "guarantees.md": "## What is guaranteed",
    "security.md": "## Defended",
}
_NAMED = re.compile(r"`(test_[A-Za-z0-9_*]+)(?:\.py)?`")


def all_tests() -> set[str]:
    """The names of all tests, and of the files that hold them."""
    files = list((ROOT / "tests").rglob("test_*.py"))
    functions = (
        re.findall(r"^ *(?:async )?def (test_\w+)", read(path), re.MULTILINE) for path in files
    )
    return {name for names in functions for name in names} | {path.stem for path in files}


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@pytest.mark.parametrize("page", TABLES)
def test_each_test_that_a_page_names_exists(page: str) -> None:
    named, known = set(_NAMED.findall(read(ROOT / "docs" / page))), all_tests()
    assert named
    assert {name for name in named if not any(fnmatch(each, name) for each in known)} == set()


@pytest.mark.parametrize("page", TABLES)
def test_each_row_of_promises_names_its_test(page: str) -> None:
    section = read(ROOT / "docs" / page).partition(TABLES[page])[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")][1:]
    runs_elsewhere = "runs on the project's host"
    bare = [row[:60] for row in rows if not _NAMED.search(row) and runs_elsewhere not in row]
    assert rows
    assert bare == []
