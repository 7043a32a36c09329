"""`watchrelay validate`: checks the config; with `--connect`, cluster and Kafka too."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from watchrelay.cli.options import Command, add_config, add_output, service_account_user
from watchrelay.cli.output import check_json, print_error, print_json, problem_json
from watchrelay.cli.signals import run_until_signalled
from watchrelay.core.exit_codes import BAD_CONFIG, OK, USAGE

_DESCRIPTION = """\
Prints the streams and topics, or every mistake. A warning is legal and may not be meant; its name,
in brackets, stays the same: `acceptWarnings: [NAME]` in the config accepts it."""


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
    parser.add_argument(
        "--strict",
        action="store_true",
        help="end with 78 also for a warning that acceptWarnings does not name",
    )
    add_output(parser, per_line=False)


def validate(
    *,
    config: str | None,
    sets: Sequence[str],
    connect: bool,
    account: str | None,
    strict: bool,
    output: str,
) -> int:
    """Print streams, topics and warnings, and with `connect` the results of the checks.

    Returns: 0 when all is well; 2 for `account` without `connect`; else that of the worst check;
    78 with `strict` for a warning that is not accepted, unless a check is worse."""
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
    accepted = frozenset(settings.accept_warnings)
    advice = [
        (each.name, loaded.problem(each.path, each.message, each.hint))
        for each in warnings(settings)
    ]
    names = {name for name, _ in advice}
    if not as_json:
        print_summary(loaded)
        for name, problem in advice:
            print(f"{'accepted' if name in accepted else 'warning'}: {problem} [{name}]")
    document = summary_json(loaded) | {
        "warnings": [
            problem_json(problem) | {"name": name, "accepted": name in accepted}
            for name, problem in advice
        ]
    }
    code = OK
    if connect:
        # here, so that a check of the config alone imports no client
        from watchrelay.admin.preflight import check_everything, worst_exit_code
        from watchrelay.observe import logs

        logs.configure(settings.observe.log_format, "error")
        results = run_until_signalled(check_everything(settings, account or ""))
        code = worst_exit_code(results)
        names |= {result.name for result in results if result.name}
        document["checks"] = [
            check_json(result) | {"accepted": result.name in accepted} for result in results
        ]
        if not as_json:
            print(*(result.with_name(accepted) for result in results), sep="\n")
    if as_json:
        print_json(document)
    return BAD_CONFIG if strict and code == OK and names - accepted else code


COMMAND = Command(
    "check the config and print its streams and topics",
    _DESCRIPTION,
    validate,
    _add_arguments,
)
