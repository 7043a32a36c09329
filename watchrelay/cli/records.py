"""Records of the topics as text, JSON, YAML or names, and which of them are printed."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final, TextIO

import msgspec

from watchrelay.cli.manifests import yaml_of
from watchrelay.cli.output import json_for, print_error
from watchrelay.consumer.reader import TailRecord
from watchrelay.contract.records import Decoded, MarkerRecord, ObjectRecord
from watchrelay.core import clock
from watchrelay.core.errors import RecordRefused
from watchrelay.core.text import BROKEN_JSON, counted, printable, short, why_broken

Printer = Callable[[TailRecord], str]

PRINTERS: dict[str, Callable[[], Printer]] = {
    "text": lambda: text_printer(sys.stdout),
    "json": lambda: json_printer(sys.stdout),
    "yaml": lambda: yaml_printer(),
    "name": lambda: as_name,
}
_COLOURS = {"added": "32", "modified": "33", "deleted": "31", "read": "36"}
_MARKER_COLOUR = "2"
_TRIMMED = {"": "", "fields": ", without fields", "stub": ", stub only"}
_json = msgspec.json.Encoder().encode
_INTERVAL_S: Final = 30.0
_PATIENCE_S: Final = 3.0
"""Longer than it takes until all brokers have refused a connection."""
_BREAKS = frozenset(b"\n\r\t")


@dataclass(frozen=True, slots=True)
class RecordFilter:
    """Which records are printed: empty `keys` (shell patterns), `types` or `namespaces` match
    all; markers with `markers`, or where `types` names theirs."""

    markers: bool = False
    keys: tuple[str, ...] = ()
    types: frozenset[str] = frozenset()
    namespaces: frozenset[str] = frozenset()

    def matches(self, record: Decoded) -> bool:
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
    seen: list[TailRecord],
    printer: Printer,
    out: TextIO,
    wanted: RecordFilter = ALL_OBJECTS,
) -> None:
    """Print records to `out`, and a line to stderr for each that breaks the record contract."""
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
        print_error(f"{each.topic}/{each.partition}@{each.offset}: {printable(refused)}")
    if lines:
        out.write("\n".join(lines) + "\n")
        out.flush()


def json_printer(out: TextIO) -> Printer:
    """Prints a record as `as_json` does, in characters that `out` can encode."""
    return lambda seen: json_for(out, as_json(seen))


def as_json(seen: TailRecord) -> str:
    """A record as one JSON object, on one line, of printable characters; `object` has the bytes
    of the value, but for line ends and unprintable ones. Raises: RecordRefused: the value is
    not JSON."""
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
        "key": _key_of(record),
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


def _key_of(marker: MarkerRecord) -> str:
    return f"%wr/{marker.kind}/{marker.stream}/{marker.partition}"


def as_name(seen: TailRecord) -> str:
    """The object as kubectl names it, `pods/shop/web`, `nodes/n1`; a marker by its key."""
    record = seen.record
    assert record is not None
    if isinstance(record, MarkerRecord):
        return printable(_key_of(record))
    _, _, path = seen.source.partition("/clusters/")
    match path.split("/")[1:]:
        case ["api", _, resource]:
            pass
        case ["apis", group, _, plural]:
            resource = f"{plural}.{group}"
        case _:
            resource = record.stream.partition("@")[0]
    key, _, name = record.key.decode().rpartition("/")
    namespace = key.rpartition("/")[2]
    return printable("/".join(part for part in (resource, namespace, name) if part))


def yaml_printer() -> Printer:
    """Prints each object as a YAML document, and deletes and markers as comments."""
    separator = ""

    def as_yaml(seen: TailRecord) -> str:
        nonlocal separator
        record = seen.record
        if not isinstance(record, ObjectRecord) or record.value is None:
            return f"# {as_text(seen, coloured=False)}"
        before, text = separator, yaml_of(record.value)
        separator = "---\n"
        return f"{before}{text}"

    return as_yaml


def text_printer(out: TextIO) -> Printer:
    """Prints a record as one aligned line, coloured on a terminal. Source: https://no-
    color.org."""
    coloured = out.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return lambda seen: as_text(seen, coloured=coloured)


HEADING: Final = (
    f"{'time (UTC)':<12}  {'stream':<20} {'type':<9} {'object':<44} {'version':<13} "
    f"{'place':<10} reason"
)
"""Over the columns of an object's line."""


def as_text(seen: TailRecord, *, coloured: bool) -> str:
    """A record as one line: time, stream, type, key, version, partition, offset and reason."""
    record = seen.record
    assert record is not None
    where = f"p{seen.partition}@{seen.offset}"
    head = printable(f"{record.time[11:23]}  {record.stream:<20} ")
    if isinstance(record, ObjectRecord):
        what: str = record.verb
        colour = _COLOURS[what]
        note = _TRIMMED[record.trimmed]
        rest = (
            f"{record.key.decode():<44} rv {record.version:<10} {where:<10} {record.reason}{note}"
        )
    else:
        what, colour = record.kind, _MARKER_COLOUR
        rest = f"epoch {record.epoch}  {where}"
        if record.kind != "claim":
            objects = counted(record.count, "object")
            rest = f"{objects}, digest {record.digest:016x}, rv {record.frontier}, {rest}"
        if record.snapshot:
            rest = f"snapshot {record.snapshot}, {rest}"
    rest = printable(rest)
    if not coloured:
        return f"{head}{what:<9} {rest}".rstrip()
    if isinstance(record, MarkerRecord):
        return f"\x1b[{colour}m{head}{what:<9} {rest}\x1b[0m"
    return f"\x1b[2m{head}\x1b[0m\x1b[{colour}m{what:<9}\x1b[0m {rest}".rstrip()


# ---- what the Kafka client logs ------------------------------------------------------------------


class ShortClientLog(logging.Handler):
    """Writes at most a line every half minute to `out`, where the client logs dozens a second;
    none for problems of less than three seconds, nor for one that ends the command."""

    def __init__(self, out: TextIO, *, now_s: Callable[[], float] = clock.now_s) -> None:
        super().__init__(logging.WARNING)
        self._out = out
        self._now_s = now_s
        self._since_s = self._newest_s = self._next_line_s = float("-inf")

    def emit(self, record: logging.LogRecord) -> None:
        """Write the line, unless the problem is new or another line was written recently."""
        now_s = self._now_s()
        if now_s - self._newest_s > _INTERVAL_S:
            self._since_s = now_s
        self._newest_s = now_s
        if now_s - self._since_s >= _PATIENCE_S and now_s >= self._next_line_s:
            self._next_line_s = now_s + _INTERVAL_S
            print(f"kafka: {short(' '.join(record.getMessage().split()))}", file=self._out)


@contextmanager
def short_client_log(out: TextIO) -> Iterator[None]:
    """Inside the block, what the Kafka client logs goes to `out`, shortened."""
    client_log, handler = logging.getLogger("aiokafka"), ShortClientLog(out)
    client_log.addHandler(handler)
    try:
        yield
    finally:
        client_log.removeHandler(handler)
