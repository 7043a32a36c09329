"""One seed of floods: a daemon under them, and again at a start after them, while every turn of its
event loop is measured."""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import gc
import json
import logging
import math
import multiprocessing
import re
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import aiohttp

from tests.fuzz import controls, floods
from tests.support.daemon import relay_config
from tests.support.embedded import EmbeddedCluster
from tests.support.rawbatches import batch, send
from tests.support.turns import PLAYS, TurnLoop, are_turns
from watchrelay.config import load_settings
from watchrelay.contract import control_state
from watchrelay.contract.control_state import KEPT_BYTES
from watchrelay.core import turns
from watchrelay.daemon.daemon import Daemon
from watchrelay.demo.kafka import EmbeddedKafka
from watchrelay.kafka.signal_records import SnapshotRequest, signal_value

STREAM, PATH = "configmaps", "/api/v1/namespaces/a/configmaps"
PARTITIONS = 3
SCRAPED = 1000
"""Streams that a scrape sees beside it."""
_WAIT_S = 400.0
_POLL_S = 0.05
_GROWTH_MAX = KEPT_BYTES + (64 << 20)
"""What the control topic may add to the memory of a life: what is kept of it, and the largest value
that is decoded, beside an answer of Kafka."""


class Broken(Exception):
    """A promise was broken."""


@dataclass(slots=True)
class Flooded:
    """The result of one seed."""

    seed: int
    broken: list[str] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    longest_s: float = 0.0
    growth: int = 0
    """Bytes of memory that the highest life took over those before it."""


class Round:
    """One seed, on an event loop that measures its turns; `control`: of the control topic alone,
    and of memory too."""

    def __init__(self, seed: int, *, control: bool = False) -> None:
        self._rng, self._control = Random(seed), control
        self.result = Flooded(seed)
        self._cluster_name = f"flood{seed}"
        self._snapshots = 0

    def play(self) -> Flooded:
        """The result; never raises but for what ends the process."""
        with ExitStack() as stack:
            kafka = stack.enter_context(EmbeddedKafka.start())
            cluster = stack.enter_context(EmbeddedCluster(seed=self.result.seed))
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="watchrelay-flood-"))
            cluster.request("POST", "/api/v1/namespaces", {"metadata": {"name": "a"}})
            for name in ("control", "signal"):
                kafka.create_topic(self._topic(name), 1)
            kafka.create_topic(self._topic(f"core.{STREAM}"), PARTITIONS)
            config = relay_config(
                self._cluster_name,
                bootstrap=kafka.bootstrap,
                kubeconfig=cluster.kubeconfig,
                resources=[STREAM],
                observe={"listen": "127.0.0.1:0"},
            )
            file = Path(directory, "watchrelay.yaml")
            file.write_text(json.dumps(config))
            for live in (True, False):
                before = _resident()
                with asyncio.Runner(loop_factory=TurnLoop) as runner:
                    loop = runner.get_loop()
                    assert isinstance(loop, TurnLoop)
                    try:
                        runner.run(self._life(str(file), kafka.bootstrap, cluster, live=live))
                    except* Broken as broken:
                        self.result.broken.extend(map(str, broken.exceptions))
                    if wrong := loop.too_long():
                        self.result.broken.append(
                            f"{'under the flood' if live else 'at the start after it'}: {wrong}"
                        )
                    self.result.longest_s = max(self.result.longest_s, loop.longest_s)
                self._judge_memory(before, live=live)
        return self.result

    def _judge_memory(self, before: int, *, live: bool) -> None:
        """Of the start after the flood: under it, the flood itself is in this process."""
        growth = _highest() - before
        if not live and self._control:
            self.result.growth = growth
            if growth > _GROWTH_MAX:
                self.result.broken.append(
                    f"the start after it took {growth >> 20} MiB: {_GROWTH_MAX >> 20} are allowed"
                )

    def _topic(self, name: str) -> str:
        return f"k8s.{self._cluster_name}.{name}"

    async def _life(
        self, file: str, bootstrap: str, cluster: EmbeddedCluster, *, live: bool
    ) -> None:
        daemon = Daemon(load_settings(file, environ={}))
        scraped = 0 if self._control else SCRAPED
        for number in range(scraped):
            daemon.metrics.stream(f"pods@namespace-{number:05}", None)
        async with asyncio.TaskGroup() as tasks:
            relay = tasks.create_task(daemon.run(), name="daemon")
            try:
                # what it imports and collects before is no work over foreign input
                await self._until(
                    "it connects", daemon, relay, lambda: daemon._supervisor is not None
                )
                measured = asyncio.get_running_loop()
                assert isinstance(measured, TurnLoop)
                measured.begin()
                await self._until("it is ready", daemon, relay, lambda: _is_ready(daemon))
                if live:
                    await self._flood(bootstrap, cluster)
                await self._answered(bootstrap, daemon, relay)
                async with aiohttp.ClientSession() as session:
                    for page in ("/livez", "/metrics", "/api/overview"):
                        url = f"http://127.0.0.1:{daemon.port}{page}"
                        async with session.get(url) as answer:
                            text = await answer.text()
                        if page == "/metrics" and text.count("watchrelay_queue_bytes{") <= scraped:
                            raise Broken("a scrape does not show every stream")
            finally:
                daemon.stop()
                await asyncio.wait((relay,), timeout=_WAIT_S)

    async def _flood(self, bootstrap: str, cluster: EmbeddedCluster) -> None:
        rng = self._rng
        topics = {
            "signal": floods.SIGNAL,
            "control": floods.CONTROL,
            f"core.{STREAM}": floods.STATE,
        }
        for topic, kinds in ({"control": controls.KINDS} if self._control else topics).items():
            names = rng.sample(sorted(kinds), 2)
            if self._control:
                names = [*rng.sample(controls.OWN, 3), *rng.sample(sorted(floods.ANYWHERE), 1)]
            for name in names:
                batches = await asyncio.to_thread(kinds[name], rng, STREAM)
                partition = rng.randrange(PARTITIONS) if topic.endswith(STREAM) else 0
                self.result.done.append(f"{name} on {topic}")
                await asyncio.to_thread(
                    send, bootstrap, self._topic(topic), *batches, partition=partition
                )
        for number in range(0 if self._control else 2):
            made = await asyncio.to_thread(floods.odd_object, rng, f"odd{number}")
            self.result.done.append(f"an object of {len(made):,} bytes")
            await asyncio.to_thread(_create, cluster, made)

    async def _answered(self, bootstrap: str, daemon: Daemon, relay: asyncio.Task[int]) -> None:
        """All topics were read: a request after all of it is answered. Where the log has grown
        another snapshot follows at once, and the index record that names the request may have been
        replaced before it was looked at: then another request is made."""
        while not await self._is_named(bootstrap, daemon, relay):
            pass

    async def _is_named(self, bootstrap: str, daemon: Daemon, relay: asyncio.Task[int]) -> bool:
        """Make a request, and wait for a snapshot; whether its index record names the request."""
        self._snapshots += 1
        request = SnapshotRequest(f"last{self._snapshots}", (STREAM,))
        record, before = batch([(b"c", signal_value(request), [])]), _index(daemon).get("snapshot")
        await asyncio.to_thread(send, bootstrap, self._topic("signal"), record)
        await self._until(
            "the last request is answered",
            daemon,
            relay,
            lambda: _index(daemon).get("snapshot") != before,
        )
        return request.id in _index(daemon).get("requests", ())

    async def _until(
        self, what: str, daemon: Daemon, relay: asyncio.Task[int], true: Callable[[], bool]
    ) -> None:
        until_s = asyncio.get_running_loop().time() + _WAIT_S
        while not true():
            if relay.done():
                raise Broken(f"the daemon ended with {relay.exception() or relay.result()!r}")
            if asyncio.get_running_loop().time() > until_s:
                raise Broken(f"not within {_WAIT_S:.0f} s: {what}: {daemon.statuses.streams}")
            await asyncio.sleep(_POLL_S)


