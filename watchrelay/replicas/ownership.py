"""The holders that claims name, why a relay stops writing a stream, and what a standby shows of one
that another replica writes."""

from __future__ import annotations

import os
import socket
from typing import Final

from watchrelay.kafka.control_topic import ControlTopic
from watchrelay.observe.metrics import Metrics
from watchrelay.observe.status import StatusRegistry

RETIRE: Final = "watchrelay retire on "
"""How the holder begins in the claim of a retirement, which is no relay."""


def retirement_holder() -> str:
    """The holder that a retirement of this process names in its claim."""
    return f"{RETIRE}{socket.gethostname()}-{os.getpid()}"


def is_retirement(holder: str) -> bool:
    """Whether the holder of a claim is a retirement."""
    return holder.startswith(RETIRE)


def ownership_lost(holder: str | None, stream: str, ours: str) -> str:
    """Why a relay stops writing `stream`; `holder` made the newest claim that it has read."""
    if holder is None or holder == ours:  # learned from a record of the stream itself
        return f"stream {stream}: a newer relay claimed it"
    if is_retirement(holder):
        return (
            f"stream {stream} was retired while this relay wrote it, by `{holder}`: its "
            "objects are deleted from its topic; "
            "take it out of this relay's config, or its next start publishes them again"
        )
    return f"stream {stream}: relay {holder} claimed it: two relays have it in their configs"


def show_owner(
    stream: str, statuses: StatusRegistry, control: ControlTopic, metrics: Metrics
) -> None:
    """Show a stream that another replica writes, as the control topic describes it. That it is not
    owned is no news while another layout is written, whose parts are."""
    status = statuses.open(stream)
    status.owner, status.objects = control.holder_of(stream), objects_of(stream, control)
    owned = metrics.gauge("stream_owned")
    if _another_layout_is_written(stream, control):
        owned.remove(stream)
    else:
        owned.labels(stream).set(0)


def objects_of(stream: str, control: ControlTopic) -> int:
    """As the stream's last snapshot counted them."""
    count = (control.index(stream) or {}).get("count")
    return count if isinstance(count, int) else 0


def _another_layout_is_written(stream: str, control: ControlTopic) -> bool:
    """Whether all partitions of `stream`, which may be a part, belong to writers of other parts,
    none of which a claim of some of its partitions has ended."""
    writers = control.newest_claims(stream).keys()
    return (
        bool(writers)
        and stream not in writers
        and all(control.newest_claims(each).keys() == {each} for each in writers)
    )
