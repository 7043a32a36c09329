"""How long a step over a whole state holds the event loop: that of a list, a removal, a resume. Of
what is done in pieces it is the longest turn, with what else the stream does in that turn.

`python -m tests.bench.steps 100000 500000` prints a table of CPU time, in seconds of the machine that
`tests.support.turns.slowness` is 1 of.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

from tests.support.relays import Rig, until
from tests.support.stream_log import PODS
from tests.support.turns import TurnLoop, slowness
from tests.unit.store.frames import frame, widgets
from watchrelay.contract.partitioning import partition_of
from watchrelay.daemon.memory import tune_collector
from watchrelay.model.frames import ObjectFrame
from watchrelay.model.watch_output import (
    ListBegun,
    ListDone,
    ListedObjects,
    ResourceRemoved,
    WatchOutput,
)
from watchrelay.publish.recovery import LogRecovery, WatchFrom, interleaved, recovered_state
from watchrelay.store.objects import Store
from watchrelay.store.reflector import Reflector

PARTITIONS = 3
_PAGE = 500
Steps = dict[str, float]


def _pages(count: int, version: int) -> Iterator[list[ObjectFrame]]:
    for first in range(0, count, _PAGE):
        yield [frame(f"w{number}", version, body=version) for number in range(first, first + _PAGE)]


def _listed(store: Store, count: int, version: int) -> None:
    store.begin_list()
    for page in _pages(count, version):
        store.stage(page)


def _take(steps: Steps, name: str, step: Callable[[], object]) -> None:
    began_s = time.thread_time()
    step()
    steps[name] = time.thread_time() - began_s
    print(f"{name}: {steps[name]:.3f} s", file=sys.stderr, flush=True)


async def lists(count: int) -> Steps:
    """The steps of a stream's first list, of lists that find nothing and everything changed, and of
    the removal of all."""
    store, steps, loop = widgets(), Steps(), asyncio.get_running_loop()
    assert isinstance(loop, TurnLoop)
    rig = Rig(partitions=PARTITIONS, store=cast("Any", store))
    reflector = Reflector(
        "pods",
        store,
        rig.relay,
        metrics=rig.metrics.stream("pods", PODS),
        status=rig.status,
        recovered=False,
    )

    async def take(name: str, output: WatchOutput) -> None:
        loop.begin()
        await asyncio.sleep(0)
        await reflector.take(output)
        await asyncio.sleep(0)
        steps[name] = loop.longest_s
        print(f"{name}: {steps[name]:.3f} s", file=sys.stderr, flush=True)
        await until(lambda: rig.relay._queues.empty and bool(rig.status.complete), steps=100_000)

    async with rig.running():
        for name, version in (
            ("a first list is complete", 2),
            ("a list that finds no difference", 2),
            ("a list in which every object has changed", 3),
        ):
            await reflector.take(ListBegun())
            for page in _pages(count, version):
                await reflector.take(ListedObjects(page))
            await take(name, ListDone(str(version)))
        await take("every object is removed", ResourceRemoved())
    return steps


async def resume(count: int) -> Steps:
    """The step of a start that goes on from a log."""
    source, store = widgets(), widgets()
    _listed(source, count, 2)
    source.replace("2")
    recoveries = [
        LogRecovery("pods", each, partitions=PARTITIONS, pack=store.pack)
        for each in range(PARTITIONS)
    ]
    for key in list(source.keys()):
        entry = source.get(key)
        assert entry is not None
        recoveries[partition_of(key, PARTITIONS)].state.hold(key, entry)
    rig = Rig(partitions=PARTITIONS, store=cast("Any", store))

    def taken() -> None:
        result = recovered_state(recoveries, WatchFrom("2"))
        store.resume(
            interleaved(result.entries),
            skip=result.deleted_versions,
            newest=result.newest_on_log,
        )
        rig.relay.resume(result)

    steps = Steps()
    _take(steps, "a start that goes on from the log", taken)
    return steps


def main(counts: list[int]) -> None:
    """Print the table."""
    random.seed(1)
    tune_collector()  # as the daemon does
    slow, tables = slowness(), dict[int, Steps]()
    for count in counts:
        tables[count] = asyncio.run(resume(count))
        with asyncio.Runner(loop_factory=TurnLoop) as runner:
            tables[count] |= runner.run(lists(count))
    print(f"slowness {slow:.2f}")
    print("| step |", " | ".join(f"{count:,} objects" for count in counts), "|")
    print("|---|" + "---|" * len(counts))
    for name in tables[counts[0]]:
        figures = (f"{tables[count][name] / slow:.2f} s" for count in counts)
        print(f"| {name} |", " | ".join(figures), "|")


if __name__ == "__main__":
    main([int(each) for each in sys.argv[1:]] or [100_000])
