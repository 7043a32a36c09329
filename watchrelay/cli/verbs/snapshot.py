"""`watchrelay snapshot`."""

from __future__ import annotations

import argparse

from watchrelay.cli.options import (
    Command,
    ConfigOptions,
    add_config,
    add_output,
    add_streams,
    duration,
)

_DESCRIPTION = """\
Writes a request to the signal topic and waits until the relay has published a full snapshot of each
stream. Works wherever Kafka can be reached; the relay answers at its next heartbeat, one that is
down answers when it starts within the hour. A consumer may do the same: any record on the signal
topic that has the shape of Debezium's signals."""


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


def _run(args: argparse.Namespace) -> int:
    from watchrelay.cli.snapshot import snapshot

    return snapshot(
        ConfigOptions.of(args),
        args.streams,
        as_json=args.output == "json",
        timeout_s=args.timeout,
    )


COMMAND = Command(
    "publish full snapshots now: request them from the running relay and wait",
    _DESCRIPTION,
    _run,
    _add_arguments,
)
