"""What the streams of one process share."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from watchrelay.core.errors import SinkUnavailable, TopicRefused
from watchrelay.core.joined import Joined
from watchrelay.core.turns import OneByOne
from watchrelay.daemon.clock_watch import ClockWatch
from watchrelay.daemon.memory import HeapTrimmer
from watchrelay.daemon.snapshot_requests import SnapshotRequests
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.control_topic import ControlTopic
from watchrelay.kafka.log_follower import LogFollower
from watchrelay.kafka.log_scan import TopicContent, written
from watchrelay.kafka.sink import KafkaSink
from watchrelay.kafka.topic_config import TopicFacts, TopicSpec
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
from watchrelay.replicas.ownership import Sole
from watchrelay.replicas.sharing import Sharing
from watchrelay.replicas.standby import Follower
from watchrelay.watch.admission import Admission

if TYPE_CHECKING:
    from watchrelay.config import Settings


log = logging.getLogger(__name__)

LIMIT_READ_S: Final = 3.0
"""Less than the 5 s within which a superseded relay has ended: heartbeats wait for it."""
SCANS_MAX: Final = 4
"""Topics that are read as a whole at a time: what is found of all their streams is in memory."""


async def _unknown(_resource: Resource) -> Availability:
    return UNKNOWN


async def read_limit(topics: Topics, sink: KafkaSink, topic: TopicSpec) -> TopicFacts | None:
    """The topic as it is now, whose size of a batch the sink uses from here on; None: it cannot be
    read now."""
    with contextlib.suppress(TopicRefused, SinkUnavailable, TimeoutError):
        async with asyncio.timeout(LIMIT_READ_S):
            if (facts := await topics.check_topic(topic)) is not None:
                sink.set_limit(topic.name, facts.max_message_bytes, facts.bounded_by)
                return facts
    return None


class Reads:
    """How the streams of one process read topics. `reading_back` and `catching_up`: those that
    start, and copies of what other replicas write, which `follower` reads on; `scans`: what a whole
    topic holds, by its name and its id: who asks while it is read gets that and what came since."""

    def __init__(self, connection: KafkaConnection, cluster: str, rng: random.Random) -> None:
        self.connection = connection
        self.reading_back, self.catching_up = TopicReads(connection), TopicReads(connection)
        self.follower: Follower = LogFollower(connection, rng=rng)
        self.scans: Joined[tuple[str, bytes], TopicContent] = Joined(self._scan)
        self._cluster, self._turns = cluster, asyncio.Semaphore(SCANS_MAX)

    async def _scan(self, place: tuple[str, bytes], before: TopicContent | None) -> TopicContent:
        topic, _id = place
        async with self._turns:
            return await written(self.connection, topic, cluster=self._cluster, before=before)


@dataclass(slots=True)
class ApiServer:
    """The API server, as the streams of one process see it. `availability`: what discovery reports
    about a resource, by a new request; `version`: (major, minor) once known."""

    client: KubeClient
    admission: Admission
    availability: Callable[[Resource], Awaitable[Availability]] = _unknown
    version: tuple[int, int] | None = None


@dataclass(slots=True)
class DaemonContext:
    """What the streams of one process share.

    `settings`: those in effect. `planned`: by name, all streams whose resources discovery knows.
    `formats`: of the topics, by the descriptions that it was given last (`take`). `one_by_one`: for
    what streams that start together do on the event loop. `control_made` is set once the control
    topic is usable."""

    settings: Settings
    metrics: Metrics
    statuses: StatusRegistry
    server: ApiServer
    reads: Reads
    sink: KafkaSink
    control: ControlTopic
    topics: Topics
    risks: TopicRisks
    requests: SnapshotRequests
    heartbeat_interval: HeartbeatInterval
    ownership: Sole | Sharing
    clock_watch: ClockWatch | None = None
    planned: Mapping[str, StreamSpec] = field(default_factory=dict)
    formats: KeyFormats = field(default_factory=KeyFormats)
    one_by_one: OneByOne = field(default_factory=OneByOne)
    control_made: asyncio.Event = field(default_factory=asyncio.Event)
    rng: random.Random = field(default_factory=random.Random)
    flush_timer: FlushTimer = field(default_factory=FlushTimer)
    trim: HeapTrimmer = field(default_factory=HeapTrimmer)

    def note_topic(self, facts: TopicFacts) -> None:
        """Use the limits of a topic that was looked at, and tell what is wrong with it."""
        self.sink.set_limit(facts.name, facts.max_message_bytes, facts.bounded_by)
        self.risks.note(facts.name, facts.findings)
