"""When a snapshot is due, in which order its members are queued, and when it is complete.

A key that was queued since begin has a record between begin and end already; any other is queued
with its present value. So no key goes back in time.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Container, Mapping
from contextlib import suppress

from watchrelay.contract.control import SnapshotPartition, snapshot_value
from watchrelay.core.timestamps import parse_timestamp
from watchrelay.model.changes import Entry

GROWTH_RECORDS = 10_000
GROWTH_PER_OBJECT = 3
JITTER = 0.1
REQUESTS_MAX = 500
"""Requests that one index record names, so that it stays small; the next one names the others."""
REQUESTS_WAITING = 10 * REQUESTS_MAX
"""At most this many requests wait for a snapshot; beyond that the oldest are dropped."""
SCAN_KEYS = 4096
"""Keys examined in one step at most, 100 ns each."""
MEMBERS_QUIET_BYTES = 256 * 1024
"""Snapshot members in a partition's batch while no events come."""
WAITING_MAX_BYTES = 256 * 1024
"""No member is queued while this many bytes of any records wait in its partition."""
MEMBERS_BUSY_BYTES = 32 * 1024
"""As `MEMBERS_QUIET_BYTES`, while events come: they wait for what was queued before them."""
REMOVED_EVERY_S = 300.0
"""A snapshot whose records are removed again and again is published again this often at most."""
QUIET_S = 0.25
"""A stream without events for this long is quiet."""


class Snapshot:
    """One snapshot, from queueing its begin to the acknowledgement of its last end."""

    def __init__(
        self,
        snapshot_id: str,
        *,
        keys: list[bytes],
        partitions: int,
        began_at_s: float,
        requests: tuple[str, ...],
    ) -> None:
        self.id, self.began_at_s, self.requests = snapshot_id, began_at_s, requests
        self.members = 0
        self.examined = 0
        """Number of keys examined."""
        self._keys, self._key_count, self._partitions = keys, len(keys), partitions
        self._begins: dict[int, int] = {}
        self._ends: dict[int, SnapshotPartition] = {}
        self._ended = False
        self._others: int | None = None
        """At the last call of `members_limit_bytes`: the number of object records that are not
        members of this snapshot."""
        self._last_change_at_s = -math.inf
        """When that number last changed."""

    @property
    def keys_left(self) -> bool:
        """Whether keys are left to examine."""
        return self.examined < self._key_count

    @property
    def ready_to_end(self) -> bool:
        """Whether every key is done and every begin acknowledged: the ends name the offsets of the
        begins, and only then are the gaps before the begins known."""
        return not self.keys_left and len(self._begins) == self._partitions

    @property
    def complete(self) -> bool:
        """Whether every end is acknowledged."""
        return len(self._ends) == self._partitions

    def members_limit_bytes(self, now_s: float, records: int) -> int:
        """How many bytes of members a batch of a partition may hold now; called once in each step.
        `records`: the object records queued so far, with those of the snapshot. If others were
        queued since the last call, events come."""
        others = records - self.members
        if self._others is not None and others != self._others:
            self._last_change_at_s = now_s
        self._others = others
        return (
            MEMBERS_BUSY_BYTES if now_s - self._last_change_at_s < QUIET_S else MEMBERS_QUIET_BYTES
        )

    def queue_members(
        self,
        remaining: Container[bytes],
        get: Callable[[bytes], Entry | None],
        has_room: Callable[[int], bool],
        queue: Callable[[bytes, Entry], None],
    ) -> None:
        """Queue the next of the `remaining` keys, while the partition of each has room.

        One index into the keys serves all partitions: the keys are spread evenly over them, and
        the end markers wait for the slowest partition anyway.
        """
        keys, at = self._keys, self.examined
        stop = min(len(keys), at + SCAN_KEYS)
        while at < stop:
            key = keys[at]
            if key in remaining and (entry := get(key)) is not None:
                if not has_room(entry.partition):
                    break
                queue(key, entry)
                self.members += 1
            at += 1
        self.examined = at
        if not self.keys_left:
            self._keys = []

    def take_end(self) -> bool:
        """True once, when `ready_to_end`: end is to be queued on all partitions in one step."""
        if self._ended or not self.ready_to_end:
            return False
        self._ended = True
        return True

    def begin_acked(self, partition: int, offset: int) -> None:
        """Take the offset of the begin of `partition`."""
        self._begins[partition] = offset

    def end_acked(self, partition: int, *, offset: int, count: int, digest: int) -> None:
        """Take the offset, count and digest of the end of `partition`."""
        self._ends[partition] = SnapshotPartition(
            partition, self._begins[partition], offset, count, digest
        )

    def index_value(self, *, epoch: int, frontier: str, time_ms: int) -> dict[str, object]:
        """The index record for the control topic. Legal once complete."""
        assert self.complete, "an index record of a snapshot that is not complete"
        ends = [self._ends[partition] for partition in sorted(self._ends)]
        return snapshot_value(
            snapshot=self.id,
            epoch=epoch,
            frontier=frontier,
            time_ms=time_ms,
            requests=self.requests,
            partitions=ends,
        )


