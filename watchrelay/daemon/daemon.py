"""The process: the admin server first, then the API server is asked, then Kafka and the streams are
started; and all of it is stopped in order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import signal
import socket
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

from watchrelay import __version__
from watchrelay.core import clock
from watchrelay.core.backoff import Backoff
from watchrelay.core.clock_offset import ClockOffset
from watchrelay.core.errors import ConfigError, KubeError, WatchrelayError
from watchrelay.core.exit_codes import FAILED, OK, OWNERSHIP_LOST
from watchrelay.core.signals import received_by
from watchrelay.core.tasks import first_of, log_loop_exception, must_run, unless
from watchrelay.core.trouble import Cause, Trouble
from watchrelay.daemon.memory import too_small, tune_collector
from watchrelay.daemon.reload import ConfigSource, Objection, Reloader, describe
from watchrelay.kube.auth.credentials import ClusterCredentials, load_credentials
from watchrelay.kube.client import KubeClient
from watchrelay.kube.discovery.client import Discovery
from watchrelay.observe import logs
from watchrelay.observe.interpreter import measure_interpreter
from watchrelay.observe.metrics import Metrics
from watchrelay.observe.overview import About
from watchrelay.observe.server import AdminServer
from watchrelay.observe.status import Readiness, StatusRegistry
from watchrelay.plan.streams import provisional_ids
from watchrelay.publish.timing import FlushTimer

if TYPE_CHECKING:
    from watchrelay.config import Settings
    from watchrelay.core.deadline import Deadline
    from watchrelay.daemon.context import DaemonContext
    from watchrelay.daemon.relaying import Relaying
    from watchrelay.daemon.supervisor import Supervisor

log = logging.getLogger(__name__)

_HEAD_START_S = 0.05
"""Of the first request to the API server, to be connected and sent, ahead of the imports that hold
the event loop for 0.1 s."""


CLOSING_S = 3.5
"""After `shutdown.drainTimeout`, for what is left to close. Kubernetes ends the process a second
later."""


class ListenAddressUnavailable(WatchrelayError):
    """`observe.listen` cannot be used: an operator must choose another address."""


class Daemon:
    """One relay. Call `run()` once; `stop()` starts the drain. With a `source`, edits of the
    config are applied while it runs; `settings` are those in effect. A `deadline` ends the process
    where the drain, or what follows it, does not end in time."""

    def __init__(
        self,
        settings: Settings,
        *,
        environ: Mapping[str, str] | None = None,
        source: ConfigSource | None = None,
        deadline: Deadline | None = None,
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
        self._flush_timer = FlushTimer(settings.kafka.flush_interval_s)
        self._clock_offset = ClockOffset()
        self._environ = os.environ if environ is None else environ
        self._stopping = asyncio.Event()
        self._at_once = asyncio.Event()
        self._superseded = asyncio.Event()
        self._deadline = deadline
        self.connected = False
        """There are connections that only a restart can change."""
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
        self.statuses.endpoints["kafka"] = ", ".join(self.settings.kafka.bootstrap_servers)
        about = About(
            self.settings.cluster,
            self.holder,
            __version__,
            clock.wall_ms(),
            self.settings.observe.runbook_base_url or "",
        )
        server = AdminServer(
            statuses=self.statuses, readiness=self.readiness, metrics=self.metrics, about=about
        )
        host, port = split_address(self.settings.observe.listen)
        try:
            self.port = await server.start(host, port)
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
        if warning := too_small():
            log.warning("memory limit is low", extra={"warning": warning})
        self.started.set()
        try:
            with measure_interpreter(self.metrics):
                return await self._relay_and_reload()
        finally:
            await server.close()

    def _open_rows(self) -> None:
        for entry in self.settings.resources:
            for stream in provisional_ids(entry):
                self.statuses.open(stream)

    # ---- edits of the config (`Reloadable`) ------------------------------------------------------

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
            reloading = must_run(self._reloader.run(), name="config", stopping=self._stopping)
            self._reloading = tasks.create_task(reloading, name="config")
            code = await self._relay()
            self._reloading.cancel()
        return code

    async def _relay(self) -> int:
        credentials = await self._credentials()
        if credentials is None:
            return OK
        kube = KubeClient(
            credentials, self.metrics, self._flush_timer.before_flush, self._clock_offset.kubernetes
        )
        self.statuses.endpoints["kubernetes"] = kube.where
        async with kube as client, asyncio.TaskGroup() as tasks:
            self.connected = True
            discovery = self._make_discovery(client)
            first = discovery.begin(tasks)
            await asyncio.wait((first,), timeout=_HEAD_START_S)
            # Kafka and the path of the records, a third of all imports: while the answer travels
            from watchrelay.daemon.relaying import Relaying

            relaying = Relaying(
                self._make_context(client),
                discovery,
                tasks=tasks,
                readiness=self.readiness,
                stopping=self._stopping,
                superseded=self._superseded,
            )
            self._supervisor = relaying.supervisor
            tune_collector()
            self._set_deadline_code(FAILED)  # until it has drained
            relaying.start()
            try:
                await first_of(self._stopping, self._superseded)
                drained = await self._drain(relaying)
                first.cancel()
            finally:
                self._set_deadline(CLOSING_S)
        log.info("stopped", extra={"drained": drained})
        return self._exit_code(drained=drained)

    async def _drain(self, relaying: Relaying) -> bool:
        drain_s = self.settings.shutdown.drain_timeout_s
        self._stopping.set()
        self._set_deadline(drain_s + CLOSING_S)
        log.info("draining", extra={"timeout_s": drain_s})
        if self._reloading is not None:
            self._reloading.cancel()
        drained = await relaying.drain(deadline_s=clock.now_s() + drain_s, at_once=self._at_once)
        self._set_deadline_code(self._exit_code(drained=drained))
        return drained

    def _exit_code(self, *, drained: bool) -> int:
        if self._superseded.is_set():
            return OWNERSHIP_LOST
        return OK if drained else FAILED

    def _set_deadline_code(self, code: int) -> None:
        """The exit code if the deadline ends the process."""
        if self._deadline is not None:
            self._deadline.code = code

    def _set_deadline(self, within_s: float) -> None:
        if self._deadline is not None:
            self._deadline.within(within_s)

    def _make_discovery(self, client: KubeClient) -> Discovery:
        return Discovery(client)

    def _make_context(self, client: KubeClient) -> DaemonContext:
        from watchrelay.daemon.relaying import make_context  # imported by now, see `_relay`

        return make_context(
            self.settings,
            client,
            metrics=self.metrics,
            statuses=self.statuses,
            holder=self.holder,
            rng=self._rng,
            flush_timer=self._flush_timer,
            clock_offset=self._clock_offset,
        )

    async def _credentials(self) -> ClusterCredentials | None:
        """The credentials; an unusable kubeconfig is read again until stopped (None)."""
        # source: docs/watch-facts.md 6.4 class K
        backoff = Backoff(base_s=1.0, cap_s=60.0, jitter=0.1)
        while not self._stopping.is_set():
            kubernetes = self.settings.kubernetes
            load = partial(
                load_credentials, kubernetes.kubeconfig, kubernetes.context, environ=self._environ
            )
            try:  # in a thread: a pipe may be waited for
                credentials = await unless(
                    self._stopping, asyncio.to_thread(load), name="credentials"
                )
            except (ConfigError, KubeError) as error:
                backoff, wait_s = backoff.after_failure(clock.now_s(), healthy=False, rng=self._rng)
                trouble = Trouble("", Cause.CREDENTIALS, str(error), error.cure)
                if self.statuses.problems.put("kubernetes", trouble):
                    log.error(
                        "cannot load Kubernetes credentials",
                        extra={"error": str(error), "retry_in_s": round(wait_s, 1)},
                    )
                self.statuses.fail_all(trouble, wait_s)
                tune_collector()  # it may take days until they are there
                await first_of(self._stopping, timeout_s=wait_s)
            else:
                self.statuses.problems.pop("kubernetes", None)
                self.statuses.recover_all()
                return credentials
        return None

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        reloader, received = self._reloader, 0

        def take(number: int) -> None:
            nonlocal received
            if reloader is not None and number == signal.SIGHUP:
                loop.call_soon_threadsafe(reloader.request)
                return
            received += 1
            if received <= 2:
                drain_s = self.settings.shutdown.drain_timeout_s if received == 1 else 0.0
                try:
                    loop.call_soon_threadsafe(self.stop)
                finally:  # also where the event loop is closed already
                    self._set_deadline(drain_s + CLOSING_S)

        numbers = (signal.SIGTERM, signal.SIGINT, *((signal.SIGHUP,) if reloader else ()))
        with received_by(take, numbers):
            yield


def split_address(listen: str) -> tuple[str, int]:
    """(host, port) of a checked `observe.listen`, an IPv6 host without brackets; "" is no host."""
    host, _, port = listen.rpartition(":")
    return host.strip("[]"), int(port)
