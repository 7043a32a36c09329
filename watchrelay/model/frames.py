"""What the API server sent, decoded no further than needed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec

from watchrelay.core.errors import KubeError

FrameType = Literal["ADDED", "MODIFIED", "DELETED"]
WATCH_GRACE_S = 15.0
"""How long past its timeoutSeconds a watch may stay open until the client closes it. Source:
docs/watch-facts.md 2.14."""


class ObjectFrame(msgspec.Struct, gc=False):
    """One object as the server sent it, in a watch line or a list page.

    `fields` maps each top-level key to its raw JSON, in order; `metadata` does the same one
    level down, None: it is not split. `namespace` is "" for a cluster-scoped object; `type` is
    "ADDED" in a page; `size` is in bytes. `plain` is the object written as `fields` are, but
    without metadata.managedFields, with these `annotations` ("" for none); None: not at hand."""

    type: FrameType
    namespace: str
    name: str
    uid: str
    resource_version: str
    fields: dict[str, msgspec.Raw]
    metadata: dict[str, msgspec.Raw] | None
    size: int
    plain: bytes | None = None
    annotations: msgspec.Raw = msgspec.Raw(b"")


class Bookmark(msgspec.Struct, frozen=True, gc=False):
    """A frame that only moves the cursor. `initial_end` marks the end of a streaming list."""

    resource_version: str
    initial_end: bool = False


@dataclass(frozen=True, slots=True)
class Failure:
    """An ERROR line or a bare Status, which ends the response, or a line that cannot be decoded
    (`Undecodable`), which others may follow. The error's class decides what to do."""

    error: KubeError


Frame = ObjectFrame | Bookmark | Failure


@dataclass(frozen=True, slots=True)
class Page:
    """One HTTP response of a list. `resource_version` "" is not watchable; `continue_token` is
    None at the end; `failures`: one error per item that could not be decoded."""

    resource_version: str
    continue_token: str | None
    objects: list[ObjectFrame]
    failures: tuple[KubeError, ...] = ()


@dataclass(frozen=True, slots=True)
class ListQuery:
    """The parameters of one list request, legal together (docs/watch-facts.md 1.5, 1.6). "": do not
    send."""

    limit: int = 0
    continue_token: str = ""
    resource_version: str = ""
    version_match: str = ""
    whole_objects: bool = False
    """True: do not ask for the metadata-only representation (the server answered 406 to it)."""


@dataclass(frozen=True, slots=True)
class WatchQuery:
    """The parameters of one watch request. `timeout_s` is sent as timeoutSeconds;
    `idle_timeout_s` is our own deadline per receive."""

    resource_version: str
    timeout_s: int
    idle_timeout_s: float
    bookmarks: bool = True
    send_initial_events: bool = False
    whole_objects: bool = False
