"""`watchrelay validate`.

Room: commands. In: parsed arguments, the config. Out: what the config means, warnings included, on
stdout; with --connect, whether the world agrees (`validate_connect.py`).
"""

from __future__ import annotations

import argparse
import importlib
import sys
from typing import Any

from watchrelay.cli.output import print_json, problem_json
from watchrelay.config import Loaded, Settings, load
from watchrelay.config.advice import warnings
from watchrelay.config.streams import Planned, plan
from watchrelay.config.units import duration_text
from watchrelay.core.errors import ConfigError
from watchrelay.core.text import counted

USAGE = 2


def run(args: argparse.Namespace) -> int:
    """Print streams and topics; 0 when the config is good.

    Raises: ConfigError with every problem.
    """
    if args.act_as and not args.connect:
        print(
            "watchrelay validate: --as needs --connect: only the API server knows the rights of "
            "an account",
            file=sys.stderr,
        )
        return USAGE
    as_json = args.output == "json"
    try:
        loaded = load(args.config, args.sets)
    except ConfigError as error:
        if as_json:
            print_json(
                {"valid": False, "problems": [problem_json(problem) for problem in error.problems]}
            )
        raise
    advice = [
        loaded.problem(path, message, hint) for path, message, hint in warnings(loaded.settings)
    ]
    if not as_json:
        _print_meaning(loaded)
        for problem in advice:
            print(f"warning: {problem}")
    code, checks = 0, None
    if args.connect:
        # With what was read, not read again: a config from a pipe (`-c <(generate)`) can be read
        # only once.
        connection = importlib.import_module("watchrelay.cli.validate_connect")
        code, checks = connection.connect(loaded.settings, args.act_as or "", as_json=as_json)
    if as_json:
        print_json(
            _meaning(loaded)
            | {"warnings": [problem_json(each) for each in advice]}
            | ({} if checks is None else {"checks": checks})
        )
    return int(code)


def _meaning(loaded: Loaded) -> dict[str, Any]:
    settings, planned = loaded.settings, plan(loaded.settings)
    return {
        "valid": True,
        "config": str(loaded.file) if loaded.file else None,
        "cluster": settings.cluster,
        "kafka": {
            "bootstrapServers": list(settings.kafka.bootstrap_servers),
            "protocol": settings.kafka.security.protocol,
        },
        "streams": [_stream_json(stream) for stream in planned],
        "topics": [
            {"topic": topic, "partitions": partitions}
            for topic, partitions in _topics(planned).items()
        ],
    }


def _stream_json(stream: Planned) -> dict[str, Any]:
    entry = stream.entry
    return {
        "stream": stream.id,
        "provisional": not stream.certain,
        "entry": stream.index,
        "resource": stream.what,
        "namespaces": [stream.namespace] if stream.namespace else list(entry.namespaces),
        "excludeNamespaces": list(entry.exclude_namespaces),
        "name": entry.name or None,
        "labelSelector": entry.label_selector or None,
        "fieldSelector": entry.field_selector or None,
        "topic": stream.topic,
        "partitions": stream.partitions,
    }


def _topics(planned: list[Planned]) -> dict[str, int]:
    """Partitions by topic, in order of names."""
    topics: dict[str, int] = {}
    for stream in planned:
        if stream.topic:
            topics.setdefault(stream.topic, stream.partitions)
    return dict(sorted(topics.items()))


def _print_meaning(loaded: Loaded) -> None:
    settings = loaded.settings
    kafka = settings.kafka
    planned = plan(settings)
    topics = _topics(planned)
    print(f"config: {loaded.file or 'environment and --set'}: good")
    print(f"cluster: {settings.cluster}")
    print(f"kafka: {', '.join(kafka.bootstrap_servers)} ({kafka.security.protocol})")
    print(f"streams: {len(planned)}")
    for stream in planned:
        print(f"  {_id(stream)} -> {_topic(stream)}, {_what(stream, settings)}")
    print(f"topics: {len(topics)}")
    for topic, partitions in topics.items():
        print(f"  {topic}, {counted(partitions, 'partition')}")


def _id(stream: Planned) -> str:
    return stream.id if stream.certain or stream.name.wildcard else f"{stream.id} (provisional)"


def _topic(stream: Planned) -> str:
    return stream.topic or "a topic per resource, known once the cluster is asked"


def _what(stream: Planned, settings: Settings) -> str:
    entry = stream.entry
    parts = [
        f"namespace {stream.namespace}"
        if stream.namespace
        else ", ".join(entry.namespaces) or "all namespaces"
    ]
    if stream.builtin is not None and not stream.builtin.resource.namespaced:
        parts = ["cluster-scoped"]
    parts.extend(f"not {excluded}" for excluded in entry.exclude_namespaces)
    parts.extend(text for text in (entry.name, entry.label_selector, entry.field_selector) if text)
    if entry.metadata_only:
        parts.append("metadata only")
    snapshots = (
        f"snapshot every {duration_text(entry.snapshot_interval_s)}"
        if entry.snapshot_interval_s
        else "no periodic snapshot"
    )
    return (
        f"{', '.join(parts)}; {snapshots}, heartbeat every "
        f"{duration_text(settings.heartbeat_interval_s)}"
    )
