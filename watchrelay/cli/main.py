"""Arguments -> the command that does the work -> an exit code.

Room: above all. In: argv. Out: 0 to 78, as --help says. Commands are imported only when they run,
so that --help costs nothing; each is a module `watchrelay/commands/<name>.py` with `run(args:
argparse.Namespace) -> int`.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import io
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any, Final, NoReturn, TextIO

from watchrelay import __version__
from watchrelay.cli import signals

OK: Final = 0
FAILED: Final = 1
USAGE: Final = 2
UNAVAILABLE: Final = 69
OUTCLAIMED: Final = 75
BAD_CONFIG: Final = 78

EXIT_CODES: Final = {
    OK: "done, or drained",
    FAILED: "failed",
    USAGE: "wrong usage",
    UNAVAILABLE: "a dependency is unavailable",
    OUTCLAIMED: "another relay took over",
    BAD_CONFIG: "the config is wrong, or something that a person must change",
    128 + signal.SIGINT: "interrupted by Ctrl-C",
    128 + signal.SIGTERM: "interrupted by SIGTERM",
}
"""What each means, for the reference page; --help says the same."""

_EPILOG = """\
where settings come from, the later wins:
  1. the file: -c FILE, else $WATCHRELAY_CONFIG, else ./watchrelay.yaml,
     else /etc/watchrelay/config.yaml
  2. the environment: WATCHRELAY_KAFKA__TOPIC_PREFIX=k8s sets kafka.topicPrefix;
     lists with commas, sections as JSON
  3. --set kafka.topicPrefix=k8s, as often as needed;
     list items as resources[0].labelSelector=app=web

examples:
  watchrelay demo                                   see it work: no cluster, no Kafka, one minute
  watchrelay validate -c watchrelay.yaml            what the file means, or every mistake in it
  watchrelay validate --connect                     and the cluster, rights, brokers and topics
  watchrelay rbac | kubectl apply -f -              grant what this config needs, and nothing else
  watchrelay run --set observe.logLevel=debug       the daemon
  watchrelay tail pods --from-beginning --until-end --output json
  watchrelay verify --cluster                       check the topics against the cluster
  watchrelay snapshot pods                          publish a full snapshot now

exit codes:
  0 done, or drained    1 failed    2 wrong usage    69 a dependency is unavailable
  75 another relay took over    78 the config is wrong, or something that a person must change
  130, 143 interrupted by Ctrl-C, by SIGTERM; run, demo and tail without --until-end go on until
  then, and end with 0

