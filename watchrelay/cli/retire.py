"""`watchrelay retire`: removes a stream that left the config from its topic, for good."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from watchrelay.cli.options import Command, add_config, command_settings, non_empty
from watchrelay.cli.output import print_error
from watchrelay.cli.signals import run_until_signalled
from watchrelay.core.exit_codes import FAILED, OK, USAGE

if TYPE_CHECKING:
    from watchrelay.admin.retire import RetirementPlan

_DESCRIPTION = """\
For a stream that was removed from the config for good: claims it, publishes a delete for each of
its objects and an empty last snapshot, then removes its records from the control topic. Consumers
end with an empty state. Refused while the stream is in the config, or while a relay writes it:
remove it from that relay's config first, or from those of all replicas; the relay reloads its
config by itself. To find out whether a relay writes it takes up to one and a half heartbeat
intervals, with replicas at least a session and 5 s. May be repeated after an interruption; asks for
confirmation before it changes anything."""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    parser.add_argument(
        "stream",
        metavar="STREAM",
        type=non_empty,
        help="the id of a stream that is no longer in the config",
    )
    parser.add_argument(
        "--cluster",
        metavar="OLD",
        type=non_empty,
        help="the stream was published under this name of `cluster`, before it was changed",
    )
    parser.add_argument(
        "--yes",
        action="store_true",
        help="do not ask for confirmation; required where stdin is no terminal",
    )
    parser.add_argument(
        "--force",
        action="store_true",
        help="also while a relay writes the stream: that relay stops, with exit code 75; replicas "
        "end this stream alone, until their config changes or they restart",
    )


def retire(
    *,
    config: str | None,
    sets: Sequence[str],
    stream: str,
    cluster: str | None,
    yes: bool,
    force: bool,
) -> int:
    """Ask, retire, print. Returns 1 when the answer was not yes, 2 without a terminal to ask."""
    from watchrelay.admin.retire import plan_retirement, refuse_configured, retire_stream
    from watchrelay.core.text import counted

    settings = command_settings(config, sets)
    if cluster in {None, settings.cluster}:
        refuse_configured(settings, stream)
    else:  # the entries of the config are those of another cluster
        settings = command_settings(config, [*sets, f"cluster={cluster}"])
    if not yes and not sys.stdin.isatty():
        print_error(
            f"watchrelay retire: deletes every object of {stream} from its topic: add --yes to "
            "confirm, stdin is no terminal"
        )
        return USAGE
    if not (yes and force):
        plan = run_until_signalled(
            plan_retirement(settings, stream, force=force, watching=_print_wait)
        )
        if not yes and not confirmed(plan):
            print_error(f"stream {stream} is unchanged")
            return FAILED
    topic, deletes = run_until_signalled(retire_stream(settings, stream))
    wrote = (
        f"topic {topic} is gone"
        if deletes is None
        else f"{counted(deletes, 'object')} deleted from {topic}, an empty snapshot published"
    )
    print(f"{stream}: retired: {wrote}, control records removed")
    return OK


def confirmed(plan: RetirementPlan) -> bool:
    """Describe the plan, and ask the person at the terminal; whether the answer is yes."""
    if plan.topic_exists:
        objects = "its objects"
        if plan.objects is not None:
            objects += f" ({plan.objects} at the last snapshot)"
        print_error(
            f"This publishes a delete for each of {objects} of stream {plan.stream} on topic "
            f"{plan.topic},\nand removes the stream from the control topic. Consumers end with an "
            "empty state."
        )
    else:
        print_error(
            f"Topic {plan.topic} is gone; this removes stream {plan.stream} from the control topic."
        )
    print("Continue? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def _print_wait(topic: str, seconds: float) -> None:
    print_error(
        f"watchrelay retire: checking for {seconds:.0f} s whether a relay still writes to {topic}"
    )


COMMAND = Command("remove a stream from its topic, for good", _DESCRIPTION, retire, _add_arguments)
