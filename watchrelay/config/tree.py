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
    ScalarEvent,
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
_TAGS: Final = frozenset(
    f"tag:yaml.org,2002:{name}"
    for name in ("map", "seq", "str", "null", "bool", "int", "float", "timestamp", "merge", "value")
)
"""Those that YAML 1.1 gives to what is written without a tag."""


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
        reader.check(text)
        node = yaml.compose(text, Loader=_LOADER)
    except yaml.YAMLError as error:
        raise ConfigError([_syntax_problem(error, text, source)]) from error
    if node is not None:
        reader.tree.value = reader.read(node, ())
    return reader.tree


class _Reader:
    """Makes values of the nodes of a document; PyYAML's constructor keeps no lines."""

    def __init__(self, source: str) -> None:
        self.tree = Tree()
        self._source = source
        self._count = 0

    def check(self, text: str) -> None:
        """Refuse what libyaml's composer takes without a limit (it recurses: PyYAML 6.0.3), and the
        aliases whose words it would repeat."""
        opened: list[str | None] = []
        anchors: set[str | None] = set()
        for count, event in enumerate(yaml.parse(text, Loader=_LOADER)):
            anchor = getattr(event, "anchor", None)
            if isinstance(event, AliasEvent):
                if anchor not in anchors:
                    why = (
                        "a word begins with *, which makes it an alias, and no & defines it before"
                    )
                    self._stop(event, why, _QUOTE)
            elif anchor and (anchor in anchors or anchor in opened):
                hint = "give one of the two another name"
                self._stop(event, "an anchor (&) is defined twice", hint)
            elif isinstance(event, CollectionStartEvent):
                opened.append(anchor)
                self._check_depth(event, len(opened))  # libyaml takes quadratic time for it
            elif isinstance(event, CollectionEndEvent):
                anchors.add(opened.pop())
            elif isinstance(event, ScalarEvent):
                anchors.add(anchor)
            elif isinstance(event, DocumentStartEvent) and count > 1:
                why = "a second document starts here: a config file is one document"
                self._stop(event, why, "remove what follows this ---")
            if count > 2 * NODES_MAX:
                self._too_many(event)

    def read(self, node: yaml.Node, path: Path, line: int | None = None, depth: int = 0) -> Any:
        """The value of `node`; aliases are expanded."""
        self._count += 1
        if self._count > NODES_MAX:
            self._too_many(node)
        self._check_depth(node, depth)
        self.tree.lines.setdefault(path, line or _line(node))
        if node.tag not in _TAGS:
            tagged = "begins with !, which makes it a YAML tag, and no tag is used here"
            self._note(node, tagged, path, _QUOTE)
        if isinstance(node, yaml.ScalarNode):
            return node.value if node.style else scalar(node.value)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path, depth)
        items = enumerate(node.value)
        return [self.read(item, (*path, index), depth=depth + 1) for index, item in items]

    def _mapping(self, node: yaml.MappingNode, path: Path, depth: int) -> dict[str, Any]:
        built: dict[str, Any] = {}
        first: dict[str, int] = {}
        merged: list[yaml.Node] = []
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self._note(key, "a key must be text", path)
            elif key.value == "<<" and not key.style:
                merged.append(value)
            elif key.value in first:
                given = f"is given twice, first on line {first[key.value]}"
                self._note(key, given, (*path, key.value), "keep one of the two")
            else:
                first[key.value] = _line(key)
                built[key.value] = self.read(value, (*path, key.value), _line(key), depth + 1)
        for value in merged:
            sources = self.read(value, path, depth=depth + 1)
            for source in sources if isinstance(sources, list) else [sources]:
                if isinstance(source, dict):
                    built = source | built
                else:
                    self._note(value, "<< needs a mapping", path)
        return built

    def _note(self, at: Any, message: str, path: Path, hint: str = "") -> None:
        self.tree.problems.append(ConfigProblem(message, show(path), self._source, _line(at), hint))

    def _stop(self, at: Any, message: str, hint: str = "") -> NoReturn:
        raise ConfigError.of(message, source=self._source, line=_line(at), hint=hint)

    def _check_depth(self, at: Any, depth: int) -> None:
        if depth > DEPTH_MAX:
            self._stop(at, f"nested deeper than {DEPTH_MAX} levels")

    def _too_many(self, at: Any) -> NoReturn:
        self._stop(
            at,
            f"the file expands to more than {NODES_MAX} values: too many, or aliases of aliases",
        )


def _line(at: Any) -> int:
    """Of an event or a node."""
    return int(at.start_mark.line) + 1


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
