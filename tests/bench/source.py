"""The API server of the benchmarks: pods encoded beforehand, sent as fast as they are taken, or one
by one at a given rate.

Input: commands on stdin, one a line (`prepare N`, then `flood`; `pace N RATE`; `churn N RATE`;
`delete N`, `lose N`). Output: discovery, lists in pages and watches over HTTP; on stdout its port,
when it was asked what it serves or for a list, when a watch of all pods was opened, and a line when
a command is done. Every event is one HTTP chunk, as
kube-apiserver writes it: the next pod in turn, with a new version and a new annotation. Threads and
blocking sockets: what is measured is the relay, and an event that is due is sent at once.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import signal
import socket
import sys
import threading
import time
import urllib.parse

import msgspec

from tests.support.pace import pace, pace_to
from tests.support.pods import pod

STAMP = b'"bench/sent":"'
STAMP_DIGITS = 19
"""An event says when it was written: monotonic nanoseconds, in place of zeros."""
FIRST_VERSION = 1_000_000
BOOKMARK_EVERY_S = 60.0

_SAYING = threading.Lock()
_ZEROS = b"0" * STAMP_DIGITS
_VERSION = b'"resourceVersion":"'
_MODIFIED = b'{"type":"MODIFIED","object":%b}\n'
_DELETED = b'{"type":"DELETED","object":%b}\n'
_NAMED = b'{"kind":"Pod","apiVersion":"v1",'


def encoded(number: int, version: int) -> bytes:
    """Pod `number` as the server would write it."""
    tree = pod(number, resource_version=version)
    tree["metadata"]["annotations"]["bench/sent"] = _ZEROS.decode()
    return msgspec.json.encode(tree)


def chunk(data: bytes) -> bytes:
    """`data` as one chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


