"""The synthetic cluster, the embedded Kafka, and the relay between them exactly as in production;
either may be a real one. Messages go to stderr."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import NamedTuple

from watchrelay.config import Settings, load_settings
from watchrelay.config.keys import ENV_PREFIX, env_path
from watchrelay.config.streams import control_topic, signal_topic
from watchrelay.consumer.reader import TailReader, TailRecord
from watchrelay.core.deadline import Deadline
from watchrelay.core.errors import ConfigError, SinkUnavailable
from watchrelay.daemon.daemon import Daemon
from watchrelay.demo.cluster import SyntheticCluster
from watchrelay.demo.kafka import EmbeddedKafka
from watchrelay.demo.trouble import STREAM, Trouble
from watchrelay.plan.kafka import kafka_connection

SHOP_EVENTS_PER_S = 4.0
READY = "the whole state of every stream is in Kafka"
READY_BUT = f"the state of every stream but {STREAM} is in Kafka"
PARTITIONS = 3
_READY_POLL_S, _AGAIN_S = 0.1, 1.0

_CONFIG = """\
cluster: demo
kubernetes:
  kubeconfig: {kubeconfig}
kafka:
  bootstrapServers: [{kafka}]
  createTopics: {create}
  partitions: {partitions}
  replicationFactor: 1
  minInsyncReplicas: 1
observe:
  listen: 127.0.0.1:0
