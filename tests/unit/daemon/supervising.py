"""A supervisor in virtual time and over real HTTP; Kafka never comes, so no stream gets past
waiting."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.support import virtualtime
from tests.support.process import free_port
from tests.unit.daemon.conftest import settings_of
from watchrelay.core import clock
from watchrelay.daemon.context import DaemonContext
from watchrelay.daemon.daemon import Daemon
from watchrelay.daemon.supervisor import Supervisor
from watchrelay.demo.cluster import SyntheticCluster
from watchrelay.kube.auth.credentials import load_credentials
from watchrelay.kube.client import KubeClient
from watchrelay.kube.discovery.client import Discovery
from watchrelay.observe.status import StreamStatus


class Rig:
    """A supervisor between a synthetic cluster and a Kafka that never comes."""

    def __init__(
        self,
        cluster: SyntheticCluster,
        daemon: Daemon,
        context: DaemonContext,
        supervisor: Supervisor,
    ) -> None:
        self.cluster, self.daemon, self.context, self.supervisor = (
            cluster,
            daemon,
            context,
            supervisor,
        )

    @property
    def rows(self) -> dict[str, StreamStatus]:
        """The statuses."""
        return self.daemon.statuses.streams

    @property
    def topics(self) -> dict[str, str]:
        """The topic of each stream whose resource is known."""
        return {name: row.topic for name, row in self.rows.items() if row.topic}


@asynccontextmanager
async def supervised(
    directory: Path,
    *resources: str | dict[str, Any],
    away: bool = False,
    version: str = "v1.36.0",
    **options: Any,
) -> AsyncIterator[Rig]:
    async with SyntheticCluster() as cluster:
        cluster.server.behaviour.version = version
        if away:  # on a port that stays free until another server listens there
            await cluster.stop()
            await cluster.start(port=free_port())
        kubeconfig = directory / "kubeconfig"
        kubeconfig.write_text(cluster.kubeconfig())
        if away:
            await cluster.stop()
        daemon = Daemon(
            settings_of(resources, kubernetes={"kubeconfig": str(kubeconfig)}, **options),
            environ={},
        )
        credentials = load_credentials(str(kubeconfig), "", environ={})
        async with KubeClient(credentials, daemon.metrics) as client, asyncio.TaskGroup() as tasks:
            context, discovery = daemon._make_context(client), Discovery(client)
            supervisor = Supervisor(
                context,
                discovery,
                tasks=tasks,
                readiness=daemon.readiness,
                superseded=asyncio.Event(),
            )
            task = tasks.create_task(supervisor.run(), name="supervisor")
            try:
                yield Rig(cluster, daemon, context, supervisor)
            finally:
                task.cancel()
                await supervisor.stop(deadline_s=clock.now_s())


def virtually(body: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await body()

    virtualtime.run(main())
