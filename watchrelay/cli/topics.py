"""`watchrelay topics`: the topics of the config, checked, and with `--create` made.

Room: commands. In: parsed arguments, the config. Out: a line per topic on stdout, or JSON; 0, 69
when Kafka or the cluster is away, 78 when a person must change something.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from watchrelay.admin.preflight import Fact, check_topics, resolve_streams
from watchrelay.cli.output import fact_json, print_json
from watchrelay.cli.signals import finish
from watchrelay.config import Settings, load_settings
from watchrelay.observe import logs

_LEVELS = ("ok", "warning", "error")


def run(args: argparse.Namespace) -> int:
    """Print the facts; the exit code is that of the worst.

    Raises: ConfigError with every problem.
    """
    settings = load_settings(args.config, args.sets)
    logs.configure(settings.observe.log_format, "warning")
    facts = finish(_facts(settings, create=args.create))
    if args.output == "json":
        print_json(
            {
                "topics": _topics(facts),
                "checks": [fact_json(fact) for fact in facts if fact.topic is None],
            }
        )
    else:
        for fact in facts:
            print(fact)
    return Fact.exit_code(facts)


async def _facts(settings: Settings, *, create: bool) -> list[Fact]:
    streams, troubles = await resolve_streams(settings)
    return [*troubles, *await check_topics(settings, streams, create=create)]


def _topics(facts: Sequence[Fact]) -> list[dict[str, Any]]:
    """One object per topic; numbers are null where the topic is not there or was not read."""
    topics: dict[str, dict[str, Any]] = {}
    for fact in facts:
        if fact.topic is None:
            continue
        empty: dict[str, Any] = {
            "exists": None,
            "created": False,
            "partitions": None,
            "replicationFactor": None,
            "level": "ok",
            "messages": [],
        }
        row = topics.setdefault(
            fact.topic.name, {"topic": fact.topic.name, "kind": fact.topic.kind, **empty}
        )
        row["level"] = max(row["level"], fact.level, key=_LEVELS.index)
        if found := fact.found:
            row |= {"exists": True, "created": found.created}
            row |= {"partitions": found.partitions, "replicationFactor": found.replication_factor}
        elif fact.absent:
            row["exists"] = False
        if fact.level != "ok":
            row["messages"].append(fact.said)
    return list(topics.values())
