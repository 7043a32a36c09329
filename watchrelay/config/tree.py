"""Reads YAML into plain values with the line of each. Aliases are expanded under a limit, so that a
few lines cannot grow into gigabytes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NoReturn

import yaml
from yaml.events import (
    AliasEvent,
    CollectionEndEvent,
    CollectionStartEvent,
    DocumentStartEvent,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
)

from watchrelay.core.errors import ConfigError, ConfigProblem

Path = tuple[str | int, ...]
"""The place of a value: keys as written, list items by index."""

NODES_MAX: Final = 100_000
"""More values than any config has; an "alias bomb" exceeds it at once."""

DEPTH_MAX: Final = 50
"""The deepest legal config is 5 levels deep."""

_TAG: Final = "tag:yaml.org,2002:"
_TAGGED: Final = "begins with !, which makes it a YAML tag, and no tag is used here"
_QUOTE: Final = "put the value in quotes"
"""Neither shows the word: it may be a password."""

_KEY_END: Final = re.compile(r"[:\s]")
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_RESOLVER = yaml.SafeLoader.yaml_implicit_resolvers


@dataclass(slots=True)
class Tree:
    """A document.

    Attributes:
        lines: of every path, counted from 1: the line of the key, or the first line of a list's
            item.
        problems: mistakes that leave the rest readable.
        written: the text of plain scalars that YAML does not read as text (`no`, `1.10`, `0x1`).
    """

    value: Any
    lines: dict[Path, int]
    problems: list[ConfigProblem] = field(default_factory=list)
    written: dict[Path, str] = field(default_factory=dict)


@dataclass(slots=True)
class _YamlNode:
    line: int
    kind: Literal["scalar", "list", "mapping"]
    value: Any  # the text of a scalar; the items of a list; keys and values in turn of a mapping
    tag: str
    plain: bool = False


def read_yaml(text: str, source: str) -> Tree:
    """The one document in `text`. Duplicate keys are among `problems`; the first one counts.

    Args:
        text: YAML 1.1.
        source: names the text in problems.

    Raises:
        ConfigError: when the text is not one document of legal YAML, or exceeds the limits.
    """
    try:
        root = _compose(yaml.parse(text, Loader=_LOADER), source)
    except yaml.YAMLError as error:
        raise ConfigError([_syntax_problem(error, text, source)]) from error
    tree = Tree(None, {(): 1})
    if root is not None:
        tree.lines.clear()
        tree.value = _Builder(source, tree).build(root, ())
    return tree


def _compose(events: Iterable[Any], source: str) -> _YamlNode | None:
    """The nodes of the document, without recursion: libyaml's own composer overflows the stack on
    deep nesting (PyYAML 6.0.3)."""
    roots: list[_YamlNode] = []
    stack: list[_YamlNode] = []
    anchors: dict[str, _YamlNode] = {}

    def refuse(event: Any, message: str, hint: str = "") -> NoReturn:
        raise ConfigError([ConfigProblem(message, source=source, line=_line(event), hint=hint)])

    for event in events:
        if isinstance(event, CollectionEndEvent):
            stack.pop()
        elif isinstance(event, DocumentStartEvent) and roots:
            refuse(
                event,
                "a second document starts here: a config file is one document",
                "remove what follows this ---",
            )
        elif isinstance(event, AliasEvent) and event.anchor not in anchors:
            refuse(
                event,
                "a word begins with *, which makes it an alias, and no & defines it before",
                _QUOTE,
            )
        elif isinstance(event, NodeEvent):
            node = anchors[str(event.anchor)] if isinstance(event, AliasEvent) else _node(event)
            if any(node is open_node for open_node in stack):
                refuse(event, "an alias (*) is inside its own anchor (&)", "write it out")
            (stack[-1].value if stack else roots).append(node)
            if event.anchor:
                anchors[event.anchor] = node
            if isinstance(event, CollectionStartEvent):
                stack.append(node)
                if len(stack) > DEPTH_MAX:
                    refuse(event, f"nested deeper than {DEPTH_MAX} levels")
    return roots[0] if roots else None


def _node(event: Any) -> _YamlNode:
    if isinstance(event, ScalarEvent):
        plain = bool(event.implicit[0]) and not event.style
        return _YamlNode(_line(event), "scalar", event.value, event.tag or "", plain)
    kind: Literal["mapping", "list"] = "mapping" if isinstance(event, MappingStartEvent) else "list"
    return _YamlNode(_line(event), kind, [], event.tag or "")


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1


class _Builder:
    """Makes values of nodes. Recursion is bounded by depth, aliases included, and by the number of
    values."""

    def __init__(self, source: str, tree: Tree) -> None:
        self._source = source
        self._tree = tree
        self._count = 0

    def build(self, node: _YamlNode, path: Path, line: int | None = None) -> Any:
        self._tick(node)
        if len(path) > DEPTH_MAX:
            self._stop(node.line, f"nested deeper than {DEPTH_MAX} levels")
        if node.kind != "scalar" and node.tag not in ("", "!", f"{_TAG}map", f"{_TAG}seq"):
            self._note(_TAGGED, node.line, path, _QUOTE)
        self._tree.lines.setdefault(path, line or node.line)
        if node.kind == "mapping":
            return self._mapping(node, path)
        if node.kind == "list":
            return [self.build(child, (*path, index)) for index, child in enumerate(node.value)]
        return self._scalar(node, path)

    def _mapping(self, node: _YamlNode, path: Path) -> dict[str, Any]:
        built: dict[str, Any] = {}
        at: dict[str, int] = {}
        merged: list[_YamlNode] = []
        for key, value in zip(node.value[::2], node.value[1::2], strict=True):
            if key.kind == "scalar" and key.plain and key.value == "<<":
                merged.extend(value.value if value.kind == "list" else [value])
                continue
            if key.kind != "scalar":
                self._note("a key must be text", key.line, path)
                continue
            name = key.value
            if name in at:
                self._note(
                    f"is given twice, first on line {at[name]}",
                    key.line,
                    (*path, name),
                    "keep one of the two",
                )
                continue
            at[name] = key.line
            built[name] = self.build(value, (*path, name), key.line)
        for source in merged:
            self._tick(source)
            if source.kind != "mapping":
                self._note("<< needs a mapping", source.line, path)
                continue
            for name, value in self._mapping(source, path).items():
                built.setdefault(name, value)
        return built

    def _scalar(self, node: _YamlNode, path: Path) -> Any:
        tag = node.tag.removeprefix(_TAG)
        if tag in ("", "!") and node.plain:
            tag = _implicit(node.value)
            if tag not in ("str", "null"):
                self._tree.written[path] = node.value
        elif tag in ("", "!"):
            tag = "str"
        try:
            return _convert(tag, node.value)
        except (ValueError, KeyError):
            if node.tag:
                self._note(_TAGGED, node.line, path, _QUOTE)
            return node.value

    def _tick(self, node: _YamlNode) -> None:
        self._count += 1
        if self._count > NODES_MAX:
            self._stop(
                node.line,
                f"the file expands to more than {NODES_MAX} values: too many, or aliases of "
                "aliases",
            )

    def _note(self, message: str, line: int, path: Path, hint: str = "") -> None:
        self._tree.problems.append(
            ConfigProblem(message, path=show(path), source=self._source, line=line, hint=hint)
        )

    def _stop(self, line: int, message: str) -> NoReturn:
        raise ConfigError([ConfigProblem(message, source=self._source, line=line)])


def show(path: Path) -> str:
    """`("resources", 0, "name")` as people write it: `resources[0].name`."""
    shown = ""
    for part in path:
        shown += (
            f"[{part}]" if isinstance(part, int) else f".{_named(part)}" if shown else _named(part)
        )
    return shown


def _named(key: str) -> str:
    """`key` up to a colon or blank: YAML takes all of `{password:x}` and `{password x}` for the
    key."""
    found = _KEY_END.search(key)
    return f"{key[: found.start()]}..." if found else key


def scalar(text: str) -> Any:
    """The value of one plain scalar: a number, true or false, null, or text."""
    try:
        return _convert(_implicit(text), text)
    except (ValueError, KeyError):
        return text


def _implicit(text: str) -> str:
    if text == "":
        return "null"
    for tag, pattern in _RESOLVER.get(text[0], []) + _RESOLVER.get(None, []):
        if pattern.match(text):
            return str(tag).removeprefix(_TAG)
    return "str"


def _convert(tag: str, text: str) -> Any:
    """A scalar's value. Dates, octal and sexagesimal numbers stay text: no key takes them."""
    if tag == "null":
        return None
    if tag == "bool":
        return yaml.SafeLoader.bool_values[text.lower()]
    if tag == "int" and re.fullmatch(r"[-+]?(0|[1-9][0-9]*)", text):
        return int(text[:400])
    if tag == "float" and re.fullmatch(
        r"[-+]?[0-9]*\.?[0-9]+([eE][-+]?[0-9]+)?|[-+]?[0-9]+\.", text
    ):
        return float(text)
    if tag in ("str", "int", "float", "timestamp", "value", "merge"):
        return text
    raise KeyError(tag)


