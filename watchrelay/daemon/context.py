"""What the streams of one process share."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from watchrelay.daemon.memory import HeapTrimmer
from watchrelay.daemon.sharing import Sharing
from watchrelay.daemon.snapshot_requests import SnapshotRequests
from watchrelay.daemon.standby import Follower
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.control_topic import ControlTopic
from watchrelay.kafka.sink import KafkaSink
from watchrelay.kafka.topic_reads import TopicReads
from watchrelay.kafka.topics import Topics
from watchrelay.kube.client import KubeClient
from watchrelay.model.resources import Resource
from watchrelay.model.streams import StreamSpec
from watchrelay.observe.metrics import Metrics
from watchrelay.observe.status import StatusRegistry
from watchrelay.publish.timing import FlushTimer, HeartbeatInterval
from watchrelay.watch.admission import Admission

if TYPE_CHECKING:
    from watchrelay.config import Settings


SCANS_MAX: Final = 4
"""So many topics are read as a whole at a time: what is found of all their streams is in memory."""


async def _unknown(_resource: Resource) -> bool | None:
    return None


@dataclass(slots=True)
class DaemonContext:
    """What the streams of one process share.

    `settings`: those in effect. `planned`: all streams whose resources discovery knows.
    `served`: whether the API server serves a resource (None: not known). `control_made` is set
    once the control topic is usable. `scanning`: held to read a whole topic. `server_version`:
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
    planned: Sequence[StreamSpec] = ()
    served: Callable[[Resource], Awaitable[bool | None]] = _unknown
    control_made: asyncio.Event = field(default_factory=asyncio.Event)
    rng: random.Random = field(default_factory=random.Random)
    reading_back: TopicReads = field(init=False)
    catching_up: TopicReads = field(init=False)
    scanning: asyncio.Semaphore = field(default_factory=partial(asyncio.Semaphore, SCANS_MAX))
    flush_timer: FlushTimer = field(default_factory=FlushTimer)
    trim: HeapTrimmer = field(default_factory=HeapTrimmer)

    def __post_init__(self) -> None:
        self.reading_back = TopicReads(self.connection)
        self.catching_up = TopicReads(self.connection)
