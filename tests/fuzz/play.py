"""One seed: the daemon between an API server and a Kafka that are sane, then odd, then sane again,
and whether all ends right."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import tempfile
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Literal

from tests.fuzz.fasttime import elapsed_s
from tests.fuzz.oddlines import Source
from tests.fuzz.oddobjects import alike, counted, published, tree
from tests.fuzz.oddserver import OddServer, OddSource
from tests.fuzz.oddwriter import Foreign, OddStream
from tests.fuzz.plan import DISCOVERY, FOREIGN, TROUBLE, Followed, Part, Plan
from tests.fuzz.running import STOP_S, Broken, RunningDaemon, end, why
from tests.fuzz.truth import Truth
from tests.support.finds import flat
from watchrelay.config import load_settings
from watchrelay.consumer import TopicReader
from watchrelay.consumer.partitions import Objects
from watchrelay.daemon.daemon import Daemon
from watchrelay.demo.cluster import SyntheticCluster
from watchrelay.demo.kafka import EmbeddedKafka
from watchrelay.observe import logs

START_S, SANE_S, RIGHT_S, RESTART_S = 300.0, 1500.0, 1500.0, 900.0
"""Fast seconds until all streams are right at the start, the sane ones are while others are odd,
all are once the source is sane, and all are after a restart. A source may have asked for five
minutes of patience, more than once."""
PLAY_S = 7000.0
"""Of a whole seed; nothing of it takes so long unless it hangs."""
_MORE = {"tasks": 40, "open files": 40, "MiB of memory": 400}
"""What a daemon may hold more of than before the odd phase, and the world around it with it."""
_WARNINGS_MAX = 3000


Plant = Literal["", "claim", "traceback"]
"""A broken promise put in on purpose, to see that it is noticed: another relay takes a stream, or a
traceback is logged."""


@dataclass(slots=True)
class Verdict:
    """The result of one seed. `broken`: each broken promise, empty for a good run; `events`: what
    the daemon was sent, and what it logged."""

    seed: int
    broken: list[str] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)


class _Log(logging.Handler):
    """Keeps what is logged as lines, and the tracebacks among it as broken promises."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__()
        self._verdict = verdict
        self._format = logs.JsonFormatter()

    def emit(self, record: logging.LogRecord) -> None:
        verdict, line = self._verdict, self._format.format(record)
        json.loads(line)
        verdict.events.append(f"{elapsed_s():.1f} log: {line[:600]}")
        verdict.counts[f"lines of level {record.levelname.lower()}"] += 1
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, ConnectionError) and record.name == "aiohttp.server":
            return  # the synthetic server's side of a connection that was cut
        if error is not None and record.name.startswith(("watchrelay", "asyncio", "aiohttp")):
            verdict.broken.append(
                f"a traceback in the log of {record.name}: {line[:200]}\n{why(error)}"
            )
        elif record.name == "asyncio" and record.levelno >= logging.ERROR:
            verdict.broken.append(f"the event loop complains: {line[:1000]}")


