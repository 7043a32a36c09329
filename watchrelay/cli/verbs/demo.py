"""`watchrelay demo`."""

from __future__ import annotations

import argparse

from watchrelay.cli.options import Command, checked, non_empty

_DESCRIPTION = """\
Starts a synthetic cluster with the workload of a small shop and an embedded Kafka, runs the relay
between them as in production, and prints the decoded events. Ctrl-C ends it. Of the WATCHRELAY_*
variables only those of observability and shutdown are used, and, with --kubeconfig or --kafka,
those of the connection to that cluster or Kafka."""


def _address(text: str) -> str:
    from watchrelay.config.grammar import check_address

    checked(lambda address: check_address(address, host_needed=True), text)
    return text


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--kubeconfig",
        metavar="FILE",
        type=non_empty,
        help="watch this real cluster instead of the synthetic one",
    )
    parser.add_argument(
        "--kafka",
        metavar="HOST:PORT",
        type=_address,
        help="publish to this real Kafka instead of the embedded one",
    )


def _run(args: argparse.Namespace) -> int:
    from watchrelay.cli.demo import demo

    return demo(kubeconfig=args.kubeconfig, kafka=args.kafka)


COMMAND = Command(
    "run on this machine, without a cluster or a Kafka", _DESCRIPTION, _run, _add_arguments
)
