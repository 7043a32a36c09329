"""Checks of the config against API server, discovery, rights, brokers and topics. They change
nothing, unless `create` is given: then missing topics are created."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Literal

from watchrelay.config import ResourceEntry, Settings
from watchrelay.core.errors import (
    PERSON,
    ConfigError,
    KubeError,
    SinkMisconfigured,
    SinkUnavailable,
    TopicRefused,
)
from watchrelay.core.exit_codes import BAD_CONFIG, OK, UNAVAILABLE
from watchrelay.core.text import counted, listed, printable
from watchrelay.core.trouble import Cause, Trouble
from watchrelay.kafka.log_scan import descriptions
from watchrelay.kafka.topic_config import TopicFacts, TopicSpec, troubles
from watchrelay.kafka.topics import Topics
from watchrelay.kafka.transactions import check_transactional_ids
from watchrelay.kube.auth.credentials import load_credentials
from watchrelay.kube.client import KubeClient
from watchrelay.kube.discovery.client import Discovery
from watchrelay.kube.discovery.resolve import Resolution
from watchrelay.model.frames import ListQuery, WatchQuery
from watchrelay.observe.metrics import Metrics
from watchrelay.plan.described import (
    KeyFormats,
    in_versions_described,
    pinned_conflict,
    topic_conflict,
)
from watchrelay.plan.kafka import (
    control_spec,
    kafka_connection,
    replicas_group,
    signal_spec,
    topic_spec,
    transactional_id,
)
from watchrelay.plan.streams import (
    EntryPlan,
    PlannedStream,
    overlapping,
    plan_entries,
    plan_entry,
    streams_by_id,
    why_overlapping,
)
from watchrelay.replicas.group import check_group

_FIRST_RESPONSE_S = 15.0
"""For the API server's first response: shorter than a relay's, as a person waits for it."""
_NO_RESPONSE = (
    "most likely it is frozen or overloaded, or a firewall or proxy drops the packets; "
    "else check the server's address"
)
_WATCH_S = 1
_CHECKS_AT_ONCE = 50
_TOPICS_SHOWN = 5
_IMPERSONATE = "cannot impersonate"
"""Part of the API server's 403. Source: k8s.io/apiserver, handlers/responsewriters/errors.go."""

Level = Literal["ok", "warning", "error"]


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check, a line of output."""

    subject: str
    message: str
    level: Level = "ok"
    code: int = OK
    """The exit code; that of "ok" and "warning" is 0."""
    topic: TopicSpec | None = None
    """The topic that was checked."""
    topic_facts: TopicFacts | None = None
    """That topic, as the brokers describe it."""
    absent: bool = False
    """That topic does not exist."""
    about: str = "check"
    """What a warning is about, by one word that stays the same."""
    cause: Cause | None = None
    cure: str = ""
    """That of a trouble, where there is one; "" where the message has no exact cure."""

    @classmethod
    def of(
        cls,
        trouble: Trouble,
        level: Level = "error",
        code: int = BAD_CONFIG,
        *,
        subject: str = "",
        topic: TopicSpec | None = None,
        about: str = "check",
    ) -> CheckResult:
        """The line of a trouble. `subject`: for people."""
        return cls(
            subject or trouble.subject,
            trouble.message,
            level,
            OK if level == "warning" else code,
            topic=topic,
            about=about,
            cause=trouble.cause,
            cure=trouble.cure,
        )

    @property
    def name(self) -> str:
        """The name of a warning, for `acceptWarnings`, such as topic-absent; "" for no warning."""
        word = self.subject.partition(" ")[0]
        word = "topic" if word == "topics" else word
        return f"{word}-{self.about}" if self.level == "warning" else ""

    def __str__(self) -> str:
        return self._line(self.level)

    def with_name(self, accepted: Collection[str]) -> str:
        """The line, that of a warning with its name. `accepted`: the names that are."""
        if not self.name:
            return str(self)
        return f"{self._line('accepted' if self.name in accepted else self.level)} [{self.name}]"

    def _line(self, level: str) -> str:
        named = self.message.startswith((f"{self.subject} ", f"{self.subject}:"))
        return printable(f"{level}: {'' if named else f'{self.subject}: '}{self.message}")


def _error(subject: str, message: str, code: int = BAD_CONFIG) -> CheckResult:
    return CheckResult(subject, message, "error", code)


def worst_exit_code(results: Sequence[CheckResult]) -> int:
    """78 when operator action is required, else 69 when something is unavailable, else 0."""
    codes = {result.code for result in results}
    return next((code for code in (BAD_CONFIG, UNAVAILABLE) if code in codes), OK)


async def check_everything(settings: Settings, act_as: str = "") -> list[CheckResult]:
    """Check cluster, resources and rights, then Kafka, its topics and the group of the replicas.
    `act_as`: the account whose rights are checked, `system:serviceaccount:NAMESPACE:NAME`; "" for
    the caller's."""
    async with AsyncExitStack() as stack:
        client, streams, results = await connected(settings, stack, act_as)
        if client is not None:
            results.extend(await check_rights(client, streams))
    results += await check_topics(settings, streams, create=False)
    if settings.sharding.enabled and not any(each.subject == "kafka" for each in results):
        results.append(await _check_group(settings))
    ids = [transactional_id(settings, each.spec.id) for each in streams]
    if any(ids) and not any(each.subject == "kafka" for each in results):
        results.append(await _check_transactional_ids(settings, ids))
    return results


