"""`watchrelay snapshot`: requests snapshots from the running relay and waits for them."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from watchrelay.cli.options import (
    Command,
    add_config,
    add_output,
    add_streams,
    command_settings,
    duration,
)
from watchrelay.cli.output import print_json
from watchrelay.cli.signals import run_until_signalled

_DESCRIPTION = """\
Writes a request to the signal topic and waits until the relay has published a full snapshot of each
stream. Works wherever Kafka can be reached; the relay answers at its next heartbeat. If none comes
for three heartbeat intervals, the command ends with 69: no relay writes the streams; one that
starts within the hour answers. A consumer may do the same: any record on the signal topic that has
the shape of Debezium's signals."""
_FIELDS = {
    "snapshot": "snapshot",
    "epoch": "epoch",
    "resourceVersion": "rv",
    "time": "time",
    "count": "count",
    "partitions": "partitions",
}
"""The JSON keys, with the names of the same fields in the index record."""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    add_streams(parser)
    add_output(parser, per_line=True)
    parser.add_argument(
        "--timeout",
        metavar="DURATION",
        type=duration,
        default=300.0,
        help="time limit for the whole command (default: 5m)",
    )


def snapshot(
    *, config: str | None, sets: Sequence[str], streams: Sequence[str], output: str, timeout: float
) -> int:
    """Request a snapshot of each stream, wait up to `timeout` seconds, print a line for each."""
    from watchrelay.admin.snapshot_request import request_snapshots

    def completed(stream: str, index: Mapping[str, object]) -> None:
        if output == "json":
            print_json(answer_json(stream, index))
        else:
            print(answer_text(stream, index), flush=True)

    settings = command_settings(config, sets)
    run_until_signalled(
        request_snapshots(settings, streams, timeout_s=timeout, completed=completed)
    )
    return 0


def answer_json(stream: str, index: Mapping[str, object]) -> dict[str, Any]:
    """The stream and the fields of its index record (record contract 7), null for absent ones."""
    return {"stream": stream, **{name: index.get(key) for name, key in _FIELDS.items()}}


def answer_text(stream: str, index: Mapping[str, object]) -> str:
    """One line: the snapshot's id, objects, resourceVersion, and the offsets where it begins."""
    from watchrelay.core.text import counted, printable

    listed = index.get("partitions")
    partitions = (
        [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
    )
    begins = " ".join(f"{each.get('partition')}@{each.get('begin')}" for each in partitions)
    return printable(
        f"{stream}: snapshot {index.get('snapshot')}: {counted(index.get('count'), 'object')} at "
        f"resourceVersion {index.get('rv')}, begins at {begins}"
    )


COMMAND = Command(
    "publish full snapshots now: request them from the running relay and wait",
    _DESCRIPTION,
    snapshot,
    _add_arguments,
)
