"""The pages whose commands can run here: proof that they run as printed, in their order, against
the demo that the page starts, in one shell as a reader has it.

The checkout is seen through links, so that what a page writes stays out of it; the port of the
admin server is another one in each run.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.daemon import clean_environment
from tests.support.docpages import Block, all_blocks, blocks
from tests.support.process import Process, free_port
from tools.docs.pages import ROOT

PAGES = sorted({block.page for block in all_blocks() if block.verb == "run"})
PORT = "8080"
READY, DRAINED = "demo: ready", "drained; goodbye"
MAKE_INTERRUPTED = 130
"""What make returns after Ctrl-C, whatever its program did."""
NOT_LINKED = {"watchrelay.yaml", "build", "dist", ".git", ".venv"}


def checkout(directory: Path) -> Path:
    """A checkout to write to, of links to the files of this one. Its environment counts as
    installed: `make install` must not point the one of the tree at this copy."""
    seen = directory / "checkout"
    (seen / ".venv").mkdir(parents=True)
    for path in ROOT.iterdir():
        if path.name not in NOT_LINKED and not path.name.startswith(".coverage"):
            (seen / path.name).symlink_to(path)
    for path in (ROOT / ".venv").iterdir():
        if path.name != ".installed":
            (seen / ".venv" / path.name).symlink_to(path)
    (seen / ".venv" / ".installed").touch()
    return seen


class Reader:
    """Who follows a page: has a directory, a place for temporary files, and a shell."""

    def __init__(self, directory: Path) -> None:
        self.directory = checkout(directory)
        self.log = directory / "background.log"
        self.temporary = directory / "tmp"
        self.temporary.mkdir()
        self.port = str(free_port())
        self.environment = clean_environment({"TMPDIR": str(self.temporary), "NO_COLOR": "1"})
        self.environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

    def text(self, block: Block) -> str:
        """What is typed: the port is another one here."""
        return block.text.replace(f":{PORT}", f":{self.port}")

    def write(self, block: Block) -> None:
        """Make the file of a page; it has no link to follow."""
        (self.directory / block.rest).write_text(block.text)

    @contextmanager
    def running(self, block: Block) -> Iterator[None]:
        """While in it, the page's own background command runs; then Ctrl-C, which it must take
        well."""
        # a shell outlives its Ctrl-C
        argv = ["bash", "-c", f"trap : INT; cd {self.directory}\n{self.text(block)}"]
        demo = Process(
            "demo", argv, log=self.log, environment={"NO_COLOR": "1", "TMPDIR": str(self.temporary)}
        ).launch()
        try:
            demo.await_ready(
                lambda: READY in self.log.read_text(errors="replace"), deadline_s=120.0
            )
            yield
            os.killpg(demo.pid, signal.SIGINT)  # as a terminal does: to make and to the program
            assert demo.exit_code(30.0) == MAKE_INTERRUPTED, demo.tail()
            assert DRAINED in self.log.read_text(errors="replace"), demo.tail()
        finally:
            demo.kill()

    def follow(self, todo: list[Block]) -> str:
        """Everything that was printed; fails at the first command that does."""
        script = "set -eu\n" + "".join(
            f"echo '--- {block.place}'\n{self.text(block)}" for block in todo
        )
        done = subprocess.run(
            ["bash", "-c", script],
            capture_output=True,
            text=True,
            timeout=250.0,
            check=False,
            env=self.environment,
            cwd=self.directory,
        )
        assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        # a pipe hides exit codes
        assert not re.search(r"Traceback|internal error", done.stdout + done.stderr), done.stderr[
            -3000:
        ]
        return done.stdout


def printed_by(block: Block, output: str) -> list[str]:
    """The lines that the block printed, of what `follow` returned."""
    return output.partition(f"--- {block.place}\n")[2].partition("\n--- ")[0].splitlines()


def pattern(block_text: str) -> re.Pattern[str]:
    """The output that a block of the verb `prints` matches."""
    lines: list[str] = []
    for line in block_text.splitlines():
        lines.append(
            f"(?:{lines.pop()})+"
            if line == "…"
            else ".*".join(map(re.escape, line.split("…"))) + r"\n"
        )
    return re.compile("".join(lines))


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_run_in_their_order(page: str, tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    here = list(blocks(page))
    for block in here:
        if block.verb == "file":
            reader.write(block)
    todo = [block for block in here if block.verb == "run"]
    background = [block for block in here if block.verb == "background"]
    if background:
        with reader.running(background[0]):
            printed = reader.follow(todo)
    else:
        printed = reader.follow(todo)
    assert CLAIMS.get(page, "") in printed
    for before, block in pairwise(here):
        if block.verb == "prints":
            lines = printed_by(before, printed)
            assert pattern(block.text).fullmatch("".join(f"{line}\n" for line in lines)), "\n".join(
                lines
            )
            CHECKS[page](lines)


def the_state_comes_once_and_then_what_changes(lines: list[str]) -> None:
    """What `docs/consume.md` says of the iteration."""
    known = int(lines[0].split()[0])
    initial = [line.split() for line in lines[2 : 2 + known]]
    assert {(verb, reason) for verb, *_, reason in initial} == {("added", "initial")}
    assert len({key for _, key, *_ in initial}) == known > 0
    assert [line.split()[-1] for line in lines[2 + known :]] == ["watch"] * 3


CHECKS = {"docs/consume.md": the_state_comes_once_and_then_what_changes}

CLAIMS = {
    "docs/first-minute.md": "partitions hold",
    "docs/consume.md": "pods; proven: True",
    "docs/install.md": "kind: ClusterRoleBinding",
    "docs/observe.md": 'watchrelay_stream_owned{cluster="demo",stream="pods"} 1.0',
    "docs/upgrade.md": "good",
}
"""A part of what each page says its reader will see."""


def test_every_page_that_runs_has_a_claim() -> None:
    assert set(PAGES) == set(CLAIMS)
