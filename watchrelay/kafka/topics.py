"""Topics: created or checked before the first record is written."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from watchrelay.core.errors import SinkUnavailable, TopicRefused
from watchrelay.core.joined import Joined
from watchrelay.core.text import counted
from watchrelay.kafka.client import (
    ClusterAuthorizationFailedError,
    IncompatibleBrokerVersion,
    InvalidReplicationFactorError,
    InvalidTopicError,
    KafkaError,
    NoError,
    NotControllerError,
    RequestTimedOutError,
    TopicAlreadyExistsError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
    UnsupportedVersionError,
    for_code,
)
from watchrelay.kafka.client.admin import (
    NewTopic,
    connection_failure,
    make_admin,
    rights_on_topics,
    topic_configs,
    topic_metadata,
)
from watchrelay.kafka.client.client_log import quiet_client_log
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.client.error_codes import CURES, error_of
from watchrelay.kafka.client.failures import plain_words, unreachable
from watchrelay.kafka.client.metadata import NO_ID, ids_in, topics_in
from watchrelay.kafka.topic_config import (
    Finding,
    TopicFacts,
    TopicSpec,
    create_command,
    findings,
    judge,
    kept_by_own_time,
    merged,
    without_refused,
)
from watchrelay.kafka.topic_settings import FoundTopic

__all__ = ["TopicFacts", "TopicSpec", "Topics"]

_log = logging.getLogger(__name__)

_REQUEST_TIMEOUT_S = 15.0
_SETTLE_TIMEOUT_S = 20.0
"""A new topic is not known to every broker at once (error 3 from DescribeConfigs, seen on Kafka 3.9
and 4.1)."""
_DEADLINE_S = 60.0
_POLL_S = 0.2
_CLOSE_TIMEOUT_S = 3.0
_AT_ONCE = 8
_MESSAGE_BYTES_UNKNOWN = 1_048_588
_AUTHORIZATION = (TopicAuthorizationFailedError, ClusterAuthorizationFailedError)
_TRANSIENT = (UnknownTopicOrPartitionError, NotControllerError, RequestTimedOutError)
_NO_LEADER = 5
_POLICY_VIOLATION = 44
_CONFIGS_REFUSED = (40, _POLICY_VIOLATION)
"""INVALID_CONFIG. Source: Kafka protocol guide, "Error Codes"."""
_TOPICS_A_REQUEST = 100
_ID_ANSWERS_MAX = 4
_NOT_OFFERED = (IncompatibleBrokerVersion, UnsupportedVersionError)
"""Raised where the brokers have no such request."""

_Answer = TypeVar("_Answer")


class Topics:
    """Creates and checks topics. `create`: may it create, when `kafka.createTopics` allows it."""

    def __init__(self, connection: KafkaConnection, *, create: bool = True) -> None:
        self._connection = connection
        self._create = create
        self._expected: dict[str, tuple[object, list[TopicSpec]]] = {}
        self._ids: dict[str, bytes] = {}
        self._places = asyncio.Semaphore(_AT_ONCE)
        self._checks = Joined(self._check)

    def expect(
        self, topic: str, specs: Callable[[], Iterable[TopicSpec]], *, version: object = None
    ) -> None:
        """Name all that will be asked for a topic, so that one of several streams is made for the
        most demanding of them. What was named of it before is forgotten.

        Args:
            specs: not called where `version`, that of what it depends on, is the same as last time.
                None: always called.
        """
        former_version, _ = self._expected.get(topic, (None, ()))
        if version is None or former_version != version:
            self._expected[topic] = version, [*dict.fromkeys(specs())]

    async def ensure_topic(self, spec: TopicSpec) -> TopicFacts:
        """The facts of a topic that exists and is safe, made now if it did not exist.

        Raises: TopicRefused when an operator must act, with what to change; SinkUnavailable: retry.
        """
        facts = await self._checked(spec, make=True)
        assert facts is not None, "a topic that is made is there"
        return facts

    async def check_topic(self, spec: TopicSpec) -> TopicFacts | None:
        """As `ensure_topic`, but nothing is created: None when the topic does not exist yet and
        could be.

        Raises: TopicRefused, SinkUnavailable, as `ensure_topic`.
        """
        return await self._checked(spec, make=False)

    async def rights(self, names: Iterable[str]) -> dict[str, frozenset[str]]:
        """Which of READ, WRITE, CREATE and DESCRIBE_CONFIGS our user has, by topic, which need not
        exist; without those that brokers do not answer about. Raises: SinkUnavailable.
        """
        return await self._with_admin(lambda admin: self._rights(admin, names))

    async def _rights(self, admin: Any, names: Iterable[str]) -> dict[str, frozenset[str]]:
        rights = await rights_on_topics(admin, names)
        doubtful = [NewTopic(name, 1, 1) for name, held in rights.items() if "CREATE" not in held]
        if doubtful:  # it may be a right on the cluster; only a request that makes nothing shows it
            answer = await admin.create_topics(
                doubtful, timeout_ms=int(_REQUEST_TIMEOUT_S * 1000), validate_only=True
            )
            rights |= {
                name: rights[name] | {"CREATE"}
                for name, code, *_ in answer.topic_errors
                if for_code(code) not in _AUTHORIZATION
            }
        return rights

    async def _checked(self, spec: TopicSpec, *, make: bool) -> TopicFacts | None:
        """Once for all streams of a topic that ask at the same time."""
        _, others = self._expected.get(spec.name, (None, ()))
        return await self._checks.result((merged([spec, *others]), make))

    async def _check(self, wanted: tuple[TopicSpec, bool], _: object) -> TopicFacts | None:
        spec, make = wanted
        async with self._places:
            return await self._with_admin(lambda admin: self._ensure(admin, spec, make=make))

    async def _with_admin(self, ask: Callable[[Any], Awaitable[_Answer]]) -> _Answer:
        quiet_client_log()
        admin = make_admin(
            self._connection.arguments(), request_timeout_ms=int(_REQUEST_TIMEOUT_S * 1000)
        )
        try:
            async with asyncio.timeout(_DEADLINE_S):
                await admin.start()
                return await ask(admin)
        except (KafkaError, OSError, TimeoutError, ValueError) as error:
            raise unreachable(self._connection, error, connection_failure(admin)) from error
        finally:
            try:
                async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                    await admin.close()
            except TimeoutError:
                _log.debug("admin client did not close in time")

    async def _ensure(self, admin: Any, spec: TopicSpec, *, make: bool) -> TopicFacts | None:
        topic, brokers = await self._describe(admin, spec)
        created = False
        if topic is None:
            self._may_make(spec, brokers)
            if not make:
                await self._make(admin, spec, validate_only=True)
                return None
            created = await self._make(admin, spec)
            topic = await self._settled(admin, spec)
        configs, doubts = await self._configs(admin, spec)
        topic = replace(topic, configs=configs or {})
        size, bounded_by = topic.size_limit() or (_MESSAGE_BYTES_UNKNOWN, "max.message.bytes")
        return TopicFacts(
            spec.name,
            topic.partitions,
            topic.replicas,
            size,
            checked=configs is not None,
            created=created,
            findings=(*doubts, *judge(spec, topic, servers=self._connection.servers)),
            topic_id=topic.id,
            keeps_ms=kept_by_own_time(topic),
            bounded_by=bounded_by,
        )

    async def look_again(self, specs: Iterable[TopicSpec]) -> dict[str, list[Finding]]:
        """What is wrong by now with the topics of `specs`, nothing refused; without those that
        cannot be read. Raises: SinkUnavailable."""
        by_name = dict[str, list[TopicSpec]]()
        for spec in specs:
            by_name.setdefault(spec.name, []).append(spec)
        return await self._with_admin(lambda admin: self._findings(admin, by_name))

    async def _findings(
        self, admin: Any, specs: Mapping[str, Sequence[TopicSpec]]
    ) -> dict[str, list[Finding]]:
        found = dict[str, list[Finding]]()
        configs = await _configs_of(admin, list(specs))
        for names in _requests(list(configs)):
            for _code, name, partitions in topics_in(await topic_metadata(admin, names)):
                if partitions and name in configs:
                    topic = _found(partitions, configs=configs[name])
                    with contextlib.suppress(TopicRefused):  # its streams are, and say why
                        faults, doubts = findings(merged(specs[name]), topic)
                        found[name] = [*faults, *doubts]
        return found

    async def kept(self, names: Sequence[str]) -> dict[str, int]:
        """As `kept_by_own_time`, of those that can be read. Raises: SinkUnavailable."""
        found = await self._with_admin(lambda admin: _configs_of(admin, names))
        return {name: kept_by_own_time(FoundTopic(1, 1, each)) for name, each in found.items()}

    # ---- asking ----------------------------------------------------------------------------------

    async def _describe(self, admin: Any, spec: TopicSpec) -> tuple[FoundTopic | None, int]:
        """The topic without its configs, None when it does not exist; and the number of brokers. An
        id other than before is confirmed by a second broker: one that missed that the topic was
        recreated answers with the former one. Raises: TopicRefused; SinkUnavailable while it has no
        leaders, or brokers differ."""
        former = self._ids.get(spec.name, NO_ID)
        for _ in range(_ID_ANSWERS_MAX):
            found, brokers = await self._describe_once(admin, spec)
            topic_id = NO_ID if found is None else found.id
            if former == NO_ID or topic_id in (NO_ID, former):
                self._ids[spec.name] = topic_id or self._ids.get(spec.name, NO_ID)
                return found, brokers
            former = topic_id
        raise SinkUnavailable(
            f"topic {spec.name}: brokers answer with different ids: one of them does not know yet "
            "that it was deleted and recreated"
        )

    async def _describe_once(self, admin: Any, spec: TopicSpec) -> tuple[FoundTopic | None, int]:
        answer = await topic_metadata(admin, [spec.name])
        brokers, ids = len(answer.brokers), ids_in(answer)
        for code, name, partitions in topics_in(answer):
            error = for_code(code)
            if name != spec.name or error is UnknownTopicOrPartitionError:
                continue
            if error in _AUTHORIZATION:
                raise TopicRefused(
                    f"topic {name}: this user may not see it; grant READ, WRITE and "
                    "DESCRIBE_CONFIGS on it or its prefix"
                )
            if error is not NoError:
                raise error_of(code, f"topic {name}")
            codes = sorted({code for code, _, leader, *_ in partitions if leader < 0})
            if partitions and not codes:
                return _found(partitions, topic_id=ids.get(name) or NO_ID), brokers
            cure = next((CURES[each] for each in codes if each in CURES), CURES[_NO_LEADER])
            what = f"topic {name}: not all of its partitions have a leader"
            raise SinkUnavailable(f"{what}: {cure}", cure=cure)
        return None, brokers

    async def _settled(self, admin: Any, spec: TopicSpec) -> FoundTopic:
        """A topic that was just created, once brokers show it with leaders."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + _SETTLE_TIMEOUT_S
        while True:
            try:
                found, _ = await self._describe(admin, spec)
                if found is not None:
                    return found
            except (SinkUnavailable, KafkaError):
                if loop.time() > deadline_s:
                    raise
            if loop.time() > deadline_s:
                raise SinkUnavailable(
                    f"topic {spec.name} was created, but the brokers do not show it"
                )
            await asyncio.sleep(_POLL_S)

    async def _configs(
        self, admin: Any, spec: TopicSpec
    ) -> tuple[dict[str, str] | None, tuple[Finding, ...]]:
        """The topic's configs; or None and why they could not be read."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + _SETTLE_TIMEOUT_S
        unchecked = "its configuration could not be checked"
        while True:
            try:
                (answer,) = await topic_configs(admin, [spec.name])
            except _NOT_OFFERED:
                return None, (Finding(spec.name, f"{unchecked}: the brokers do not offer it"),)
            code, message, _type, _name, entries = answer
            error = for_code(code)
            if error is NoError:
                return _read(entries), ()
            if error in _AUTHORIZATION:
                why = f"{unchecked}: grant DESCRIBE_CONFIGS on it or its prefix"
                return None, (Finding(spec.name, why),)
            if error not in _TRANSIENT or loop.time() > deadline_s:
                raise error_of(code, message or f"configuration of topic {spec.name}")
            await asyncio.sleep(_POLL_S)

    # ---- creating --------------------------------------------------------------------------------

    def _may_make(self, spec: TopicSpec, brokers: int) -> None:
        """Raises: TopicRefused when the topic, which does not exist, cannot be created by us."""
        if not self._create:
            raise TopicRefused(
                f"topic {spec.name} does not exist and kafka.createTopics is false; "
                f"{self._by_hand(spec)}"
            )
        if spec.replication_factor > brokers:
            raise TopicRefused(
                f"topic {spec.name} cannot be created: kafka.replicationFactor is "
                f"{spec.replication_factor}, the cluster has {counted(brokers, 'broker')} "
                "running; start the others if it has more, or set "
                f"kafka.replicationFactor to {brokers} or less, and kafka.minInsyncReplicas "
                "no higher"
            )

    def _by_hand(self, spec: TopicSpec) -> str:
        return f"create it with: {create_command(spec, servers=self._connection.servers)}"

    async def _make(self, admin: Any, spec: TopicSpec, *, validate_only: bool = False) -> bool:
        """Create the topic. Returns: whether this call did, and not another stream or relay
        meanwhile. Raises: TopicRefused. Args: `validate_only`: nothing is created, but refused."""
        by_hand, configs = self._by_hand(spec), spec.configs()
        while True:
            new = NewTopic(
                spec.name, spec.partitions, spec.replication_factor, topic_configs=configs
            )
            try:
                answer = await admin.create_topics(
                    [new],
                    timeout_ms=int(_REQUEST_TIMEOUT_S * 1000),
                    validate_only=validate_only,
                )
            except (*_NOT_OFFERED, AttributeError) as error:
                # AttributeError: aiokafka's answer to a cluster that names no controller, as the
                # embedded one.
                if validate_only:
                    return True
                raise TopicRefused(
                    f"topic {spec.name} does not exist and the brokers offer no way to create "
                    f"it; {by_hand}"
                ) from error
            _name, code, message, *_ = answer.topic_errors[0]
            error_type = for_code(code)
            if error_type is TopicAlreadyExistsError:
                return False
            if validate_only and (error_type is NoError or error_type in _AUTHORIZATION):
                return True  # a right that is missing is reported with the others
            if error_type is NoError:
                extra = {"topic": spec.name, "partitions": spec.partitions, "configs": configs}
                _log.info("topic created", extra=extra)
                return True
            if code in _CONFIGS_REFUSED and (fewer := without_refused(configs, message or "")):
                extra = {"topic": spec.name, "error": message, "configs": fewer}
                _log.warning("brokers refuse settings of a new topic", extra=extra)
                configs = fewer
            elif error_type in _TRANSIENT:
                await asyncio.sleep(_POLL_S)
            else:
                raise TopicRefused(self._not_created(spec, code, message))

    def _not_created(self, spec: TopicSpec, code: int, message: str | None) -> str:
        """Why brokers refuse to create the topic, and the cure."""
        error, by_hand = for_code(code), self._by_hand(spec)
        if error is InvalidReplicationFactorError:
            return (
                f"topic {spec.name} cannot be created with kafka.replicationFactor "
                f"{spec.replication_factor}: too few brokers are up; {by_hand}"
            )
        if error in _AUTHORIZATION:
            return (
                f"topic {spec.name} does not exist and this user may not create it; grant "
                f"CREATE, or {by_hand}"
            )
        why = f"topic {spec.name} cannot be created: {message or plain_words(error_of(code))}"
        if error is InvalidTopicError:
            return (
                f"{why}; kafka takes . and _ in names of topics as the same: choose another topic "
                "in the resource entry, or another kafka.topicPrefix or cluster"
            )
        if code in CURES:
            why = f"{why}: {CURES[code]}"
        return f"{why}; {by_hand}"


def _requests(names: Sequence[str]) -> list[Sequence[str]]:
    """The names in as many requests as these take."""
    firsts = range(0, len(names), _TOPICS_A_REQUEST)
    return [names[first : first + _TOPICS_A_REQUEST] for first in firsts]


async def _configs_of(admin: Any, names: Sequence[str]) -> dict[str, dict[str, str]]:
    """The configs of each topic of which they can be read."""
    return {
        name: _read(entries)
        for some in _requests(names)
        for code, _message, _type, name, entries in await topic_configs(admin, some)
        if for_code(code) is NoError
    }


def _found(
    partitions: Sequence[Any], *, configs: Mapping[str, str] | None = None, topic_id: bytes = NO_ID
) -> FoundTopic:
    """The topic with these partitions, as `topics_in` gives them."""
    least = min(len(replicas) for _code, _partition, _leader, replicas, *_ in partitions)
    return FoundTopic(len(partitions), least, configs or {}, topic_id)


def _read(entries: Iterable[Sequence[Any]]) -> dict[str, str]:
    """The configs of a topic, by name."""
    return {name: value for name, value, *_ in entries if value is not None}
