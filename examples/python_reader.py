#!/usr/bin/env python3
"""Follows streams with `watchrelay.consumer`: each object of the proven state, then every change.
`pip install watchrelay` is all it needs.

    python examples/python_reader.py localhost:9092 k8s.prod.control pods            follow until
    Ctrl-C python examples/python_reader.py localhost:9092 k8s.prod.control pods --once     print
    state and digests, exit 0 if proven

With `--positions FILE` it goes on from the saved positions: the changes since then are given,
deletes included, and those since the last heartbeat may be given once more. Save what you make of
the changes together with the positions, in one transaction if you can.
"""

import argparse
import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from watchrelay.consumer import ConsumerError, PositionsLost, TopicReader


class OddPositions(Exception):
    """The file of positions does not hold what was saved there, or takes nothing."""


def load(file: Path | None) -> Any:
    """What was saved, None before that."""
    if file is None or not file.exists():
        return None
    try:
        return json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise OddPositions(
            f"{file} does not hold positions: {error}; remove it, and forget what was built before"
        ) from error


def save(file: Path | None, positions: list[dict[str, Any]]) -> None:
    """Beside it first, then in its place: a death leaves the former file or the new one."""
    if file is not None:
        new = file.with_name(f"{file.name}.new")
        try:
            new.write_text(json.dumps(positions))
            new.replace(file)
        except OSError as error:
            raise OddPositions(
                f"{file} cannot be written: {error.strerror}; changes since it was saved "
                "will be printed again"
            ) from error


def make_reader(arguments: argparse.Namespace) -> TopicReader:
    reported: set[str] = set()

    def waiting(problem: str) -> None:
        if problem not in reported:
            reported.add(problem)
            print(f"waiting: {problem}", file=sys.stderr)

    resume = load(arguments.positions)
    try:
        return TopicReader(
            arguments.bootstrap,
            control_topic=arguments.control_topic,
            streams=arguments.streams,
            resume=resume,
            until_end=arguments.once,
            waiting=waiting,
        )
    except ValueError as error:
        raise OddPositions(f"{arguments.positions}: {error}" if resume else str(error)) from error


async def follow(arguments: argparse.Namespace) -> int:
    async with make_reader(arguments) as reader:
        await reader.ready()
        for partition in reader.partitions():
            line = {
                "stream": partition.stream,
                "topic": partition.topic,
                "partition": partition.partition,
                "epoch": partition.epoch,
                "last": partition.sequence,
            }
            print(
                json.dumps(
                    {
                        **line,
                        "count": partition.objects,
                        "digest": partition.digest,
                        "proven": partition.proven,
                    }
                ),
                flush=True,
            )
        async for change in reader:
            print(
                f"{change.verb:<8} {change.stream} {change.key} {change.resource_version} "
                f"{change.reason}",
                file=sys.stderr,
            )
            save(arguments.positions, reader.positions())
        save(arguments.positions, reader.positions())
        for problem in reader.problems:
            print(
                f"{problem.kind}: {problem.topic}/{problem.partition}@{problem.offset}: "
                f"{problem.detail} ({problem.count})",
                file=sys.stderr,
            )
        return 0 if reader.proven else 1


def main() -> int:
    parser = argparse.ArgumentParser(description="Follows streams of watchrelay.")
    parser.add_argument("bootstrap", metavar="HOST:PORT")
    parser.add_argument("control_topic", metavar="CONTROL_TOPIC", help="<prefix>.<cluster>.control")
    parser.add_argument(
        "streams", metavar="STREAM", nargs="*", help="such as pods or pods@shop; none: all"
    )
    parser.add_argument("--once", action="store_true", help="stop at what is the end now")
    parser.add_argument(
        "--positions", type=Path, metavar="FILE", help="go on from here, and save here"
    )
    arguments = parser.parse_args()
    try:
        return asyncio.run(follow(arguments))
    except PositionsLost as error:
        print(f"{error}; the file is {arguments.positions}: remove it", file=sys.stderr)
    except (ConsumerError, OddPositions) as error:
        print(error, file=sys.stderr)
    except BrokenPipeError:
        # what is buffered still would fail again at the exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print("nobody reads the output any more", file=sys.stderr)
    except KeyboardInterrupt:
        return 0
    return 1


if __name__ == "__main__":
    sys.exit(main())
