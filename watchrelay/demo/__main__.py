"""`python -m watchrelay.demo`: a synthetic cluster in a process of its own.

It prints one JSON line with its URL on stdout, then serves the API until SIGTERM or SIGINT.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys

from watchrelay.demo.apiserver import Behaviour
from watchrelay.demo.cluster import SyntheticCluster


def main() -> int:
    """Exit code 0 once it was asked to stop."""
    parser = argparse.ArgumentParser(
        prog="python -m watchrelay.demo",
        description="A synthetic Kubernetes API server on 127.0.0.1.",
    )
    parser.add_argument(
        "--port", type=int, default=0, help="port to listen on (default: a free one)"
    )
    parser.add_argument(
        "--pods",
        type=int,
        default=0,
        help="pods that exist from the start, about 5.1 KB each (default: none)",
    )
    parser.add_argument(
        "--shop",
        type=float,
        default=0.0,
        metavar="RATE",
        help="open the shop: this many changes per second",
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="equal seeds do equal things (default: 0)"
    )
    parser.add_argument(
        "--history",
        type=int,
        default=10_000,
        help="events kept per resource before they expire (default: 10000)",
    )
    parser.add_argument(
        "--bookmarks",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="time between bookmarks (default: 60)",
    )
    parser.add_argument(
        "--token", default="", help="bearer token that every request must carry (default: none)"
    )
    arguments = parser.parse_args()
    asyncio.run(_serve(arguments))
    return 0


async def _serve(arguments: argparse.Namespace) -> None:
    stopping, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    behaviour = Behaviour(bookmark_interval_s=arguments.bookmarks, token=arguments.token)
    cluster = SyntheticCluster(
        seed=arguments.seed, history_events=arguments.history, behaviour=behaviour
    )
    if arguments.pods:
        cluster.add_pods(arguments.pods)
    shop = cluster.open_shop() if arguments.shop else None
    await cluster.start(port=arguments.port)
    try:
        print(json.dumps({"url": cluster.url, "pid": os.getpid()}), flush=True)
        async with asyncio.TaskGroup() as tasks:
            busy = (
                tasks.create_task(
                    cluster.run_shop(events_per_s=arguments.shop, shop=shop), name="shop"
                )
                if shop
                else None
            )
            await stopping.wait()
            if busy is not None:
                busy.cancel()
    finally:
        await cluster.stop()


if __name__ == "__main__":
    sys.exit(main())