async def resolve_streams(settings: Settings) -> tuple[list[PlannedStream], list[CheckResult]]:
    """The streams of the config on this cluster, and the checks that failed or warn."""
    async with AsyncExitStack() as stack:
        _, streams, results = await connected(settings, stack)
    return streams, [result for result in results if result.level != "ok"]


async def connected(
    settings: Settings, stack: AsyncExitStack, act_as: str = ""
) -> tuple[KubeClient | None, list[PlannedStream], list[CheckResult]]:
    """A client that is closed with `stack` (None: not connected), the streams, and the results."""
    results: list[CheckResult] = []
    client = await _client(settings, stack, results, act_as)
    streams = [] if client is None else await resolve_described(settings, client, {}, results)
    return client, streams, results


async def check_topics(
    settings: Settings, streams: Sequence[PlannedStream], *, create: bool
) -> list[CheckResult]:
    """A result per topic: control, signal, those of the streams; then one for each cause of
    warnings, and one per right that is missing."""
    connection = kafka_connection(settings, client_id="watchrelay-check")
    topics = Topics(connection, create=create or settings.kafka.create_topics)
    control, results = control_spec(settings), list[CheckResult]()
    try:
        results += await _check_topic(topics, control, create=create)
        existing = results[0].topic_facts
        described: Mapping[str, Mapping[str, object]] = {}
        if existing is not None and not existing.created:
            try:
                described = await descriptions(connection, control.name)
            except SinkUnavailable as error:
                results.append(_kafka_error(error))
        formats = KeyFormats(described)
        kept = [formats.kept(each.spec) for each in streams]
        wanted = [topic_spec(each, settings) for each in kept]
        for topic in {each.name for each in wanted}:
            topics.expect(topic, [each for each in wanted if each.name == topic].copy)
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
            if spec.name in refused:  # as in `run`: before the topic is checked
                results.append(_refused(spec, TopicRefused(refused[spec.name])))
            else:
                results += await _check_topic(topics, spec, create=create)
        results += _settings_warnings(results, connection.servers)
        names = list(dict.fromkeys(each.topic.name for each in results if each.topic))
        absent = [each.topic.name for each in results if each.topic and each.absent]
        results += missing_rights(await topics.rights(names), names, absent)
    except SinkUnavailable as error:
        results.append(_kafka_error(error))
    return results


async def _check_topic(topics: Topics, spec: TopicSpec, *, create: bool) -> list[CheckResult]:
    """What there is to know of one topic. Raises: SinkUnavailable."""
    subject = f"topic {spec.name}"
    try:
        found = await (topics.ensure_topic(spec) if create else topics.check_topic(spec))
    except TopicRefused as error:
        return [_refused(spec, error)]
    if found is None:
        message = "does not exist yet: `run` creates it"
        return [CheckResult(subject, message, "warning", topic=spec, absent=True, about="absent")]
    made = "created, " if found.created else ""
    shape = (
        f"{counted(found.partitions, 'partition')}, replication factor {found.replication_factor}"
    )
    return [
        CheckResult(subject, f"{made}{shape}", topic=spec, topic_facts=found),
    ]