stdout is data, stderr is messages. `watchrelay COMMAND --help` says more.
"""

_CONFIG_EPILOG = """\
Settings: -c FILE, else $WATCHRELAY_CONFIG, else ./watchrelay.yaml,
else /etc/watchrelay/config.yaml; then WATCHRELAY_A__B variables; then --set.
`watchrelay schema` lists the keys, `watchrelay --help` the exit codes."""


class _Parser(argparse.ArgumentParser):
    """argparse, with messages that start like all others and end with what to do."""

    def error(self, message: str) -> NoReturn:
        # one may be a setting without its --set, and that a password
        if message.startswith("unrecognized arguments"):
            message = " ".join(
                f"{name}=..." if equals else name
                for name, equals, _ in (word.partition("=") for word in message.split())
            )
        self.exit(USAGE, f"{self.prog}: {message}\nTry `{self.prog} --help`.\n")

    def _print_message(self, message: str, file: Any = None) -> None:
        """As argparse does it, but a help that cannot be written is no success."""
        if file is sys.stdout:
            sys.stdout.write(message)
        else:
            super()._print_message(message, file)


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = _Parser(
        prog="watchrelay",
        description="Relays every change of chosen Kubernetes resources, in order, to Kafka topics "
        "that "
        "prove themselves.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"watchrelay {__version__}")
    commands = parser.add_subparsers(
        dest="command", metavar="COMMAND", required=True, parser_class=_Parser
    )

    _add(
        commands,
        "run",
        "the daemon: watch, publish, serve metrics until SIGTERM",
        "Runs until SIGTERM or Ctrl-C, then drains.",
    )

    _add_validate(commands)

    demo = _add(
        commands,
        "demo",
        "see it work on this machine, with neither cluster nor Kafka",
        _DEMO,
        config=False,
    )
    demo.add_argument(
        "--kubeconfig",
        metavar="FILE",
        type=_named,
        help="watch this real cluster instead of the synthetic one",
    )
    demo.add_argument(
        "--kafka",
        metavar="HOST:PORT",
        type=_broker,
        help="publish to this real Kafka instead of the embedded one",
    )

    _add_readers(commands)

    _add_topics(commands)

    _add_rbac(commands)

    asyncapi = _add(
        commands, "asyncapi", "describe topics and records as an AsyncAPI 3.0 document", _ASYNCAPI
    )
    asyncapi.add_argument(
        "--output",
        choices=("json", "yaml"),
        default="json",
        help="how it is written (default: json)",
    )

    _add(
        commands,
        "schema",
        "print the JSON Schema of the config file",
        "For editors and charts: JSON Schema, draft 2020-12.",
        config=False,
    )
    completion = _add(
        commands,
        "completion",
        "print what completes commands in your shell",
        _COMPLETION,
        config=False,
    )
    completion.add_argument(
        "shell", choices=("bash", "zsh", "fish"), help="the shell that reads it"
    )
    completion.set_defaults(parser=parser)
    version = _add(commands, "version", "print the version", "Prints the version.", config=False)
    version.add_argument(
        "--json", action="store_true", help="with the versions of Python and of what matters"
    )
    return parser


def _add_readers(commands: Any) -> None:
    """The commands that read topics, and what they ask for."""
    tail = _add(
        commands,
        "tail",
        "decode the topics for people or programs",
        "Follows the topics of some streams, or of all.",
    )
    tail.add_argument(
        "streams",
        metavar="STREAM",
        nargs="*",
        type=_named,
        help="stream ids, such as pods or pods@shop; none: all that are published",
    )
    tail.add_argument(
        "--from-beginning",
        action="store_true",
        help="start with the oldest record, not with the next",
    )
    tail.add_argument("--until-end", action="store_true", help="stop at what is the end now")
    tail.add_argument(
        "--output", choices=("text", "json", "yaml", "name"), default="text", help=_TAIL_OUTPUT
    )
    tail.add_argument(
        "--markers",
        action="store_true",
        help="also markers: claims, begins and ends of snapshots, heartbeats",
    )
    tail.add_argument(
        "--key",
        metavar="KEY",
        action="append",
        default=[],
        type=_named,
        help="only these keys, such as shop/web or 'shop/*'",
    )
    tail.add_argument(
        "--type",
        action="append",
        default=[],
        choices=_TYPES,
        help="only these types, markers too; may be repeated, as --key may",
    )
    tail.add_argument(
        "--namespace",
        metavar="NAMESPACE",
        action="append",
        default=[],
        type=_named,
        help="only objects of these namespaces",
    )

    snapshot = _add(
        commands, "snapshot", "ask the running relay for snapshots, and wait for them", _SNAPSHOT
    )
    snapshot.add_argument(
        "streams",
        metavar="STREAM",
        nargs="*",
        type=_named,
        help="stream ids, such as pods or pods@shop; none: all that are published",
    )
    snapshot.add_argument(
        "--output",
        choices=("text", "json"),
        default="text",
        help="json: one object a line (default: text)",
    )
    snapshot.add_argument(
        "--timeout",
        metavar="DURATION",
        type=_duration,
        default=300.0,
        help="how long all of it may take (default: 5m)",
    )

    retire = _add(commands, "retire", "take a stream off its topic, for good", _RETIRE)
    retire.add_argument(
        "stream",
        metavar="STREAM",
        type=_named,
        help="the id of a stream that is no longer in the config",
    )
    retire.add_argument(
        "--yes", action="store_true", help="do not ask first; needed where stdin is no terminal"
    )
    retire.add_argument(
        "--force",
        action="store_true",
        help="also while a relay writes the stream: that relay stops, with exit code 75",
    )

    verify = _add(
        commands,
        "verify",
        "replay the topics and check every digest; compare with the cluster",
        _VERIFY,
    )
    verify.add_argument(
        "streams",
        metavar="STREAM",
        nargs="*",
        type=_named,
        help="stream ids, such as pods or pods@shop; none: all that are published",
    )
    verify.add_argument(
        "--cluster", action="store_true", help="also compare with what the API server lists now"
    )
    verify.add_argument(
        "--partitions",
        action="store_true",
        help="a line for each partition, in place of one for each stream",
    )
    verify.add_argument(
        "--output",
        choices=("text", "json"),
        default="text",
        help="json: one object a line (default: text)",
    )


_TAIL_OUTPUT = (
    "json: one object a line; yaml: as kubectl prints objects; name: such as pods/shop/web "
    "(default: text)"
)
_TYPES = ("added", "modified", "deleted", "read", "claim", "begin", "end", "heartbeat")


def _add_validate(commands: Any) -> None:
    validate = _add(
        commands,
        "validate",
        "check the config, say what it means",
        "Prints the streams and topics, or every mistake.",
    )
    validate.add_argument(
        "--connect",
        action="store_true",
        help="also reach out: API server, discovery, rights, brokers, topics",
    )
    validate.add_argument(
        "--as", metavar="ACCOUNT", type=_account, dest="act_as",
        help="with --connect: check the rights of this service account, NS/NAME or "
            "system:serviceaccount:NS:NAME, instead of your own",
    )  # fmt: skip
    validate.add_argument(
        "--output",
        choices=("text", "json"),
        default="text",
        help="json: one object on one line (default: text)",
    )


def _add_topics(commands: Any) -> None:
    topics = _add(
        commands,
        "topics",
        "list and check the topics of the config",
        "Prints each topic and whether it is in order.",
    )
    topics.add_argument("--create", action="store_true", help="create those that are missing")
    topics.add_argument(
        "--output",
        choices=("text", "json"),
        default="text",
        help="json: one object on one line (default: text)",
    )


def _add_rbac(commands: Any) -> None:
    rbac = _add(commands, "rbac", "print the least rights this config needs, as manifests", _RBAC)
    rbac.add_argument(
        "--service-account",
        metavar="NS/NAME",
        type=_service_account,
        default=("watchrelay", "watchrelay"),
        help="who gets the rights (default: watchrelay/watchrelay)",
    )


_DEMO = """\
Starts a synthetic cluster with a busy little shop in it and an embedded Kafka, runs the relay
between them as in production, and prints the decoded events. Ctrl-C ends it. Of WATCHRELAY_*
variables only those are heeded that say how it is observed and ends, and, with --kubeconfig or
--kafka, how to reach that one."""

_SNAPSHOT = """\
Writes a request to the signal topic and waits until the relay has said the whole state of each
stream again. Works wherever Kafka can be reached; the relay answers at its next heartbeat, one that
is down when it starts again within the hour. A consumer may do the same: any record on the signal
topic that is shaped as Debezium's signals."""

