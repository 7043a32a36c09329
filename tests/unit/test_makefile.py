"""`make install` prints what it does, and fails where pip does."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

_PIP = """\
case "$*" in *--require-hashes*)
  for each in $(seq 45); do echo "Collecting p$each"; done
  echo "Installing collected packages";;
esac"""
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The Makefile beside a Python and a pip that only print."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "requirements").mkdir()
    (tmp_path / "bin").mkdir()
    (tmp_path / ".venv").mkdir()
    for file in ("requirements/dev.txt", "pyproject.toml"):
        (tmp_path / file).touch()
    return tmp_path


def install(tree: Path, pip: str) -> subprocess.CompletedProcess[str]:
    for name, text in (("pip", pip), ("python", "")):
        program = tree / "bin" / name
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
    argv = ["make", "-C", str(tree), "--no-print-directory", "install", "BIN=bin"]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_an_install_prints_its_steps_and_how_many_packages_were_found(tree: Path) -> None:
    done = install(tree, _PIP)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "install 2/4: packages into .venv, pinned by hash (half a minute, by the network)",
        "  20 packages found",
        "  40 packages found",
        "  all 45 found, unpacking them",
        "install 3/4: watchrelay, from this directory",
        "install 4/4: compiling it",
    ]


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_a_pip_that_fails_ends_the_install_and_its_error_is_shown(tree: Path) -> None:
    done = install(tree, 'case "$*" in *install*) echo "no such hash" >&2; exit 1;; esac')
    assert done.returncode != 0
    assert "no such hash" in done.stderr
    assert not (tree / ".venv" / ".installed").exists()
