"""What the status page costs the relay: nobody looks, one looks, as many as may.

Input: a rig. Output: CPU and memory of a relay of 200 streams by number of viewers, and what a
viewer is sent.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

from tests.bench.footprint import IDLE_STREAMS
from tests.bench.rig import Relay, Rig, SourceProcess, wait_for
from tests.bench.table import Row
from tests.support.pace import measure_for
from watchrelay.observe.live import VIEWERS_MAX

LOOK_S = 20.0


def _admitted(port: int) -> socket.socket:
    """A connection to the events. The relay notices that former viewers went when it writes to them
    next, and until then has no room."""
    admitted: list[socket.socket] = []

    def asked() -> bool:
        connection = socket.create_connection(("127.0.0.1", port))
        connection.sendall(b"GET /api/events HTTP/1.1\r\nHost: relay\r\n\r\n")
        if connection.recv(12).endswith(b" 200"):
            admitted.append(connection)
        else:
            connection.close()
        return bool(admitted)

    wait_for("the relay takes another viewer", asked)
    return admitted[0]


class Viewer:
    """A connection that reads server-sent events and counts their bytes; closed by its owner."""

    def __init__(self, port: int) -> None:
        self._connection = _admitted(port)
        self.bytes_read = self.pictures = 0
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while chunk := self._connection.recv(65536):
                self.bytes_read += len(chunk)
                self.pictures += chunk.count(b"event: ")

    def close(self) -> None:
        """Go."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._reading.join()
        self._connection.close()


@contextlib.contextmanager
def looking(port: int, count: int) -> Iterator[list[Viewer]]:
    """So many viewers."""
    viewers = [Viewer(port) for _ in range(count)]
    try:
        yield viewers
    finally:
        for viewer in viewers:
            viewer.close()


def viewers(rig: Rig) -> list[Row]:
    """200 streams at rest but for heartbeats, looked at by more and more."""
    namespaces = [f"ns-{number}" for number in range(IDLE_STREAMS)]
    rows: list[Row] = []
    with (
        SourceProcess(objects=0) as source,
        Relay(rig, source, resources=[{"resource": "pods", "namespaces": namespaces}]) as relay,
    ):
        relay.await_snapshots(IDLE_STREAMS)
        relay.settle()
        for count in (0, 1, VIEWERS_MAX, 0):
            with looking(relay.daemon.port, count) as there:
                # The first picture, which is whole, is not what a second costs.
                wait_for(
                    "each was given the whole picture",
                    lambda: all(viewer.pictures > 1 for viewer in there),
                )
                before, read, began_s = (
                    relay.used().cpu_s,
                    sum(viewer.bytes_read for viewer in there),
                    time.monotonic(),
                )
                measure_for(LOOK_S)
                took_s = time.monotonic() - began_s
                share, rss = (relay.used().cpu_s - before) / took_s * 100, relay.used().rss
                sent = sum(viewer.bytes_read for viewer in there) - read
            again = " again" if rows and not count else ""
            what = f"{count} viewer{'s'[: count != 1]}{again}, {IDLE_STREAMS} streams"
            rows.append(Row(f"{what}: share of one core", share, "%"))
            rows.append(Row(f"{what}: resident memory", rss / 1e6, "MB"))
            if count:
                rows.append(Row(f"{what}: sent to each", sent / count / took_s / 1024, "KiB/s"))
    return rows
