"""`watchrelay demo`: the relay between a synthetic cluster and an embedded Kafka."""

from __future__ import annotations

import argparse

from watchrelay.cli.options import Command, checked, non_empty
from watchrelay.cli.signals import run_until_signalled, write_at_once
from watchrelay.core.exit_codes import USAGE

_DESCRIPTION = """\
Starts a synthetic cluster with the workload of a small shop and an embedded Kafka, runs the relay
between them as in production, and prints the decoded events. Ctrl-C ends it. Of the WATCHRELAY_*
variables only those of observability and shutdown are used, and, with --kubeconfig or --kafka,
those of the connection to that cluster or Kafka."""


def _address(text: str) -> str:
    from watchrelay.config.values import check_server

    checked(check_server, text)
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
    parser.add_argument(
        "--trouble",
        action="store_true",
        help="also show a missing right, and a Kafka that is away for 20 s, and how each heals; "
        "takes two minutes",
    )


def demo(*, kubeconfig: str | None, kafka: str | None, trouble: bool) -> int:
    """Run until Ctrl-C: events on stdout, messages on stderr; the exit code of the relay's drain.

    Raises: ConfigError: an unusable kubeconfig, or no directory for temporary files.
    EmbeddedKafkaError: the extra `demo` is not installed. SinkUnavailable."""
    import sys

    from watchrelay.cli.output import print_error
    from watchrelay.cli.records import HEADING, print_batch, text_printer
    from watchrelay.core.deadline import Deadline
    from watchrelay.core.programs import kill_programs
    from watchrelay.daemon.daemon import CLOSING_S
    from watchrelay.demo.relay import run_demo
    from watchrelay.observe import logs

    if trouble and (kubeconfig or kafka):
        print_error(
            "watchrelay demo: --trouble hurts nothing real: leave out --kubeconfig, --kafka"
        )
        return USAGE
    # the embedded broker does not report topic configs; the warnings about that are no news here
    logs.configure("console", "warning" if kafka else "error")
    printer = text_printer(sys.stdout)

    def last_words() -> None:
        kill_programs()
        write_at_once(b"watchrelay: the demo did not end in time, the process ends without it\n")

    deadline = Deadline(last_words)
    return run_until_signalled(
        run_demo(
            kubeconfig,
            kafka,
            lambda seen: print_batch(seen, printer, sys.stdout),
            heading=HEADING,
            trouble=trouble,
            deadline=deadline,
        ),
        cancelling=lambda: deadline.within(CLOSING_S),
    )


COMMAND = Command(
    "run on this machine, without a cluster or a Kafka", _DESCRIPTION, demo, _add_arguments
)
