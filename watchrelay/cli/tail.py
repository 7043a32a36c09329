"""`watchrelay tail`: topics decoded, for people or programs."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, TextIO

import msgspec

from watchrelay.cli.manifests import name_of, yaml_of
from watchrelay.cli.signals import finish
from watchrelay.config import Settings, load_settings
from watchrelay.config.streams import plan
from watchrelay.consumer.reader import Seen, TailReader
from watchrelay.contract.records import Decoded, MarkerRecord, ObjectRecord
from watchrelay.core import clock
from watchrelay.core.errors import RecordRefused
from watchrelay.core.text import BROKEN_JSON, counted, printable, short, why_broken
from watchrelay.daemon.kafka_connection import kafka_connection
from watchrelay.daemon.plan import control_topic
from watchrelay.kafka.client.connection import reason_told

Printer = Callable[[Seen], str]

OUTPUTS: dict[str, Callable[[], Printer]] = {
    "text": lambda: text_printer(sys.stdout),
    "json": lambda: as_json,
    "yaml": lambda: yaml_printer(),
    "name": lambda: as_name,
}
_COLOURS = {"added": "32", "modified": "33", "deleted": "31", "read": "36"}
_MARKER_COLOUR = "2"
_json = msgspec.json.Encoder().encode
_BREAKS = frozenset(b"\n\r\t")
_QUIET_S = 30.0
_PATIENCE_S = 3.0
"""Longer than it takes until all brokers have refused."""


class ClientWords(logging.Handler):
    """What the Kafka client says while it is in trouble, to `out`: a line every half minute, where
    it says dozens a second.

    Not of a trouble that is over at once, nor of one that ends the command: that says it itself,
    with the cure.
    """

    def __init__(self, out: TextIO, *, now_s: Callable[[], float] = clock.now_s) -> None:
        super().__init__(logging.WARNING)
        self._out = out
        self._now_s = now_s
        self._since_s = self._newest_s = self._quiet_until_s = float("-inf")

    def emit(self, record: logging.LogRecord) -> None:
        """Print the line, unless the trouble has only begun, or another was printed not long
        ago."""
        now_s = self._now_s()
        if now_s - self._newest_s > _QUIET_S:
            self._since_s = now_s
        self._newest_s = now_s
        if now_s - self._since_s >= _PATIENCE_S and now_s >= self._quiet_until_s:
            self._quiet_until_s = now_s + _QUIET_S
            print(f"kafka: {short(' '.join(record.getMessage().split()))}", file=self._out)


@contextmanager
def client_words(out: TextIO) -> Iterator[None]:
    """While in it, what the Kafka client complains of goes to `out`, in few words, and nowhere
    else."""
    client_log, words = logging.getLogger("aiokafka"), ClientWords(out)
    client_log.propagate, before = False, client_log.propagate
    client_log.addHandler(words)
    try:
        yield
    finally:
        client_log.removeHandler(words)
        client_log.propagate = before


def run(args: argparse.Namespace) -> int:
    """Print until the end (`--until-end`), or until told to stop.

    Raises: ConfigError, SinkUnavailable, NothingPublished: one line for the operator each;
    ToldToStop.
    """
    settings = load_settings(args.config, args.sets)
    printer = OUTPUTS[args.output]()
    with client_words(sys.stderr):
        finish(_tail(settings, args, printer))
    return 0


async def _tail(settings: Settings, args: argparse.Namespace, printer: Printer) -> None:
    said: set[str] = set()

    def waiting(problem: str) -> None:
        if problem not in said:
            said.add(problem)
            print(f"waiting: {problem}", file=sys.stderr)

    connection = kafka_connection(settings, client_id="watchrelay-tail")
    reader = TailReader(
        connection.arguments(),
        control_topic=control_topic(settings),
        streams=args.streams,
        from_beginning=args.from_beginning,
        until_end=args.until_end,
        waiting=waiting,
        awaited=lambda stream: may_come(settings, stream),
    )
    selection = Selection(
        args.markers, tuple(args.key), frozenset(args.type), frozenset(args.namespace)
    )
    with reason_told(connection):
        async with aclosing(reader.batches()) as batches:
            async for seen in batches:
                print_batch(seen, printer, sys.stdout, sys.stderr, selection)


def may_come(settings: Settings, stream: str) -> bool:
    """Whether the config asks for `stream`, as far as can be told without a cluster, which alone
    knows groups and wildcards."""
    name, _, namespace = stream.partition("@")
    for each in plan(settings):
        if stream == each.id:
            return True
        if (
            not each.certain
            and namespace == (each.namespace or "")
            and (each.name.group is None or name.endswith(f".{each.name.group}"))
        ):
            return True
    return False


@dataclass(frozen=True, slots=True)
class Selection:
    """Which records are printed. Empty `keys` (patterns of a shell), `types`, `namespaces`: all; a
    marker also where its type is named."""

    markers: bool = False
    keys: tuple[str, ...] = ()
    types: frozenset[str] = frozenset()
    namespaces: frozenset[str] = frozenset()

    def wants(self, record: Decoded) -> bool:
        """Whether it is printed."""
        if isinstance(record, MarkerRecord):
            return self.markers or record.kind in self.types
        key = record.key.decode()
        return (
            (not self.types or record.verb in self.types)
            and (
                not self.namespaces or key.rpartition("/")[0].rpartition("/")[2] in self.namespaces
            )
            and (not self.keys or any(fnmatchcase(key, pattern) for pattern in self.keys))
        )


OBJECTS = Selection()
"""All objects, no marker."""


def print_batch(
    seen: list[Seen],
    printer: Printer,
    out: TextIO,
    complaints: TextIO,
    selection: Selection = OBJECTS,
) -> None:
    """Records to `out`; what is no record of ours to `complaints`, one line each."""
    lines = []
    for each in seen:
        if each.record is not None and not selection.wants(each.record):
            continue
        refused = each.refused
        if each.record is not None:
            try:
                lines.append(printer(each))
                continue
            except RecordRefused as error:
                refused = str(error)
        print(f"{each.topic}/{each.partition}@{each.offset}: {printable(refused)}", file=complaints)
    if lines:
        out.write("\n".join(lines) + "\n")
        out.flush()


def as_json(seen: Seen) -> str:
    """One JSON object, on one line, that any terminal can show.

    Shape: topic, partition, offset, stream, type, key, uid, resourceVersion, epoch, sequence,
    reason, object (its bytes as they stand on the topic, but for line ends between tokens and for
    characters that a terminal may not show); of a marker what it carries.
    Raises: RecordRefused: the value is not JSON.
    """
    record = seen.record
    assert record is not None
    place: dict[str, Any] = {
        "topic": seen.topic,
        "partition": seen.partition,
        "offset": seen.offset,
        "stream": record.stream,
    }
    if isinstance(record, ObjectRecord):
        fields = place | {
            "type": record.verb,
            "key": record.key.decode(),
            "uid": record.uid or None,
            "resourceVersion": record.version or None,
            "epoch": record.epoch,
            "sequence": record.sequence,
            "reason": record.reason,
            "object": None if record.value is None else _on_one_line(record.value),
        }
    else:
        fields = place | marker_fields(record)
    return printable(_json(fields).decode())


def _on_one_line(value: bytes) -> msgspec.Raw:
    try:
        value.decode()
        compact = msgspec.json.format(value, indent=-1)
    except BROKEN_JSON as error:
        raise RecordRefused(f"the value is not JSON: {why_broken(error, value)}") from error
    return msgspec.Raw(value if _BREAKS.isdisjoint(value) else compact)


def marker_fields(record: MarkerRecord) -> dict[str, Any]:
    """What a marker carries; what does not apply to its kind is left out."""
    fields: dict[str, Any] = {
        "type": record.kind,
        "key": f"%wr/{record.kind}/{record.stream}/{record.partition}",
        "epoch": record.epoch,
        "sequence": record.sequence,
        "time": record.time,
        "config": record.config,
        "partitions": record.partitions,
    }
    if record.kind != "claim":
        fields |= {
            "resourceVersion": record.frontier,
            "count": record.count,
            "digest": f"{record.digest:016x}",
        }
    if record.seen:
        fields["seen"] = record.seen
    if record.snapshot:
        fields["snapshot"] = record.snapshot
    if record.kind == "end":
        fields |= {"begin": record.begin_sequence, "beginOffset": record.begin_offset}
    if record.last_snapshot_offset is not None:
        fields |= {
            "lastSnapshot": record.last_snapshot,
            "lastSnapshotOffset": record.last_snapshot_offset,
        }
    return fields


def as_name(seen: Seen) -> str:
    """The object as kubectl names it, `pods/shop/web`; a marker by its key."""
    record = seen.record
    assert record is not None
    if isinstance(record, MarkerRecord):
        return printable(f"%wr/{record.kind}/{record.stream}/{record.partition}")
    return name_of(seen.source, record.stream, record.key.decode())


def yaml_printer() -> Printer:
    """Each object as a YAML document, as kubectl prints it. What has no object, a delete or a
    marker, is a comment."""
    separator = ""

    def as_yaml(seen: Seen) -> str:
        nonlocal separator
        record = seen.record
        if not isinstance(record, ObjectRecord) or record.value is None:
            return f"# {as_text(seen, coloured=False)}"
        before, text = separator, yaml_of(record.value)
        separator = "---\n"
        return f"{before}{text}"

    return as_yaml


def text_printer(out: TextIO) -> Printer:
    """One aligned line for people; coloured on a terminal, unless NO_COLOR is set. Source:
    https://no-color.org."""
    coloured = out.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return lambda seen: as_text(seen, coloured=coloured)


