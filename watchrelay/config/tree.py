"""YAML text -> plain values that know the line each of them stands on.

Room: config. In: the text of a config file. Out: mappings, lists and scalars, with a line for every
path; or the problems that keep it from being read. Aliases are expanded under a limit, so that a
few lines cannot grow into gigabytes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

import yaml
from yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from watchrelay.core.errors import ConfigProblem

Path = tuple[str | int, ...]
"""Where a value stands: keys as written, list items by index."""

NODES_MAX: Final = 100_000
"""More values than any config has; an "alias bomb" reaches it at once."""

DEPTH_MAX: Final = 50
"""The deepest legal config is 5 levels deep."""

_TAG: Final = "tag:yaml.org,2002:"
_TAGGED: Final = "begins with !, which makes it a YAML tag, and no tag is used here"
_QUOTE: Final = "put the value in quotes"
"""Neither names the word: a password may begin so."""

_KEY_END: Final = re.compile(r"[:\s]")
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_RESOLVER = yaml.SafeLoader.yaml_implicit_resolvers


class Unreadable(Exception):
    """The text is no usable YAML: carries the problems found up to there."""

    def __init__(self, problems: list[ConfigProblem]) -> None:
        super().__init__("; ".join(str(problem) for problem in problems))
        self.problems = problems


@dataclass(slots=True)
class Tree:
    """A document. Shape: `lines[path]` counts from 1 and is that of the key, or of the item's first
    line in a list."""

    value: Any
    lines: dict[Path, int]
    problems: list[ConfigProblem] = field(default_factory=list)
    written: dict[Path, str] = field(default_factory=dict)
    """The text of plain scalars that YAML reads as something else than text (`no`, `1.10`,
    `0x1`)."""


@dataclass(slots=True)
class _Node:
    line: int
    value: Any  # str for a scalar, list[_Node], or list[tuple[_Node, _Node]] for a mapping
    kind: str  # "scalar", "list", "mapping"
    tag: str = ""
    plain: bool = False


def read_yaml(text: str, source: str) -> Tree:
    """The one document in `text`. Keys that stand twice are among `problems`; the first one counts.

    Raises: Unreadable when the text is not one document of legal YAML, or is beyond the limits.
    """
    reader = _Reader(source)
    try:
        root = reader.compose(yaml.parse(text, Loader=_LOADER))
    except yaml.YAMLError as error:
        raise Unreadable([_syntax_problem(error, text, source)]) from error
    if root is None:
        return Tree(None, {(): 1})
    tree = Tree(None, {})
    tree.value = _Builder(source, tree).build(root, ())
    return tree


class _Reader:
    """Events -> nodes, without recursion, so that no input can exhaust the stack."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._anchors: dict[str, _Node] = {}

    def compose(self, events: Any) -> _Node | None:
        root: _Node | None = None
        documents = 0
        stack: list[tuple[_Node, list[_Node]]] = []  # an open collection and its children so far
        for event in events:
            if isinstance(event, DocumentStartEvent):
                documents += 1
                if documents > 1:
                    self._refuse(
                        event,
                        "a second document starts here: a config file is one document",
                        "remove what follows this ---",
                    )
            elif isinstance(event, (SequenceStartEvent, MappingStartEvent)):
                kind = "list" if isinstance(event, SequenceStartEvent) else "mapping"
                node = _Node(_line(event), [], kind, event.tag or "")
                self._remember(event, node)
                stack.append((node, []))
                if len(stack) > DEPTH_MAX:
                    self._refuse(event, f"nested deeper than {DEPTH_MAX} levels")
            elif isinstance(event, (SequenceEndEvent, MappingEndEvent)):
                node, children = stack.pop()
                node.value = (
                    children
                    if node.kind == "list"
                    else list(zip(children[::2], children[1::2], strict=True))
                )
                root = self._place(node, stack, root)
            elif isinstance(event, ScalarEvent):
                plain = bool(event.implicit[0]) and not event.style
                node = _Node(_line(event), event.value, "scalar", event.tag or "", plain)
                self._remember(event, node)
                root = self._place(node, stack, root)
            elif isinstance(event, AliasEvent):
                root = self._place(self._aliased(event, stack), stack, root)
        return root

    def _place(
        self, node: _Node, stack: list[tuple[_Node, list[_Node]]], root: _Node | None
    ) -> _Node | None:
        if not stack:
            return node
        stack[-1][1].append(node)
        return root

    def _remember(self, event: Any, node: _Node) -> None:
        if event.anchor:
            self._anchors[event.anchor] = node

    def _aliased(self, event: Any, stack: list[tuple[_Node, list[_Node]]]) -> _Node:
        node = self._anchors.get(event.anchor)
        if node is None:
            self._refuse(
                event,
                "a word begins with *, which makes it an alias, and its & stands nowhere before",
                _QUOTE,
            )
        if any(node is open_node for open_node, _ in stack):
            self._refuse(event, "an alias (*) stands inside what it stands for", "write it out")
        return node

    def _refuse(self, event: Any, message: str, hint: str = "") -> NoReturn:
        raise Unreadable(
            [ConfigProblem(message, source=self._source, line=_line(event), hint=hint)]
        )


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1


