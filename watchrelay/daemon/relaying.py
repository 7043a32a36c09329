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
from watchrelay.core import causes, clock
from watchrelay.core.backoff import Backoff
from watchrelay.core.causes import Cause, CauseKind
from watchrelay.core.errors import (
    KubeError,
    Misconfigured,
    SinkUnavailable,
    TopicLost,
    TopicRefused,
    Unauthorized,
    Unavailable,
)
from watchrelay.daemon.context import DaemonContext
from watchrelay.daemon.kafka_connection import kafka_connection
from watchrelay.daemon.plan import control_spec, replicas_group, signal_spec
from watchrelay.daemon.sharing import Sharing
from watchrelay.daemon.snapshot_requests import SnapshotRequests
from watchrelay.daemon.supervisor import Supervisor
from watchrelay.daemon.tasks import end_all, must_run
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.control_topic import ControlTopic
from watchrelay.kafka.group import GroupMember
from watchrelay.kafka.log_follower import LogFollower
from watchrelay.kafka.signal_topic import SignalTopic
from watchrelay.kafka.sink import KafkaSink
from watchrelay.kafka.topic_config import TopicFacts, TopicSpec
from watchrelay.kafka.topics import Topics
from watchrelay.kube.client import KubeClient
from watchrelay.kube.discovery.client import Discovery
from watchrelay.observe.metrics import Metrics
from watchrelay.observe.status import Readiness, StatusRegistry
from watchrelay.publish.timing import FlushTimer, HeartbeatInterval
from watchrelay.watch.admission import Admission

log = logging.getLogger(__name__)

_API_TIMEOUT_S = 5.0
_CHECK_TIMEOUT_S = 20.0
"""With an exec plugin that runs first: less than a replica takes to be unfit."""
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
) -> DaemonContext:
    """What the streams share; nothing connects yet."""
    connection = kafka_connection(settings, client_id=f"watchrelay-{settings.cluster}")
    sink = KafkaSink(connection, metrics=metrics, statuses=statuses)
    control = ControlTopic(
        connection, control_spec(settings).name, sink, statuses=statuses, holder=holder
    )
    sharing = follower = None
    if settings.sharding.enabled:
        follower = LogFollower(connection, rng=rng)
        sharing = make_sharing(
            settings,
            client,
            connection=connection,
            control=control,
            sink=sink,
            metrics=metrics,
            statuses=statuses,
            holder=holder,
            rng=rng,
        )
    return DaemonContext(
        settings=settings,
        metrics=metrics,
        statuses=statuses,
        client=client,
        admission=Admission(metrics=metrics),
        connection=connection,
        sink=sink,
        control=control,
        topics=Topics(connection, create=settings.kafka.create_topics),
        requests=SnapshotRequests(control, configured=statuses.streams),
        holder=holder,
        heartbeat_interval=HeartbeatInterval(settings.heartbeat_interval_s),
        rng=rng,
        flush_timer=flush_timer,
        sharing=sharing,
        follower=follower,
    )


