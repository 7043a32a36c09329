"""Hands snapshot requests to the writers of their streams, unless an earlier one answered."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol

from watchrelay.core import clock
from watchrelay.core.text import short
from watchrelay.core.timestamps import parse_timestamp
from watchrelay.kafka.signal_records import SnapshotRequest
from watchrelay.model.parts import stream_and_part
from watchrelay.observe.loglimit import LogLimit

log = logging.getLogger(__name__)

WAITING_MAX = 1000
"""Requests kept per stream."""
ALL_WAITING_MAX = 10 * WAITING_MAX
"""Kept for all streams, about: each has an equal share and drops its oldest beyond it."""
EXPIRE_S = 3600.0
"""No command waits for older ones. Source: record contract 7, "the signals of the last hour"."""
SNAPSHOT_MS_MAX = 600_000
"""Older than the newest snapshot's end by this: answered, for no snapshot takes longer."""

Ask = Callable[[str], None]


class Indexes(Protocol):
    """The newest `snapshot/<stream>` and `stream/<stream>` records of the control topic."""

    def newest_indexes(self, stream: str) -> Sequence[Mapping[str, object]]: ...

    def described(self, stream: str) -> Mapping[str, object] | None: ...


class _Waiting(NamedTuple):
    written_ms: int
    taken_s: float


class SnapshotRequests:
    """Takes requests, hands them on; all on one event loop. A request is kept for each known
    stream that it names until it is answered or an hour old, so that the next writer answers
    what this one did not."""

    def __init__(
        self,
        control: Indexes,
        *,
        configured: Container[str] = (),
        now_s: Callable[[], float] = clock.now_s,
        wall_ms: Callable[[], int] = clock.wall_ms,
    ) -> None:
        """`control` has been read to its end before the first request; `configured`:
        streams of the config, which may have no description yet."""
        self._control, self._configured = control, configured
        self._now_s, self._wall_ms = now_s, wall_ms
        self._writers: dict[str, dict[str, Ask]] = {}
        """By stream, the writers of it or of its parts."""
        self._open: dict[str, dict[str, _Waiting]] = {}
        """By stream, the requests that no index record named when last looked at, oldest first."""
        self._unknown = LogLimit()  # who writes signals writes our log

    def take(self, request: SnapshotRequest, written_ms: int, *, backlog: bool) -> None:
        """Hand `request` on; with `backlog` an earlier relay may have answered it already."""
        unknown = []
        for stream in request.streams:
            writers = self._writers.get(stream, {})
            # "%" is in no id of a stream, only in those of parts
            described = "%" not in stream and self._control.described(stream) is not None
            if not writers and not described and stream not in self._configured:
                unknown.append(stream)
                continue
            self._keep(stream, request.id, written_ms)
            for each, writer in list(writers.items()):
                if backlog:
                    self._ask_open(each, writer, [request.id])
                else:
                    writer(request.id)
        stream = short(unknown[0], 100) if unknown else ""
        if unknown and not backlog and (count := self._unknown.due(stream, self._now_s())):
            extra = {
                "request": request.id,
                "stream": stream,
                "unknown": len(unknown),
                "count": count,
            }
            log.warning("signal names an unknown stream", extra=extra)

    @contextmanager
    def serving(self, stream: str, ask: Ask) -> Iterator[None]:
        """Inside the block `ask` gets the id of each request for `stream`, or for the stream of
        which it is a part; at once those still open."""
        whole, _ = stream_and_part(stream)
        writers = self._writers.setdefault(whole, {})
        writers[stream] = ask
        try:
            self._ask_open(stream, ask, list(self._open.get(whole, ())))
            yield
        finally:
            del writers[stream]
            if not writers:
                self._writers.pop(whole, None)

    def _keep(self, stream: str, request_id: str, written_ms: int) -> None:
        waiting, now_s = self._open.setdefault(stream, {}), self._now_s()
        waiting.pop(request_id, None)
        waiting[request_id] = _Waiting(written_ms, now_s)
        share = min(WAITING_MAX, max(1, ALL_WAITING_MAX // len(self._open)))
        while len(waiting) > share or now_s - next(iter(waiting.values())).taken_s > EXPIRE_S:
            del waiting[next(iter(waiting))]

    def _ask_open(self, stream: str, ask: Ask, requests: Sequence[str]) -> None:
        """Hand on those of `requests` that are open and were not answered."""
        indexes, now_ms = self._control.newest_indexes(stream), self._wall_ms()
        whole, part = stream_and_part(stream)
        waiting = self._open.get(whole, {})
        for request_id in requests:
            if (kept := waiting.get(request_id)) is None:
                continue
            done = bool(indexes) and all(
                answered(index, request_id, kept.written_ms, now_ms) for index in indexes
            )
            # kept for the other parts, where `stream` is one
            if self._now_s() - kept.taken_s > EXPIRE_S or (done and part.of == 1):
                del waiting[request_id]
            elif not done:
                ask(request_id)
        if not waiting:
            self._open.pop(whole, None)


def answered(
    index: Mapping[str, object] | None, request_id: str, written_ms: int, now_ms: int
) -> bool:
    """Whether an earlier writer answered: the index record names the request, or is so much newer
    that an older one did. One dated in the future is of a wrong clock: only its names count."""
    if index is None:
        return False
    named, ended = index.get("requests"), index.get("time")
    if isinstance(named, list) and request_id in named:
        return True
    try:
        ended_ms = parse_timestamp(ended.encode()) if isinstance(ended, str) else None
    except ValueError:
        return False
    return ended_ms is not None and ended_ms <= now_ms and written_ms < ended_ms - SNAPSHOT_MS_MAX