class Game:
    """One run of one seed."""

    def __init__(
        self, plan: Plan, *, without: frozenset[Part] = frozenset(), plant: Plant = ""
    ) -> None:
        self.plan, self.without, self.plant = plan, without, plant
        self.verdict = Verdict(plan.seed)
        self._cluster = SyntheticCluster(seed=plan.seed)
        self._name = f"f{plan.seed}"
        self._directory = ""
        self._truths = {
            each.id: Truth(each, self._cluster.registry, Random(f"{plan.seed}/truth/{each.id}"))
            for each in plan.followed
        }
        self._odd = {each.resource.plural: self._source(each) for each in plan.followed if each.odd}
        self._server = OddServer(Random(f"{plan.seed}/server"), self._odd, self._note)
        self._right: dict[tuple[str, str], tuple[bytes, bytes]] = {}
        """By stream and key what is published and what the server holds, where they were found to
        be the same."""

    def _note(self, event: str) -> None:
        self.verdict.events.append(f"{elapsed_s():.1f} {event}")
        self.verdict.counts["foreign records" if event.startswith("foreign:") else "oddities"] += 1

    def _source(self, each: Followed) -> OddSource:
        truth = self._truths[each.id]
        rng = Random(f"{self.plan.seed}/source/{each.id}")
        storage = self._cluster.registry.storage

        def taken() -> int:
            storage.version += 1
            return storage.version

        source = Source(
            rng, each.resource, "a", lambda: truth.existing, lambda: storage.version, taken
        )
        return OddSource(source, each.kinds, each.share, self._note)

    def _topic(self, name: str) -> str:
        return f"k8s.{self._name}.{name}"

    # ---- the world -------------------------------------------------------------------------------

    def _config(self, bootstrap: str) -> dict[str, Any]:
        resources = []
        for each in self.plan.followed:
            entry: dict[str, Any] = {
                "resource": each.id,
                "topic": self._topic(each.topic),
                "partitions": each.partitions,
                **each.keys,
            }
            entry |= {"metadataOnly": True} if each.metadata_only else {}
            entry |= {"drop": ["spec.noise"]} if each.drop else {}
            entry |= {"redact": ["spec.secret"]} if each.redact else {}
            resources.append(entry)
        kafka = {
            "bootstrapServers": [bootstrap],
            "createTopics": False,
            "replicationFactor": 1,
            "minInsyncReplicas": 1,
            **self.plan.kafka,
        }
        kubernetes = {"kubeconfig": f"{self._directory}/kubeconfig"}
        fixed = {
            "cluster": self._name,
            "kubernetes": kubernetes,
            "kafka": kafka,
            "observe": {"listen": "127.0.0.1:0"},
        }
        return {**fixed, **self.plan.top, "resources": resources}

    def _daemon(self, bootstrap: str) -> Daemon:
        file = Path(self._directory, "watchrelay.yaml")
        file.write_text(json.dumps(self._config(bootstrap)))
        return Daemon(load_settings(str(file), environ={}))

    async def play(self) -> Verdict:
        """The verdict; never raises but for what ends the process."""
        log = _Log(self.verdict)
        logging.root.handlers[:] = [log]
        logs.set_level("info")
        stuck = asyncio.get_running_loop().call_later(PLAY_S - 1.0, self._note_tasks)
        try:
            async with asyncio.timeout(PLAY_S), AsyncExitStack() as stack:
                self._directory = stack.enter_context(
                    tempfile.TemporaryDirectory(prefix="watchrelay-fuzz-")
                )
                kafka = stack.enter_context(EmbeddedKafka.start())
                cluster = await stack.enter_async_context(self._cluster)
                self._prepare(kafka, cluster.kubeconfig())
                await self._phases(kafka.bootstrap)
        except Exception as error:  # noqa: BLE001  # whatever ends a seed is to be seen
            found = [each for each in flat(error) if isinstance(each, Broken)]
            self.verdict.broken.extend(map(str, found) if found else [why(error)])
        finally:
            stuck.cancel()
            logging.root.removeHandler(log)
        if (
            warnings := self.verdict.counts["lines of level warning"]
            + self.verdict.counts["lines of level error"]
        ) > _WARNINGS_MAX:
            self.verdict.broken.append(f"{warnings} warnings and errors in the log")
        return self.verdict

    def _note_tasks(self) -> None:
        for task in asyncio.all_tasks():
            frames = [
                f"{frame.f_code.co_filename}:{frame.f_lineno}" for frame in task.get_stack()[-3:]
            ]
            self.verdict.events.append(f"{elapsed_s():.1f} stuck: {task.get_name()} {frames}")

    def _prepare(self, kafka: EmbeddedKafka, kubeconfig: str) -> None:
        Path(self._directory, "kubeconfig").write_text(kubeconfig)
        for name in ("control", "signal"):
            kafka.create_topic(self._topic(name), 1)
        for topic, partitions in {
            each.topic: each.partitions for each in self.plan.followed
        }.items():
            kafka.create_topic(self._topic(topic), partitions)
        for truth in self._truths.values():
            truth.define()
        for truth in self._truths.values():
            truth.fill()
        behaviour, catalog = self._cluster.server.behaviour, self._cluster.registry.catalog
        behaviour.metadata_only, behaviour.bookmark_interval_s = False, 10.0
        behaviour.intercept = self._server.intercept
        self._server.documents(
            lambda path: (
                catalog.aggregated(core=path == "/api") if path in {"/api", "/apis"} else None
            )
        )

    # ---- the daemon ------------------------------------------------------------------------------

    async def _phases(self, bootstrap: str) -> None:
        async with asyncio.TaskGroup() as tasks:
            daemon = self._daemon(bootstrap)
            relay = tasks.create_task(daemon.run(), name="daemon")
            try:
                await self._life(daemon, relay, bootstrap, odd=True)
                daemon = self._daemon(bootstrap)
                relay = tasks.create_task(daemon.run(), name="daemon again")
                await self._life(daemon, relay, bootstrap, odd=False)
            finally:
                await end(daemon, relay)

    async def _life(
        self, daemon: Daemon, relay: asyncio.Task[int], bootstrap: str, *, odd: bool
    ) -> None:
        ids = [each.id for each in self.plan.followed]
        reader = TopicReader(bootstrap, control_topic=self._topic("control"), streams=ids)
        async with reader, asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(_follow(reader), name="reader")
            world = RunningDaemon(self, daemon, relay, reader, reading)
            try:
                if odd:
                    await self._first_life(world, bootstrap)
                else:
                    for truth in self._truths.values():
                        truth.churn(odder=False, tell=self._note)
                    await world.until("all streams are right after a restart", ids, RESTART_S)
                await world.pages()
                await world.stop()
            finally:
                reading.cancel()
        await self._read_again(bootstrap, ids)

    async def _first_life(self, world: RunningDaemon, bootstrap: str) -> None:
        sane = [each.id for each in self.plan.followed if not each.odd]
        everything = list(self._truths)
        await world.until("all streams are right at the start", everything, START_S)
        before = _resources()
        await self._odd_phase(bootstrap)
        if self.plant == "claim":  # it is read with the control topic's next answer
            await asyncio.wait((world.relay,), timeout=STOP_S * 10)
        await world.until("the sane streams are right while others are odd", sane, SANE_S)
        self._turn_sane()
        await world.until("all streams are right once the source is sane", everything, RIGHT_S)
        gc.collect()
        now = _resources()
        for what, most in _MORE.items():
            self.verdict.counts[f"more {what}"] = max(0, now[what] - before[what])
            if now[what] - before[what] > most:
                raise Broken(f"{now[what]} {what} after {before[what]} before the odd phase")

    async def _odd_phase(self, bootstrap: str) -> None:
        plan, rng = self.plan, Random(f"{self.plan.seed}/steps")
        for plural, source in self._odd.items():
            source.active = plural not in self.without
        streams = [
            self._odd_stream(each)
            for each in plan.followed
            if each.odd and each.resource.plural not in self.without
        ]
        others = [each.id for each in plan.followed if not each.odd]
        writer = Random(f"{plan.seed}/foreign")
        async with Foreign(
            writer, bootstrap, topic=self._topic, streams=streams, others=others, tell=self._note
        ) as foreign:
            for step in range(plan.steps):
                for each in plan.followed:
                    truth = self._truths[each.id]
                    truth.churn(
                        odder=each.odd and each.resource.plural not in self.without, tell=self._note
                    )
                self._server.discovery = (
                    plan.discovery and DISCOVERY not in self.without and rng.random() < 0.5
                )
                self._server.troubled = (
                    plan.trouble
                    and TROUBLE not in self.without
                    and rng.random() < 0.2
                    and step < plan.steps - 1
                )
                for _ in range(rng.randrange(4)):
                    if plan.foreign and FOREIGN not in self.without and streams:
                        await foreign.write()
                if rng.random() < 0.4:
                    self._cluster.server.end_watches(
                        "clean" if rng.random() < 0.5 else "cut", rng.choice(list(self._truths))
                    )
                await asyncio.sleep(rng.choice([0.05, 0.5, 2.0, 8.0, 40.0]))
            if self.plant == "claim":
                await foreign.claim()
            elif self.plant == "traceback":
                logging.getLogger("watchrelay").error("planted", exc_info=ValueError("planted"))
        self._server.troubled = False

    def _odd_stream(self, each: Followed) -> OddStream:
        truth = self._truths[each.id]
        source = f"/clusters/{self._name}/apis/{each.resource.group}/{each.resource.version}/{each.resource.plural}"
        return OddStream(
            each.id,
            self._topic(each.topic),
            each.partitions,
            lambda: [key.encode() for key in truth.bodies()],
            source,
        )

    def _turn_sane(self) -> None:
        """The source holds what can be published, and serves that; what it served before is history
        that is gone."""
        self._note("sane again")
        self._server.discovery = self._server.troubled = False
        storage = self._cluster.registry.storage
        storage.version += 1000
        for each in self.plan.followed:
            truth = self._truths[each.id]
            if each.odd:
                truth.turn_decent()
                storage.compact(each.id)
                self._odd[each.resource.plural].sane()
                self._cluster.server.end_watches("cut", each.id)
            truth.churn(odder=False, tell=self._note)

    # ---- whether it is right ---------------------------------------------------------------------

    def wrong(self, stream: str, held: Objects) -> str:
        """How what readers hold differs from what the server holds; "" where it does not."""
        truth = self._truths[stream]
        bodies = truth.bodies()
        keys = set(held)
        if keys != bodies.keys():
            more, less = sorted(keys - bodies.keys()), sorted(bodies.keys() - keys)
            return (
                f"{stream}: {len(more)} too many {more[:3]!r:.300}, {len(less)} missing "
                f"{less[:3]!r:.300}"
            )
        each = truth.followed
        for name in keys:
            value = held.value(name) or b""
            pair = value, bodies[name]
            if self._right.get((stream, name)) == pair:
                continue
            expected = published(
                pair[1],
                each.resource,
                metadata_only=each.metadata_only,
                drop=each.drop,
                redact=each.redact,
            )
            found, expected = (counted(one, each.keys) for one in (tree(value), expected))
            if not alike(found, expected, but_version=each.keys.get("suppressUnchanged", True)):
                return (
                    f"{stream}: {name[:100]!r} is published as {value[:300]!r}, and the "
                    f"server holds {pair[1][:300]!r}"
                )
            self._right[stream, name] = pair
        return ""

    async def _read_again(self, bootstrap: str, ids: list[str]) -> None:
        """A reader that starts now finds the same."""
        try:
            async with TopicReader(
                bootstrap, control_topic=self._topic("control"), streams=ids, until_end=True
            ) as reader:
                await reader.ready()
                wrong = [
                    difference
                    for stream in ids
                    if (difference := self.wrong(stream, reader.objects(stream)))
                ]
        except Exception as error:
            raise Broken(f"a new reader: {why(error)}") from error
        if wrong:
            raise Broken(f"a new reader finds: {wrong}")


async def _follow(reader: TopicReader) -> None:
    async for _ in reader:
        pass


def _resources() -> dict[str, int]:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    files = sum(1 for _ in Path("/proc/self/fd").iterdir())
    return {
        "tasks": len(asyncio.all_tasks()),
        "open files": files,
        "MiB of memory": pages * os.sysconf("SC_PAGE_SIZE") >> 20,
    }
