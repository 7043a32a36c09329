"""The program's entry: the table of verbs, and errors as messages and exit codes."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from watchrelay import __version__
from watchrelay.cli import (
    asyncapi,
    completion,
    demo,
    rbac,
    retire,
    run,
    schema,
    signals,
    snapshot,
    tail,
    topics,
    validate,
    verify,
    version,
)
from watchrelay.cli.options import Command, Parser
from watchrelay.cli.output import (
    discard,
    flush_streams,
    is_unwritable,
    open_standard_streams,
    print_error,
)
from watchrelay.core.exit_codes import BAD_CONFIG, FAILED, OK, OWNERSHIP_LOST, UNAVAILABLE, USAGE

COMMANDS: Final[Mapping[str, Command]] = {
    "run": run.COMMAND,
    "validate": validate.COMMAND,
    "demo": demo.COMMAND,
    "tail": tail.COMMAND,
    "snapshot": snapshot.COMMAND,
    "retire": retire.COMMAND,
    "verify": verify.COMMAND,
    "topics": topics.COMMAND,
    "rbac": rbac.COMMAND,
    "asyncapi": asyncapi.COMMAND,
    "schema": schema.COMMAND,
    "completion": completion.command(lambda: build_parser()),
    "version": version.COMMAND,
}
"""Every verb, in the order of --help."""

_ONLY_PRINT: Final = {"demo", "tail", "rbac", "asyncapi", "schema", "completion", "version"}
"""Those that have nothing left to do once their output has no reader."""

_EPILOG = """\
where settings come from, later ones override earlier ones:
  1. the file: -c FILE, else $WATCHRELAY_CONFIG, else ./watchrelay.yaml,
     else /etc/watchrelay/config.yaml
  2. the environment: WATCHRELAY_KAFKA__TOPIC_PREFIX=k8s sets kafka.topicPrefix;
     lists with commas, sections as JSON
  3. --set kafka.topicPrefix=k8s, may be repeated;
     list items as resources[0].labelSelector=app=web

examples:
  watchrelay demo                                   try it: no cluster, no Kafka, one minute
  watchrelay validate -c watchrelay.yaml            streams and topics, or every mistake
  watchrelay validate --connect                     and the cluster, rights, brokers and topics
  watchrelay rbac | kubectl apply -f -              grant what this config needs, and nothing else
  watchrelay run --set observe.logLevel=debug       the daemon
  watchrelay tail pods --from-beginning --until-end --output json
  watchrelay verify --cluster                       check the topics against the cluster
  watchrelay snapshot pods                          publish a full snapshot now

exit codes:
  0 done, or drained    1 failed    2 wrong usage    69 a dependency is unavailable
  75 another relay took over    78 the config is wrong, or operator action is required
  130, 143 interrupted by Ctrl-C, by SIGTERM; run, demo and tail without --until-end run until
  then, and exit with 0

stdout is data, stderr is messages. See also `watchrelay COMMAND --help`.
"""


def build_parser(commands: Mapping[str, Command] = COMMANDS) -> argparse.ArgumentParser:
    """The whole command line. Parsed arguments have `command`, the verb."""
    parser = Parser(
        prog="watchrelay",
        description="Relays every change of chosen Kubernetes resources, in order, to Kafka topics "
        "with built-in consistency checks.",
        epilog=_EPILOG,
    )
    parser.add_argument("--version", action="version", version=f"watchrelay {__version__}")
    verbs = parser.add_subparsers(
        dest="command", metavar="COMMAND", required=True, parser_class=Parser
    )
    for name, command in commands.items():
        command.add_arguments(
            verbs.add_parser(name, help=command.summary, description=command.description)
        )
    return parser


def main(argv: Sequence[str] | None = None, commands: Mapping[str, Command] = COMMANDS) -> int:
    """Run the command line; the exit code. Every error is printed."""
    argv = sys.argv[1:] if argv is None else argv
    open_standard_streams()
    code: int | None = None
    try:
        code = _parse_and_run(argv, commands)
        sys.stdout.flush()
    except OSError as error:
        if not is_unwritable(error):
            raise
        discard(sys.stdout)
        if code is not None and isinstance(error, BrokenPipeError):
            return code
        print_error(f"watchrelay: cannot write to stdout: {error.strerror}")
        return FAILED
    except KeyboardInterrupt as stopped:
        number = stopped.number if isinstance(stopped, signals.StoppedBySignal) else signal.SIGINT
        return signals.exit_code(argv, number)
    else:
        return code
    finally:
        flush_streams()


def _parse_and_run(argv: Sequence[str], commands: Mapping[str, Command]) -> int:
    try:
        options = vars(build_parser(commands).parse_args(argv))
    except SystemExit as done:  # argparse ends --help and wrong usage so
        return done.code if isinstance(done.code, int) else USAGE
    except BrokenPipeError:  # of --help or --version
        return OK

    from watchrelay.core.errors import ConfigError, WatchrelayError, first_cause

    verb = options.pop("command")
    try:
        try:
            return commands[verb].run(**options)
        except BaseExceptionGroup as group:
            raise first_cause(group) from group
    except ConfigError as error:
        print_error(*map(str, error.problems))
        return BAD_CONFIG
    except WatchrelayError as error:
        print_error(f"watchrelay: {error}")
        return _exit_code(error)
    except Exception as error:
        # the last resort: a traceback only for an operator who asked for debug output
        if isinstance(error, BrokenPipeError) and verb in _ONLY_PRINT:
            return OK
        if isinstance(error, OSError) and is_unwritable(error):
            raise
        if _debugging(options):
            import traceback

            traceback.print_exc()
        print_error(
            f"watchrelay: internal error: {_one_line(error)}; please report it, with the output "
            "of --set observe.logLevel=debug"
        )
        return FAILED


def _exit_code(error: Exception) -> int:
    from watchrelay.core.errors import PERSON, Fenced, NotRelayed, SinkUnavailable, Unavailable

    if isinstance(error, Fenced):
        return OWNERSHIP_LOST
    if isinstance(error, PERSON):
        return BAD_CONFIG
    return UNAVAILABLE if isinstance(error, NotRelayed | SinkUnavailable | Unavailable) else FAILED


def _debugging(options: Mapping[str, Any]) -> bool:
    """Whether environment, --set or the config in force ask for debug; the file may be what is
    broken."""
    logging = sys.modules.get("logging")
    return (
        os.environ.get("WATCHRELAY_OBSERVE__LOG_LEVEL") == "debug"
        or "observe.logLevel=debug" in options.get("sets", ())
        or (logging is not None and logging.getLogger().level == logging.DEBUG)
    )


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
