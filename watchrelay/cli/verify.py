"""`watchrelay verify`: replays the topics and checks every rule and digest."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from watchrelay.cli.options import (
    Command,
    add_config,
    add_output,
    add_streams,
    command_settings,
    duration,
)
from watchrelay.cli.signals import run_until_signalled

_DESCRIPTION = """\
Reads each partition of each stream from its last complete snapshot to its end, as a consumer would,
and checks order, gaps, every hash and every digest. Exit code 0 only when all checks pass, 1
otherwise, also when a stream of the config was never published. Stale records are reported as
notes, not as faults: a plain table shows them until the relay has replaced them.

The age of a state is the time since the API server showed what its newest marker covers. A topic
without a relay still holds, and grows old: --max-age fails over it. On topics with
message.timestamp.type=CreateTime the age is by the relay's clock, and the output says so."""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    add_streams(parser)
    parser.add_argument(
        "--cluster", action="store_true", help="also compare with what the API server lists now"
    )
    parser.add_argument(
        "--partitions",
        action="store_true",
        help="a line for each partition, instead of one for each stream",
    )
    parser.add_argument(
        "--max-age",
        metavar="DURATION",
        type=duration,
        help="also fail where the state is older, such as 2m, or its age is not known",
    )
    add_output(parser, per_line=True)


def verify(
    *,
    config: str | None,
    sets: Sequence[str],
    streams: Sequence[str],
    cluster: bool,
    partitions: bool,
    max_age: float | None,
    output: str,
) -> int:
    """Check the streams, print the result; 0 when each partition is proven and without a problem.

    Raises: ConfigError, SinkUnavailable, KubeError, NothingPublished."""
    from watchrelay.cli.audits import check_streams, reduce_garbage_collection

    settings = command_settings(config, sets)
    reduce_garbage_collection()
    return run_until_signalled(
        check_streams(
            settings,
            streams,
            cluster=cluster,
            max_age_s=max_age,
            each=partitions,
            as_json=output == "json",
        )
    )


COMMAND = Command(
    "replay the topics and check every digest; compare with the cluster",
    _DESCRIPTION,
    verify,
    _add_arguments,
)