def as_text(seen: Seen, *, coloured: bool) -> str:
    """Time, stream, what happened, to which object, at which version, where it stands and why it
    was said."""
    record = seen.record
    assert record is not None
    where = f"p{seen.partition}@{seen.offset}"
    head = printable(f"{record.time[11:23]}  {record.stream:<20} ")
    if isinstance(record, ObjectRecord):
        what: str = record.verb
        colour = _COLOURS[what]
        note = (
            f", {record.trimmed} only"
            if record.trimmed == "stub"
            else ", without fields"
            if record.trimmed
            else ""
        )
        rest = (
            f"{record.key.decode():<44} rv {record.version:<10} {where:<10} {record.reason}{note}"
        )
    else:
        what, colour = record.kind, _MARKER_COLOUR
        told = (
            ""
            if record.kind == "claim"
            else (
                f"{counted(record.count, 'object')}, digest {record.digest:016x}, rv "
                f"{record.frontier}, "
            )
        )
        name = f"snapshot {record.snapshot}, " if record.snapshot else ""
        rest = f"{name}{told}epoch {record.epoch}  {where}"
    rest = printable(rest)
    if not coloured:
        return f"{head}{what:<9} {rest}".rstrip()
    if isinstance(record, MarkerRecord):
        return f"\x1b[{colour}m{head}{what:<9} {rest}\x1b[0m"
    return f"\x1b[2m{head}\x1b[0m\x1b[{colour}m{what:<9}\x1b[0m {rest}".rstrip()
