"""Records of another writer on the state, control and signal topics from a seed: well-formed or not,
in batches whose envelope is odd, too; between two lives of a relay and during one, over sockets."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from aiokafka import TopicPartition

from tests.fuzz import seeds
from tests.fuzz.flooded import Broken
from tests.fuzz.oddwriter import OddRecords, OddStream
from tests.fuzz.running import why
from tests.fuzz.seeds import Played
from tests.support.daemon import command, relay_config
from tests.support.embedded import EmbeddedCluster
from tests.support.finds import flat
from tests.support.forging import ODD_HEADERS, Forged, Forger
from tests.support.rawbatches import CODECS, Raw, compressed, encoded, framed, send
from tests.support.turns import PLAYS, TurnLoop, are_turns
from watchrelay.config import load_settings
from watchrelay.consumer import KafkaUnavailable, TopicReader
from watchrelay.contract.headers import UNREADABLE
from watchrelay.contract.partitioning import partition_of
from watchrelay.core.errors import SinkUnavailable
from watchrelay.daemon.daemon import Daemon
from watchrelay.demo.kafka import EmbeddedKafka
from watchrelay.kafka.reading import offset_ranges, open_reading, read_ranges
from watchrelay.plan.kafka import kafka_connection

STREAM, CALM = "configmaps", "services"
PATH = "/api/v1/namespaces/a/"
NAMES = "abcdefghij"
PARTITIONS = 3
WITHIN_S = 600.0
"""All is right again: a snapshot comes every 5 s and a list every 10 s; the machine may be busy."""
_POLL_S = 0.1
_LOOK_S = 2.0
TIMES_MS = (-1, 0, 1, 10**12, 4 * 10**12, 253_402_300_800_000, 2**62)
PRODUCERS = ((-1, -1, -1), (7, 0, 0), (2**62, 32767, 2**31 - 1), (0, -1, -1))
LOG_APPEND, TRANSACTIONAL, CONTROL = 8, 16, 32
Table = dict[tuple[int, bytes], bytes | None]


def sealed(rng: Random, record: Raw) -> bytes:
    """A batch of the record by one codec, whose times, flags and producer are any."""
    codec, times_ms = rng.choice([*CODECS]), (rng.choice(TIMES_MS), rng.choice(TIMES_MS))
    attributes = rng.choice([0, 0, 0, LOG_APPEND, TRANSACTIONAL, CONTROL | TRANSACTIONAL])
    producer = rng.choice(PRODUCERS)
    body = compressed(encoded(record, 0), codec)
    return framed(body, 1, codec=codec, attributes=attributes, times_ms=times_ms, producer=producer)


def mangled(rng: Random, record: Raw) -> Raw:
    """The record, some of them in a form that no client writes. Its ce_wrepoch stays: a higher one
    takes the stream, as it may."""
    key, value, headers = record
    names = [name for name, _ in headers if name != b"ce_wrepoch"] or [b"x"]
    match rng.randrange(14):
        case 0:
            return key, value, [*headers, (rng.choice(names), rng.choice(ODD_HEADERS))]
        case 1:
            gone = rng.choice(names)
            return key, value, [(name, None if name == gone else text) for name, text in headers]
        case 2:
            return key, value, [*headers, (b"\xff\xfe", b"v")]
        case 3:
            return key, value, [*headers, *((b"h%d" % number, b"v") for number in range(300))]
        case 4:
            return key, value, [*headers, (rng.choice(names), b"x" * 300_000)]
        case 5:
            return key, value, [*headers, (b"", b"")]
        case 6:
            return key, value, list(reversed(headers))
        case _:
            return record


def raw(key: bytes | None, value: bytes | None, headers: Any) -> Raw:
    """A record whose header names are text, as bytes."""
    return key, value, [(name.encode("utf-8", "surrogatepass"), text) for name, text in headers]


class _Log(logging.Handler):
    """Keeps lines, and what may not be among them as broken promises."""

    def __init__(self, played: Played) -> None:
        super().__init__()
        self._played = played

    def emit(self, record: logging.LogRecord) -> None:
        extra = {
            name: getattr(record, name)
            for name in ("stream", "topic", "partition", "offset", "error")
            if hasattr(record, name)
        }
        self._played.events.append(f"log: {record.levelname} {record.getMessage()} {extra}"[:500])
        error = record.exc_info[1] if record.exc_info else None
        ours = record.name.startswith(("watchrelay", "asyncio", "aiokafka"))
        if ours and error is not None:
            self._played.broken.append(f"a traceback in the log of {record.name}: {why(error)}")
        elif ours and "internal error" in record.getMessage() + str(extra):
            self._played.broken.append(f"{record.name}: {record.getMessage()} {extra}")


class Round:
    """One seed."""

    def __init__(self, seed: int, *, plant: bool) -> None:
        self.result = Played(seed)
        self._plant = plant
        self._rng = Random(f"foreign {seed}")
        self._name = f"foreign{seed}"
        self._form = self._rng.choice(["cloudevents", "cloudevents", "structured", "debezium"])
        self._forged: list[Forged] = []
        self._cluster: EmbeddedCluster
        self._bootstrap = self._file = ""

    def play(self) -> Played:
        """The result; never raises but for what ends the process."""
        with ExitStack() as stack:
            enter = stack.enter_context
            kafka = enter(EmbeddedKafka.start())
            self._cluster = enter(EmbeddedCluster(seed=self.result.seed))
            directory = enter(tempfile.TemporaryDirectory(prefix="watchrelay-foreign-"))
            enter(_logged(_Log(self.result)))
            self._prepare(kafka, Path(directory, "watchrelay.yaml"))
            for first in (True, False):
                with asyncio.Runner(loop_factory=TurnLoop) as runner:
                    loop = runner.get_loop()
                    assert isinstance(loop, TurnLoop)
                    try:
                        runner.run(self._life(loop, first=first))
                        if first and self._plant:
                            self._stray()
                        elif first:
                            self._write(live=False)
                            self._change()
                    except Exception as error:  # noqa: BLE001  # whatever ends a seed is to be seen
                        found = [each for each in flat(error) if isinstance(each, Broken)]
                        self.result.broken += map(str, found) if found else [why(error)]
                    if wrong := loop.too_long():
                        self.result.broken.append(wrong)
                if self.result.broken:
                    break
        return self.result

    def _topic(self, name: str) -> str:
        return f"k8s.{self._name}.{name}"

    def _prepare(self, kafka: EmbeddedKafka, file: Path) -> None:
        for name in ("control", "signal"):
            kafka.create_topic(self._topic(name), 1)
        for name in (STREAM, CALM):
            kafka.create_topic(self._topic(f"core.{name}"), PARTITIONS)
        self._cluster.request("POST", "/api/v1/namespaces", {"metadata": {"name": "a"}})
        for name in NAMES[:6]:
            self._put(STREAM, name)
            self._put(CALM, name)
        config = relay_config(
            self._name,
            bootstrap=kafka.bootstrap,
            kubeconfig=self._cluster.kubeconfig,
            resources=[STREAM, CALM],
            kafka={"format": self._form, "createTopics": False},
            defaults={"snapshotInterval": "5s", "relistInterval": "10s"},
            observe={"listen": "127.0.0.1:0"},
        )
        file.write_text(json.dumps(config))
        self._bootstrap, self._file = kafka.bootstrap, str(file)

    # ---- the cluster -----------------------------------------------------------------------------

    def _put(self, plural: str, name: str) -> None:
        made = {"metadata": {"name": name}, "data": {"n": str(self._rng.randrange(10**6))}}
        with suppress(Exception):  # there already: it is replaced
            self._cluster.request("DELETE", f"{PATH}{plural}/{name}")
        self._cluster.request("POST", f"{PATH}{plural}", made)

    def _change(self) -> None:
        for name in self._rng.sample(NAMES, 4):
            if self._rng.random() < 0.3:
                with suppress(Exception):  # it is not there
                    self._cluster.request("DELETE", f"{PATH}{STREAM}/{name}")
            else:
                self._put(STREAM, name)

    def _wanted(self, plural: str) -> dict[str, Any]:
        def held() -> dict[str, Any]:
            objects = self._cluster.registry.storage.collection(plural).objects
            return {
                f"{each.namespace}/{each.name}": _shown(each.body()) for each in objects.values()
            }

        return self._cluster.do(held)

    # ---- the other writer ------------------------------------------------------------------------

    def _records(self) -> list[Forged]:
        """All of the state topic."""
        return asyncio.run(self._read())

    async def _read(self) -> list[Forged]:
        """All records of the state topic that can be read at all."""
        topic, found = self._topic(f"core.{STREAM}"), list[Forged]()

        def take(place: TopicPartition, records: Sequence[Any]) -> None:
            for each in records:
                if UNREADABLE not in dict(each.headers):
                    headers = tuple(each.headers)
                    found.append(Forged(place.partition, each.key, each.value, headers))

        settings = load_settings(self._file, environ={})
        async with open_reading(kafka_connection(settings, client_id="fuzz")) as reading:
            consumer = reading.consumer
            places = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
            await read_ranges(consumer, await offset_ranges(consumer, places), take)
        return found

    def _write(self, *, live: bool) -> None:
        """Some records to each topic."""
        rng, topic = self._rng, self._topic(f"core.{STREAM}")
        for _ in range(rng.randrange(1, 3)):
            for each in Forger(rng, self._records(), PARTITIONS).forge():
                record = mangled(rng, raw(each.key, each.value, each.headers))
                headers = ((name.decode(errors="replace"), text or b"") for name, text in record[2])
                self._forged.append(replace(each, headers=tuple(headers)))
                self._send(topic, record, each.partition)
        source = f"/clusters/{self._name}/api/v1/{STREAM}"
        stream = OddStream(
            STREAM, topic, PARTITIONS, lambda: [b"a/%b" % name.encode() for name in NAMES], source
        )
        odd = OddRecords(rng, [stream], [CALM])
        for _ in range(rng.randrange(4)):
            self._send(self._topic("control"), mangled(rng, raw(*odd.of_control())))
        for _ in range(rng.randrange(3)):
            self._send(self._topic("signal"), mangled(rng, raw(*odd.of_signal())))
        self.result.events.append(f"written {'during a life' if live else 'between the lives'}")

    def _stray(self) -> None:
        """Planted: an object that is not on the server, in a record that readers ignore or take,
        and that no relay repairs."""
        known = [each for each in self._records() if each.value and each.position[0]]
        newest = max(known, key=lambda each: each.position)
        there = [each for each in self._records() if each.partition == newest.partition]
        epoch, sequence = max(each.position for each in there)
        stray = replace(newest, key=b"a/never").at(epoch, sequence + 1).hashed()
        if self.result.seed % 2:
            stray = stray.lacking("ce_wrreason")
        data = framed(encoded(raw(stray.key, stray.value, stray.headers), 0), 1)
        send(self._bootstrap, self._topic(f"core.{STREAM}"), data, partition=stray.partition)
        raise Broken(asyncio.run(self._wrong()))

    def _send(self, topic: str, record: Raw, partition: int = 0) -> None:
        data = sealed(self._rng, record)
        (offset,) = send(self._bootstrap, topic, data, partition=partition)
        self.result.counts[f"on {topic.split('.', 2)[2]}"] += 1
        key, value, headers = record
        self.result.events.append(
            f"foreign: {topic}/{partition}@{offset} key {key!r:.80} value {value!r:.200} headers "
            f"{headers!r:.900}"
        )

    # ---- a life ----------------------------------------------------------------------------------

    async def _life(self, loop: TurnLoop, *, first: bool) -> None:
        daemon = Daemon(load_settings(self._file, environ={}))
        async with asyncio.TaskGroup() as tasks:
            relay = tasks.create_task(daemon.run(), name="daemon")
            try:
                await _until("it connects", relay, lambda: daemon._supervisor is not None)
                loop.begin()
                await _until("it is ready", relay, lambda: _ready(daemon, STREAM, CALM))
                if first:
                    await asyncio.to_thread(self._change)
                    if self._rng.random() < 0.5:
                        await self._right(daemon, relay)
                else:
                    await self._second(daemon, relay)
            finally:
                daemon.stop()
                if first and self._rng.random() < 0.5:
                    daemon.stop()  # it does not drain
                await asyncio.wait((relay,), timeout=WITHIN_S)

    async def _second(self, daemon: Daemon, relay: asyncio.Task[int]) -> None:
        epoch = daemon.statuses.streams[CALM].epoch
        if self._rng.random() < 0.5:
            await self._right(daemon, relay)
        for _ in range(2):
            await asyncio.to_thread(self._write, live=True)
            await asyncio.to_thread(self._change)
            if self._rng.random() < 0.5:
                await self._right(daemon, relay)
        await self._right(daemon, relay)
        if (now := daemon.statuses.streams[CALM].epoch) != epoch:
            raise Broken(f"{CALM} was claimed again: epoch {epoch} -> {now}")
        await asyncio.to_thread(self._verify)

    async def _right(self, daemon: Daemon, relay: asyncio.Task[int]) -> None:
        """Readers are proven and hold what the server holds; so does a table without headers."""
        until_s, wrong = asyncio.get_running_loop().time() + WITHIN_S, "not looked at"
        while wrong:
            if relay.done():
                raise Broken(f"the daemon ended with {relay.exception() or relay.result()!r}")
            if asyncio.get_running_loop().time() > until_s:
                raise Broken(f"not right within {WITHIN_S:g} s: {wrong}; {_rows(daemon)}")
            await asyncio.sleep(_LOOK_S)
            wrong = "" if _ready(daemon, STREAM, CALM) else "not ready"
            try:
                wrong = wrong or await self._wrong()
            except (KafkaUnavailable, SinkUnavailable) as error:  # of a busy machine, or always
                wrong = why(error)

    async def _wrong(self) -> str:
        before = await asyncio.to_thread(self._wanted, STREAM)
        reader = TopicReader(
            self._bootstrap,
            control_topic=self._topic("control"),
            streams=[STREAM, CALM],
            until_end=True,
        )
        async with reader:
            await reader.ready()
            if unproven := [each for each in reader.partitions() if not each.proven]:
                return f"not proven: {unproven}, {[*reader.problems][-3:]}"
            held = reader.objects(STREAM)
            found = {key: _shown(held.value(key) or b"{}") for key in held}
        if found != before:
            return f"a reader holds {found}, the server {before}"
        return self._table(await self._read(), set(before))

    def _table(self, records: list[Forged], wanted: set[str]) -> str:
        """How a table that ignores headers differs, but for keys of which nothing tells that they
        are of this stream."""
        rows = {(each.partition, each.key or b""): each.value for each in records}
        there = {place for place, value in rows.items() if value is not None}
        wished = {(partition_of(key.encode(), PARTITIONS), key.encode()) for key in wanted}
        unknown = {
            (each.partition, each.key or b"")
            for each in self._forged
            if not _is_named(each) or each.key is None or each.key.startswith(b"%wr/")
        }
        wrong = sorted((there ^ wished) - unknown)
        return f"the table differs in {wrong}" if wrong else ""

    def _verify(self) -> None:
        """`verify --cluster` finds the state of each partition proven and that of the cluster."""
        found = command(
            "verify", "-c", self._file, "--cluster", "--output", "json", timeout_s=WITHIN_S
        )
        self.result.events += found.stdout.splitlines() + found.stderr.splitlines()
        if found.code not in (0, 1) or "Traceback" in found.stderr:
            raise Broken(f"verify ends with {found.code}: {found.stderr}")
        wrong = {"missing", "extra", "differs", "unreadable", "unproven"}
        for row in found.objects():
            for problem in row.get("problems", ()):
                if problem.get("kind") in wrong:
                    raise Broken(f"verify finds {problem} in {row.get('stream')}")


def _is_named(each: Forged) -> bool:
    """Whether the record's headers name the stream, and its key is text."""
    stream = each.held.get("ce_wrstream") == STREAM.encode()
    return stream and "\ufffd" not in (each.key or b"").decode(errors="replace")


