"""The way to the brokers that lead partitions: who leads each, and the links to them.

How the cluster is reached is decided in `cluster_access`.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from typing import Final, Protocol

from watchrelay.kafka.client import KafkaConnectionError, KafkaError
from watchrelay.kafka.client.brokers import Brokers
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.client.error_codes import error_of
from watchrelay.kafka.client.link import Link
from watchrelay.kafka.cluster_access import AccessListener, ClusterAccess
from watchrelay.kafka.partition import STEPS, Identity, Partition, Phase, Place, Step

_FIND_MIN_S, _FIND_MAX_S = 0.02, 1.0
_LEAVE_EVERY_S = 5.0
_DOUBT_S = 5.0
"""Seconds that a partition waits for its leader until another broker is asked, then the next."""
_SILENCE_EVERY_S: Final = 1.0
_SILENCE_GRACE_S = 1.0
_SESSION_USED = 0.8
"""The part of a SASL session in which its link gets batches: the broker answers none after it."""


class LeaderListener(AccessListener, Protocol):
    """What is reported of the way to partitions."""

    def failed(self, place: Place, error: Exception, *, retriable: bool) -> None:
        """A batch of the partition was refused, or there is no leader to send it to.
        `retriable`: most likely it passes by itself."""
        ...


class Leaders:
    """Use: `run()` as a task, and `link_of` from any other.

    Args:
        make_link: Makes one that is not open.
        found: Called with each partition that waited for its leader.
        topics: Those to ask for when other brokers are proven.
        make_brokers: In tests another one.
        transactional_id: The identity is that of this id; "": one is asked for.
    """

    def __init__(
        self,
        connection: KafkaConnection,
        listener: LeaderListener,
        *,
        request_timeout_s: float,
        make_link: Callable[[], Link],
        found: Callable[[Partition], None],
        topics: Callable[[], set[str]],
        make_brokers: Callable[[KafkaConnection], Brokers],
        rng: random.Random,
        transactional_id: str,
    ) -> None:
        self._listener, self._timeout_s = listener, request_timeout_s
        self._make_link, self._found, self._topics = make_link, found, topics
        self.access = ClusterAccess(
            connection,
            listener,
            make_brokers=make_brokers,
            prove=self._prove,
            taken=self._use_brokers,
            rng=rng,
            subject=transactional_id and f"/{transactional_id}",
        )
        self.identity: Identity | None = None
        """That of partitions which begin now; None: another is needed first. It has written no
        topic that was forgotten: from sequence 0 on, the broker would take the first batches for
        repetitions and drop them without a word."""
        self._asks_for_identity = not transactional_id
        self._ways: dict[Partition, Link] = {}
        """By partition the link that it used last."""
        self._leaderless: dict[Partition, float] = {}
        """Since when each waits for its leader (loop time)."""
        self._wanted = asyncio.Event()
        """A partition has begun to wait for its leader."""
        self._refreshes = Counter[str]()
        """By topic, how often metadata was taken."""
        self._trusted_from: dict[Partition, int] = {}
        """By partition whose leader was doubted, the refresh of its topic from which on metadata is
        trusted."""
        self._links: dict[int, Link] = {}
        self._retired: set[Link] = set()
        """Links of former secrets, or whose session ends: they are answered, and get no further
        batch."""
        self._opening: dict[int, Brokers] = {}
        self._left_s = -_LEAVE_EVERY_S
        """When the brokers were left for the secrets that one of them refused (loop time)."""
        self._doubted_s = -_DOUBT_S
        """When another broker was asked, because the one before may have outdated metadata."""
        self._tasks: asyncio.TaskGroup | None = None
        self._held: Callable[[], bool] | None = None

    async def run(self, tasks: asyncio.TaskGroup) -> None:
        """Serve until cancelled; links are opened by `tasks`."""
        self._tasks = tasks
        tasks.create_task(self._watch_silence(), name="producer-silence")
        await self.access.reach()
        while True:
            await self._wanted.wait()
            await self._find()

    def link_of(self, partition: Partition) -> Link | None:
        """Give the partition an identity, if it has none. Returns: the link to its leader, the same
        until that is in doubt; None while leader, link or identity is missing."""
        partition.identity = partition.identity or self.identity
        link = self._ways.get(partition)
        if link is None and (link := self._links.get(self._leader_of(partition))) is not None:
            self._ways[partition] = link
        return link if partition.identity is not None else None

    def wait(self, partition: Partition) -> None:
        """The partition waits for its leader."""
        if partition not in self._leaderless:
            self._leaderless[partition] = asyncio.get_running_loop().time()
            self._wanted.set()

    def doubt(self, partition: Partition) -> None:
        """The leader that is known is not it."""
        self._ways.pop(partition, None)
        self._trusted_from[partition] = self._refreshes[partition.place.topic] + 1

    def forget(self, partition: Partition) -> None:
        """It is not sent."""
        for known in (self._ways, self._trusted_from, self._leaderless):
            known.pop(partition, None)

    def forget_topic(self, topic: str) -> None:
        """What is on its way to the topic is cut, so that it does not come late into a topic of
        that name."""
        if self.access.brokers is not None:
            self.access.brokers.forget(topic)
        name = topic.encode()
        for link in self._all_links():
            if link.carries(name):
                link.abort()

    def leave(self, link: Link) -> None:
        """No further batch leaves by it."""
        self._retired.discard(link)
        self._links = {node: known for node, known in self._links.items() if known is not link}
        self._ways = {each: way for each, way in self._ways.items() if way is not link}

    def hold_while(self, held: Callable[[], bool]) -> None:
        """Ask `held` before each request is written: while it is true none leaves."""
        self._held = held
        for link in self._all_links():
            link.held = held

    def resume(self) -> None:
        """Send what was held."""
        for link in self._all_links():
            link.resume()

    def reset(self) -> None:
        """Abort the connections: of what was sent and not answered nothing reaches a broker later
        on."""
        for link in self._all_links():
            link.abort()

    def cut(self) -> None:
        """From here on no byte leaves."""
        self._opening.clear()
        self._leaderless.clear()
        self.reset()

    def _all_links(self) -> Iterator[Link]:
        yield from [*self._links.values(), *self._retired]

    # ---- brokers ---------------------------------------------------------------------------------

    async def _prove(self, brokers: Brokers) -> None:
        """Raises: KafkaError, OSError."""
        await brokers.refresh(self._topics())
        await self._identify(brokers)

    def _use_brokers(self, by_other_secrets: bool) -> None:
        """Batches leave by new links, and those of former secrets end when they are answered."""
        self._refreshes.update(self._topics())
        if by_other_secrets:
            self._retired |= set(self._links.values())
            self._links.clear()
            self._opening.clear()
            self._ways.clear()
            self._end_idle_links()

    async def _identify(self, brokers: Brokers) -> None:
        if self.identity is None and self._asks_for_identity:
            self.identity = Identity(*await brokers.producer_id())

    async def refresh(self, brokers: Brokers, topics: Collection[str]) -> None:
        """Raises: KafkaError, OSError."""
        await brokers.refresh(topics)
        self._refreshes.update(topics)

    # ---- leaders ---------------------------------------------------------------------------------

    def _leader_of(self, partition: Partition) -> int:
        """The node id of the leader; -1 while it is not known."""
        brokers, topic = self.access.brokers, partition.place.topic
        if brokers is None or self._trusted_from.get(partition, 0) > self._refreshes[topic]:
            return -1
        node = brokers.leader(*partition.place)
        return -1 if node is None else node

    def _link_up(self) -> bool:
        """Let partitions whose link is there go on; open the links that are missing. Returns:
        whether no partition waits."""
        for partition in list(self._leaderless):
            is_pending = partition.deliveries and partition.phase in (Phase.IDLE, Phase.QUEUED)
            if not is_pending or self.link_of(partition) is not None:
                del self._leaderless[partition]
                self._found(partition)
                continue
            node = self._leader_of(partition)
            is_up = node in self._links or node in self._opening
            if (brokers := self.access.brokers) is not None and node >= 0 and not is_up:
                self._opening[node] = brokers
                assert self._tasks is not None, "partitions wait while it runs"
                self._tasks.create_task(self._open(brokers, node), name=f"producer-link {node}")
        return not self._leaderless

    async def _find(self) -> None:
        """Return when every partition that waits for its leader has a link to it."""
        access, wait_s = self.access, _FIND_MIN_S
        while True:
            brokers = await access.reach()
            self._wanted.clear()
            if self._link_up():
                break
            self._ask_another(brokers)
            try:
                await self._identify(brokers)
                await self.refresh(brokers, {each.place.topic for each in self._leaderless})
            except (KafkaError, OSError) as error:
                access.leave(brokers, error)
                await asyncio.sleep(wait_s)
                wait_s = min(_FIND_MAX_S, wait_s * 2)
                continue
            access.well(None)
            if self._link_up():
                break
            self._report(brokers)
            try:
                async with asyncio.timeout(wait_s):
                    await self._wanted.wait()
                wait_s = _FIND_MIN_S
                await asyncio.sleep(_FIND_MIN_S)  # many partitions begin to wait at once
            except TimeoutError:
                wait_s = min(_FIND_MAX_S, wait_s * 2)
        access.all_well()

    def _ask_another(self, brokers: Brokers) -> None:
        """Let another broker be asked if a partition waits long, or the leader that was found is
        none again and again: the one asked may have outdated metadata."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._doubted_s >= _DOUBT_S and any(
            each.leader_doubtful or now_s - since_s >= _DOUBT_S
            for each, since_s in self._leaderless.items()
        ):
            self._doubted_s = now_s
            brokers.ask_another()

    def _report(self, brokers: Brokers) -> None:
        now_s = asyncio.get_running_loop().time()
        for partition, since_s in self._leaderless.items():
            leader = brokers.leader(*partition.place)
            if now_s - since_s < self._timeout_s or (leader is not None and leader >= 0):
                continue
            self._leaderless[partition] = now_s
            code = brokers.error(*partition.place)
            retriable = STEPS.get(code) is not Step.DENIED
            self._listener.failed(partition.place, error_of(code), retriable=retriable)

    # ---- links -----------------------------------------------------------------------------------

    async def _open(self, brokers: Brokers, node: int) -> None:
        link, loop = self._make_link(), asyncio.get_running_loop()
        try:
            await brokers.open(node, link)
        except (KafkaError, OSError) as error:
            if self._opening.get(node) is brokers:
                del self._opening[node]
            if self._leaderless:  # else none needs the node, and the complaint would not end
                self.access.complain(node, error)
            if loop.time() - self._left_s >= _LEAVE_EVERY_S and _may_refuse_secrets(error):
                self._left_s = loop.time()
                self.access.leave(brokers, error)
                self._wanted.set()
            return
        if self._opening.get(node) is not brokers:  # other secrets are in use, or it was cut
            link.abort()
            return
        del self._opening[node]
        self._links[node], link.held = link, self._held
        if link.session_s:
            loop.call_later(link.session_s * _SESSION_USED, self._retire, node, link)
        self.access.well(node)
        self._link_up()

    def _retire(self, node: int, link: Link) -> None:
        """The link's session ends soon: the next batch leaves by another one."""
        if self._links.get(node) is link:
            self.leave(link)
            self._retired.add(link)
            self._end_idle_links()

    def _end_idle_links(self) -> None:
        for link in [link for link in self._retired if link.is_idle]:
            link.abort()

    async def _watch_silence(self) -> None:
        """Abort links whose broker answers and takes nothing."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(min(_SILENCE_EVERY_S, self._timeout_s / 4))
            for link in self._all_links():
                if link.silent_s(loop.time()) > self._timeout_s + _SILENCE_GRACE_S:
                    self._listener.rebuilt("watchdog")
                    link.abort()
            self._end_idle_links()


def _may_refuse_secrets(error: Exception) -> bool:
    """Whether a broker was reached, which may refuse the secrets in use: others replace them."""
    is_away = isinstance(error, OSError | KafkaConnectionError)
    return isinstance(error, ssl.SSLError) or not is_away
