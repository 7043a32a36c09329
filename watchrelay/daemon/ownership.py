"""The holders that claims name, and why a relay stops writing a stream."""

from __future__ import annotations

import os
import socket
from typing import Final

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
