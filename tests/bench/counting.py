"""What it costs that not all of an object counts: `python -m tests.bench.counting` prints the CPU time
of the store's step of a pod, in microseconds, medians of five.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median

from tests.support.pods import pod_frame
from tests.support.stream_log import PODS
from watchrelay.model.paths import path_of
from watchrelay.store.counting import Counting
from watchrelay.store.objects import Store
from watchrelay.store.transform import Transform

OBJECTS, ROUNDS, RUNS = 500, 8, 5
_WHOLE = Transform.compile(PODS)


def _ignoring(*paths: str) -> Counting:
    return Counting.compile(_WHOLE, ignored=map(path_of, paths))


def _of(*paths: str) -> Counting:
    return Counting.compile(_WHOLE, published=map(path_of, paths))


CASES: dict[str, Counting | None] = {
    "everything counts": None,
    "published, items of a list are ignored": _ignoring("status.conditions[*].lastProbeTime"),
    "left out, all that changes is ignored": _ignoring(
        "status", "metadata.labels", "metadata.annotations"
    ),
    "left out, spec and labels count": _of("spec", "metadata.labels"),
    "left out, adds and deletes alone": _of(),
}


def step_us(counting: Counting | None) -> float:
    """CPU time of one change."""
    store = Store(_WHOLE, partitions=1, counting=counting)
    store.apply([pod_frame(number, "ADDED", resource_version=1) for number in range(OBJECTS)])
    rounds = [
        [pod_frame(number, resource_version=1 + each, revision=each) for number in range(OBJECTS)]
        for each in range(1, ROUNDS + 1)
    ]
    began_s = time.process_time()
    for frames in rounds:
        store.apply(frames)
    return (time.process_time() - began_s) / (OBJECTS * ROUNDS) * 1e6


def main(cases: Sequence[str] = (*CASES,)) -> None:
    """Print the table, the cases in turns."""
    taken = {name: list[float]() for name in cases}
    for _ in range(RUNS):
        for name in cases:
            taken[name].append(step_us(CASES[name]))
    for name, each in taken.items():
        print(f"| {name} | {median(each):.1f} us |")


if __name__ == "__main__":
    main()
