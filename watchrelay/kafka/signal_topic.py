"""The signal topic: snapshot requests of consumers.

The relay keeps no position: at its start it reads the topic and takes the requests of the last
hour, so that one made while no relay was running is answered. Which were answered is recorded on
the control topic (`answered`).
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from watchrelay.contract.records import refuse_unreadable
from watchrelay.core import clock
from watchrelay.core.errors import RecordRefused
from watchrelay.core.text import short
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.client.one_record import send_record
from watchrelay.kafka.signal_records import (
    SIGNAL_BYTES_MAX,
    SnapshotRequest,
    parse_signal,
    signal_value,
)
from watchrelay.kafka.topic_follower import TopicFollower
from watchrelay.observe.metrics import Metrics
from watchrelay.observe.status import StatusRegistry

_log = logging.getLogger(__name__)

BACKLOG_MS = 3_600_000
"""Requests older than this at the relay's start are ignored, as are those dated so far in the
future: they would be taken again at each start."""
_REQUEST_TIMEOUT_S = 15.0
_SEND_TIMEOUT_S = 30.0
_IDS_MAX = 10_000
_ID_KEPT_S = 3600.0
"""Seconds within which a request written again, the same id for the same streams, counts once."""
_STREAMS_SHOWN = 10
_LINES_A_MINUTE = 100
"""Bounds what writers of signals can put into the log, also at each start; the metric counts all of
them."""


class TakeRequest(Protocol):
    """Gets the requests."""

    def __call__(self, request: SnapshotRequest, written_ms: int, *, backlog: bool) -> None:
        """Take one request.

        Args:
            written_ms: when it was written, milliseconds since the epoch.
            backlog: it was written before this relay started to read.
        """
        ...


class SignalTopic:
    """Reads the signal topic and hands on each request once. Use: `run()` as a task."""

    def __init__(
        self,
        connection: KafkaConnection,
        topic: str,
        take: TakeRequest,
        *,
        metrics: Metrics,
        statuses: StatusRegistry,
        rng: random.Random | None = None,
        now_s: Callable[[], float] = clock.now_s,
        wall_ms: Callable[[], int] = clock.wall_ms,
    ) -> None:
        self.topic = topic
        self._follower = TopicFollower(
            connection,
            topic,
            self,
            name="signal",
            committed=True,
            every_partition=True,
            batch_bytes_max=SIGNAL_BYTES_MAX,
            problems=statuses.problems,
            rng=rng,
        )
        self._take = take
        self._now_s, self._wall_ms = now_s, wall_ms
        self._batch_ms: int | None = None
        """The wall clock at the first record since `moved`: records of one answer came then."""
        self._live_from: dict[int, int] = {}
        """By partition, the offset of the first record that is no backlog."""
        self._taken: dict[int, float] = {}
        """By hash of id and streams, when a request was taken: oldest first."""
        self._lines, self._lines_from_s = 0, self._now_s()
        self._count = {
            result: metrics.counter("signals").labels(result)
            for result in ("taken", "repeated", "expired", "refused")
        }

    async def run(self) -> None:
        """Read the topic from its start and follow it.

        Raises: TopicLost when it was deleted or recreated: create it, then run again.
        """
        await self._follower.run()

    # ---- callbacks of the follower ---------------------------------------------------------------

    def began(self, end: int, partition: int, /) -> None:
        """Records before the first `end` of a partition are backlog."""
        self._batch_ms = None
        self._live_from.setdefault(partition, end)

    def moved(self, _position: int) -> None:
        """The next record comes at another time."""
        self._batch_ms = None

    def started_over(self) -> None:
        """No record of the new topic is backlog."""
        self._live_from = dict.fromkeys(self._live_from, 0)

    def take(self, record: Any) -> None:
        """Take one record; none of them stops the reading."""
        if self._batch_ms is None:
            self._batch_ms = self._wall_ms()
        backlog = record.offset < self._live_from[record.partition]
        old = backlog and abs(self._batch_ms - record.timestamp) > BACKLOG_MS
        try:
            refuse_unreadable(dict(record.headers))
            request = parse_signal(record.value)
        except RecordRefused as error:
            # an old one was reported by the relay that ran when it was written
            if not old:
                self._count["refused"].inc()
                self._say(
                    logging.WARNING,
                    "signal ignored",
                    record,
                    error=str(error),
                    hint="find out who may write to this topic",
                )
            return
        if old:
            self._count["expired"].inc()
            return
        if self._repeated(request):
            self._count["repeated"].inc()
            return
        self._count["taken"].inc()
        self._say(
            logging.INFO,
            "signal taken",
            record,
            request=request.id,
            streams=_named(request.streams),
        )
        written_ms = record.timestamp if backlog else self._batch_ms
        self._take(request, written_ms, backlog=backlog)

    def _repeated(self, request: SnapshotRequest) -> bool:
        """Whether the same was taken within the hour; else it is from now on."""
        now_s, which, taken = self._now_s(), hash((request.id, request.streams)), self._taken
        while taken and (len(taken) >= _IDS_MAX or now_s - next(iter(taken.values())) > _ID_KEPT_S):
            del taken[next(iter(taken))]
        if which in taken:
            return True
        taken[which] = now_s
        return False

    def _say(self, level: int, message: str, record: Any, **more: object) -> None:
        """A line of the log, as long as there are not too many."""
        if self._now_s() - self._lines_from_s >= 60.0:
            self._lines, self._lines_from_s = 0, self._now_s()
        self._lines += 1
        if self._lines <= _LINES_A_MINUTE:
            where = {"partition": record.partition, "offset": record.offset}
            _log.log(level, message, extra={"topic": self.topic, **where, **more})
        elif self._lines == _LINES_A_MINUTE + 1:
            hint = "find out who writes them; watchrelay_signals_total counts them"
            _log.warning(
                "too many signals; not logging more of them this minute",
                extra={"topic": self.topic, "offset": record.offset, "hint": hint},
            )


def _named(streams: Sequence[str]) -> list[str]:
    """As many of the names as a log line can bear."""
    return [short(stream, 100) for stream in streams[:_STREAMS_SHOWN]]


async def send_signal(
    connection: KafkaConnection, topic: str, cluster: str, request: SnapshotRequest
) -> int:
    """Write a request and return its offset once it is acknowledged.

    Raises: SinkUnavailable; it may have been written all the same: write the same `id` again, it is
    taken once.
    """
    return await send_record(
        connection,
        topic,
        key=cluster.encode(),
        value=signal_value(request),
        request_timeout_s=_REQUEST_TIMEOUT_S,
        within_s=_SEND_TIMEOUT_S,
    )
