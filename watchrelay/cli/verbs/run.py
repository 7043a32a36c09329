"""`watchrelay run`."""

from __future__ import annotations

import argparse

from watchrelay.cli.options import Command, ConfigOptions, add_config


def _run(args: argparse.Namespace) -> int:
    from watchrelay.cli.run import run

    return run(ConfigOptions.of(args))


COMMAND = Command(
    "the daemon: watch, publish, serve metrics until SIGTERM",
    "Runs until SIGTERM or Ctrl-C, then drains.",
    _run,
    add_config,
)