def _shown(body: bytes) -> Any:
    tree = json.loads(body)
    metadata = tree.get("metadata", {})
    return metadata.get("uid"), metadata.get("resourceVersion"), tree.get("data")


def _ready(daemon: Daemon, *streams: str) -> bool:
    rows = [daemon.statuses.streams.get(stream) for stream in streams]
    return all(row is not None and row.state == "watching" and row.complete for row in rows)


def _rows(daemon: Daemon) -> dict[str, Any]:
    rows = daemon.statuses.streams.items()
    return {name: (row.state, row.last_error, row.waits_for) for name, row in rows}


async def _until(what: str, relay: asyncio.Task[int], true: Callable[[], bool]) -> None:
    until_s = asyncio.get_running_loop().time() + WITHIN_S
    while not true():
        if relay.done():
            raise Broken(f"the daemon ended with {relay.exception() or relay.result()!r}")
        if asyncio.get_running_loop().time() > until_s:
            raise Broken(f"not within {WITHIN_S:g} s: {what}")
        await asyncio.sleep(_POLL_S)


@contextmanager
def _logged(log: logging.Handler) -> Iterator[None]:
    logging.root.handlers[:] = [log]
    logging.root.setLevel(logging.INFO)
    try:
        yield
    finally:
        logging.root.handlers[:] = [logging.NullHandler()]


def play(seed: int, plant: bool = False) -> Played:
    """One seed; with `plant` a record stays that no relay repairs."""
    for _ in range(PLAYS):
        played = Round(seed, plant=plant).play()
        if not are_turns(played.broken):
            break
    return played


if __name__ == "__main__":
    sys.exit(seeds.main("foreign", play, fresh=True))
