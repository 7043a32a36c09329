"""What all streams of the process share."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from watchrelay.daemon.memory import HeapTrimmer
from watchrelay.daemon.recovery import turns
from watchrelay.daemon.snapshot_requests import SnapshotRequests
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.control_topic import ControlTopic
from watchrelay.kafka.sink import KafkaSink
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

FLUSH_INTERVAL_S = 0.004


async def _unknown(_resource: Resource) -> bool | None:
    return None


@dataclass(slots=True)
class DaemonContext:
    """What the streams of one process share.

    `settings` are those in effect; a reload replaces them. `planned` are all streams of the config
    whose resources discovery knows. `served` returns whether the API server serves a resource
    (None: not known now). `control_made` is set once the control topic exists and is safe.
    `server_version` is (major, minor) of the API server once known.
    """

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
    planned: Sequence[StreamSpec] = ()
    served: Callable[[Resource], Awaitable[bool | None]] = _unknown
    control_made: asyncio.Event = field(default_factory=asyncio.Event)
    rng: random.Random = field(default_factory=random.Random)
    reading_back: asyncio.Semaphore = field(default_factory=turns)
    flush_timer: FlushTimer = field(default_factory=lambda: FlushTimer(FLUSH_INTERVAL_S))
    trim: HeapTrimmer = field(default_factory=HeapTrimmer)
