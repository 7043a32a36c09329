"""`python -m tests.bench [PART ...]`: measures, and prints a table; with `--record` the figures go to
`measured.json`, of which `make generate-docs` makes docs/performance.md.

Input: names of parts; none means all. Output: the table. Nothing here fails for being slow: a
figure that misses its goal says so. The exit code is 1 if a part could not be measured.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import time
from collections.abc import Callable

from tests.bench import (
    failover,
    flood,
    footprint,
    hotpath,
    intervals,
    outage,
    peers,
    restart,
    returning,
    sharing,
    snapshots,
    transactional,
    verifying,
    viewers,
)
from tests.bench.rig import Rig
from tests.bench.table import Row, as_text, record
from tests.support.process import PartError

PARTS: dict[str, tuple[str, Callable[[Rig], list[Row]]]] = {
    "hotpath": ("The hot path, stage by stage", hotpath.hotpath),
    "flood": ("Flood", flood.flood),
    "paced": ("At 1,000 events a second", flood.paced),
    "paced1": ("At 1,000 events a second, 1 partition", flood.paced_on_one),
    "intervals": ("At 1,000 events a second, by flush interval", intervals.intervals),
    "peers": ("What users would run instead", peers.peers),
    "transactional": ("Transactions", transactional.transactional),
    "memory": ("Memory", footprint.memory),
    "start": ("Start", footprint.start),
    "streams": ("The first start of many streams", footprint.streams),
    "idle": ("Idle", footprint.idle),
    "viewers": ("The status page, looked at", viewers.viewers),
    "restart": ("Restart", restart.restart),
    "failover": ("Two replicas", failover.failover),
    "standby": ("A standby", sharing.standby),
    "split": ("Events of another part", sharing.split),
    "snapshot": ("Live events while a snapshot runs", snapshots.beside_a_snapshot),
    "verify": ("Verify", verifying.verify),
    "outage": ("Kafka frozen", outage.frozen),
    "returning": ("The API server killed and back", returning.returning),
}


IN_TURNS = {
    "flood",
    "paced",
    "paced1",
    "intervals",
    "peers",
    "start",
    "streams",
    "idle",
    "restart",
    "failover",
    "standby",
    "split",
}
ROUNDS = 10
"""A median of fewer says little on a machine that is shared."""


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description="Measure the relay.")
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; all of them if none is named"
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=ROUNDS,
        metavar="N",
        help=f"turns of each program that count; default {ROUNDS}, for a quick look 2",
    )
    parser.add_argument(
        "--before", metavar="REV", help="a git revision that takes turns with this tree"
    )
    parser.add_argument(
        "--record", action="store_true", help="keep the figures, for docs/performance.md"
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
    if asked.rounds < 1:
        parser.error("--rounds must be at least 1")
    return asked


def main() -> int:
    """Run the parts asked for; the exit code."""
    asked = _arguments()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    failed = False
    try:
        with Rig(rounds=asked.rounds, before=asked.before, freeze_s=asked.freeze) as rig:
            print(f"broker: {rig.broker_name}", file=sys.stderr)
            for name, (heading, measure) in PARTS.items():
                if asked.parts and name not in asked.parts:
                    continue
                began_s = time.monotonic()
                try:
                    rows = measure(rig)
                except (PartError, AssertionError, subprocess.CalledProcessError) as error:
                    print(f"{name}: not measured: {error}\n", file=sys.stderr)
                    failed = True
                    continue
                print(as_text(rows), flush=True)
                print(f"({name}: {time.monotonic() - began_s:.0f} s)\n", file=sys.stderr)
                if asked.record:
                    how = [f"{asked.rounds} rounds"] if name in IN_TURNS else []
                    how += [f"before: {asked.before}"] if asked.before and how else []
                    record(name, heading, rows, order=list(PARTS), how=[*how, rig.broker_name])
    except PartError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 128 + signal.SIGINT
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
