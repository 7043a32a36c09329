"""Whether a relay still writes a stream that somebody wants to retire.

Room: app. In: the stream's topic and newest claim. Out: nothing, or the reason why it must not be
retired now.

A claim would stop that relay as a whole (exit 75), and its next start would publish again what was
retired.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal

from watchrelay.core import clock
from watchrelay.core.errors import WatchrelayError
from watchrelay.daemon.ownership import RETIRE
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.control_topic import ControlTopic
from watchrelay.kafka.writer_probe import ProbedRecord, probe_writer
from watchrelay.model.streams import StreamSpec

_RECENT_S: Final = 300.0
"""A record that is older was written by nobody who still lives, also where the clocks of two hosts
differ.
Source: 5 min, as much as Kerberos forgives."""
_CLOCKS_S: Final = 86_400.0
"""No clock is wrong by more, time zones included: what is older than this by the clock of its
writer needs no look."""
_BEATS: Final = 1.5
_MARGIN_S: Final = 1.0
_READING_BACK_S: Final = 600.0
"""A relay that has claimed says nothing until it has read its log back, and listed what that log
does not tell."""

Watching = Callable[[str, float], None]
"""(topic, seconds): called before the topic is watched for so long."""


class StillWritten(WatchrelayError):
    """A relay writes the stream: it is in that relay's config."""


def sign_means(
    newest: ProbedRecord | None, now_ms: int, interval_s: float, *, cut: bool
) -> Literal["nobody", "claimed", "maybe"]:
    """What a stream's newest record tells of its writer. Pure.

    Shape: `cut`: not all of the partition was looked through, so that a busy neighbour may have put
    it out of sight.
    Units: `interval_s` between two heartbeats.
    """
    if newest is None:
        return "maybe" if cut else "nobody"
    age_s = (now_ms - newest.at_ms) / 1000
    if newest.claim and age_s >= -_RECENT_S:
        return "claimed" if age_s < _READING_BACK_S else "nobody"
    return "maybe" if age_s < max(_RECENT_S, 3 * interval_s) else "nobody"


async def refuse_written(
    spec: StreamSpec,
    connection: KafkaConnection,
    control: ControlTopic,
    *,
    interval_s: float,
    watching: Watching,
) -> None:
    """Return when no relay seems to write the stream; may look for a heartbeat interval and a half.

    Raises: StillWritten; SinkUnavailable.
    """
    holder = control.holder_of(spec.id) or "of unknown name"
    if holder.startswith(RETIRE):
        return  # an earlier retirement was interrupted; the writer before it has read that claim
    async with probe_writer(connection, spec.topic, spec.id) as probe:
        newest = await probe.newest()
        match sign_means(newest, clock.wall_ms(), interval_s, cut=probe.truncated):
            case "nobody" if newest is None or clock.wall_ms() - newest.at_ms > _CLOCKS_S * 1000:
                return
            case "claimed":
                assert newest is not None
                raise StillWritten(
                    f"stream {spec.id} was claimed by relay {holder} {_ago(newest)} ago, "
                    "which has written nothing since: it may be reading "
                    "its log back; take the stream out of its config and try again when it "
                    "is done, or say --force if it is gone"
                )
        wait_s = _BEATS * interval_s + _MARGIN_S
        watching(spec.topic, wait_s)
        if (found := await probe.more(within_s=wait_s)) is not None:
            raise StillWritten(
                f"stream {spec.id} is being written by relay {holder} (epoch {found.epoch}, "
                f"a record {_ago(found)} ago on {spec.topic}): "
                "take it out of that relay's config, which the relay notices by itself, then "
                "retire it; "
                "or say --force: that relay then stops all its streams and exits 75"
            )


def _ago(sign: ProbedRecord) -> str:
    return f"{max(0.0, (clock.wall_ms() - sign.at_ms) / 1000):.0f} s"
