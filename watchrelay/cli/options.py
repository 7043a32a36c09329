"""What the verbs share: the parser, common options, argument types, and the settings.

`watchrelay --help` imports this: what needs the config imports it when it is called.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, TypeVar

from watchrelay.core.exit_codes import USAGE

if TYPE_CHECKING:
    from watchrelay.config import Settings

_CONFIG_EPILOG: Final = """\
Settings: -c FILE, else $WATCHRELAY_CONFIG, else ./watchrelay.yaml,
else /etc/watchrelay/config.yaml; then WATCHRELAY_A__B variables; then --set.
`watchrelay schema` lists the keys, `watchrelay --help` the exit codes."""

Parsed = TypeVar("Parsed")

_ACCOUNT_PREFIX: Final = "system:serviceaccount:"
_ACCOUNT: Final = re.compile(
    r"([a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?)/([a-z0-9](?:[-.a-z0-9]{0,251}[a-z0-9])?)"
)


class Command(NamedTuple):
    """One verb of the command line."""

    summary: str
    """Its line in `watchrelay --help`."""
    description: str
    """The first paragraph of its own --help."""
    run: Callable[..., int]
    """Takes each of its options and arguments by name; returns the exit code."""
    add_arguments: Callable[[argparse.ArgumentParser], None] = lambda _: None
    """Adds its options and arguments to its parser."""


class Parser(argparse.ArgumentParser):
    """argparse with usage errors in the form of all other messages, and without values in them:
    an unknown argument may be a password."""

    def __init__(self, **options: Any) -> None:
        formatter = argparse.RawDescriptionHelpFormatter
        super().__init__(formatter_class=formatter, allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        """Print the usage error and exit with code 2."""
        if message.startswith("unrecognized arguments"):
            message = " ".join(
                f"{name}=..." if equals else name
                for name, equals, _ in (word.partition("=") for word in message.split())
            )
        self.exit(USAGE, f"{self.prog}: {message}\nTry `{self.prog} --help`.\n")

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print a help text, or an error: only a help text that cannot be written is a failure.
        Python 3.11.2 raises for both, later ones for neither."""
        if file is sys.stdout:
            sys.stdout.write(message)
            return
        with contextlib.suppress(OSError):
            super()._print_message(message, file)


# ---- options that several commands have ----------------------------------------------------------


def add_config(parser: argparse.ArgumentParser) -> None:
    """Add `-c` and `--set`: `config` and `sets` of the parsed arguments."""
    parser.epilog = _CONFIG_EPILOG
    parser.add_argument("-c", "--config", metavar="FILE", help="the config file")
    parser.add_argument(
        "--set",
        metavar="PATH=VALUE",
        action="append",
        default=[],
        dest="sets",
        type=_set,
        help="one setting, such as kafka.partitions=3; overrides file and environment; may be "
        "repeated",
    )


def command_settings(config: str | None, sets: Sequence[str]) -> Settings:
    """The settings, for a command that runs once: only errors are logged. Raises: ConfigError."""
    from watchrelay.config import load_settings
    from watchrelay.observe import logs

    settings = load_settings(config, sets)
    logs.configure(settings.observe.log_format, "error")
    return settings


def add_streams(parser: argparse.ArgumentParser) -> None:
    """Add `STREAM...`: `streams` of the parsed arguments, empty for all."""
    parser.add_argument(
        "streams",
        metavar="STREAM",
        nargs="*",
        type=non_empty,
        help="stream ids, such as pods or pods@shop; none: all published streams",
    )


def add_output(parser: argparse.ArgumentParser, *, per_line: bool) -> None:
    """Add `--output text|json`; `per_line`: the JSON is several objects, one a line."""
    parser.add_argument(
        "--output",
        choices=("text", "json"),
        default="text",
        help=f"json: one object {'a' if per_line else 'on one'} line (default: text)",
    )


# ---- types of arguments --------------------------------------------------------------------------


def non_empty(text: str) -> str:
    """`text`. An empty one is refused: a script's unset variable must not come to mean "all"."""
    if not text.strip():
        raise argparse.ArgumentTypeError("must not be empty: give a value, or omit the argument")
    return text


def duration(text: str) -> float:
    """Seconds, from text such as `30s`."""
    from watchrelay.config.values import duration_s

    seconds = checked(duration_s, text)
    if not seconds:
        raise argparse.ArgumentTypeError("must be over 0: write 30s or 5m")
    return seconds


def _set(text: str) -> str:
    from watchrelay.config.sources import parse_set

    checked(parse_set, text)
    return text


def checked(parse: Callable[[str], Parsed], text: str) -> Parsed:
    """What `parse` returns, with its ValueError as the message of a usage error."""
    try:
        return parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def service_account(text: str) -> tuple[str, str]:
    """Namespace and name, from `NAMESPACE/NAME`."""
    if (found := _ACCOUNT.fullmatch(text)) is None:
        raise argparse.ArgumentTypeError(
            f'"{text}" is not NAMESPACE/NAME, such as watchrelay/watchrelay'
        )
    return found[1], found[2]


def service_account_user(text: str) -> str:
    """The user name `system:serviceaccount:NS:NAME`, also from `NS/NAME`."""
    named = text.removeprefix(_ACCOUNT_PREFIX)
    try:
        namespace, name = service_account(named if "/" in named else named.replace(":", "/", 1))
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(
            f'"{text}" is not a service account: write NAMESPACE/NAME or '
            f"{_ACCOUNT_PREFIX}NAMESPACE:NAME"
        ) from None
    return f"{_ACCOUNT_PREFIX}{namespace}:{name}"
