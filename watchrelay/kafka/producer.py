"""The producer: batches of all partitions to the leaders of a cluster, until each is acknowledged.

One per process. What is to be done with an answer is decided in `produce_state`, and how the
cluster is reached in `cluster_access`; here are the timers, the look for leaders, and their links.
"""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from watchrelay.core import clock
from watchrelay.core.backoff import Backoff
from watchrelay.kafka.client import (
    KafkaConnectionError,
    KafkaError,
    LeaderNotAvailableError,
    TopicPartition,
    UnknownTopicOrPartitionError,
    for_code,
)
from watchrelay.kafka.client.brokers import Brokers
from watchrelay.kafka.client.client_log import quiet_client_log
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.client.link import Link
from watchrelay.kafka.client.record_batch import PackedBatch
from watchrelay.kafka.cluster_access import AccessListener, ClusterAccess
from watchrelay.kafka.produce_state import (
    STEPS,
    Done,
    Effect,
    Identity,
    Locate,
    PartitionState,
    Pause,
    PendingBatch,
    Renew,
    Settled,
    Step,
)

_log = logging.getLogger(__name__)

CUT: Final = 1 << 16
"""The code of a batch that the producer was cut with: whether it is in the log is unknown."""

_ASK_RETRY = Backoff(base_s=0.05, cap_s=2.0, jitter=0.5)
_FIND_MIN_S, _FIND_MAX_S = 0.02, 1.0
_LEAVE_EVERY_S = 5.0
_DOUBT_S = 5.0
"""Seconds that a partition waits for its leader until another broker is asked, then the next."""
_SILENCE_EVERY_S = 1.0
_SILENCE_GRACE_S = 1.0
_JITTER = 0.2
_SESSION_USED = 0.8
"""The part of a SASL session in which its link gets batches: the broker answers none after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """Timeouts and sizes of the produce path.

    `request_timeout_s`: how long brokers may wait for replicas; after a second more in which they
    answer and take nothing the connection is aborted. `stalled_after_s`: when a batch without
    acknowledgement, or a refusal that passes in most cases, is shown to operators.
    `transaction_timeout_s`: brokers abort a transaction that has no end by then.
    """

    batch_bytes: int = 512 * 1024
    request_bytes: int = 1024 * 1024
    request_timeout_s: float = 15.0
    stalled_after_s: float = 10.0
    transaction_timeout_s: float = 15.0
    secrets_every_s: float = 5.0


class ProducerListener(AccessListener, Protocol):
    """What the producer reports, from within its loop."""

    def failed(self, place: TopicPartition, error: Exception, *, retriable: bool) -> None:
        """A batch of the partition was refused, or there is no leader to send it to.
        `retriable`: most likely it passes by itself."""
        ...

    def gather(self) -> None:
        """A flush begins: append what else is to leave with it."""
        ...


class OutgoingPartition:
    """A partition and its way to the leader; what a Link calls `Outgoing`.

    `found_in`: the number of its topic's metadata that may name its leader; older ones do not.
    """

    __slots__ = (
        "found_in",
        "index",
        "is_enqueued",
        "leaderless_s",
        "link",
        "log_start",
        "place",
        "state",
        "timer",
        "topic",
    )

    def __init__(self, place: TopicPartition, state: PartitionState) -> None:
        self.place = place
        self.topic, self.index = place.topic.encode(), place.partition
        self.state = state
        self.link: Link | None = None
        self.log_start = 0
        self.timer: asyncio.TimerHandle | None = None
        self.is_enqueued = False
        """Until its batch is taken, also while it waits for its leader or link."""
        self.found_in = 0
        self.leaderless_s = 0.0

    def take(self) -> bytes | None:
        self.is_enqueued = False
        return self.state.take() if self.state.sendable else None


class Producer:
    """Use: `run()` as a task; `append` from any other, also before. Pending batches of a partition
    are appended in the order of `append`.

    Args:
        transactional_id: Of the requests; "" for none.
        reach: Makes what knows the cluster; in tests another one.
        timed: Called with the topic of a batch, the time at which a broker has appended it, by its
            clock, in milliseconds, and the seconds since the request was sent.
    """

    def __init__(
        self,
        connection: KafkaConnection,
        settings: ProducerSettings,
        listener: ProducerListener,
        *,
        transactional_id: str = "",
        reach: Callable[[KafkaConnection], Brokers] = Brokers,
        timed: Callable[[str, int, float], None] = lambda *_: None,
        rng: random.Random | None = None,
    ) -> None:
        self._settings, self._listener, self._timed = settings, listener, timed
        self.transactional_id = transactional_id
        self._client_id = connection.client_id
        self._rng = rng or random.Random()
        self._access = ClusterAccess(
            connection,
            listener,
            make=reach,
            prove=self._prove,
            taken=self._use_brokers,
            rng=self._rng,
            subject=transactional_id and f"/{transactional_id}",
        )
        self._identity: Identity | None = None
        """That of partitions which begin now; None: another is needed first. It has written no
        topic that was forgotten: from sequence 0 on, the broker would take the first batches for
        repetitions and drop them without a word."""
        self._partitions: dict[TopicPartition, OutgoingPartition] = {}
        self._ready: list[OutgoingPartition] = []
        self._leaderless: dict[OutgoingPartition, None] = {}
        self._wanted = asyncio.Event()
        """A partition has begun to wait for its leader."""
        self._metadata = Counter[str]()
        """How often metadata was taken, by topic."""
        self._links: dict[int, Link] = {}
        self._retired: set[Link] = set()
        """Links of former secrets, or whose session ends: they are answered, and get no further
        batch."""
        self._opening: set[int] = set()
        self._rotations = 0
        """How often other secrets came into use."""
        self._left_s = -_LEAVE_EVERY_S
        """When the brokers were left for the secrets that one of them refused (loop time)."""
        self._doubted_s = -_DOUBT_S
        """When another broker was asked, because the one before may have outdated metadata."""
        self._tasks: asyncio.TaskGroup | None = None
        self._is_flushing = self._is_cut = False
        self.held: Callable[[], bool] = lambda: False
        """Asked before each produce request is written; while it is true none leaves."""

    async def run(self) -> None:
        """Serve until cancelled; then `cut`."""
        access = self._access
        quiet_client_log()
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                tasks.create_task(self._watch_silence(), name="producer-silence")
                if access.secrets:
                    tasks.create_task(
                        access.rotate(self._settings.secrets_every_s), name="producer-secrets"
                    )
                try:
                    await access.reach()
                    while True:
                        await self._wanted.wait()
                        await self._find_leaders()
                finally:
                    self.cut()
        finally:
            access.close()
            # transports close their sockets in the next turn of the loop
            await asyncio.sleep(0)

    def append(self, place: TopicPartition, packed: PackedBatch, done: Done) -> PendingBatch:
        """Append a batch; what is appended in one step of the loop leaves in one request per
        broker. `done` is called once, in the order of the log."""
        batch = PendingBatch(packed, done)
        if self._is_cut:
            done(-1, CUT)
            return batch
        partition = self._partitions.get(place)
        if partition is None:
            partition = self._partitions[place] = OutgoingPartition(place, self._new_state())
        partition.state.queue.append(batch)
        self._enqueue(partition)
        return batch

    def withdraw(self, place: TopicPartition, batch: PendingBatch) -> None:
        """The caller no longer waits for the batch: it is not sent, unless it was already."""
        if (partition := self._partitions.get(place)) is not None:
            partition.state.withdraw(batch)

    def take_back(self, place: TopicPartition, batch: PendingBatch) -> bool:
        """Whether the batch was not sent; then it never will be."""
        partition = self._partitions.get(place)
        return partition is not None and partition.state.take_back(batch)

    def forget(self, topic: str) -> None:
        """The topic is lost, or not written: `done` of what is pending is never called. What
        is on its way is cut, so that it does not come late into a topic of that name."""
        forgotten = [place for place in self._partitions if place.topic == topic]
        for place in forgotten:
            partition = self._partitions.pop(place)
            partition.state = PartitionState()
            if partition.timer is not None:
                partition.timer.cancel()
        if forgotten:
            self._identity = None
        if self._access.brokers is not None:
            self._access.brokers.forget(topic)
        name = topic.encode()
        for link in (*self._links.values(), *self._retired):
            if link.carries(name):
                link.abort()

    async def topic_ids(
        self, topics: Collection[str], *, of_another: bool
    ) -> dict[str, bytes | None] | None:
        """As `metadata.topic_ids`; None while no broker is known. Args: `of_another`: than the
        broker asked last. Raises: KafkaError, OSError."""
        brokers = self._access.brokers
        if brokers is None:
            return None
        if of_another:
            brokers.ask_another()
        return await brokers.topic_ids(topics)

    async def end_offset(self, place: TopicPartition, *, committed: bool = False) -> int:
        """See `Brokers`, as its leader knows it now. Raises: KafkaError, OSError."""
        brokers = await self._access.reach()
        await self._refresh(brokers, {place.topic})
        return await brokers.end_offset(*place, committed=committed)

    def log_start(self, place: TopicPartition) -> int:
        """The first offset of its log, as the newest acknowledgement gave it; 0 before the
        first."""
        partition = self._partitions.get(place)
        return 0 if partition is None else partition.log_start

    def resume(self) -> None:
        """Send what was held."""
        for link in (*self._links.values(), *self._retired):
            link.resume()

    def reset(self) -> None:
        """Abort the connections: of what was sent and not answered nothing reaches a broker later
        on. Every pending batch is sent again by other connections."""
        for link in (*self._links.values(), *self._retired):
            link.abort()

    def cut(self) -> None:
        """From here on no byte leaves; every pending batch is answered with `CUT`."""
        if self._is_cut:
            return
        self._is_cut = True
        for link in (*self._links.values(), *self._retired):
            link.abort()
        for partition in list(self._partitions.values()):
            if partition.timer is not None:
                partition.timer.cancel()
            pending = [*partition.state.queue]
            if partition.state.in_flight is not None:
                pending.insert(0, partition.state.in_flight)
            for batch in pending:
                batch.done(-1, CUT)

    def _new_state(self) -> PartitionState:
        """That of a partition which begins; the simulation hands in others."""
        return PartitionState()

    # ---- out -------------------------------------------------------------------------------------

    def _enqueue(self, partition: OutgoingPartition) -> None:
        """Send what the partition has with the next flush."""
        if partition.is_enqueued or not partition.state.sendable or self._is_cut:
            return
        partition.is_enqueued = True
        self._ready.append(partition)
        self.flush_soon()

    def flush_soon(self) -> None:
        """Send what is appended in the next turn of the loop."""
        if not self._is_flushing:
            self._is_flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._listener.gather()
        self._is_flushing = False
        ready, self._ready = self._ready, []
        by_link: dict[Link, list[OutgoingPartition]] = {}
        for partition in ready:
            if not partition.state.sendable:
                partition.is_enqueued = False
                continue
            link = self._link_of(partition)
            if link is None:
                self._await_leader(partition)
            else:
                by_link.setdefault(link, []).append(partition)
        if not self._is_cut:
            for link, partitions in by_link.items():
                link.send(partitions)

    def _await_leader(self, partition: OutgoingPartition) -> None:
        if partition not in self._leaderless:
            partition.leaderless_s = asyncio.get_running_loop().time()
            self._leaderless[partition] = None
            self._wanted.set()

    # ---- in --------------------------------------------------------------------------------------

    def _answered(self, partition: OutgoingPartition, code: int, offset: int) -> None:
        if self._is_cut or not self._has(partition):
            return
        if code:
            retriable = STEPS.get(code) not in (None, Step.DENIED)
            self._listener.failed(partition.place, error_of(code), retriable=retriable)
        self._perform(partition, partition.state.answered(code, offset))

    def _note_time(self, partition: OutgoingPartition, at_ms: int, sent_s: float) -> None:
        """A broker gave the time of a batch. Of one that was sent before, the answer may be that of
        a repetition, with the time of the first attempt, or of our own clock."""
        batch = partition.state.in_flight
        if batch is not None and batch.tries == 1:
            took_s = asyncio.get_running_loop().time() - sent_s
            self._timed(partition.place.topic, at_ms, took_s)

    def _link_lost(
        self, link: Link, unanswered: list[OutgoingPartition], waiting: list[OutgoingPartition]
    ) -> None:
        self._retired.discard(link)
        for node in [node for node, known in self._links.items() if known is link]:
            del self._links[node]
        if self._is_cut:
            return
        for partition in unanswered:
            if self._has(partition):
                self._perform(partition, partition.state.unanswered())
        for partition in waiting:
            partition.is_enqueued = False
            partition.link = None
            self._enqueue(partition)

    def _perform(self, partition: OutgoingPartition, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Settled(batch, offset, code):
                    batch.done(offset, code)
                case Pause(seconds, find_leader):
                    if find_leader:
                        partition.link = None
                        partition.found_in = self._metadata[partition.place.topic] + 1
                    partition.timer = asyncio.get_running_loop().call_later(
                        seconds * self._rng.uniform(1 - _JITTER, 1 + _JITTER),
                        self._resume,
                        partition,
                    )
                case Locate(batch, offset):
                    identity = partition.state.identity
                    assert identity is not None, "the batch was sent under one"
                    self._spawn(self._locate(partition, batch, offset, identity), "producer-locate")
                case Renew(doubtful):
                    self._listener.rebuilt("identity")
                    if doubtful:
                        topic, index = partition.place
                        _log.warning(
                            "records may be in the topic twice",
                            extra={"topic": topic, "partition": index},
                        )
                    self._spawn(self._renew(partition), "producer-identity")
        self._enqueue(partition)

    def _resume(self, partition: OutgoingPartition) -> None:
        partition.timer = None
        partition.state.resume()
        self._enqueue(partition)

    def _spawn(self, work: Any, name: str) -> None:
        assert self._tasks is not None, "answers come while the producer runs"
        self._tasks.create_task(work, name=name)

    async def _locate(
        self, partition: OutgoingPartition, batch: PendingBatch, start: int, identity: Identity
    ) -> None:
        topic, index = partition.place
        backoff = _ASK_RETRY
        while self._has(partition):
            brokers = await self._access.reach()
            try:
                await self._refresh(brokers, {topic})
                found = await brokers.locate(topic, index, start, identity, batch.sequence)
            except (KafkaError, OSError):
                backoff, wait_s = backoff.after_failure(clock.now_s(), healthy=False, rng=self._rng)
                await asyncio.sleep(wait_s)
            else:
                if self._has(partition):
                    self._perform(partition, partition.state.located(found))
                return

    async def _renew(self, partition: OutgoingPartition) -> None:
        backoff = _ASK_RETRY
        while self._has(partition):
            brokers = await self._access.reach()
            try:
                identity = Identity(*await brokers.producer_id())
            except (KafkaError, OSError) as error:
                self._access.complain(None, error)
                backoff, wait_s = backoff.after_failure(clock.now_s(), healthy=False, rng=self._rng)
                await asyncio.sleep(wait_s)
            else:
                if self._has(partition):
                    self._perform(partition, partition.state.renewed(identity))
                break
        self._access.well(None)

    def _has(self, partition: OutgoingPartition) -> bool:
        """Whether the partition was not forgotten."""
        return self._partitions.get(partition.place) is partition

    # ---- leaders and links -----------------------------------------------------------------------

    async def _prove(self, brokers: Brokers) -> None:
        """Raises: KafkaError, OSError."""
        await brokers.refresh({place.topic for place in self._partitions})
        await self._identify(brokers)

    def _use_brokers(self, by_other_secrets: bool) -> None:
        """Batches leave by new links, and those of former secrets end when they are answered."""
        self._metadata.update({place.topic for place in self._partitions})
        if by_other_secrets:
            self._rotations += 1
            self._retired |= set(self._links.values())
            self._links.clear()
            for partition in self._partitions.values():
                partition.link = None
            self._end_idle_links()

    async def _identify(self, brokers: Brokers) -> None:
        if self._identity is None:
            self._identity = Identity(*await brokers.producer_id())

    async def _refresh(self, brokers: Brokers, topics: Collection[str]) -> None:
        """Raises: KafkaError, OSError."""
        await brokers.refresh(topics)
        self._metadata.update(topics)

    def _leader_of(self, partition: OutgoingPartition) -> int:
        """The node id of the leader; -1 while it is not known."""
        brokers = self._access.brokers
        if brokers is None or partition.found_in > self._metadata[partition.place.topic]:
            return -1
        node = brokers.leader(*partition.place)
        return -1 if node is None else node

    def _link_of(self, partition: OutgoingPartition) -> Link | None:
        """The link to the leader, which is kept; None until both, and an identity, are known."""
        state = partition.state
        state.identity = state.identity or self._identity
        if partition.link is None or partition.link.is_lost:
            partition.link = self._links.get(self._leader_of(partition))
        return partition.link if state.identity is not None else None

    def _link_up(self) -> None:
        """Enqueue the partitions whose link is there; open the links that are missing."""
        for partition in list(self._leaderless):
            if not partition.state.sendable or self._link_of(partition) is not None:
                del self._leaderless[partition]
                partition.is_enqueued = False
                self._enqueue(partition)
                continue
            node = self._leader_of(partition)
            is_up = node in self._links or node in self._opening
            if (brokers := self._access.brokers) is not None and node >= 0 and not is_up:
                self._opening.add(node)
                self._spawn(self._open(brokers, node, self._rotations), f"producer-link {node}")

    async def _find_leaders(self) -> None:
        """Return when every partition that waits for its leader has a link to it."""
        access, wait_s = self._access, _FIND_MIN_S
        while True:
            brokers = await access.reach()
            self._wanted.clear()
            self._link_up()
            if not self._leaderless:
                break
            self._doubt(brokers)
            try:
                await self._identify(brokers)
                await self._refresh(brokers, {each.place.topic for each in self._leaderless})
            except (KafkaError, OSError) as error:
                access.leave(brokers, error)
                await asyncio.sleep(wait_s)
                wait_s = min(_FIND_MAX_S, wait_s * 2)
                continue
            access.well(None)
            self._link_up()
            if not self._leaderless:
                break
            self._report_leaderless(brokers)
            try:
                async with asyncio.timeout(wait_s):
                    await self._wanted.wait()
                wait_s = _FIND_MIN_S
                await asyncio.sleep(_FIND_MIN_S)
            except TimeoutError:
                wait_s = min(_FIND_MAX_S, wait_s * 2)
        access.all_well()

    def _doubt(self, brokers: Brokers) -> None:
        """Let another broker be asked if a partition waits long, or the leader that was found is
        none again and again: the one asked may have outdated metadata."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._doubted_s >= _DOUBT_S and any(
            each.state.leader_doubtful or now_s - each.leaderless_s >= _DOUBT_S
            for each in self._leaderless
        ):
            self._doubted_s = now_s
            brokers.ask_another()

    def _report_leaderless(self, brokers: Brokers) -> None:
        now_s = asyncio.get_running_loop().time()
        for partition in self._leaderless:
            code = brokers.errors.get(partition.place.topic, 0)
            leader = brokers.leader(*partition.place)
            if now_s - partition.leaderless_s < self._settings.request_timeout_s or (
                leader is not None and leader >= 0
            ):
                continue
            partition.leaderless_s = now_s
            if code:
                error = error_of(code)
            elif leader is None:
                error = UnknownTopicOrPartitionError()
            else:
                error = LeaderNotAvailableError()
            self._listener.failed(
                partition.place, error, retriable=STEPS.get(code) is not Step.DENIED
            )

    async def _open(self, brokers: Brokers, node: int, rotations: int) -> None:
        link = Link(
            client_id=self._client_id,
            transactional_id=self.transactional_id,
            timeout_s=self._settings.request_timeout_s,
            request_bytes=self._settings.request_bytes,
            answered=self._answered,
            lost=self._link_lost,
            held=lambda: self.held(),
            timed=self._note_time,
        )
        try:
            await brokers.open(node, link)
        except (KafkaError, OSError) as error:
            self._opening.discard(node)
            if self._leaderless:  # else the leader moved meanwhile, and nothing would take it back
                self._access.complain(node, error)
            now_s = asyncio.get_running_loop().time()
            if now_s - self._left_s >= _LEAVE_EVERY_S and (
                isinstance(error, ssl.SSLError)
                or not isinstance(error, OSError | KafkaConnectionError)
            ):
                self._left_s = now_s
                self._access.leave(brokers, error)  # perhaps its secrets are not those of today
                self._wanted.set()
        else:
            self._opening.discard(node)
            if rotations != self._rotations or self._is_cut:
                link.abort()
                return
            self._links[node] = link
            if link.session_s:
                asyncio.get_running_loop().call_later(
                    link.session_s * _SESSION_USED, self._retire, node, link
                )
            self._access.well(node)
            self._link_up()

    def _retire(self, node: int, link: Link) -> None:
        """The link's session ends soon: the next batch leaves by another one."""
        if self._links.get(node) is link and not self._is_cut:
            del self._links[node]
            self._retired.add(link)
            for partition in self._partitions.values():
                if partition.link is link:
                    partition.link = None
            self._end_idle_links()

    def _end_idle_links(self) -> None:
        for link in [link for link in self._retired if link.is_idle]:
            link.abort()

    async def _watch_silence(self) -> None:
        """Abort links whose broker answers and takes nothing."""
        loop = asyncio.get_running_loop()
        limit_s = self._settings.request_timeout_s + _SILENCE_GRACE_S
        while True:
            await asyncio.sleep(min(_SILENCE_EVERY_S, self._settings.request_timeout_s / 4))
            for link in (*self._links.values(), *self._retired):
                if link.silent_s(loop.time()) > limit_s:
                    self._listener.rebuilt("watchdog")
                    link.abort()
            self._end_idle_links()


def error_of(code: int) -> Exception:
    """The error of a code, one that aiokafka does not know by its number."""
    kind = for_code(code)
    error: Exception = kind() if kind.errno == code else kind(f"error code {code}")
    return error
