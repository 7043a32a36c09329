"""`python -m tests.fuzz.versions --seeds N | --seed N`: versions of resources come, end and return by
seed, while the daemon runs and between its lives, as one API server or several show it; and whether
an object that exists is ever published as deleted."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import multiprocessing
import sys
import tempfile
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from aiohttp import web

from tests.fuzz import fasttime
from tests.fuzz.fasttime import elapsed_s
from tests.fuzz.running import Broken, end, why
from tests.support.finds import flat
from watchrelay.config import load_settings
from watchrelay.config.streams import control_topic
from watchrelay.consumer.reader import TailReader
from watchrelay.contract.records import ObjectRecord
from watchrelay.daemon.daemon import Daemon
from watchrelay.demo.cluster import SyntheticCluster
from watchrelay.demo.kafka import EmbeddedKafka
from watchrelay.kube.client import KubeClient
from watchrelay.kube.discovery.catalog import ApiCatalog
from watchrelay.kube.discovery.client import Discovery
from watchrelay.model.resources import GONE, Availability, Resource
from watchrelay.plan.kafka import kafka_connection

GROUP = "fuzz.example.com"
CUSTOM, OWN = f"movers.{GROUP}", "horizontalpodautoscalers.autoscaling"
GRACE_S = 30.0
"""So long no version of a CRD is served before its objects may be published as deleted."""
RIGHT_S, PLAY_S = 900.0, 5000.0
_VERSIONS = (("v1",), ("v2",), ("v1", "v2"), ("v2", "v1"))
_CRDS = "customresourcedefinitions.apiextensions.k8s.io"


class ExactCatalog(ApiCatalog):
    """The planted fault: an exact version is asked for where "is it served at all" is meant."""

    def availability(self, resource: Resource, *, any_scope: bool = False) -> Availability:
        found = super().availability(resource, any_scope=any_scope)
        return GONE if found.state == "hidden" else found


class _ExactDiscovery(Discovery):
    async def _ask(self) -> bool:
        changed = await super()._ask()
        assert self.catalog is not None
        self.catalog = ExactCatalog(self.catalog.groups)
        return changed


class ExactDaemon(Daemon):
    """A daemon with the planted fault."""

    def _make_discovery(self, client: KubeClient) -> Discovery:
        return _ExactDiscovery(client)


@dataclass(slots=True)
class Followed:
    """One resource: its entry in the config, the versions that each server shows, and its objects."""

    stream: str
    entry: str
    shown: list[tuple[str, ...]] = field(default_factory=lambda: [("v1", "v2")])
    unserved_since_s: float | None = None
    may_be_removed: bool = False
    deleted: set[str] = field(default_factory=set)
    """The uids of objects that the server deleted."""


class Game:
    """One run of one seed."""

    def __init__(self, seed: int, *, planted: bool = False) -> None:
        self.seed, self._rng, self._servers = seed, Random(seed), Random(f"{seed}/servers")
        self._make: type[Daemon] = ExactDaemon if planted else Daemon
        self._cluster = SyntheticCluster(seed=seed)
        custom = self._rng.choice([f"{CUSTOM}/v1", f"*.{GROUP}/v1", CUSTOM, "movers"])
        own = self._rng.choice([f"{OWN}/v1", OWN, "hpa"])
        self._followed = [Followed(CUSTOM, custom), Followed(OWN, own)]
        self.events: list[str] = []
        self._directory = ""
        self._made = 0

    def _note(self, event: str) -> None:
        self.events.append(f"{elapsed_s():.1f} {event}")

    # ---- the world -------------------------------------------------------------------------------

    async def play(self) -> str:
        """What was broken, "" for nothing."""
        logging.root.handlers[:] = [logging.NullHandler()]
        try:
            async with asyncio.timeout(PLAY_S), AsyncExitStack() as stack:
                self._directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="fuzz-"))
                kafka = stack.enter_context(EmbeddedKafka.start())
                cluster = await stack.enter_async_context(self._cluster)
                for topic in ("control", "signal", *(each.stream for each in self._followed)):
                    kafka.create_topic(f"k8s.v{self.seed}.{topic}", 1)
                self._define(cluster.kubeconfig())
                await self._phases(kafka.bootstrap)
        except Exception as error:  # noqa: BLE001  # whatever ends a seed is to be seen
            broken = [str(each) for each in flat(error) if isinstance(each, Broken)]
            return "\n".join(broken) or why(error)
        return ""

    def _define(self, kubeconfig: str) -> None:
        Path(self._directory, "kubeconfig").write_text(kubeconfig)
        names = {"plural": "movers", "singular": "mover", "kind": "Mover"}
        versions = [{"name": each, "storage": each == "v1"} for each in ("v1", "v2")]
        spec = {"group": GROUP, "scope": "Namespaced", "names": names, "versions": versions}
        registry = self._cluster.registry
        registry.create("namespaces", {"metadata": {"name": "a"}})
        registry.create(_CRDS, {"metadata": {"name": CUSTOM}, "spec": spec})
        registry.catalog.serve(OWN, "v1", "v2")
        for each in self._followed:
            for _ in range(4):
                self._put(each)
        self._cluster.server.behaviour.intercept = self._answered

    async def _answered(self, _request: web.Request) -> web.StreamResponse | None:
        """Each request is answered by one of the servers that there are now."""
        for each in self._followed:
            self._cluster.registry.catalog.serve(each.stream, *self._servers.choice(each.shown))
        return None

    def _daemon(self, bootstrap: str) -> Daemon:
        file = Path(self._directory, "watchrelay.yaml")
        kafka = {
            "bootstrapServers": [bootstrap],
            "createTopics": False,
            "partitions": 1,
            "replicationFactor": 1,
            "minInsyncReplicas": 1,
        }
        config: dict[str, Any] = {
            "cluster": f"v{self.seed}",
            "kubernetes": {"kubeconfig": f"{self._directory}/kubeconfig"},
            "kafka": kafka,
            "observe": {"listen": "127.0.0.1:0"},
            "resources": [
                {"resource": each.entry, "topic": f"k8s.v{self.seed}.{each.stream}"}
                for each in self._followed
            ],
        }
        file.write_text(json.dumps(config))
        return self._make(load_settings(str(file), environ={}))

    # ---- the course of events --------------------------------------------------------------------

    async def _phases(self, bootstrap: str) -> None:
        rng = self._rng
        async with asyncio.TaskGroup() as tasks:
            daemon = self._daemon(bootstrap)
            relay = tasks.create_task(daemon.run(), name="daemon")
            try:
                await self._until_right(daemon, bootstrap)
                for _ in range(rng.randint(4, 8)):
                    restarts = rng.random() < 0.3
                    if restarts:
                        await end(daemon, relay)
                    self._step()
                    if restarts:
                        self._note("restarts")
                        daemon = self._daemon(bootstrap)
                        relay = tasks.create_task(daemon.run(), name="daemon again")
                    await asyncio.sleep(rng.choice([2.0, 20.0, 50.0, 100.0]))
                    await self._check(bootstrap)
                for each in self._followed:
                    self._show(each, ("v1", "v2"))
                await self._until_right(daemon, bootstrap)
            finally:
                await end(daemon, relay)

    def _step(self) -> None:
        """Versions come, end or return; objects change."""
        rng = self._rng
        for each in self._followed:
            each.may_be_removed = self._is_removable(each)
            if rng.random() < 0.7:
                several = rng.random() < 0.3
                none = ((),) if each.stream == OWN or not several else ()
                self._show(each, *rng.sample((*_VERSIONS, *none, *none), 2 if several else 1))
            for _ in range(rng.randrange(3)):
                self._change(each)

    def _show(self, each: Followed, *shown: tuple[str, ...]) -> None:
        self._note(f"{each.stream} is served in {shown}")
        each.shown = list(shown)
        unserved = not any(shown)
        each.unserved_since_s = (each.unserved_since_s or elapsed_s()) if unserved else None
        self._cluster.registry.catalog.serve(each.stream, *shown[0])
        self._cluster.server.end_watches("clean", each.stream)

    def _is_removable(self, each: Followed) -> bool:
        since_s = each.unserved_since_s
        return each.stream == CUSTOM and since_s is not None and elapsed_s() - since_s >= GRACE_S

    def _change(self, each: Followed) -> None:
        objects = self._cluster.registry.storage.collection(each.stream).objects
        if objects and self._rng.random() < 0.4:
            key = self._rng.choice(sorted(objects))
            each.deleted.add(objects[key].uid)
            self._cluster.registry.delete(each.stream, *key)
            self._note(f"{each.stream} {key} is deleted")
        else:
            self._put(each)

    def _put(self, each: Followed) -> None:
        self._made += 1
        metadata = {"name": f"o{self._made}", "namespace": "a"}
        self._cluster.registry.create(each.stream, {"metadata": metadata, "spec": {"n": 1}})

    # ---- whether it is right ---------------------------------------------------------------------

    async def _published(self, bootstrap: str) -> dict[str, dict[bytes, str]]:
        """By stream the uids of what the topics hold. Raises: Broken where an object that exists was
        published as deleted."""
        settings = load_settings(str(Path(self._directory, "watchrelay.yaml")), environ={})
        held: dict[str, dict[bytes, str]] = {each.stream: {} for each in self._followed}
        tail = TailReader(
            kafka_connection(settings, client_id="fuzz"),
            control_topic=control_topic(settings),
            streams=list(held),
            from_beginning=True,
            until_end=True,
        )
        async with aclosing(tail.batches()) as batches:
            records = [one.record async for batch in batches for one in batch]
        for record in records:
            if not isinstance(record, ObjectRecord):
                continue
            objects, key = held[record.stream], record.key.rpartition(b"/")[2]
            if record.verb == "deleted":
                self._judge(record, objects.pop(key, record.uid))
            else:
                objects[key] = record.uid
        return held

    def _judge(self, record: ObjectRecord, uid: str) -> None:
        (each,) = (one for one in self._followed if one.stream == record.stream)
        if self._is_removable(each) or each.may_be_removed:
            each.deleted.add(uid)  # as documented, once no version was served for the grace
        if uid not in each.deleted:
            raise Broken(f"{each.stream} {record.key.decode()} exists, and is published as deleted")

    async def _check(self, bootstrap: str) -> None:
        await self._published(bootstrap)

    async def _until_right(self, daemon: Daemon, bootstrap: str) -> None:
        """Return once the topics hold what the server holds."""
        deadline_s = elapsed_s() + RIGHT_S
        while True:
            wanted = {
                each.stream: {
                    one.name.encode(): one.uid
                    for one in self._cluster.registry.storage.collection(
                        each.stream
                    ).objects.values()
                }
                for each in self._followed
            }
            rows = daemon.statuses.streams
            if all(stream in rows and rows[stream].complete for stream in wanted):
                if (held := await self._published(bootstrap)) == wanted:
                    return
            else:
                held = {}
            if elapsed_s() > deadline_s:
                states = {name: (row.state, row.waits_for) for name, row in rows.items()}
                raise Broken(f"not within {RIGHT_S:g} s: {held}, wanted {wanted}; {states}")
            await asyncio.sleep(5.0)


def played(seed: int, *, planted: bool = False) -> tuple[Game, str]:
    """One seed, and what was broken. Has this process live in fast time."""
    fasttime.install()
    game = Game(seed, planted=planted)
    with asyncio.Runner(loop_factory=fasttime.FastLoop) as runner:
        return game, runner.run(game.play())


def _line(seed: int) -> str:
    game, broken = played(seed)
    again = f"; play it again: python -m tests.fuzz.versions --seed {seed}"
    return f"seed {seed}: {'right' if not broken else f'BROKEN{again}'}\n" + (
        "\n".join([*(f"    {each}" for each in game.events), broken, ""]) if broken else ""
    )


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.versions")
    parser.add_argument("--seed", type=int, help="play this one alone and tell of it")
    parser.add_argument("--seeds", type=int, default=20, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument(
        "--plant", action="store_true", help="with --seed: break the rule on purpose"
    )
    parser.add_argument("--jobs", type=int, default=4, help="how many processes")
    asked = parser.parse_args()
    if asked.seed is not None:
        game, broken = played(asked.seed, planted=asked.plant)
        print("\n".join([*game.events, broken or "right"]))
        return 1 if broken else 0
    seeds, failed = range(asked.first, asked.first + asked.seeds), 0
    with multiprocessing.get_context("fork").Pool(asked.jobs, maxtasksperchild=10) as pool:
        for line in pool.imap_unordered(_line, seeds):
            print(line, end="", flush=True)
            failed += "BROKEN" in line
    print(f"{asked.seeds} seeds, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