_RETIRE = """\
For a stream that was taken out of the config and shall not come back: claims it, publishes a delete
for each of its objects and an empty last snapshot, then forgets it on the control topic. Consumers
end with an empty state. Refused while the stream is in the config, or while a relay writes it: take
it out of that relay's config first, which it notices by itself. To see whether one writes takes up
to one and a half heartbeat intervals. May be run again when it was interrupted; asks before it
changes anything."""

_COMPLETION = """\
Prints a script that completes commands, options and their values:
  bash:  source <(watchrelay completion bash)
  zsh:   eval "$(watchrelay completion zsh)"
  fish:  watchrelay completion fish > ~/.config/fish/completions/watchrelay.fish"""

_ASYNCAPI = """\
Prints what a consumer can expect of this config: channels with topic settings, messages with
headers and payloads. Asks neither cluster nor Kafka: the topic of a resource that only the cluster
knows has no address."""

_VERIFY = """\
Reads each partition of each stream from its last complete snapshot to its end, as a consumer would,
and checks order, gaps, every hash and every digest. Exit code 0 only when all of it holds, 1
otherwise; so it is where a stream of the config was never published. Stale records are noted: they
are no fault, a plain table shows them until they are healed."""

_RBAC = """\
Prints ServiceAccount, roles and bindings: `list` and `watch` on the config's resources, nothing
else. A Role per namespace for entries with namespaces, a ClusterRole for the others. Asks no
cluster: custom resources must be written as plural.group, such as widgets.example.com."""


