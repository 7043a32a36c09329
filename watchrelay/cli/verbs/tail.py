"""`watchrelay tail`."""

from __future__ import annotations

import argparse

from watchrelay.cli.options import Command, ConfigOptions, add_config, add_streams, non_empty

_TYPES = ("added", "modified", "deleted", "read", "claim", "begin", "end", "heartbeat")


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
        metavar="KEY",
        action="append",
        default=[],
        type=non_empty,
        help="only these keys, such as shop/web or 'shop/*'",
    )
    parser.add_argument(
        "--type",
        action="append",
        default=[],
        choices=_TYPES,
        help="only these types, markers too; may be repeated, as --key may",
    )
    parser.add_argument(
        "--namespace",
        metavar="NAMESPACE",
        action="append",
        default=[],
        type=non_empty,
        help="only objects of these namespaces",
    )


def _run(args: argparse.Namespace) -> int:
    from watchrelay.cli.tail import tail

    return tail(
        ConfigOptions.of(args),
        args.streams,
        from_beginning=args.from_beginning,
        until_end=args.until_end,
        output=args.output,
        markers=args.markers,
        keys=args.key,
        types=args.type,
        namespaces=args.namespace,
    )


COMMAND = Command(
    "decode the records of the topics and print them",
    "Follows the topics of the given streams, or of all.",
    _run,
    _add_arguments,
)
