"""Which file of the tree is which page of the site, and how its links read there.

Pages keep their links as they work in the tree. On the site a link to another page follows that
page; a link to a file that is no page (a test, an example) becomes its name, as the site does not
know where the tree is kept. A picture is below docs/.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"

ELSEWHERE = {
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "reporting.md",
    "deploy/README.md": "deploy.md",
    "examples/README.md": "examples.md",
    "helm/watchrelay/README.md": "chart.md",
    "tests/vectors/README.md": "vectors.md",
}
"""Pages outside of docs/, by their place on the site."""

HOME = ("README.md", "CODE_OF_CONDUCT.md", "AGENTS.md")
"""Pages that are not on the site; their links are checked too."""

_LINK = re.compile(r"(?P<text>!?\[(?:[^\[\]]|\[[^\]]*\])*\])\((?P<target>[^()\s]+)\)")
_BLOCK = re.compile(r" {0,3}(\||- |\d+\. )")
_FENCE = re.compile(r"^\s*(```+|~~~+)")


class BrokenLink(Exception):
    """A link of a page that leads nowhere."""


def sources() -> dict[str, str]:
    """Place on the site by path in the tree, of every page."""
    inside = {
        path.relative_to(ROOT).as_posix(): path.relative_to(DOCS).as_posix()
        for path in sorted(DOCS.rglob("*.md"))
    }
    beside = {name: place for name, place in ELSEWHERE.items() if (ROOT / name).is_file()}
    clash = set(inside.values()) & set(beside.values())
    assert not clash, f"two pages for {sorted(clash)}"
    return {
        name: "runbooks/index.md" if place == "runbooks/README.md" else place
        for name, place in (inside | beside).items()
    }


def lines_outside_fences(text: str) -> Iterator[tuple[int, str, bool]]:
    """Each line with its number and whether it is text, not part of a fenced block."""
    fence = ""
    for number, line in enumerate(text.splitlines(keepends=True), 1):
        mark = _FENCE.match(line)
        if mark and not fence:
            fence = mark[1]
            yield number, line, False
        elif mark and line.strip() == fence:
            fence = ""
            yield number, line, False
        else:
            yield number, line, not fence


def local_links(text: str) -> Iterator[tuple[int, str]]:
    """The targets that are no address, with their lines."""
    for number, line, outside in lines_outside_fences(text):
        for found in _LINK.finditer(line) if outside else ():
            if not re.match(r"[a-z]+:", found["target"]):
                yield number, found["target"]


def resolve(name: str, target: str) -> str:
    """The path in the tree that `target` on the page `name` means; "" for the page itself."""
    path = target.partition("#")[0]
    return os.path.normpath(PurePosixPath(name).parent / path) if path else ""


def staged(name: str, pages: dict[str, str]) -> str:
    """The page `name` as the site reads it.

    Raises: BrokenLink for a link to what is not there.
    """
    return rewritten(name, (ROOT / name).read_text(), pages)


def rewritten(name: str, text: str, pages: dict[str, str]) -> str:
    """`text` of the page `name` with its links as the site has them; what is fenced stays as it is.

    Raises: BrokenLink for a link to what is not there.
    """
    here = PurePosixPath(pages[name]).parent

    def link(found: re.Match[str]) -> str:
        label, target = found["text"], found["target"]
        if re.match(r"[a-z]+:", target) or target.startswith("#"):
            return found[0]
        path, _, anchor = target.partition("#")
        meant = resolve(name, path)
        if meant in pages:
            return f"{label}({os.path.relpath(pages[meant], here)}{'#' + anchor if anchor else ''})"
        if not (ROOT / meant).exists():
            raise BrokenLink(f"{name}: {target} leads nowhere")
        if label.startswith("!"):
            place = (ROOT / meant).relative_to(DOCS).as_posix()
            return f"{label}({os.path.relpath(place, here)})"
        words = label[1:-1]
        return words if words.strip("`") == meant else f"{words} (`{meant}`)"

    return "".join(_LINK.sub(link, line) if outside else line for line, outside in _spaced(text))


def _spaced(text: str) -> Iterator[tuple[str, bool]]:
    """Lines, with an empty one before each list and table that follows text at once: the site's
    Markdown asks for it, others do not."""
    before = ""
    for _, line, outside in lines_outside_fences(text):
        started = _BLOCK.match(line) if outside else None
        if (
            started
            and before.strip()
            and not before.startswith((" ", "#", "<!--"))
            and not _BLOCK.match(before)
        ):
            yield "\n", True
        yield (line.lstrip(" ") if started and started[1] == "|" else line), outside
        before = line if outside else ""
