"""`python -m tests.bench.trace [--calls]`: what one event calls on its way through the relay.

Output: one line for each figure; with `--calls` each call, indented by depth. One change of an
object in a synthetic cluster is followed through a daemon in this process to the acknowledgement of
a mock Kafka. Timers may run meanwhile, so the shortest of many whole traces counts.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import FrameType

import watchrelay
from tests.support.embedded import EmbeddedBroker, EmbeddedCluster
from tests.support.process import wait_until
from tests.support.testbed import Testbed
from watchrelay.config import load_settings
from watchrelay.daemon.daemon import Daemon
from watchrelay.observe import logs

EVENTS = 40
_WINDOW_S = 0.25
"""An event is acknowledged within some 20 ms, unless the machine is busy."""
_HOME = Path(watchrelay.__file__).parent
_CLOCKS = {"monotonic", "time", "time_ns", "monotonic_ns", "clock_gettime", "perf_counter"}
_TURN = "_run_once"


@dataclass(slots=True)
class Trace:
    """The calls of functions of the packages, in order, as (depth, file, qualified name); the types
    of the objects they are methods of; readings of clocks; turns of the event loop with a call."""

    calls: list[tuple[int, str, str]] = field(default_factory=list)
    types: set[type] = field(default_factory=set)
    clock_readings: int = 0
    turns: int = 0
    _depth: int = 0
    _in_turn: bool = False

    def note(self, frame: FrameType, event: str, argument: object) -> None:
        """As `sys.setprofile` calls it."""
        path = Path(frame.f_code.co_filename)
        ours = path.is_relative_to(_HOME)
        if event == "call" and frame.f_code.co_name == _TURN:
            self._in_turn = False
        elif event == "call" and ours:
            self._called(path.relative_to(_HOME), frame)
        elif event == "return" and ours:
            self._depth -= 1
        elif event == "c_call" and ours and getattr(argument, "__name__", "") in _CLOCKS:
            self.clock_readings += 1

    def _called(self, path: Path, frame: FrameType) -> None:
        if not self._in_turn:
            self._in_turn = True
            self.turns += 1
        self.calls.append((self._depth, str(path), frame.f_code.co_qualname))
        self._depth += 1
        owner = frame.f_locals.get("self")
        if owner is not None:
            self.types.add(type(owner))

    def figures(self) -> dict[str, int]:
        """What is counted, by name."""
        packages = [file.partition("/")[0] for _, file, _ in self.calls]
        return {
            "calls": len(self.calls),
            "functions": len({call[1:] for call in self.calls}),
            "files": len({file for _, file, _ in self.calls}),
            "changes of package": sum(one != other for one, other in pairwise(packages)),
            "types": len(self.types),
            "clock readings": self.clock_readings,
            "turns of the event loop": self.turns,
        }


def trace_event() -> Trace:
    """The shortest trace of an event."""
    with tempfile.TemporaryDirectory() as directory, _parts(Path(directory)) as (bed, path):
        return asyncio.run(_traced(bed, path))


@contextmanager
def _parts(directory: Path) -> Iterator[tuple[Testbed, str]]:
    """A testbed, and the path of the object that is changed."""
    with EmbeddedCluster() as cluster, EmbeddedBroker() as broker:
        bed = Testbed(cluster, broker, directory)
        bed.make_topics("configmaps")
        (namespace,) = bed.namespaces(1)
        path = f"/api/v1/namespaces/{namespace}/configmaps"
        bed.make(path, [{"metadata": {"name": "one"}}])
        yield bed, f"{path}/one"


async def _traced(bed: Testbed, path: str) -> Trace:
    relay = bed.relay("configmaps", heartbeatInterval="1h")
    settings = load_settings(str(relay.file), ())
    logs.configure("json", "error")
    daemon = Daemon(settings)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(daemon.run(), name="daemon")
        await asyncio.to_thread(wait_until, "it watches", lambda: relay.readyz()[0] == 200)
        found = [await _of_one(bed, daemon, path, str(number)) for number in range(EVENTS)]
        daemon.stop()
    return min((each for each in found if each is not None), key=lambda each: len(each.calls))


async def _of_one(bed: Testbed, daemon: Daemon, path: str, data: str) -> Trace | None:
    """None where the event was not acknowledged in time; the next one begins after that."""
    trace, changed = Trace(), {"metadata": {"name": "one"}, "data": {"changed": data}}
    put, acked = partial(bed.cluster.request, "PUT", path, changed), _acked(daemon)
    sent = asyncio.get_running_loop().run_in_executor(None, put)
    sys.setprofile(trace.note)
    await asyncio.sleep(_WINDOW_S)
    sys.setprofile(None)
    await sent
    in_time = _acked(daemon) > acked
    await asyncio.to_thread(wait_until, "it is acknowledged", lambda: _acked(daemon) > acked)
    return trace if in_time else None


def _acked(daemon: Daemon) -> float:
    """How many records were acknowledged."""
    return sum(
        sample.value
        for family in daemon.metrics.registry.collect()
        for sample in family.samples
        if sample.name == "watchrelay_records_acked_total"
    )


def main() -> None:
    """Trace, and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.trace")
    parser.add_argument("--calls", action="store_true", help="each call, indented by depth")
    asked = parser.parse_args()
    trace = trace_event()
    if asked.calls:
        for depth, file, name in trace.calls:
            print(f"{'  ' * depth}{file} {name}")
    for name, figure in trace.figures().items():
        print(f"{name}: {figure}")


if __name__ == "__main__":
    main()
