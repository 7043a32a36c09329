"""What goes into a step of the watch machine, and what comes out: events, commands. Pure."""

from __future__ import annotations

from typing import Literal

import msgspec

from watchrelay.core.errors import KubeError
from watchrelay.model.frames import Frame, ListQuery, Page, WatchQuery
from watchrelay.model.resources import Availability
from watchrelay.model.watch_output import ListDone, WatchOutput
from watchrelay.watch.history import History

# ---- events: the results of actions --------------------------------------------------------------


class SleepEnded(msgspec.Struct, frozen=True):
    """The sleep is over. `rechecked`: `Watcher.recheck()` ended it early."""

    rechecked: bool = False


class PageReceived(msgspec.Struct, frozen=True):
    """A page of a list."""

    page: Page


class WatchOpened(msgspec.Struct, frozen=True):
    """The server accepted the watch, `waited_s` after the request, from which its end counts."""

    waited_s: float = 0.0


class FramesReceived(msgspec.Struct):
    """The frames of one chunk, at least one; `at_s` is when it came."""

    frames: list[Frame]
    at_s: float


class WatchEnded(msgspec.Struct, frozen=True):
    """The server ended the watch cleanly."""


class DeadlineReached(msgspec.Struct, frozen=True):
    """The read ended at its deadline."""


class RequestFailed(msgspec.Struct, frozen=True):
    """The request, or the watch that it opened, failed."""

    error: KubeError


class ListFinished(msgspec.Struct, frozen=True):
    """Whether the store accepts the list."""

    accepted: bool


class VersionChecked(msgspec.Struct, frozen=True):
    """The current resourceVersion, requested beside an open watch at `asked_at_s`, when the watch
    had come to `cursor`; "" when there was no answer. `history`: what the list shows of it."""

    version: str
    asked_at_s: float
    cursor: str = ""
    history: History = "same"


class ListsChecked(msgspec.Struct, frozen=True):
    """The current resourceVersion, requested at `asked_at_s`; "" when there was no answer.
    `may_list`: it is not the cursor's, and a list may be made now."""

    version: str
    may_list: bool
    asked_at_s: float


class DiscoveryChecked(msgspec.Struct, frozen=True):
    """What discovery reports about the resource."""

    availability: Availability


Event = (
    SleepEnded | PageReceived | WatchOpened | FramesReceived | WatchEnded | DeadlineReached
    | RequestFailed | ListFinished | VersionChecked | ListsChecked | DiscoveryChecked
)  # fmt: skip

# ---- commands: any number of outputs for the store, and of reports; then one action --------------


class Retrying(msgspec.Struct, frozen=True):
    """Report that a request or a watch failed, and is tried again at `retry_at_s`; None: at once.
    `list_goes_on`: a page of a list is requested again; otherwise a list that was under way has
    failed."""

    error: KubeError
    retry_at_s: float | None
    list_goes_on: bool = False


class Skipped(msgspec.Struct, frozen=True):
    """Report undecodable objects that are skipped."""

    errors: tuple[KubeError, ...]


EndReason = Literal["timeout", "gone", "eof", "silent", "error"]


class WatchClosed(msgspec.Struct, frozen=True):
    """Report that the watch that was open for `lived_s` is over. `any_frames`: it brought some,
    beside a list.

    `reason`: "timeout": its time was up, or a list is due; "gone": its history has expired; "eof":
    the server ended it before its time; "silent": it was, and no watch of the stream has brought a
    bookmark; "error": all else."""

    reason: EndReason
    lived_s: float
    any_frames: bool


Report = Retrying | Skipped | WatchClosed

# An arrow, `->`, points to the events that the action may result in; that of `ListDone` is
# `ListFinished`.


class Sleep(msgspec.Struct, frozen=True):
    """Wait until `until_s`, or, if `wakeable`, until `Watcher.recheck()` -> `SleepEnded`."""

    until_s: float
    wakeable: bool = False


class FetchPage(msgspec.Struct, frozen=True):
    """Request a page -> `PageReceived`, `RequestFailed`."""

    query: ListQuery


class OpenWatch(msgspec.Struct, frozen=True):
    """Open a watch -> `WatchOpened`, `RequestFailed`."""

    query: WatchQuery


class ReadWatch(msgspec.Struct):
    """Read the open watch until `until_s` -> `FramesReceived`, `WatchEnded`, `DeadlineReached`,
    `RequestFailed`, and `VersionChecked` once a version check has ended. Every other action but
    `ListDone` and `CheckVersion` closes the watch; a list ends a version check."""

    until_s: float


class CheckVersion(msgspec.Struct, frozen=True):
    """Make a version check, unless one is in flight, and read the open watch meanwhile, as
    `ReadWatch`."""

    query: ListQuery
    until_s: float


class CheckLists(msgspec.Struct, frozen=True):
    """Request the current resourceVersion once, where a list of a failing watch may be made now ->
    `ListsChecked`."""

    query: ListQuery


class CheckDiscovery(msgspec.Struct, frozen=True):
    """Ask discovery whether the resource is served -> `DiscoveryChecked`."""


Action = (
    FetchPage | OpenWatch | ReadWatch | CheckVersion | CheckLists | ListDone | Sleep
    | CheckDiscovery
)  # fmt: skip
Command = WatchOutput | Report | Action
