"""What is known of one stream in one partition while its log is read, and read again."""

from __future__ import annotations

import pytest

from tests.support.stream_log import Log, Writer, stream
from watchrelay.consumer.partitions import PartitionReplicas
from watchrelay.consumer.replica import ReadAgain, Unproven
from watchrelay.contract.control_state import Origin
from watchrelay.contract.records import MarkerRecord, decode
from watchrelay.contract.state import Ignored


def heartbeat(sequence: int, seen: str, *, epoch: int = 2) -> MarkerRecord:
    """It disagrees with every state."""
    return MarkerRecord(
        "pods", epoch, sequence, "heartbeat", 0, "", "c", 1, frontier="9", count=7, seen=seen
    )


def test_when_the_writer_received_something_last_does_not_go_back() -> None:
    replicas = PartitionReplicas(0, {"pods": Origin()})
    log = [heartbeat(1, "12:00"), heartbeat(2, "12:01"), heartbeat(3, "12:02")]
    outcomes = [replicas.apply(offset, record) for offset, record in enumerate(log)]
    pods = replicas.by_stream["pods"]
    assert outcomes[0] == (pods, ReadAgain(None))
    for offset, record in enumerate(log):
        replicas.apply(offset, record)
        assert pods.seen == "12:02", "read again"
    assert replicas.apply(3, heartbeat(9, "11:00", epoch=1)) == (pods, Ignored(duplicate=False))
    assert pods.seen == "12:02", "a former writer"
    assert replicas.apply(4, heartbeat(4, "12:03")) == (pods, Unproven())
    assert pods.seen == "12:03", "also where the state is not proven"
    replicas.restart()
    replicas.apply(0, heartbeat(1, "12:04", epoch=1))
    assert pods.seen == "12:04", "of a recreated topic"


@pytest.mark.parametrize("index", [True, False], ids=["index record", "heartbeats alone"])
@pytest.mark.parametrize("moved", range(1, 12))
def test_in_a_mirrored_log_with_lower_offsets_a_reader_is_proven_all_the_same(
    moved: int, *, index: bool
) -> None:
    """The first `moved` records were removed before the log was copied: begin offsets lead to the
    middle of what is needed."""
    log = Log()
    writer = Writer(stream(), [log], epoch=2)
    writer.first("shop/a", "shop/b")
    for number in range(12):
        writer.put("shop/a", number)
    writer.snapshot()
    for number in range(12):
        writer.put("shop/c", number)
        writer.beat()
    snapshot, begin = writer.last_snapshot[0] or ("", 0)
    copied = [
        decode(record.key, record.value, record.headers)
        for at, record in sorted(log.records.items())
        if at >= moved
    ]
    replicas = PartitionReplicas(
        0, {writer.spec.id: Origin(begin, snapshot) if index else Origin()}
    )
    offset = replicas.start
    while offset < len(copied):
        match replicas.apply(offset, copied[offset]):
            case (_, ReadAgain(offset=again)):
                offset = again or 0
            case _:
                offset += 1
    replica = replicas.by_stream[writer.spec.id]
    assert replica.proven
    assert set(replica.replica.held) == {b"shop/a", b"shop/b", b"shop/c"}