def _is_ready(daemon: Daemon) -> bool:
    row = daemon.statuses.streams.get(STREAM)
    return row is not None and row.state == "watching" and bool(row.complete)


def _index(daemon: Daemon) -> Any:
    supervisor = daemon._supervisor
    assert supervisor is not None
    return supervisor._context.control.index(STREAM) or {}


def _create(cluster: EmbeddedCluster, made: bytes) -> None:
    cluster.request("POST", PATH, json.loads(made))


def _resident() -> int:
    """The memory of this process, from where `_highest` counts."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _highest() -> int:
    return _status("VmHWM")


def _status(name: str) -> int:
    (found,) = re.findall(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found) << 10


def played(seed: int, plant: bool = False, control: bool = False) -> Flooded:
    """One seed; with `plant` no loop over foreign input gives the event loop its turn, and of the
    control topic everything is kept."""
    logging.root.handlers[:] = [logging.NullHandler()]
    if plant:
        # the two bounds that the seeds prove are taken away: a run must find that
        turns.TURN_S = math.inf  # type: ignore[misc]  # a constant of the relay
        control_state.KEPT_BYTES = 1 << 40  # type: ignore[misc]  # a constant of the relay
    for _ in range(PLAYS):
        result = Round(seed, control=control).play()
        if not are_turns(result.broken):
            break
    return result


def main(kind: str = "flooded", *, control: bool = False) -> int:
    """The exit code. `control`: the control topic alone."""
    parser = argparse.ArgumentParser(prog=f"python -m tests.fuzz.{kind}")
    parser.add_argument("--seed", type=int, help="play this one alone")
    parser.add_argument("--seeds", type=int, default=10, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument(
        "--plant", action="store_true", help="with --seed: hold the loop on purpose"
    )
    parser.add_argument("--jobs", type=int, default=2)
    asked = parser.parse_args()
    seeds = [asked.seed]
    if asked.seed is None:
        seeds = [*range(asked.first, asked.first + asked.seeds)]
    failed = list[int]()
    context = multiprocessing.get_context("spawn")
    with context.Pool(asked.jobs, maxtasksperchild=1) as pool:
        play = partial(played, plant=asked.plant, control=control)
        for found in pool.imap_unordered(play, seeds):
            state = "BROKEN" if found.broken else "right"
            print(
                f"flood {found.seed}: {state}, longest turn {found.longest_s:.3f} s"
                f"{f', {found.growth >> 20} MiB more' if control else ''}; {found.done}",
                *found.broken,
                sep="\n    ",
                flush=True,
            )
            failed += [found.seed] if found.broken else []
    again = f": python -m tests.fuzz.{kind} --seed {failed[0]}" if failed else ""
    print(f"{len(seeds)} floods, {len(failed)} failed {sorted(failed) if failed else ''}{again}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
