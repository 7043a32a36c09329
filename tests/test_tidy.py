"""The tree keeps its own rules: sizes, docstrings, metrics in use, words that have no place here,
reasons beside exceptions."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from watchrelay.observe.metrics import CATALOGUE

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "watchrelay"

LINES_MAX, TEST_LINES_MAX, FUNCTION_LINES_MAX = 750, 900, 120
ATTRIBUTES_MAX = 21

LONGER = {"watchrelay/watch/machine.py": 1110}
"""Files that hold more: a state machine is read in one piece."""

NOT_UPDATED: dict[str, str] = {}
"""Metrics that nothing updates yet, each with the reason. A row goes when its metric comes to
life."""

COUNTED_BY = {
    "relay_lag_seconds": "relay_lag.observe_batch",
    "produce_errors": "produce_failed",
    "state_age_seconds": "show_age",
    "stream_state": "set_states",
}
"""Metrics that are updated through a method of another name."""

FORBIDDEN = {
    "to-do without an issue number": re.compile(
        r"\b(TO" + r"DO|FIX" + r"ME|X" + r"XX)\b(?!\(#\d+\))"
    ),
    "path of one machine": re.compile(r"(?<![\w.~}])/(wo" + r"rk|ro" + r"ot|ho" + r"me)/"),
    "pointer to a text that is not in the tree": re.compile(
        r"WIRE-" + r"WHY|\bDESI" + r"GN \d|docs/met" + r"rics\.md"
    ),
    "host of a package index": re.compile(
        r"\b(py"
        r"pi\.org|pythonho"
        r"sted\.org|proxy\.go"
        r"lang\.org|ma"
        r"ven\.org|npm"
        r"js\.org)"
    ),
}
RETIRED = re.compile(
    r"\b(Vouch|Vouched|vouch|Course|Pulse|Alarm|Tempo|Lane|LaneFound|Inflow|Fold|Gate|Doubtful|Turnstile"
    r"|Passage|Settling|Generation|Presence|Incarnations|Ledger|Signs|Witness|Journal|Accounts|Board"
    r"|Healer|Rooms|implausible|WindowServer|heed|tame)\b"
)
"""Names and words of the past: the first word that docs/glossary.md gives is the one to write."""
IDIOM = re.compile(
    r"(?<![a-z])(said|unsaid|told|(?:un)?heard|stor(?:y|ies)|owed|anew|living|lanes?|stands|whoever"
    r"|for[ _]ever)(?![a-z])|\bRoom: ",
    re.IGNORECASE,
)
"""Words that are no technical terms: published, logged, reported, received, scenario, pending, again
and live are. They are looked for in names as well, between underscores."""
STIFF = re.compile(
    r"\bnobody\b|\bnone of ours\b|\bany more\b|\bno more\b(?! than| requests)|\bso (?:long|many|often)\b"
    r'|"""(?:As of|Have \w+ )'
)
"""In the package's texts: no relay, foreign, no longer, this time, `See X`, and the verb itself."""
PUBLIC_NAMES = re.compile(r"last_heard|Server last heard")
"""A metric and the panel that shows it."""
SUFFIXES = {
    ".py",
    ".md",
    ".toml",
    ".txt",
    ".yaml",
    ".yml",
    ".json",
    ".sh",
    ".xml",
    ".mod",
    ".go",
    ".rs",
    ".java",
    ".tpl",
    ".js",
    ".jsx",
    ".css",
    ".html",
    "",
}

EXCEPTION = re.compile(
    r"#[ \t]*(?P<what>noqa|type: ignore)(?P<codes>: [A-Z0-9, ]+|\[[a-z, -]+\])?(?P<reason>.*)"
)
NOT_SOURCE = {".git", ".venv", "__pycache__", "node_modules", "build", "dist"}


@functools.cache
def files() -> list[Path]:
    """Every file of the tree that people write, caches and builds left out."""
    found = []
    for path in sorted(ROOT.rglob("*")):
        parts = path.relative_to(ROOT).parts
        generated = (
            any(
                part in NOT_SOURCE or (part.startswith(".") and part.endswith("cache"))
                for part in parts
            )
            or parts[0] == ".hypothesis"
        )
        if (
            not generated
            and path.is_file()
            and path.suffix in SUFFIXES
            and not path.name.startswith(".coverage")
        ):
            found.append(path)
    return found


def python() -> list[Path]:
    return [path for path in files() if path.suffix == ".py"]


def modules() -> list[Path]:
    return [path for path in python() if PACKAGE in path.parents]


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


@functools.cache
def text_of(path: Path) -> str:
    return path.read_text(errors="replace")


@functools.cache
def nodes_of(path: Path) -> list[ast.AST]:
    return [*ast.walk(ast.parse(text_of(path)))]


def places(pattern: re.Pattern[str], path: Path, text: str = "") -> Iterator[str]:
    """Where the pattern is found in a file, or in another text of as many lines."""
    text = text or text_of(path)
    for found in pattern.finditer(text):
        yield f"{named(path)}:{text.count(chr(10), 0, found.start()) + 1}: {found[0]}"


