"""`watchrelay topics`: checks the topics of the config, and with `--create` creates them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from watchrelay.cli.options import Command, add_config, add_output, command_settings
from watchrelay.cli.output import check_json, print_json
from watchrelay.cli.signals import run_until_signalled

if TYPE_CHECKING:
    from watchrelay.admin.preflight import CheckResult

_LEVELS = ("ok", "warning", "error")


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    parser.add_argument("--create", action="store_true", help="create those that are missing")
    add_output(parser, per_line=False)


def topics(*, config: str | None, sets: Sequence[str], create: bool, output: str) -> int:
    """Check the topics, print a line for each or one JSON object; the exit code of the worst
    result."""
    from watchrelay.admin.preflight import check_topics, resolve_streams, worst_exit_code

    settings = command_settings(config, sets)

    async def check() -> list[CheckResult]:
        streams, failed = await resolve_streams(settings)
        return [*failed, *await check_topics(settings, streams, create=create)]

    results = run_until_signalled(check())
    if output == "json":
        checks = [check_json(each) for each in results if each.topic is None]
        print_json({"topics": _topics_json(results), "checks": checks})
    else:
        print(*results, sep="\n")
    return worst_exit_code(results)


def _topics_json(results: Sequence[CheckResult]) -> list[dict[str, Any]]:
    """One object per topic; numbers are null where it does not exist or was not read."""
    topics: dict[str, dict[str, Any]] = {}
    for result in results:
        if result.topic is None:
            continue
        empty: dict[str, Any] = {
            "topic": result.topic.name,
            "kind": result.topic.kind,
            "exists": None,
            "created": False,
            "partitions": None,
            "replicationFactor": None,
            "level": "ok",
            "messages": [],
        }
        row = topics.setdefault(result.topic.name, empty)
        row["level"] = max(row["level"], result.level, key=_LEVELS.index)
        if found := result.topic_facts:
            row |= {"exists": True, "created": found.created}
            row |= {"partitions": found.partitions, "replicationFactor": found.replication_factor}
            row["messages"] += [each.text for each in found.findings]
            if found.findings:
                row["level"] = "warning"
        elif result.absent:
            row["exists"] = False
        if result.level != "ok":
            row["messages"].append(result.message)
    return list(topics.values())


COMMAND = Command(
    "list and check the topics of the config",
    "Prints each topic and whether it is as the config needs it.",
    topics,
    _add_arguments,
)
