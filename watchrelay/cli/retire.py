"""`watchrelay retire`: removes a stream that left the config from its topic, for good."""

from __future__ import annotations

import sys

from watchrelay.admin.retire import (
    RetirementPlan,
    plan_retirement,
    refuse_configured,
    retire_stream,
)
from watchrelay.cli.options import ConfigOptions
from watchrelay.cli.signals import run_until_signalled
from watchrelay.config import load_settings
from watchrelay.core.exit_codes import FAILED, OK, USAGE
from watchrelay.core.text import counted
from watchrelay.observe import logs


def retire(config: ConfigOptions, stream: str, *, yes: bool, force: bool) -> int:
    """Ask for confirmation, retire the stream, print what was done.

    Args:
        config: where the settings come from.
        stream: id of the stream.
        yes: do not ask.
        force: do not check whether a relay writes the stream.

    Returns:
        0 when it is retired, 1 when the answer was not yes, 2 when nobody can be asked.

    Raises:
        ConfigError, StillConfigured, StillWritten, NotPublished, Fenced, SinkUnavailable,
            TopicRefused: one line for the operator each.
        StoppedBySignal: a signal came first.
    """
    settings = load_settings(*config)
    logs.configure(settings.observe.log_format, "error")
    refuse_configured(settings, stream)
    if not yes and not sys.stdin.isatty():
        _message(
            f"watchrelay retire: deletes every object of {stream} from its topic: add --yes to "
            "confirm, stdin is no terminal"
        )
        return USAGE
    if not (yes and force):
        plan = run_until_signalled(
            plan_retirement(settings, stream, force=force, watching=_print_wait)
        )
        if not yes and not confirmed(plan):
            _message(f"stream {stream} is unchanged")
            return FAILED
    done = run_until_signalled(retire_stream(settings, stream))
    wrote = f"topic {done.topic} is gone"
    if done.deletes is not None:
        wrote = (
            f"{counted(done.deletes, 'object')} deleted from {done.topic}, an empty snapshot "
            "published"
        )
    print(f"{done.stream}: retired: {wrote}, control records removed")
    return OK


def confirmed(plan: RetirementPlan) -> bool:
    """Describe the plan, and ask the person at the terminal; whether the answer is yes."""
    if plan.topic_exists:
        objects = "its objects"
        if plan.objects is not None:
            objects += f" ({plan.objects} at the last snapshot)"
        _message(
            f"This publishes a delete for each of {objects} of stream {plan.stream} on topic "
            f"{plan.topic},\nand removes the stream from the control topic. Consumers end with an "
            "empty state."
        )
    else:
        _message(
            f"Topic {plan.topic} is gone; this removes stream {plan.stream} from the control topic."
        )
    print("Continue? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def _print_wait(topic: str, seconds: float) -> None:
    _message(
        f"watchrelay retire: checking for {seconds:.0f} s whether a relay still writes to {topic}"
    )


def _message(text: str) -> None:
    print(text, file=sys.stderr)
