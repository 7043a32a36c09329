"""`watchrelay completion`: a script for the shell."""

from __future__ import annotations

import argparse

from watchrelay.cli.options import Command

_DESCRIPTION = """\
Prints a script that completes commands, options and their values:
  bash:  source <(watchrelay completion bash)
  zsh:   eval "$(watchrelay completion zsh)"
  fish:  watchrelay completion fish > ~/.config/fish/completions/watchrelay.fish"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell that reads it")


def completion(*, shell: str) -> int:
    import shtab

    from watchrelay.cli.main import build_parser

    def complete_files(parser: argparse.ArgumentParser) -> None:
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                for command in action.choices.values():
                    complete_files(command)
            elif action.metavar == "FILE":
                action.complete = shtab.FILE  # type: ignore[attr-defined]  # the name that shtab reads

    parser = build_parser()
    complete_files(parser)
    print(shtab.complete(parser, shell=shell))
    return 0


COMMAND = Command(
    "print a completion script for your shell", _DESCRIPTION, completion, _add_arguments
)
