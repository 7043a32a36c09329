"""The control topic: which relay writes a stream, its epoch, and where its last snapshot is.

Records are written through the sink; the topic is read from its start by a `TopicFollower`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import socket
import uuid
from bisect import insort
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Literal, Protocol

from watchrelay import __version__
from watchrelay.contract.control import (
    EPOCH_BASE_MAX,
    VALUE_BYTES_MAX,
    ControlKind,
    Value,
    claim_value,
    control_key,
    control_value,
)
from watchrelay.contract.control_state import (
    ControlState,
    StreamControl,
    WriterControl,
    newest_ids,
    remembered,
)
from watchrelay.contract.records import refuse_unreadable
from watchrelay.contract.wire import Batch, Receipt, WireRecord
from watchrelay.core import clock
from watchrelay.core.errors import Fenced, RecordRefused, RecordTooLarge, TopicLost, TopicRefused
from watchrelay.core.text import short
from watchrelay.core.trouble import Cause, Trouble
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.topic_config import alter_command
from watchrelay.kafka.topic_follower import TopicFollower
from watchrelay.kafka.topic_settings import SIZE_LIMITS
from watchrelay.model.parts import Part, stream_and_part
from watchrelay.observe.status import StatusRegistry, Troubles, index_problem

_log = logging.getLogger(__name__)

_REFUSED_MAX = 1000
"""Foreign records are named in the log, each key once, up to this number: what they are
is clear by then."""
_KEY_BYTES = 200
"""How much of such a key is kept."""
_HINT = (
    "find out who else may write to this topic; to remove the record, write one with the "
    "same key and a null value"
)


async def _as_it_was() -> bool:
    return False


class Delivers(Protocol):
    """The part of the sink that writes."""

    async def deliver(self, batch: Batch) -> Receipt:
        """Append, however long it takes."""
        ...


@dataclass(slots=True)
class ReadSoFar:
    """How far a topic was read. `lives`: how often it was lost; all before offset `to` was read;
    `end` was the end of the topic when reading began."""

    lives: int = 0
    to: int = 0
    end: int = 0


@dataclass(frozen=True, slots=True)
class OwnClaim:
    """What this process claimed last of a stream, the stream or a part; and the description that
    the stream had with the claim."""

    claimed: str
    description: Value


class ControlTopic:
    """Implements the writer's `ControlLog`. Use: `run()` as a task; everything else from any other.
    A `stream` is the id of a stream, or of a part: `pods%0/4`.

    A topic that is lost under a relay is recreated, then `run()` and `restore()` are called again:
    the descriptions of all streams are written again, with epochs above all before, and each stream
    is claimed again. Until then the content of the lost topic is used.
    """

    def __init__(
        self,
        connection: KafkaConnection,
        topic: str,
        sink: Delivers,
        *,
        statuses: StatusRegistry | None = None,
        holder: str | None = None,
        rng: random.Random | None = None,
        wall_ms: Callable[[], int] = clock.wall_ms,
        reread_limit: Callable[[], Awaitable[bool]] = _as_it_was,
    ) -> None:
        """Args: `reread_limit`: reads the size that the topic takes again; whether it has grown."""
        self.topic = topic
        self.holder = holder or f"{socket.gethostname()}-{os.getpid()}"
        self._sink = sink
        self._problems = problems = statuses.problems if statuses is not None else Troubles()
        self._servers, self._reread_limit = connection.servers, reread_limit
        self._rng, self._wall_ms = rng or random.Random(), wall_ms
        self._follower = TopicFollower(
            connection,
            topic,
            self,
            name="control",
            committed=False,
            batch_bytes_max=VALUE_BYTES_MAX,
            problems=problems,
            rng=self._rng,
        )
        self._state = ControlState(() if statuses is None else statuses.streams)
        self._former = ControlState()
        """The content of the lost topic."""
        self._read = ReadSoFar()
        self.taken = 0
        """How many records were read: while it is the same, every answer is."""
        self._moved = asyncio.Event()
        self._awaited: list[tuple[int, asyncio.Event]] = []
        """The offsets that streams wait for, in order: of a thousand that claim, each move wakes
        those that it concerns."""
        self._caught_up = asyncio.Event()
        self._restored = asyncio.Event()
        self._restored.set()
        self._writing = asyncio.Lock()
        self._refused: set[bytes] = set()
        self._claims: dict[str, str] = {}
        """The instance of the newest claim that this process tried, by stream."""
        self._own_claims: dict[str, OwnClaim] = {}
        """By whole stream."""

    # ---- the port --------------------------------------------------------------------------------

    async def claim(
        self,
        stream: str,
        description: dict[str, object],
        *,
        starting_point: dict[str, object] | None,
        highest_epoch: Callable[[], Awaitable[int]],
        transactional_id: str = "",
        replace_description: bool = False,
    ) -> int:
        """Open a new epoch of `stream` and return it: higher than every epoch before it.

        A stream without description gets one before it is claimed, so that a reader of the claim
        can tell its epoch; a changed description is written after it. `highest_epoch` answers
        0 when nothing of the stream is on its topic. The outcome of an append is never unknown
        here: the sink repeats it. See docs/record-contract.md, section 4.1.

        Args:
            transactional_id: under which the claimant will write, "" for none.
            replace_description: write another description first, with an `epochBase` above all on
                the stream's own topic.

        Raises: TopicLost when the control topic was recreated meanwhile: claim again. Fenced when a
        newer claim has replaced ours before it was read back. TopicRefused for a description whose
        `epochBase` is too high, unless it is to be replaced, and for records that do not fit.
        """
        await self._restored.wait()
        instance = self._claims[stream] = self._new_instance()
        lives, read_before = self._read.lives, self._read.to
        whole, part = stream_and_part(stream)
        await self._describe(whole, description, highest_epoch, replace=replace_description)
        total = int(str(description["partitions"]))
        offset = await self._append_claim(
            stream,
            instance=instance,
            starting_point=starting_point,
            ids=self._ids(stream, transactional_id),
            partitions=part.partitions(total) if part.of > 1 else None,
        )
        if self._read.lives != lives or offset < read_before:
            raise TopicLost(
                self.topic, f"a claim got offset {offset}, and {read_before} were read before it"
            )
        await self.read_up_to(offset)
        held = self._state.of(whole)
        assert held.epoch_base is not None, "a stream is described before it is claimed"
        claimed = self._writer(stream).instances.get(instance)
        if claimed is None:  # compaction takes a claim only for a later one
            raise Fenced(f"stream {stream}: a newer relay claimed it at the same time")
        epoch = held.epoch_base + claimed
        wanted: Value = json.loads(json.dumps({**description, "epochBase": held.epoch_base}))
        self._own_claims[whole] = OwnClaim(stream, wanted)
        if held.overwritten or held.description != wanted:
            await self.write("stream", whole, wanted)
        if part.of > 1 and held.claimed_by_parts(total):
            await self._close_whole(whole)
        _log.info("stream claimed", extra={"stream": stream, "epoch": epoch, "holder": self.holder})
        return epoch

    async def _describe(
        self,
        stream: str,
        description: dict[str, object],
        highest_epoch: Callable[[], Awaitable[int]],
        *,
        replace: bool,
    ) -> None:
        """Describe the whole stream, if it has no description, or that is to be replaced."""
        if self._state.of(stream).description is None:
            await self._caught_up.wait()
        is_due = self._state.of(stream).description is None or replace
        highest = await highest_epoch() if is_due else 0
        held = self._state.of(stream)  # by now the writer of another part may have described it
        if (why := self.blocked(stream)) and not replace:
            raise TopicRefused(why)
        if held.description is None or replace:
            base = max(highest + 1, held.epoch_base or 0)
            await self.write("stream", stream, {**description, "epochBase": base})

    async def _close_whole(self, stream: str) -> None:
        """Claim no partition under the key of the whole stream, since parts have claimed all:
        readers that know no parts would believe the index of a former writer."""
        await self._append_claim(
            stream,
            instance=self._new_instance(),
            starting_point=None,
            ids=self._ids(stream),
            partitions=(),
        )

    def _new_instance(self) -> str:
        return str(uuid.UUID(int=self._rng.getrandbits(128), version=4))

    async def _append_claim(self, stream: str, **named: Any) -> int:
        """Args: `named`: what `claim_value` is given of this claim."""
        now_ms = self._wall_ms()
        value = claim_value(holder=self.holder, version=__version__, time_ms=now_ms, **named)
        return await self._append("claim", stream, value)

    def altered(self, streams: Iterable[str]) -> list[str]:
        """Those of these streams that this process claimed last and whose description another
        writer has changed since. A relay describes a stream only as it claims it, so that
        description is not to be believed."""
        return [
            stream
            for stream in streams
            if (known := self._own_claims.get(stream)) is not None
            and self._is_newest(stream, known.claimed)
            and (self._state.of(stream).overwritten or self.described(stream) != known.description)
        ]

    def _is_newest(self, stream: str, claimed: str) -> bool:
        """Whether the claim of `claimed`, the stream or a part of it, is the newest of them all."""
        held, own = self._state.of(stream), self._claims.get(claimed, "")
        offset = held.writer(claimed).instances.get(own)
        return offset is not None and offset == held.last_claimed

    async def describe_again(self, stream: str) -> None:
        """Write the description of an `altered` stream as this process claimed it.

        Raises: TopicRefused where it does not fit the topic."""
        await self.write("stream", stream, self._own_claims[stream].description)
        extra = {"stream": stream, "topic": self.topic}
        _log.warning("another writer changed the stream's description, written again", extra=extra)

    def _ids(self, stream: str, *more: str) -> tuple[str, ...]:
        """The transactional ids that a claim of `stream` names: the newest of former claims under
        its key, which are compacted, and `more`."""
        whole, _ = stream_and_part(stream)
        former, now = self._former.of(whole), self._state.of(whole)
        return newest_ids(former.writer(stream).ids, now.writer(stream).ids, more)

    def former_ids(self, stream: str, transactional_id: str) -> Sequence[str]:
        """The transactional ids other than `transactional_id` under which partitions of `stream`
        may have been written."""
        whole, part = stream_and_part(stream)
        known: dict[str, None] = {}
        for held in (self._former.of(whole), self._state.of(whole)):
            total = int(str((held.description or {}).get("partitions", 0)))
            for name, writer in ((whole, held), *held.parts.items()):
                if stream_and_part(name)[1].overlaps(part, total):
                    known |= dict.fromkeys(writer.ids)
        return [each for each in known if each != transactional_id]

    def _writer(self, stream: str) -> WriterControl:
        """What is under the keys of `stream` itself."""
        return self._state.of(stream_and_part(stream)[0]).writer(stream)

    def _claimants(self, stream: str) -> list[WriterControl]:
        """The owners of the newest claims of its partitions, oldest first."""
        return self._state.of(stream_and_part(stream)[0]).claimants(stream)

    def blocked(self, stream: str) -> str:
        """Why `stream` cannot be claimed, with the cure; "" when it can."""
        stream, _ = stream_and_part(stream)
        too_high = self._state.of(stream).too_high
        if too_high is None:
            return ""
        return (
            f"stream {stream}: epochBase {too_high} exceeds the maximum {EPOCH_BASE_MAX}, in the "
            f"newest record stream/{stream} of topic {self.topic}, and no relay writes that: find "
            "out who else may write to the topic, then delete the record (a record with that key "
            "and a null value), or take the stream out of the config and retire it "
            f"(`watchrelay retire {stream}`)"
        )

    async def read_starting_point(self, stream: str, partitions: int) -> dict[str, object] | None:
        """The starting point of a writer that claims `stream` now, as the `from` of its claim;
        None: the start of each partition. Waits until the topic was read once.

        Args:
            partitions: of the whole stream."""
        await self._caught_up.wait()
        return self.starting_point(stream, partitions)

    def starting_point(self, stream: str, partitions: int) -> dict[str, object] | None:
        """As `read_starting_point`, by what was read so far."""
        whole, part = stream_and_part(stream)
        own = part.partitions(partitions) if part.of > 1 else None
        return self._state.of(whole).starting_point(partitions, own, former=self._former.of(whole))

    def superseded(self, stream: str, epoch: int, *, by_others: bool = False) -> bool:
        """A newer claim than that of `epoch` was read, of `stream` or a partition of it. With
        `by_others`, the newest of this process does not count."""
        # asked twice for each flush: a whole stream is found without taking its name apart
        held = self._state.streams.get(stream) or self._state.of(stream_and_part(stream)[0])
        if (base := held.epoch_base) is None:
            return False
        own = self._claims.get(stream, "")
        for each in held.claimants(stream):
            newer = base + each.claimed > epoch
            if newer and not (by_others and each.instances.get(own) == each.claimed):
                return True
        return False

    def newest_claims(self, stream: str) -> dict[str, int]:
        """By the stream or part that was claimed, the epochs of the newest claims of the partitions
        of `stream` that were read."""
        whole, _ = stream_and_part(stream)
        held = self._state.of(whole)
        claimants = {each.claimed for each in self._claimants(stream)}
        return {
            name: epoch
            for name, each in ((whole, held), *held.parts.items())
            if each.claimed in claimants and (epoch := held.epoch_of(each)) is not None
        }

    async def released(self, claims: Mapping[str, int], *, within_s: float) -> bool:
        """True once each of these claims (of `newest_claims`), or a later one under its key, is
        released; False if that was not read within `within_s`."""
        try:
            async with asyncio.timeout(within_s):
                await self.until(
                    lambda: all(
                        self._writer(stream).released >= epoch for stream, epoch in claims.items()
                    )
                )
        except TimeoutError:
            return False
        return True

    async def write(
        self,
        kind: Literal["release", "snapshot", "stream"],
        stream: str,
        value: dict[str, object] | None,
    ) -> None:
        """Write a control record, None to forget it; returns when it is acknowledged. It is read
        back a moment later.

        An index record that does not fit the topic is written without its requests, or left out:
        the one before it stays right, and readers begin further back. Raises: TopicRefused for
        another record that does not fit.
        """
        if kind == "snapshot" and value is not None:
            await self._write_index(stream, value)
        else:
            await self._append(kind, stream, value)

    async def _write_index(self, stream: str, value: Value) -> int:
        """The offset; -1: it was left out."""
        problem = index_problem(stream)
        shorter = [{**value, "requests": []}] if value.get("requests") else []
        for shape in (value, *shorter):
            try:
                offset = await self._append("snapshot", stream, shape)
            except TopicRefused as error:
                refused = str(error)
            else:
                self._problems.pop(problem, None)
                return offset
        trouble = Trouble(self.topic, Cause.TOPIC_SETTING, refused)
        if self._problems.put(problem, trouble):
            extra = {"stream": stream, "topic": self.topic, "error": refused}
            _log.warning("index record left out, readers begin further back", extra=extra)
        return -1

    def index(self, stream: str) -> dict[str, object] | None:
        """The index record from which `stream` can be read: its newest; of a part, the oldest among
        the newest ones of its partitions (another layout may have written them). None if a
        partition has none."""
        held, part = self._indexed(stream)
        return held.newest_index(part)

    def newest_indexes(self, stream: str) -> list[dict[str, object]]:
        """The newest index record of each partition of a stream, or of a part; empty where one has
        none."""
        held, part = self._indexed(stream)
        return held.newest_indexes(part)

    def _indexed(self, stream: str) -> tuple[StreamControl, Part]:
        """What holds the index records, and of which part: until a lost topic is restored, the
        former one where the new one has none."""
        whole, part = stream_and_part(stream)
        held = self._state.of(whole)
        if held.description is None or not held.parts:
            held = held if held.index else self._unrestored(whole)
        return held, part

    def index_by(self, writer: str) -> dict[str, object]:
        """The newest index record that a stream, or a part, wrote itself; {} for none."""
        return self._writer(writer).index or {}

    def indexes_by_owners(self, stream: str) -> list[dict[str, object]]:
        """`index_by` each stream or part that owns partitions of `stream` now."""
        return [each.index or {} for each in self._claimants(stream)]

    def described(self, stream: str) -> dict[str, object] | None:
        """The newest `stream/<stream>` record."""
        stream, _ = stream_and_part(stream)
        return self._state.of(stream).description or self._unrestored(stream).description

    def _unrestored(self, stream: str) -> StreamControl:
        return StreamControl() if self._restored.is_set() else self._former.of(stream)

    def described_streams(self) -> Mapping[str, dict[str, object]]:
        """The description of each stream that has one, by stream id, in order; the same object
        while none has changed."""
        return self._state.descriptions()

    async def caught_up(self) -> None:
        """Return once the topic was read to the end that it had at the start: from then on
        `described` is complete."""
        await self._caught_up.wait()

    @property
    def is_caught_up(self) -> bool:
        """Whether `caught_up` returns at once."""
        return self._caught_up.is_set()

    async def until(self, true: Callable[[], bool]) -> None:
        """Return once `true()`, asked again whenever something was read."""
        while not true():
            await self._moved.wait()

    async def forget(self, stream: str) -> None:
        """Null every record of `stream`, its description last, so that an interrupted call can be
        repeated."""
        held = self._state.of(stream)
        for name, writer in (*held.parts.items(), (stream, held)):
            if writer.released >= 0:
                await self._append("release", name, None)
            await self._append("snapshot", name, None)
            await self._append("claim", name, None)
        await self._append("stream", stream, None)

    def holder_of(self, stream: str) -> str | None:
        """Who claimed `stream`, or a partition of it, last."""
        claimants = self._claimants(stream)
        return claimants[-1].holder if claimants else None

    async def read_up_to(self, offset: int) -> None:
        """Return once the record at `offset` was read. Raises: TopicLost when the topic is another
        before that."""
        lives = self._read.lives
        if self._read.to <= offset:
            reached = asyncio.Event()
            insort(self._awaited, (offset, reached), key=itemgetter(0))
            await reached.wait()
        if self._read.lives != lives:
            raise TopicLost(self.topic, f"it was recreated before offset {offset} was read")

    async def restore(self) -> bool:
        """After a loss, once the new topic was read: write again what the lost one held, unless a
        relay has written it since. True: claim all streams again.

        Each stream's epochs continue above its last, also on a topic that lost its newest records
        alone and still has a description. The last snapshot keeps its epoch, so readers start at
        the new claim's `from`. A stream with no epochs left above its last is not described: its
        next claim is refused, with the reason and the cure.
        """
        if self._restored.is_set():
            return False
        await self._caught_up.wait()
        last = -1
        for stream, former in sorted(self._former.streams.items()):
            now = self._state.of(stream)
            if (
                former.description is None
                or former.epoch_base is None
                or former.next_base > EPOCH_BASE_MAX
            ):
                continue
            if now.description is None or now.next_base < former.next_base:
                described = {**(now.description or former.description)}
                described["epochBase"] = former.next_base
                try:
                    last = await self._append("stream", stream, described)
                except TopicRefused as error:  # as its claim will be
                    _log.warning(
                        "stream not restored", extra={"stream": stream, "error": str(error)}
                    )
                    continue
                for name, writer in ((stream, former), *former.parts.items()):
                    if writer.index is not None and self._writer(name).index is None:
                        last = max(last, await self._write_index(name, writer.index))
        await self.read_up_to(last)
        _log.warning(
            "control topic restored",
            extra={"topic": self.topic, "streams": len(self._former.streams)},
        )
        self._restored.set()
        return True

    async def _append(self, kind: ControlKind, stream: str, value: Value | None) -> int:
        record = WireRecord(
            control_key(kind, stream), None if value is None else control_value(value), []
        )
        batch = Batch(self.topic, 0, [record], stream)
        while True:
            try:
                async with self._writing:
                    return (await self._sink.deliver(batch)).offsets[0]
            except RecordTooLarge as error:
                if not await self._reread_limit():
                    raise TopicRefused(self._too_large(record, error.setting)) from error

    def _too_large(self, record: WireRecord, setting: str) -> str:
        """What does not fit, and the cure."""
        size = len(record.value or b"")
        cure = {setting: str(max(SIZE_LIMITS[setting], 2 * size))}
        command = alter_command(self.topic, cure, servers=self._servers)
        return (
            f"topic {self.topic}: record {short(record.key.decode())} of {size:,} bytes is over "
            f"its {setting}; mend it with: {command}"
        )

    async def run(self) -> None:
        """Read the topic from its start and follow it, through any outage.

        Raises: TopicLost when it was deleted or recreated.
        """
        await self._follower.run()

    # ---- callbacks of the follower ---------------------------------------------------------------

    def began(self, end: int, _partition: int = 0, /) -> None:
        """Records before `end` are the past."""
        self._read.end = end

    def take(self, record: Any) -> None:
        """The next record."""
        self.taken += 1
        had_forgotten = self._state.forgotten > 0
        try:
            refuse_unreadable(dict(record.headers))
            if odd := self._state.read(record.offset, record.key, record.value):
                self._warn("control record has fields that cannot be used", record, odd)
        except RecordRefused as error:
            self._warn("control record ignored", record, str(error))
        if self._state.forgotten and not had_forgotten:
            extra = {"topic": self.topic, "offset": record.offset, "hint": _HINT}
            _log.warning(
                "control topic holds too much, its oldest claims are forgotten", extra=extra
            )

    def _warn(self, message: str, record: Any, error: str) -> None:
        """Name a record that is foreign, or in part."""
        key = (record.key or b"")[:_KEY_BYTES]
        if key not in self._refused and len(self._refused) < _REFUSED_MAX:
            self._refused.add(key)
            named = short(key.decode(errors="replace"))
            extra = {
                "topic": self.topic,
                "partition": 0,
                "offset": record.offset,
                "key": named,
                "error": error,
                "hint": _HINT,
            }
            _log.warning(message, extra=extra)

    def moved(self, position: int) -> None:
        """Wake all that wait for a position."""
        self._read.to = position
        while self._awaited and self._awaited[0][0] < position:
            self._awaited.pop(0)[1].set()
        if position >= self._read.end:
            self._caught_up.set()
        self._wake()

    def _wake(self) -> None:
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    def started_over(self) -> None:
        """The topic is another, and with its offsets all claims start over."""
        self._former = remembered(self._former, self._state)
        self._state = ControlState(self._state.wanted)
        self._read = ReadSoFar(self._read.lives + 1, 0, self._read.end)
        for _, reached in self._awaited:
            reached.set()
        self._awaited.clear()
        self._caught_up.clear()
        self._restored.clear()
        self._wake()
