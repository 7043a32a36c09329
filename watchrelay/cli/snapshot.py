"""`watchrelay snapshot`: asks the running relay for snapshots, through Kafka, and waits until they
are complete."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import TextIO

import msgspec

from watchrelay.admin.snapshot_request import Taken, ask_for_snapshots
from watchrelay.cli.signals import finish
from watchrelay.config import Settings, load_settings
from watchrelay.core.text import counted, printable
from watchrelay.observe import logs

_FIELDS = {
    "snapshot": "snapshot",
    "epoch": "epoch",
    "resourceVersion": "rv",
    "time": "time",
    "count": "count",
    "partitions": "partitions",
}
"""What is printed as JSON, by the name that the index record has for it."""


def run(args: argparse.Namespace) -> int:
    """Ask, wait, print.

    Raises: ConfigError, NotThere, Unanswered, SinkUnavailable, TopicRefused: one line for the
    operator each.
    """
    settings = load_settings(args.config, args.sets)
    logs.configure(settings.observe.log_format, "error")
    printer = as_json if args.output == "json" else line
    finish(_snapshot(settings, args.streams, args.timeout, Progress(sys.stderr), printer))
    return 0


async def _snapshot(
    settings: Settings,
    streams: Sequence[str],
    timeout_s: float,
    progress: Progress,
    printer: Callable[[Taken], str],
) -> None:
    def taken(answer: Taken) -> None:
        progress.clear()
        print(printer(answer), flush=True)
        progress.taken()

    try:
        await ask_for_snapshots(
            settings, streams, timeout_s=timeout_s, asked=progress.asked, taken=taken
        )
    finally:
        progress.clear()


class Progress:
    """What is still waited for, on a terminal alone, in one line that is written over."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._shown = out.isatty()
        self._wanted = self._done = 0

    def asked(self, _request_id: str, streams: Sequence[str]) -> None:
        """The request is written."""
        self._wanted = len(streams)
        self._show()

    def taken(self) -> None:
        """One stream has answered."""
        self._done += 1
        self._show()

    def clear(self) -> None:
        """Take the line away."""
        if self._shown:
            print("\r\x1b[K", end="", file=self._out, flush=True)

    def _show(self) -> None:
        if self._shown and self._done < self._wanted:
            print(
                f"\rwaiting for snapshots: {self._done} of {self._wanted} complete",
                end="",
                file=self._out,
                flush=True,
            )


def as_json(answer: Taken) -> str:
    """One JSON object on one line: the stream and what its index record has (record contract 7);
    null for what that lacks."""
    index = answer.index
    fields = {name: index.get(key) for name, key in _FIELDS.items()}
    return printable(msgspec.json.encode({"stream": answer.stream, **fields}).decode())


def line(answer: Taken) -> str:
    """What one snapshot holds: its id, the objects, the version of the state, and where it begins
    on the topic."""
    index = answer.index
    listed = index.get("partitions")
    partitions = (
        [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
    )
    begins = " ".join(f"{each.get('partition')}@{each.get('begin')}" for each in partitions)
    objects = counted(index.get("count"), "object")
    text = (
        f"{answer.stream}: snapshot {index.get('snapshot')}: {objects} at resourceVersion "
        f"{index.get('rv')}, begins at {begins}"
    )
    return printable(text)
