"""`python -m tests.dashboards`: the dashboards as pictures, from a relay on real parts under load
and faults (`make dashboards-shots`).

Input: the real parts, Prometheus, npm, a Chromium. Output: docs/images/dashboard-*.png, and the
panels that nobody answered.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.dashboards.shots import CHOSEN, asked, draw, empty
from tests.dashboards.stage import NAMESPACE, play, played
from tests.support import charttools, realparts
from tests.support.browser import program
from tests.support.prometheus import Prometheus

_KEPT = charttools.ROOT / "build" / "dashboards" / "prometheus"


def main() -> int:
    """Play, ask, draw; the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.dashboards", description="The dashboards as pictures."
    )
    parser.add_argument(
        "--to",
        type=Path,
        default=charttools.ROOT / "docs" / "images",
        help="where the pictures go; default docs/images",
    )
    parser.add_argument(
        "--again",
        action="store_true",
        help="ask the Prometheus of the last run instead of playing again",
    )
    wanted = parser.parse_args()
    if program() is None:
        parser.exit(1, "no browser: set CHROMIUM, or install the package chromium\n")
    if obstacle := charttools.unavailable() or (None if wanted.again else realparts.unavailable()):
        parser.exit(1, f"{obstacle}\n")
    if wanted.again and not (_KEPT / "played.json").is_file():
        parser.exit(1, "there is no last run: leave --again out\n")
    times = played(_KEPT) if wanted.again else play(_KEPT)
    with Prometheus(_KEPT, {NAMESPACE: "127.0.0.1:1"}) as prometheus:
        shots = {name: asked(name, prometheus, times) for name in CHOSEN}
    for name, shot in shots.items():
        print(
            f"{name}: {len(shot['panels'])} panels, nothing answered: "
            f"{', '.join(empty(shot)) or 'none'}"
        )
    for file in draw(shots, wanted.to):
        print(f"{file} ({file.stat().st_size / 1024:.0f} KiB)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
