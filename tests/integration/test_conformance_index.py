"""The source of all tests: the claim that each case of the conformance list (docs/watch-facts.md
13) has its
test.

A case counts as tested by a function named for it, `test_T17_...`, in any file under tests/.
"""

import functools
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]

CASES = (
    *range(1, 4), 6, 7, *range(9, 18), 19, *range(21, 24), 25, *range(27, 33), *range(34, 37), 39, 40, 41, 43, *range(46, 49),
    *range(50, 55), *range(56, 59), *range(60, 65), *range(66, 76), *range(77, 80), 81, *range(84, 87),
)  # fmt: skip
"""The numbers of the list; those that it leaves out are not published."""

NOT_HERE: dict[int, str] = {}
"""Cases without a test of their own, each with the sentence that says why."""


@functools.cache
def named_cases() -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        for number in re.findall(
            r"^\s*(?:async )?def test_T(\d\d)_", path.read_text(), re.MULTILINE
        ):
            found.setdefault(int(number), []).append(path.name)
    return found


@pytest.mark.parametrize("case", CASES, ids="T{:02}".format)
def test_each_case_of_the_list_has_a_test_named_for_it_or_a_reason(case: int) -> None:
    assert case in named_cases() or NOT_HERE.get(case), (
        f"T{case:02} has neither a test nor a reason"
    )


def test_no_tested_case_has_a_reason_against_it_and_no_test_names_an_unknown_case() -> None:
    found = named_cases()
    assert not set(NOT_HERE) & set(found)
    assert not set(found) - set(CASES)