def _settings_warnings(results: Sequence[CheckResult], servers: str) -> list[CheckResult]:
    """A warning for each cause, over all topics that have it."""
    found = [each for one in results if one.topic_facts for each in one.topic_facts.findings]
    return [
        CheckResult.of(each, "warning", about=name.partition(" ")[0] or "config")
        for name, each in troubles(found, servers=servers).items()
    ]


async def _check_group(settings: Settings) -> CheckResult:
    group = replicas_group(settings)
    connection = kafka_connection(settings, client_id="watchrelay-check")
    try:
        session_s = settings.sharding.session_timeout_s
        members = await check_group(connection, group, session_s=session_s)
        known = "usable; the brokers do not list its members"
        return CheckResult(
            f"group {group}", known if members is None else counted(members, "member")
        )
    except SinkUnavailable as error:
        return _kafka_error(error, f"group {group}")


async def _check_transactional_ids(settings: Settings, ids: Sequence[str]) -> CheckResult:
    subject = "transactional ids"
    connection = kafka_connection(settings, client_id="watchrelay-check")
    try:
        await check_transactional_ids(connection, ids)
    except SinkUnavailable as error:
        return _kafka_error(error, subject)
    return CheckResult(subject, f"this user may write under {counted(len(ids), 'id')}")


def _refused(spec: TopicSpec, error: TopicRefused) -> CheckResult:
    return CheckResult.of(error.trouble(), subject=f"topic {spec.name}", topic=spec)


def missing_rights(
    granted: Mapping[str, frozenset[str]], names: Sequence[str], absent: Sequence[str]
) -> list[CheckResult]:
    """A result per right that `run` needs on the topics `names` and this user lacks; one for all
    when none is missing. `granted`: rights by topic, where they are known; `absent`: the topics
    that `run` would create."""
    subject, results = "rights in kafka", list[CheckResult]()
    for right, concerned in (
        ("READ", names),
        ("WRITE", names),
        ("CREATE", absent),
        ("DESCRIBE_CONFIGS", absent),
    ):
        lacking = [name for name in concerned if name in granted and right not in granted[name]]
        if lacking:
            topics = listed(lacking, shown=_TOPICS_SHOWN, what="topic")
            message = f"this user has no right {right} on {topics}: grant it on the topic prefix"
            results.append(
                CheckResult(subject, message, "warning", about="describe-configs")
                if right == "DESCRIBE_CONFIGS"
                else _error(subject, message)
            )
    if granted and not results:
        message = f"this user has the rights of a relay on {counted(len(granted), 'topic')}"
        results.append(CheckResult(subject, message))
    return results


async def _client(
    settings: Settings, stack: AsyncExitStack, results: list[CheckResult], act_as: str
) -> KubeClient | None:
    kubernetes = settings.kubernetes
    try:
        credentials = load_credentials(
            kubernetes.kubeconfig, kubernetes.context, environ=os.environ, act_as=act_as
        )
        client = await stack.enter_async_context(KubeClient(credentials, Metrics()))
        version = await client.version(within_s=_FIRST_RESPONSE_S)
    except ConfigError as error:
        results.append(_error("kubernetes", str(error)))
        return None
    except TimeoutError:
        results.append(
            _error(
                "kubernetes",
                f"get /version at {client.where}: no answer within {_FIRST_RESPONSE_S:g} s "
                f"({_NO_RESPONSE})",
                UNAVAILABLE,
            )
        )
        return None
    except KubeError as error:
        results.append(
            _cannot_impersonate(act_as)
            if act_as and _IMPERSONATE in str(error)
            else _kube_error("kubernetes", error)
        )
        return None
    checked_as = f", checked as {act_as}" if act_as else ""
    known = version.git or "of an unknown version"
    results.append(CheckResult("kubernetes", f"{client.where} is {known}{checked_as}"))
    return client


