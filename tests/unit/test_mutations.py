"""The tables of `make mutations` fit the code: what each row takes out occurs there once; whether a
test then fails is seen by the verb."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutations.canaries import CANARIES
from tests.mutations.fuzz import FUZZ

ROOT = Path(__file__).resolve().parents[2]
STEPS = {step.name: step for step in (*CANARIES, *FUZZ)}


def test_every_step_has_a_name_of_its_own() -> None:
    assert len(STEPS) == len(CANARIES) + len(FUZZ)


@pytest.mark.parametrize("name", STEPS)
def test_what_a_step_takes_out_occurs_in_the_code_once(name: str) -> None:
    for file, old, new in STEPS[name].edits:
        assert (ROOT / file).read_text().count(old) == 1, f"{file}: mend the row in tests/mutations"
        assert old != new
    for test in STEPS[name].tests:
        file, _, function = test.partition("::")
        assert f"def {function}" in (ROOT / file).read_text()
