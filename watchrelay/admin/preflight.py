"""Whether the world agrees with the config: API server, discovery, rights, brokers, topics. Changes
nothing unless told to create.

Room: app. In: settings. Out: facts, one line each, with the exit code each of them means.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Literal, Protocol

from watchrelay.config import ResourceEntry, Settings
from watchrelay.config.streams import resource_topic, shared_topics
from watchrelay.core.errors import (
    PERSON,
    ConfigError,
    KubeError,
    SinkMisconfigured,
    SinkUnavailable,
    TopicRefused,
)
from watchrelay.core.text import counted, printable
from watchrelay.daemon.kafka_connection import kafka_connection
from watchrelay.daemon.key_formats import KeyFormats
from watchrelay.daemon.plan import (
    PlannedStream,
    control_spec,
    overlapping,
    pinned_conflict,
    plan_streams,
    signal_spec,
    topic_conflict,
    topic_spec,
    why_overlapping,
)
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.log_scan import descriptions
from watchrelay.kafka.topic_config import TopicFacts, TopicSpec
from watchrelay.kafka.topics import Topics
from watchrelay.kube.auth.credentials import load_credentials
from watchrelay.kube.client import KubeClient
from watchrelay.kube.discovery.client import Discovery
from watchrelay.kube.discovery.resolve import Found, Impossible, Resolution
from watchrelay.model.frames import ListQuery, WatchQuery
from watchrelay.observe.metrics import Metrics

OK, UNAVAILABLE, BAD_CONFIG = 0, 69, 78
_ANSWER_S = 15.0
"""For the API server's first answer: whoever stands before a command waits for less long than a
relay."""
_SILENT = (
    "most likely it is frozen or overloaded, or a firewall or proxy swallows what is sent; "
    "else check the server's address"
)
_WATCH_S = 1
_CHECKS_AT_ONCE = 8
_TOPICS_SHOWN = 5
_IMPERSONATE = "cannot impersonate"
"""In the API server's refusal of every authorizer. Source: k8s.io/apiserver,
endpoints/handlers/responsewriters/errors.go."""

Level = Literal["ok", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Fact:
    """One line of the answer. Shape: `code` is 0 for what is well or only a warning."""

    what: str
    said: str
    level: Level = "ok"
    code: int = OK
    topic: TopicSpec | None = None
    """The topic that it is about."""
    found: TopicFacts | None = None
    """That topic, as the brokers show it."""
    absent: bool = False
    """That topic does not exist."""

    def __str__(self) -> str:
        said_already = self.said.startswith((f"{self.what} ", f"{self.what}:"))
        return printable(
            f"{self.level}: {self.said}"
            if said_already
            else f"{self.level}: {self.what}: {self.said}"
        )

    @staticmethod
    def exit_code(facts: Sequence[Fact]) -> int:
        """What a person must change outweighs what may come back by itself."""
        codes = {fact.code for fact in facts}
        return next((code for code in (BAD_CONFIG, UNAVAILABLE) if code in codes), OK)


async def check_everything(settings: Settings, act_as: str = "") -> list[Fact]:
    """All facts: cluster, resources, rights, then Kafka and its topics.

    Args:
        settings: what is checked.
        act_as: the service account whose rights in the cluster count,
        `system:serviceaccount:NAMESPACE:NAME`; else the caller's.
    """
    async with AsyncExitStack() as stack:
        facts: list[Fact] = []
        streams: list[PlannedStream] = []
        client = await _client(settings, stack, facts, act_as)
        if client is not None:
            streams = await _resolve(settings, client, facts)
            facts.extend(await _rights(client, streams))
    return [*facts, *await check_topics(settings, streams, create=False)]


async def resolve_streams(settings: Settings) -> tuple[list[PlannedStream], list[Fact]]:
    """The streams that the config means on this cluster, and what stood in the way."""
    async with AsyncExitStack() as stack:
        facts: list[Fact] = []
        client = await _client(settings, stack, facts)
        streams = [] if client is None else await _resolve(settings, client, facts)
    return streams, [fact for fact in facts if fact.level != "ok"]


async def connected(
    settings: Settings, stack: AsyncExitStack
) -> tuple[KubeClient | None, list[PlannedStream], list[Fact]]:
    """A client that lives as long as `stack`, the streams that the config means there, and what
    stood in the way."""
    facts: list[Fact] = []
    client = await _client(settings, stack, facts)
    streams = [] if client is None else await _resolve(settings, client, facts)
    return client, streams, [fact for fact in facts if fact.level != "ok"]


async def check_topics(
    settings: Settings, streams: Sequence[PlannedStream], *, create: bool
) -> list[Fact]:
    """A fact per topic: control and signal topic first, then those of the streams."""
    connection = kafka_connection(settings, client_id="watchrelay-check")
    check = _TopicCheck(
        Topics(connection, create=create or settings.kafka.create_topics), create=create
    )
    control = control_spec(settings)
    try:
        there = await check.check(control)
        described = (
            await _described(connection, control.name, check.facts)
            if there is not None and not there.created
            else {}
        )
        formats = KeyFormats(described)
        kept = [formats.kept(each.spec) for each in streams]
        wanted = [topic_spec(each, settings) for each in kept]
        check.topics.expect(wanted)
        reasons = (
            (
                each.topic,
                pinned_conflict(each, described.get(each.id))
                or topic_conflict(each, kept, described),
            )
            for each in reversed(kept)
        )
        refused = {topic: reason for topic, reason in reasons if reason}
        for spec in {each.name: each for each in (signal_spec(settings), *wanted)}.values():
            if spec.name in refused:  # as `run` refuses it: before it looks at the topic
                check.refuse(spec, refused[spec.name])
            else:
                await check.check(spec)
    except SinkUnavailable as error:
        return [*check.facts, _kafka_fact(error)]
    return [*check.facts, *await rights_in_kafka(check.topics, check.names, check.absent)]


class _TopicCheck:
    """Checks topics one by one.

    `facts` is what was found, `names` are the topics in the order of the checks, `absent` those of
    them that do not exist.
    """

    def __init__(self, topics: Topics, *, create: bool) -> None:
        self.topics = topics
        self.facts: list[Fact] = []
        self.names: list[str] = []
        self.absent: list[str] = []
        self._create = create

    async def check(self, spec: TopicSpec) -> TopicFacts | None:
        """The topic, None when it does not exist or is refused. Raises: SinkUnavailable."""
        try:
            found = await (
                self.topics.ensure_topic(spec) if self._create else self.topics.check_topic(spec)
            )
        except TopicRefused as error:
            self.refuse(spec, str(error))
            return None
        self.names.append(spec.name)
        if found is None:
            self.absent.append(spec.name)
            self._add(spec, "does not exist yet: `run` creates it", "warning", absent=True)
            return None
        made = "created, " if found.created else ""
        shape = (
            f"{counted(found.partitions, 'partition')}, replication factor "
            f"{found.replication_factor}"
        )
        self._add(spec, f"{made}{shape}", found=found)
        for warning in found.warnings:
            self._add(spec, warning, "warning")
        return found

    def refuse(self, spec: TopicSpec, reason: str) -> None:
        """Note that the topic cannot be used."""
        self.names.append(spec.name)
        self._add(spec, reason, "error")

    def _add(
        self,
        spec: TopicSpec,
        said: str,
        level: Level = "ok",
        *,
        found: TopicFacts | None = None,
        absent: bool = False,
    ) -> None:
        code = BAD_CONFIG if level == "error" else OK
        self.facts.append(
            Fact(f"topic {spec.name}", said, level, code, topic=spec, found=found, absent=absent)
        )


class TellsRights(Protocol):
    """Whoever knows what our user may do. Source: kafka/topics.py."""

    async def rights(self, names: Iterable[str]) -> dict[str, frozenset[str]]:
        """By topic which rights our user has on it; left out is what is not known."""
        ...


async def rights_in_kafka(
    topics: TellsRights, names: Sequence[str], absent: Sequence[str]
) -> list[Fact]:
    """A fact per right that `run` needs and this user lacks; one that tells of all when none is
    lacking.

    Shape: `absent` are those of `names` that `run` would make. That the configs of the others
    cannot be read was said of each.
    """
    try:
        told = await topics.rights(names)
    except SinkUnavailable as error:
        return [_kafka_fact(error)]
    facts = []
    for right, concerned in (
        ("READ", names),
        ("WRITE", names),
        ("CREATE", absent),
        ("DESCRIBE_CONFIGS", absent),
    ):
        lacking = [name for name in concerned if name in told and right not in told[name]]
        if lacking:
            said = (
                f"this user has no right {right} on {_listed(lacking)}: grant it on the "
                "topic prefix"
            )
            severe = right != "DESCRIBE_CONFIGS"
            facts.append(
                Fact(
                    "rights in kafka",
                    said,
                    "error" if severe else "warning",
                    BAD_CONFIG if severe else OK,
                )
            )
    if told and not facts:
        facts.append(
            Fact(
                "rights in kafka",
                f"this user may do on {counted(len(told), 'topic')} what a relay does",
            )
        )
    return facts


def _listed(topics: Sequence[str]) -> str:
    more = len(topics) - _TOPICS_SHOWN
    return ", ".join(topics[:_TOPICS_SHOWN]) + (
        f" and {counted(more, 'other topic')}" if more > 0 else ""
    )


async def _described(
    connection: KafkaConnection, control: str, facts: list[Fact]
) -> dict[str, dict[str, object]]:
    """The streams as the control topic describes them."""
    try:
        return await descriptions(connection, control)
    except SinkUnavailable as error:
        facts.append(_kafka_fact(error))
        return {}


async def _client(
    settings: Settings, stack: AsyncExitStack, facts: list[Fact], act_as: str = ""
) -> KubeClient | None:
    kubernetes = settings.kubernetes
    try:
        credentials = load_credentials(
            kubernetes.kubeconfig, kubernetes.context, environ=os.environ, act_as=act_as
        )
        client = await stack.enter_async_context(KubeClient(credentials, Metrics()))
        await credentials.headers()  # a plugin has a time of its own
        async with asyncio.timeout(_ANSWER_S):
            version = await client.version()
    except ConfigError as error:
        facts.append(Fact("kubernetes", str(error), "error", BAD_CONFIG))
        return None
    except TimeoutError:
        facts.append(
            Fact(
                "kubernetes",
                f"get /version at {client.where}: no answer within {_ANSWER_S:g} s ({_SILENT})",
                "error",
                UNAVAILABLE,
            )
        )
        return None
    except KubeError as error:
        facts.append(
            _cannot_impersonate(act_as)
            if act_as and _IMPERSONATE in str(error)
            else _kube_fact("kubernetes", error)
        )
        return None
    facts.append(
        Fact(
            "kubernetes",
            f"{client.where} is {version.git}{f', asked as {act_as}' if act_as else ''}",
        )
    )
    return client


def _cannot_impersonate(act_as: str) -> Fact:
    namespace, name = act_as.split(":")[-2:]
    said = (
        "the user of this kubeconfig may not act as it: grant that user the verb "
        f"impersonate on serviceaccounts {name} in namespace "
        f"{namespace}, or leave out --as and use a kubeconfig with the account's token "
        f"(`kubectl create token {name} --namespace {namespace}`)"
    )
    return Fact(f"as {act_as}", said, "error", BAD_CONFIG)


async def _resolve(
    settings: Settings, client: KubeClient, facts: list[Fact]
) -> list[PlannedStream]:
    discovery = Discovery(client)
    try:
        await discovery.refresh()
    except KubeError as error:
        facts.append(_kube_fact("discovery", error))
        return []
    resolutions = [(entry, discovery.resolve(entry.resource)) for entry in settings.resources]
    shared = shared_topics(
        settings,
        (
            (entry, resolution.resources if isinstance(resolution, Found) else ())
            for entry, resolution in resolutions
        ),
    )
    found = [
        stream
        for entry, resolution in resolutions
        for stream in _planned(settings, entry, resolution, shared, facts)
    ]
    planned: dict[str, PlannedStream] = {}
    # a wildcard means all others of its group
    for stream in sorted(found, key=lambda each: each.entry.resource.startswith("*")):
        planned.setdefault(stream.spec.id, stream)
    for stream, earlier in list(overlapping(planned.values())):
        facts.append(
            Fact(
                f"stream {stream.spec.id}",
                ": ".join(why_overlapping(settings, stream, earlier)),
                "error",
                BAD_CONFIG,
            )
        )
        del planned[stream.spec.id]
    return list(planned.values())


def _planned(
    settings: Settings,
    entry: ResourceEntry,
    resolution: Resolution,
    shared: set[str],
    facts: list[Fact],
) -> list[PlannedStream]:
    what = f"resource {entry.resource}"
    if isinstance(resolution, Impossible):
        facts.append(Fact(what, resolution.reason, "error", BAD_CONFIG))
        return []
    if not isinstance(resolution, Found):
        facts.append(Fact(what, f"{resolution.reason}: `run` waits for it", "warning"))
        return []
    facts.extend(Fact(what, warning, "warning") for warning in resolution.warnings)
    planned: list[PlannedStream] = []
    for resource in resolution.resources:
        try:
            planned += plan_streams(
                settings,
                entry,
                resource,
                prefixed=resource_topic(settings, entry, resource) in shared,
            )
        except ValueError as error:
            facts.append(Fact(what, str(error), "error", BAD_CONFIG))
            return []
    facts.append(Fact(what, ", ".join(str(resource) for resource in resolution.resources)))
    return planned


async def _rights(client: KubeClient, streams: Sequence[PlannedStream]) -> list[Fact]:
    """List and watch each stream for a moment: what the daemon will do, and nothing that needs
    another right."""
    turn = asyncio.Semaphore(_CHECKS_AT_ONCE)
    facts: dict[str, Fact] = {}

    async def one(stream: PlannedStream) -> None:
        async with turn:
            # else each would wait as long to say the same
            if not any(fact.code == UNAVAILABLE for fact in facts.values()):
                facts[stream.spec.id] = await _right(client, stream)

    async with asyncio.TaskGroup() as group:
        for stream in streams:
            group.create_task(one(stream), name=f"check {stream.spec.id}")
    return [facts[stream.spec.id] for stream in streams if stream.spec.id in facts]


async def _right(client: KubeClient, stream: PlannedStream) -> Fact:
    name, selection = stream.spec.id, stream.spec.plan.selection
    try:
        page = await client.list_page(selection, ListQuery(limit=1), stream=name)
        query = WatchQuery(
            page.resource_version, timeout_s=_WATCH_S, idle_timeout_s=_WATCH_S + 15.0
        )
        async with client.watch(selection, query, stream=name) as batches:
            async for _ in batches:
                pass
    except KubeError as error:
        return _kube_fact(f"stream {name}", error)
    may = f"may list and watch {selection.resource.qualified}"
    if selection.namespace and not page.objects and not page.failures:
        # The server answers so for a namespace that it does not have, and asking for that one needs
        # a right that the relay has not.
        said = (
            f"{may}; namespace {selection.namespace} holds none that are wanted: is its name "
            "right? `run` waits for the first"
        )
        return Fact(f"stream {name}", said, "warning")
    return Fact(f"stream {name}", may)


def _kube_fact(what: str, error: KubeError) -> Fact:
    return Fact(what, str(error), "error", BAD_CONFIG if isinstance(error, PERSON) else UNAVAILABLE)


def _kafka_fact(error: SinkUnavailable) -> Fact:
    return Fact(
        "kafka",
        str(error),
        "error",
        BAD_CONFIG if isinstance(error, SinkMisconfigured) else UNAVAILABLE,
    )
