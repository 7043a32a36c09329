"""`watchrelay topics`."""

from __future__ import annotations

import argparse

from watchrelay.cli.options import Command, ConfigOptions, add_config, add_output


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    parser.add_argument("--create", action="store_true", help="create those that are missing")
    add_output(parser, per_line=False)


def _run(args: argparse.Namespace) -> int:
    from watchrelay.cli.topics import topics

    return topics(ConfigOptions.of(args), create=args.create, as_json=args.output == "json")


COMMAND = Command(
    "list and check the topics of the config",
    "Prints each topic and whether it is as the config needs it.",
    _run,
    _add_arguments,
)
