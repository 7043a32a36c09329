"""`python -m tests.bench [PART ...]`: measures, prints a table, and when nothing was left out
writes docs/performance.md.

Room: tests. In: names of parts; none means all. Out: the table. Nothing here fails for being slow:
a figure that misses its goal says so.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence

from tests.bench import (
    flood,
    footprint,
    hotpath,
    outage,
    restart,
    returning,
    snapshots,
    verifying,
    viewers,
)
from tests.bench.rig import Rig
from tests.bench.table import Row, as_text, write_page

PARTS: dict[str, tuple[str, Callable[[Rig], list[Row]]]] = {
    "hotpath": ("The hot path, stage by stage", hotpath.hotpath),
    "flood": ("Flood", flood.flood),
    "paced": ("At 1,000 events a second", flood.paced),
    "memory": ("Memory", footprint.memory),
    "start": ("Start", footprint.start),
    "idle": ("Idle", footprint.idle),
    "viewers": ("The status page, looked at", viewers.viewers),
    "restart": ("Restart", restart.restart),
    "snapshot": ("Live events while a snapshot runs", snapshots.beside_a_snapshot),
    "verify": ("Verify", verifying.verify),
    "outage": ("Kafka frozen", outage.frozen),
    "returning": ("The API server killed and back", returning.returning),
}


def main() -> int:
    """Run the parts asked for; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description="Measure the relay.")
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; all of them if none is named"
    )
    parser.add_argument(
        "--freeze",
        type=float,
        default=outage.FREEZE_S,
        metavar="SECONDS",
        help=f"how long `outage` stops Kafka; default {outage.FREEZE_S}",
    )
    asked = parser.parse_args()
    if unknown := set(asked.parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    tables: dict[str, Sequence[Row]] = {}
    with Rig() as rig:
        rig.freeze_s = asked.freeze
        print(f"broker: {rig.broker_name}", file=sys.stderr)
        for name, (heading, measure) in PARTS.items():
            if asked.parts and name not in asked.parts:
                continue
            began_s = time.monotonic()
            tables[heading] = rows = measure(rig)
            print(as_text(rows))
            print(f"({name}: {time.monotonic() - began_s:.0f} s)\n", file=sys.stderr)
        if not asked.parts:
            write_page(tables, broker=rig.broker_name, names=list(PARTS))
            print("written: docs/performance.md", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
