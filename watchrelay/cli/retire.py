"""`watchrelay retire`: takes a stream that left the config off its topic, for good.

Room: commands. In: parsed arguments (config, sets, stream, yes, force). Out: a line on stdout; 0, 1
when the stream is still in the config or written by a relay, not published, or was not confirmed, 2
when nobody can be asked, 69 when Kafka is away, 75 when a relay claimed the stream meanwhile.
"""

from __future__ import annotations

import argparse
import sys

from watchrelay.admin.retire import Plan, look, refuse_configured, retire
from watchrelay.cli.signals import finish
from watchrelay.config import load_settings
from watchrelay.core.text import counted
from watchrelay.observe import logs

FAILED, USAGE = 1, 2


def run(args: argparse.Namespace) -> int:
    """Ask, retire, say what was done.

    Raises: ConfigError, StillConfigured, StillWritten, NotThere, Fenced, SinkUnavailable,
    TopicRefused: one line for the operator each.
    """
    settings = load_settings(args.config, args.sets)
    logs.configure(settings.observe.log_format, "error")
    refuse_configured(settings, args.stream)
    if not args.yes and not sys.stdin.isatty():
        print(
            f"watchrelay retire: deletes every object of {args.stream} from its topic: say --yes "
            "where nobody can be asked",
            file=sys.stderr,
        )
        return USAGE
    if not (args.yes and args.force):
        plan = finish(look(settings, args.stream, force=args.force, watching=_watching))
        if not args.yes and not confirmed(plan):
            print(f"stream {args.stream} is left as it is", file=sys.stderr)
            return FAILED
    done = finish(retire(settings, args.stream))
    wrote = f"topic {done.topic} is gone"
    if done.deletes is not None:
        wrote = (
            f"{counted(done.deletes, 'object')} deleted from {done.topic}, an empty snapshot "
            "published"
        )
    print(f"{done.stream}: retired: {wrote}, control records removed")
    return 0


def _watching(topic: str, seconds: float) -> None:
    print(
        f"watchrelay retire: looking for {seconds:.0f} s whether a relay still writes to {topic}",
        file=sys.stderr,
    )


def confirmed(plan: Plan) -> bool:
    """Whether the person at the terminal says yes."""
    if plan.topic_exists:
        held = (
            "its objects"
            if plan.objects is None
            else f"its objects ({plan.objects} at the last snapshot)"
        )
        print(
            f"This publishes a delete for each of {held} of stream {plan.stream} on topic "
            f"{plan.topic},",
            file=sys.stderr,
        )
        print(
            "and forgets the stream on the control topic. Consumers end with an empty state.",
            file=sys.stderr,
        )
    else:
        print(
            f"Topic {plan.topic} is gone; this forgets stream {plan.stream} on the control topic.",
            file=sys.stderr,
        )
    print("Go on? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in {"y", "yes"}
