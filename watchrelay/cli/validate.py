"""`watchrelay validate`: checks the config; with `--connect`, cluster and Kafka too."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from watchrelay.cli.options import Command, add_config, add_output, service_account_user
from watchrelay.cli.output import check_json, print_error, print_json, problem_json
from watchrelay.cli.signals import run_until_signalled
from watchrelay.core.exit_codes import OK, USAGE


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


def validate(
    *, config: str | None, sets: Sequence[str], connect: bool, account: str | None, output: str
) -> int:
    """Print streams, topics and warnings, and with `connect` the results of the checks.

    Returns: 0 when all is well; 2 for `account` without `connect`; else that of the worst check."""
    if account and not connect:
        print_error(
            "watchrelay validate: --as needs --connect: only the API server knows the rights of "
            "an account"
        )
        return USAGE

    from watchrelay.cli.summary import print_summary, summary_json
    from watchrelay.config import load
    from watchrelay.config.checks import warnings
    from watchrelay.core.errors import ConfigError

    as_json = output == "json"
    try:
        loaded = load(config, sets)
    except ConfigError as error:
        if as_json:
            print_json({"valid": False, "problems": list(map(problem_json, error.problems))})
        raise
    settings = loaded.settings
    advice = [loaded.problem(path, message, hint) for path, message, hint in warnings(settings)]
    if not as_json:
        print_summary(loaded)
        for problem in advice:
            print(f"warning: {problem}")
    document = summary_json(loaded) | {"warnings": list(map(problem_json, advice))}
    code = OK
    if connect:
        # here, so that a check of the config alone imports no client
        from watchrelay.admin.preflight import check_everything, worst_exit_code
        from watchrelay.observe import logs

        logs.configure(settings.observe.log_format, "error")
        results = run_until_signalled(check_everything(settings, account or ""))
        code = worst_exit_code(results)
        document["checks"] = list(map(check_json, results))
        if not as_json:
            print(*results, sep="\n")
    if as_json:
        print_json(document)
    return code


COMMAND = Command(
    "check the config and print its streams and topics",
    "Prints the streams and topics, or every mistake.",
    validate,
    _add_arguments,
)
