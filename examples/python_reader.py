#!/usr/bin/env python3
"""Follows streams with `watchrelay.consumer`: the whole state, proven, and then every change. `pip install watchrelay` is all it needs.

    python examples/python_reader.py localhost:9092 k8s.prod.control pods            follow until Ctrl-C
    python examples/python_reader.py localhost:9092 k8s.prod.control pods --once     print state and digests, exit 0 if proven

With `--positions FILE` it goes on where it stood: deletes of the meantime are told, nothing is missed, and what came since the last
heartbeat may be told once more. Save what you make of the changes together with the positions, in one transaction if you can.
"""

import argparse
import asyncio
import json
import sys
from pathlib import Path

from watchrelay.consumer import NothingPublished, PositionsLost, SinkUnavailable, TopicReader


async def follow(arguments: argparse.Namespace) -> int:
    saved = json.loads(arguments.positions.read_text()) if arguments.positions and arguments.positions.exists() else []
    reader = TopicReader(
        arguments.bootstrap,
        control_topic=arguments.control_topic,
        streams=arguments.streams,
        resume=saved,
        until_end=arguments.once,
        waiting=lambda problem: print(f"waiting: {problem}", file=sys.stderr),
    )
    async with reader:
        await reader.ready()
        for lane in reader.lanes():
            line = {"stream": lane.stream, "topic": lane.topic, "partition": lane.partition, "epoch": lane.epoch, "last": lane.sequence}
            print(json.dumps({**line, "count": lane.objects, "digest": lane.digest, "proven": lane.proven}), flush=True)
        async for change in reader:
            note = "" if change.proven else " (not proven yet)"
            print(
                f"{change.verb:<8} {change.stream} {change.key.decode()} {change.resource_version} {change.reason}{note}", file=sys.stderr
            )
            if arguments.positions:
                arguments.positions.write_text(json.dumps(reader.positions()))
        if arguments.positions:
            arguments.positions.write_text(json.dumps(reader.positions()))
        for problem in reader.problems:
            print(
                f"{problem.kind}: {problem.topic}/{problem.partition}@{problem.offset}: {problem.detail} ({problem.count})", file=sys.stderr
            )
        return 0 if reader.proven else 1


def main() -> int:
    parser = argparse.ArgumentParser(description="Follows streams of watchrelay.")
    parser.add_argument("bootstrap", metavar="HOST:PORT")
    parser.add_argument("control_topic", metavar="CONTROL_TOPIC", help="<prefix>.<cluster>.control")
    parser.add_argument("streams", metavar="STREAM", nargs="*", help="such as pods or pods@shop; none: all")
    parser.add_argument("--once", action="store_true", help="stop at what is the end now")
    parser.add_argument("--positions", type=Path, metavar="FILE", help="go on from here, and save here")
    try:
        return asyncio.run(follow(parser.parse_args()))
    except PositionsLost as error:
        print(f"{error}: remove the file of positions", file=sys.stderr)
    except (NothingPublished, SinkUnavailable) as error:
        print(error, file=sys.stderr)
    except KeyboardInterrupt:
        return 0
    return 1


if __name__ == "__main__":
    sys.exit(main())
