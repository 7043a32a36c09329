"""Scenarios of records that are lost: in the log, or on their way to a reader.

Output: vectors without `expect`.
"""

from __future__ import annotations

from tests.support.stream_log import Log, Writer, stream
from tests.vectors.document import Vector
from tests.vectors.scenarios import last_offset, published


def gap_read_again() -> Vector:
    log, writer = published("shop/a", "shop/b")
    writer.put("shop/a", 2)
    lost = last_offset(log)
    writer.put("shop/b", 2)
    writer.beat()
    writer.put("shop/b", 3)
    writer.beat()
    return Vector(
        "loss-read-again",
        "A record got lost on the way: the heartbeat disagrees, the reader reads again from "
        "the last snapshot into a second state, "
        "which replaces the first at the place of failure.",
        [log],
        {0: [lost]},
    )


def lost_delete() -> Vector:
    log, writer = published("shop/a", "shop/b")
    writer.delete("shop/a")
    lost = last_offset(log)
    writer.beat()
    return Vector(
        "lost-delete", "A delete got lost on the way: the count says so.", [log], {0: [lost]}
    )


def loss_before_any_snapshot() -> Vector:
    log = Log()
    writer = Writer(stream(), [log], epoch=3)
    writer.claim()
    writer.begin()
    writer.put("shop/a", verb="added", reason="snapshot")
    lost = last_offset(log)
    writer.put("shop/b", verb="added", reason="snapshot")
    writer.beat()
    writer.end()
    writer.beat()
    return Vector(
        "loss-before-any-snapshot",
        "A heartbeat that names no snapshot disagrees: read again from the start of the partition.",
        [log],
        {0: [lost]},
    )


def loss_within_the_first_snapshot() -> Vector:
    log = Log()
    writer = Writer(stream(), [log], epoch=3)
    writer.knows_nothing = True
    writer.claim()
    writer.begin()
    writer.put("shop/a", verb="added", reason="snapshot")
    lost = last_offset(log)
    writer.beat()
    writer.put("shop/b", verb="added", reason="snapshot")
    writer.beat()
    writer.knows_nothing = False
    writer.put("shop/c", verb="added", reason="snapshot")
    writer.end()
    return Vector(
        "loss-within-the-first-snapshot",
        "Markers with the frontier 0 that name no snapshot prove a part of the first one: what is "
        "read again replaces the state at its end only.",
        [log],
        {0: [lost]},
    )


def loss_at_the_end_of_an_epoch() -> Vector:
    log, old = published("shop/a", "shop/b")
    old.put("shop/a", 2)
    lost = last_offset(log)
    new = Writer(stream(), [log], epoch=8, before=old)
    new.claim()
    new.beat()
    return Vector(
        "loss-at-the-end-of-an-epoch",
        "The last record of an epoch got lost: no gap shows, for sequences start again; the next "
        "heartbeat does.",
        [log],
        {0: [lost]},
    )


def never_agrees() -> Vector:
    log, writer = published("shop/a", "shop/b")
    writer.put("shop/a", 2, lose=True)
    writer.beat()
    writer.put("shop/c")
    writer.beat()
    writer.beat()
    writer.snapshot()
    writer.beat()
    return Vector(
        "lost-in-the-log",
        "A record never reached the log: reading again does not help, is tried once for the "
        "snapshot, and the next end mends it.",
        [log],
    )


def end_that_disagrees() -> Vector:
    log, writer = published("shop/a", "shop/b")
    writer.begin()
    writer.republish("shop/a")
    writer.put("shop/b", 2)
    lost = last_offset(log)
    writer.end()
    writer.beat()
    return Vector(
        "end-that-disagrees",
        "An end disagrees even after the sweep: read again from its own begin.",
        [log],
        {0: [lost]},
    )


def second_loss_while_reading_again() -> Vector:
    log, writer = published("shop/a", "shop/b")
    writer.put("shop/a", 2, lose=True)
    writer.beat()
    writer.snapshot()
    writer.put("shop/b", 2, lose=True)
    writer.beat()
    writer.snapshot()
    writer.beat()
    return Vector(
        "two-losses",
        "Two records never reached the log, one before and one behind a snapshot.",
        [log],
    )


def sweep() -> Vector:
    log, old = published("shop/a", "shop/b", "shop/c")
    old.delete("shop/b", lose=True)
    new = Writer(stream(), [log], epoch=8, before=old)
    new.claim()
    new.snapshot()
    new.beat()
    return Vector(
        "sweep-by-end",
        "A delete is not in the log (compacted, or never said): begin disagrees, the end sweeps "
        "what is older than its begin.",
        [log],
    )


def vectors() -> list[Vector]:
    """All of them."""
    return [
        gap_read_again(),
        lost_delete(),
        loss_before_any_snapshot(),
        loss_within_the_first_snapshot(),
        loss_at_the_end_of_an_epoch(),
        never_agrees(),
        end_that_disagrees(),
        second_loss_while_reading_again(),
        sweep(),
    ]
