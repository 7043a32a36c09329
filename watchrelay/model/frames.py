"""What the API server sent, decoded no further than needed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import msgspec
from msgspec import Raw

from watchrelay.core.errors import KubeError

FrameType = Literal["ADDED", "MODIFIED", "DELETED"]
WATCH_GRACE_S = 15.0
"""How long past its timeoutSeconds a watch may stay open until the client closes it. Source:
docs/watch-facts.md 2.14."""


ABSENT: Final = Raw(b"")


class TypedMetadata(msgspec.Struct, gc=False, omit_defaults=True, rename="camel"):
    """`metadata` in the order in which kube-apiserver writes it."""

    name: str = ""
    generate_name: Raw = ABSENT
    namespace: str = ""
    self_link: Raw = ABSENT
    uid: str = ""
    resource_version: str = ""
    generation: Raw = ABSENT
    creation_timestamp: Raw = ABSENT
    deletion_timestamp: Raw = ABSENT
    deletion_grace_period_seconds: Raw = ABSENT
    labels: Raw = ABSENT
    annotations: Raw = ABSENT
    owner_references: Raw = ABSENT
    finalizers: Raw = ABSENT
    managed_fields: Raw = ABSENT


class TypedObject(msgspec.Struct, gc=False, omit_defaults=True, rename="camel"):
    """The fields of built-in resources that change often (pods, nodes, workloads, config maps,
    secrets, events), in the order in which kube-apiserver writes them; an object has those of its
    kind."""

    kind: Raw
    api_version: Raw
    metadata: TypedMetadata
    spec: Raw = ABSENT
    status: Raw = ABSENT
    immutable: Raw = ABSENT
    data: Raw = ABSENT
    binary_data: Raw = ABSENT
    involved_object: Raw = ABSENT
    reason: Raw = ABSENT
    message: Raw = ABSENT
    source: Raw = ABSENT
    first_timestamp: Raw = ABSENT
    last_timestamp: Raw = ABSENT
    count: Raw = ABSENT
    type: Raw = ABSENT
    event_time: Raw = ABSENT
    series: Raw = ABSENT
    action: Raw = ABSENT
    related: Raw = ABSENT
    reporting_component: Raw = ABSENT
    reporting_instance: Raw = ABSENT


class ObjectFrame(msgspec.Struct, gc=False):
    """One object as the server sent it, in a watch line or a list page.

    `fields` maps each top-level key to its raw JSON, in order; `metadata` does the same one
    level down; both are empty where `typed` is given. `namespace` is "" for a cluster-scoped
    object; `type` is "ADDED" in a page; `size` is in bytes."""

    type: FrameType
    namespace: str
    name: str
    uid: str
    resource_version: str
    fields: dict[str, Raw]
    metadata: dict[str, Raw]
    size: int
    typed: TypedObject | None = None


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
