"""What `watchrelay verify` checks, and how it prints each audit."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from itertools import groupby
from typing import TextIO

import msgspec

from watchrelay.admin.compare import bare_of, compare_with_cluster
from watchrelay.admin.preflight import (
    CheckResult,
    connected,
    resolve_described,
    worst_exit_code,
)
from watchrelay.cli.output import json_for, print_error
from watchrelay.config import Settings
from watchrelay.config.streams import control_topic, may_mean, plan
from watchrelay.config.values import duration_text
from watchrelay.consumer.audit import Audit, AuditProblem
from watchrelay.consumer.audit_run import Auditor, open_auditor
from watchrelay.contract.control import Value
from watchrelay.contract.records import DIGEST_MASK
from watchrelay.core import clock
from watchrelay.core.exit_codes import FAILED, OK
from watchrelay.core.text import counted, printable
from watchrelay.kafka.log_scan import descriptions
from watchrelay.kube.client import KubeClient
from watchrelay.plan.described import KeyFormats
from watchrelay.plan.kafka import kafka_connection
from watchrelay.plan.streams import PlannedStream

_PROBLEMS_SHOWN = 10
_MAYBE_UNSERVED = " (--cluster shows whether the cluster serves its resource at all)"

Row = tuple[Audit, int, int]
"""A partition, and the offsets where its audit began and ended."""


def reduce_garbage_collection() -> None:
    """Let the collector run rarely: it would visit every record again, and none is in a cycle."""
    gc.set_threshold(200_000, 50, 1000)


async def check_streams(
    settings: Settings,
    streams: Sequence[str],
    *,
    cluster: bool,
    max_age_s: float | None = None,
    each: bool,
    as_json: bool,
    wall_ms: Callable[[], int] = clock.wall_ms,
) -> int:
    """Check the streams, print the result; the exit code. Arguments as of `verify`."""
    async with AsyncExitStack() as stack:
        client: KubeClient | None = None
        code = OK
        if cluster:
            client, _, results = await connected(settings, stack)
            code = _print_failures(results)
            if client is None or not all(map(_of_the_config, results)):
                return code
        connection = kafka_connection(settings, client_id="watchrelay-verify")
        described: Mapping[str, Value] = {}
        results = list[CheckResult]()
        written: dict[str, PlannedStream] = {}
        if client is not None:
            described = await descriptions(connection, control_topic(settings))
            written = await _written(settings, client, described, results)
            if not all(map(_of_the_config, results)):
                return _print_failures(results)
        auditor = await stack.enter_async_context(
            open_auditor(
                connection,
                control_topic=control_topic(settings),
                streams=streams,
                bare=lambda stream: bare_of(written[stream]) if stream in written else None,
            )
        )
        await auditor.read_to_end()
        for reason in auditor.missing.values():
            print_error(f"error: {reason}")
        published = [*auditor.streams, *auditor.missing]
        absent = never_published(settings, published) if client is None and not streams else []
        uncompared = 0
        if client is not None:
            absent = await _compare(auditor, client, written, streams)
            uncompared = _print_uncompared(settings, auditor, written, described, results)
        for stream in absent:
            print_error(
                f"error: stream {stream}: in the config, but never "
                f"published{_MAYBE_UNSERVED if client is None else ''}"
            )
        rows = auditor.rows()
    now_ms = wall_ms()
    if max_age_s is not None:
        for audit, _, _ in rows:
            judge_age(audit, now_ms, max_age_s)
    print_rows(
        rows,
        sys.stdout,
        as_json=as_json,
        absent=len(absent),
        missing=len(auditor.missing),
        uncompared=uncompared,
        each=each,
        now_ms=now_ms,
    )
    passed = not (absent or auditor.missing or uncompared)
    return code if passed and all(passes(audit) for audit, _, _ in rows) else FAILED


async def _written(
    settings: Settings,
    client: KubeClient,
    described: Mapping[str, Mapping[str, object]],
    results: list[CheckResult],
) -> dict[str, PlannedStream]:
    """The streams of the config on this cluster, with the keys that their topics have; `results`
    gets what is wrong."""
    planned = await resolve_described(settings, client, described, results)
    formats = KeyFormats(described)
    return {one.spec.id: replace(one, spec=formats.kept(one.spec)) for one in planned}


def _of_the_config(result: CheckResult) -> bool:
    """Whether a check is good, or its failure concerns one entry or stream alone."""
    return result.level != "error" or result.subject.startswith(("resource ", "stream "))


def _why_uncompared(
    settings: Settings,
    stream: str,
    described: Mapping[str, Mapping[str, object]],
    results: Sequence[CheckResult],
) -> str:
    """Why a published stream is none of those that the config has on this cluster."""
    entries = [each.entry.resource for each in plan(settings) if may_mean(each, stream)]
    for entry in entries:
        for result in results:
            if result.subject == f"resource {entry}" and result.level != "ok":
                return result.message
    if entries:
        return f"{described.get(stream, {}).get('resource')} is not served"
    return f"not in this config (`watchrelay retire {stream}` removes its objects)"


def _print_uncompared(
    settings: Settings,
    auditor: Auditor,
    compared: Container[str],
    described: Mapping[str, Mapping[str, object]],
    results: Sequence[CheckResult],
) -> int:
    """Print which published streams were not compared with the cluster, and why; how many of them
    have objects."""
    found = 0
    for stream in auditor.streams:
        if stream not in compared:
            objects = sum(len(audit.state.held) for audit in auditor.of(stream))
            found += objects > 0
            held = f", and the topic holds {counted(objects, 'object')} of it" if objects else ""
            why = _why_uncompared(settings, stream, described, results)
            level = "error" if objects else "warning"
            print_error(f"{level}: stream {stream}: not compared with the cluster{held}: {why}")
    return found


def _print_failures(results: Iterable[CheckResult]) -> int:
    """Print what is not as it should be; the exit code."""
    problems = [result for result in results if result.level != "ok"]
    for result in problems:
        print_error(str(result))
    return worst_exit_code(problems)


def never_published(settings: Settings, published: Sequence[str]) -> list[str]:
    """The streams of the config that are not among `published` and whose id is known without a
    cluster."""
    certain = [each for each in plan(settings) if each.certain and not each.name.wildcard]
    return sorted(
        {each.id for each in certain if not any(may_mean(each, stream) for stream in published)}
    )


async def _compare(
    auditor: Auditor,
    client: KubeClient,
    planned: Mapping[str, PlannedStream],
    wanted: Sequence[str],
) -> list[str]:
    """Compare each published stream of the config; the ids of those that are not published."""
    for stream in auditor.streams:
        if stream in planned:
            await compare_with_cluster(auditor, client, planned[stream])
    return sorted(
        stream
        for stream in planned.keys() - {*auditor.streams, *auditor.missing}
        if not wanted or stream in wanted
    )


def judge_age(audit: Audit, now_ms: int, max_age_s: float) -> None:
    """Add a problem where the state is older, or its age is not known."""
    age, unknown = audit.age(now_ms)
    if age is None:
        why = f"the age of the state is not known: {unknown}"
    elif age.seconds > max_age_s:
        limit = duration_text(max_age_s)
        why = (
            f"the state is {_duration(age.seconds)} old, the limit is {limit}: start the relay, or "
            "see what keeps it from the API server or Kafka"
        )
    else:
        return
    audit.add(AuditProblem("age", None, None, why))


def _duration(seconds: float) -> str:
    return duration_text(round(seconds)) if seconds >= 1 else "0s"


def passes(audit: Audit) -> bool:
    return audit.state.proven and not audit.problems


def print_rows(
    rows: list[Row],
    out: TextIO,
    *,
    as_json: bool,
    absent: int = 0,
    missing: int = 0,
    uncompared: int = 0,
    each: bool = False,
    now_ms: int,
) -> None:
    """Print one JSON object a line for each partition; or a line for each stream, and below it
    those of its partitions that have problems or notes, with these.

    Args:
        rows: the partitions, in the order of their streams.
        absent: how many streams of the config were never published.
        missing: how many streams cannot be read as a whole.
        uncompared: how many streams have objects that were not compared with the cluster.
        each: print a line for each partition in place of one for each stream.
        now_ms: wall clock, for the ages."""
    if as_json:
        out.write(json_for(out, "".join(f"{_row_json(row, now_ms)}\n" for row in rows)))
        return
    width = max([len(audit.stream) for audit, _, _ in rows] + [6])
    for stream, group in groupby(rows, lambda row: row[0].stream):
        of_stream, head = list(group), f"{stream:<{width}}"
        if not each:
            audits = [audit for audit, _, _ in of_stream]
            topics = ", ".join(sorted({audit.topic for audit in audits}))
            partitions = counted(len(audits), "partition")
            _print(f"{head} {topics}: {partitions}, {_totals(audits, now_ms)}", out)
            head = " "
        for audit, start, to in of_stream:
            if each or not passes(audit) or audit.stale is not None or audit.in_part:
                where = f"{audit.topic}/{audit.partition} @{start}..{to}"
                _print(f"{head} {where}: {_totals([audit], now_ms)}", out)
            _print_problems(audit, out)
    _print(_verdict(rows, absent, missing, uncompared), out)


def _verdict(rows: list[Row], absent: int, missing: int, uncompared: int) -> str:
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
    if uncompared:
        verdict += (
            f"; {counted(uncompared, 'stream')} {'was' if uncompared == 1 else 'were'} not "
            "compared with the cluster"
        )
    return f"{verdict}, {counted(read, 'record')} read"


def _print(text: str, out: TextIO) -> None:
    out.write(printable(text) + "\n")


def _print_problems(audit: Audit, out: TextIO) -> None:
    for problem in audit.problems[:_PROBLEMS_SHOWN]:
        where = "" if problem.offset is None else f" @{problem.offset}"
        about = "" if problem.key is None else f" {problem.key}:"
        _print(f"  {problem.kind}{where}:{about} {problem.detail}", out)
    if (more := len(audit.problems) - _PROBLEMS_SHOWN) > 0:
        _print(f"  and {more} more; --output json has them", out)
    if keys := audit.in_part:
        which = f"{keys[0]} first" if len(keys) > 1 else keys[0]
        _print(
            f"  note: {counted(len(keys), 'object')} ({which}) published in part, too large for "
            "the topic: raise its max.message.bytes; each comes whole with its next change",
            out,
        )
    if (stale := audit.stale) is not None:
        at = f"@{stale.first}" if stale.first == stale.last else f"@{stale.first}..{stale.last}"
        which = f"{stale.key} first" if stale.keys > 1 else stale.key
        _print(
            f"  note {at}: the newest record of {counted(stale.keys, 'key')} ({which}) is stale, "
            "of a former writer or sent late: consumers that follow the contract ignore it; a "
            "plain table shows it until a running relay publishes the key again",
            out,
        )


def _row_json(row: Row, now_ms: int) -> str:
    """One partition as a JSON object. `to` is the offset after the last one read."""
    audit, start, to = row
    age, _ = audit.age(now_ms)
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
        "ageSeconds": None if age is None else age.seconds,
        "ageClock": None if age is None else "broker" if age.by_broker else "relay",
        "problems": audit.problems,
        "stale": audit.stale,
        "inPart": len(audit.in_part),
    }
    return msgspec.json.encode(fields).decode()


def _totals(audits: Sequence[Audit], now_ms: int) -> str:
    records = sum(audit.records for audit in audits)
    objects = sum(len(audit.state.held) for audit in audits)
    digest = sum(audit.state.digest for audit in audits) & DIGEST_MASK
    epoch = max(audit.state.epoch for audit in audits)
    proven = all(audit.state.proven for audit in audits)
    verdict = (
        "holds" if all(map(passes, audits)) else "proven, with problems" if proven else "NOT PROVEN"
    )
    return (
        f"{counted(records, 'record')}, {counted(objects, 'object')}, digest {digest:016x}, "
        f"epoch {epoch}: {verdict}, {_age(audits, now_ms)}"
    )


def _age(audits: Sequence[Audit], now_ms: int) -> str:
    """Of the oldest partition."""
    ages = [age for age, _ in (audit.age(now_ms) for audit in audits) if age is not None]
    if len(ages) < len(audits):
        return "age not known"
    oldest = max(ages)
    clock_named = "" if oldest.by_broker else " by the clock of the relay"
    return f"{_duration(oldest.seconds)} old{clock_named}"
