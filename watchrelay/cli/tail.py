"""`watchrelay tail`: topics decoded, for people or programs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import aclosing

from watchrelay.cli.options import Command, add_config, add_streams, command_settings, non_empty
from watchrelay.cli.output import print_error
from watchrelay.cli.signals import run_until_signalled

_DESCRIPTION = """\
Follows the topics of the given streams, or of all. Says on stderr what it reads: each topic with
its streams, and its partitions as PARTITION@OFFSET, with the offset from which they are read."""
_TYPES = ("added", "modified", "deleted", "read", "claim", "begin", "end", "heartbeat")
_TOPICS_SHOWN = 20


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    add_streams(parser)
    parser.add_argument(
        "--from-beginning",
        action="store_true",
        help="start with the oldest record, not with the next",
    )
    parser.add_argument("--until-end", action="store_true", help="stop at the current end")
    parser.add_argument(
        "--output",
        choices=("text", "json", "yaml", "name"),
        default="text",
        help="json: one object a line; yaml: as kubectl prints objects; name: such as "
        "pods/shop/web (default: text)",
    )
    parser.add_argument(
        "--markers",
        action="store_true",
        help="also markers: claims, begins and ends of snapshots, heartbeats",
    )
    parser.add_argument(
        "--key",
        dest="keys",
        metavar="KEY",
        action="append",
        default=[],
        type=non_empty,
        help="only these keys, such as shop/web or 'shop/*'",
    )
    parser.add_argument(
        "--type",
        dest="types",
        action="append",
        default=[],
        choices=_TYPES,
        help="only these types, markers too; may be repeated, as --key may",
    )
    parser.add_argument(
        "--namespace",
        dest="namespaces",
        metavar="NAMESPACE",
        action="append",
        default=[],
        type=non_empty,
        help="only objects of these namespaces",
    )


def tail(
    *,
    config: str | None,
    sets: Sequence[str],
    streams: Sequence[str],
    from_beginning: bool,
    until_end: bool,
    output: str,
    markers: bool,
    keys: Sequence[str],
    types: Sequence[str],
    namespaces: Sequence[str],
) -> int:
    """Print records until a signal stops it, or with `until_end` up to the end at the start.

    Raises: ConfigError, SinkUnavailable, NothingPublished."""
    from watchrelay.cli.records import PRINTERS, RecordFilter, print_batch, short_client_log
    from watchrelay.config.streams import control_topic, may_mean, plan
    from watchrelay.consumer.reader import Attached, TailReader
    from watchrelay.core.text import counted, printable
    from watchrelay.plan.kafka import kafka_connection

    settings = command_settings(config, sets)
    printer = PRINTERS[output]()
    wanted = RecordFilter(markers, tuple(keys), frozenset(types), frozenset(namespaces))
    shown: set[str] = set()

    def waiting(problem: str) -> None:
        if problem not in shown:
            shown.add(problem)
            print_error(f"waiting: {problem}")

    def attached(topics: Sequence[Attached]) -> None:
        for each in topics[:_TOPICS_SHOWN]:
            print_error(f"reading {printable(str(each))}")
        if (more := len(topics) - _TOPICS_SHOWN) > 0:
            print_error(f"reading {counted(more, 'more topic')}")

    async def print_records() -> None:
        reader = TailReader(
            kafka_connection(settings, client_id="watchrelay-tail"),
            control_topic=control_topic(settings),
            streams=streams,
            from_beginning=from_beginning,
            until_end=until_end,
            waiting=waiting,
            attached=attached,
            awaited=lambda stream: any(may_mean(each, stream) for each in plan(settings)),
        )
        with short_client_log(sys.stderr):
            async with aclosing(reader.batches()) as batches:
                async for seen in batches:
                    print_batch(seen, printer, sys.stdout, wanted)

    run_until_signalled(print_records())
    return 0


COMMAND = Command(
    "decode the records of the topics and print them",
    _DESCRIPTION,
    tail,
    _add_arguments,
)
