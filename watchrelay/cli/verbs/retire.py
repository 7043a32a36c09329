"""`watchrelay retire`."""

from __future__ import annotations

import argparse

from watchrelay.cli.options import Command, ConfigOptions, add_config, non_empty

_DESCRIPTION = """\
For a stream that was removed from the config for good: claims it, publishes a delete for each of
its objects and an empty last snapshot, then removes its records from the control topic. Consumers
end with an empty state. Refused while the stream is in the config, or while a relay writes it:
remove it from that relay's config first; the relay reloads its config by itself. To find out
whether a relay writes it takes up to one and a half heartbeat intervals. May be repeated after an
interruption; asks for confirmation before it changes anything."""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    parser.add_argument(
        "stream",
        metavar="STREAM",
        type=non_empty,
        help="the id of a stream that is no longer in the config",
    )
    parser.add_argument(
        "--yes",
        action="store_true",
        help="do not ask for confirmation; required where stdin is no terminal",
    )
    parser.add_argument(
        "--force",
        action="store_true",
        help="also while a relay writes the stream: that relay stops, with exit code 75",
    )


def _run(args: argparse.Namespace) -> int:
    from watchrelay.cli.retire import retire

    return retire(ConfigOptions.of(args), args.stream, yes=args.yes, force=args.force)


COMMAND = Command("remove a stream from its topic, for good", _DESCRIPTION, _run, _add_arguments)
