"""Checks a log against the record contract: order, gaps, every hash, every digest. Pure.

Unlike a `Replica`, an audit never reads again: the log itself is checked, so a marker that
disagrees is a problem of the log, unless compaction removed records before it: then the next marker
decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from hashlib import sha256
from typing import Literal

import msgspec

from watchrelay.consumer.errors import no_record_of
from watchrelay.contract.age import APPEND_TIME, StateAge, state_age
from watchrelay.contract.control_state import Origin
from watchrelay.contract.headers import Header
from watchrelay.contract.partitioning import partition_of
from watchrelay.contract.records import Decoded, MarkerRecord, ObjectRecord, Trimmed
from watchrelay.contract.state import Held, Ignored, ObjectState, judged
from watchrelay.contract.wire import Position
from watchrelay.core.text import counted
from watchrelay.model.resources import compare

Kind = Literal[
    "foreign", "hash", "gap", "order", "resend", "digest", "unproven", "partition", "partitions",
    "source", "overlap", "age", "missing", "extra", "differs", "unreadable",
    "transaction",
]  # fmt: skip

PROBLEMS_MAX = 1_000
"""Per stream and partition; the last one counts the others."""

FUTURE_MS_MAX = 300_000
"""A marker that is further ahead of the clock that it is compared with tells no age."""

_VERSION_KEY = b'"resourceVersion":"'


class AuditProblem(msgspec.Struct, frozen=True):
    """Something that does not hold. `key` is None where it is not about one object, `offset` where
    it is about no record.

    Kinds: `foreign` (a record that is not of this contract version), `hash` (a value that is not
    the one of its header), `gap` (a sequence that never reached the log), `order` (an object went
    back in time), `resend` (another record under a position that was given out before), `digest` (a
    marker disagrees with the records before it), `unproven` (no marker agreed with what is held at
    the end, or the first snapshot has not ended), `partition` (a record that belongs into another),
    `partitions` (a count other than described), `source` (two clusters on one topic), `overlap`
    (two streams with the same key), `age` (with `--max-age`: the state is older, or its age is not
    known), `transaction` (an open one holds back later records). With `--cluster`: `missing` on the
    topic, `extra` on the topic, `differs`, `unreadable` (an object that the API server lists and
    cannot be decoded)."""

    kind: Kind
    offset: int | None
    key: str | None
    detail: str


class Stale(msgspec.Struct, frozen=True):
    """Keys whose newest record is one that readers ignore, with another effect than the true
    one: a table that ignores headers shows them until they are published again. `key` is that
    of the first."""

    keys: int
    first: int
    last: int
    key: str


Bare = Callable[[bytes, str], bytes]
"""(published bytes, resourceVersion) -> what of them is compared with the cluster, as a hash."""


def bare_hash(value: bytes, version: str) -> bytes:
    """Eight bytes that tell two objects apart, their resourceVersion aside: with
    `suppressUnchanged` the topic may have an older version of an otherwise equal object."""
    text = version.encode()
    at = value.find(b'%b%b"' % (_VERSION_KEY, text)) if text else -1
    if at >= 0:
        at += len(_VERSION_KEY)
        value = value[:at] + value[at + len(text) :]
    return sha256(value).digest()[:8]


def _without_version(source: bytes) -> list[bytes]:
    """Who writes, and of what: a stream goes on where its resource is served in another version
    only."""
    return [part for place, part in enumerate(reversed(source.split(b"/"))) if place != 1]


class Audit:
    """One stream in one partition. `bare`: keep this of each value, to compare it with the
    cluster; None: nothing."""

    def __init__(
        self,
        stream: str,
        topic: str,
        partition: int,
        *,
        origin: Origin,
        partitions: int,
        bare: Bare | None = None,
    ) -> None:
        self.stream, self.topic, self.partition = stream, topic, partition
        self.start = origin.offset or 0
        self.state = ObjectState(origin.snapshot)
        self.records = 0
        self.problems: list[AuditProblem] = []
        self.newest_marker: MarkerRecord | None = None
        """That with count and digest."""
        self.newest_stamp = 0, 0
        """Its timestamp, and the type of that, as aiokafka has them."""
        self.trimmed: dict[bytes, Trimmed] = {}
        self._as_of: tuple[str, dict[bytes, Held | None]] = "", {}
        """The version of `freeze`, and what was held then where later records have changed it."""
        self._partitions, self._bare = partitions, bare
        self._outdated: dict[bytes, tuple[int, int | None]] = {}
        """By key offset and hash (None: a delete) of an ignored record after which none was
        taken."""
        self._more = 0
        self._admitted = -1
        """The offset of the newest record that was not ignored."""
        self._holes = False
        self._failing = False
        self._restored = False
        self._source = b""

    @property
    def frontier(self) -> str:
        """That of the newest marker."""
        return self.newest_marker.frontier if self.newest_marker else ""

    # ---- reading ---------------------------------------------------------------------------------

    def take(self, offset: int, hole: int, record: Decoded, headers: Iterable[Header]) -> None:
        """Check the record at `offset`; `hole` is the newest offset up to it, of any stream,
        directly before which there is no record, -1 for none."""
        self.records += 1
        state = self.state
        epoch, last = state.epoch, state.last
        ignored = state.admit(record.epoch, record.sequence)
        if ignored is None and (state.epoch != epoch or state.last != last + 1):
            self._jumped(offset, hole, (epoch, last))
        if ignored is None:
            self._admitted = offset
        if isinstance(record, ObjectRecord):
            self._object(offset, record, ignored)
        elif ignored is None:
            self._marker(offset, record, headers)

    def _jumped(self, offset: int, hole: int, was: tuple[int, int]) -> None:
        """A new epoch, compacted history, or records that never reached the log."""
        state = self.state
        if state.epoch != was[0] and state.last == 1:
            return
        if was == (0, 0) or hole > self._admitted:
            self._holes = True
            return
        expected = was[1] + 1 if state.epoch == was[0] else 1
        missing = str(expected) if state.last == expected + 1 else f"{expected} to {state.last - 1}"
        self._add(
            "gap", offset, None, f"sequence {missing} of epoch {state.epoch} never reached the log"
        )

    def _object(self, offset: int, claimed: ObjectRecord, ignored: Ignored | None) -> None:
        record, state = judged(claimed), self.state
        key, value, found = record.key, record.value, record.value_hash
        if record is not claimed:
            detail = f"the value hashes to {found:016x}, its header has {claimed.value_hash:016x}"
            self._add("hash", offset, key, detail)
        if ignored is not None:
            self._outdated[key] = (offset, None if value is None else found)
            self._ignored(offset, record, found, ignored)
            return
        if self._outdated:
            self._outdated.pop(key, None)
        after = None
        if value is not None:
            kept = b"" if self._bare is None else self._bare(value, record.version)
            after = Held(kept, found, record.uid, record.version, record.epoch, record.sequence)
        before = state.hold(key, after)
        if before is None and value is not None:
            home = partition_of(key, self._partitions)
            if home != self.partition:
                self._add("partition", offset, key, f"the key belongs into partition {home}")
        version, changed = self._as_of
        if version and key not in changed and compare(record.version, version) == 1:
            changed[key] = before
        if record.trimmed:
            self.trimmed[key] = record.trimmed
        else:
            self.trimmed.pop(key, None)
        if before is not None and record.reason == "watch" and not self._restored:
            self._in_order(offset, record, before)

    def _in_order(self, offset: int, record: ObjectRecord, before: Held) -> None:
        """Changes of the watch are newer than what was published, unless the API server was
        restored."""
        at, was = record.version, before.version
        if (len(at), at) < (len(was), was) and compare(at, was) == -1:
            self._add("order", offset, record.key, f"resourceVersion {at} is older than {was}")

    def _ignored(self, offset: int, record: ObjectRecord, found: int, ignored: Ignored) -> None:
        held = self.state.held.get(record.key)
        if (
            ignored.duplicate
            and held is not None
            and held.position == Position(record.epoch, record.sequence)
            and held.value_hash != found
        ):
            place = f"epoch {record.epoch}, sequence {record.sequence}"
            self._add("resend", offset, record.key, f"another record was sent under {place} before")

    def _marker(self, offset: int, marker: MarkerRecord, headers: Iterable[Header]) -> None:
        source = next((value for name, value in headers if name == "ce_source"), b"")
        if self._source and _without_version(source) != _without_version(self._source):
            detail = (
                f"{source.decode(errors='replace')} and "
                f"{self._source.decode(errors='replace')} write the same stream"
            )
            self._add("source", offset, None, detail)
        self._source = source
        if marker.partition != self.partition:
            self._add("partition", offset, None, f"a {marker.kind} of partition {marker.partition}")
        if marker.partitions != self._partitions:
            detail = (
                f"a {marker.kind} names {counted(marker.partitions, 'partition')}, the "
                f"control topic names {self._partitions}"
            )
            self._add("partitions", offset, None, detail)
        if marker.kind == "claim":
            return
        if self.frontier and compare(marker.frontier, self.frontier) == -1:
            self._restored = True
        self.newest_marker = marker
        self._judge(offset, marker)

    def _judge(self, offset: int, marker: MarkerRecord) -> None:
        state = self.state
        if state.judge(marker) is not None:
            self._holes = self._failing = False
        elif not state.started_in and not self._holes and not self._failing:
            self._failing = True
            held = f"{counted(len(state.held), 'object')} with digest {state.digest:016x}"
            expected = f"{marker.count} with {marker.digest:016x}"
            self._add(
                "digest", offset, None, f"the log holds {held}, the {marker.kind} has {expected}"
            )

    # ---- at the end ------------------------------------------------------------------------------

    def finish(self) -> None:
        """Nothing more comes: what is held must be proven."""
        if not self.state.proven and not self._failing:
            why = "the newest marker does not agree, or records are missing"
            if not self.frontier:
                why = "it has no marker with a digest"
            if not self.records:
                why = no_record_of([self.stream])
            self._add("unproven", None, None, f"what the log holds is not proven: {why}")
        elif self.state.proven and not self.state.complete:
            why = "the first snapshot of the stream has not ended: the log holds a part of it"
            self._add("unproven", None, None, why)
        if self._more:
            self.problems.append(
                AuditProblem("unproven", None, None, f"and {counted(self._more, 'problem')} more")
            )
            self._more = 0

    def age(self, now_ms: int) -> tuple[StateAge | None, str]:
        """How old the state is that the log holds; None, and why, where that is not known.
        `now_ms`: wall clock."""
        marker, (stamp_ms, stamp_type) = self.newest_marker, self.newest_stamp
        if marker is None:
            return None, "it has no marker with a digest"
        if (ahead_ms := stamp_ms - now_ms) > FUTURE_MS_MAX:
            whose = "broker" if stamp_type == APPEND_TIME else "relay"
            return None, (
                f"the newest {marker.kind} is {ahead_ms // 1000} s ahead of this clock: it, or "
                f"that of the {whose}, is wrong"
            )
        age = state_age(marker, timestamp_ms=stamp_ms, timestamp_type=stamp_type, now_ms=now_ms)
        return age, f"the newest {marker.kind} does not tell when the API server was last seen"

    @property
    def stale(self) -> Stale | None:
        """What a table that ignores headers shows wrongly now; None where it is right."""
        held = self.state.held
        wrong = {
            offset: key
            for key, (offset, value_hash) in self._outdated.items()
            if value_hash != (held[key].value_hash if key in held else None)
        }
        if not wrong:
            return None
        key = wrong[min(wrong)].decode(errors="replace")
        return Stale(len(wrong), min(wrong), max(wrong), key)

    @property
    def in_part(self) -> list[str]:
        """Keys of the objects that are published in part, for the topic's limit on records."""
        return [key.decode(errors="replace") for key in self.trimmed if key in self.state.held]

    def freeze(self, version: str) -> None:
        """From now on keep what was held at `version` of the cluster."""
        self._as_of = version, {}

    def held_at(self, key: bytes) -> Held | None:
        """What the log held of `key` at the frozen version."""
        _, changed = self._as_of
        return changed[key] if key in changed else self.state.held.get(key)

    def held_as_of(self) -> dict[bytes, Held]:
        held = {**self.state.held, **self._as_of[1]}
        return {key: each for key, each in held.items() if each is not None}

    def _add(self, kind: Kind, offset: int | None, key: bytes | None, detail: str) -> None:
        self.add(
            AuditProblem(
                kind, offset, None if key is None else key.decode(errors="replace"), detail
            )
        )

    def add(self, problem: AuditProblem) -> None:
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(problem)
        else:
            self._more += 1
