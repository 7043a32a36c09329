"""One member of the group by which replicas share the streams.

The group detects which replicas are dead, and its leader decides which stream is whose. It stops
nothing: who writes a stream is decided by claims.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from watchrelay.core import clock
from watchrelay.core.errors import SinkForbidden, SinkMisconfigured, SinkUnavailable
from watchrelay.core.trouble import Cause, Trouble
from watchrelay.kafka.client import IncompatibleBrokerVersion, KafkaError, for_code
from watchrelay.kafka.client.brokers import Brokers
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.client.coordinator import Coordinator, DescribedGroup
from watchrelay.kafka.client.error_codes import CURES
from watchrelay.kafka.client.failures import plain_words, unreachable
from watchrelay.kafka.client.secrets import Secrets
from watchrelay.observe.metrics import Metrics
from watchrelay.observe.status import StatusRegistry

_log = logging.getLogger(__name__)

PROTOCOL_TYPE: Final = "watchrelay"
PROTOCOL: Final = "watchrelay-1"
"""Of metadata and assignments. A release that changes them offers both, and the coordinator picks
the one that all members know."""
PROBLEM: Final = "group"

_OK = 0
_AWAY = frozenset((14, 15, 16))
"""The coordinator loads the group, or is another broker."""
_NO_COORDINATOR: Final = 15
_ILLEGAL_GENERATION, _UNKNOWN_MEMBER, _FENCED_INSTANCE = 22, 25, 82
_REBALANCE, _ID_REQUIRED = 27, 79
_INCONSISTENT, _FORBIDDEN = 23, 30
_LOST = frozenset((_ILLEGAL_GENERATION, _UNKNOWN_MEMBER, _FENCED_INSTANCE))
_CURABLE = frozenset((_INCONSISTENT, 24, 26, _FORBIDDEN, 81))
"""What only an operator can end; 24 INVALID_GROUP_ID, 26 INVALID_SESSION_TIMEOUT, 81
GROUP_MAX_SIZE_REACHED."""

_REBALANCE_S: Final = 5.0
"""How long the coordinator waits for members to join again."""
_HEARTBEAT_S_MAX: Final = 1.0
_HEARTBEATS_A_SESSION: Final = 6
_ATTEMPTS_A_SESSION: Final = 2
"""A heartbeat without an answer for this part of a session is sent again by another connection."""
_AWAY_PAUSE_S: Final = 0.2
_UNEXPECTED_PAUSE_S: Final = 1.0
_REFUSED_PAUSE_S: Final = 1.0
_REFUSED_PAUSE_S_MAX: Final = 30.0
"""From one to the other the pause doubles."""
_UNKNOWN: Final = "check"
_CHECK_S: Final = 10.0
"""The first search for a coordinator has the brokers create the topic of all groups."""
_SAME_NAME_S: Final = 60.0
"""A static member that is unknown twice within this time shares its name with another process."""


class Replica(Protocol):
    """The replica that is a member. Implemented by sharing.py."""

    def metadata(self) -> bytes:
        """What it reports, asked with each join; it must differ each time."""
        ...

    def assign(self, members: Mapping[str, bytes]) -> Mapping[str, bytes]:
        """As the leader: the assignment of each member from their metadata, by member id."""
        ...

    def assigned(self, generation: int, assignment: bytes) -> None:
        """A new generation, and this member's assignment."""
        ...

    def lost(self) -> None:
        """The coordinator has given this membership up: others may own what was assigned."""
        ...


class _Link:
    """The connection to the coordinator of `group`."""

    def __init__(
        self, connection: KafkaConnection, group: str, make: Callable[[KafkaConnection], Brokers]
    ) -> None:
        self.connection, self.make = connection, make
        self._group = group
        self._secrets = Secrets(connection.secret_files)
        self._brokers: Brokers | None = None
        self._coordinator: Coordinator | None = None
        self._proven = connection.rotation.proven

    async def reach(self) -> Coordinator:
        """The connection, opened where there is none, or where others have proven new secrets.
        Raises: KafkaError, OSError, SinkMisconfigured."""
        if self._proven != self.connection.rotation.proven:
            self.close()
        if self._coordinator is None:
            if self._secrets.changed():
                self.close()
            if self._brokers is None:
                self._proven = self.connection.rotation.proven
                self._secrets.use_files()
                self._brokers = self.make(self.connection)
            self._coordinator = await self._brokers.coordinator(self._group)
        return self._coordinator

    def close(self) -> None:
        """What is asked next looks the coordinator up again."""
        for each in (self._coordinator, self._brokers):
            if each is not None:
                each.close()
        self._coordinator = self._brokers = None


