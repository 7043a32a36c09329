"""The pages of the docs, of the README and beside the parts: their fenced blocks,
and what each is there for.

A comment before a block says how it is held true:

    <!-- docs: run -->              the lines run, in the order of the page, in one shell
    <!-- docs: background -->       the line runs while those behind it do
    <!-- docs: prints -->           the lines before it print this; `…` is anything, a line of it
    more lines like the one above <!-- docs: file NAME -->        the block is written to NAME for
    the lines behind it <!-- docs: parsed: REASON -->   arguments, targets and files are checked;
    why it is not run <!-- docs: cluster: REASON -->  runs against a real API server
    (tests/docs/test_pages_real.py) <!-- docs: helm -->             runs where the tools of the
    chart are (tests/docs/test_pages_chart.py) <!-- docs: compiled: REASON --> Python that is
    compiled and not run <!-- docs: config|resources|prometheus -->  a part of a config of that kind
    <!-- docs: systems -->          another system reads it, against a real broker: `make systems`,
    by hand <!-- docs: sample -->           another system's language: nothing here reads it
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tools.docs.pages import HOME, ROOT, sources

_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*)\s*$")
_DIRECTIVE = re.compile(r"^ *<!-- docs: (?P<verb>\w+)(?::? (?P<rest>.+?))? -->\s*$")


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block. `verb` is "" without a comment; `rest` is the file's name or the
    reason."""

    page: str
    line: int
    language: str
    verb: str
    rest: str
    text: str

    @property
    def place(self) -> str:
        """Its place, for messages."""
        return f"{self.page}:{self.line}"

    def lines(self) -> Iterator[str]:
        """The commands of a shell block, comments left out."""
        for line in self.text.splitlines():
            if line.strip() and not line.strip().startswith("#"):
                yield line


def pages() -> list[str]:
    """Every page, by its path in the tree."""
    return [*sources(), *(name for name in HOME if (ROOT / name).is_file())]


def blocks(page: str) -> Iterator[Block]:
    """The fenced blocks of a page, in order."""
    lines = (ROOT / page).read_text().splitlines()
    directive: re.Match[str] | None = None
    number = 0
    while number < len(lines):
        if opened := _FENCE.match(lines[number]):
            end = next(at for at in range(number + 1, len(lines)) if lines[at].strip() == "```")
            text = (
                "\n".join(line.removeprefix(opened["indent"]) for line in lines[number + 1 : end])
                + "\n"
            )
            verb, rest = (directive["verb"], directive["rest"] or "") if directive else ("", "")
            yield Block(page, number + 1, opened["language"], verb, rest, text)
            directive, number = None, end
        elif found := _DIRECTIVE.match(lines[number]):
            directive = found
        elif lines[number].strip():
            directive = None
        number += 1


def all_blocks() -> list[Block]:
    """The blocks of every page."""
    return [block for page in pages() for block in blocks(page)]


def source(path: str) -> Path:
    """A file of the tree."""
    return ROOT / path