class Source:
    """What is served. `objects` pods in 20 namespaces, which the commands change; what they
    send goes to the watch that was opened last."""

    def __init__(self, objects: int, *, streaming: bool) -> None:
        self.streaming = streaming
        self.pods = [encoded(number, FIRST_VERSION + number) for number in range(objects)]
        self.listed, self.turn = FIRST_VERSION + objects, 0
        self._prepared = b""
        self._deleted: list[tuple[int, bytes]] = []
        self.watches: list[socket.socket] = []
        self.opened = threading.Condition()

    # ---- commands ----

    def prepare(self, count: int) -> None:
        """Make the next `count` events, for `flood` to send."""
        self._prepared = b"".join(chunk(_MODIFIED % self._changed()) for _ in range(count))

    def flood(self) -> None:
        """Send what was prepared, all at once."""
        self._watch().sendall(self._prepared)

    def pace(self, count: int, rate: float) -> None:
        """Send `count` events, evenly spaced, each made in the moment it is written."""
        watch, began_s = self._watch(), time.monotonic()
        for number in range(count):
            pace_to(began_s + number / rate)
            watch.sendall(chunk(_MODIFIED % self._changed()))

    def churn(self, count: int, rate: float) -> None:
        """Send `count` events to each watch, evenly spaced in tenths of a second.

        A watch that ends meanwhile may be opened again: what it missed is sent to it, the last
        state of each pod.
        """
        self._watch()
        began_s, slice_ = time.monotonic(), max(1, int(rate / 10))
        for start in range(0, count, slice_):
            pace_to(began_s + start / rate)
            size = min(slice_, count - start)
            with self.opened:
                data = b"".join(chunk(_MODIFIED % self._changed()) for _ in range(size))
                for watch in list(self.watches):
                    try:
                        watch.sendall(data)
                    except OSError:
                        self.watches.remove(watch)

    def delete(self, count: int) -> None:
        """Delete the last `count` pods."""
        self.lose(count)
        for _, line in self._deleted[-count:]:
            self._watch().sendall(chunk(line))

    def lose(self, count: int) -> None:
        """The same while there is no watch: one that continues from before is sent it."""
        for _ in range(count):
            pod = self._renewed(len(self.pods) - 1)
            self._deleted.append((self.listed, _DELETED % pod))
            self.pods.pop()

    def _changed(self) -> bytes:
        """The next pod in turn, with a new version and a new stamp."""
        self.turn += 1
        return self._renewed((self.turn - 1) % len(self.pods))

    def _renewed(self, number: int) -> bytes:
        was, self.listed = self.pods[number], self.listed + 1
        before, _, after = was.partition(_VERSION)
        head, stamp, tail = (_VERSION + b"%d" % self.listed + after[after.index(b'"') :]).partition(
            STAMP
        )
        now = b"%b%b%b%019d%b" % (before, head, stamp, time.monotonic_ns(), tail[STAMP_DIGITS:])
        self.pods[number] = now
        return now

    def _watch(self) -> socket.socket:
        with self.opened:
            self.opened.wait_for(lambda: self.watches, 30.0)
            return self.watches[-1]

    # ---- HTTP ----

    def serve(self, connection: socket.socket) -> None:
        """Answer the requests of one connection until it ends."""
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        received = b""
        try:
            while True:
                while b"\r\n\r\n" not in received:
                    more = connection.recv(65536)
                    if not more:
                        return
                    received += more
                head, _, received = received.partition(b"\r\n\r\n")
                target = head.split(b" ", 2)[1].decode()
                path, _, query = target.partition("?")
                self._answer(connection, path, dict(urllib.parse.parse_qsl(query)))
        except OSError:
            return

    def _answer(self, connection: socket.socket, path: str, query: dict[str, str]) -> None:
        if not path.endswith("/pods"):
            say("asked", time.monotonic())
        if path.endswith("/pods"):
            everywhere = path == "/api/v1/pods"
            watch = query.get("watch") in ("1", "true")
            continues = watch and query.get("sendInitialEvents") != "true"
            if not continues and query.get("limit") != "1":  # one object: the check beside a watch
                say("listed", time.monotonic())
            if watch:
                self._serve_watch(connection, query, everywhere=everywhere)
            else:
                _send(connection, 200, self._page(query, everywhere=everywhere))
        else:
            document = self._document(path)
            _send(connection, 200 if document else 404, json.dumps(document or {}).encode())

    def _document(self, path: str) -> dict[str, object] | None:
        pods = {
            "name": "pods",
            "singularName": "pod",
            "namespaced": True,
            "kind": "Pod",
            "verbs": ["list", "watch"],
            "shortNames": ["po"],
        }
        minor = "36" if self.streaming else "33"
        documents: dict[str, dict[str, object]] = {
            "/api": {"kind": "APIVersions", "versions": ["v1"]},
            "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": []},
            "/api/v1": {"kind": "APIResourceList", "groupVersion": "v1", "resources": [pods]},
            "/version": {"major": "1", "minor": minor, "gitVersion": f"v1.{minor}.0"},
        }
        return documents.get(path)

    def _page(self, query: dict[str, str], *, everywhere: bool) -> bytes:
        start, limit = int(query.get("continue", "0")), int(query.get("limit", "0"))
        pods = self.pods if everywhere else []
        stop = min(len(pods), start + limit) if limit else len(pods)
        metadata: dict[str, object] = {"resourceVersion": str(self.listed)}
        if stop < len(pods):
            metadata |= {"continue": str(stop), "remainingItemCount": len(pods) - stop}
        items = b",".join([b"{" + item.removeprefix(_NAMED) for item in pods[start:stop]])
        return b'{"kind":"PodList","apiVersion":"v1","metadata":%b,"items":[%b]}' % (
            json.dumps(metadata, separators=(",", ":")).encode(),
            items,
        )

    def _serve_watch(
        self, connection: socket.socket, query: dict[str, str], *, everywhere: bool
    ) -> None:
        head = (
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: "
            b"chunked\r\n\r\n"
        )
        if query.get("sendInitialEvents") == "true":
            connection.sendall(head)
            for item in self.pods if everywhere else ():
                connection.sendall(chunk(b'{"type":"ADDED","object":%b}\n' % item))
            head = chunk(self._bookmark({"k8s.io/initial-events-end": "true"}))
        with self.opened:
            connection.sendall(head)
            if everywhere and self.turn and "resourceVersion" in query:
                connection.sendall(self._since(int(query["resourceVersion"])))
            self.watches.append(connection)
            self.opened.notify_all()
        if everywhere:
            say("watched", time.monotonic())
        while True:
            pace(BOOKMARK_EVERY_S)
            # a flooded watch needs none, and would get it in the middle of a line
            if not everywhere:
                connection.sendall(chunk(self._bookmark({})))

    def _since(self, version: int) -> bytes:
        """What happened after `version`, in the order of the versions."""
        found = [
            (int(pod.partition(_VERSION)[2].partition(b'"')[0]), _MODIFIED % pod)
            for pod in self.pods
        ]
        lines = sorted([*found, *self._deleted])
        return b"".join(chunk(line) for at, line in lines if at > version)

    def _bookmark(self, annotations: dict[str, str]) -> bytes:
        metadata = {
            "resourceVersion": str(self.listed),
            "creationTimestamp": None,
            "annotations": annotations,
        }
        item = {
            "kind": "Pod",
            "apiVersion": "v1",
            "metadata": metadata,
            "spec": {"containers": None},
            "status": {},
        }
        return (
            json.dumps({"type": "BOOKMARK", "object": item}, separators=(",", ":")).encode() + b"\n"
        )


def _send(connection: socket.socket, status: int, body: bytes) -> None:
    reason = "OK" if status == 200 else "Not Found"
    connection.sendall(
        b"HTTP/1.1 %d %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        % (status, reason.encode(), len(body))
    )
    connection.sendall(body)


def say(*words: object) -> None:
    """One line to the parent process."""
    with _SAYING:
        print(*words, flush=True)


def main() -> None:
    """Serve until stdin ends, or the process that started this one."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    parser = argparse.ArgumentParser()
    parser.add_argument("--objects", type=int, required=True)
    parser.add_argument("--streaming", action="store_true")
    asked = parser.parse_args()
    source = Source(asked.objects, streaming=asked.streaming)
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)

    def accept() -> None:
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=source.serve, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    say("port", listener.getsockname()[1])
    for line in sys.stdin:
        verb, *numbers = line.split()
        if verb == "prepare":
            source.prepare(int(numbers[0]))
        elif verb == "flood":
            source.flood()
        elif verb == "pace":
            source.pace(int(numbers[0]), float(numbers[1]))
        elif verb == "churn":
            source.churn(int(numbers[0]), float(numbers[1]))
        elif verb == "delete":
            source.delete(int(numbers[0]))
        elif verb == "lose":
            source.lose(int(numbers[0]))
        say("done", verb)


if __name__ == "__main__":
    main()
