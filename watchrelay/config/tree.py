"""Reads YAML into plain values with the line of each. Aliases are expanded under a limit, so that a
few lines cannot grow into gigabytes."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

import yaml
from yaml.events import (
    AliasEvent,
    CollectionEndEvent,
    CollectionStartEvent,
    DocumentStartEvent,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
    SequenceStartEvent,
)

from watchrelay.core.errors import ConfigError, ConfigProblem

Path = tuple[str | int, ...]
"""The place of a value: keys as written, list items by index."""

NODES_MAX: Final = 100_000
"""More values than any config has; an "alias bomb" exceeds it at once."""

DEPTH_MAX: Final = 50
"""The deepest legal config is 5 levels deep."""

_QUOTE: Final = "put the value in quotes"
"""Never with the value: it may be a password."""

_KEY_END: Final = re.compile(r"[:\s]")
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_RESOLVER: Any = yaml.resolver.Resolver()


@dataclass(slots=True)
class Tree:
    """A document; `lines` of every path, from 1; `problems`: mistakes that leave the rest
    readable."""

    value: Any = None
    lines: dict[Path, int] = field(default_factory=dict)
    problems: list[ConfigProblem] = field(default_factory=list)


def read_yaml(text: str, source: str) -> Tree:
    """The one document in the YAML 1.1 `text`. Of duplicate keys, among `problems`, the first
    counts; `source` names the text there.

    Raises: ConfigError: it is not one document of legal YAML, or exceeds the limits."""
    reader = _Reader(source)
    try:
        reader.parse(text)
    except yaml.YAMLError as error:
        raise ConfigError([_syntax_problem(error, text, source)]) from error
    if reader.events:
        reader.tree.value = reader.read(0, ())
    return reader.tree


class _Reader:
    """Makes values of the events of a document. libyaml's composer would recurse without a limit
    (PyYAML 6.0.3), and its constructor keeps no lines."""

    def __init__(self, source: str) -> None:
        self.tree = Tree()
        self.events: list[Any] = []
        self._source = source
        self._ends: list[int] = []  # of each event's node, the index behind its last event
        self._anchors: dict[str, int] = {}
        self._count = 0

    def parse(self, text: str) -> None:
        """Take the events of `text`."""
        opened: list[int] = []
        for event in yaml.parse(text, Loader=_LOADER):
            if isinstance(event, DocumentStartEvent) and self.events:
                self._stop(
                    event,
                    "a second document starts here: a config file is one document",
                    "remove what follows this ---",
                )
            if not isinstance(event, (NodeEvent, CollectionEndEvent)):
                continue
            if isinstance(event, CollectionStartEvent):
                opened.append(len(self.events))
                self._check_depth(event, len(opened))  # libyaml takes quadratic time for it
            self.events.append(event)
            self._ends.append(len(self.events))
            if isinstance(event, CollectionEndEvent):
                self._ends[opened.pop()] = len(self.events)
            if len(self.events) > 2 * NODES_MAX:
                self._too_many(event)

    def read(self, at: int, path: Path, line: int | None = None, depth: int = 0) -> Any:
        """The value of the node whose events begin at index `at`."""
        event = self.events[at]
        self._count += 1
        if self._count > NODES_MAX:
            self._too_many(event)
        self._check_depth(event, depth)
        self.tree.lines.setdefault(path, line or _line(event))
        if isinstance(event, AliasEvent):
            if event.anchor not in self._anchors:
                self._stop(
                    event,
                    "a word begins with *, which makes it an alias, and no & defines it before",
                    _QUOTE,
                )
            return self.read(self._anchors[event.anchor], path, line, depth + 1)
        if event.tag:
            tagged = "begins with !, which makes it a YAML tag, and no tag is used here"
            self._note(event, tagged, path, _QUOTE)
        value: Any
        if isinstance(event, MappingStartEvent):
            value = self._mapping(at, path, depth)
        elif isinstance(event, SequenceStartEvent):
            value = []
            item = at + 1
            while self._ends[item] < self._ends[at]:
                value.append(self.read(item, (*path, len(value)), depth=depth + 1))
                item = self._ends[item]
        else:
            plain = event.implicit[0] and not event.style and not event.tag
            value = scalar(event.value) if plain else event.value
        if event.anchor and self._anchors.setdefault(event.anchor, at) != at:
            self._stop(event, "an anchor (&) is defined twice", "give one of the two another name")
        return value

    def _mapping(self, at: int, path: Path, depth: int) -> dict[str, Any]:
        built: dict[str, Any] = {}
        first: dict[str, int] = {}
        merged: list[int] = []
        behind, end = at + 1, self._ends[at]
        while self._ends[behind] < end:
            key, value_at = self.events[behind], self._ends[behind]
            behind = self._ends[value_at]
            if not isinstance(key, ScalarEvent):
                self._note(key, "a key must be text", path)
            elif key.value == "<<" and not key.style:
                merged.append(value_at)
            elif key.value in first:
                self._note(
                    key,
                    f"is given twice, first on line {first[key.value]}",
                    (*path, key.value),
                    "keep one of the two",
                )
            else:
                first[key.value] = _line(key)
                built[key.value] = self.read(value_at, (*path, key.value), _line(key), depth + 1)
        for value_at in merged:
            sources = self.read(value_at, path, depth=depth + 1)
            for source in sources if isinstance(sources, list) else [sources]:
                if isinstance(source, dict):
                    built = source | built
                else:
                    self._note(self.events[value_at], "<< needs a mapping", path)
        return built

    def _note(self, event: Any, message: str, path: Path, hint: str = "") -> None:
        self.tree.problems.append(
            ConfigProblem(message, show(path), self._source, _line(event), hint)
        )

    def _stop(self, event: Any, message: str, hint: str = "") -> NoReturn:
        raise ConfigError.of(message, source=self._source, line=_line(event), hint=hint)

    def _check_depth(self, event: Any, depth: int) -> None:
        if depth > DEPTH_MAX:
            self._stop(event, f"nested deeper than {DEPTH_MAX} levels")

    def _too_many(self, event: Any) -> NoReturn:
        self._stop(
            event,
            f"the file expands to more than {NODES_MAX} values: too many, or aliases of aliases",
        )


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1


def show(path: Path) -> str:
    """`("resources", 0, "name")` as people write it. A key ends at a colon or blank: YAML takes
    all of `{password:x}` and `{password x}` for the key."""
    shown = ""
    for part in path:
        if isinstance(part, int):
            shown += f"[{part}]"
        else:
            found = _KEY_END.search(part)
            name = f"{part[: found.start()]}..." if found else part
            shown += f".{name}" if shown else name
    return shown


def scalar(text: str) -> Any:
    """The value of one plain scalar. Dates, octal and sexagesimal numbers stay text."""
    tag = _RESOLVER.resolve(yaml.ScalarNode, text, (True, False)).rpartition(":")[2]
    if tag == "null":
        return None
    if tag == "bool":
        return yaml.SafeLoader.bool_values[text.lower()]
    if tag == "int" and re.fullmatch(r"[-+]?(0|[1-9][0-9]*)", text):
        return int(text[:400])
    if tag == "float":
        try:
            return float(text)
        except ValueError:
            return text
    return text


def _syntax_problem(error: yaml.YAMLError, text: str, source: str) -> ConfigProblem:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    if mark is None:
        at = getattr(error, "position", None)
        line = text.count("\n", 0, at) + 1 if isinstance(at, int) else None
        message, hint = "not YAML: a control character", "is this a text file?"
        return ConfigProblem(message, source=source, line=line, hint=hint)
    lines = text.splitlines()
    line = min(mark.line + 1, max(len(lines), 1))
    before = lines[line - 1][: mark.column + 1] if lines else ""
    if "\t" in before and not before[: mark.column].strip():
        message, hint = "not YAML: a tab in the indentation", "indent with spaces"
    else:
        detail = getattr(error, "problem", None) or "illegal text"
        message = f"not YAML: {detail}, at column {mark.column + 1}"
        hint = "check the quotes, brackets, colons and indentation here"
    return ConfigProblem(message, source=source, line=line, hint=hint)
