"""The transactions in which the producer of one stream writes: what is sent at a time is committed
together, and acknowledged at the commit.

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
from watchrelay.core.errors import Fenced, SinkForbidden, SinkUnavailable
from watchrelay.kafka.client import KafkaError, for_code
from watchrelay.kafka.client.brokers import Brokers
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.client.error_codes import cure_of, error_of
from watchrelay.kafka.client.failures import plain_words, unreachable
from watchrelay.kafka.client.transaction_coordinator import TransactionCoordinator
from watchrelay.kafka.errors import subject_of
from watchrelay.kafka.partition import (
    Appended,
    Effect,
    Identity,
    Partition,
    Phase,
    Place,
    Refused,
    Renew,
)
from watchrelay.kafka.producer import Producer, ProducerListener, ProducerSettings

_log = logging.getLogger(__name__)

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
_UNKNOWN_TOPIC: Final = 3
_NOT_AVAILABLE: Final = 15
_INVALID_TIMEOUT: Final = 50
_NOT_ATTEMPTED: Final = 55
_OF_PARTITIONS: Final = frozenset((_UNKNOWN_TOPIC, 29, _NOT_ATTEMPTED))
"""Refusals of partitions, which are reported with these."""
_AWAY: Final = frozenset((14, _NOT_AVAILABLE, 16))
"""The coordinator loads its transactions, or is another broker."""
_NO_COORDINATOR: Final = (
    "the brokers name no coordinator for it: is transaction.state.log.replication.factor more "
    "than there are brokers?"
)
_OVER: Final = frozenset((48, 51, 120))
"""Answers to a batch by which its transaction is over, beside those by which its identity is."""

_DOUBT_S = 0.4
"""From this pause on another broker is asked where the coordinator is."""
_AWAY_PAUSE_S: Final = 0.2
_CHECK_S: Final = 10.0
"""The first search for a coordinator has the brokers create the topic of all transactions."""
_PAUSES: Final = {
    Answer.SOON: (0.002, 1.2, 0.05),
    Answer.ELSEWHERE: (0.05, 2.0, 2.0),
    Answer.REFUSED: (0.5, 2.0, 30.0),
    Answer.TAKE: (0.05, 2.0, 2.0),
}
"""Seconds of the first pause, the factor of each to the one before, and seconds of the longest."""

Question = Callable[[TransactionCoordinator], Awaitable[int]]


class TransactionListener(ProducerListener, Protocol):
    """What is reported, from within the loop."""

    def transaction_ended(self, result: Result, took_s: float) -> None: ...

    def noted(self, place: Place, offset: int) -> None:
        """The marker of a commit is at `offset`."""
        ...


class Transactions:
    """Those of one stream: the policy of `producer`. Use: `begin()`, then `await taken.wait()`:
    from then on `producer.send`, unless `is_fenced`; `end()`.

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
        self.id = transactional_id
        self.producer = Producer(connection, settings, listener, policy=self, **options)
        self.taken = asyncio.Event()
        """The id is ours, or `is_fenced`."""
        self.is_fenced = False
        """The stream has a newer claim: what is sent is answered with Fenced."""
        self._access = self.producer.leaders.access
        self._settings, self._listener = settings, listener
        self._former_ids, self._is_ours = former_ids, is_ours
        self._coordinators: dict[str, TransactionCoordinator] = {}
        self._asked: Brokers | None = None
        """Who named them."""
        self._running: asyncio.Task[None] | None = None
        self._due = asyncio.Event()
        """Something was sent that is in no transaction."""
        self._covered: dict[Partition, Appended | None] = {}
        """The partitions of the open transaction, and where the batch of each is in the log; None:
        it is not answered."""
        self._is_sending = False
        """The open transaction takes batches."""
        self._most: float = math.inf
        """How many partitions the next one has at most: fewer after one that took too long."""
        self._markers: dict[Place, int] = {}
        """The offset of the newest commit's marker, if that follows the batch."""
        self._progress = asyncio.Event()
        self._is_over = False
        """The open transaction cannot be committed."""

    def begin(self, tasks: asyncio.TaskGroup, name: str) -> None:
        """Take the ids, and commit what is sent until `end`."""
        self._running = tasks.create_task(self._run(), name=name)

    def end(self) -> Sequence[str]:
        """No byte leaves from now on. Returns: the subjects of what was reported."""
        assert self._running is not None, "they were begun"
        self._running.cancel()
        self.producer.cut()
        partitions = map(subject_of, self.producer.partitions)
        return self._access.subject, self.id, *self._former_ids, *partitions

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.producer.run(), name="producer")
            tasks.create_task(self._serve(), name="transactions")

    # ---- the policy ------------------------------------------------------------------------------

    def covers(self, partition: Partition) -> bool:
        """See `Policy`: in the open transaction, one batch of each of its partitions. What is not
        covered makes the next transaction due."""
        if self.is_fenced:
            asyncio.get_running_loop().call_soon(self._refuse_all)
        elif self._is_sending and partition in self._covered and self._covered[partition] is None:
            return True
        self._due.set()
        return False

    def passes(self, partition: Partition, effect: Effect) -> bool:
        """See `Policy`. What is appended waits for the commit. The transaction ends where a batch
        needs another identity, or is refused by an answer that it is over."""
        match effect:
            case Appended():
                self._covered[partition] = effect
                self._progress.set()
            case Renew():
                self._end_transaction()
            case Refused(code) if code in _OVER:
                self._end_transaction()
            case Refused():
                self.idle(partition)
                return True
            case _:
                return True
        return False

    def idle(self, partition: Partition) -> None:
        """See `Policy`: the open transaction does not wait for it."""
        if partition in self._covered and partition.phase is Phase.FORGOTTEN:
            self._end_transaction()
        self._covered.pop(partition, None)
        self._progress.set()

    # ---- the id ----------------------------------------------------------------------------------

    async def _serve(self) -> None:
        loop, leaders = asyncio.get_running_loop(), self.producer.leaders
        try:
            while await self._take_ids():
                while leaders.identity is not None:
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
                await self._take_id(each)
            identity = await self._take_id(self.id)
            self._former_ids = ()
            if await self._is_ours():
                self._is_over, self._covered = False, {}
                self.producer.restart(identity)
                self.taken.set()
                return True
        self.is_fenced = True
        self.taken.set()
        self._refuse_all()
        return False

    def _refuse_all(self) -> None:
        for place, partition in list(self.producer.partitions.items()):
            deliveries = [*partition.deliveries]
            self.producer.drop(place)
            for each in deliveries:
                self._listener.settled(place, each, fenced(each.batch.stream))

    async def _take_id(self, transactional_id: str) -> Identity:
        identity = Identity(-1, -1)

        async def take(coordinator: TransactionCoordinator) -> int:
            nonlocal identity
            code, producer = await coordinator.take(timeout_s=self._settings.transaction_timeout_s)
            identity = Identity(*producer)
            return code

        await self._ask(take, transactional_id, taking=True)
        return identity

    # ---- one transaction -------------------------------------------------------------------------

    async def _transact(self) -> int:
        """Send what waits, and commit it, or have the id taken again; the number of records.

        A partition without a link to its leader stays out: a transaction ends when its markers are
        in all of its partitions."""
        producer, identity = self.producer, self.producer.leaders.identity
        covered = list[Partition]()
        for partition in producer.partitions.values():
            is_pending = partition.deliveries and partition.phase is Phase.IDLE
            if not is_pending or producer.stamp_ms(partition) is None:
                continue
            if producer.leaders.link_of(partition) is None:
                producer.leaders.wait(partition)
            elif len(covered) < self._most:
                covered.append(partition)
        if not covered or identity is None:
            return 0
        began_s, self._covered = clock.now_s(), dict.fromkeys(covered)
        result: Result = "aborted"
        if await self._add_partitions(identity) and await self._append():
            result = await self._commit(identity)
        self._listener.transaction_ended(result, clock.now_s() - began_s)
        records = 0
        if result == "committed" and not self._is_over:
            records = self._acknowledge()
            if len(covered) >= self._most:
                self._most *= 2
        else:
            extra = {"transactional_id": self.id, "result": result}
            _log.warning("transaction was not committed, sending it again", extra=extra)
            self._listener.rebuilt("identity")
            producer.leaders.identity = None
        if self._most < math.inf:
            self._others_first(covered)
        return records

    def _acknowledge(self) -> int:
        """Give the receipts of the transaction that was committed; the number of records."""
        covered, self._covered, records = self._covered, {}, 0
        for partition, appended in covered.items():
            if appended is not None and partition.batch is not None:
                place, count, before = partition.place, partition.batch.count, appended.first - 1
                if self._markers.get(place) == before:  # so it is the marker of our last commit
                    self._listener.noted(place, before)
                self._markers[place] = appended.first + count
                records += count
                self._listener.acked(partition, appended)
            self.producer.enqueue(partition)
        return records

    def _others_first(self, covered: Iterable[Partition]) -> None:
        """Let the next transaction begin with what was not in this one."""
        partitions = self.producer.partitions
        for each in covered:
            if (known := partitions.pop(each.place, None)) is not None:
                partitions[each.place] = known
        if self._most >= len(partitions):
            self._most = math.inf
        self._due.set()

    async def _add_partitions(self, identity: Identity) -> bool:
        """Begin the transaction. Returns: whether its partitions are in it."""
        places = [partition.place for partition in self._covered]

        async def add(coordinator: TransactionCoordinator) -> int:
            codes = await coordinator.add(identity, places)
            for place, code in codes.items():
                if ANSWERS.get(code) is Answer.REFUSED and code != _NOT_ATTEMPTED:
                    retriable = code == _UNKNOWN_TOPIC
                    self._listener.failed(place, error_of(code), retriable=retriable)
            return _gravest(codes)

        answer, _ = await self._ask(add, self.id)
        return answer is Answer.DONE

    async def _append(self) -> bool:
        """Send one batch of each partition. Returns: whether every one was appended, or refused and
        handed back, before the brokers abort the transaction."""
        self._is_sending, partitions = True, [*self._covered]
        for partition in partitions:
            if not partition.deliveries:
                self.idle(partition)
            self.producer.enqueue(partition)
        try:
            async with asyncio.timeout(self._settings.transaction_timeout_s):
                while None in self._covered.values() and not self._is_over:
                    await self._progress.wait()
                    self._progress.clear()
        except TimeoutError:
            # a broker that is silent is not waited for in the next one too
            self.producer.leaders.reset()
            self._most = max(1, len(partitions) // 2)
            self._end_transaction()
        self._is_sending = False
        return not self._is_over

    async def _commit(self, identity: Identity) -> Result:
        async def commit(coordinator: TransactionCoordinator) -> int:
            return await coordinator.commit(identity)

        answer, is_unsure = await self._ask(commit, self.id)
        if answer is Answer.DONE:
            return "committed"
        return "unknown" if is_unsure else "aborted"

    def _end_transaction(self) -> None:
        self._is_over, self._is_sending = True, False
        self._progress.set()

    # ---- the coordinator -------------------------------------------------------------------------

    async def _ask(
        self, question: Question, transactional_id: str, *, taking: bool = False
    ) -> tuple[Answer, bool]:
        """Ask until the answer is DONE or TAKE, or the transaction is over; that answer, and
        whether an attempt had none. Args: `taking`: ask until it is DONE, whatever is over."""
        loop, is_unsure, pauses = asyncio.get_running_loop(), False, dict.fromkeys(_PAUSES, 0.0)
        began_s = loop.time()
        while True:
            code, silence = await self._try(question, transactional_id)
            answer = ANSWERS.get(code, Answer.TAKE)
            if silence is not None:
                is_unsure = True
                answer = answer if answer is Answer.REFUSED else Answer.ELSEWHERE
            if answer is Answer.DONE or (answer is Answer.TAKE and not taking):
                break
            if answer is not Answer.SOON:
                self._hang_up()
            if answer is Answer.REFUSED:
                if code not in _OF_PARTITIONS:
                    self._listener.report(transactional_id, self._refusal(code, transactional_id))
            elif loop.time() - began_s > self._settings.stalled_after_s:
                why = _unusable(transactional_id, silence or error_of(code))
                self._listener.report(transactional_id, why)
            first_s, times, most_s = _PAUSES[answer]
            pauses[answer] = min(most_s, pauses[answer] * times or first_s)
            if answer is Answer.ELSEWHERE and pauses[answer] >= _DOUBT_S and self._access.brokers:
                self._access.brokers.ask_another()
            await asyncio.sleep(pauses[answer])
            if self._is_over and not taking:
                answer = Answer.TAKE
                break
        if any(pauses.values()):
            self._listener.report(transactional_id, "")
        return answer, is_unsure

    async def _try(
        self, question: Question, transactional_id: str
    ) -> tuple[int, KafkaError | OSError | None]:
        """The code of the answer; or the error that came in its place, and the code of that."""
        try:
            return await question(await self._coordinator(transactional_id)), None
        except (KafkaError, OSError) as error:
            return getattr(error, "errno", -1) if isinstance(error, KafkaError) else -1, error

    async def _coordinator(self, transactional_id: str) -> TransactionCoordinator:
        """Raises: KafkaError, OSError."""
        known = self._coordinators.get(transactional_id)
        if known is not None and self._access.brokers in (None, self._asked):
            return known
        brokers = await self._access.reach()
        if brokers is not self._asked:  # perhaps by other secrets
            self._hang_up()
            self._asked = brokers
        known = await brokers.transaction_coordinator(transactional_id)
        self._coordinators[transactional_id] = known
        return known

    def _hang_up(self) -> None:
        for coordinator in self._coordinators.values():
            coordinator.close()
        self._coordinators.clear()

    def _refusal(self, code: int, transactional_id: str) -> str:
        """Why a transactional id cannot be used, and the cure."""
        if code != _INVALID_TIMEOUT:
            return _forbidden(transactional_id)
        limit_ms = round(self._settings.transaction_timeout_s * 1000)
        return (
            f"transactional id {transactional_id} cannot be used: transaction.max.timeout.ms of "
            f"the brokers is less than {limit_ms}: raise it, or set kafka.delivery to idempotent"
        )


def _gravest(codes: Mapping[Place, int]) -> int:
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
    known = _NO_COORDINATOR if isinstance(error, for_code(_NOT_AVAILABLE)) else cure_of(error)
    reason = known or plain_words(error)
    return f"transactional id {transactional_id} cannot be used: {reason}"


def fenced(stream: str) -> Fenced:
    """The stream has a newer claim."""
    return Fenced(f"stream {stream}: a newer claim was read")
