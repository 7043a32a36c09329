"""`watchrelay verify`."""

from __future__ import annotations

import argparse

from watchrelay.cli.options import Command, ConfigOptions, add_config, add_output, add_streams

_DESCRIPTION = """\
Reads each partition of each stream from its last complete snapshot to its end, as a consumer would,
and checks order, gaps, every hash and every digest. Exit code 0 only when all checks pass, 1
otherwise, also when a stream of the config was never published. Stale records are reported as
notes, not as faults: a plain table shows them until the relay has replaced them."""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    add_streams(parser)
    parser.add_argument(
        "--cluster", action="store_true", help="also compare with what the API server lists now"
    )
    parser.add_argument(
        "--partitions",
        action="store_true",
        help="a line for each partition, instead of one for each stream",
    )
    add_output(parser, per_line=True)


def _run(args: argparse.Namespace) -> int:
    from watchrelay.cli.verify import verify

    return verify(
        ConfigOptions.of(args),
        args.streams,
        cluster=args.cluster,
        partitions=args.partitions,
        as_json=args.output == "json",
    )


COMMAND = Command(
    "replay the topics and check every digest; compare with the cluster",
    _DESCRIPTION,
    _run,
    _add_arguments,
)
