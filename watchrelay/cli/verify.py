"""`watchrelay verify`: the topics replayed from their last complete snapshots, every rule and every
digest checked; with `--cluster` compared with the API server."""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from itertools import groupby
from typing import TextIO

import msgspec

from watchrelay.admin.compare import compare_with_cluster
from watchrelay.admin.preflight import Fact, connected
from watchrelay.cli.signals import finish
from watchrelay.cli.tail import client_words
from watchrelay.config import Settings, load_settings
from watchrelay.config.streams import may_mean, plan
from watchrelay.consumer.audit import Audit, Stale
from watchrelay.consumer.audit_run import Auditor
from watchrelay.contract.partitioning import partition_of
from watchrelay.contract.records import DIGEST_MASK
from watchrelay.core.text import counted, printable
from watchrelay.daemon.kafka_connection import kafka_connection
from watchrelay.daemon.key_formats import KeyFormats
from watchrelay.daemon.plan import PlannedStream, control_topic
from watchrelay.kafka.client.failures import explained_failures
from watchrelay.kafka.log_scan import descriptions
from watchrelay.kube.client import KubeClient
from watchrelay.observe import logs

OK, FAILED = 0, 1
_SHOWN = 10
UNSERVED = " (--cluster tells whether the cluster serves its resource at all)"
_encode = msgspec.json.Encoder().encode

Row = tuple[Audit, int, int]


def run(args: argparse.Namespace) -> int:
    """Print the rows; 0 when every partition of every stream is proven and without a problem.

    Raises: ConfigError, SinkUnavailable, KubeError, NothingPublished: one line for the operator
    each.
    """
    settings = load_settings(args.config, args.sets)
    logs.configure(settings.observe.log_format, "error")
    collect_rarely()
    with client_words(sys.stderr):
        return finish(_verify(settings, args))


def collect_rarely() -> None:
    """Nothing that is read here is cyclic, and the collector would look at each record again and
    again."""
    gc.set_threshold(200_000, 50, 1000)


async def _verify(settings: Settings, args: argparse.Namespace) -> int:
    async with AsyncExitStack() as stack:
        client: KubeClient | None = None
        planned: list[PlannedStream] = []
        if args.cluster:
            client, planned, facts = await connected(settings, stack)
            for fact in facts:
                print(fact, file=sys.stderr)
            if client is None or Fact.exit_code(facts):
                return Fact.exit_code(facts)
        connection = kafka_connection(settings, client_id="watchrelay-verify")
        auditor = Auditor(
            connection.arguments(),
            control_topic=control_topic(settings),
            streams=args.streams,
            home=partition_of,
            bare=args.cluster,
        )
        stack.enter_context(explained_failures(connection))
        await stack.enter_async_context(auditor)
        await auditor.read_to_end()
        for why in auditor.missing.values():
            print(f"error: {why}", file=sys.stderr)
        published = [*auditor.streams, *auditor.missing]
        absent = never_published(settings, published) if client is None and not args.streams else []
        if client is not None:
            formats = KeyFormats(await descriptions(connection, control_topic(settings)))
            written = [replace(each, spec=formats.kept(each.spec)) for each in planned]
            absent = await _compare(auditor, client, written, args.streams)
        for stream in absent:
            print(
                f"error: stream {stream}: in the config, but never "
                f"published{UNSERVED if client is None else ''}",
                file=sys.stderr,
            )
        rows = await auditor.rows()
    print_rows(
        rows,
        args.output,
        sys.stdout,
        absent=len(absent),
        missing=len(auditor.missing),
        each=args.partitions,
    )
    return (
        OK
        if not (absent or auditor.missing) and all(holds(audit) for audit, _, _ in rows)
        else FAILED
    )


def never_published(settings: Settings, published: Sequence[str]) -> list[str]:
    """The streams of the config that nothing stands of on Kafka, as far as that is certain without
    a cluster.

    Shape: not certain are wildcards, and short names and kinds of resources that are not built in.
    """
    certain = [each for each in plan(settings) if each.certain and not each.name.wildcard]
    return sorted(
        {each.id for each in certain if not any(may_mean(each, stream) for stream in published)}
    )


async def _compare(
    auditor: Auditor, client: KubeClient, planned: list[PlannedStream], asked: list[str]
) -> list[str]:
    """Compare each stream that the config has; those of them that are not published."""
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
        if not asked or stream in asked
    )


def holds(audit: Audit) -> bool:
    """Proven, and nothing to complain of."""
    return audit.state.proven and not audit.problems


def print_rows(
    rows: list[Row],
    output: str,
    out: TextIO,
    *,
    absent: int = 0,
    missing: int = 0,
    each: bool = False,
) -> None:
    """One JSON object a line for each stream and partition; or a line for each stream, below it
    those partitions that do not hold, or have a note, with what is wrong.

    Args:
        absent: how many streams of the config were never published.
        missing: how many streams have a topic, or partitions of it, that cannot be read.
        each: a line for each partition in place of one for each stream.
    """
    if output == "json":
        out.write("".join(f"{as_json(row)}\n" for row in rows))
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
                out.write(printable(f"{stream:<{width}} {as_text(row)}") + "\n")
            elif not holds(row[0]) or row[0].stale is not None:
                out.write(printable(f"  {as_text(row)}") + "\n")
            _print_problems(row[0], out)
    bad = sum(not holds(audit) for audit, _, _ in rows)
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
    for problem in audit.problems[:_SHOWN]:
        where = "" if problem.offset is None else f" @{problem.offset}"
        about = "" if problem.key is None else f" {problem.key}:"
        out.write(printable(f"  {problem.kind}{where}:{about} {problem.detail}") + "\n")
    if len(audit.problems) > _SHOWN:
        out.write(f"  and {len(audit.problems) - _SHOWN} more; --output json has them\n")
    if (stale := audit.stale) is not None:
        out.write(printable(f"  note {note(stale)}") + "\n")


def note(stale: Stale) -> str:
    """What stale records mean for an operator: how many, where, and why the partition holds all the
    same."""
    where = f"@{stale.first}" if stale.first == stale.last else f"@{stale.first}..{stale.last}"
    which = f"{stale.key} first" if stale.keys > 1 else stale.key
    return (
        f"{where}: the newest record of {counted(stale.keys, 'key')} ({which}) is stale, of "
        "a former writer or sent late: "
        "readers by the contract pass it over; a plain table shows it until a running relay "
        "says the key again"
    )


def as_json(row: Row) -> str:
    """One JSON object. Shape: `to` is the offset behind the last one read; `stale` is null, or how
    many keys, where, and the first one."""
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


def as_text(row: Row) -> str:
    """One partition, for people."""
    audit, start, to = row
    return f"{audit.topic}/{audit.partition} @{start}..{to}: {_facts([audit])}"


def summary(audits: Sequence[Audit]) -> str:
    """One stream, for people: its partitions together."""
    topics = ", ".join(sorted({audit.topic for audit in audits}))
    return f"{topics}: {counted(len(audits), 'partition')}, {_facts(audits)}"


def _facts(audits: Sequence[Audit]) -> str:
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
        "holds" if all(map(holds, audits)) else "proven, with problems" if proven else "NOT PROVEN"
    )
    return (
        f"{counted(records, 'record')}, {counted(objects, 'object')}, digest {digest:016x}, "
        f"epoch {epoch}: {verdict}"
    )
