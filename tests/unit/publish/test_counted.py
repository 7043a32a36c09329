"""Streams with `ignoreChanges` or `publishWhen`, where the topic has less than the whole of an
object. In virtual time."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.relays import DictStore, Rig, until, virtual
from tests.unit.store.frames import WIDGETS, frame
from watchrelay.contract.records import content_hash
from watchrelay.model.changes import Entry
from watchrelay.model.frames import FrameType
from watchrelay.publish.recovery import (
    RecoveredPartition,
    RecoveredState,
    SnapshotPlace,
    WatchFrom,
)
from watchrelay.store.counting import Counting
from watchrelay.store.objects import Store
from watchrelay.store.transform import Transform

KEY = b"n/a"


class CountingStore(DictStore):
    """A real store of widgets, of which `spec.noise` does not count."""

    counts = True

    def __init__(self) -> None:
        super().__init__(1)
        transform = Transform.compile(WIDGETS)
        counting = Counting.compile(transform, ignored=[("spec", "noise")])
        self.real = Store(transform, partitions=1, counting=counting)
        self.keys, self.get, self.unpack = self.real.keys, self.real.get, self.real.unpack  # type: ignore[method-assign]  # the real ones
        self.settle, self.published_in_part = self.real.settle, self.real.published_in_part  # type: ignore[method-assign]  # the real ones

    def __len__(self) -> int:
        return len(self.real)


class Relay(Rig):
    """Of one partition."""

    def __init__(self, *, queue_bytes: int = 64 << 20) -> None:
        self.counting = CountingStore()
        super().__init__(partitions=1, store=self.counting, queue_bytes=queue_bytes)

    def shown(
        self, version: int, size: int, noise: int, *, name: str = "a", kind: FrameType = "MODIFIED"
    ) -> None:
        """The watch shows a widget, with this much text of noise."""
        self.counting.version = version
        body = ({"size": size} if size else {}) | {"noise": "n" * noise}
        self.say(self.counting.real.apply([frame(name, version, kind, body=body)]).changes)

    def of_it(self) -> list[tuple[str, str, str]]:
        return [
            (each.verb, each.trimmed, each.version) for each in self.objects() if each.key == KEY
        ]


@pytest.mark.parametrize(
    ("limit_bytes", "first"),
    [
        (600, [("added", "stub", "11")]),
        (100, []),
    ],
)
@virtual
async def test_an_object_that_was_too_large_is_published_whole_once_its_ignored_part_shrinks(
    limit_bytes: int, first: list[tuple[str, str, str]]
) -> None:
    relay = Relay()
    async with relay.running():
        relay.sync()
        await until(lambda: relay.status.complete)
        relay.sink.limit_bytes = limit_bytes
        relay.shown(11, 1, 5000)
        await asyncio.sleep(30)
        assert relay.of_it() == first
        relay.sink.limit_bytes = None if limit_bytes == 100 else limit_bytes
        relay.shown(12, 1, 10)
        relay.shown(13, 1, 11)
        await asyncio.sleep(30)
    assert relay.of_it()[len(first) :] == [("modified" if first else "added", "", "12")]
    assert relay.replicas()[0].proven


@virtual
async def test_a_state_that_a_former_writer_published_in_part_is_not_held_again_under_overload() -> (
    None
):
    """What is missing in it may fit by now, and its snapshot members would not say so."""
    relay = Relay(queue_bytes=3000)
    store, version = relay.counting.real, "5"
    stub = store._transform(frame("a", version)).replace(b',"spec":0', b"")
    value_hash = content_hash(KEY, stub)
    packed = store.pack_logged(stub, version)
    published = Entry.of("uid-a", version, 0, value_hash=value_hash, packed=packed)
    store.resume([(KEY, published)], skip={}, newest=version)
    await relay.relay.claim(relay.highest_epoch)
    found = RecoveredPartition(1, value_hash, version, SnapshotPlace("1-1", 0))
    relay.relay.resume(
        RecoveredState(WatchFrom(version), (found,), ({},), {}, version, {}, {KEY: "stub"})
    )
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(relay.relay.run(), name="run")
        relay.relay.watch_accepted()
        await until(lambda: bool(relay.markers("heartbeat")))
        relay.sink.up.clear()
        for number in range(9):
            relay.shown(10 + number, 1, 400, name=f"w{number}", kind="ADDED")
        relay.shown(30, 1, 0)
        relay.shown(31, 0, 1)
        relay.sink.up.set()
        await asyncio.sleep(30)
        relay.relay.request_snapshot("again")
        await asyncio.sleep(30)
        running.cancel()
    assert relay.status.queues.dirty_keys == 0
    assert relay.of_it() == [("modified", "", "31"), ("read", "", "31")]
