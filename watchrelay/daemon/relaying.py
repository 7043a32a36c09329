"""What runs once the API server can be asked: the connections to Kafka, the control and signal
topics, and the streams.

Kafka and the path of the records are imported here and below, not by `daemon.py`, which asks the
API server first.
"""

from __future__ import annotations

import asyncio
import logging
import random
from functools import partial

from watchrelay.config import Settings
from watchrelay.core import clock
from watchrelay.core.backoff import Backoff
from watchrelay.core.clock_offset import ClockOffset
from watchrelay.core.errors import (
    KubeError,
    Misconfigured,
    SinkUnavailable,
    TopicLost,
    TopicRefused,
    Unauthorized,
    Unavailable,
)
from watchrelay.core.tasks import end_all, must_run
from watchrelay.core.trouble import Cause, Trouble
from watchrelay.daemon.clock_watch import ClockWatch
from watchrelay.daemon.context import ApiServer, DaemonContext, Reads, read_limit
from watchrelay.daemon.snapshot_requests import SnapshotRequests
from watchrelay.daemon.supervisor import Supervisor
from watchrelay.kafka.control_topic import ControlTopic
from watchrelay.kafka.record_times import RecordTimes
from watchrelay.kafka.signal_topic import SignalTopic
from watchrelay.kafka.sink import KafkaSink
from watchrelay.kafka.topic_config import TopicFacts, TopicSpec
from watchrelay.kafka.topic_risks import TopicRisks
from watchrelay.kafka.topics import Topics
from watchrelay.kube.client import KubeClient
from watchrelay.kube.discovery.client import Discovery
from watchrelay.observe.metrics import Metrics
from watchrelay.observe.status import Readiness, StatusRegistry
from watchrelay.plan.kafka import (
    control_spec,
    kafka_connection,
    replicas_group,
    signal_spec,
    topic_spec,
)
from watchrelay.publish.timing import FlushTimer, HeartbeatInterval
from watchrelay.replicas.group import GroupMember
from watchrelay.replicas.ownership import Sole
from watchrelay.replicas.sharing import Sharing
from watchrelay.watch.admission import Admission

log = logging.getLogger(__name__)

_DESCRIBED_EVERY_S = 5.0

_API_TIMEOUT_S = 5.0
_CHECK_TIMEOUT_S = 20.0
"""With an exec plugin that runs first: less than a replica takes to be unfit."""
_LOOK_EVERY_S = 600.0
_HAND_OVER = 0.75
"""The part of `shutdown.drainTimeout` in which other replicas may take the streams."""


def make_context(
    settings: Settings,
    client: KubeClient,
    *,
    metrics: Metrics,
    statuses: StatusRegistry,
    holder: str,
    rng: random.Random,
    flush_timer: FlushTimer,
    clock_offset: ClockOffset,
) -> DaemonContext:
    """What the streams share; nothing connects yet."""
    connection = kafka_connection(settings, client_id=f"watchrelay-{settings.cluster}")
    topics = Topics(connection, create=settings.kafka.create_topics)
    times = RecordTimes(clock_offset, servers=connection.servers)
    clock_watch = ClockWatch(
        times, metrics=metrics, statuses=statuses, ask=client.version, kept=topics.kept
    )
    sink = KafkaSink(connection, metrics=metrics, statuses=statuses, times=times)
    control = ControlTopic(
        connection,
        control_spec(settings).name,
        sink,
        statuses=statuses,
        holder=holder,
        reread_limit=partial(limit_has_grown, topics, sink, control_spec(settings)),
    )
    context = DaemonContext(
        settings=settings,
        metrics=metrics,
        statuses=statuses,
        server=ApiServer(client, Admission(metrics=metrics)),
        reads=Reads(connection, settings.cluster, rng),
        sink=sink,
        control=control,
        topics=topics,
        risks=TopicRisks(connection.servers, metrics=metrics, statuses=statuses),
        requests=SnapshotRequests(control, configured=statuses.streams, wall_ms=times.true_ms),
        heartbeat_interval=HeartbeatInterval(settings.heartbeat_interval_s),
        ownership=Sole(control),
        clock_watch=clock_watch,
        rng=rng,
        flush_timer=flush_timer,
    )
    if settings.sharding.enabled:
        context.ownership = make_sharing(context, clock_watch)
    return context


