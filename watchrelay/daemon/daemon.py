"""The process: starts admin server, control and signal topics and streams, and stops them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import signal
import socket
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import TYPE_CHECKING

from watchrelay import __version__
from watchrelay.core import causes, clock
from watchrelay.core.backoff import Backoff
from watchrelay.core.errors import (
    ConfigError,
    KubeError,
    SinkUnavailable,
    TopicLost,
    TopicRefused,
    WatchrelayError,
)
from watchrelay.core.exit_codes import FAILED, OK, OWNERSHIP_LOST
from watchrelay.daemon.kafka_connection import kafka_connection
from watchrelay.daemon.memory import tune_collector
from watchrelay.daemon.plan import control_spec, provisional_ids, signal_spec
from watchrelay.daemon.reload import ConfigSource, Objection, Reloader, describe
from watchrelay.daemon.snapshot_requests import SnapshotRequests
from watchrelay.daemon.stream_runner import DaemonContext
from watchrelay.daemon.supervisor import Supervisor
from watchrelay.daemon.tasks import end_all, first_of, log_loop_exception, must_run
from watchrelay.kafka.control_topic import ControlTopic
from watchrelay.kafka.signal_topic import SignalTopic
from watchrelay.kafka.sink import KafkaSink
from watchrelay.kafka.topic_config import TopicFacts, TopicSpec
from watchrelay.kafka.topics import Topics
from watchrelay.kube.auth.credentials import ClusterCredentials, load_credentials
from watchrelay.kube.client import KubeClient
from watchrelay.kube.discovery.client import Discovery
from watchrelay.observe import logs
from watchrelay.observe.interpreter import measure_interpreter
from watchrelay.observe.metrics import Metrics
from watchrelay.observe.overview import About
from watchrelay.observe.server import AdminServer
from watchrelay.observe.status import Readiness, StatusRegistry
from watchrelay.publish.timing import FlushTimer, HeartbeatInterval
from watchrelay.watch.admission import Admission

if TYPE_CHECKING:
    from watchrelay.config import Settings

log = logging.getLogger(__name__)


class ListenAddressUnavailable(WatchrelayError):
    """`observe.listen` cannot be used: an operator must choose another address."""


class Daemon:
    """One relay. Call `run()` once; `stop()` starts the drain. With a `source`, edits of the
    config are applied while it runs; `settings` are those in effect."""

    def __init__(
        self,
        settings: Settings,
        *,
        environ: Mapping[str, str] | None = None,
        source: ConfigSource | None = None,
    ) -> None:
        self.settings = settings
        self.metrics = Metrics(settings.cluster)
        self.metrics.register_process_collectors()
        self.statuses = StatusRegistry()
        self.readiness = Readiness(self.statuses)
        self.port: int | None = None
        self.started = asyncio.Event()
        self.holder = f"{socket.gethostname()}-{os.getpid()}"
        self._rng = random.Random()
        self._flush_timer = FlushTimer()
        self._environ = os.environ if environ is None else environ
        self._stopping = asyncio.Event()
        self._at_once = asyncio.Event()
        self._outclaimed = asyncio.Event()
        self._supervisor: Supervisor | None = None
        self._reloader: Reloader | None = None
        if source is not None:
            self._reloader = Reloader(source, self, metrics=self.metrics, statuses=self.statuses)
        self._reloading: asyncio.Task[None] | None = None

    def stop(self) -> None:
        """First call: drain and end. Second call: end without draining."""
        if self._stopping.is_set():
            self._at_once.set()
        self._stopping.set()

    async def run(self) -> int:
        """Relay until `stop()`, or until another relay owns the streams; the exit code.
        Raises: ListenAddressUnavailable."""
        asyncio.get_running_loop().set_exception_handler(log_loop_exception)
        with self._signals():
            return await self._serve()

    async def _serve(self) -> int:
        self._open_rows()
        about = About(self.settings.cluster, self.holder, __version__, clock.wall_ms())
        window = AdminServer(
            statuses=self.statuses, readiness=self.readiness, metrics=self.metrics, about=about
        )
        host, port = split_address(self.settings.observe.listen)
        try:
            self.port = await window.start(host, port)
        except OSError as error:
            listen = self.settings.observe.listen
            raise ListenAddressUnavailable(
                f"observe.listen {listen}: {error.strerror or error}; choose another address"
            ) from error
        self.metrics.gauge("build_info").labels(__version__, "").set(1)
        describe(self.settings, self.metrics)
        cluster, listen = self.settings.cluster, f"{host}:{self.port}"
        extra = {"version": __version__, "cluster": cluster, "listen": listen}
        log.info("started", extra=extra)
        self.started.set()
        tune_collector()
        try:
            with measure_interpreter(self.metrics):
                return await self._relay_and_reload()
        finally:
            await window.close()

    def _open_rows(self) -> None:
        for entry in self.settings.resources:
            for stream in provisional_ids(entry):
                self.statuses.open(stream)

    # ---- edits of the config (`Reloadable`) ------------------------------------------------------

    @property
    def connected(self) -> bool:
        """True once there are connections that only a restart can change."""
        return self._supervisor is not None

    def objections(self, settings: Settings) -> list[Objection]:
        """Why the running streams do not allow `settings`."""
        return [] if self._supervisor is None else self._supervisor.objections(settings)

    def adopt(self, settings: Settings) -> None:
        before, self.settings = self.settings.observe, settings
        if settings.observe.log_format != before.log_format:
            logs.configure(settings.observe.log_format, settings.observe.log_level)
        elif settings.observe.log_level != before.log_level:
            logs.set_level(settings.observe.log_level)
        if self._supervisor is not None:
            self._supervisor.adopt(settings)
        else:
            self.statuses.streams.clear()
            self._open_rows()

    # ---- the flow --------------------------------------------------------------------------------

    async def _relay_and_reload(self) -> int:
        if self._reloader is None:
            return await self._relay()
        async with asyncio.TaskGroup() as tasks:
            self._reloading = self._eternal(tasks, self._reloader.run(), "config")
            code = await self._relay()
            self._reloading.cancel()
        return code

    async def _relay(self) -> int:
        credentials = await self._credentials()
        if credentials is None:
            return OK
        drained = True
        kube = KubeClient(credentials, self.metrics, self._flush_timer.read)
        async with kube as client, asyncio.TaskGroup() as tasks:
            context, discovery = self._make_context(client)
            supervisor = Supervisor(
                context,
                discovery,
                tasks=tasks,
                readiness=self.readiness,
                outclaimed=self._outclaimed,
            )
            context.served, self._supervisor = supervisor.served, supervisor
            eternal = [
                self._eternal(tasks, context.sink.run(), "sink"),
                self._eternal(tasks, self._control(context, supervisor), "control"),
                self._eternal(tasks, self._signal(context), "signal"),
                self._eternal(tasks, supervisor.run(), "supervisor"),
            ]
            await first_of(self._stopping, self._outclaimed)
            self._stopping.set()
            drained = await self._drain(supervisor, eternal)
        log.info("stopped", extra={"drained": drained})
        if self._outclaimed.is_set():
            return OWNERSHIP_LOST
        return OK if drained else FAILED

    async def _drain(self, supervisor: Supervisor, eternal: list[asyncio.Task[None]]) -> bool:
        """Stop in the order of the data flow: reload, discovery, streams, then topics and
        connections."""
        log.info("draining", extra={"timeout_s": self.settings.shutdown.drain_timeout_s})
        if self._reloading is not None:
            self._reloading.cancel()
        deadline_s = clock.now_s() + self.settings.shutdown.drain_timeout_s
        eternal[-1].cancel()
        async with asyncio.TaskGroup() as group:
            stopped = group.create_task(supervisor.stop(deadline_s=deadline_s), name="drain")
            hurried = group.create_task(self._at_once.wait(), name="second signal")
            await asyncio.wait((stopped, hurried), return_when=asyncio.FIRST_COMPLETED)
            hurried.cancel()
            if not stopped.done():
                supervisor.abandon()
                stopped.cancel()
        await end_all(eternal)
        return not stopped.cancelled() and stopped.result()

    def _make_context(self, client: KubeClient) -> tuple[DaemonContext, Discovery]:
        connection = kafka_connection(
            self.settings, client_id=f"watchrelay-{self.settings.cluster}"
        )
        sink = KafkaSink(connection, metrics=self.metrics, statuses=self.statuses)
        control = ControlTopic(
            connection,
            control_spec(self.settings).name,
            sink,
            statuses=self.statuses,
            holder=self.holder,
        )
        context = DaemonContext(
            settings=self.settings,
            metrics=self.metrics,
            statuses=self.statuses,
            client=client,
            admission=Admission(metrics=self.metrics),
            connection=connection,
            sink=sink,
            control=control,
            topics=Topics(connection, create=self.settings.kafka.create_topics),
            requests=SnapshotRequests(control, configured=self.statuses.streams),
            holder=self.holder,
            heartbeat_interval=HeartbeatInterval(self.settings.heartbeat_interval_s),
            rng=self._rng,
            flush_timer=self._flush_timer,
        )
        return context, Discovery(client)

    def _eternal(
        self, tasks: asyncio.TaskGroup, work: Coroutine[object, object, None], name: str
    ) -> asyncio.Task[None]:
        return tasks.create_task(must_run(work, name=name, stopping=self._stopping), name=name)

    async def _credentials(self) -> ClusterCredentials | None:
        """The credentials; an unusable kubeconfig is read again until stopped (None)."""
        backoff = Backoff(base_s=1.0, cap_s=60.0, jitter=0.1)  # source: WATCH 6.4 class K
        while not self._stopping.is_set():
            kubernetes = self.settings.kubernetes
            try:
                credentials = load_credentials(
                    kubernetes.kubeconfig, kubernetes.context, environ=self._environ
                )
            except (ConfigError, KubeError) as error:
                backoff, wait_s = backoff.after_failure(clock.now_s(), healthy=False, rng=self._rng)
                if self.statuses.problems.put("kubernetes", str(error), cause=causes.CREDENTIALS):
                    log.error(
                        "cannot load Kubernetes credentials",
                        extra={"error": str(error), "retry_in_s": round(wait_s, 1)},
                    )
                self._streams_failed(str(error), causes.CREDENTIALS, wait_s)
                await first_of(self._stopping, timeout_s=wait_s)
            else:
                self.statuses.problems.pop("kubernetes", None)
                self._streams_recovered()
                return credentials
        return None

    def _streams_failed(self, message: str, cause: causes.Cause, wait_s: float) -> None:
        at_ms = clock.wall_ms_in(wait_s)
        for status in self.statuses.streams.values():
            status.failed("daemon", message, cause=cause, next_attempt_ms=at_ms)

    def _streams_recovered(self) -> None:
        for status in self.statuses.streams.values():
            status.recovered("daemon")

    async def _control(self, context: DaemonContext, supervisor: Supervisor) -> None:
        """The control topic: made or checked, then followed; again, when it is lost."""
        while True:
            await self._control_topic(context)
            context.control_made.set()
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(context.control.run(), name="control tail")
                    if await context.control.restore():
                        supervisor.restart(
                            "the control topic was recreated, and its claims and epochs are lost"
                        )
            except* TopicLost:
                log.error("control topic is lost", extra={"topic": context.control.topic})

    async def _control_topic(self, context: DaemonContext) -> None:
        """The control topic exists and is safe. Before the first time no stream starts."""
        first = not context.control_made.is_set()

        def failed(error: str, wait_s: float) -> None:
            if first:
                self._streams_failed(error, causes.KAFKA, wait_s)

        topic, problem = control_spec(self.settings), "kafka" if first else "control"
        facts = await self._topic(context, topic, problem, Backoff(), failed)
        if first:
            self._streams_recovered()
        for warning in facts.warnings:
            extra = {"topic": topic.name, "warning": warning}
            log.warning("topic has a questionable setting", extra=extra)

    async def _topic(
        self,
        context: DaemonContext,
        topic: TopicSpec,
        problem: str,
        backoff: Backoff,
        failed: Callable[[str, float], None] = lambda _error, _wait_s: None,
    ) -> TopicFacts:
        """Return once `topic` exists and is safe; `failed` is called after each failed attempt."""
        while True:
            try:
                facts = await context.topics.ensure_topic(topic)
            except (TopicRefused, SinkUnavailable) as error:
                backoff, wait_s = backoff.after_failure(
                    clock.now_s(), healthy=False, rng=context.rng
                )
                new = self.statuses.problems.put(problem, str(error))
                extra = {"topic": topic.name, "error": str(error), "retry_in_s": round(wait_s, 1)}
                if new and topic.kind == "control":
                    log.error("control topic is not usable", extra=extra)
                elif new:
                    log.warning(
                        "signal topic is not usable, snapshot requests are not read", extra=extra
                    )
                failed(str(error), wait_s)
                await asyncio.sleep(wait_s)
            else:
                self.statuses.problems.pop(problem, None)
                return facts

    async def _signal(self, context: DaemonContext) -> None:
        """The signal topic, likewise. Without it streams go on, and no snapshot request is read."""
        await context.control_made.wait()
        await context.control.caught_up()  # it tells which streams there are
        topic = signal_spec(self.settings).name
        follower = SignalTopic(
            context.connection,
            topic,
            context.requests.take,
            metrics=self.metrics,
            statuses=self.statuses,
            rng=context.rng,
        )
        while True:
            backoff = Backoff(base_s=5.0, cap_s=300.0)
            await self._topic(context, signal_spec(self.settings), "signal", backoff)
            try:
                await follower.run()
            except TopicLost as lost:
                log.warning("signal topic is lost", extra={"topic": topic, "error": str(lost)})

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        handlers: dict[int, Callable[[], None]] = {
            signal.SIGTERM: self.stop,
            signal.SIGINT: self.stop,
        }
        if self._reloader is not None:
            handlers[signal.SIGHUP] = self._reloader.request
        before = {number: signal.getsignal(number) for number in handlers}
        for number, handler in handlers.items():
            loop.add_signal_handler(number, handler)
        try:
            yield
        finally:
            for number, former in before.items():
                loop.remove_signal_handler(number)
                signal.signal(number, former)


def split_address(listen: str) -> tuple[str, int]:
    """(host, port) of a checked `observe.listen`, an IPv6 host without brackets; no host: all
    interfaces."""
    host, _, port = listen.rpartition(":")
    return host.strip("[]") or "0.0.0.0", int(port)  # noqa: S104  # what an address without a host means everywhere
