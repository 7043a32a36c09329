"""Troubles as tests report them, and as they are judged."""

from watchrelay.core.trouble import Cause, Trouble
from watchrelay.observe.overview import StreamVerdict
from watchrelay.observe.status import StatusRegistry


def trouble(message: str, cause: Cause = Cause.OTHER, *, operator: bool = False) -> Trouble:
    """One of which the subject does not matter."""
    return Trouble("", cause, message, operator=operator)


def cause_of(verdict: StreamVerdict) -> Cause | None:
    """Of what is wrong with the stream; None where nothing is."""
    return None if verdict.trouble is None else verdict.trouble.cause


def message_of(verdict: StreamVerdict) -> str:
    """Of what is wrong with the stream; "" where nothing is."""
    return "" if verdict.trouble is None else verdict.trouble.message


def problem_of(statuses: StatusRegistry, name: str) -> str:
    """The message of a problem of the process; "" where there is none."""
    held = statuses.problems.get(name)
    return "" if held is None else held.message
