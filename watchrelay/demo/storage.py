"""What a synthetic cluster knows: objects, resourceVersions, and a history that ends somewhere.

Objects are created, replaced and deleted here; pages are consistent, and events since a version
are kept until they are compacted. One revision counts all writes, as in etcd. Objects are
kept encoded, cut around their resourceVersion, so that a page or a watch line is one join: this is
what lets one core send tens of thousands of events a second.
"""

from __future__ import annotations

import base64
import json
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec

EventType = Literal["ADDED", "MODIFIED", "DELETED"]
ObjectId = tuple[str, str]
"""Namespace ("" for none) and name."""

_MARK = "@version@"
_CUT = f'"resourceVersion":"{_MARK}"'.encode()
_OPEN: dict[str, bytes] = {
    kind: b'{"type":"%s","object":' % kind.encode() for kind in ("ADDED", "MODIFIED", "DELETED")
}
_CACHED_STATES_MAX = 4
# the version of a token that goes on with whatever is newest, at the price of consistency
_INCONSISTENT = -1
_METADATA_ORDER = (
    "name",
    "generateName",
    "namespace",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
)


class Refused(Exception):
    """What the API server answers instead: an HTTP code, a reason and a message; `details` and
    `continue_token` where they are due."""

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        *,
        details: Mapping[str, object] | None = None,
        continue_token: str = "",
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.details = details
        self.continue_token = continue_token

    def status(self) -> dict[str, object]:
        """The `Status` object of the answer."""
        metadata: dict[str, object] = (
            {"continue": self.continue_token} if self.continue_token else {}
        )
        known: dict[str, object] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": metadata,
            "status": "Failure",
        }
        details: dict[str, object] = {"details": dict(self.details)} if self.details else {}
        return {**known, "message": str(self), "reason": self.reason, **details, "code": self.code}


class Stored(msgspec.Struct, gc=False, frozen=True):
    """One state of one object. Its JSON is `parts` joined, with the resourceVersion put in
    before `parts[cut]`.

    `fields` has what field selectors of this resource may ask for, beyond name and namespace.
    """

    namespace: str
    name: str
    uid: str
    version: int
    labels: Mapping[str, str]
    fields: Mapping[str, str]
    parts: tuple[bytes, ...]
    cut: int

    def body(self, version: int | None = None) -> bytes:
        """The object's JSON; at another `version` than its own for the record of its deletion."""
        head, tail = self.parts[: self.cut], self.parts[self.cut :]
        return b"".join((*head, b"%d" % (self.version if version is None else version), *tail))


class Event(msgspec.Struct, gc=False, frozen=True):
    """One write. `now` is the state after it (at a deletion: the last one), `before` the state that
    it replaced."""

    type: EventType
    version: int
    now: Stored
    before: Stored | None

    def line(self) -> bytes:
        """The line of a watch without selectors. Costs about 2 us for a pod."""
        now = self.now
        return b"".join(
            (
                _OPEN[self.type],
                *now.parts[: now.cut],
                b"%d" % self.version,
                *now.parts[now.cut :],
                b"}\n",
            )
        )


@dataclass(frozen=True, slots=True)
class Listing:
    """One page. `token` is "" at the end; `remaining` None where it is not known (selectors)."""

    objects: list[Stored]
    version: int
    token: str = ""
    remaining: int | None = None


