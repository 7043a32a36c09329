"""`watchrelay validate --connect`: whether cluster, rights, brokers and topics are as the config needs them.

Room: commands. In: parsed arguments, the config. Out: facts on stdout; 0, 69 unreachable, 78 something that a person must change.
"""

from __future__ import annotations

import argparse

from watchrelay.app.connect import Fact, check_everything
from watchrelay.config import load_settings
from watchrelay.interrupts import finish
from watchrelay.observe import logs


def run(args: argparse.Namespace) -> int:
    """Print the facts; the exit code is that of the worst."""
    settings = load_settings(args.config, args.sets)
    logs.configure(settings.observe.log_format, "error")
    facts = finish(check_everything(settings))
    for fact in facts:
        print(fact)
    return Fact.exit_code(facts)
