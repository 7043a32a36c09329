"""The producer of one stream that writes within transactions: what is appended at a time is
committed together, and acknowledged at the commit.

A transactional id is taken only while the claim of the stream is ours: that is read before, and
once more after it, since a newer owner may have taken the id in between. A transaction that ends
otherwise than by a commit, or with unknown outcome, is sent again, the same records.

Source of the codes: Kafka protocol guide, "Error Codes".
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from enum import Enum, auto
from typing import Any, Final, Literal, Protocol

from watchrelay.core import clock
from watchrelay.core.errors import SinkForbidden, SinkUnavailable
from watchrelay.kafka.client import KafkaError, TopicPartition, for_code
from watchrelay.kafka.client.brokers import Brokers
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.client.failures import plain_words, unreachable
from watchrelay.kafka.client.record_batch import PackedBatch
from watchrelay.kafka.client.transaction_coordinator import TransactionCoordinator
from watchrelay.kafka.produce_state import (
    Done,
    Effect,
    Identity,
    PartitionState,
    PendingBatch,
    Renew,
    Settled,
    withdrawn,
)
from watchrelay.kafka.producer import (
    OutgoingPartition,
    Producer,
    ProducerListener,
    ProducerSettings,
    error_of,
)

_log = logging.getLogger(__name__)

FENCED: Final = 1 << 17
"""The code of a batch whose stream has a newer claim: it is no longer sent."""

_PACE_S: Final = 0.02
"""From the begin of a transaction of few records to that of the next one: each costs as much as
many records."""
_FEW_RECORDS: Final = 100

Result = Literal["committed", "aborted", "unknown"]
"""How a transaction ended. After `unknown` its records may be in the topic twice."""


class Answer(Enum):
    """What follows from an error code of a coordinator."""

    DONE = auto()
    SOON = auto()
    """The transaction before is being ended: the same request in a moment."""
    ELSEWHERE = auto()
    """The same request, to the coordinator that is found now."""
    REFUSED = auto()
    """A right is missing, or a setting of the brokers: the same request, with longer pauses."""
    TAKE = auto()
    """The transaction is over: somebody has taken the id, or it took too long."""


ANSWERS: Final[dict[int, Answer]] = {
    0: Answer.DONE,
    51: Answer.SOON,
    **dict.fromkeys((-1, 7, 13, 14, 15, 16), Answer.ELSEWHERE),
    **dict.fromkeys((3, 29, 31, 50, 53, 55), Answer.REFUSED),
}
"""By error code; every other code is TAKE, such as 47 INVALID_PRODUCER_EPOCH, 48 INVALID_TXN_STATE,
49 INVALID_PRODUCER_ID_MAPPING, 90 PRODUCER_FENCED, 120 TRANSACTION_ABORTABLE. 51
CONCURRENT_TRANSACTIONS; -1 UNKNOWN_SERVER_ERROR, 7 REQUEST_TIMED_OUT, 13 NETWORK_EXCEPTION, 14
COORDINATOR_LOAD_IN_PROGRESS, 15 COORDINATOR_NOT_AVAILABLE, 16 NOT_COORDINATOR; 3
UNKNOWN_TOPIC_OR_PARTITION, 29, 31 and 53 of rights, 50 INVALID_TRANSACTION_TIMEOUT, 55
OPERATION_NOT_ATTEMPTED, for another partition of the request."""
_AWAY: Final = frozenset((14, 15, 16))
_NO_COORDINATOR: Final = (
    "the brokers name no coordinator for it: is transaction.state.log.replication.factor more "
    "than there are brokers?"
)
_OVER: Final = frozenset((48, 51, 120))
"""Answers to a batch by which its transaction is over, beside those by which its identity is."""

_SOON_S, _SOON_MAX_S = 0.002, 0.05
_ELSEWHERE_S, _ELSEWHERE_MAX_S = 0.05, 2.0
_DOUBT_S = 0.4
"""From this pause on another broker is asked where the coordinator is."""
_REFUSED_S, _REFUSED_MAX_S = 0.5, 30.0
_AWAY_PAUSE_S: Final = 0.2
_CHECK_S: Final = 10.0
"""The first search for a coordinator has the brokers create the topic of all transactions."""
_PAUSES: Final = {
    Answer.SOON: (_SOON_S, 1.2, _SOON_MAX_S),
    Answer.ELSEWHERE: (_ELSEWHERE_S, 2.0, _ELSEWHERE_MAX_S),
    Answer.REFUSED: (_REFUSED_S, 2.0, _REFUSED_MAX_S),
    Answer.TAKE: (_ELSEWHERE_S, 2.0, _ELSEWHERE_MAX_S),
}
"""Seconds of the first pause, the factor of each to the one before, and seconds of the longest."""

Question = Callable[[TransactionCoordinator], Awaitable[int]]


class TransactionListener(ProducerListener, Protocol):
    """What the producer reports, from within its loop."""

    def transaction_ended(self, result: Result, took_s: float) -> None: ...


class TransactionalProducer(Producer):
    """Use: `run()` as a task, then `await taken.wait()`: from then on `append`, unless `is_fenced`.

    Args:
        former_ids: Transactional ids of former writers, whose transactions are to be ended too.
        is_ours: Whether the claim of the stream is the newest, once the control topic was read to
            its end.
    """

    def __init__(
        self,
        connection: KafkaConnection,
        settings: ProducerSettings,
        listener: TransactionListener,
        *,
        transactional_id: str,
        former_ids: Sequence[str],
        is_ours: Callable[[], Awaitable[bool]],
        **options: Any,
    ) -> None:
        super().__init__(
            connection, settings, listener, transactional_id=transactional_id, **options
        )
        self.taken = asyncio.Event()
        """The id is ours, or `is_fenced`."""
        self.is_fenced = False
        """The stream has a newer claim: what is appended gets the answer FENCED."""
        self._transactions, self._former_ids, self._is_ours = listener, former_ids, is_ours
        self._coordinators: dict[str, TransactionCoordinator] = {}
        self._due = asyncio.Event()
        """Something was appended that is in no transaction."""
        self._sent: dict[OutgoingPartition, PendingBatch] = {}
        """Batches of the open transaction."""
        self._most: float = math.inf
        """How many partitions the next one has at most: fewer after one that took too long."""
        self._offsets: dict[OutgoingPartition, int] = {}
        """Of those that were appended."""
        self._unanswered: set[OutgoingPartition] = set()
        self._progress = asyncio.Event()
        self._is_over = False
        """The open transaction cannot be committed."""

    @property
    def subjects(self) -> Sequence[str]:
        """What is reported is about these."""
        return self._access.subject, self.transactional_id, *self._former_ids

    async def run(self) -> None:
        """See `Producer`."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(super().run(), name="producer")
            tasks.create_task(self._serve(), name="transactions")

    def append(self, place: TopicPartition, packed: PackedBatch, done: Done) -> PendingBatch:
        """See `Producer`; `done` is called once the batch is committed."""
        packed.within_transaction()
        if self.is_fenced:
            asyncio.get_running_loop().call_soon(done, -1, FENCED)
            return PendingBatch(packed, done)
        return super().append(place, packed, done)

    def withdraw(self, place: TopicPartition, batch: PendingBatch) -> None:
        """See `Producer`."""
        if batch in self._sent.values():
            batch.done = withdrawn
        else:
            super().withdraw(place, batch)

    def take_back(self, place: TopicPartition, batch: PendingBatch) -> bool:
        """See `Producer`."""
        return batch not in self._sent.values() and super().take_back(place, batch)

    def forget(self, topic: str) -> None:
        """See `Producer`. A transaction in which the topic is, is over."""
        if any(partition.place.topic == topic for partition in self._sent):
            self._end_transaction()
        super().forget(topic)

    # ---- the id ----------------------------------------------------------------------------------

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while await self._take_ids():
                while self._identity is not None:
                    await self._due.wait()
                    self._due.clear()
                    due_s = loop.time() + _PACE_S
                    if 0 < await self._transact() < _FEW_RECORDS:
                        await asyncio.sleep(max(0.0, due_s - loop.time()))
        finally:
            self._hang_up()

    async def _take_ids(self) -> bool:
        """Whether they are ours, as the claim is."""
        if await self._is_ours():
            for each in self._former_ids:
                await self._taken(each)
            identity = await self._taken(self.transactional_id)
            self._former_ids = ()
            if await self._is_ours():
                self._begin_again(identity)
                self.taken.set()
                return True
        self.is_fenced = True
        self.taken.set()
        for partition in list(self._partitions.values()):
            for batch in self._pending(partition):
                batch.done(-1, FENCED)
        return False

    async def _taken(self, transactional_id: str) -> Identity:
        identity = Identity(-1, -1)

        async def take(coordinator: TransactionCoordinator) -> int:
            nonlocal identity
            code, producer = await coordinator.take(timeout_s=self._settings.transaction_timeout_s)
            identity = Identity(*producer)
            return code

        await self._ask(take, transactional_id, again=Answer.TAKE)
        return identity

    def _begin_again(self, identity: Identity) -> None:
        """Send all that is pending under another identity."""
        for place, former in list(self._partitions.items()):
            partition = OutgoingPartition(place, PartitionState(identity))
            partition.state.queue.extend(self._pending(former))
            for batch in partition.state.queue:
                batch.data, batch.unresolved, batch.tries = b"", False, 0
                self._due.set()
            if former.timer is not None:
                former.timer.cancel()
            former.state = PartitionState()
            self._partitions[place] = partition
        self._identity, self._is_over = identity, False
        self._sent, self._offsets = {}, {}

    def _pending(self, partition: OutgoingPartition) -> list[PendingBatch]:
        """The batches of a partition that are not committed, in order."""
        sent = self._sent.get(partition)
        waiting = [each for each in partition.state.queue if each is not sent]
        return waiting if sent is None else [sent, *waiting]

    # ---- one transaction -------------------------------------------------------------------------

    async def _transact(self) -> int:
        """Send what waits, and commit it, or have the id taken again; the number of records.

        A partition without a link to its leader stays out: a transaction ends when its markers are
        in all of its partitions."""
        sent, identity = dict[OutgoingPartition, PendingBatch](), self._identity
        for partition in self._partitions.values():
            if not partition.state.queue:
                continue
            if self._link_of(partition) is None:
                self._await_leader(partition)
            elif len(sent) < self._most:
                sent[partition] = partition.state.queue[0]
        if not sent or identity is None:
            return 0
        began_s, self._sent, self._offsets = clock.now_s(), sent, {}
        result: Result = "aborted"
        if await self._added(identity) and await self._appended():
            result = await self._committed(identity)
        self._transactions.transaction_ended(result, clock.now_s() - began_s)
        if result == "committed" and not self._is_over:
            offsets, self._sent = self._offsets, {}
            if len(sent) >= self._most:
                self._most *= 2
            for partition, offset in offsets.items():
                sent[partition].done(offset, 0)
                self._enqueue(partition)
        else:
            extra = {"transactional_id": self.transactional_id, "result": result}
            _log.warning("transaction was not committed, sending it again", extra=extra)
            self._listener.rebuilt("identity")
            self._identity = None
        if self._most < math.inf:
            self._others_first(sent)
        return sum(batch.packed.record_count() for batch in sent.values())

    def _others_first(self, sent: Iterable[OutgoingPartition]) -> None:
        """Let the next transaction begin with what was not in this one."""
        for partition in sent:
            if (known := self._partitions.pop(partition.place, None)) is not None:
                self._partitions[partition.place] = known
        if self._most >= len(self._partitions):
            self._most = math.inf
        self._due.set()

    async def _added(self, identity: Identity) -> bool:
        """Whether the partitions are in a transaction."""
        places = [partition.place for partition in self._sent]

        async def add(coordinator: TransactionCoordinator) -> int:
            codes = await coordinator.add(identity, places)
            for place, code in codes.items():
                if code not in (0, 55) and ANSWERS.get(code) is Answer.REFUSED:
                    self._listener.failed(place, error_of(code), retriable=code == 3)
            return _gravest(codes)

        answer, _ = await self._ask(add, self.transactional_id)
        return answer is Answer.DONE

    async def _appended(self) -> bool:
        """Whether every batch was appended, or refused and handed back, before the brokers abort
        the transaction."""
        self._unanswered = set(self._sent)
        for partition in self._sent:
            self._enqueue(partition)
        try:
            async with asyncio.timeout(self._settings.transaction_timeout_s):
                while self._unanswered and not self._is_over:
                    await self._progress.wait()
                    self._progress.clear()
        except TimeoutError:
            self.reset()  # a broker that is silent is not waited for in the next one too
            self._most = max(1, len(self._sent) // 2)
            self._end_transaction()
        self._unanswered = set()
        return not self._is_over

    async def _committed(self, identity: Identity) -> Result:
        async def commit(coordinator: TransactionCoordinator) -> int:
            return await coordinator.commit(identity)

        answer, silences = await self._ask(commit, self.transactional_id)
        if answer is Answer.DONE:
            return "committed"
        return "unknown" if silences else "aborted"

    def _end_transaction(self) -> None:
        self._is_over = True
        self._unanswered = set()
        self._progress.set()

    # ---- the coordinator -------------------------------------------------------------------------

    async def _ask(
        self, question: Question, transactional_id: str, *, again: Answer | None = None
    ) -> tuple[Answer, int]:
        """Ask until the answer is DONE or TAKE, or the transaction is over; that answer, and how
        often there was none. Args: `again`: an answer after which the same is asked again."""
        silences, pauses = 0, dict.fromkeys(_PAUSES, 0.0)
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        while True:
            try:
                code = await question(await self._coordinator(transactional_id))
                answer, error = ANSWERS.get(code, Answer.TAKE), error_of(code)
            except (KafkaError, OSError) as raised:
                silences, error = silences + 1, raised
                code = getattr(error, "errno", -1) if isinstance(error, KafkaError) else -1
                refused = ANSWERS.get(code) is Answer.REFUSED
                answer = Answer.REFUSED if refused else Answer.ELSEWHERE
            if answer in (Answer.DONE, Answer.TAKE) and answer is not again:
                break
            if answer is not Answer.SOON:
                self._hang_up()
            if answer is Answer.REFUSED:
                if code not in (3, 29, 55):
                    self._listener.report(transactional_id, self._refusal(code, transactional_id))
            elif loop.time() - began_s > self._settings.stalled_after_s:
                self._listener.report(transactional_id, _unusable(transactional_id, error))
            first_s, times, most_s = _PAUSES[answer]
            pauses[answer] = min(most_s, pauses[answer] * times or first_s)
            if answer is Answer.ELSEWHERE and pauses[answer] >= _DOUBT_S and self._access.brokers:
                self._access.brokers.ask_another()
            await asyncio.sleep(pauses[answer])
            if self._is_over and again is None:
                answer = Answer.TAKE
                break
        if any(pauses.values()):
            self._listener.report(transactional_id, "")
        return answer, silences

    async def _coordinator(self, transactional_id: str) -> TransactionCoordinator:
        """Raises: KafkaError, OSError."""
        known = self._coordinators.get(transactional_id)
        if known is None:
            brokers = await self._access.reach()
            known = await brokers.transaction_coordinator(transactional_id)
            self._coordinators[transactional_id] = known
        return known

    def _hang_up(self) -> None:
        for coordinator in self._coordinators.values():
            coordinator.close()
        self._coordinators.clear()

    def _refusal(self, code: int, transactional_id: str) -> str:
        """Why a transactional id cannot be used, and the cure."""
        if code != 50:
            return _forbidden(transactional_id)
        limit_ms = round(self._settings.transaction_timeout_s * 1000)
        return (
            f"transactional id {transactional_id} cannot be used: transaction.max.timeout.ms of "
            f"the brokers is less than {limit_ms}: raise it, or set kafka.delivery to idempotent"
        )

    # ---- what differs from batches outside of transactions ---------------------------------------

    def _enqueue(self, partition: OutgoingPartition) -> None:
        if partition in self._unanswered:
            super()._enqueue(partition)
        elif partition.state.queue:
            self._due.set()

    def _perform(self, partition: OutgoingPartition, effects: Iterable[Effect]) -> None:
        others: list[Effect] = []
        for effect in effects:
            match effect:
                case Settled(_, offset, 0):
                    self._offsets[partition] = offset
                    self._unanswered.discard(partition)
                case Renew():
                    self._end_transaction()
                case Settled(_, _, code) if code in _OVER:
                    self._end_transaction()
                case Settled():
                    del self._sent[partition]
                    self._unanswered.discard(partition)
                    others.append(effect)
                case _:
                    others.append(effect)
        if not self._unanswered:
            self._progress.set()
        super()._perform(partition, others)

    def _use_brokers(self, by_other_secrets: bool) -> None:
        super()._use_brokers(by_other_secrets)
        if by_other_secrets:
            self._hang_up()

    async def _identify(self, brokers: Brokers) -> None:
        """The identity is that of the transactional id."""


def _gravest(codes: Mapping[TopicPartition, int]) -> int:
    """The code that decides about the request."""
    order = [Answer.DONE, Answer.REFUSED, Answer.SOON, Answer.ELSEWHERE, Answer.TAKE]
    return max(codes.values(), key=lambda code: order.index(ANSWERS.get(code, Answer.TAKE)))


async def check_transactional_ids(connection: KafkaConnection, ids: Sequence[str]) -> None:
    """Check that this user may write under each of `ids`; nothing is changed.

    Raises: SinkForbidden with the cure; SinkUnavailable when no broker answers.
    """
    brokers, code = Brokers(connection), 0
    try:
        async with asyncio.timeout(_CHECK_S):
            for transactional_id in ids:
                while True:
                    code = await _checked(brokers, transactional_id)
                    if code not in _AWAY:
                        break
                    await asyncio.sleep(_AWAY_PAUSE_S)
                if ANSWERS.get(code) is Answer.REFUSED:
                    raise SinkForbidden(_forbidden(transactional_id))
    except (KafkaError, OSError) as error:
        if isinstance(error, TimeoutError) and code in _AWAY:
            raise SinkUnavailable(_unusable(transactional_id, error_of(code))) from error
        raise unreachable(connection, error) from error
    finally:
        brokers.close()


async def _checked(brokers: Brokers, transactional_id: str) -> int:
    """The code of a request that a writer needs. Raises: KafkaError, OSError."""
    try:
        coordinator = await brokers.transaction_coordinator(transactional_id)
    except KafkaError as error:
        code = getattr(error, "errno", -1)
        if code in _AWAY or ANSWERS.get(code) is Answer.REFUSED:
            return int(code)
        raise
    try:
        return await coordinator.check()
    finally:
        coordinator.close()


def _forbidden(transactional_id: str) -> str:
    return (
        f"transactional id {transactional_id} may not be used by this user: grant WRITE and "
        "DESCRIBE on it or its prefix"
    )


def _unusable(transactional_id: str, error: Exception) -> str:
    """Why it could not be used for some time."""
    reason = _NO_COORDINATOR if isinstance(error, for_code(15)) else plain_words(error)
    return f"transactional id {transactional_id} cannot be used: {reason}"