def _add(
    commands: Any, name: str, summary: str, description: str, *, config: bool = True
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=summary, description=description, epilog=_CONFIG_EPILOG if config else None,
        formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
    )  # fmt: skip
    if config:
        parser.add_argument("-c", "--config", metavar="FILE", help="the config file")
        parser.add_argument(
            "--set", metavar="PATH=VALUE", action="append", default=[], dest="sets", type=_set,
            help="one setting, such as kafka.partitions=3; wins over file and environment; may be "
                "repeated",
        )  # fmt: skip
    return parser


def _duration(text: str) -> float:
    # here, so that --help needs no part of the config
    from watchrelay.config.units import duration_s

    try:
        seconds = duration_s(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if not seconds:
        raise argparse.ArgumentTypeError("must be over 0: write 30s or 5m")
    return seconds


def _named(text: str) -> str:
    # a script's variable that was not set must not come to mean "all", or "none"
    if not text.strip():
        raise argparse.ArgumentTypeError("must not be empty: write it, or leave the argument out")
    return text


def _broker(text: str) -> str:
    # here, so that --help needs no part of the config
    from watchrelay.config.grammar import check_address

    try:
        check_address(text, host_needed=True)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def _set(text: str) -> str:
    # here, so that --help needs no part of the config
    from watchrelay.config import parse_set

    try:
        parse_set(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def _service_account(text: str) -> tuple[str, str]:
    namespace, slash, name = text.partition("/")
    legal = "abcdefghijklmnopqrstuvwxyz0123456789-."
    fits = slash and "." not in namespace and len(namespace) <= 63 and len(name) <= 253
    if not fits or not all(
        part and part[0] not in "-." and part[-1] not in "-." and set(part) <= set(legal)
        for part in (namespace, name)
    ):
        raise argparse.ArgumentTypeError(
            f'"{text}" is not NAMESPACE/NAME, such as watchrelay/watchrelay'
        )
    return namespace, name


def _account(text: str) -> str:
    """`system:serviceaccount:NS:NAME`, which may be written `NS/NAME`, or with a slash for the last
    colon."""
    named = text.removeprefix("system:serviceaccount:")
    try:
        namespace, name = _service_account(named if "/" in named else named.replace(":", "/", 1))
    except argparse.ArgumentTypeError:
        message = (
            f'"{text}" is not a service account: write NAMESPACE/NAME or '
            "system:serviceaccount:NAMESPACE:NAME"
        )
        raise argparse.ArgumentTypeError(message) from None
    return f"system:serviceaccount:{namespace}:{name}"


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code of the command line `argv` (default: the process's own)."""
    _open_streams()
    try:
        return _main(argv)
    finally:
        _settle_stderr()


def _main(argv: Sequence[str] | None) -> int:
    try:
        code = _parse_and_dispatch(argv)
        sys.stdout.flush()
    except BrokenPipeError:
        _silence(sys.stdout)
        return OK
    except OSError as error:
        if not _unwritable(error):
            raise
        _silence(sys.stdout)
        _say(f"watchrelay: cannot write to stdout: {error.strerror}")
        return FAILED
    except KeyboardInterrupt as told:
        number = told.number if isinstance(told, signals.ToldToStop) else signal.SIGINT
        return signals.exit_code(sys.argv[1:] if argv is None else argv, number)
    return code


def _parse_and_dispatch(argv: Sequence[str] | None) -> int:
    try:
        args = build_parser().parse_args(argv)
    except SystemExit as done:  # argparse ends --help and wrong usage so
        return done.code if isinstance(done.code, int) else USAGE
    return _dispatch(args)


def _open_streams() -> None:
    """A process started with a standard stream closed (`>&-`) has None there: what is said goes
    nowhere, not to the other one, and nothing is there to be read.

    What stdout's encoding has no sign for (a file name in a locale of ASCII) is written as an
    escape, as stderr does.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode, encoding="utf-8"))
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def _dispatch(args: argparse.Namespace) -> int:
    from watchrelay.core.errors import (
        PERSON,
        ConfigError,
        Fenced,
        SinkUnavailable,
        Unavailable,
        WatchrelayError,
    )

    try:
        return _command(args)
    except (BrokenPipeError, KeyboardInterrupt):
        raise
    except ConfigError as error:
        _say(*map(str, error.problems))
        return BAD_CONFIG
    except Fenced as error:
        _say(f"watchrelay: {error}")
        return OUTCLAIMED
    except PERSON as error:
        _say(f"watchrelay: {error}")
        return BAD_CONFIG
    except (SinkUnavailable, Unavailable) as error:
        _say(f"watchrelay: {error}")
        return UNAVAILABLE
    except WatchrelayError as error:
        _say(f"watchrelay: {error}")
        return FAILED
    except Exception as error:
        # (the last resort: no traceback reaches an operator who did not ask for one)
        if isinstance(error, OSError) and _unwritable(error):
            raise
        if _debugging(args):
            import traceback

            traceback.print_exc()
        _say(
            f"watchrelay: internal error: {_one_line(error)}; please report it, with what --set "
            "observe.logLevel=debug prints"
        )
        return FAILED


def _command(args: argparse.Namespace) -> int:
    """Run it. Of errors that tasks raised together the one behind the others is told, as if it had
    come alone."""
    command = importlib.import_module(f"watchrelay.cli.{args.command}")
    try:
        return int(command.run(args))
    except BaseExceptionGroup as group:
        from watchrelay.core.errors import first_cause

        raise first_cause(group) from group


def _unwritable(error: OSError) -> bool:
    """True for what only a write can end in, where it names no file: nothing but stdout is written
    so."""
    return error.filename is None and error.errno in (
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EFBIG,
        errno.EIO,
    )


def _debugging(args: argparse.Namespace) -> bool:
    """True when the log level was set to debug, wherever; the file is not asked, it may be what is
    broken."""
    logging = sys.modules.get("logging")
    asked = os.environ.get(
        "WATCHRELAY_OBSERVE__LOG_LEVEL"
    ) == "debug" or "observe.logLevel=debug" in getattr(args, "sets", ())
    return asked or (logging is not None and logging.getLogger().level == logging.DEBUG)


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _say(*lines: str) -> None:
    from watchrelay.core.text import printable  # here, so that --help needs no part of it

    try:
        for line in lines:
            for each in line.split("\n"):
                print(printable(each), file=sys.stderr)
    except OSError:
        _silence(sys.stderr)  # nobody hears us: the exit code says it


def _settle_stderr() -> None:
    """What could not be written to stderr is given up here: at its end the interpreter would try
    again, and exit with 120."""
    try:
        sys.stderr.flush()
    except OSError:
        _silence(sys.stderr)


def _silence(stream: TextIO) -> None:
    """Whoever read our output has left: nothing may be written at exit either. Source: Python docs,
    "Note on SIGPIPE"."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