def make_sharing(context: DaemonContext, clock_watch: ClockWatch) -> Sharing:
    """This replica's part in the group; nothing connects yet."""
    sharding = context.settings.sharding
    return Sharing(
        make_group=partial(
            GroupMember,
            context.reads.connection,
            replicas_group(context.settings),
            session_s=sharding.session_timeout_s,
            instance=sharding.instance,
            metrics=context.metrics,
            statuses=context.statuses,
        ),
        control=context.control,
        sink=context.sink,
        metrics=context.metrics,
        statuses=context.statuses,
        api_answers=partial(is_fit, context.server.client, clock_watch),
        balance_after_s=sharding.balance_after_s,
        standbys=sharding.standbys,
        rng=context.rng,
    )


async def limit_has_grown(topics: Topics, sink: KafkaSink, topic: TopicSpec) -> bool:
    """Read the size that the topic takes again; whether more fits than before."""
    before = sink.limits(topic.name).message_bytes
    await read_limit(topics, sink, topic)
    return sink.limits(topic.name).message_bytes > before


async def is_fit(client: KubeClient, clock_watch: ClockWatch) -> bool:
    """Whether this replica can follow the API server, and write what it receives."""
    return await api_answers(client) and clock_watch.fit


async def api_answers(client: KubeClient) -> bool:
    """Whether the API server can be reached and accepts the credentials of this replica."""
    try:
        async with asyncio.timeout(_CHECK_TIMEOUT_S):
            await client.version(within_s=_API_TIMEOUT_S)
    except (Unavailable, Unauthorized, Misconfigured, TimeoutError):
        return False
    except KubeError:
        return True  # an error is an answer too
    return True


async def look_at_topics(context: DaemonContext) -> None:
    """Show what others change of the topics while they are used; nothing stops for it."""
    while True:
        await asyncio.sleep(_LOOK_EVERY_S)
        settings = context.settings
        specs = [
            control_spec(settings),
            signal_spec(settings),
            *(topic_spec(each, settings) for each in context.planned.values()),
        ]
        try:
            found = await context.topics.look_again(specs)
        except SinkUnavailable as error:
            log.debug("topics cannot be looked at", extra={"error": str(error)})
        else:
            context.risks.put(found, of={each.name for each in specs})


async def keep_descriptions(context: DaemonContext) -> None:
    """Write the descriptions of streams again that another writer of the control topic changed:
    readers find a stream by it, and give up its objects where it names another topic. Only those
    that two looks in a row find: a claim may follow its description."""
    met_once = set[str]()
    while True:
        await asyncio.sleep(_DESCRIBED_EVERY_S)
        altered = context.control.altered(context.planned)
        for stream in met_once.intersection(altered):
            try:
                await context.control.describe_again(stream)
            except TopicRefused as error:
                log.error("stream cannot be described", extra={"error": str(error)})
        met_once = set(altered) - met_once