_CURES: Final = {
    "mapping values are not allowed": (
        "a colon is not allowed here: quote the text, or start a new line"
    ),
    "found character that cannot start any token": (
        "this character cannot start a value: put the value in quotes"
    ),
    "found unexpected end of stream": "a quote is opened and never closed",
    "did not find expected ',' or ']'": "a [ is opened and never closed, or a comma is missing",
    "did not find expected ',' or '}'": "a { is opened and never closed, or a comma is missing",
    "did not find expected '-' indicator": (
        "expected a list item (- ...), not a key: check the indentation"
    ),
    "did not find expected key": "check the indentation here",
    "expected <block end>": "check the indentation here",
}


def _syntax_problem(error: yaml.YAMLError, text: str, source: str) -> ConfigProblem:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    if mark is None:
        position = getattr(error, "position", None)
        line = text.count("\n", 0, position) + 1 if isinstance(position, int) else None
        return ConfigProblem(
            "not YAML: a control character",
            source=source,
            line=line,
            hint="is this a text file?",
        )
    detail = str(getattr(error, "problem", None) or "not YAML")
    lines = text.splitlines()
    written = lines[mark.line] if mark.line < len(lines) else ""
    if "\t" in written[: mark.column + 1] and not written[: mark.column].strip():
        return ConfigProblem(
            "not YAML: a tab in the indentation",
            source=source,
            line=mark.line + 1,
            hint="indent with spaces",
        )
    hint = next((cure for known, cure in _CURES.items() if detail.startswith(known)), "")
    at = min(mark.line + 1, max(len(lines), 1))
    return ConfigProblem(
        f"not YAML: {detail}, at column {mark.column + 1}", source=source, line=at, hint=hint
    )
