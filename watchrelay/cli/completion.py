"""`watchrelay completion`: a script with which a shell completes commands, options and their
values."""

from __future__ import annotations

import argparse

import shtab


def run(args: argparse.Namespace) -> int:
    """Print the script."""
    _complete_files(args.parser)
    print(shtab.complete(args.parser, shell=args.shell))
    return 0


def _complete_files(parser: argparse.ArgumentParser) -> None:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                _complete_files(command)
        elif action.metavar == "FILE":
            action.complete = shtab.FILE  # type: ignore[attr-defined]  # the name that shtab reads