resources:
{resources}"""
_SET_BY_OPTIONS = (("kafka", "bootstrapServers"), ("kubernetes", "kubeconfig"))
"""Keys that `--kafka` and `--kubeconfig` set."""
_SHOP = (
    "namespaces",
    "deployments.apps",
    "pods",
    "configmaps",
    "secrets",
    "orders.shop.example.com",
)
_REAL = ("namespaces", "deployments.apps", "pods", "configmaps")


class Surroundings(NamedTuple):
    """What the relay runs between; None: it is real."""

    cluster: SyntheticCluster | None
    broker: EmbeddedKafka | None


async def run_demo(
    kubeconfig: str | None,
    kafka: str | None,
    show: Callable[[list[TailRecord]], None],
    *,
    heading: str = "",
    trouble: bool = False,
    deadline: Deadline | None = None,
) -> int:
    """Run until a signal stops the relay; the exit code of its drain.

    Args:
        kubeconfig: of the real cluster to watch, None for the synthetic one.
        kafka: `host:port` of the real Kafka to publish to, None for the embedded one.
        show: gets the records as they are read.
        heading: of the columns that `show` prints.
        trouble: show two faults, where nothing is real.
        deadline: ends the process where the relay, or what surrounds it, does not end.
    """
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(_temporary_directory()))
        around, config, settings = await _start(kubeconfig, kafka, directory, stack)
        indented = "".join(f"    {line}\n" for line in config.splitlines())
        _message(f"the relay's config:\n\n{indented}")
        daemon, cluster = Daemon(settings, deadline=deadline), around.cluster
        faults = None
        if trouble:
            assert cluster is not None, "trouble needs what is not real"
            assert around.broker is not None, "trouble needs what is not real"
            faults = Trouble(cluster, around.broker, daemon.statuses, _message)
            faults.begin()
        async with asyncio.TaskGroup() as tasks:
            relay = tasks.create_task(daemon.run(), name="relay")
            others = [
                tasks.create_task(_show_events(settings, show), name="tail"),
                tasks.create_task(_report_progress(daemon, heading, faults), name="progress"),
            ]
            if cluster is not None:
                shop = cluster.run_shop(events_per_s=SHOP_EVENTS_PER_S, shop=cluster.open_shop())
                others.append(tasks.create_task(shop, name="shop"))
            await asyncio.wait((relay,))
            for task in others:
                task.cancel()
    _message("drained; goodbye" if relay.result() == 0 else "the relay did not drain")
    return relay.result()


def _temporary_directory() -> tempfile.TemporaryDirectory[str]:
    try:
        return tempfile.TemporaryDirectory(prefix="watchrelay-demo-")
    except OSError as error:
        raise ConfigError.of(
            f"no directory for temporary files: {error.strerror or error}",
            source="TMPDIR",
            hint="set TMPDIR to a directory that can be written",
        ) from error


async def _start(
    kubeconfig: str | None, kafka: str | None, directory: Path, stack: AsyncExitStack
) -> tuple[Surroundings, str, Settings]:
    """Start what is not real; that, the config as an operator would write it, and its settings."""
    broker = None if kafka else stack.enter_context(EmbeddedKafka.start())
    cluster = None if kubeconfig else await stack.enter_async_context(SyntheticCluster())
    resources = _REAL if cluster is None else _SHOP
    config = _CONFIG.format(
        kubeconfig=json.dumps(_kubeconfig(kubeconfig, cluster, directory), ensure_ascii=False),
        kafka=json.dumps(kafka if broker is None else broker.bootstrap),
        create="true" if broker is None else "false",
        partitions=PARTITIONS,
        resources="".join(f"  - resource: {resource}\n" for resource in resources),
    )
    environ = _variables(os.environ, real_cluster=cluster is None, real_kafka=broker is None)
    settings = load_settings(_write(directory / "watchrelay.yaml", config), environ=environ)
    if broker is not None:
        _create_topics(broker, settings, resources)
    return Surroundings(cluster, broker), config, settings


def _write(file: Path, text: str) -> str:
    file.write_text(text)
    return str(file)


def _kubeconfig(named: str | None, cluster: SyntheticCluster | None, directory: Path) -> str:
    if cluster is not None:
        return _write(directory / "kubeconfig", cluster.kubeconfig())
    assert named is not None
    try:
        return os.path.realpath(named, strict=True)
    except OSError as error:
        reason = (
            "there is no such file"
            if isinstance(error, FileNotFoundError)
            else f"cannot be read: {error.strerror or error}"
        )
        raise ConfigError.of(reason, source=named, hint="named by --kubeconfig") from error


def _variables(
    environ: Mapping[str, str], *, real_cluster: bool, real_kafka: bool
) -> dict[str, str]:
    """The variables that apply to a demo: those of observability and shutdown, and of the
    connections to what is real.

    Those that name the cluster or an address do not: what is exported for a real relay must not
    turn a demo's lists into deletes on its topics.
    """
    sections = (
        {"observe", "shutdown"}
        | ({"kafka"} if real_kafka else set())
        | ({"kubernetes"} if real_cluster else set())
    )
    used: dict[str, str] = {}
    ignored: list[str] = []
    for name, value in environ.items():
        path = env_path(name) if name.startswith(ENV_PREFIX) else None
        if path is None or (path[0] in sections and path[:2] not in _SET_BY_OPTIONS):
            used[name] = value
        else:
            ignored.append(name)
    if ignored:
        _message(f"ignored, the demo has its own values: {', '.join(sorted(ignored))}")
    return used


def _create_topics(broker: EmbeddedKafka, settings: Settings, resources: tuple[str, ...]) -> None:
    """Create the topics: the embedded broker has no CreateTopics request, which the relay sends to
    a real one."""
    broker.create_topic(control_topic(settings), 1)
    broker.create_topic(signal_topic(settings), 1)
    for resource in resources:
        plural, _, group = resource.partition(".")
        kafka = settings.kafka
        name = kafka.topic_template.format(
            prefix=kafka.topic_prefix,
            cluster=settings.cluster,
            group=group or "core",
            resource=plural,
        )
        broker.create_topic(name, PARTITIONS)


async def _show_events(settings: Settings, show: Callable[[list[TailRecord]], None]) -> None:
    """Show what is on the topics while Kafka answers: the relay waits for it, and says so."""
    shown = False
    while True:
        reader = TailReader(
            kafka_connection(settings, client_id="watchrelay-demo-tail"),
            control_topic=control_topic(settings),
            from_beginning=not shown,
        )
        try:
            async with aclosing(reader.batches()) as batches:
                async for seen in batches:
                    shown = True
                    show(seen)
        except SinkUnavailable:
            await asyncio.sleep(_AGAIN_S)


async def _report_progress(daemon: Daemon, heading: str, faults: Trouble | None) -> None:
    """Print the URLs, and when the initial state is in Kafka: then both again, for the state has
    scrolled them away. Then show the faults."""
    await daemon.started.wait()
    page = f"http://127.0.0.1:{daemon.port}/"
    _message(
        f"status page {page}   readiness {page}readyz   metrics {page}metrics   (Ctrl-C ends "
        "the demo)"
    )
    _print(heading)
    while not daemon.readiness.check()[0]:  # noqa: ASYNC110  # computed on demand, not announced
        await asyncio.sleep(_READY_POLL_S)
    _message(f"ready: {READY if faults is None else READY_BUT}; live changes follow")
    _message(f"status page {page}   (Ctrl-C ends the demo)")
    _print(heading)
    if faults is not None:
        await faults.run(page)


def _print(text: str) -> None:
    if text:
        print(text, file=sys.stderr, flush=True)


def _message(text: str) -> None:
    print(f"demo: {text}", file=sys.stderr, flush=True)
