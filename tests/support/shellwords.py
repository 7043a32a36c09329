"""Lines of shell as pages print them: what is wrong with them without running them: arguments that
the program does not take, targets that the Makefile does not have, files that are not there."""

import contextlib
import io
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from watchrelay.cli.main import build_parser

ROOT = Path(__file__).resolve().parents[2]
_TARGETS = frozenset(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
_IN_TREE = ("examples/", "helm/", "deploy/", "tests/", "tools/", "docs/", "requirements/")
_OPERATORS = frozenset({"|", "||", "&&", ";", "&", ">", ">>", "<", "2>"})


def commands(line: str) -> Iterator[list[str]]:
    """The simple commands of a line, without assignments before them and without where their output
    goes."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    lexer.commenters = "#"
    words: list[str] = []
    skip = False
    for token in lexer:
        if token in _OPERATORS:
            if token in (">", ">>", "<"):
                skip = True
                continue
            yield words
            words = []
        elif skip:
            skip = False
        elif words or not re.fullmatch(r"[A-Z_]+=.*", token):
            words.append(token)
    yield words


def complaints(line: str) -> Iterator[str]:
    """One sentence for each thing that is wrong with `line`."""
    for words in commands(line):
        if not words:
            continue
        program, *arguments = words
        program = program.rpartition("/")[2]
        if program == "watchrelay":
            yield from _arguments(arguments)
        if program == "make":
            wanted = [word for word in arguments if "=" not in word and not word.startswith("-")]
            yield from (f"make has no target {word}" for word in wanted if word not in _TARGETS)
        for word in words:
            if word.startswith(_IN_TREE) and not (ROOT / word).exists():
                yield f"{word} is not there"


def _arguments(arguments: list[str]) -> Iterator[str]:
    stderr = io.StringIO()
    with contextlib.redirect_stderr(stderr), contextlib.redirect_stdout(io.StringIO()):
        try:
            build_parser().parse_args(arguments)
        except SystemExit as done:
            if done.code:
                yield stderr.getvalue().strip()
