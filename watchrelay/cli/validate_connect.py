"""`watchrelay validate --connect`: whether cluster, rights, brokers and topics are as the config
needs them.

Room: commands. In: the config. Out: facts on stdout; 0, 69 unreachable, 78 something that a person
must change.
"""

from __future__ import annotations

from typing import Any

from watchrelay.admin.preflight import Fact, check_everything
from watchrelay.cli.output import fact_json
from watchrelay.cli.signals import finish
from watchrelay.config import Settings
from watchrelay.observe import logs


def connect(settings: Settings, act_as: str, *, as_json: bool) -> tuple[int, list[dict[str, Any]]]:
    """Print the facts, unless they are to be JSON.

    Args:
        settings: what is checked.
        act_as: the service account whose rights count, "" for the caller's.
        as_json: whether the caller prints the facts.

    Returns:
        the exit code of the worst, and the facts for JSON.
    """
    logs.configure(settings.observe.log_format, "error")
    facts = finish(check_everything(settings, act_as))
    for fact in () if as_json else facts:
        print(fact)
    return Fact.exit_code(facts), [fact_json(fact) for fact in facts]
