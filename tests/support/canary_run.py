"""All that leaves the relay when Secrets full of canaries go every way through it, from the first
list to a resume by another process. The server is bytes as it would send them, time virtual."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence

from tests.support.canary import SECRETS, Outputs, secret, secrets
from tests.support.canary_errors import add_errors
from tests.support.canary_relay import CanaryRelay
from tests.support.fakesink import FakeControl, KafkaLogs
from tests.support.relays import until
from tests.support.troubles import trouble
from watchrelay.daemon.recovery import resume
from watchrelay.kube.page import PageReader
from watchrelay.kube.stream import FrameReader
from watchrelay.model.frames import Failure, ObjectFrame
from watchrelay.model.resources import Selection
from watchrelay.model.streams import Format
from watchrelay.model.watch_output import (
    ListBegun,
    ListDone,
    ListedObjects,
    Watched,
)
from watchrelay.observe.logs import JsonFormatter
from watchrelay.store.transform import Transform


class _Lines(logging.Handler):
    def __init__(self, outputs: Outputs) -> None:
        super().__init__(logging.DEBUG)
        self._outputs = outputs
        self.setFormatter(JsonFormatter())

    def emit(self, record: logging.LogRecord) -> None:
        self._outputs.add("logs", self.format(record) + repr(record.__dict__))


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
    first = CanaryRelay(transform, selection, form, kafka, control)
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
    first.add_statuses(outputs)
    add_errors(outputs, selection)
    second = CanaryRelay(transform, selection, form, kafka, control)
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
    second.add_statuses(outputs)


async def _none() -> int:
    return 0


async def _list(outputs: Outputs, process: CanaryRelay, version: int = 100) -> None:
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
    process: CanaryRelay,
    objects: list[ObjectFrame],
    failures: Sequence[Exception],
    version: str,
) -> None:
    for failure in failures:
        outputs.add("errors", str(failure) + repr(failure))
        process.status.failed("watch", trouble(str(failure)))
        outputs.add("status", json.dumps(process.status.as_json()))
    await process.reflector.take(ListBegun())
    await process.reflector.take(ListedObjects(objects, unreadable=len(failures)))
    await process.reflector.take(ListDone(version, accept_any_size=True))


async def _relist(outputs: Outputs, process: CanaryRelay) -> None:
    await _list(outputs, process, version=300)


def _lines(verb: str, version: int) -> bytes:
    return b"".join(
        b'{"type":"%b","object":%b}\n' % (verb.encode(), each) for each in secrets(version)
    )


async def _watch(outputs: Outputs, process: CanaryRelay, version: int = 200) -> None:
    stream = FrameReader(process.selection)
    body = _lines("MODIFIED", version) + b'{"type":"DELETED","object":%b}\n' % secret(
        "plain", version + 20
    )
    body += b'{"type":"ADDED","object":%b}\n' % secret("plain", version + 21)
    frames = stream.feed(body[:5000]) + stream.feed(body[5000:]) + stream.finish()
    objects = [frame for frame in frames if isinstance(frame, ObjectFrame)]
    for frame in frames:
        if isinstance(frame, Failure):
            outputs.add("errors", str(frame.error) + repr(frame.error))
    await process.reflector.take(Watched(objects, asyncio.get_running_loop().time()))
    await process.reflector.take(Watched(cursor=str(version + 50)))


async def _streaming(outputs: Outputs, process: CanaryRelay) -> None:
    stream = FrameReader(process.selection)
    frames = stream.feed(_lines("ADDED", 400)) + stream.finish()
    objects = [frame for frame in frames if isinstance(frame, ObjectFrame)]
    await _take_list(
        outputs,
        process,
        objects,
        [frame.error for frame in frames if isinstance(frame, Failure)],
        "450",
    )


async def _snapshot(outputs: Outputs, process: CanaryRelay) -> None:
    before = process.status.last_snapshot
    process.relay.request_snapshot("asked")
    await until(lambda: process.status.last_snapshot != before)
    outputs.add("snapshot", repr(process.status.as_json()))
