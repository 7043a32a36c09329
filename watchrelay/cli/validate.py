"""`watchrelay validate`: what the config means; with `--connect`, whether cluster and Kafka are as
it needs them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from watchrelay.cli.options import ConfigOptions
from watchrelay.cli.output import check_json, print_json, problem_json
from watchrelay.cli.signals import run_until_signalled
from watchrelay.config import Loaded, Settings, load
from watchrelay.config.advice import warnings
from watchrelay.config.streams import Planned, plan
from watchrelay.config.units import duration_text
from watchrelay.core.errors import ConfigError
from watchrelay.core.exit_codes import OK, USAGE
from watchrelay.core.text import counted

if TYPE_CHECKING:
    from watchrelay.admin.preflight import CheckResult


def validate(config: ConfigOptions, *, connect: bool, account: str, as_json: bool) -> int:
    """Print streams, topics and warnings, and with `connect` the results of the checks.

    Args:
        config: where the settings come from.
        connect: check cluster, rights, brokers and topics.
        account: the service account whose rights are checked, "" for the caller.
        as_json: print one JSON object.

    Returns:
        0 when all is well; 2 for `account` without `connect`; else the exit code of the worst
        check, 69 or 78.

    Raises:
        ConfigError: with every problem.
        StoppedBySignal: a signal came first.
    """
    if account and not connect:
        print(
            "watchrelay validate: --as needs --connect: only the API server knows the rights of "
            "an account",
            file=sys.stderr,
        )
        return USAGE
    try:
        loaded = load(*config)
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
        _print_summary(loaded)
        for problem in advice:
            print(f"warning: {problem}")
    code, results = _connect(loaded.settings, account) if connect else (OK, [])
    if as_json:
        document = _summary_json(loaded) | {"warnings": [problem_json(each) for each in advice]}
        print_json(document | ({"checks": list(map(check_json, results))} if connect else {}))
    else:
        for result in results:
            print(result)
    return code


def _connect(settings: Settings, account: str) -> tuple[int, list[CheckResult]]:
    # here, so that a check of the config alone imports no client
    from watchrelay.admin.preflight import check_everything, worst_exit_code
    from watchrelay.observe import logs

    logs.configure(settings.observe.log_format, "error")
    results = run_until_signalled(check_everything(settings, account))
    return worst_exit_code(results), results


def _summary_json(loaded: Loaded) -> dict[str, Any]:
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
    """Partition counts by topic name, sorted."""
    topics: dict[str, int] = {}
    for stream in planned:
        if stream.topic:
            topics.setdefault(stream.topic, stream.partitions)
    return dict(sorted(topics.items()))


def _print_summary(loaded: Loaded) -> None:
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