def _cannot_impersonate(act_as: str) -> CheckResult:
    namespace, name = act_as.split(":")[-2:]
    message = (
        "the user of this kubeconfig may not act as it: grant that user the verb "
        f"impersonate on serviceaccounts {name} in namespace "
        f"{namespace}, or leave out --as and use a kubeconfig with the account's token "
        f"(`kubectl create token {name} --namespace {namespace}`)"
    )
    return _error(f"as {act_as}", message)


async def resolve_described(
    settings: Settings,
    client: KubeClient,
    described: Mapping[str, Mapping[str, object]],
    results: list[CheckResult],
) -> list[PlannedStream]:
    """The streams of the config, in the versions in which they are described: none where discovery
    fails. What there is to know of each entry is added to `results`."""
    discovery = Discovery(client)
    try:
        await discovery.refresh()
    except KubeError as error:
        results.append(_kube_error("discovery", error))
        return []

    def plan_described(
        settings: Settings, entry: ResourceEntry, resolution: Resolution, shared: set[str]
    ) -> EntryPlan:
        meant = in_versions_described(entry, resolution, described, discovery.catalog)
        return plan_entry(settings, entry, meant, shared)

    plans = plan_entries(settings, discovery.resolve, plan_described)
    for plan in plans:
        results += _entry_results(plan)
    planned = streams_by_id(plans)
    for stream, earlier in list(overlapping(planned.values())):
        results.append(
            _error(
                f"stream {stream.spec.id}", ": ".join(why_overlapping(settings, stream, earlier))
            )
        )
        del planned[stream.spec.id]
    return list(planned.values())


def _entry_results(plan: EntryPlan) -> list[CheckResult]:
    what = f"resource {plan.entry.resource}"
    warnings = [
        CheckResult(what, warning, "warning", about="ambiguous") for warning in plan.warnings
    ]
    if (trouble := plan.problem) is None:
        return [*warnings, CheckResult(what, ", ".join(map(str, plan.resources)))]
    if trouble.cause not in (Cause.KUBERNETES, Cause.RESOURCE_NOT_SERVED):
        return [*warnings, CheckResult.of(trouble, subject=what)]
    waits = replace(trouble, message=f"{trouble.message}: `run` waits for it")
    return [CheckResult.of(waits, "warning", subject=what, about="not-served")]


async def check_rights(client: KubeClient, streams: Sequence[PlannedStream]) -> list[CheckResult]:
    """List and watch each stream briefly: the requests of the daemon, which need no other right."""
    turn = asyncio.Semaphore(_CHECKS_AT_ONCE)
    results: dict[str, CheckResult] = {}

    async def one(stream: PlannedStream) -> None:
        async with turn:
            # the others would run into the same timeout
            if not any(result.code == UNAVAILABLE for result in results.values()):
                results[stream.spec.id] = await _right(client, stream)

    async with asyncio.TaskGroup() as group:
        for stream in streams:
            group.create_task(one(stream), name=f"check {stream.spec.id}")
    return [results[stream.spec.id] for stream in streams if stream.spec.id in results]


async def _right(client: KubeClient, stream: PlannedStream) -> CheckResult:
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
        return _kube_error(f"stream {name}", error)
    may = f"may list and watch {selection.resource.qualified}"
    if selection.namespace and not page.objects and not page.failures:
        # the same response as for a namespace that does not exist; reading the namespace itself
        # needs a right that the relay does not have
        message = (
            f"{may}; no matching objects in namespace {selection.namespace}: check its name; `run` "
            "waits for the first"
        )
        return CheckResult(f"stream {name}", message, "warning", about="empty-namespace")
    return CheckResult(f"stream {name}", may)


def _kube_error(subject: str, error: KubeError) -> CheckResult:
    code = BAD_CONFIG if isinstance(error, PERSON) else UNAVAILABLE
    return CheckResult.of(error.trouble(), code=code, subject=subject)


def _kafka_error(error: SinkUnavailable, subject: str = "kafka") -> CheckResult:
    code = BAD_CONFIG if isinstance(error, SinkMisconfigured) else UNAVAILABLE
    return CheckResult.of(error.trouble(), code=code, subject=subject)
