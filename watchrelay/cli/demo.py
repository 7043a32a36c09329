"""`watchrelay demo`: a synthetic cluster, an embedded Kafka, and the relay between them exactly as
in production.

Room: commands. In: parsed arguments. Out: decoded events on stdout, what is going on on stderr, the
exit code of the relay's drain.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from pathlib import Path

from watchrelay.cli.signals import finish
from watchrelay.cli.tail import print_batch, text_printer
from watchrelay.config import Settings, load_settings
from watchrelay.config.keys import ENV_PREFIX, env_path
from watchrelay.consumer.reader import TailReader
from watchrelay.core.errors import ConfigError, ConfigProblem
from watchrelay.daemon.daemon import Daemon
from watchrelay.daemon.kafka_connection import kafka_connection
from watchrelay.daemon.plan import control_topic, signal_topic
from watchrelay.demo.cluster import SyntheticCluster
from watchrelay.demo.kafka import EmbeddedKafka
from watchrelay.observe import logs

SHOP_EVENTS_PER_S = 4.0
PARTITIONS = 3
_READY_POLL_S = 0.1

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
_SAID = (("kafka", "bootstrapServers"), ("kubernetes", "kubeconfig"))
"""Keys that `--kafka` and `--kubeconfig` say."""
_SHOP = (
    "namespaces",
    "deployments.apps",
    "pods",
    "configmaps",
    "secrets",
    "orders.shop.example.com",
)
_REAL = ("namespaces", "deployments.apps", "pods", "configmaps")


@dataclass(frozen=True, slots=True)
class _Ends:
    """Where the relay stands between. Shape: `cluster` is None when a real one is used."""

    cluster: SyntheticCluster | None
    settings: Settings
    config: str


def run(args: argparse.Namespace) -> int:
    """Run until Ctrl-C; 0 when everything was drained.

    Raises: EmbeddedKafkaError when the extra `demo` is missing; SinkUnavailable when nobody answers
    at `--kafka`.
    """
    # The embedded broker cannot say how its topics are configured; the warnings about that are no
    # news here.
    logs.configure("console", "warning" if args.kafka else "error")
    return finish(_demo(args))


async def _demo(args: argparse.Namespace) -> int:
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(_own_directory()))
        ends = await _ends(args, directory, stack)
        _say(
            "the relay's config:\n\n"
            + "".join(f"    {line}\n" for line in ends.config.splitlines())
        )
        daemon = Daemon(ends.settings)
        async with asyncio.TaskGroup() as tasks:
            relay = tasks.create_task(daemon.run(), name="relay")
            on_lookers = [
                tasks.create_task(_print_events(ends.settings), name="tail"),
                tasks.create_task(_tell(daemon), name="tell"),
            ]
            if ends.cluster is not None:
                shop = ends.cluster.open_shop()
                on_lookers.append(
                    tasks.create_task(
                        ends.cluster.run_shop(events_per_s=SHOP_EVENTS_PER_S, shop=shop),
                        name="shop",
                    )
                )
            await asyncio.wait((relay,))
            for task in on_lookers:
                task.cancel()
    _say("drained; goodbye" if relay.result() == 0 else "the relay did not end well")
    return relay.result()


def _own_directory() -> tempfile.TemporaryDirectory[str]:
    try:
        return tempfile.TemporaryDirectory(prefix="watchrelay-demo-")
    except OSError as error:
        reason = f"no directory for what the demo writes: {error.strerror or error}"
        raise ConfigError(
            [
                ConfigProblem(
                    reason, source="TMPDIR", hint="set TMPDIR to a directory that can be written"
                )
            ]
        ) from error


async def _ends(args: argparse.Namespace, directory: Path, stack: AsyncExitStack) -> _Ends:
    resources = _REAL if args.kubeconfig else _SHOP
    broker = None if args.kafka else stack.enter_context(EmbeddedKafka.start())
    cluster = None
    if not args.kubeconfig:
        cluster = await stack.enter_async_context(SyntheticCluster())
    kafka = args.kafka if broker is None else broker.bootstrap
    config, settings = _configure(args, directory, cluster, kafka)
    if broker is not None:
        _make_topics(broker, settings, resources)
    return _Ends(cluster, settings, config)


def _configure(
    args: argparse.Namespace, directory: Path, cluster: SyntheticCluster | None, kafka: str
) -> tuple[str, Settings]:
    """Write the config that an operator would write, and read it as `run` does."""
    if cluster is None:
        kubeconfig = _real_file(args.kubeconfig)
    else:
        kubeconfig = str(directory / "kubeconfig")
        Path(kubeconfig).write_text(cluster.kubeconfig())
    resources = _REAL if cluster is None else _SHOP
    config = _CONFIG.format(
        kubeconfig=json.dumps(kubeconfig, ensure_ascii=False),
        kafka=json.dumps(kafka),
        create="true" if args.kafka else "false",
        partitions=PARTITIONS,
        resources="".join(f"  - resource: {resource}\n" for resource in resources),
    )
    file = directory / "watchrelay.yaml"
    file.write_text(config)
    environ = _heeded(os.environ, real_cluster=cluster is None, real_kafka=bool(args.kafka))
    return config, load_settings(str(file), environ=environ)


def _real_file(named: str) -> str:
    try:
        return os.path.realpath(named, strict=True)
    except OSError as error:
        reason = (
            "there is no such file"
            if isinstance(error, FileNotFoundError)
            else f"cannot be read: {error.strerror or error}"
        )
        raise ConfigError(
            [ConfigProblem(reason, source=named, hint="named by --kubeconfig")]
        ) from error


def _heeded(environ: Mapping[str, str], *, real_cluster: bool, real_kafka: bool) -> dict[str, str]:
    """The variables that may speak of a demo: how it is observed and ends, and how to reach an end
    that is real.

    None says where an end is, or that this is another cluster: what is exported for a real relay
    must not turn a demo's lists into deletes on its topics.
    """
    sections = (
        {"observe", "shutdown"}
        | ({"kafka"} if real_kafka else set())
        | ({"kubernetes"} if real_cluster else set())
    )
    heeded: dict[str, str] = {}
    passed_over: list[str] = []
    for name, value in environ.items():
        path = env_path(name) if name.startswith(ENV_PREFIX) else None
        if path is None or (path[0] in sections and path[:2] not in _SAID):
            heeded[name] = value
        else:
            passed_over.append(name)
    if passed_over:
        _say(f"not heeded, the demo has its own: {', '.join(sorted(passed_over))}")
    return heeded


def _make_topics(broker: EmbeddedKafka, settings: Settings, resources: tuple[str, ...]) -> None:
    """The embedded broker cannot create topics by request; a real one is asked by the relay
    itself."""
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


async def _print_events(settings: Settings) -> None:
    printer = text_printer(sys.stdout)
    reader = TailReader(
        kafka_connection(settings, client_id="watchrelay-demo-tail").arguments(),
        control_topic=control_topic(settings),
        from_beginning=True,
    )
    async with aclosing(reader.batches()) as batches:
        async for seen in batches:
            print_batch(seen, printer, sys.stdout, sys.stderr)


async def _tell(daemon: Daemon) -> None:
    """Say where to look, and when the whole state is in Kafka."""
    await daemon.started.wait()
    base = f"http://127.0.0.1:{daemon.port}"
    _say(
        f"status page {base}/   readiness {base}/readyz   metrics {base}/metrics   (Ctrl-C ends "
        "the demo)"
    )
    await _until(lambda: daemon.readiness.check()[0])
    _say("ready: the whole state of every stream is in Kafka; what follows are live changes")


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110  # readiness is computed when it is asked for, not announced
        await asyncio.sleep(_READY_POLL_S)


def _say(text: str) -> None:
    print(f"demo: {text}", file=sys.stderr, flush=True)
