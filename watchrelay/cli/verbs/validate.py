"""`watchrelay validate`."""

from __future__ import annotations

import argparse

from watchrelay.cli.options import (
    Command,
    ConfigOptions,
    add_config,
    add_output,
    service_account_user,
)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    parser.add_argument(
        "--connect",
        action="store_true",
        help="also connect: check API server, discovery, rights, brokers, topics",
    )
    parser.add_argument(
        "--as",
        metavar="ACCOUNT",
        type=service_account_user,
        dest="account",
        help="with --connect: check the rights of this service account, NS/NAME or "
        "system:serviceaccount:NS:NAME, instead of your own",
    )
    add_output(parser, per_line=False)


def _run(args: argparse.Namespace) -> int:
    from watchrelay.cli.validate import validate

    return validate(
        ConfigOptions.of(args),
        connect=args.connect,
        account=args.account or "",
        as_json=args.output == "json",
    )


COMMAND = Command(
    "check the config and print its streams and topics",
    "Prints the streams and topics, or every mistake.",
    _run,
    _add_arguments,
)
