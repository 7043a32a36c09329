"""`watchrelay verify`: replays the topics from their last complete snapshots and checks every rule
and digest; with `--cluster` compares them with the API server."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from itertools import groupby
from typing import TextIO

import msgspec

from watchrelay.admin.compare import compare_with_cluster
from watchrelay.admin.preflight import connected, worst_exit_code
from watchrelay.cli.client_messages import short_client_log
from watchrelay.cli.options import ConfigOptions
from watchrelay.cli.signals import run_until_signalled
from watchrelay.config import Settings, load_settings
from watchrelay.config.streams import may_mean, plan
from watchrelay.consumer.audit import Audit, Stale
from watchrelay.consumer.audit_run import Auditor
from watchrelay.contract.partitioning import partition_of
from watchrelay.contract.records import DIGEST_MASK
from watchrelay.core.exit_codes import FAILED, OK
from watchrelay.core.text import counted, printable
from watchrelay.daemon.kafka_connection import kafka_connection
from watchrelay.daemon.key_formats import KeyFormats
from watchrelay.daemon.plan import PlannedStream, control_topic
from watchrelay.kafka.client.failures import explained_failures
from watchrelay.kafka.log_scan import descriptions
from watchrelay.kube.client import KubeClient
from watchrelay.observe import logs

_PROBLEMS_SHOWN = 10
_MAYBE_UNSERVED = " (--cluster shows whether the cluster serves its resource at all)"
_encode = msgspec.json.Encoder().encode

Row = tuple[Audit, int, int]
"""A partition, and the offsets where its audit began and ended."""


def verify(
    config: ConfigOptions,
    streams: Sequence[str],
    *,
    cluster: bool,
    partitions: bool,
    as_json: bool,
) -> int:
    """Check the streams and print the result.

    Args:
        config: where the settings come from.
        streams: stream ids; none: all published streams.
        cluster: compare with what the API server lists, too.
        partitions: print a line for each partition in place of one for each stream.
        as_json: print one JSON object for each partition.

    Returns:
        0 when every partition of every stream is proven and without a problem, else 1.

    Raises:
        ConfigError, SinkUnavailable, KubeError, NothingPublished: one line for the operator each.
        StoppedBySignal: a signal came first.
    """
    settings = load_settings(*config)
    logs.configure(settings.observe.log_format, "error")
    reduce_garbage_collection()
    with short_client_log(sys.stderr):
        return run_until_signalled(
            _verify(settings, streams, cluster=cluster, partitions=partitions, as_json=as_json)
        )


def reduce_garbage_collection() -> None:
    """Let the collector run rarely: it would visit every record again, and none is in a cycle."""
    gc.set_threshold(200_000, 50, 1000)


async def _verify(
    settings: Settings,
    streams: Sequence[str],
    *,
    cluster: bool,
    partitions: bool,
    as_json: bool,
) -> int:
    async with AsyncExitStack() as stack:
        client: KubeClient | None = None
        planned: list[PlannedStream] = []
        if cluster:
            client, planned, failed = await connected(settings, stack)
            for result in failed:
                print(result, file=sys.stderr)
            if client is None or worst_exit_code(failed):
                return worst_exit_code(failed)
        connection = kafka_connection(settings, client_id="watchrelay-verify")
        auditor = Auditor(
            connection.arguments(),
            control_topic=control_topic(settings),
            streams=streams,
            home=partition_of,
            bare=cluster,
        )
        stack.enter_context(explained_failures(connection))
        await stack.enter_async_context(auditor)
        await auditor.read_to_end()
        for reason in auditor.missing.values():
            print(f"error: {reason}", file=sys.stderr)
        published = [*auditor.streams, *auditor.missing]
        absent = never_published(settings, published) if client is None and not streams else []
        if client is not None:
            formats = KeyFormats(await descriptions(connection, control_topic(settings)))
            written = [replace(each, spec=formats.kept(each.spec)) for each in planned]
            absent = await _compare(auditor, client, written, streams)
        for stream in absent:
            print(
                f"error: stream {stream}: in the config, but never "
                f"published{_MAYBE_UNSERVED if client is None else ''}",
                file=sys.stderr,
            )
        rows = await auditor.rows()
    print_rows(
        rows,
        sys.stdout,
        as_json=as_json,
        absent=len(absent),
        missing=len(auditor.missing),
        each=partitions,
    )
    passed = not (absent or auditor.missing) and all(passes(audit) for audit, _, _ in rows)
    return OK if passed else FAILED


def never_published(settings: Settings, published: Sequence[str]) -> list[str]:
    """The streams of the config that are not among `published`, without those whose id only the
    cluster knows: wildcards, and short names and kinds of resources that are not built in."""
    certain = [each for each in plan(settings) if each.certain and not each.name.wildcard]
    return sorted(
        {each.id for each in certain if not any(may_mean(each, stream) for stream in published)}
    )


async def _compare(
    auditor: Auditor, client: KubeClient, planned: list[PlannedStream], wanted: Sequence[str]
) -> list[str]:
    """Compare each published stream that the config has; the ids of those that are not
    published."""
    by_id = {each.spec.id: each for each in planned}
    for stream in auditor.streams:
        if stream in by_id:
            await compare_with_cluster(auditor, client, by_id[stream])
        else:
            print(
                f"warning: stream {stream}: not in this config, so not compared with the cluster",
                file=sys.stderr,
            )
    return sorted(
        stream
        for stream in by_id.keys() - {*auditor.streams, *auditor.missing}
        if not wanted or stream in wanted
    )


def passes(audit: Audit) -> bool:
    """Whether the partition is proven, and without a problem."""
    return audit.state.proven and not audit.problems


def print_rows(
    rows: list[Row],
    out: TextIO,
    *,
    as_json: bool,
    absent: int = 0,
    missing: int = 0,
    each: bool = False,
) -> None:
    """Print one JSON object a line for each partition; or a line for each stream, and below it
    those of its partitions that have problems or notes, with these.

    Args:
        rows: the partitions, in the order of their streams.
        out: gets the lines.
        as_json: print JSON.
        absent: how many streams of the config were never published.
        missing: how many streams have a topic, or partitions of it, that cannot be read.
        each: print a line for each partition in place of one for each stream.
    """
    if as_json:
        out.write("".join(f"{row_json(row)}\n" for row in rows))
        return
    width = max([len(audit.stream) for audit, _, _ in rows] + [6])
    for stream, group in groupby(rows, lambda row: row[0].stream):
        of_stream = list(group)
        if not each:
            out.write(
                printable(f"{stream:<{width}} {summary([audit for audit, _, _ in of_stream])}")
                + "\n"
            )
        for row in of_stream:
            if each:
                out.write(printable(f"{stream:<{width}} {row_text(row)}") + "\n")
            elif not passes(row[0]) or row[0].stale is not None:
                out.write(printable(f"  {row_text(row)}") + "\n")
            _print_problems(row[0], out)
    bad = sum(not passes(audit) for audit, _, _ in rows)
    read = sum(audit.records for audit, _, _ in rows)
    partitions = counted(len(rows), "partition")
    if bad:
        verdict = f"{bad} of {partitions} {'does' if bad == 1 else 'do'} not hold"
    else:
        verdict = f"{partitions} holds" if len(rows) == 1 else f"all {partitions} hold"
    if absent:
        verdict += (
            f"; {counted(absent, 'stream')} of the config {'was' if absent == 1 else 'were'} "
            "never published"
        )
    if missing:
        verdict += f"; {counted(missing, 'stream')} cannot be read as a whole"
    out.write(f"{verdict}, {counted(read, 'record')} read\n")


def _print_problems(audit: Audit, out: TextIO) -> None:
    for problem in audit.problems[:_PROBLEMS_SHOWN]:
        where = "" if problem.offset is None else f" @{problem.offset}"
        about = "" if problem.key is None else f" {problem.key}:"
        out.write(printable(f"  {problem.kind}{where}:{about} {problem.detail}") + "\n")
    if len(audit.problems) > _PROBLEMS_SHOWN:
        out.write(f"  and {len(audit.problems) - _PROBLEMS_SHOWN} more; --output json has them\n")
    if (stale := audit.stale) is not None:
        out.write(printable(f"  note {stale_note(stale)}") + "\n")


def stale_note(stale: Stale) -> str:
    """What stale records mean for an operator: how many, where, and why they are no fault."""
    where = f"@{stale.first}" if stale.first == stale.last else f"@{stale.first}..{stale.last}"
    which = f"{stale.key} first" if stale.keys > 1 else stale.key
    return (
        f"{where}: the newest record of {counted(stale.keys, 'key')} ({which}) is stale, of "
        "a former writer or sent late: consumers that follow the contract ignore it; a plain table "
        "shows it until a running relay publishes the key again"
    )


def row_json(row: Row) -> str:
    """One partition as a JSON object. `to` is the offset behind the last one read; `stale` is null,
    or how many keys, at which offsets, and the first key."""
    audit, start, to = row
    fields = {
        "stream": audit.stream,
        "topic": audit.topic,
        "partition": audit.partition,
        "from": start,
        "to": to,
        "records": audit.records,
        "objects": len(audit.state.held),
        "epoch": audit.state.epoch,
        "proven": audit.state.proven,
        "problems": audit.problems,
        "stale": audit.stale,
    }
    return _encode(fields).decode()


def row_text(row: Row) -> str:
    """One partition as text."""
    audit, start, to = row
    return f"{audit.topic}/{audit.partition} @{start}..{to}: {_totals([audit])}"


def summary(audits: Sequence[Audit]) -> str:
    """One stream, all its partitions together, as text."""
    topics = ", ".join(sorted({audit.topic for audit in audits}))
    return f"{topics}: {counted(len(audits), 'partition')}, {_totals(audits)}"


def _totals(audits: Sequence[Audit]) -> str:
    records, objects = (
        sum(audit.records for audit in audits),
        sum(len(audit.state.held) for audit in audits),
    )
    digest, epoch = (
        sum(audit.state.digest for audit in audits) & DIGEST_MASK,
        max(audit.state.epoch for audit in audits),
    )
    proven = all(audit.state.proven for audit in audits)
    verdict = (
        "holds" if all(map(passes, audits)) else "proven, with problems" if proven else "NOT PROVEN"
    )
    return (
        f"{counted(records, 'record')}, {counted(objects, 'object')}, digest {digest:016x}, "
        f"epoch {epoch}: {verdict}"
    )