class Relaying:
    """Runs in `tasks` from `start()` until `drain()` has returned."""

    def __init__(
        self,
        context: DaemonContext,
        discovery: Discovery,
        *,
        tasks: asyncio.TaskGroup,
        readiness: Readiness,
        stopping: asyncio.Event,
        superseded: asyncio.Event,
    ) -> None:
        self.supervisor = Supervisor(
            context, discovery, tasks=tasks, readiness=readiness, superseded=superseded
        )
        context.server.availability = self.supervisor.availability
        self._context, self._tasks, self._stopping = context, tasks, stopping
        self._running: dict[str, asyncio.Task[None]] = {}

    def start(self) -> None:
        """Connect to Kafka, discover and run the streams."""
        context = self._context
        works = {
            "sink": context.sink.run(),
            "control": self._control(),
            "signal": self._signal(),
            "topics": look_at_topics(context),
            "descriptions": keep_descriptions(context),
            "group": context.ownership.run(),
            "standby": context.reads.follower.run(),
            "supervisor": self.supervisor.run(),
        }
        if context.clock_watch is not None:
            works["clock"] = context.clock_watch.run()
        for name, work in works.items():
            task = must_run(work, name=name, stopping=self._stopping)
            self._running[name] = self._tasks.create_task(task, name=name)

    async def drain(self, *, deadline_s: float, at_once: asyncio.Event) -> bool:
        """Stop in the order of the data flow: discovery, the streams' watches and queues, then the
        topics and connections. Where replicas share the streams, others take over first what they
        can.

        Args:
            deadline_s: monotonic.
            at_once: does not send what is queued.

        Returns: whether all that was queued was sent.
        """
        async with asyncio.TaskGroup() as group:
            stopped = group.create_task(self._stop(deadline_s), name="drain")
            hurried = group.create_task(at_once.wait(), name="second signal")
            await asyncio.wait((stopped, hurried), return_when=asyncio.FIRST_COMPLETED)
            hurried.cancel()
            if not stopped.done():
                self.supervisor.abandon()
                stopped.cancel()
        await end_all(self._running.values())
        await self._context.ownership.leave()
        return not stopped.cancelled() and stopped.result()

    async def _stop(self, deadline_s: float) -> bool:
        within_s = _HAND_OVER * max(0.0, deadline_s - clock.now_s())
        await self._context.ownership.hand_over(within_s=within_s)
        self._running["supervisor"].cancel()
        return await self.supervisor.stop(deadline_s=deadline_s)

    # ---- the topics of the process ---------------------------------------------------------------

    async def _control(self) -> None:
        """Make or check the control topic, then follow it; again, when it is lost. Once it is read,
        the streams are planned by what it names, and claim."""
        context = self._context
        while True:
            await self._control_topic()
            context.control_made.set()
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(context.control.run(), name="control tail")
                    restored = await context.control.restore()
                    await context.control.caught_up()
                    self.supervisor.described()
                    if restored:
                        self.supervisor.restart(
                            "the control topic was recreated, and its claims and epochs are lost"
                        )
            except* TopicLost:
                log.error("control topic is lost", extra={"topic": context.control.topic})

    async def _control_topic(self) -> None:
        """Return once the control topic is there, and safe. Until the first time no stream starts;
        while it is lost later, streams go on."""
        context, topic = self._context, control_spec(self._context.settings)
        first = not context.control_made.is_set()
        facts = await self._topic(topic, Backoff(), first=first)
        if first:
            context.statuses.recover_all()
        context.note_topic(facts)

    async def _topic(
        self, topic: TopicSpec, backoff: Backoff, *, first: bool = False
    ) -> TopicFacts:
        """Return once `topic` exists and is safe; until then the process has a problem, and all
        streams have it where they wait for the topic, the `first` time. The problem is named by the
        kind of the topic, or, the first time, by its cause."""
        context, statuses = self._context, self._context.statuses
        shown: str = topic.kind
        while True:
            try:
                facts = await context.topics.ensure_topic(topic)
            except (TopicRefused, SinkUnavailable) as error:
                backoff, wait_s = backoff.after_failure(
                    clock.now_s(), healthy=False, rng=context.rng
                )
                trouble = self._why_unusable(topic, error)
                name = trouble.cause.value if first else topic.kind
                if name != shown:
                    statuses.problems.pop(shown, None)
                shown, new = name, statuses.problems.put(name, trouble)
                extra = {"topic": topic.name, "error": str(error), "retry_in_s": round(wait_s, 1)}
                if new and topic.kind == "control":
                    log.error("control topic is not usable", extra=extra)
                elif new:
                    log.warning(
                        "signal topic is not usable, snapshot requests are not read", extra=extra
                    )
                if first:
                    statuses.fail_all(trouble, wait_s)
                await asyncio.sleep(wait_s)
            else:
                statuses.problems.pop(shown, None)
                return facts

    def _why_unusable(self, topic: TopicSpec, error: TopicRefused | SinkUnavailable) -> Trouble:
        refused = isinstance(error, TopicRefused)
        is_kafka = topic.kind == "control" and not refused
        # a replica that is ready ends the one that a roll-out replaces by it
        operator = refused and not self._context.ownership.shares
        cause = Cause.KAFKA if is_kafka else Cause(topic.kind)
        return Trouble(topic.name, cause, str(error), error.cure, operator)

    async def _signal(self) -> None:
        """Make or check the signal topic, then follow it; again, when it is lost. Without it
        streams go on, and no snapshot request is read."""
        context = self._context
        await context.control_made.wait()
        await context.control.caught_up()  # it tells which streams there are
        topic = signal_spec(context.settings).name
        follower = SignalTopic(
            context.reads.connection,
            topic,
            context.requests.take,
            metrics=context.metrics,
            statuses=context.statuses,
            rng=context.rng,
            wall_ms=context.sink.times.true_ms,
        )
        while True:
            backoff = Backoff(base_s=5.0, cap_s=300.0)
            context.note_topic(await self._topic(signal_spec(context.settings), backoff))
            try:
                await follower.run()
            except TopicLost as lost:
                log.warning("signal topic is lost", extra={"topic": topic, "error": str(lost)})
