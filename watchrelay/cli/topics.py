"""`watchrelay topics`: checks the topics of the config, and with `--create` creates them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from watchrelay.admin.preflight import CheckResult, check_topics, resolve_streams, worst_exit_code
from watchrelay.cli.options import ConfigOptions
from watchrelay.cli.output import check_json, print_json
from watchrelay.cli.signals import run_until_signalled
from watchrelay.config import Settings, load_settings
from watchrelay.observe import logs

_LEVELS = ("ok", "warning", "error")


def topics(config: ConfigOptions, *, create: bool, as_json: bool) -> int:
    """Check the topics and print the results, a line for each, or one JSON object.

    Args:
        config: where the settings come from.
        create: create missing topics.
        as_json: print JSON.

    Returns:
        the exit code of the worst result: 0, 69 or 78.

    Raises:
        ConfigError: with every problem.
        StoppedBySignal: a signal came first.
    """
    settings = load_settings(*config)
    logs.configure(settings.observe.log_format, "warning")
    results = run_until_signalled(_check(settings, create=create))
    if as_json:
        print_json(
            {
                "topics": _topics_json(results),
                "checks": [check_json(each) for each in results if each.topic is None],
            }
        )
    else:
        for result in results:
            print(result)
    return worst_exit_code(results)


async def _check(settings: Settings, *, create: bool) -> list[CheckResult]:
    streams, failed = await resolve_streams(settings)
    return [*failed, *await check_topics(settings, streams, create=create)]


def _topics_json(results: Sequence[CheckResult]) -> list[dict[str, Any]]:
    """One object per topic; numbers are null where it does not exist or was not read."""
    topics: dict[str, dict[str, Any]] = {}
    for result in results:
        if result.topic is None:
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
            result.topic.name, {"topic": result.topic.name, "kind": result.topic.kind, **empty}
        )
        row["level"] = max(row["level"], result.level, key=_LEVELS.index)
        if found := result.topic_facts:
            row |= {"exists": True, "created": found.created}
            row |= {"partitions": found.partitions, "replicationFactor": found.replication_factor}
        elif result.absent:
            row["exists"] = False
        if result.level != "ok":
            row["messages"].append(result.message)
    return list(topics.values())