class SnapshotSchedule:
    """When the next snapshot is due. An `interval_s` of 0: not by time."""

    def __init__(self, interval_s: float, rng: random.Random) -> None:
        self._interval_s, self._rng = interval_s, rng
        self._at_s: float | None = None
        self._records = 0
        self._requests: list[str] = []
        self.wanted = False
        """One is due as soon as it may begin."""
        self.preparing = False
        """One is due, and what it needs is read."""
        self.number = 0
        """Of the newest one that began."""
        self._not_again_before_s = -math.inf

    def request(self, request_id: str) -> None:
        """Let the next snapshot begin soon, and its index record name the request."""
        self._requests.append(request_id)
        del self._requests[:-REQUESTS_WAITING]

    def begun(self, now_s: float, records: int) -> tuple[str, ...]:
        """Count from a snapshot that began now, after `records` object records; returns the
        requests that its index record names."""
        self._records, self.wanted = records, False
        self.number += 1
        if self._interval_s:
            self._at_s = now_s + self._jittered_s()
        named = tuple(self._requests[:REQUESTS_MAX])
        del self._requests[:REQUESTS_MAX]
        return named

    def abandoned(self, snapshot: Snapshot) -> None:
        """Let a new snapshot begin instead of `snapshot`, at the next heartbeat at which a
        snapshot may begin."""
        self._requests[:0] = snapshot.requests
        self.wanted = True

    def want_again(self, now_s: float) -> bool:
        """Let a new snapshot begin, as records of the newest one were removed; False: too soon
        after the last time."""
        if now_s < self._not_again_before_s:
            return False
        self._not_again_before_s = now_s + REMOVED_EVERY_S
        self.wanted = True
        return True

    def _jittered_s(self) -> float:
        return self._interval_s * self._rng.uniform(1 - JITTER, 1 + JITTER)

    def resumed(
        self, now_s: float, index: Mapping[str, object], *, wall_ms: int, records: int
    ) -> None:
        """Continue from the last snapshot of a previous writer: the next one is due an
        interval after that one was complete, and within an interval from now whatever the clock of
        that writer showed.

        Args:
            index: Its index record; empty if there is none.
            records: Where that snapshot began in this writer's count of object records; negative,
                as the records since then are of the previous writer.
        """
        self._records = records
        if self._interval_s:
            age_s = math.inf
            with suppress(ValueError):
                ended_ms = parse_timestamp(str(index.get("time")).encode())
                age_s = max(0.0, (wall_ms - ended_ms) / 1000)
            self._at_s = now_s + max(0.0, self._jittered_s() - age_s)

    def wait_s(self, now_s: float) -> float | None:
        """Seconds until one is due by time; None: never."""
        return None if self._at_s is None else max(0.0, self._at_s - now_s)

    def due(self, now_s: float, *, records: int, objects: int) -> bool:
        """Due because it is wanted or was requested, by time, or because the log grew by 10,000
        records and three for each object."""
        asked_for = self.wanted or bool(self._requests)
        by_time = self._at_s is not None and now_s >= self._at_s
        grown = records - self._records > GROWTH_RECORDS + GROWTH_PER_OBJECT * objects
        return asked_for or by_time or grown