def functions(node: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Those in its statements."""
    for each in ast.iter_child_nodes(node):
        if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield each
        if not isinstance(each, ast.expr):
            yield from functions(each)


def test_no_file_is_longer_than_one_can_read() -> None:
    lengths = {named(path): len(text_of(path).splitlines()) for path in python()}
    assert {
        name: lines
        for name, lines in lengths.items()
        if lines > LONGER.get(name, TEST_LINES_MAX if name.startswith("tests") else LINES_MAX)
    } == {}


def test_no_function_is_longer_than_one_can_see() -> None:
    long = {}
    for path in python():
        if text_of(path).count("\n") > FUNCTION_LINES_MAX:
            for function in functions(ast.parse(text_of(path))):
                assert function.end_lineno is not None
                lines = function.end_lineno - function.lineno + 1
                if lines > FUNCTION_LINES_MAX:
                    long[f"{named(path)}: {function.name}"] = lines
    assert long == {}


def test_no_class_holds_more_than_one_can_keep_in_mind() -> None:
    """Of what it assigns to itself: settings, structs and tables of metrics are declared."""
    large = {}
    for path in modules():
        for owner in nodes_of(path):
            if isinstance(owner, ast.ClassDef):
                held = {
                    node.attr
                    for node in ast.walk(owner)
                    if isinstance(node, ast.Attribute)
                    and isinstance(node.ctx, ast.Store)
                    and ast.unparse(node.value) == "self"
                }
                if len(held) > ATTRIBUTES_MAX:
                    large[f"{named(path)}: {owner.name}"] = len(held)
    assert large == {}


def test_every_module_opens_with_what_it_is() -> None:
    assert [
        named(path)
        for path in modules()
        if not isinstance(module := nodes_of(path)[0], ast.Module) or not ast.get_docstring(module)
    ] == []


def test_a_status_is_reported_to_and_decides_nothing() -> None:
    reports = {"acked", "failed", "follow", "received", "recovered", "renew"}
    reads = [
        f"{named(path)}:{node.lineno}: {ast.unparse(node)}"
        for path in modules()
        if "observe.status import" in text_of(path) and not {"observe", "demo"} & {*path.parts}
        for node in nodes_of(path)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Load)
        and node.attr not in reports
        and re.search(
            r"(\b_?status|statuses\.open\(.*\)|\.streams\[.*\])$", ast.unparse(node.value)
        )
    ]
    assert reads == [], "what parts decide by is in StreamProgress"


def test_every_metric_is_updated_somewhere_or_listed_with_a_reason() -> None:
    text = "\n".join(
        text_of(path) for path in modules() if path != PACKAGE / "observe" / "metrics.py"
    )
    used = {
        *re.findall(r"\.(\w+?)(?:_total)?\b", text),
        *re.findall(r"\.(?=(\w+\.\w+))", text),
        *re.findall(r'\b(?:gauge|counter|histogram)\("(\w+)"\)', text),
    }
    idle = {name for name in CATALOGUE if COUNTED_BY.get(name, name) not in used}
    assert idle == set(NOT_UPDATED)


@pytest.mark.parametrize("what", FORBIDDEN)
def test_the_tree_is_free_of(what: str) -> None:
    assert [place for path in files() for place in places(FORBIDDEN[what], path)] == []


def test_the_tree_has_one_word_for_one_thing() -> None:
    assert [
        place
        for path in python()
        if "demo" not in path.parts and path != Path(__file__)
        for place in places(RETIRED, path)
    ] == []


def test_the_tree_uses_technical_terms() -> None:
    """The descriptions in test vectors are part of files that do not change."""
    assert [
        place
        for path in files()
        if path.parent != ROOT / "tests" / "vectors" and path != Path(__file__)
        for place in places(IDIOM, path, PUBLIC_NAMES.sub("", text_of(path)))
    ] == []


def test_the_package_has_plain_sentences() -> None:
    assert [place for path in modules() for place in places(STIFF, path)] == []


def test_every_exception_from_a_rule_carries_its_reason() -> None:
    """In tests the code of a `type: ignore` is reason enough: they hand in on purpose what the
    types forbid."""
    bare = []
    for path in python():
        for found in EXCEPTION.finditer(text_of(path)) if path != Path(__file__) else ():
            typed_in_a_test = found["what"] == "type: ignore" and PACKAGE not in path.parents
            if not found["codes"] or not (
                typed_in_a_test or re.search(r"\w+ \w+", found["reason"])
            ):
                bare.append(f"{named(path)}: {found[0]}")
    assert bare == []


def test_tests_let_time_pass_in_named_places_only() -> None:
    """`pace.py` for a time that is wanted as such, `wait_until` for a condition. The child of
    test_process.py sleeps until it is killed."""
    homes = {
        "tests/support/pace.py",
        "tests/support/process.py",
        "tests/integration/test_process.py",
    }
    sleeping = {
        named(path)
        for path in python()
        if named(path).startswith("tests/") and re.search(r"\btime\.slee" + r"p\(", text_of(path))
    }
    assert sleeping == homes


def test_the_pins_name_no_place_to_fetch_from() -> None:
    pins = [path for path in files() if path.suffix == ".txt" and "requirements" in named(path)]
    assert len(pins) >= 8
    assert [
        named(path)
        for path in pins
        if re.search(r"https?:|--(extra-)?index-url|--find-links|via -r /", path.read_text())
    ] == []
