"""`python -m tests.mutations`: takes out one step of the code at a time and sees whether the tests
that guard it fail.

Input: the tables of steps, `canaries.py` and `fuzz.py`. Output: a line per step, exit code 0 only
when each was caught by a test, which failed in an assertion. The tree itself is not touched: each
step is taken out of a copy.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.mutations.canaries import CANARIES
from tests.mutations.fuzz import FUZZ
from tests.mutations.step import Step

ROOT = Path(__file__).resolve().parents[2]
TABLES = {"canaries": CANARIES, "fuzz": FUZZ}
_FAILED = re.compile(r"^FAILED \S+?::(?P<test>.+?)(?: - (?P<why>.*))?$", re.MULTILINE)
_ASSERTION = re.compile(
    r"^E +(assert\b|AssertionError|Failed: DID NOT RAISE|hypothesis\.errors\.FlakyFailure)",
    re.MULTILINE,
)
_LONG_S = 180.0


@dataclass(frozen=True)
class Verdict:
    """What came of one step. `by` is the first test that failed; "" where none did."""

    bites: bool
    by: str = ""
    why: str = ""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__)
    parser.add_argument("tables", nargs="*", help="canaries, fuzz; none: both")
    parser.add_argument("--only", default="", help="steps whose name has this in it")
    arguments = parser.parse_args()
    for name in arguments.tables:
        if name not in TABLES:
            parser.error(f"there is no table {name}: write {' or '.join(TABLES)}")
    steps = [
        step
        for name in arguments.tables or TABLES
        for step in TABLES[name]
        if arguments.only in step.name
    ]
    if not steps:
        parser.error(f"no step has {arguments.only!r} in its name")
    with tempfile.TemporaryDirectory(prefix="mutations-") as directory:
        copy = Path(directory) / "tree"
        for part in ("watchrelay", "tests"):
            shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", copy)
        return run(copy, steps)


def run(copy: Path, steps: list[Step]) -> int:
    """Each step in turn, once the tests pass with all of them in place."""
    for tests in dict.fromkeys(step.tests for step in steps):
        whole = _tested(copy, tests)
        if whole.returncode:
            print(whole.stdout, file=sys.stderr)
            print(f"the tests fail with every step in place: {' '.join(tests)}", file=sys.stderr)
            return 2
    uncaught = 0
    for step in steps:
        began_s = time.monotonic()
        verdict = try_without(copy, step)
        uncaught += not verdict.bites
        outcome = (
            f"caught by {verdict.by}" if verdict.bites else f"NOT CAUGHT {verdict.by} {verdict.why}"
        )
        print(f"{step.name}: {outcome.rstrip()} ({time.monotonic() - began_s:.1f} s)", flush=True)
    print(
        f"{len(steps) - uncaught} of {len(steps)} steps are caught by a test when they are taken "
        "out"
    )
    return int(uncaught > 0)


def try_without(copy: Path, step: Step) -> Verdict:
    """The tests on the tree without the step. The copy is whole again afterwards."""
    changed: dict[str, str] = {}
    for file, old, new in step.edits:
        text = changed.get(file) or (copy / file).read_text()
        if text.count(old) != 1:
            return Verdict(
                False,
                why=f"{file} has what is to be taken out {text.count(old)} times: mend the table",
            )
        changed[file] = text.replace(old, new)
    before = {file: (copy / file).read_text() for file in changed}
    try:
        for file, text in changed.items():
            (copy / file).write_text(text)
        done = _tested(copy, step.tests)
    except subprocess.TimeoutExpired:
        return Verdict(False, why="the tests did not end")
    finally:
        for file, text in before.items():
            (copy / file).write_text(text)
    failed = _FAILED.search(done.stdout)
    if done.returncode != 1 or failed is None:
        return Verdict(False, why=f"pytest ended with {done.returncode}")
    if not step.may_raise and not _ASSERTION.search(done.stdout):
        return Verdict(False, failed["test"], f"failed for another reason: {failed['why']}")
    return Verdict(True, failed["test"])


def _tested(copy: Path, tests: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    # Without bytecode: two writes within a second, of texts of one length, would look alike to it.
    command = [
        sys.executable,
        "-B",
        "-m",
        "pytest",
        "-x",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:randomly",
        "--tb=short",
        "-rf",
        *tests,
    ]
    return subprocess.run(
        command, cwd=copy, capture_output=True, text=True, timeout=_LONG_S, check=False
    )


if __name__ == "__main__":
    sys.exit(main())
