"""What `validate` and `topics` print with `--output json`: one object on one line; keys are only
ever added.

Room: commands. In: problems and facts. Out: JSON on stdout.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from watchrelay.core.errors import ConfigProblem

if TYPE_CHECKING:
    from watchrelay.admin.preflight import Fact


def print_json(value: Mapping[str, Any]) -> None:
    """Print `value` on one line, everything but ASCII escaped."""
    print(json.dumps(value))


def problem_json(problem: ConfigProblem) -> dict[str, Any]:
    """A mistake in the config, or a warning about it; what is not known is null."""
    return {
        "message": problem.message,
        "hint": problem.hint or None,
        "path": problem.path or None,
        "source": problem.source or None,
        "line": problem.line,
    }


def fact_json(fact: Fact) -> dict[str, Any]:
    """A line of the checks."""
    return {"level": fact.level, "subject": fact.what, "message": fact.said}
