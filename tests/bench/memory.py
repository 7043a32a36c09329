"""RSS per pod held: `python -m tests.bench.memory [OBJECTS ...]`, one line of JSON for each number
of objects.

Room: tests. In: pods of 3.9 KB from another process, in pages of 500, as a list brings them. Out:
resident memory above the idle process, per pod; then the same after a relist that finds nothing
new, and after a watch that changed every pod twice. Each number is measured in a process of its
own; another one makes the pods, so that their making leaves no holes in the memory measured.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import msgspec

from tests.support.pods import frame_of, pod
from watchrelay.model.frames import ObjectFrame
from watchrelay.model.resources import Resource
from watchrelay.store.objects import Store
from watchrelay.store.transform import Transform

PODS = Resource("", "v1", "pods", "Pod", namespaced=True)
PAGE_OBJECTS = 500
CHUNK_EVENTS = 13


def emit(objects: int, revision: int) -> None:
    """Write `objects` pods as JSON lines."""
    out = sys.stdout.buffer
    for number in range(objects):
        version = 90_000_000 + revision * objects + number
        out.write(
            msgspec.json.encode(pod(number, resource_version=version, revision=revision)) + b"\n"
        )


def pods(objects: int, revision: int, size: int) -> Iterator[list[ObjectFrame]]:
    """Pods from another process, `size` at a time."""
    command = [sys.executable, "-m", "tests.bench.memory", "--emit", str(revision), str(objects)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as maker:
        assert maker.stdout is not None, "the pipe was asked for"
        while lines := list(islice(maker.stdout, size)):
            yield [frame_of(line) for line in lines]
    assert maker.returncode == 0, "the maker of the pods failed"


def resident_bytes(field: str = "VmRSS") -> int:
    """This process's memory now (`VmRSS`) or at most so far (`VmHWM`)."""
    gc.collect()
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        name, _, rest = line.partition(":")
        if name == field:
            return int(rest.split()[0]) * 1024
    raise AssertionError(f"{field} is not in /proc/self/status")


def list_into(store: Store, objects: int, revision: int) -> float:
    """List into `store`; returns the CPU seconds of the store's part."""
    used_s = 0.0
    store.begin_list()
    for page in pods(objects, revision, PAGE_OBJECTS):
        before_s = time.process_time()
        store.stage(page)
        used_s += time.process_time() - before_s
    before_s = time.process_time()
    store.replace(str(10**9))
    return used_s + time.process_time() - before_s


def measure(objects: int) -> dict[str, float]:
    """The figures for one number of objects, in this process."""
    store = Store(Transform.compile(PODS), partitions=6)
    idle = resident_bytes()
    figures: dict[str, float] = {"objects": objects, "idle_mb": round(idle / 1e6, 1)}
    figures["list_cpu_us_per_object"] = round(list_into(store, objects, 0) / objects * 1e6, 2)
    assert len(store) == objects, "every pod is held"
    figures["kib_per_object"] = round((resident_bytes() - idle) / objects / 1024, 3)
    figures["list_peak_mb"] = round(resident_bytes("VmHWM") / 1e6, 1)
    figures["relist_cpu_us_per_object"] = round(list_into(store, objects, 0) / objects * 1e6, 2)
    figures["relist_peak_mb"] = round(resident_bytes("VmHWM") / 1e6, 1)
    for revision in (1, 2):
        used_s = 0.0
        for chunk in pods(objects, revision, CHUNK_EVENTS):
            before_s = time.process_time()
            store.apply(chunk)
            used_s += time.process_time() - before_s
    figures["watch_cpu_us_per_event"] = round(used_s / objects * 1e6, 2)
    figures["kib_per_object_after_changes"] = round((resident_bytes() - idle) / objects / 1024, 3)
    figures["packed_bytes"] = round(
        sum(len(e.packed) for e in map(store.get, store.keys()) if e is not None) / objects
    )
    return figures


def main() -> None:
    """Measure each number of objects in a process of its own, or be one of those processes."""
    parser = argparse.ArgumentParser(description="Resident memory per pod held.")
    parser.add_argument("objects", nargs="*", type=int, default=[20_000, 100_000])
    parser.add_argument("--emit", type=int, metavar="REVISION", help=argparse.SUPPRESS)
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    for objects in asked.objects:
        if asked.emit is not None:
            emit(objects, asked.emit)
        elif asked.here:
            print(json.dumps(measure(objects)))
        else:
            subprocess.run(
                [sys.executable, "-m", "tests.bench.memory", "--here", str(objects)], check=True
            )


if __name__ == "__main__":
    main()
