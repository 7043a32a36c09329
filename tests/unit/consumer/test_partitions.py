"""What is known of one stream in one partition while its log is read, and read again."""

from __future__ import annotations

from watchrelay.consumer.partitions import PartitionReplicas
from watchrelay.consumer.replica import ReadAgain, Unproven
from watchrelay.contract.control_state import Origin
from watchrelay.contract.records import MarkerRecord
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
