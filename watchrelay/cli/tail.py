"""`watchrelay tail`: topics decoded, for people or programs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal, TextIO

import msgspec

from watchrelay.cli.client_messages import short_client_log
from watchrelay.cli.manifests import name_of, yaml_of
from watchrelay.cli.options import ConfigOptions
from watchrelay.cli.signals import run_until_signalled
from watchrelay.config import Settings, load_settings
from watchrelay.config.streams import plan
from watchrelay.consumer.reader import Seen, TailReader
from watchrelay.contract.records import Decoded, MarkerRecord, ObjectRecord
from watchrelay.core.errors import RecordRefused
from watchrelay.core.text import BROKEN_JSON, counted, printable, why_broken
from watchrelay.daemon.kafka_connection import kafka_connection
from watchrelay.daemon.plan import control_topic
from watchrelay.kafka.client.failures import explained_failures

Printer = Callable[[Seen], str]

PRINTERS: dict[str, Callable[[], Printer]] = {
    "text": lambda: text_printer(sys.stdout),
    "json": lambda: as_json,
    "yaml": lambda: yaml_printer(),
    "name": lambda: as_name,
}
_COLOURS = {"added": "32", "modified": "33", "deleted": "31", "read": "36"}
_MARKER_COLOUR = "2"
_json = msgspec.json.Encoder().encode
_BREAKS = frozenset(b"\n\r\t")


def tail(
    config: ConfigOptions,
    streams: Sequence[str],
    *,
    from_beginning: bool,
    until_end: bool,
    output: Literal["text", "json", "yaml", "name"],
    markers: bool,
    keys: Sequence[str],
    types: Sequence[str],
    namespaces: Sequence[str],
) -> int:
    """Print records until a signal stops it, or with `until_end` up to the end at the start.

    Args:
        config: where the settings come from.
        streams: stream ids; none: all published streams.
        from_beginning: start with the oldest record.
        until_end: stop at the offsets that are the end now.
        output: the form of each record.
        markers: print markers too.
        keys, types, namespaces: print only these; see `RecordFilter`.

    Returns:
        0.

    Raises:
        ConfigError, SinkUnavailable, NothingPublished: one line for the operator each.
        StoppedBySignal: a signal came first.
    """
    settings = load_settings(*config)
    printer = PRINTERS[output]()
    wanted = RecordFilter(markers, tuple(keys), frozenset(types), frozenset(namespaces))
    shown: set[str] = set()

    def waiting(problem: str) -> None:
        if problem not in shown:
            shown.add(problem)
            print(f"waiting: {problem}", file=sys.stderr)

    async def print_records() -> None:
        connection = kafka_connection(settings, client_id="watchrelay-tail")
        reader = TailReader(
            connection.arguments(),
            control_topic=control_topic(settings),
            streams=streams,
            from_beginning=from_beginning,
            until_end=until_end,
            waiting=waiting,
            awaited=lambda stream: may_be_configured(settings, stream),
        )
        with explained_failures(connection):
            async with aclosing(reader.batches()) as batches:
                async for seen in batches:
                    print_batch(seen, printer, sys.stdout, sys.stderr, wanted)

    with short_client_log(sys.stderr):
        run_until_signalled(print_records())
    return 0


def may_be_configured(settings: Settings, stream: str) -> bool:
    """Whether an entry of the config may mean `stream`; only the cluster can resolve groups and
    wildcards."""
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
class RecordFilter:
    """Which records are printed. `keys` are shell patterns; empty `keys`, `types` or `namespaces`
    match all objects. Markers are printed with `markers`, or where `types` names theirs."""

    markers: bool = False
    keys: tuple[str, ...] = ()
    types: frozenset[str] = frozenset()
    namespaces: frozenset[str] = frozenset()

    def matches(self, record: Decoded) -> bool:
        """Whether the record is printed."""
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


ALL_OBJECTS = RecordFilter()
"""All objects, no markers."""


def print_batch(
    seen: list[Seen],
    printer: Printer,
    out: TextIO,
    errors: TextIO,
    wanted: RecordFilter = ALL_OBJECTS,
) -> None:
    """Print records to `out`, and a line to `errors` for each that breaks the record contract."""
    lines = []
    for each in seen:
        if each.record is not None and not wanted.matches(each.record):
            continue
        refused = each.refused
        if each.record is not None:
            try:
                lines.append(printer(each))
                continue
            except RecordRefused as error:
                refused = str(error)
        print(f"{each.topic}/{each.partition}@{each.offset}: {printable(refused)}", file=errors)
    if lines:
        out.write("\n".join(lines) + "\n")
        out.flush()


def as_json(seen: Seen) -> str:
    """A record as one JSON object, on one line, of printable characters.

    `object` has the bytes of the value, but for line ends between tokens and for characters that
    are not printable. A marker has the fields of `marker_fields`.

    Raises:
        RecordRefused: the value is not JSON.
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
    """The fields of a marker; those that do not apply to its kind are left out."""
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
    """Prints each object as a YAML document, as kubectl does, and deletes and markers as
    comments."""
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
    """Prints a record as one aligned line; coloured on a terminal, unless NO_COLOR is set. Source:
    https://no-color.org."""
    coloured = out.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return lambda seen: as_text(seen, coloured=coloured)


def as_text(seen: Seen, *, coloured: bool) -> str:
    """A record as one line: time, stream, type, key, version, partition, offset and reason."""
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
        state = (
            ""
            if record.kind == "claim"
            else (
                f"{counted(record.count, 'object')}, digest {record.digest:016x}, rv "
                f"{record.frontier}, "
            )
        )
        name = f"snapshot {record.snapshot}, " if record.snapshot else ""
        rest = f"{name}{state}epoch {record.epoch}  {where}"
    rest = printable(rest)
    if not coloured:
        return f"{head}{what:<9} {rest}".rstrip()
    if isinstance(record, MarkerRecord):
        return f"\x1b[{colour}m{head}{what:<9} {rest}\x1b[0m"
    return f"\x1b[2m{head}\x1b[0m\x1b[{colour}m{what:<9}\x1b[0m {rest}".rstrip()
