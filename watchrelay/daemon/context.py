"""What the streams of one process share."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from watchrelay.core.joined import Joined
from watchrelay.core.turns import OneByOne
from watchrelay.daemon.clock_watch import ClockWatch
from watchrelay.daemon.memory import HeapTrimmer
from watchrelay.daemon.snapshot_requests import SnapshotRequests
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.control_topic import ControlTopic
from watchrelay.kafka.log_scan import Written, written
from watchrelay.kafka.sink import KafkaSink
from watchrelay.kafka.topic_config import Finding, TopicFacts
from watchrelay.kafka.topic_reads import TopicReads
from watchrelay.kafka.topic_risks import TopicRisks
from watchrelay.kafka.topics import Topics
from watchrelay.kube.client import KubeClient
from watchrelay.model.resources import UNKNOWN, Availability, Resource
from watchrelay.model.streams import StreamSpec
from watchrelay.observe.metrics import Metrics
from watchrelay.observe.status import StatusRegistry
from watchrelay.plan.described import KeyFormats
from watchrelay.publish.timing import FlushTimer, HeartbeatInterval
from watchrelay.replicas.sharing import Sharing
from watchrelay.replicas.standby import Follower
from watchrelay.watch.admission import Admission

if TYPE_CHECKING:
    from watchrelay.config import Settings


log = logging.getLogger(__name__)

SCANS_MAX: Final = 4
"""Topics that are read as a whole at a time: what is found of all their streams is in memory."""


async def _unknown(_resource: Resource) -> Availability:
    return UNKNOWN


@dataclass(slots=True)
class DaemonContext:
    """What the streams of one process share.

    `settings`: those in effect. `planned`: all streams whose resources discovery knows.
    `formats`: by the control topic, taken before each use. `one_by_one`: for what streams that
    start together do on the event loop. `logged`: what was logged of topics last, by name.
    `availability`: what discovery reports about a resource, by a new request. `control_made` is set
    once the control topic is usable. `scans`: what a whole topic holds. `server_version`:
    (major, minor) once known. `sharing` and `follower`: where replicas share the streams."""

    settings: Settings
    metrics: Metrics
    statuses: StatusRegistry
    client: KubeClient
    admission: Admission
    connection: KafkaConnection
    sink: KafkaSink
    control: ControlTopic
    topics: Topics
    requests: SnapshotRequests
    holder: str
    heartbeat_interval: HeartbeatInterval
    server_version: tuple[int, int] | None = None
    sharing: Sharing | None = None
    follower: Follower | None = None
    clock_watch: ClockWatch | None = None
    planned: Sequence[StreamSpec] = ()
    formats: KeyFormats = field(default_factory=KeyFormats)
    logged: dict[str, Sequence[Finding]] = field(default_factory=dict)
    one_by_one: OneByOne = field(default_factory=OneByOne)
    availability: Callable[[Resource], Awaitable[Availability]] = _unknown
    control_made: asyncio.Event = field(default_factory=asyncio.Event)
    rng: random.Random = field(default_factory=random.Random)
    risks: TopicRisks = field(init=False)
    reading_back: TopicReads = field(init=False)
    catching_up: TopicReads = field(init=False)
    scans: Joined[str, dict[str, Written]] = field(init=False)
    flush_timer: FlushTimer = field(default_factory=FlushTimer)
    trim: HeapTrimmer = field(default_factory=HeapTrimmer)

    def __post_init__(self) -> None:
        self.risks = TopicRisks(
            self.connection.servers, metrics=self.metrics, statuses=self.statuses
        )
        self.scans = Joined(partial(self._scan, asyncio.Semaphore(SCANS_MAX)))
        self.reading_back = TopicReads(self.connection)
        self.catching_up = TopicReads(self.connection)

    async def _scan(self, turns: asyncio.Semaphore, topic: str) -> dict[str, Written]:
        async with turns:
            return await written(self.connection, topic, cluster=self.settings.cluster)

    def note_topic(self, facts: TopicFacts) -> None:
        """Use the limits of a topic that was looked at, and tell what is wrong with it."""
        self.sink.limit(facts.name, facts.max_message_bytes, facts.bounded_by)
        self.risks.put({facts.name: facts.findings})
        former, self.logged[facts.name] = self.logged.get(facts.name, ()), facts.findings
        for each in facts.findings:
            if not each.setting and each not in former:
                extra = {"topic": each.topic, "warning": each.why}
                log.warning("topic is not as configured", extra=extra)
