"""`watchrelay validate`.

Room: commands. In: parsed arguments, the config. Out: what the config means, warnings included, on stdout; with --connect, whether the
world agrees (`validate_connect.py`).
"""

from __future__ import annotations

import argparse
import importlib

from watchrelay.config import Loaded, Settings, load
from watchrelay.config.advice import warnings
from watchrelay.config.streams import Planned, plan
from watchrelay.config.units import duration_text
from watchrelay.printable import counted


def run(args: argparse.Namespace) -> int:
    """Print streams and topics; 0 when the config is good.

    Raises: ConfigError with every problem.
    """
    loaded = load(args.config, args.sets)
    _print_meaning(loaded)
    for path, message, hint in warnings(loaded.settings):
        problem = loaded.problem(path, message, hint)
        print(f"warning: {problem}")
    if args.connect:
        # With what was read, not read again: a config from a pipe (`-c <(generate)`) can be read only once.
        return int(importlib.import_module("watchrelay.commands.validate_connect").connect(loaded.settings))
    return 0


def _print_meaning(loaded: Loaded) -> None:
    settings = loaded.settings
    kafka = settings.kafka
    planned = plan(settings)
    topics = sorted({stream.topic for stream in planned if stream.topic})
    print(f"config: {loaded.file or 'environment and --set'}: good")
    print(f"cluster: {settings.cluster}")
    print(f"kafka: {', '.join(kafka.bootstrap_servers)} ({kafka.security.protocol})")
    print(f"streams: {len(planned)}")
    for stream in planned:
        print(f"  {_id(stream)} -> {_topic(stream)}, {_what(stream, settings)}")
    print(f"topics: {len(topics)}")
    for topic in topics:
        partitions = next(stream.partitions for stream in planned if stream.topic == topic)
        print(f"  {topic}, {counted(partitions, 'partition')}")


def _id(stream: Planned) -> str:
    return stream.id if stream.certain or stream.name.wildcard else f"{stream.id} (provisional)"


def _topic(stream: Planned) -> str:
    return stream.topic or "a topic per resource, known once the cluster is asked"


def _what(stream: Planned, settings: Settings) -> str:
    entry = stream.entry
    parts = [f"namespace {stream.namespace}" if stream.namespace else ", ".join(entry.namespaces) or "all namespaces"]
    if stream.builtin is not None and not stream.builtin.resource.namespaced:
        parts = ["cluster-scoped"]
    parts.extend(f"not {excluded}" for excluded in entry.exclude_namespaces)
    parts.extend(text for text in (entry.name, entry.label_selector, entry.field_selector) if text)
    if entry.metadata_only:
        parts.append("metadata only")
    snapshots = f"snapshot every {duration_text(entry.snapshot_interval_s)}" if entry.snapshot_interval_s else "no periodic snapshot"
    return f"{', '.join(parts)}; {snapshots}, heartbeat every {duration_text(settings.heartbeat_interval_s)}"