class _Builder:
    """Nodes -> values and lines. Recursion is bounded by the depth of the text, aliases included,
    and the number of values."""

    def __init__(self, source: str, tree: Tree) -> None:
        self._source = source
        self._tree = tree
        self._count = 0

    def build(self, node: _Node, path: Path, line: int | None = None) -> Any:
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

    def _mapping(self, node: _Node, path: Path) -> dict[str, Any]:
        built: dict[str, Any] = {}
        at: dict[str, int] = {}
        merged: list[_Node] = []
        for key, value in node.value:
            if key.kind == "scalar" and key.plain and key.value == "<<":
                merged.extend(value.value if value.kind == "list" else [value])
                continue
            name = key.value if key.kind == "scalar" else None
            if name is None:
                self._note("a key must be text", key.line, path)
                continue
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
                self._note("<< must stand before a mapping", source.line, path)
                continue
            for name, value in self._mapping(source, path).items():
                built.setdefault(name, value)
        return built

    def _scalar(self, node: _Node, path: Path) -> Any:
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

    def _tick(self, node: _Node) -> None:
        self._count += 1
        if self._count > NODES_MAX:
            self._stop(
                node.line,
                f"the file unfolds to more than {NODES_MAX} values: too many, or aliases of "
                "aliases",
            )

    def _note(self, message: str, line: int, path: Path, hint: str = "") -> None:
        self._tree.problems.append(
            ConfigProblem(message, path=show(path), source=self._source, line=line, hint=hint)
        )

    def _stop(self, line: int, message: str) -> NoReturn:
        raise Unreadable([ConfigProblem(message, source=self._source, line=line)])


def show(path: Path) -> str:
    """`("resources", 0, "name")` as people write it: `resources[0].name`."""
    shown = ""
    for part in path:
        shown += (
            f"[{part}]" if isinstance(part, int) else f".{_named(part)}" if shown else _named(part)
        )
    return shown


def _named(key: str) -> str:
    """`key` up to where it is none: of `{password:x}` and `{password x}` YAML takes all for the
    key."""
    found = _KEY_END.search(key)
    return f"{key[: found.start()]}..." if found else key


def scalar(text: str) -> Any:
    """What YAML reads in one plain scalar: a number, true or false, null, or text."""
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
    """A scalar's value. Dates, octal and sexagesimal numbers stay text: nothing in a config means
    them."""
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


_PLAIN_WORDS: Final = {
    "mapping values are not allowed": (
        "a colon stands where no key can: quote the text, or start a new line"
    ),
    "found character that cannot start any token": (
        "this character cannot start a value: put the value in quotes"
    ),
    "found unexpected end of stream": "a quote is opened and never closed",
    "did not find expected ',' or ']'": "a [ is opened and never closed, or a comma is missing",
    "did not find expected ',' or '}'": "a { is opened and never closed, or a comma is missing",
    "did not find expected '-' indicator": (
        "a key stands where a list item (- ...) should: check the indentation"
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
            "not YAML: a control character stands here",
            source=source,
            line=line,
            hint="is this a text file?",
        )
    detail = str(getattr(error, "problem", None) or "not YAML")
    lines = text.splitlines()
    written = lines[mark.line] if mark.line < len(lines) else ""
    if "\t" in written[: mark.column + 1] and not written[: mark.column].strip():
        return ConfigProblem(
            "not YAML: a tab stands in the indentation",
            source=source,
            line=mark.line + 1,
            hint="indent with spaces",
        )
    hint = next((said for known, said in _PLAIN_WORDS.items() if detail.startswith(known)), "")
    at = min(mark.line + 1, max(len(lines), 1))
    return ConfigProblem(
        f"not YAML: {detail}, at column {mark.column + 1}", source=source, line=at, hint=hint
    )
