"""What the watch yields to the store: kube-rs's events, in batches.

Every list is bracketed: `ListBegun`, any number of `Listed`, then `ListDone`, or a new `ListBegun`
that voids the unfinished list.
"""

from __future__ import annotations

import msgspec

from watchrelay.core.errors import KubeError
from watchrelay.model.frames import ObjectFrame


class ListBegun(msgspec.Struct, frozen=True):
    """A list begins; what an unfinished one brought is void. `by_content`: the server went
    back: equal uid and version do not prove equal content."""

    by_content: bool = False


class Listed(msgspec.Struct, frozen=True):
    """Objects of the running list, in the server's order; a streaming list may have DELETED
    ones. Of those that could not be decoded, `damaged` has namespace and name, `unreadable`
    counts the others."""

    objects: list[ObjectFrame]
    unreadable: int = 0
    damaged: tuple[tuple[str, str], ...] = ()


class ListDone(msgspec.Struct, frozen=True):
    """The list is complete and shows the state at `resource_version`.

    `confirmed`: a second, quorum list, as the first was suspicious (WATCH 5.8); accepted
    unconditionally. `since`: the cursor of the former watch, where the next one resumes from
    it; else ""."""

    resource_version: str
    confirmed: bool = False
    since: str = ""


class Observed(msgspec.Struct, frozen=True):
    """Changes seen in the watch, in order, never empty; `received_s` is monotonic."""

    frames: list[ObjectFrame]
    received_s: float


class Progressed(msgspec.Struct, frozen=True):
    """The watch has everything up to `resource_version` (a bookmark, or the end of a batch)."""

    resource_version: str


class Troubled(msgspec.Struct, frozen=True):
    """Something failed and is tried again at `retry_at_s` (monotonic; None: at once). Never an
    end."""

    error: KubeError
    retry_at_s: float | None


class Gone(msgspec.Struct, frozen=True):
    """The resource is no longer served (absent twice): every object is a removal. WATCH 8.4."""


Watched = ListBegun | Listed | ListDone | Observed | Progressed | Troubled | Gone