def make_sharing(
    settings: Settings,
    client: KubeClient,
    *,
    connection: KafkaConnection,
    control: ControlTopic,
    sink: KafkaSink,
    metrics: Metrics,
    statuses: StatusRegistry,
    holder: str,
    rng: random.Random,
) -> Sharing:
    """This replica's part in the group; nothing connects yet."""
    sharding = settings.sharding
    return Sharing(
        holder,
        make_group=partial(
            GroupMember,
            connection,
            replicas_group(settings),
            session_s=sharding.session_timeout_s,
            instance=sharding.instance,
            metrics=metrics,
            statuses=statuses,
        ),
        control=control,
        sink=sink,
        metrics=metrics,
        statuses=statuses,
        api_answers=partial(api_answers, client),
        balance_after_s=sharding.balance_after_s,
        standbys=sharding.standbys,
        rng=rng,
    )


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
        context.served = self.supervisor.served
        self._context, self._tasks, self._stopping = context, tasks, stopping
        self._running: dict[str, asyncio.Task[None]] = {}

    def start(self) -> None:
        """Connect to Kafka, discover and run the streams."""
        sharing, follower = self._context.sharing, self._context.follower
        for work, name in (
            (self._context.sink.run(), "sink"),
            (self._control(), "control"),
            (self._signal(), "signal"),
            *(() if sharing is None else ((self._share(sharing), "group"),)),
            *(() if follower is None else ((follower.run(), "standby"),)),
            (self.supervisor.run(), "supervisor"),
        ):
            task = must_run(work, name=name, stopping=self._stopping)
            self._running[name] = self._tasks.create_task(task, name=name)

    async def drain(self, *, deadline_s: float, at_once: asyncio.Event) -> bool:
        """Stop in the order of the data flow: discovery, the streams' watches and queues, then the
        topics and connections. Where replicas share the streams, others take over first what they
        can.

        Args:
            deadline_s: monotonic.
            at_once: leaves behind what is queued.

        Returns: whether nothing was left behind.
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
        if self._context.sharing is not None:
            await self._context.sharing.leave()
        return not stopped.cancelled() and stopped.result()

    async def _stop(self, deadline_s: float) -> bool:
        if (sharing := self._context.sharing) is not None:
            await sharing.hand_over(within_s=_HAND_OVER * max(0.0, deadline_s - clock.now_s()))
        self._running["supervisor"].cancel()
        return await self.supervisor.stop(deadline_s=deadline_s)

    # ---- the topics of the process ---------------------------------------------------------------

    async def _control(self) -> None:
        """The control topic: made or checked, then followed; again, when it is lost. No stream
        claims before it was read once, and planned by what it names."""
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
        """The control topic is there, and safe. Until it is for the first time, no stream starts;
        when it is lost later, streams go on."""
        context, topic = self._context, control_spec(self._context.settings)
        first = not context.control_made.is_set()
        facts = await self._topic(topic, Backoff(), first=first)
        if first:
            context.statuses.recover_all()
        for warning in facts.warnings:
            extra = {"topic": topic.name, "warning": warning}
            log.warning("topic has a questionable setting", extra=extra)

    async def _topic(
        self, topic: TopicSpec, backoff: Backoff, *, first: bool = False
    ) -> TopicFacts:
        """Return once `topic` exists and is safe; until then the process has a problem, and all
        streams have it where they wait for the topic, the `first` time."""
        context, statuses = self._context, self._context.statuses
        problem: str = topic.kind
        unusable = Cause(CauseKind(topic.kind))
        away = causes.KAFKA if topic.kind == "control" else unusable
        while True:
            try:
                facts = await context.topics.ensure_topic(topic)
            except (TopicRefused, SinkUnavailable) as error:
                backoff, wait_s = backoff.after_failure(
                    clock.now_s(), healthy=False, rng=context.rng
                )
                refused = isinstance(error, TopicRefused)
                cause = unusable if refused else away
                former, problem = problem, cause.kind.value if first else topic.kind
                if problem != former:
                    statuses.problems.pop(former, None)
                new = statuses.problems.put(problem, str(error), cause=cause)
                extra = {"topic": topic.name, "error": str(error), "retry_in_s": round(wait_s, 1)}
                if new and topic.kind == "control":
                    log.error("control topic is not usable", extra=extra)
                elif new:
                    log.warning(
                        "signal topic is not usable, snapshot requests are not read", extra=extra
                    )
                if first:  # a replica that is ready ends the one that a roll-out replaces by it
                    alone = context.sharing is None
                    statuses.fail_all(str(error), cause, wait_s, operator=refused and alone)
                await asyncio.sleep(wait_s)
            else:
                statuses.problems.pop(problem, None)
                return facts

    async def _share(self, sharing: Sharing) -> None:
        await self._context.control.caught_up()
        await sharing.run()

    async def _signal(self) -> None:
        """The signal topic: made or checked, then followed; again, when it is lost. Without it
        streams go on, and no snapshot request is read."""
        context = self._context
        await context.control_made.wait()
        await context.control.caught_up()  # it tells which streams there are
        topic = signal_spec(context.settings).name
        follower = SignalTopic(
            context.connection,
            topic,
            context.requests.take,
            metrics=context.metrics,
            statuses=context.statuses,
            rng=context.rng,
        )
        while True:
            backoff = Backoff(base_s=5.0, cap_s=300.0)
            await self._topic(signal_spec(context.settings), backoff)
            try:
                await follower.run()
            except TopicLost as lost:
                log.warning("signal topic is lost", extra={"topic": topic, "error": str(lost)})
