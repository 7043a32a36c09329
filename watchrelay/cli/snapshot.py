"""`watchrelay snapshot`: requests snapshots from the running relay, through Kafka, and waits until
they are complete."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TextIO

import msgspec

from watchrelay.admin.snapshot_request import SnapshotAnswer, request_snapshots
from watchrelay.cli.options import ConfigOptions
from watchrelay.cli.signals import run_until_signalled
from watchrelay.config import load_settings
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
"""The JSON keys, with the names of the same fields in the index record."""


def snapshot(
    config: ConfigOptions,
    streams: Sequence[str],
    *,
    as_json: bool,
    timeout_s: float,
) -> int:
    """Request a snapshot of each stream, wait for all, and print a line for each.

    Args:
        config: where the settings come from.
        streams: stream ids; none: all published streams.
        as_json: print JSON.
        timeout_s: time limit for all of it.

    Returns:
        0.

    Raises:
        ConfigError, NotPublished, SnapshotTimeout, SinkUnavailable, TopicRefused: one line for the
            operator each.
        StoppedBySignal: a signal came first.
    """
    settings = load_settings(*config)
    logs.configure(settings.observe.log_format, "error")
    progress = Progress(sys.stderr)

    def completed(answer: SnapshotAnswer) -> None:
        progress.clear()
        print(answer_json(answer) if as_json else answer_text(answer), flush=True)
        progress.completed()

    try:
        run_until_signalled(
            request_snapshots(
                settings,
                streams,
                timeout_s=timeout_s,
                requested=progress.requested,
                completed=completed,
            )
        )
    finally:
        progress.clear()
    return 0


class Progress:
    """How many snapshots are complete, in one line that is overwritten; on a terminal alone."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._shown = out.isatty()
        self._wanted = self._done = 0

    def requested(self, _request_id: str, streams: Sequence[str]) -> None:
        """The request was written."""
        self._wanted = len(streams)
        self._show()

    def completed(self) -> None:
        """The snapshot of one stream is complete."""
        self._done += 1
        self._show()

    def clear(self) -> None:
        """Erase the line."""
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


def answer_json(answer: SnapshotAnswer) -> str:
    """One JSON object on one line: the stream and the fields of its index record (record contract
    7), null for those that it lacks."""
    index = answer.index
    fields = {name: index.get(key) for name, key in _FIELDS.items()}
    return printable(msgspec.json.encode({"stream": answer.stream, **fields}).decode())


def answer_text(answer: SnapshotAnswer) -> str:
    """One line: the snapshot's id, objects, resourceVersion, and the offsets where it begins."""
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
