"""Repairs of stale records on their way into the queues: there may be as many as a foreign writer
has written records."""

from __future__ import annotations

from collections.abc import Callable

from watchrelay.core.turns import Turns
from watchrelay.model.changes import Entry
from watchrelay.publish.recovery import Repairs
from watchrelay.publish.stream_queues import StreamQueues


class RepairQueue:
    """Keys, each with a partition, whose true state must be published there again. `found` are
    those that the writer's phase has not permitted yet; `waiting` those that it has.

    While any wait, the only markers that may be queued are a claim and the begin of a first
    snapshot: the count of another one leaves out strays, which are on the topic until then.

    Args:
        room_bytes: As `WriterContext.room_bytes`.
    """

    def __init__(
        self, queues: StreamQueues, get: Callable[[bytes], Entry | None], *, room_bytes: int
    ) -> None:
        self.found: Repairs = {}
        self.waiting: Repairs = {}
        self._queues, self._get, self._room_bytes = queues, get, room_bytes

    def permit(self) -> None:
        """Those that were found may be queued now."""
        self.waiting |= self.found
        self.found.clear()

    def step(self, *, time_ms: int) -> bool:
        """Queue the next ones, for a turn of the event loop. Whether there is room for more."""
        waiting, queues, turns = self.waiting, self._queues, Turns()
        while waiting and not turns.over:
            if queues.queued_bytes > self._room_bytes:
                return False
            (key, partition), _ = waiting.popitem()
            queues.repair(key, self._get(key), partition, time_ms=time_ms)
        return True