@dataclass(slots=True)
class Collection:
    """All objects of one resource, their recent history, and who wants to be woken when it grows.

    `history` is in version order; position p of a reader is the event `history[p -
    dropped]`; `horizon` is the version up to which history is gone.
    """

    objects: dict[ObjectId, Stored] = field(default_factory=dict)
    history: list[Event] = field(default_factory=list)
    dropped: int = 0
    horizon: int = 0
    listeners: dict[Callable[[], None], None] = field(default_factory=dict)
    states: dict[int, tuple[list[ObjectId], list[Stored]]] = field(default_factory=dict)

    @property
    def end(self) -> int:
        """The position after the newest event."""
        return self.dropped + len(self.history)

    def position(self, version: int) -> int | None:
        """Where a watch from `version` goes on; None when that history is gone."""
        if version < self.horizon:
            return None
        return self.dropped + bisect_right(self.history, version, key=lambda event: event.version)

    def since(self, position: int, limit: int) -> list[Event] | None:
        """At most `limit` events from `position` on; None when the reader was so slow that they are
        gone."""
        if position < self.dropped:
            return None
        start = position - self.dropped
        return self.history[start : start + limit]

    def state_at(self, version: int) -> tuple[list[ObjectId], list[Stored]]:
        """Keys and objects in key order, as they were at `version`, which must not lie before the
        horizon."""
        newest = self.history[-1].version if self.history else self.horizon
        key = min(version, newest)
        if (state := self.states.get(key)) is None:
            objects = dict(self.objects)
            for event in reversed(
                self.history[bisect_right(self.history, version, key=lambda event: event.version) :]
            ):
                if event.before is None:
                    objects.pop((event.now.namespace, event.now.name), None)
                else:
                    objects[event.before.namespace, event.before.name] = event.before
            keys = sorted(objects)
            state = keys, [objects[key] for key in keys]
            while len(self.states) >= _CACHED_STATES_MAX:
                self.states.pop(next(iter(self.states)))
            self.states[key] = state
        return state


class Storage:
    """Every collection of one cluster, by the qualified name of its resource (`pods`,
    `deployments.apps`)."""

    def __init__(self, *, history_events: int = 10_000, first_version: int = 1_000) -> None:
        self.version = first_version
        self._history_events = history_events
        self._collections: dict[str, Collection] = {}

    def collection(self, resource: str) -> Collection:
        """The collection of that name, made at first use."""
        if (found := self._collections.get(resource)) is None:
            found = self._collections[resource] = Collection(horizon=self.version)
        return found

    def put(self, resource: str, stored: Stored) -> Stored:
        """Creates or replaces; what comes back has its version. A write that changes nothing is
        none, and gives the state held."""
        collection = self.collection(resource)
        key = (stored.namespace, stored.name)
        before = collection.objects.get(key)
        if before is not None and before.parts == stored.parts:
            return before
        self.version += 1
        now = Stored(
            stored.namespace,
            stored.name,
            stored.uid,
            self.version,
            stored.labels,
            stored.fields,
            stored.parts,
            stored.cut,
        )
        collection.objects[key] = now
        self._commit(
            collection,
            Event("MODIFIED" if before is not None else "ADDED", self.version, now, before),
        )
        return now

    def delete(self, resource: str, key: ObjectId) -> Stored | None:
        """Removes, and gives the last state; None when there is none."""
        collection = self.collection(resource)
        if (before := collection.objects.pop(key, None)) is None:
            return None
        self.version += 1
        self._commit(collection, Event("DELETED", self.version, before, before))
        return before

    def drop(self, resource: str) -> None:
        """Forgets a collection with its history, as when its CustomResourceDefinition goes."""
        self._collections.pop(resource, None)

    def compact(self, resource: str | None = None) -> None:
        """Ends the history at this very version: watches from older ones, and pages of older lists,
        are Expired."""
        chosen: Iterable[Collection] = (
            self._collections.values() if resource is None else (self.collection(resource),)
        )
        for collection in chosen:
            self._cut(collection, len(collection.history))
            collection.horizon = self.version

    def page(
        self,
        resource: str,
        *,
        namespace: str = "",
        matches: Callable[[Stored], bool] | None = None,
        limit: int = 0,
        token: str = "",
        exactly: int | None = None,
    ) -> Listing:
        """One page in key order. Law: the pages of one list show one version, whatever is written
        meanwhile.

        Raises: Refused: 400 for a token that is none, 410 when the version of the list is
        compacted.
        """
        collection = self.collection(resource)
        version, after = (
            read_token(token) if token else (self.version if exactly is None else exactly, None)
        )
        if version == _INCONSISTENT:
            version = self.version
        if version < collection.horizon:
            raise _expired(after)
        keys, objects = collection.state_at(version)
        low = bisect_left(keys, (namespace, "")) if namespace else 0
        high = bisect_left(keys, (namespace + "\0", "")) if namespace else len(keys)
        if after is not None:
            low = max(low, bisect_right(keys, after))
        if matches is None:
            stop = min(high, low + limit) if limit else high
            chosen, last = objects[low:stop], stop
        else:
            chosen, last = _select(objects, low, high, matches, limit)
        more = last < high
        following = write_token(version, keys[last - 1]) if more else ""
        return Listing(
            chosen, version, following, high - last if more and matches is None else None
        )

    def _commit(self, collection: Collection, event: Event) -> None:
        collection.history.append(event)
        # Twice the bound before cutting: then the cost of moving the rest is shared by as many
        # writes.
        if len(collection.history) >= 2 * self._history_events:
            self._cut(collection, len(collection.history) - self._history_events)
        for listener in collection.listeners:
            listener()

    def _cut(self, collection: Collection, count: int) -> None:
        if count:
            collection.horizon = collection.history[count - 1].version
            del collection.history[:count]
            collection.dropped += count
        collection.states.clear()


