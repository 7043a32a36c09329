"""The streams and topics of a config, as text and as JSON."""

from __future__ import annotations

from typing import Any

from watchrelay.config import Loaded, Settings
from watchrelay.config.streams import Planned, plan, what_counts
from watchrelay.config.values import duration_text
from watchrelay.core.text import counted


def summary_json(loaded: Loaded) -> dict[str, Any]:
    """The values of `validate --output json`, without warnings and checks."""
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
        "ignoreChanges": list(entry.ignore_changes),
        "publishWhen": None if entry.publish_when is None else list(entry.publish_when),
        "topic": stream.topic,
        "partitions": stream.partitions,
    }


def _topics(planned: list[Planned]) -> dict[str, int]:
    """Partition counts by topic name, sorted."""
    topics: dict[str, int] = {}
    for stream in planned:
        if stream.topic:
            topics.setdefault(stream.topic, stream.partitions)
    return dict(sorted(topics.items()))


def print_summary(loaded: Loaded) -> None:
    """Print a line for each stream and topic."""
    settings = loaded.settings
    kafka = settings.kafka
    planned = plan(settings)
    topics = _topics(planned)
    print(f"config: {loaded.file or 'environment and --set'}: good")
    print(f"cluster: {settings.cluster}")
    print(f"kafka: {', '.join(kafka.bootstrap_servers)} ({kafka.security.protocol})")
    print(f"streams: {len(planned)}")
    for stream in planned:
        id_ = stream.id if stream.certain or stream.name.wildcard else f"{stream.id} (provisional)"
        topic = stream.topic or "a topic per resource, known once the cluster is asked"
        print(f"  {id_} -> {topic}, {_what(stream, settings)}")
    print(f"topics: {len(topics)}")
    for name, partitions in topics.items():
        print(f"  {name}, {counted(partitions, 'partition')}")


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
    if what := what_counts(entry):
        parts.append(f"changes that count: {what}")
    snapshots = (
        f"snapshot every {duration_text(entry.snapshot_interval_s)}"
        if entry.snapshot_interval_s
        else "no periodic snapshot"
    )
    return (
        f"{', '.join(parts)}; {snapshots}, heartbeat every "
        f"{duration_text(settings.heartbeat_interval_s)}"
    )
