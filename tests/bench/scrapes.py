"""What a scrape costs with many streams: `python -m tests.bench.scrapes 200 1000 5000` prints a
table of text and compressed bytes, CPU time and the longest turn of the event loop, in seconds of
the machine that `tests.support.turns.slowness` is 1 of.
"""

from __future__ import annotations

import asyncio
import sys
import time

from tests.support.turns import TurnLoop, slowness
from watchrelay.model.resources import Resource
from watchrelay.observe.exposition import Exposition
from watchrelay.observe.metrics import Metrics

_PODS = Resource("", "v1", "pods", "Pod", namespaced=True)


def main() -> None:
    """Measure each number of streams asked for."""
    print("| streams in one process | text | compressed | CPU | longest turn of the event loop |")
    print("|---|---|---|---|---|")
    for count in map(int, sys.argv[1:] or ("200", "1000", "5000")):
        metrics = Metrics("c")
        for number in range(count):
            metrics.stream(f"configmaps@namespace-{number:05}", _PODS)
        with asyncio.Runner(loop_factory=TurnLoop) as runner:
            loop = runner.get_loop()
            assert isinstance(loop, TurnLoop)
            began_s, slow = time.thread_time(), slowness()
            began_s = time.thread_time()
            made = runner.run(Exposition.of(metrics.pieces()))
            cpu_s = (time.thread_time() - began_s) / slow
            turn_s = loop.longest_s / slow
        text, packed = made.text_bytes / 1e6, len(made.gzipped) / 1e3
        print(f"| {count:,} | {text:.1f} MB | {packed:.0f} KB | {cpu_s:.2f} s | {turn_s:.3f} s |")


if __name__ == "__main__":
    main()
