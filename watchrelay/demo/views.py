"""What one client sees of a collection: its namespace, its selectors, its representation.

Stored objects and events become the JSON of list items and watch lines, already encoded.
Source: docs/watch-facts.md 1.3 (items without kind), 2.4 (bookmarks), 2.12 (selectors), 9.1
(metadata only).
"""

from __future__ import annotations

import json
from collections.abc import Iterable

import msgspec

from watchrelay.demo.catalog import Served
from watchrelay.demo.selectors import Predicate, SelectorError, field_requirements, label_predicate
from watchrelay.demo.storage import Event, Refused, Stored, item_prefix

_METADATA = msgspec.json.Decoder(dict[str, msgspec.Raw])
_PARTIAL = b'{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":%s}'
LIST_END = b"]}\n"
INITIAL_END = "k8s.io/initial-events-end"


class View:
    """Raises, when it is made: Refused 400 for selectors that cannot be read."""

    def __init__(
        self,
        served: Served,
        version: str,
        *,
        namespace: str,
        label_selector: str,
        field_selector: str,
        metadata_only: bool,
    ) -> None:
        self.namespace = namespace
        self.metadata_only = metadata_only
        self._served = served
        self._api_version = served.api_version(version)
        try:
            self._labels: Predicate | None = label_predicate(label_selector)
            self._fields = field_requirements(field_selector, plural=served.resource.plural)
        except SelectorError as error:
            raise Refused(400, "BadRequest", str(error)) from None
        stored = served.resource.api_version
        self._prefix = item_prefix(stored, served.resource.kind, custom=served.custom)
        self._translated = (
            item_prefix(self._api_version, served.resource.kind, custom=served.custom)
            if self._api_version != stored
            else b""
        )
        self.selective = self._labels is not None or bool(self._fields)
        self._plain = not (namespace or self.selective or metadata_only or self._translated)

    def shows(self, stored: Stored) -> bool:
        """Whether this state is within the namespace and the selectors."""
        if self.namespace and stored.namespace != self.namespace:
            return False
        return self.matches(stored)

    def matches(self, stored: Stored) -> bool:
        """Whether this state is within the selectors."""
        if self._labels is not None and not self._labels(stored.labels):
            return False
        return all((_field(stored, path) == value) is equal for path, equal, value in self._fields)

    def item(self, stored: Stored) -> bytes:
        """An item of a list: of built-in resources without apiVersion and kind, as API servers send
        them."""
        if self.metadata_only:
            return self._object(stored, stored.version)
        if self._served.custom:
            return self._object(stored, stored.version)
        return b"{" + stored.body()[len(self._prefix) :]

    def added(self, stored: Stored) -> bytes:
        """The line that a streaming list shows an object by."""
        return b'{"type":"ADDED","object":%s}\n' % self._object(stored, stored.version)

    def lines(self, events: Iterable[Event]) -> bytes:
        """The lines of these events, those that this client does not see left out."""
        if self._plain:
            return b"".join([event.line() for event in events])
        return b"".join([self._line(event) for event in events])

    def _line(self, event: Event) -> bytes:
        shown = self.shows(event.now) and event.type != "DELETED"
        before = event.before is not None and self.shows(event.before)
        if not shown and not before:
            return b""
        # An object that leaves the selectors is DELETED: its old state, at the version of the write
        # that took it out.
        kind = b"MODIFIED" if shown and before else b"ADDED" if shown else b"DELETED"
        stored = event.now if shown or event.before is None else event.before
        return b'{"type":"%s","object":%s}\n' % (kind, self._object(stored, event.version))

    def _object(self, stored: Stored, version: int) -> bytes:
        body = stored.body(version)
        if self.metadata_only:
            return _PARTIAL % bytes(_METADATA.decode(body)["metadata"])
        return self._translated + body[len(self._prefix) :] if self._translated else body

    def bookmark(self, version: int, *, initial_end: bool = False) -> bytes:
        """A bookmark line, with the zero values that a typed encoder puts into one."""
        metadata: dict[str, object] = {"resourceVersion": str(version)}
        if initial_end:
            metadata["annotations"] = {INITIAL_END: "true"}
        kind, api_version = self._served.resource.kind, self._api_version
        if self.metadata_only:
            kind, api_version = "PartialObjectMetadata", "meta.k8s.io/v1"
        zero = {"spec": {"containers": None}, "status": {}} if kind == "Pod" else {}
        obj = {"kind": kind, "apiVersion": api_version, "metadata": metadata, **zero}
        return (
            json.dumps({"type": "BOOKMARK", "object": obj}, separators=(",", ":")).encode() + b"\n"
        )

    def list_head(self, version: int, *, token: str, remaining: int | None) -> bytes:
        """The beginning of a list, up to its first item; `LIST_END` ends it."""
        metadata: dict[str, object] = {"resourceVersion": str(version)}
        if token:
            metadata["continue"] = token
        if remaining is not None:
            metadata["remainingItemCount"] = remaining
        kind, api_version = f"{self._served.resource.kind}List", self._api_version
        if self.metadata_only:
            kind, api_version = "PartialObjectMetadataList", "meta.k8s.io/v1"
        head = json.dumps(
            {"kind": kind, "apiVersion": api_version, "metadata": metadata}, separators=(",", ":")
        ).encode()
        return head[:-1] + b',"items":['


def error_line(refused: Refused) -> bytes:
    """The ERROR line that ends a watch."""
    return (
        json.dumps({"type": "ERROR", "object": refused.status()}, separators=(",", ":")).encode()
        + b"\n"
    )


def _field(stored: Stored, path: str) -> str:
    if path == "metadata.name":
        return stored.name
    return stored.namespace if path == "metadata.namespace" else stored.fields.get(path, "")
