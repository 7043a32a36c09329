"""What a `TopicReader` has still to give, over all its partitions. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from watchrelay.consumer.changes import Change, ChangeVerb, Saved, Why
from watchrelay.consumer.outbox import FOLD_CHANGES, Cause, Item
from watchrelay.consumer.partitions import Lane
from watchrelay.consumer.replica import Changed


class Pending:
    """The streams and partitions that may have something to give, in the order in which they came
    to have it."""

    def __init__(self) -> None:
        self._waiting: dict[Lane, str] = {}
        """With the topic of each."""

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def begin(self, topic: str, lane: Lane, offset: int) -> None:
        """The state of `lane` is proven for the first time, behind the record at `offset`: give it
        out."""
        lane.outbox.begin(lane.replica.held, Cause("initial", lane.replica.position, offset))
        self._offer(topic, lane)

    def add(self, topic: str, lane: Lane, changed: Changed, why: Why, offset: int) -> None:
        """The state of `lane` changed behind the record at `offset`."""
        most = FOLD_CHANGES // max(1, len(self._waiting))
        lane.outbox.add(
            changed, Cause(why, lane.replica.position, offset), proven=lane.proven, most=most
        )
        self._offer(topic, lane)

    def reach(self, topic: str, lane: Lane, offset: int) -> None:
        """The state of `lane` is proven in front of `offset`: a place to go on from, and what was
        held back may be given."""
        lane.outbox.reach(lane.saved(topic, offset))
        self._offer(topic, lane)

    def close(self, topic: str, lane: Lane, why: Why) -> None:
        """`lane` is not read any more: what was given of it is deleted."""
        lane.outbox.close(lane.replica.held, Cause(why, lane.replica.position, lane.start))
        self._offer(topic, lane)

    def _offer(self, topic: str, lane: Lane) -> None:
        if lane.outbox:
            self._waiting.setdefault(lane, topic)

    def take(self) -> Change | None:
        """The next change, None when there is none now."""
        while self._waiting:
            lane, topic = next(iter(self._waiting.items()))
            if (item := lane.outbox.take(lane.replica.held, proven=lane.proven)) is not None:
                return _change(topic, lane, item)
            del self._waiting[lane]
        return None

    def left(self) -> Iterator[Saved]:
        """The places of partitions that are not read any more and have still something to give."""
        return (
            lane.outbox.passed
            for lane in self._waiting
            if lane.outbox.closed and lane.outbox.passed is not None
        )


def _change(topic: str, lane: Lane, item: Item) -> Change:
    before, after = item.before, item.after
    known = after or before
    assert known is not None, "an item is a difference"
    verb: ChangeVerb = "deleted" if after is None else "added" if before is None else "modified"
    return Change(
        stream=lane.stream,
        topic=topic,
        partition=lane.partition,
        key=item.key.decode(),
        verb=verb,
        value=None if after is None else after.value,
        old_value=None if before is None else before.value,
        uid=known.uid,
        resource_version=known.version,
        reason=item.cause.reason,
        position=item.cause.position,
        offset=item.cause.offset,
    )
