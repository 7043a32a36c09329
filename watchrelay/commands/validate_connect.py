"""`watchrelay validate --connect`: whether cluster, rights, brokers and topics are as the config needs them.

Room: commands. In: the config. Out: facts on stdout; 0, 69 unreachable, 78 something that a person must change.
"""

from __future__ import annotations

from watchrelay.app.connect import Fact, check_everything
from watchrelay.config import Settings
from watchrelay.interrupts import finish
from watchrelay.observe import logs


def connect(settings: Settings) -> int:
    """Print the facts; the exit code is that of the worst."""
    logs.configure(settings.observe.log_format, "error")
    facts = finish(check_everything(settings))
    for fact in facts:
        print(fact)
    return Fact.exit_code(facts)
