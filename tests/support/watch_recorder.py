"""Every change that the watches of an API server showed, recorded by a client of its own.

What a relay says is held against this: a change that it did not say must be one that changes
nothing of what is published, and what it says must have happened. One blocking watch per path, in a
thread; nothing of the product is imported.
"""

import contextlib
import http.client
import json
import ssl
import threading
import urllib.parse
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from tests.support.churn import LAST_APPLIED, Target
from tests.support.process import wait_until
from tests.support.wirerules import ParsedRecord

Moment = tuple[bytes, int, bool]
"""Key, resourceVersion, whether it is a delete."""


@dataclass(frozen=True, slots=True)
class Compared:
    """`invented` was published and never happened; `missing` changed the published state and was
    not published; `same` did not change it."""

    changes: int
    invented: list[Moment]
    missing: list[Moment]
    same: int


@dataclass(slots=True)
class _Seen:
    since: int = 0
    newest: int = 0
    content: dict[bytes, str] = field(default_factory=dict)
    changes: set[Moment] = field(default_factory=set)
    """Those that a relay must say."""
    same: set[Moment] = field(default_factory=set)

    def take(self, kind: str, item: dict[str, Any]) -> None:
        self.newest = int(item["metadata"]["resourceVersion"])
        if kind == "BOOKMARK":
            return
        key = _key(item)
        content = "" if kind == "DELETED" else _published(item)
        known = self.content.pop(key, "")
        if content:
            self.content[key] = content
        moment = (key, self.newest, kind == "DELETED")
        (self.same if content and content == known else self.changes).add(moment)


class WatchRecorder:
    """Watches some lists of a cluster from now on; a context manager. `paths` maps a stream
    to the path of its list."""

    def __init__(self, cluster: Target, paths: Mapping[str, str]) -> None:
        self._cluster = cluster
        self._seen = {stream: _Seen() for stream in paths}
        self._paths = dict(paths)
        self._connections: list[http.client.HTTPConnection] = []
        self._threads: list[threading.Thread] = []
        self._over = False
        self.failures: list[str] = []

    def _connect(self, timeout_s: float) -> http.client.HTTPConnection:
        address = urllib.parse.urlsplit(self._cluster.url)
        host, port = address.hostname or "", address.port
        if address.scheme != "https":
            return http.client.HTTPConnection(host, port, timeout=timeout_s)
        context = ssl.create_default_context(cafile=str(self._cluster.ca))
        context.load_cert_chain(self._cluster.admin.certificate, self._cluster.admin.key)
        return http.client.HTTPSConnection(host, port, context=context, timeout=timeout_s)

    def __enter__(self) -> Self:
        for stream, path in self._paths.items():
            connection = self._connect(30.0)
            connection.request("GET", path)
            listed = json.loads(connection.getresponse().read())
            connection.close()
            seen = self._seen[stream]
            seen.since = seen.newest = int(listed["metadata"]["resourceVersion"])
            kind = {"kind": listed["kind"].removesuffix("List"), "apiVersion": listed["apiVersion"]}
            seen.content = {_key(item): _published(kind | item) for item in listed["items"]}
            self._threads.append(
                threading.Thread(
                    target=self._watch, args=(stream, path), name=f"recorder {stream}", daemon=True
                )
            )
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over = True
        for connection in self._connections:
            # one that ended by itself has no socket any more
            with contextlib.suppress(OSError, AttributeError):
                connection.sock.shutdown(2)
        for thread in self._threads:
            thread.join(10.0)

    def _watch(self, stream: str, path: str) -> None:
        seen = self._seen[stream]
        try:
            while not self._over:
                connection = self._connect(120.0)
                self._connections.append(connection)
                query = f"watch=1&allowWatchBookmarks=true&timeoutSeconds=3600&resourceVersion={seen.newest}"
                connection.request("GET", f"{path}?{query}")
                with contextlib.closing(connection), connection.getresponse() as answer:
                    while line := answer.readline():
                        event = json.loads(line)
                        if event["type"] == "ERROR":
                            raise ValueError(f"the watch ended: {event['object']}")
                        seen.take(event["type"], event["object"])
        except (OSError, ValueError, http.client.HTTPException) as error:
            if not self._over:
                self.failures.append(f"{stream}: {error}")

    def compare(self, stream: str, records: Iterable[ParsedRecord], *, upto: int) -> Compared:
        """Hold records of changes against what was seen. Units: `upto` is a resourceVersion up to
        which everything has been published."""
        seen = self._seen[stream]
        assert self.failures == [], self.failures
        wait_until(
            f"the recorder has seen {stream} up to {upto}",
            lambda: seen.newest >= upto or self.failures,
            deadline_s=75.0,
        )
        recorded = {
            (one.key, one.version, one.type == "deleted")
            for one in records
            if seen.since < one.version <= upto
        }
        changes = {moment for moment in seen.changes if moment[1] <= upto}
        same = {moment for moment in seen.same if moment[1] <= upto}
        return Compared(
            len(recorded),
            sorted(recorded - changes - same),
            sorted(changes - recorded),
            len(same - recorded),
        )


def _key(item: dict[str, Any]) -> bytes:
    return f"{item['metadata'].get('namespace', '')}/{item['metadata']['name']}".encode()


def _published(item: dict[str, Any]) -> str:
    """What a relay with default settings publishes of it, its version apart."""
    metadata = {
        name: value
        for name, value in item["metadata"].items()
        if name not in {"managedFields", "resourceVersion"}
    }
    if "annotations" in metadata:
        metadata["annotations"] = {
            name: text for name, text in metadata["annotations"].items() if name != LAST_APPLIED
        }
    return json.dumps({**item, "metadata": metadata}, sort_keys=True)
