"""`watchrelay asyncapi`."""

from __future__ import annotations

import argparse

from watchrelay.cli.options import Command, ConfigOptions, add_config

_DESCRIPTION = """\
Prints what a consumer can expect of this config: channels with topic settings, messages with
headers and payloads. Connects neither to the cluster nor to Kafka: the topic of a resource that
only the cluster knows has no address."""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    parser.add_argument(
        "--output",
        choices=("json", "yaml"),
        default="json",
        help="format of the document (default: json)",
    )


def _run(args: argparse.Namespace) -> int:
    from watchrelay.cli.asyncapi import asyncapi

    return asyncapi(ConfigOptions.of(args), as_yaml=args.output == "yaml")


COMMAND = Command(
    "describe topics and records as an AsyncAPI 3.0 document", _DESCRIPTION, _run, _add_arguments
)
