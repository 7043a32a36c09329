"""A watcher that follows the scripted API server over real sockets, in virtual time, and the plain
dict that it fills."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.support.scripted import ScriptedServer
from tests.support.scripted_apiserver import PODS, Api
from watchrelay.core.errors import KubeError
from watchrelay.kube.auth.transport import Endpoint
from watchrelay.kube.client import KubeClient
from watchrelay.model.frames import ObjectFrame
from watchrelay.model.resources import SERVED, Availability, Resource, Selection, compare
from watchrelay.model.streams import WatchPlan
from watchrelay.model.watch_output import (
    ListBegun,
    ListDone,
    ListedObjects,
    ResourceRemoved,
    ServerSeen,
    Watched,
    WatchOutput,
)
from watchrelay.observe.metrics import Metrics
from watchrelay.observe.status import StreamStatus
from watchrelay.watch.admission import Admission
from watchrelay.watch.loop import Watcher
from watchrelay.watch.messages import Report, Retrying
from watchrelay.watch.reporting import WatchReporter


class Mirror:
    """An outlet that keeps a dict: lists swap in at their end, removals first; `changes` is what a
    store would publish."""

    def __init__(self) -> None:
        self.held: dict[tuple[str, str], tuple[str, str]] = {}
        self.events: list[WatchOutput] = []
        self.changes: list[tuple[str, str]] = []
        self.troubles: list[KubeError] = []
        self.seen_s: list[float] = []
        """Moments up to which all that the server had sent is known to be delivered."""
        self.synced = 0
        self.gone = 0
        self.disbelieve = 0
        self.full: asyncio.Event | None = None
        self._fresh: dict[tuple[str, str], tuple[str, str]] = {}

    @property
    def names(self) -> list[str]:
        return sorted(name for _, name in self.held)

    async def take(self, output: WatchOutput) -> bool:
        if self.full is not None:
            await self.full.wait()
        return self._take(output)

    def ready(self) -> bool:
        return self.full is None

    def take_now(self, output: Watched) -> None:
        self._take(output)

    def lacks(self, frame: ObjectFrame) -> bool:
        held = self.held.get((frame.namespace, frame.name))
        return bool(self.held) and (held is None or held[0] != frame.uid)

    def holds_up_to(self, version: str) -> bool:
        return any(compare(held[1], version) in {-1, 0} for held in self.held.values())

    def _take(self, event: WatchOutput) -> bool:
        self.events.append(event)
        match event:
            case ListBegun():
                self._fresh = {}
            case ListedObjects(objects=frames):
                for frame in frames:
                    self._apply(self._fresh, frame)
            case ListDone():
                if self.disbelieve and not event.accept_any_size:
                    self.disbelieve -= 1
                    return False
                self._swap(self._fresh)
                self.synced += 1
                self._seen()
            case Watched(frames=frames):
                assert frames or event.cursor, "nothing was shown"
                for frame in frames:
                    self._observe(frame)
                self._seen()
            case ResourceRemoved():
                self._swap({})
                self.gone += 1
            case ServerSeen(ago_s=ago_s):
                self._seen(ago_s)
        return True

    def _seen(self, ago_s: float = 0.0) -> None:
        self.seen_s.append(asyncio.get_running_loop().time() - ago_s)

    def _apply(self, state: dict[tuple[str, str], tuple[str, str]], frame: ObjectFrame) -> None:
        key = (frame.namespace, frame.name)
        if frame.type == "DELETED":
            state.pop(key, None)
        else:
            state[key] = (frame.uid, frame.resource_version)

    def _observe(self, frame: ObjectFrame) -> None:
        key, before = (frame.namespace, frame.name), dict(self.held)
        self._apply(self.held, frame)
        if self.held.get(key) != before.get(key):
            self.changes.append((frame.type, frame.name))

    def _swap(self, fresh: dict[tuple[str, str], tuple[str, str]]) -> None:
        before, self.held = self.held, dict(fresh)
        self.changes += [("DELETED*", key[1]) for key in before if key not in fresh]
        self.changes += [
            ("ADDED" if key not in before else "MODIFIED", key[1])
            for key in fresh
            if before.get(key) != fresh[key]
        ]


class Noting(WatchReporter):
    """Keeps the errors that the watch reports."""

    def __init__(self, errors: list[KubeError], *stream: Any) -> None:
        super().__init__(*stream)
        self.errors = errors

    def report(self, report: Report) -> None:
        if isinstance(report, Retrying):
            self.errors.append(report.error)
        super().report(report)


class PlainAccess:
    """Credentials of a server that wants none."""

    def __init__(self, url: str) -> None:
        self.endpoint = Endpoint(url)
        self.rejections = 0

    async def headers(self) -> list[tuple[str, str]]:
        return []

    async def tls(self) -> ssl.SSLContext | None:
        return None

    def distrusted(self, asked_s: float) -> None:
        pass

    async def rejected(self, asked_s: float) -> None:
        self.rejections += 1


@dataclass(slots=True)
class Follower:
    """One watcher at work."""

    watcher: Watcher
    mirror: Mirror
    status: StreamStatus
    task: asyncio.Task[None]


@dataclass(slots=True)
class Scene:
    """A server, and its client."""

    api: Api
    server: ScriptedServer
    metrics: Metrics
    admission: Admission
    client: KubeClient
    followers: list[Follower] = field(default_factory=list)

    @property
    def mirror(self) -> Mirror:
        return self.followers[0].mirror

    @property
    def status(self) -> StreamStatus:
        return self.followers[0].status

    @property
    def watcher(self) -> Watcher:
        return self.followers[0].watcher

    def count(self, name: str, **labels: str) -> float:
        """The sum of a metric's series that carry `labels`."""
        return sum(
            sample.value
            for family in self.metrics.registry.collect()
            for sample in family.samples
            if sample.name == f"watchrelay_{name}" and labels.items() <= sample.labels.items()
        )

    def synced_again(self) -> Callable[[], bool]:
        """A condition for `until`: another list was completed since this call."""
        before = self.mirror.synced
        return lambda: self.mirror.synced > before

    async def until(self, claim: Callable[[], object], within_s: float = 60.0) -> None:
        """Let virtual time pass until `claim` holds. Raises: AssertionError after `within_s`."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        ends_s = began_s + within_s
        while not claim():
            assert loop.time() < ends_s, (
                f"not within {within_s} s; asked so far: "
                f"{[(a.kind, a.query) for a in self.api.asked][-6:]}"
            )
            await asyncio.sleep(min(0.5, 0.05 + (loop.time() - began_s) / 50))
            for each in self.followers:
                if each.task.done() and not each.task.cancelled():
                    each.task.result()

    async def run_for(self, seconds: float) -> None:
        """Let virtual time pass."""
        await asyncio.sleep(seconds)
        for each in self.followers:
            assert not each.task.done(), each.task


@asynccontextmanager
async def following(
    api: Api,
    *,
    watchers: int = 1,
    server_version: tuple[int, int] | None = (1, 33),
    availability: Callable[[], Availability] = lambda: SERVED,
    resource: Resource = PODS,
    namespace: str | None = None,
    cursor: str = "",
    recovered: bool = False,
    seed: int = 7,
    settled: bool = False,
    **plan: Any,
) -> AsyncIterator[Scene]:
    """Watchers of `api`; with `settled` once their first list is complete."""

    async def ask(_: Resource) -> Availability:
        return availability()

    selection = Selection(
        resource,
        namespace,
        metadata_only=plan.pop("metadata_only", False),
        label_selector=plan.pop("labels", ""),
    )
    metrics, rng = Metrics(), Random(seed)
    async with (
        ScriptedServer(api) as server,
        KubeClient(PlainAccess(server.url), metrics) as client,
    ):
        scene = Scene(api, server, metrics, Admission(rng=rng, metrics=metrics), client)
        async with asyncio.TaskGroup() as tasks:
            for index in range(watchers):
                stream_id, mirror = f"{resource.plural}-{index}", Mirror()
                shown = StreamStatus(stream_id)
                watcher = Watcher(
                    stream_id,
                    WatchPlan(selection, **plan),
                    source=client,
                    outlet=mirror,
                    admission=scene.admission,
                    metrics=metrics.stream(stream_id, resource),
                    status=shown,
                    progress=shown.progress,
                    availability=ask,
                    server_version=lambda: server_version,
                    rng=Random(seed * 1000 + index),
                    cursor=cursor,
                    recovered=recovered,
                )
                of_stream = (metrics.stream(stream_id, resource), shown, shown.progress)
                watcher._reporter = Noting(mirror.troubles, stream_id, *of_stream)
                task = tasks.create_task(watcher.run(), name=stream_id)
                scene.followers.append(Follower(watcher, mirror, shown, task))
            if settled:
                await scene.until(
                    lambda: all(
                        each.mirror.synced and each.status.state == "watching"
                        for each in scene.followers
                    )
                )
            try:
                yield scene
            finally:
                for each in scene.followers:
                    each.task.cancel()