def _select(
    objects: Sequence[Stored], low: int, high: int, matches: Callable[[Stored], bool], limit: int
) -> tuple[list[Stored], int]:
    chosen: list[Stored] = []
    for index in range(low, high):
        if matches(objects[index]):
            if limit and len(chosen) == limit:
                return chosen, index
            chosen.append(objects[index])
    return chosen, high


def write_token(version: int, last: ObjectId) -> str:
    """A continue token. Source: apiserver storage/continue.go (its form is the server's own
    affair)."""
    content = {"v": "meta.k8s.io/v1", "rv": version, "start": f"{last[0]}/{last[1]}\0"}
    return base64.urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=")


def read_token(token: str) -> tuple[int, ObjectId]:
    """Version and last key of a continue token. Raises: Refused 400."""
    try:
        content = json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
        namespace, _, name = content["start"].rstrip("\0").partition("/")
        return int(content["rv"]), (namespace, name)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise Refused(400, "BadRequest", "invalid continue token") from None


def _expired(after: ObjectId | None) -> Refused:
    if after is None:
        return Refused(410, "Expired", "The resourceVersion for the provided list is too old.")
    message = (
        "The provided continue parameter is too old to display a consistent list result. You "
        "can start a new list without the continue "
        "parameter, or use the continue token in this response to retrieve the remainder of "
        "the results."
    )
    return Refused(410, "Expired", message, continue_token=write_token(_INCONSISTENT, after))


def encode(
    obj: Mapping[str, object], *, fields: Mapping[str, str] | None = None, custom: bool = False
) -> Stored:
    """An object as it is stored, version 0 until it is put. It begins as `item_prefix`
    says."""
    metadata = obj["metadata"]
    assert isinstance(metadata, Mapping), "checked where the object came in"
    marked = {**metadata, "resourceVersion": _MARK}
    ordered = {name: marked[name] for name in _METADATA_ORDER if name in marked} | marked
    first = ("apiVersion", "kind") if custom else ("kind", "apiVersion")
    whole = {**{name: obj[name] for name in first}, "metadata": ordered}
    head, cut, tail = msgspec.json.encode(
        whole | {name: value for name, value in obj.items() if name not in whole}
    ).partition(_CUT)
    assert cut, "the mark is in every encoded object"
    return Stored(
        namespace=str(metadata.get("namespace") or ""),
        name=str(metadata["name"]),
        uid=str(metadata.get("uid") or ""),
        version=0,
        labels=metadata.get("labels") or {},
        fields=fields or {},
        parts=(head + b'"resourceVersion":"', b'"' + tail),
        cut=1,
    )


def item_prefix(api_version: str, kind: str, *, custom: bool) -> bytes:
    """How the JSON of every stored object of one resource begins: a typed object by its kind, a
    custom one by the alphabet."""
    names = (b'"apiVersion":"%s"' % api_version.encode(), b'"kind":"%s"' % kind.encode())
    return b"{" + b",".join(names if custom else names[::-1]) + b","
