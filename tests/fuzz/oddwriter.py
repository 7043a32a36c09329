"""A writer that is no relay, on a relay's control, signal and state topics: odd records, former
writers' records, requests."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, Self

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from tests.fuzz.oddjson import NUMBERS, STRINGS, Raw, odd_value, text
from tests.fuzz.oddserver import Tell, shown
from watchrelay.contract.partitioning import partition_of
from watchrelay.contract.records import content_hash
from watchrelay.core import clock

Headers = list[tuple[str, bytes]]
Record = tuple[bytes | None, bytes | None, Headers]

TIMES_MS = (0, 1, 10**12, 253_402_300_799_000, 253_402_300_800_000, 2**62)
INSTANTS = (
    "", "now", "1969-12-31T23:59:59.999Z", "9999-12-31T23:59:59.999Z", "2026-13-01T00:00:00Z", "2999-01-01T00:00:00.000Z",
    "0001-01-01T00:00:00Z",
)  # fmt: skip


def _bytes(value: str) -> bytes:
    return value.encode("utf-8", "surrogatepass")


@dataclass(frozen=True, slots=True)
class OddStream:
    """A stream whose topics a foreign writer may write to. `wire`: its records are plain
    CloudEvents."""

    id: str
    topic: str
    partitions: int
    keys: Callable[[], list[bytes]]
    source: str


class OddRecords:
    """What a seed writes to each kind of topic. `others` are streams that are sane: nothing that
    could be theirs is made, but their names are used in requests."""

    def __init__(self, rng: Random, streams: list[OddStream], others: list[str]) -> None:
        self._rng, self._streams, self._others = rng, streams, others

    def _odd_headers(self) -> Headers:
        rng = self._rng
        if rng.random() < 0.7:
            return []
        return [
            (
                rng.choice(["ce_type", "ce_wrepoch", "x", ""]),
                rng.choice([b"", b"\xff", b"1", b"x" * 5000]),
            )
            for _ in range(rng.randint(1, 3))
        ]

    # ---- control ---------------------------------------------------------------------------------

    def of_control(self) -> Record:
        rng = self._rng
        known = rng.choice(self._streams).id
        name = rng.choice(
            [known, known, "unknown", "unknown@somewhere", rng.choice(STRINGS), "x" * 3000]
        )
        kind = rng.choice(["claim", "stream", "snapshot"])
        if rng.random() < 0.15:
            key: bytes | None = rng.choice(
                [
                    None,
                    b"",
                    b"/",
                    b"claim/",
                    b"claim",
                    b"\xff/\xfe",
                    b"odd/x",
                    _bytes(rng.choice(STRINGS)),
                ]
            )
        else:
            key = _bytes(f"{kind}/{name}")
        if rng.random() < 0.15:
            junk = [
                b"",
                b"\xff\xfe",
                b"{",
                b"[1]",
                b"null",
                _bytes(text(odd_value(rng))),
                b'{"a":' * 5000,
            ]
            return key, rng.choice(junk), self._odd_headers()
        make = {"claim": self._claim, "stream": self._description, "snapshot": self._index}[kind]
        value = make(ours=name == known)
        for _ in range(rng.randrange(3)):
            value[rng.choice([*value, "more"])] = odd_value(rng)
        if kind == "claim" and name == known:
            # else it takes the stream, as it may
            value["instance"] = rng.choice([None, 7, [], {}, Raw("1e400")])
        if kind == "stream" and name == known:
            value["epochBase"] = rng.choice(
                [None, "1", -1, 1.5, 2**53, 2**63, 10**40, True, []]
            )  # else it describes the stream again, as it may
        return key, _bytes(text(value)), self._odd_headers()

    def _claim(self, *, ours: bool) -> dict[str, Any]:
        rng = self._rng
        origin = {
            "snapshot": "1-1",
            "begin": rng.choice([[0], [0, 0, 0], [-1], [2**53], [2**63], "0", None, [0.5]]),
        }
        return {
            "holder": "foreign", "instance": f"foreign-{rng.randrange(10**6)}", "version": "9.9", "time": rng.choice(INSTANTS),
            "from": rng.choice([None, origin, odd_value(rng)]),
        }  # fmt: skip

    def _description(self, *, ours: bool) -> dict[str, Any]:
        rng = self._rng
        # by a right description it would be another's, too
        topic = rng.choice([stream.topic for stream in self._streams])
        return {
            "topic": rng.choice(["nowhere", [topic], {topic: topic}, None, 7]),
            "partitions": rng.choice([1, 3, 0, -1, 10**6, 2**53, "3", None]),
            "keyFormat": rng.choice(["namespace/name", ["namespace/name"], None, {}, "odd"]),
            "resource": rng.choice(["pods", "v1/pods", [], None, 7]),
            "namespace": rng.choice([None, "a", 7, []]),
            "selectors": rng.choice([None, [], {"namespaces": 7}, {"namespaces": [7, [], None]}, {"labelSelector": []}]),
            "configHash": rng.choice(["c0ffee", None, 7]),
            "epochBase": rng.choice([0, 1, 2**53 - 1, 2**53 - 2, 2**52, -1, None, "1"]),
        }  # fmt: skip

    def _index(self, *, ours: bool) -> dict[str, Any]:
        rng = self._rng
        numbers = [0, 1, 10**6, 2**53 - 1, 2**53, 2**63, -1, 1.5, None, "0", True]
        partitions = [
            {
                "partition": rng.choice([at, at, at, *numbers]),
                "digest": rng.choice(["0" * 16, "x", None]),
            }
            | {name: rng.choice(numbers) for name in ("begin", "end", "count")}
            for at in range(rng.randint(0, 4))
        ]
        return {
            "snapshot": rng.choice(["1-1", "", None, 7, "x" * 5000]),
            "epoch": rng.choice([*numbers, 0, 5]), "rv": rng.choice(["0", "", "abc", 7]),
            "time": rng.choice(INSTANTS), "count": rng.choice(numbers), "requests": rng.choice([[], ["a"], None, 7, [7], {}]),
            "partitions": rng.choice([partitions, partitions, odd_value(rng)]),
        }  # fmt: skip

    # ---- signals ---------------------------------------------------------------------------------

    def of_signal(self) -> Record:
        rng = self._rng
        streams: Any = [rng.choice([stream.id for stream in self._streams] + self._others)]
        match rng.randrange(6):
            case 0:
                streams = [
                    f"unknown-{rng.randrange(10**6)}"
                    for _ in range(rng.choice([1, 100, 1000, 1001]))
                ]
            case 1:
                streams = rng.choice([odd_value(rng), [odd_value(rng)], [*streams, *STRINGS]])
            case _:
                pass
        signal: dict[str, Any] = {
            "id": f"request-{rng.randrange(10)}",
            "type": "execute-snapshot",
            "data": {"streams": streams},
        }
        if rng.random() < 0.3:
            signal[rng.choice(["id", "type", "data", "more"])] = rng.choice(
                [odd_value(rng), "é" * 101, "i" * 200]
            )
        if rng.random() < 0.15:
            return (
                rng.choice([None, b"\xff"]),
                rng.choice([None, b"", b"[]", b"\xff", b"[" * 9000, _bytes(text(odd_value(rng)))]),
                self._odd_headers(),
            )
        return b"fuzz", _bytes(text(signal)), self._odd_headers()

    # ---- state -----------------------------------------------------------------------------------

    def of_state(self, stream: OddStream) -> tuple[int, Record]:
        rng = self._rng
        keys = stream.keys()
        key: bytes | None = (
            rng.choice(keys)
            if keys and rng.random() < 0.7
            else rng.choice([b"odd/unknown", b"", None, b"\xff", b"%wr/claim/x/0", b"k" * 5000])
        )
        partition = (
            partition_of(key or b"", stream.partitions)
            if rng.random() < 0.8
            else rng.randrange(stream.partitions)
        )
        if rng.random() < 0.4:
            value = rng.choice([None, b"", b"\xff", b"{}", _bytes(text(odd_value(rng)))])
            return partition, (key, value, self._odd_headers())
        value = rng.choice([None, json.dumps({"former": rng.randrange(10)}).encode()])
        return partition, self._former(stream, partition, key or b"a/b", value)

    def _former(self, stream: OddStream, partition: int, key: bytes, value: bytes | None) -> Record:
        """A record of a former writer, whose epoch lies below all of ours; perhaps with some odd
        headers."""
        rng = self._rng
        sequence = rng.choice([1, 7, 10**6])
        verb = "deleted" if value is None else rng.choice(["added", "modified", "read"])
        headers = {
            "ce_specversion": b"1.0", "ce_type": f"dev.watchrelay.object.{verb}.v1".encode(), "ce_source": stream.source.encode(),
            "ce_id": f"{stream.id}.0.{partition}.{sequence}".encode(), "ce_time": b"2026-01-01T00:00:00.000Z", "ce_subject": key,
            "ce_kind": b"Odd", "ce_apiversion": b"fuzz.example.com/v1", "ce_name": b"x", "ce_wruid": b"former", "ce_wrrv": b"5",
            "ce_wrstream": stream.id.encode(), "ce_wrepoch": b"0", "ce_sequence": b"%020d" % sequence, "ce_wrreason": b"watch",
        }  # fmt: skip
        if value is not None:
            headers |= {
                "content-type": b"application/json",
                "ce_wrhash": b"%016x" % content_hash(key, value),
            }
        if rng.random() < 0.2:
            kind = rng.choice(["claim", "heartbeat", "snapshot.begin", "snapshot.end"])
            key, value = (
                f"%wr/{kind.removeprefix('snapshot.')}/{stream.id}/{partition}".encode(),
                None,
            )
            headers |= {
                "ce_type": f"dev.watchrelay.{kind}.v1".encode(),
                "ce_wrcount": b"1",
                "ce_wrdigest": b"0" * 16,
                "ce_wrpartitions": b"%d" % stream.partitions,
            }
        for _ in range(rng.choice([0, 0, 1, 2])):
            name = rng.choice([*headers, "ce_wrtrimmed", "ce_wrsnap"])
            if name == "ce_wrepoch":  # a higher one would fence the writer, as it should
                headers[name] = rng.choice(
                    [b"", b"-1", b"x", b"+1", b"1" * 30, "²".encode(), b"00", b"9007199254740992"]
                )
            else:
                headers[name] = rng.choice(
                    [
                        b"",
                        b"\xff",
                        b"-1",
                        b"x",
                        rng.choice(NUMBERS).encode(),
                        _bytes(rng.choice(STRINGS)),
                    ]
                )
        return key, value, list(headers.items())


class Foreign:
    """Writes what a seed says; failures of Kafka are its own business."""

    def __init__(
        self,
        rng: Random,
        bootstrap: str,
        *,
        topic: Callable[[str], str],
        streams: list[OddStream],
        others: list[str],
        tell: Tell,
    ) -> None:
        self._rng, self._streams, self._tell = rng, streams, tell
        self._records = OddRecords(rng, streams, others)
        self._control, self._signal = topic("control"), topic("signal")
        self._producer = AIOKafkaProducer(bootstrap_servers=bootstrap, max_request_size=8 << 20)

    async def __aenter__(self) -> Self:
        await self._producer.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._producer.stop()

    async def write(self) -> None:
        """One record somewhere."""
        rng = self._rng
        kind = rng.choice(["control", "control", "signal", "signal", "state"])
        if kind == "control":
            topic, partition, record = self._control, 0, self._records.of_control()
        elif kind == "signal":
            topic, partition, record = self._signal, 0, self._records.of_signal()
        else:
            stream = rng.choice(self._streams)
            topic = stream.topic
            partition, record = self._records.of_state(stream)
        key, value, headers = record
        # the client sends no record without both
        value = b"" if key is None and value is None else value
        at_ms = rng.choice(TIMES_MS) if rng.random() < 0.1 else clock.wall_ms()
        self._tell(
            f"foreign: {topic}/{partition} key {shown(key)} value {shown(value)} headers "
            f"{shown(headers)} at {at_ms}"
        )
        try:
            await self._producer.send_and_wait(
                topic, value, key, partition, timestamp_ms=at_ms, headers=headers
            )
        except (KafkaError, ValueError) as error:
            self._tell(f"foreign: not written: {error}")

    async def claim(self) -> None:
        """A claim as another relay makes it, which takes a stream."""
        value = {
            "holder": "foreign",
            "instance": "foreign",
            "version": "9.9",
            "time": "2026-01-01T00:00:00.000Z",
            "from": None,
        }
        await self._producer.send_and_wait(
            self._control, _bytes(text(value)), _bytes(f"claim/{self._streams[0].id}"), 0
        )