class _Counts:
    """What is shown of the group; only its leader is shown the number of members."""

    def __init__(self, metrics: Metrics) -> None:
        self._members, self._members_gauge = 0, metrics.gauge("group_members")
        self._generation = metrics.gauge("group_generation")
        self._doubts = metrics.counter("group_doubts")
        self._doubt_seconds = metrics.counter("group_doubt_seconds")
        self._counted_s: float | None = None
        """Up to when the present doubt is counted."""

    def joined(self, members: int, generation: int) -> None:
        """This member has joined the generation."""
        self._members = members
        self._members_gauge.set(members)
        self._generation.set(generation)

    def lost(self) -> None:
        """The membership is lost."""
        self._members = 0
        self.usable(False)

    def usable(self, usable: bool) -> None:
        """While the group cannot be used, its members are not shown here: another leader may count
        them by now."""
        self._members_gauge.set(self._members if usable else 0)

    def doubt(self, since_s: float | None, now_s: float) -> None:
        """This member has been in doubt since then; None: it is in none."""
        if since_s is None:
            self._counted_s = None
            return
        if self._counted_s is None:
            self._doubts.inc()
            self._counted_s = min(now_s, since_s)
        self._doubt_seconds.inc(now_s - self._counted_s)
        self._counted_s = now_s


