"""The store against a dict: whatever a server says, state, changes and hashes agree with a model
that keeps whole objects."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.support.extent import examples
from tests.support.pods import frame_of
from tests.unit.store.frames import flat
from watchrelay.contract.records import content_hash
from watchrelay.model.changes import ObjectChange, Removed
from watchrelay.model.frames import FrameType, ObjectFrame
from watchrelay.model.resources import Resource
from watchrelay.store.objects import Store
from watchrelay.store.transform import Transform

WIDGETS = Resource("example.com", "v1", "widgets", "Widget", namespaced=True)
ALL = "abcdefghij"
NAMES = st.sampled_from(ALL)
# enough to learn a dictionary from
TEXTS = ["".join(Random(number).choices("etaoin shrdlu", k=2000)) for number in range(4)]
BODIES = st.integers(0, 2)


def the_frame(kind: FrameType, name: str, uid: int, version: int, body: int) -> ObjectFrame:
    metadata = {
        "name": name,
        "namespace": "n",
        "uid": f"u{uid}",
        "resourceVersion": str(version),
        "managedFields": [version],
    }
    return frame_of(
        msgspec.json.encode(
            {
                "apiVersion": "example.com/v1",
                "kind": "Widget",
                "metadata": metadata,
                "spec": {"body": body, "text": TEXTS[body]},
            }
        ),
        kind,
    )


class StoreMachine(RuleBasedStateMachine):
    """A server with objects (uid, version, body), a store that follows it, and a reader that
    applies every change."""

    def __init__(self) -> None:
        super().__init__()
        self.version = 10
        self.uids = 0
        self.server: dict[str, tuple[int, int, int]] = {}
        self.log: list[tuple[FrameType, str, int, int, int]] = []
        self.seen = 0
        self.store = Store(Transform.compile(WIDGETS), partitions=3, train_at=8, piece=2)
        self.reader: dict[bytes, tuple[int, str]] = {}

    # ---- the server ----

    def tell(self, kind: FrameType, name: str, uid: int, body: int) -> None:
        self.version += 1
        self.log.append((kind, name, uid, self.version, body))

    @initialize(names=st.sampled_from(["", "abcdefg", ALL]))
    def populate(self, names: str) -> None:
        """Enough objects to learn a dictionary from at once, nearly enough, or none."""
        for number, name in enumerate(names):
            self.write(name, number % 3)

    @rule(name=NAMES, body=BODIES)
    def write_rule(self, name: str, body: int) -> None:
        self.write(name, body)

    def write(self, name: str, body: int) -> None:
        known = self.server.get(name)
        if known is None:
            self.uids += 1
        uid = self.uids if known is None else known[0]
        self.tell("ADDED" if known is None else "MODIFIED", name, uid, body)
        self.server[name] = (uid, self.version, body)

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        if (known := self.server.pop(name, None)) is not None:
            self.tell("DELETED", name, known[0], known[2])

    @rule(name=NAMES, body=BODIES)
    def replace(self, name: str, body: int) -> None:
        """Delete and create again, but no watcher sees the deletion."""
        if name in self.server:
            self.uids += 1
            self.tell("MODIFIED", name, self.uids, body)
            self.server[name] = (self.uids, self.version, body)

    # ---- what the store receives ----

    @rule(events=st.integers(1, 10), again=st.integers(0, 3))
    def watch(self, events: int, again: int) -> None:
        """The next events, with some old ones that leave what is held untouched repeated before
        them."""
        if not self.store.has_state:
            return
        repeated = [
            event
            for event in self.log[max(0, self.seen - again) : self.seen]
            if self.still_held(event)
        ]
        batch = repeated + self.log[self.seen : self.seen + events]
        self.seen = min(self.seen + events, len(self.log))
        applied = self.store.apply([the_frame(*event) for event in batch])
        self.read(applied.changes)
        assert (
            self.store.apply(
                [the_frame(*event) for event in batch if self.still_held(event)]
            ).changes
            == []
        )

    def still_held(self, event: tuple[FrameType, str, int, int, int]) -> bool:
        """A replay of this event says nothing new: its object is still there."""
        return f"n/{event[1]}".encode() in self.reader and self.store.has_state

    @rule(pages=st.integers(1, 3), confirm=st.booleans())
    def relist(self, pages: int, confirm: bool) -> None:
        """A complete list; what the watch had not shown yet is skipped."""
        frames = [the_frame("ADDED", name, *known) for name, known in self.server.items()]
        self.store.begin_list()
        size = max(1, len(frames) // pages)
        for start in range(0, len(frames), size):
            self.store.stage(frames[start : start + size])
        if not confirm:
            return
        first = not self.store.has_state
        pieces = self.store.replace(str(self.version)).pieces
        self.seen = len(self.log)
        if first:
            self.reader = self.held()
        removed: list[bool] = []
        for piece in pieces:
            self.read(piece)
            assert self.reader == self.held(), "each is made as it is taken"
            removed += (isinstance(change, Removed) for change in piece)
        assert not (first and removed)
        assert removed == sorted(removed, reverse=True)
        self.store.begin_list()
        self.store.stage(frames)
        assert flat(self.store.replace(str(self.version)).pieces) == []

    # ---- the reader ----

    def known(self, key: bytes) -> tuple[int, str]:
        entry = self.store.get(key)
        assert entry is not None
        return entry.hash, entry.uid

    def held(self) -> dict[bytes, tuple[int, str]]:
        keys = self.store.keys()
        return {key: self.known(key) for key in keys}

    def read(self, changes: list[ObjectChange]) -> None:
        for change in changes:
            if isinstance(change, Removed):
                held = self.reader.pop(change.key)
                assert held == (change.entry.hash, change.entry.uid), (
                    "a removal names what was held"
                )
            else:
                value = self.store.unpack(change.entry) if change.value is None else change.value
                assert change.entry.hash == content_hash(change.key, value)
                assert (change.uid, change.hash) == (change.entry.uid, change.entry.hash)
                replaced = change.replaced
                assert (replaced and (replaced.hash, replaced.uid)) == self.reader.get(change.key)
                assert (
                    change.key not in self.reader or self.reader[change.key][1] == change.entry.uid
                ), "no uid changes in silence"
                self.reader[change.key] = (change.entry.hash, change.entry.uid)

    def expected(self) -> dict[str, tuple[str, int]]:
        """uid and body by name after the events that the store received, by watch or list."""
        objects: dict[str, tuple[str, int]] = {}
        for kind, name, uid, _, body in self.log[: self.seen]:
            if kind == "DELETED":
                del objects[name]
            else:
                objects[name] = (f"u{uid}", body)
        return objects

    @invariant()
    def the_reader_holds_what_the_store_holds(self) -> None:
        if self.store.has_state:
            assert self.reader == self.held()

    @invariant()
    def the_store_holds_what_the_server_sent(self) -> None:
        if not self.store.has_state:
            return
        state: dict[str, tuple[str, Any]] = {}
        for key in self.held():
            entry = self.store.get(key)
            assert entry is not None
            value = msgspec.json.decode(self.store.unpack(entry))
            assert value["metadata"]["resourceVersion"] == entry.resource_version
            assert entry.hash == content_hash(key, self.store.unpack(entry))
            state[value["metadata"]["name"]] = (entry.uid, value["spec"]["body"])
        assert state == self.expected()


StoreMachine.TestCase.settings = settings(
    max_examples=examples(200), stateful_step_count=40, deadline=None
)
TestStore = StoreMachine.TestCase
