"""What the watch delivers to the store.

Every list is bracketed: `ListBegun`, any number of `ListedObjects`, then `ListDone`, or a new
`ListBegun` that voids the unfinished list.
"""

from __future__ import annotations

import msgspec

from watchrelay.model.frames import ObjectFrame


class ListBegun(msgspec.Struct, frozen=True):
    """A list begins; an unfinished one is void. `by_content`: the server went back, so objects
    with equal uid and version may differ."""

    by_content: bool = False


class ListedObjects(msgspec.Struct, frozen=True):
    """Objects of the running list, in the server's order; a streaming list may have DELETED
    ones. Of those that could not be decoded, `damaged` has namespace and name, `unreadable`
    counts the others."""

    objects: list[ObjectFrame]
    unreadable: int = 0
    damaged: tuple[tuple[str, str], ...] = ()


class ListDone(msgspec.Struct, frozen=True):
    """The list is complete and shows the state at `resource_version`.

    `accept_any_size`: it is accepted however many objects it lacks, for it is the second list, of
    the most recent state, made because the first was suspicious (docs/watch-facts.md 5.8).
    `continue_from`: the cursor of the former watch, if the next one continues from it; else ""."""

    resource_version: str
    accept_any_size: bool = False
    continue_from: str = ""


class Watched(msgspec.Struct, frozen=True):
    """Objects of the watch, in order; with them all changes up to `cursor` are delivered. Either
    may be empty: a bookmark moves the cursor alone, and an object does not always move it.
    `received_at_s` is a moment of the monotonic clock."""

    frames: list[ObjectFrame] = []
    received_at_s: float = 0.0
    cursor: str = ""


class ServerSeen(msgspec.Struct, frozen=True):
    """All that the server had sent on this stream up to `ago_s` seconds before now was delivered;
    the cursor is where it was."""

    ago_s: float = 0.0


class ResourceRemoved(msgspec.Struct, frozen=True):
    """The resource is no longer served, as discovery reported again after a while: every object is
    a removal (docs/watch-facts.md 8.4)."""


WatchOutput = (
    ListBegun | ListedObjects | ListDone | Watched | ServerSeen | ResourceRemoved
)  # fmt: skip