class GroupMember:
    """A member of `group`. Use: `run()` as a task; once that was cancelled, `leave()`.

    `generation` is -1 before the first assignment, `member_id` "" while there is none, `leads`
    whether this member is the leader of that generation. `answered_s` is when the newest request
    was sent that the coordinator answered as to a member, by `clock.boot_s`.

    Args:
        session_s: how long the coordinator waits for a heartbeat before the member is dead.
        instance: the name of a static member, which has its assignment back when it joins within
            a session; "" for a dynamic one.
        make: makes what finds the coordinator.
        boot_s: the clock.
    """

    def __init__(
        self,
        connection: KafkaConnection,
        group: str,
        replica: Replica,
        *,
        session_s: float,
        instance: str,
        metrics: Metrics,
        statuses: StatusRegistry,
        make: Callable[[KafkaConnection], Brokers] = Brokers,
        boot_s: Callable[[], float] = clock.boot_s,
    ) -> None:
        self.member_id, self.generation, self.leads = "", -1, False
        self.answered_s = -math.inf
        self._group, self._replica = group, replica
        self._session_s, self._instance = session_s, instance
        self._problems, self._counts = statuses.problems, _Counts(metrics)
        self._link, self._boot_s = _Link(connection, group, make), boot_s
        self._is_member = self._is_lost = False
        self._rejoin = asyncio.Event()
        self._away_since_s: float | None = None
        self._refused_pause_s = _REFUSED_PAUSE_S
        self._unknown_s = -math.inf
        """When this static member was last unknown while it was in no doubt."""

    @property
    def doubtful(self) -> bool:
        """No heartbeat of the last session was answered, or the membership is lost: others may own
        what was assigned to this member."""
        return self._is_lost or self.silent

    @property
    def silent(self) -> bool:
        """No request of the last session was answered."""
        return self._boot_s() - self.answered_s > self._session_s

    @property
    def forgotten(self) -> bool:
        """The coordinator does not know this member: it has another id with its next join."""
        return not self.member_id

    def rejoin(self) -> None:
        """What `metadata` gives, or what `assign` decides, has changed: join again."""
        self._rejoin.set()

    async def run(self) -> None:
        """Be a member, through any outage, until cancelled."""
        try:
            while True:
                wait_s = await self._step_s()
                doubtful = self.generation >= 0 and self.doubtful
                since_s = self.answered_s + self._session_s if doubtful else None
                self._counts.doubt(since_s, self._boot_s())
                if not self._is_member:
                    await asyncio.sleep(wait_s)
                    continue
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await self._rejoin.wait()
        finally:
            self._link.close()

    async def leave(self, *, within_s: float) -> None:
        """Leave the group, so that the streams are assigned to others at once."""
        if not self.member_id:
            return
        brokers = None
        try:
            async with asyncio.timeout(within_s):
                brokers = self._link.make(self._link.connection)
                # by another connection than a join that was cancelled, and that the broker
                # answers first
                coordinator = await brokers.coordinator(self._group)
                try:
                    code = await coordinator.leave(self.member_id)
                finally:
                    coordinator.close()
            _log.info("left the group", extra=self._extra(error=_name(code) if code else None))
        except (KafkaError, OSError, SinkUnavailable) as error:
            _log.info("cannot leave the group", extra=self._extra(error=plain_words(error)))
        finally:
            if brokers is not None:
                brokers.close()
        self.member_id, self.generation, self.leads = "", -1, False
        self.answered_s = -math.inf

    # ---- one step --------------------------------------------------------------------------------

    async def _step_s(self) -> float:
        """Join, or send a heartbeat; the seconds until the next step."""
        if self._rejoin.is_set():
            self._is_member = False
        try:
            coordinator = await self._link.reach()
            if self._is_member:
                code = await self._heartbeat(coordinator)
            else:
                code = await self._join(coordinator)
        except (KafkaError, OSError) as error:
            if (found := _code_of(error)) is None:
                return self._pause_while_away_s(unreachable(self._link.connection, error))
            code = found
        except SinkUnavailable as error:  # secrets that cannot be read
            return self._pause_while_away_s(error)
        return self._pause_after_s(code)

    async def _heartbeat(self, coordinator: Coordinator) -> int:
        """The code."""
        sent_s = self._boot_s()
        async with asyncio.timeout(self._session_s / _ATTEMPTS_A_SESSION):
            code = await coordinator.heartbeat(self.member_id, self.generation)
        if code in (_OK, _REBALANCE):
            self.answered_s = sent_s
        return code

    async def _join(self, coordinator: Coordinator) -> int:
        """Join and sync. The code."""
        self._rejoin.clear()
        is_new, joined_s = not self.member_id, self._boot_s()
        joined = await coordinator.join(
            self.member_id,
            self._replica.metadata(),
            instance=self._instance,
            protocol_type=PROTOCOL_TYPE,
            protocol=PROTOCOL,
            session_ms=int(self._session_s * 1000),
            rebalance_ms=int(_REBALANCE_S * 1000),
        )
        if joined.code in (_OK, _ID_REQUIRED):
            self.member_id = joined.member_id
        if joined.code != _OK:
            return joined.code
        self.answered_s, synced_s = joined_s, self._boot_s()
        self.leads = joined.leader_id == joined.member_id
        code, assignment = await coordinator.sync(
            joined.member_id,
            joined.generation,
            self._replica.assign(joined.members) if self.leads else {},
            instance=self._instance,
        )
        if code != _OK:
            return code
        self.answered_s, self.generation = synced_s, joined.generation
        while self.silent:  # it was suspended, and its streams may be assigned to others
            if (code := await self._heartbeat(coordinator)) != _OK:
                return code
        self._is_member, self._is_lost = True, False
        if is_new and self._instance:
            # a static member that is known is answered from memory: the leader has not seen its
            # metadata
            self._rejoin.set()
        self._counts.joined(len(joined.members), joined.generation)
        _log.info("joined the group", extra=self._extra(leads=self.leads))
        self._replica.assigned(joined.generation, assignment)
        return _OK

    # ---- what comes of it, and the seconds until the next step -----------------------------------

    def _pause_after_s(self, code: int) -> float:
        if code in _LOST:
            self._lose(code)
            return 0.0
        if code in _CURABLE:
            return self._pause_while_refused_s(code)
        if code in _AWAY:
            return self._pause_while_away_s(_uncoordinated(code))
        if code not in (_OK, _REBALANCE, _ID_REQUIRED):
            _log.warning(
                "unexpected answer of the coordinator", extra=self._extra(error=_name(code))
            )
            return _UNEXPECTED_PAUSE_S
        self._away_since_s = None
        if code != _OK:
            self._is_member = False
            return 0.0
        self._refused_pause_s = _REFUSED_PAUSE_S
        if self._problems.pop(PROBLEM, None) is not None:
            _log.info("group is usable again", extra=self._extra())
            self._counts.usable(True)
        return min(_HEARTBEAT_S_MAX, self._session_s / _HEARTBEATS_A_SESSION)

    def _lose(self, code: int) -> None:
        """The coordinator does not know the member, or not in its generation."""
        if self._instance and code != _ILLEGAL_GENERATION and not self.silent:
            self._suspect_namesake()
        _log.warning("lost the membership in the group", extra=self._extra(error=_name(code)))
        self._is_member, self._is_lost = False, True
        self._counts.lost()
        if code != _ILLEGAL_GENERATION:
            self.member_id = ""
        self._replica.lost()

    def _suspect_namesake(self) -> None:
        """A static member in no doubt is unknown: the second time within `_SAME_NAME_S`, another
        process joins by its name."""
        former_s, self._unknown_s = self._unknown_s, self._boot_s()
        if self._unknown_s - former_s < _SAME_NAME_S:
            hint = "give each replica a name of its own"
            _log.error(
                "another process has the same sharding.instance; this one goes on as a dynamic "
                "member",
                extra=self._extra(instance=self._instance, hint=hint),
            )
            self._instance = ""

    def _pause_while_refused_s(self, code: int) -> float:
        """Only an operator can provide what is missing."""
        error = _unusable(self._group, code)
        self._report(str(error), error.cure)
        pause_s = self._refused_pause_s
        self._refused_pause_s = min(2 * pause_s, _REFUSED_PAUSE_S_MAX)
        return pause_s

    def _pause_while_away_s(self, error: SinkUnavailable) -> float:
        """The coordinator is looked up again, by a new connection: what ended one may have ended
        all. The next one knows the group."""
        self._link.close()
        now_s = self._boot_s()
        if self._away_since_s is None:
            self._away_since_s = now_s
        if now_s - self._away_since_s > self._session_s:
            message = f"the coordinator of group {self._group} does not answer: {error}"
            self._report(message, error.cure)
        return _AWAY_PAUSE_S

    def _report(self, message: str, cure: str) -> None:
        self._counts.usable(False)
        trouble = Trouble(f"group {self._group}", Cause.GROUP, message, cure)
        if self._problems.put(PROBLEM, trouble):
            _log.warning("cannot use the group", extra=self._extra(error=message))

    def _extra(self, **more: object) -> dict[str, object]:
        return {
            "group": self._group,
            "member": self.member_id,
            "generation": self.generation,
            **more,
        }


