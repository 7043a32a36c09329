"""`python -m tests.systems`: Kafka Streams, Flink SQL and Kafka Connect on a topic that the relay
wrote, set up as docs/systems.md says; and the reader in Java, by the Maven command of
examples/README.md.

Input: a real broker, Maven. Output: what each system holds is what a plain table holds; exit code 0
only then (`make systems`).
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition

from examples.plain_table import table
from tests.support.daemon import PROGRAM
from tests.support.docpages import blocks
from tests.support.kafkabroker import KafkaBroker
from tests.support.pace import measure_for
from tests.support.process import Process, Workspace
from watchrelay.kafka.client.consumer import wait_for_topic

HERE = Path(__file__).parent
TOPIC = "k8s.demo.core.pods"
PAGE_TOPIC, PAGE_KAFKA = "k8s.prod-eu-1.core.pods", "kafka-0:9092"
_OPENED = [
    f"--add-opens=java.base/{package}=ALL-UNNAMED"
    for package in ("java.util", "java.lang", "java.time")
]
Rows = dict[str, list[str | None]]


def main() -> int:
    """Run them all; the exit code."""
    jars = {name: _jars(name) for name in ("streams", "flink", "connect")}
    with ExitStack() as stack:
        workspace = Workspace("systems")
        stack.callback(workspace.remove)
        broker = stack.enter_context(KafkaBroker("4.1"))
        # the second relay finds another cluster: what the first one wrote is deleted
        for seconds in (20.0, 10.0):
            _relay(broker.bootstrap, workspace.path, seconds)
        held, _ = asyncio.run(table(broker.bootstrap, [TOPIC]))
        rows = {key: _row(pod) for key, pod in held.items()}
        records = asyncio.run(_records(broker.bootstrap))
        print(f"the topic: {records}, {len(rows)} pods in a plain table", flush=True)
        wrong = []
        for name, run in _SYSTEMS.items():
            began = time.monotonic()
            problem = run(jars[name], broker.bootstrap, workspace.path, rows, records)
            print(
                f"{name}: {problem or 'as the plain table has it'} "
                f"({time.monotonic() - began:.0f} s)",
                flush=True,
            )
            wrong += [name] if problem else []
        problem = _reader(broker.bootstrap, workspace.path, rows)
        print(f"the reader in Java: {problem or 'as the plain table has it'}", flush=True)
        wrong += ["reader"] if problem else []
    return 1 if wrong else 0


def _jars(name: str) -> Path:
    """Where Maven put the jars of tests/systems/<name>.xml."""
    directory = Path("build") / "systems" / name
    if not directory.is_dir():
        print(f"getting the jars of {name}", flush=True)
        goal = ["dependency:copy-dependencies", f"-DoutputDirectory={directory.resolve()}"]
        subprocess.run(["mvn", "-q", "-B", "-f", HERE / f"{name}.xml", *goal], check=True)
    return directory.resolve()


def _relay(bootstrap: str, directory: Path, seconds: float) -> None:
    log = directory / "demo.log"
    demo = Process(
        "demo",
        [PROGRAM, "demo", "--kafka", bootstrap],
        log=log,
        environment={"TMPDIR": str(directory)},
    ).launch()
    try:
        demo.await_ready(lambda: "demo: ready" in log.read_text(errors="replace"))
        measure_for(seconds)
        demo.send(signal.SIGINT)
        assert demo.exit_code(30.0) == 0, demo.tail()
    finally:
        demo.kill()
        log.unlink()


def _row(pod: Any) -> list[str | None]:
    return [pod["metadata"]["name"], pod.get("status", {}).get("phase")]


async def _records(bootstrap: str) -> dict[str, int]:
    """How many records of each kind stand on the topic."""
    counted = {"upserts": 0, "deletes": 0, "markers": 0}
    async with AIOKafkaConsumer(
        bootstrap_servers=bootstrap, auto_offset_reset="earliest"
    ) as consumer:
        partitions = [
            TopicPartition(TOPIC, number) for number in await wait_for_topic(consumer, TOPIC)
        ]
        consumer.assign(partitions)
        ends = await consumer.end_offsets(partitions)
        await consumer.seek_to_beginning(*partitions)
        while [each for each in partitions if await consumer.position(each) < ends[each]]:
            for messages in (await consumer.getmany(timeout_ms=500)).values():
                for message in messages:
                    marker = message.key.startswith(b"%wr/")
                    counted[
                        "markers" if marker else "deletes" if message.value is None else "upserts"
                    ] += 1
    return counted


def _java(jars: Path, source: str, *arguments: str | Path) -> str:
    flags = ["-XX:+UseSerialGC", "-Xmx700m", *_OPENED, "-cp", f"{jars}/*"]
    done = subprocess.run(
        ["java", *flags, HERE / source, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    if done.returncode:
        raise SystemExit(
            f"{source} failed with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
        )
    return done.stdout


def _compared(printed: str, rows: Rows) -> str:
    """What differs, in words; "" when nothing does."""
    found: Rows = json.loads(printed.splitlines()[-1])
    differ = sorted(key for key in found.keys() | rows.keys() if found.get(key) != rows.get(key))
    return (
        (
            f"{len(found)} rows, {len(differ)} differ: "
            f"{[(key, found.get(key), rows.get(key)) for key in differ[:3]]}"
        )
        if differ
        else ""
    )


def _reader(bootstrap: str, directory: Path, rows: Rows) -> str:
    example = Path(shutil.copytree("examples/java", directory / "java"))
    done = subprocess.run(
        ["mvn", "-q", "-B", "compile", "exec:java", f"-Dexec.args=live {bootstrap} {TOPIC}"],
        cwd=example,
        capture_output=True,
        text=True,
        check=False,
    )
    # after Maven's colour codes
    partitions = [
        json.loads(line[line.index("{") :]) for line in done.stdout.splitlines() if "{" in line
    ]
    count = sum(partition["count"] for partition in partitions)
    return (
        ""
        if (done.returncode, count) == (0, len(rows))
        else f"exit {done.returncode}, {count} objects: {done.stdout[-800:]}{done.stderr[-800:]}"
    )


def _streams(
    jars: Path, bootstrap: str, directory: Path, rows: Rows, records: dict[str, int]
) -> str:
    objects = records["upserts"] + records["deletes"]
    return _compared(
        _java(jars, "StreamsTable.java", bootstrap, TOPIC, str(objects), directory / "streams"),
        rows,
    )


def _flink(jars: Path, bootstrap: str, directory: Path, rows: Rows, records: dict[str, int]) -> str:
    (directory / "pods.sql").write_text(_page("Flink SQL", bootstrap)[0])
    return _compared(_java(jars, "FlinkTable.java", directory / "pods.sql"), rows)


def _connect(
    jars: Path, bootstrap: str, directory: Path, rows: Rows, records: dict[str, int]
) -> str:
    worker, sink = _page("Kafka Connect", bootstrap)
    out = directory / "pods.out"
    (directory / "worker.properties").write_text(worker + "listeners=http://127.0.0.1:0\n")
    (directory / "sink.properties").write_text(sink)
    files = [directory / "worker.properties", directory / "sink.properties"]
    main = "org.apache.kafka.connect.cli.ConnectStandalone"
    argv: list[str | Path] = [
        "bash",
        "-c",
        'cd "$0" && exec java -Xmx500m -cp "$@"',
        directory,
        f"{jars}/*",
        main,
        *files,
    ]
    process = Process("connect", argv, log=directory / "connect.log").launch()
    objects = records["upserts"] + records["deletes"]

    def written() -> list[str]:
        return out.read_text().splitlines() if out.exists() else []

    try:
        process.await_ready(lambda: len(written()) >= objects, deadline_s=120.0)
        lines = written()
    finally:
        process.kill()
    nulls = lines.count("null")
    right = (len(lines), nulls) == (objects, records["deletes"])
    return (
        ""
        if right
        else (
            f"{len(lines)} lines, {nulls} of them null; {objects} and {records['deletes']} expected"
        )
    )


def _page(heading: str, bootstrap: str) -> list[str]:
    """The blocks that `make systems` runs of that section of docs/systems.md, with this Kafka and
    the demo's topic."""
    lines = Path("docs/systems.md").read_text().splitlines()
    begin = lines.index(f"## {heading}")
    end = next(
        (at for at in range(begin + 1, len(lines)) if lines[at].startswith("## ")), len(lines)
    )
    found = [
        block.text
        for block in blocks("docs/systems.md")
        if block.verb == "systems" and begin < block.line < end
    ]
    return [
        re.sub(re.escape(PAGE_KAFKA), bootstrap, text.replace(PAGE_TOPIC, TOPIC)) for text in found
    ]


_SYSTEMS: dict[str, Callable[[Path, str, Path, Rows, dict[str, int]], str]] = {
    "streams": _streams,
    "flink": _flink,
    "connect": _connect,
}


if __name__ == "__main__":
    sys.exit(main())
