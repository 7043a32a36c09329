"""`watchrelay topics`: the topics of the config, checked, and with `--create` made.

Room: commands. In: parsed arguments, the config. Out: a line per topic on stdout; 0, 69 when Kafka or the cluster is away, 78 when a
person must change something.
"""

from __future__ import annotations

import argparse

from watchrelay.app.connect import Fact, check_topics, resolve_streams
from watchrelay.config import Settings, load_settings
from watchrelay.interrupts import finish
from watchrelay.observe import logs


def run(args: argparse.Namespace) -> int:
    """Print the facts; the exit code is that of the worst.

    Raises: ConfigError with every problem.
    """
    settings = load_settings(args.config, args.sets)
    logs.configure(settings.observe.log_format, "warning")
    facts = finish(_facts(settings, create=args.create))
    for fact in facts:
        print(fact)
    return Fact.exit_code(facts)


async def _facts(settings: Settings, *, create: bool) -> list[Fact]:
    streams, troubles = await resolve_streams(settings)
    return [*troubles, *await check_topics(settings, streams, create=create)]
