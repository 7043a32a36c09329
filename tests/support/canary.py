"""A transform of Secrets: all that leaves the relay when Secrets full of canaries go every way
through it.

Each canary is where one step of the redaction hides it, so that a canary that got out
names the step that failed. Readers, store, reflector, relay and resume are the real ones; the
server is bytes as it would send them, Kafka a list of records, time virtual.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import logging
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from prometheus_client import generate_latest

from tests.support.fakesink import FakeControl, FakeLogReader, KafkaLogs, LogConnection
from tests.support.relays import until
from watchrelay.cli.audits import print_rows
from watchrelay.cli.records import as_json, as_name, as_text, yaml_printer
from watchrelay.consumer.audit import Audit, AuditProblem
from watchrelay.consumer.reader import TailRecord
from watchrelay.contract.control import Origin
from watchrelay.contract.records import ObjectRecord, decode
from watchrelay.contract.wire import WireRecord
from watchrelay.core.errors import KubeError
from watchrelay.daemon.recovery import resume
from watchrelay.kube.page import NotAList, PageReader
from watchrelay.kube.status import from_response, from_stream
from watchrelay.kube.stream import FrameStream
from watchrelay.model.frames import Failure, ObjectFrame
from watchrelay.model.resources import Resource, Selection
from watchrelay.model.streams import Format, StreamSpec, WatchPlan
from watchrelay.model.watch_output import (
    CursorMoved,
    ListBegun,
    ListDone,
    ListedObjects,
    WatchedObjects,
)
from watchrelay.observe.logs import JsonFormatter
from watchrelay.observe.metrics import Metrics
from watchrelay.observe.status import Readiness, StatusRegistry
from watchrelay.publish.timing import HeartbeatInterval
from watchrelay.publish.writer import StreamWriter
from watchrelay.store.objects import Store
from watchrelay.store.reflector import Reflector
from watchrelay.store.transform import LAST_APPLIED, Transform

SECRETS = Resource("", "v1", "secrets", "Secret", namespaced=True)
PARTITIONS = 2
MESSAGE_BYTES_MAX = 64 << 10
"""Of the topic: the Secret called `huge` does not fit."""

CANARIES = {
    "data": "canary-of-data",
    "stringData": "canary-of-string-data",
    "applied": "canary-of-last-applied",
    "escaped": "canary-of-escaped-last-applied",
    "odd": "canary-of-odd-payload",
    "broken": "canary-of-broken-payload",
    "damaged": "canary-of-damaged-object",
}
"""By the place that holds them; "odd" is a payload that is no map, "broken" one whose
keys cannot be read, "damaged" an object that says its payload twice."""


def b64(text: str) -> str:
    """As the payload of a Secret is written. No canary's form depends on what is beside
    it."""
    return base64.b64encode(text.encode()).decode()


def leaked(text: bytes) -> set[str]:
    """The canaries in `text`, plain or as base64, by their places."""
    return {
        place
        for place, canary in CANARIES.items()
        if any(
            form in text
            for form in (canary.encode(), b64(canary).encode(), canary.encode().hex().encode())
        )
    }


def secret(name: str, version: int, *, noise: int = 0) -> bytes:
    """A Secret with a canary in each place that a well-formed one has. `noise`: bytes of
    annotations that nothing compresses."""
    applied = {
        "data": {"password": b64(CANARIES["applied"])},
        "stringData": {"token": CANARIES["applied"]},
    }
    annotations = {
        LAST_APPLIED: json.dumps(applied),
        "note": random.Random(name).randbytes(noise // 2).hex(),
    }
    metadata = {
        "name": name,
        "namespace": "shop",
        "uid": f"uid-{name}",
        "resourceVersion": str(version),
        "annotations": annotations,
    }
    body = {
        "kind": "Secret",
        "apiVersion": "v1",
        "metadata": metadata,
        "data": {"password": b64(CANARIES["data"]), "version": str(version)},
        "stringData": {"token": CANARIES["stringData"]},
        "type": "Opaque",
    }
    text = json.dumps(body, separators=(",", ":"))
    if name.startswith("escaped"):
        odd_key = LAST_APPLIED.replace("/", "\\/").replace("last", "\\u006cast")
        text = text.replace(LAST_APPLIED, odd_key).replace(CANARIES["applied"], CANARIES["escaped"])
        text = text.replace(b64(CANARIES["applied"]), b64(CANARIES["escaped"]))
    if name.startswith("odd"):
        text = text.replace(
            json.dumps(body["data"], separators=(",", ":")), json.dumps(b64(CANARIES["odd"]))
        )
        text = text.replace(
            json.dumps(body["stringData"], separators=(",", ":")), json.dumps([CANARIES["odd"]])
        )
    raw = text.encode()
    if name.startswith("broken"):
        payload = json.dumps(body["data"], separators=(",", ":")).encode()
        raw = raw.replace(payload, b'{"pass\xffword":"%b"}' % CANARIES["broken"].encode())
    if name.startswith("damaged"):
        raw = raw.replace(b'"kind":"Secret"', b'"data":"%b"' % CANARIES["damaged"].encode(), 1)
    return raw


_YAML = f"""apiVersion: v1
data:
  password: {b64(CANARIES["data"])}
