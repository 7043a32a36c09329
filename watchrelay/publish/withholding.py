"""Records of which the topic takes nothing, not even the object's names: they are taken out of the
queue.

The log then holds nothing of the object, and count and digest say so: what it held before is
deleted. The key counts as unpublished, so that the object is "added" once a state of it fits, and
each snapshot tries again.
"""

from __future__ import annotations

from watchrelay.contract.wire import Reason
from watchrelay.publish.partition_queue import RECORD_COST_BYTES, Lane, Queued, Sequencer

_LIVE: frozenset[Reason] = frozenset(("watch", "relist", "resume", "conflated"))


def withhold(queues: Sequencer, lane: Lane, index: int) -> bool:
    """Take record `index` of the outstanding batch, of which nothing was appended, out of the
    queue; the others are put back into it.

    Returns: False, and nothing is changed, where the record cannot be left out: a marker, or the
    deletion of what the log holds.
    """
    cut = lane.outstanding
    assert cut is not None, "no batch is outstanding"
    item = cut.items[index]
    if not isinstance(item, Queued) or (item.verb == "deleted" and item.before is not None):
        return False
    lane.put_back()
    del lane.queue[index]
    queues.held_bytes -= item.held_bytes
    queues.held_records -= 1
    queues.object_records -= 1
    if item.verb != "deleted":
        _forget(queues, lane, index, item)
        if item.before is not None:
            _delete(queues, lane, index, item)
    return True


def _forget(queues: Sequencer, lane: Lane, index: int, item: Queued) -> None:
    """Let whatever is queued next of this key know that the log does not hold it."""
    for later in list(lane.queue)[index:]:
        if isinstance(later, Queued) and later.key == item.key:
            if later.before == item.value_hash:
                later.before = None
                if later.verb != "deleted" and item.key not in queues.doubted:
                    later.verb = "added"
            return
    waiting = None if lane.dirty is None else lane.dirty.get(item.key)
    if waiting is None:
        queues.unpublished.add(item.key)
    elif waiting.hash == item.value_hash:
        waiting.hash = None


def _delete(queues: Sequencer, lane: Lane, index: int, item: Queued) -> None:
    """Queue the deletion of what the log holds of the object, in the place of its new state."""
    reason: Reason = item.reason if item.reason in _LIVE else "conflated"
    cost, at_ms, version, entry = RECORD_COST_BYTES, item.time_ms, item.version, item.entry
    deleted = [
        Queued(
            item.key,
            entry,
            None,
            "deleted",
            reason,
            0,
            item.before,
            version,
            at_ms,
            item.received_s,
            cost,
        )
    ]
    if queues.tombstones:
        deleted.append(
            Queued(
                item.key,
                entry,
                None,
                "deleted",
                reason,
                0,
                None,
                version,
                at_ms,
                0.0,
                cost,
                "",
                True,
            )
        )
    for place, each in enumerate(deleted):
        lane.queue.insert(index + place, each)
    queues.held_bytes += cost * len(deleted)
    queues.held_records += len(deleted)
    queues.object_records += len(deleted)
