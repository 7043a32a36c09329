"""`watchrelay completion`: a script for the shell."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator

from watchrelay.cli.options import Command

_DESCRIPTION = """\
Prints a script that completes commands, options and their values:
  bash:  source <(watchrelay completion bash)
  zsh:   eval "$(watchrelay completion zsh)"
  fish:  watchrelay completion fish > ~/.config/fish/completions/watchrelay.fish"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell that reads it")


def command(build_parser: Callable[[], argparse.ArgumentParser]) -> Command:
    """The command; `build_parser` makes the parser of all commands."""

    def completion(*, shell: str) -> int:
        import shtab

        parser = build_parser()
        for action in _actions(parser):
            if action.metavar == "FILE":
                action.complete = shtab.FILE  # type: ignore[attr-defined]  # the name that shtab reads
        print(shtab.complete(parser, shell=shell))
        return 0

    return Command(
        "print a completion script for your shell", _DESCRIPTION, completion, _add_arguments
    )


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Those of the parser and of its commands."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                yield from _actions(each)