kind: Secret
stringData:
  token: {CANARIES["stringData"]}
""".encode()


_QUOTING = [
    (
        "v1.Secret.Data: base64Codec: illegal base64 data, error found in #10 byte of "
        '...|"password":"%s"}|...'
    ),
    'Secret in version "v1" cannot be read: bigger context ...|password %s|...',
    'json: near "password":"%s"',
    "unable to convert &Secret{Data: %s}",
    "cannot convert map[data:map[password:%s]]",
    'conversion webhook failed: {"data":{"password":"%s"}}',
]
"""How decoders of Go, and who prints an object with %v, repeat what they were given."""
_QUOTING = [message.replace("%s", CANARIES["data"]) for message in _QUOTING]

NAMES = ("plain", "escaped", "odd", "broken", "damaged", "huge")


def secrets(version: int) -> list[bytes]:
    """One of each kind."""
    return [
        secret(name, version + at, noise=(200 << 10) if name == "huge" else 0)
        for at, name in enumerate(NAMES)
    ]


@dataclass
class Outputs:
    """What left the relay, by path."""

    by_path: dict[str, bytes] = field(default_factory=dict)
    objects: Counter[str] = field(default_factory=Counter)
    """Records of objects by path: a path without any would prove nothing."""
    read: Counter[int] = field(default_factory=Counter)

    def add(self, path: str, text: str | bytes) -> None:
        """Something left by `path`."""
        data = text.encode() if isinstance(text, str) else text
        self.by_path[path] = self.by_path.get(path, b"") + data + b"\n"

    def leaks(self) -> dict[str, set[str]]:
        """The paths by which a canary got out."""
        return {path: found for path, text in self.by_path.items() if (found := leaked(text))}


class _Lines(logging.Handler):
    def __init__(self, outputs: Outputs) -> None:
        super().__init__(logging.DEBUG)
        self._outputs = outputs
        self.setFormatter(JsonFormatter())

    def emit(self, record: logging.LogRecord) -> None:
        self._outputs.add("logs", self.format(record) + repr(record.__dict__))


class _Process:
    """One life of the relay on a log that others continue."""

    def __init__(
        self,
        transform: Transform,
        selection: Selection,
        form: Format,
        kafka: KafkaLogs,
        control: FakeControl,
    ) -> None:
        self.spec = StreamSpec(
            "secrets",
            "test",
            "k8s.test.core.secrets",
            PARTITIONS,
            WatchPlan(selection),
            "c0ffee",
            b"",
            form,
            snapshot_interval_s=0.0,
        )
        self.selection, self.kafka = selection, kafka
        self.metrics, self.statuses = Metrics(), StatusRegistry()
        self.status = self.statuses.open("secrets", self.spec.topic)
        connection = LogConnection(kafka, random.Random(1))
        self.store = Store(transform, partitions=PARTITIONS)
        self.log = FakeLogReader(self.spec, connection)
        self.relay = StreamWriter(
            self.spec,
            sink=connection,
            control=control,
            state=self.store,
            metrics=self.metrics.stream("secrets", SECRETS),
            topic_metrics=self.metrics.topic(self.spec.topic),
            status=self.status,
            heartbeat_interval=HeartbeatInterval(1.0),
            queue_bytes=64 << 20,
            max_message_bytes=MESSAGE_BYTES_MAX,
            gap_reader=self.log,
            rng=random.Random(1),
            now_s=lambda: asyncio.get_running_loop().time(),
            wall_ms=lambda: int(asyncio.get_running_loop().time() * 1000),
        )
        self.reflector = Reflector(
            self.store,
            self.relay,
            metrics=self.metrics.stream("secrets", SECRETS),
            status=self.status,
        )

    def written(self) -> list[tuple[int, int, WireRecord]]:
        """Partition, offset and record of everything in the log."""
        logs = [
            (partition, self.kafka.logs.get((self.spec.topic, partition), []))
            for partition in range(PARTITIONS)
        ]
        return [
            (partition, offset, record)
            for partition, log in logs
            for offset, record in enumerate(log)
        ]

    def collect(self, outputs: Outputs, path: str) -> None:
        """Adds the new records of the log, as having left by `path`."""
        for partition, offset, record in self.written():
            if offset < outputs.read[partition]:
                continue
            outputs.read[partition] = offset + 1
            outputs.add(
                path,
                (record.key or b"")
                + (record.value or b"")
                + b"".join(name.encode() + value for name, value in record.headers),
            )
            if (
                isinstance(decode(record.key, record.value, record.headers), ObjectRecord)
                and record.value is not None
            ):
                outputs.objects[path] += 1


async def collect(
    transform: Transform, *, form: Format = "cloudevents", metadata_only: bool = False
) -> Outputs:
    """Everything that leaves, from the first list to a resume by another process. Use inside
    `run_virtually`."""
    outputs = Outputs()
    handler = _Lines(outputs)
    logging.root.addHandler(handler)
    logging.root.setLevel(logging.DEBUG)  # put back by tests/conftest.py
    try:
        await _run(outputs, transform, Selection(SECRETS, metadata_only=metadata_only), form)
    finally:
        logging.root.removeHandler(handler)
    return outputs


async def _run(outputs: Outputs, transform: Transform, selection: Selection, form: Format) -> None:
    kafka, control = KafkaLogs(), FakeControl()
    first = _Process(transform, selection, form, kafka, control)
    await first.relay.claim(_none)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(first.relay.run(), name="relay")
        for path, step in (
            ("list", _list),
            ("watch", _watch),
            ("relist", _relist),
            ("streaming list", _streaming),
            ("snapshot", _snapshot),
        ):
            await step(outputs, first)
            await asyncio.sleep(3.0)
            first.collect(outputs, path)
        running.cancel()
    _add_statuses(outputs, first)
    _errors(outputs, selection)
    second = _Process(transform, selection, form, kafka, control)
    found = await resume(
        second.spec, second.relay, second.store, second.log, await second.relay.claim(_none)
    )
    outputs.add("resume", repr(found))
    for key in list(second.store.keys()):
        entry = second.store.get(key)
        assert entry is not None
        outputs.add("resume", second.store.unpack(entry))
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(second.relay.run(), name="relay")
        second.relay.watch_accepted()
        await _watch(outputs, second, version=900)
        await _snapshot(outputs, second)
        await asyncio.sleep(3.0)
        second.collect(outputs, "resume")
        running.cancel()
    _add_statuses(outputs, second)


async def _none() -> int:
    return 0


async def _list(outputs: Outputs, process: _Process, version: int = 100) -> None:
    reader = PageReader(process.selection)
    body = (
        b'{"kind":"SecretList","apiVersion":"v1","metadata":{"resourceVersion":"%d"},"items":[%b]}'
        % (
            version + 50,
            b",".join(secrets(version)),
        )
    )
    for at in range(0, len(body), 1000):
        reader.feed(body[at : at + 1000])
    page = reader.finish()
    await _take_list(outputs, process, page.objects, page.failures, page.resource_version)


async def _take_list(
    outputs: Outputs,
    process: _Process,
    objects: list[ObjectFrame],
    failures: Sequence[Exception],
    version: str,
) -> None:
    for failure in failures:
        outputs.add("errors", str(failure) + repr(failure))
        process.status.failed("watch", str(failure))
        outputs.add("status", json.dumps(process.status.as_json()))
    await process.reflector.take(ListBegun())
    await process.reflector.take(ListedObjects(objects, unreadable=len(failures)))
    await process.reflector.take(ListDone(version, accept_any_size=True))


async def _relist(outputs: Outputs, process: _Process) -> None:
    await _list(outputs, process, version=300)


def _lines(verb: str, version: int) -> bytes:
    return b"".join(
        b'{"type":"%b","object":%b}\n' % (verb.encode(), each) for each in secrets(version)
    )


async def _watch(outputs: Outputs, process: _Process, version: int = 200) -> None:
    stream = FrameStream(process.selection)
    body = _lines("MODIFIED", version) + b'{"type":"DELETED","object":%b}\n' % secret(
        "plain", version + 20
    )
    body += b'{"type":"ADDED","object":%b}\n' % secret("plain", version + 21)
    frames = stream.feed(body[:5000]) + stream.feed(body[5000:]) + stream.finish()
    objects = [frame for frame in frames if isinstance(frame, ObjectFrame)]
    for frame in frames:
        if isinstance(frame, Failure):
            outputs.add("errors", str(frame.error) + repr(frame.error))
    await process.reflector.take(WatchedObjects(objects, asyncio.get_running_loop().time()))
    await process.reflector.take(CursorMoved(str(version + 50)))


async def _streaming(outputs: Outputs, process: _Process) -> None:
    stream = FrameStream(process.selection)
    frames = stream.feed(_lines("ADDED", 400)) + stream.finish()
    objects = [frame for frame in frames if isinstance(frame, ObjectFrame)]
    await _take_list(
        outputs,
        process,
        objects,
        [frame.error for frame in frames if isinstance(frame, Failure)],
        "450",
    )


async def _snapshot(outputs: Outputs, process: _Process) -> None:
    before = process.status.last_snapshot
    process.relay.request_snapshot("asked")
    await until(lambda: process.status.last_snapshot != before)
    outputs.add("snapshot", repr(process.status.as_json()))


def _errors(outputs: Outputs, selection: Selection) -> None:
    """The errors for answers that hold Secrets and are not what was requested: of any type and
    code, whole, truncated or out of place."""
    body = b'{"kind":"SecretList","items":[%b]}' % b",".join(secrets(1))
    unlike_json = (
        *(
            _YAML,
            _YAML.replace(b"\n", b"\r\n"),
            b"\n" + _YAML,
            b"k8s\0\x0c" + CANARIES["data"].encode(),
        ),
        *(
            form % CANARIES["data"].encode()
            for form in (b'{"password" : "%b"}', b'"password":"%b"', b"{%b}")
        ),
        *(
            begun + CANARIES["data"].encode() + b"</td></tr>"
            for begun in (b"<tr><td>", b" <tr><td>", b"\n<tr><td>")
        ),
    )
    for message in _QUOTING:
        answer = json.dumps({"kind": "Status", "code": 500, "message": message}).encode()
        outputs.add(
            "errors",
            repr(
                from_response(
                    500,
                    {"Content-Type": "application/json"},
                    answer,
                    what="list secrets",
                    wall_ms=0,
                )
            ),
        )
        outputs.add("errors", repr(from_stream(answer)))
    for data in (
        body,
        b" \n" + body,
        body[:200_000],
        body[20:],
        secret("plain", 1),
        b"[%b]" % body,
        *unlike_json,
    ):
        for code in (200, 301, 403, 404, 410, 422, 429, 500, 504):
            for kind in (
                "",
                "text/plain",
                "application/json",
                "text/html",
                "application/yaml",
                "application/vnd.kubernetes.protobuf",
            ):
                outputs.add(
                    "errors",
                    repr(
                        from_response(
                            code, {"Content-Type": kind}, data, what="list secrets", wall_ms=0
                        )
                    ),
                )
        for kind in (
            "application/json",
            "text/html",
            "application/yaml",
            "application/octet-stream",
        ):
            outputs.add(
                "errors",
                repr(
                    from_response(
                        500,
                        {"Content-Type": kind},
                        CANARIES["data"].encode(),
                        what="list secrets",
                        wall_ms=0,
                    )
                ),
            )
        reader = PageReader(selection)
        reader.feed(data)
        try:
            reader.finish()
        except (NotAList, KubeError) as error:
            outputs.add("errors", repr(error))
        lines = (
            data,
            data[: len(data) // 2],
            b'{"type":"ERROR","object":%b}' % data,
            b'{"type":"ODD","object":%b}' % data,
        )
        for line in lines:
            for frame in FrameStream(selection).feed(line + b"\n"):
                if isinstance(frame, Failure):
                    outputs.add("errors", repr(frame.error))


def _add_statuses(outputs: Outputs, process: _Process) -> None:
    """What operators and the commands see."""
    outputs.add("metrics", generate_latest(process.metrics.registry))
    outputs.add(
        "status", json.dumps([status.as_json() for status in process.statuses.streams.values()])
    )
    outputs.add("status", json.dumps(Readiness(process.statuses).check()[1]))
    outputs.add("repr", repr(process.spec) + repr(process.store) + repr(process.status))
    audits = [
        Audit(
            "secrets",
            process.spec.topic,
            each,
            origin=Origin(),
            partitions=PARTITIONS,
        )
        for each in range(PARTITIONS)
    ]
    for partition, offset, record in process.written():
        decoded = decode(record.key, record.value, record.headers)
        seen = TailRecord(process.spec.topic, partition, offset, decoded)
        outputs.add(
            "tail",
            as_text(seen, coloured=False) + as_json(seen) + yaml_printer()(seen) + as_name(seen),
        )
        audits[partition].take(offset, offset - 1, decoded, record.headers)
        audits[partition].add(
            AuditProblem("hash", offset, str(record.key), "added to see how it is shown")
        )
    outputs.add("verify", _rows(audits, "text") + _rows(audits, "json"))


def _rows(audits: Iterable[Audit], output: str) -> str:
    out = io.StringIO()
    print_rows([(audit, 0, 1) for audit in audits], out, as_json=output == "json")
    return out.getvalue()
