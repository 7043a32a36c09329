"""Changes that wait to be given to the caller: the proven state once, then each change of it.
Pure."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping
from typing import NamedTuple

from watchrelay.consumer.changes import Saved, Why
from watchrelay.consumer.replica import Changed, Held
from watchrelay.contract.wire import Position

FOLD_CHANGES = 20_000
"""From here on changes that are not taken are folded to one per object, so that they never outgrow
the state. Partitions share it."""


class Cause(NamedTuple):
    """Why an object changed, and behind which record that was known."""

    reason: Why
    position: Position
    offset: int


class Item(NamedTuple):
    """One object that differs from what was given of it before. `before` None: nothing was; `after`
    None: it is deleted."""

    key: bytes
    before: Held | None
    after: Held | None
    cause: Cause


class Outbox:
    """The changes of one stream in one partition that were not given out yet.

    Nothing is given before `begin` or `go_on`. A change that is proven waits as it came, in
    `_queue`. Where it is not proven, or where something is folded already, it is folded: `_folded`
    has for each object what was given of it last, and what the state holds of it when it is taken
    is given then. All of `_queue` is older than `_folded`.
    """

    __slots__ = ("_folded", "_place", "_queue", "begun", "closed", "passed")

    def __init__(self) -> None:
        self._queue: deque[Item | Saved] = deque()
        self._folded: OrderedDict[bytes, tuple[Held | None, Cause]] = OrderedDict()
        self._place: Saved | None = None
        """The newest proven place; it is passed when nothing is folded any more."""
        self.begun = self.closed = False
        self.passed: Saved | None = None
        """The newest proven place behind which everything was given out."""

    def __bool__(self) -> bool:
        return bool(self._queue or self._folded)

    def begin(self, held: Mapping[bytes, Held], cause: Cause) -> None:
        """Give out each object of the proven state, once, as it is when it is taken."""
        self.begun = True
        self._folded = OrderedDict.fromkeys(held, (None, cause))

    def go_on(self, saved: Saved) -> None:
        """Give out what differs from the state at `saved`, which was given out in a former life."""
        self.begun = True
        self.passed = saved

    def close(self, held: Mapping[bytes, Held], cause: Cause) -> None:
        """The partition is not read any more: give out a delete of each object that was given."""
        for key, each in held.items():
            self.add(Changed(key, each, None), cause, proven=True)
        self.closed = True

    def add(
        self, changed: Changed, cause: Cause, *, proven: bool, most: int = FOLD_CHANGES
    ) -> None:
        """The state changed; `proven`: the change may be given out as it is, and `most` how many
        may wait."""
        if not self.begun or _same(changed.before, changed.after):
            return
        item = Item(changed.key, changed.before, changed.after, cause)
        if proven and not self._folded and len(self._queue) < most:
            self._queue.append(item)
            return
        if len(self._queue) >= most:
            for waiting in self._queue:
                if isinstance(waiting, Saved):
                    self._place = waiting
                else:
                    self._fold(waiting)
            self._queue.clear()
        self._fold(item)

    def _fold(self, item: Item) -> None:
        given, former = self._folded.get(item.key, (item.before, None))
        if _same(given, item.after):
            self._folded.pop(item.key, None)
        elif former is not None and former.reason == "initial":
            self._folded[item.key] = given, item.cause._replace(reason="initial")
        else:
            self._folded[item.key] = given, item.cause

    def reach(self, saved: Saved) -> None:
        """The state is proven at `saved`."""
        if not self.begun or self._folded:
            self._place = saved
            return
        self._place = None  # an older one
        if self._queue and isinstance(self._queue[-1], Saved):
            self._queue[-1] = saved
        else:
            self._queue.append(saved)

    def take(self, held: Mapping[bytes, Held], *, proven: bool) -> Item | None:
        """The next change, None when there is none now. `held` is the state, and `proven` whether
        it may be given out."""
        if self.closed:
            held, proven = {}, True
        self.pass_places()
        if self._queue:
            item = self._queue.popleft()
            assert isinstance(item, Item), "places at the head of the queue are passed"
            return item
        while proven and self._folded:
            key, (given, cause) = self._folded.popitem(last=False)
            after = held.get(key)
            if not _same(given, after):
                return Item(key, given, after, cause)
        self.pass_places()
        return None

    def pass_places(self) -> None:
        """Pass the places before which nothing waits any more."""
        while self._queue and isinstance(place := self._queue[0], Saved):
            self.passed = place
            self._queue.popleft()
        if self.begun and not self and self._place is not None:
            self.passed, self._place = self._place, None


def _same(before: Held | None, after: Held | None) -> bool:
    """Whether both are the same object, its uid included: the value contains it."""
    if before is None or after is None:
        return before is after
    return before.value_hash == after.value_hash