async def check_group(connection: KafkaConnection, group: str, *, session_s: float) -> int | None:
    """Whether this user may be a member of `group` with sessions of `session_s`, and other programs
    leave it alone. The number of its members; None where the brokers offer no DescribeGroups.

    Raises: SinkForbidden, SinkMisconfigured with the cure; SinkUnavailable when no broker answers.
    """
    brokers, described = Brokers(connection), DescribedGroup(_OK, "", 0)
    try:
        async with asyncio.timeout(_CHECK_S):
            while True:
                described = await _described(brokers, group, session_s)
                if described.code not in _AWAY:
                    break
                await asyncio.sleep(_AWAY_PAUSE_S)
    except (KafkaError, OSError) as error:
        if isinstance(error, TimeoutError) and described.code in _AWAY:
            raise _uncoordinated(described.code, f"group {group} is not usable: ") from error
        raise unreachable(connection, error) from error
    finally:
        brokers.close()
    if described.members and described.protocol_type != PROTOCOL_TYPE:
        raise _unusable(group, _INCONSISTENT)
    if described.code in _CURABLE:
        raise _unusable(group, described.code)
    return described.members


async def _described(brokers: Brokers, group: str, session_s: float) -> DescribedGroup:
    """The group, with the code that a member would get. Raises: KafkaError, OSError."""
    try:
        coordinator = await brokers.coordinator(group)
    except KafkaError as error:
        if (code := _code_of(error)) is None:
            raise
        return DescribedGroup(code, "", 0)
    try:
        try:
            described = await coordinator.describe()
        except IncompatibleBrokerVersion:  # the brokers do not offer it, and a member needs it not
            described = DescribedGroup(_OK, "", None)
        # what an unknown member asks needs the right of a member, and changes nothing
        heartbeat_code = await coordinator.heartbeat(_UNKNOWN, 0)
        joined = await coordinator.join(
            _UNKNOWN,
            b"",
            instance="",
            protocol_type=PROTOCOL_TYPE,
            protocol=PROTOCOL,
            session_ms=round(session_s * 1000),
            rebalance_ms=round(_REBALANCE_S * 1000),
        )
        codes = {described.code, heartbeat_code, joined.code}
        gravest, *_ = *codes & _CURABLE, *codes & _AWAY, _OK
        return described._replace(code=gravest)
    finally:
        coordinator.close()


def _code_of(error: Exception) -> int | None:
    """The code of the answer to a search for the coordinator, None for any other error."""
    # the errno of an OSError is none of Kafka's
    code = getattr(error, "errno", None) if isinstance(error, KafkaError) else None
    return code if code in _AWAY or code in _CURABLE else None


def _uncoordinated(code: int, where: str = "") -> SinkUnavailable:
    """The error of a code of `_AWAY` that lasts."""
    cure = (
        "the brokers name no coordinator: is offsets.topic.replication.factor more than there are "
        "brokers, or are those that hold its part of __consumer_offsets down?"
    )
    if code != _NO_COORDINATOR:
        return SinkUnavailable(f"{where}{plain_words(for_code(code)())}")
    return SinkUnavailable(f"{where}{cure}", cure=cure)


def _unusable(group: str, code: int) -> SinkMisconfigured:
    kind = SinkForbidden if code == _FORBIDDEN else SinkMisconfigured
    return kind(f"group {group} is not usable: {CURES[code]}", cure=CURES[code])


def _name(code: int) -> str:
    return str(for_code(code).__name__)
