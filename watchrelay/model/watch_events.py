"""What the watch yields to the store: kube-rs's events, in batches.

Every list is bracketed: `ListBegun`, any number of `Listed`, then `ListDone`, or a new `ListBegun`
that voids the unfinished list.
"""

from __future__ import annotations

import msgspec

from watchrelay.core.errors import KubeError
from watchrelay.model.frames import ObjectFrame


class ListBegun(msgspec.Struct, frozen=True):
    """A list starts (init). Whatever an unfinished list brought is void.

    `by_content`: the server went back, and may give versions a second time: equal uid and version
    do not prove equal content.
    """

    by_content: bool = False


class Listed(msgspec.Struct, frozen=True):
    """Objects of the running list (init-apply), in the server's order. In a streaming list a frame
    of type DELETED may be among them.

    Of the objects that were listed but could not be decoded, `damaged` has namespace and name where
    those can be read, and `unreadable` counts the others.
    """

    objects: list[ObjectFrame]
    unreadable: int = 0
    damaged: tuple[tuple[str, str], ...] = ()


class ListDone(msgspec.Struct, frozen=True):
    """The list is complete (init-done) and shows the state at `resource_version`.

    `confirmed`: a second, quorum list requested because the first was suspicious
    (docs/watch-facts.md 5.8); it is accepted unconditionally. `since`: the cursor of the former
    watch, when the next one resumes from it and not from the list: its changes up to
    `resource_version` are in the list already. "" otherwise.
    """

    resource_version: str
    confirmed: bool = False
    since: str = ""


class Observed(msgspec.Struct, frozen=True):
    """Changes seen in the watch (apply, delete), in the server's order; `received_s` is monotonic.
    Never empty."""

    frames: list[ObjectFrame]
    received_s: float


class Progressed(msgspec.Struct, frozen=True):
    """The watch has everything up to `resource_version` (a bookmark, or the end of a batch)."""

    resource_version: str


class Troubled(msgspec.Struct, frozen=True):
    """Something failed and will be tried again at `retry_at_s` (monotonic; None: at once). A value,
    never an end."""

    error: KubeError
    retry_at_s: float | None


class Gone(msgspec.Struct, frozen=True):
    """The resource is no longer served (absent from discovery, twice): every object is a removal.
    docs/watch-facts.md 8.4."""


Watched = ListBegun | Listed | ListDone | Observed | Progressed | Troubled | Gone
