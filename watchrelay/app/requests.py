"""Who answers which request: signals come by stream id, writers come and go.

Room: app. In: requests from the signal topic; writers that are ready for them. Out: each request handed to the writer of each stream it
names, now or as soon as there is one; not, where the stream's index record shows that an earlier writer answered it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from watchrelay.codec import parse_instant
from watchrelay.sink.signalrules import SnapshotRequest

log = logging.getLogger(__name__)

WAITING_MAX = 1000
"""Requests kept per stream, and streams that requests may name."""
SNAPSHOT_MS_MAX = 600_000
"""A request older than the newest snapshot's end by this was answered, or its snapshot would have taken longer than any does."""

Ask = Callable[[str], None]


class Indexes(Protocol):
    """The control topic, as far as requests need it. Source: sink/control.py."""

    def index(self, stream: str) -> Mapping[str, object] | None:
        """The newest `snapshot/<stream>` record."""
        ...

    def described(self, stream: str) -> Mapping[str, object] | None:
        """The newest `stream/<stream>` record."""
        ...


class Requests:
    """Takes requests, hands them on. All calls are made on one event loop."""

    def __init__(self, control: Indexes) -> None:
        self._control = control
        self._writers: dict[str, Ask] = {}
        self._open: dict[str, dict[str, int]] = {}
        """By stream, the requests that no index record named when last looked at, and when each was written."""

    def take(self, request: SnapshotRequest, written_ms: int, *, backlog: bool) -> None:
        """Hand `request` on. Shape: `backlog`: an earlier relay may have answered it already."""
        for stream in request.streams:
            if len(self._open) >= WAITING_MAX and stream not in self._open:
                log.warning("signal names too many streams", extra={"request": request.id, "stream": stream[:100]})
                return
            waiting = self._open.setdefault(stream, {})
            waiting[request.id] = written_ms
            if len(waiting) > WAITING_MAX:
                del waiting[next(iter(waiting))]
            writer = self._writers.get(stream)
            if writer is None:
                if not backlog and self._control.described(stream) is None:
                    log.warning("signal names a stream that is not there", extra={"request": request.id, "stream": stream[:100]})
            elif backlog:
                self._ask_open(stream, writer, only=request.id)
            else:
                writer(request.id)

    @contextmanager
    def serving(self, stream: str, ask: Ask) -> Iterator[None]:
        """Inside the block `ask` is called with the id of each request for `stream`; at once with those that nobody answered yet."""
        self._writers[stream] = ask
        try:
            self._ask_open(stream, ask)
            yield
        finally:
            del self._writers[stream]

    def _ask_open(self, stream: str, ask: Ask, *, only: str = "") -> None:
        index, waiting = self._control.index(stream), self._open.get(stream, {})
        for request_id, written_ms in list(waiting.items()):
            if answered(index, request_id, written_ms):
                del waiting[request_id]
            elif not only or request_id == only:
                ask(request_id)


def answered(index: Mapping[str, object] | None, request_id: str, written_ms: int) -> bool:
    """Whether an earlier writer answered: the index record names the request, or is so much newer that an older one did."""
    if index is None:
        return False
    named, ended = index.get("requests"), index.get("time")
    if isinstance(named, list) and request_id in named:
        return True
    try:
        return isinstance(ended, str) and written_ms < parse_instant(ended.encode()) - SNAPSHOT_MS_MAX
    except ValueError:
        return False
