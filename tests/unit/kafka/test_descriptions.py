"""A description on the control topic that is not what the newest claimant wrote."""

from __future__ import annotations

import pytest

from tests.support.memorycontrol import MemoryControl, record_of
from tests.support.virtualtime import virtual
from tests.unit.kafka.test_control_topic import SPLIT, claim_part
from watchrelay.contract.control import control_value
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.control_topic import ControlTopic


@pytest.mark.parametrize(
    "written",
    [
        b'{"topic": "elsewhere", "partitions": 1, "epochBase": 1}',
        b'{"topic": "t", "partitions": 3, "epochBase": 1}',
        b"null and void",
        None,
    ],
)
@virtual
async def test_a_description_that_another_writer_changed_is_written_again(
    written: bytes | None,
) -> None:
    topic = MemoryControl()
    epoch = await topic.claim()
    described = topic.control.described("pods")
    assert topic.control.altered(["pods", "unknown"]) == []
    topic.put("stream/pods", written)
    assert topic.control.altered(["pods", "unknown"]) == ["pods"]
    await topic.control.describe_again("pods")
    assert topic.control.described("pods") == described
    assert topic.control.altered(["pods"]) == []
    assert not topic.control.superseded("pods", epoch)


@pytest.mark.parametrize("claimed", ["pods", "pods%1/2"])
@virtual
async def test_a_description_that_comes_with_a_newer_claim_is_kept(claimed: str) -> None:
    topic = MemoryControl()
    await claim_part(topic, "pods")
    other = ControlTopic(
        KafkaConnection(bootstrap_servers=("nowhere:1",)), "control", topic, holder="other"
    )
    for number, (key, value) in enumerate(topic.records):
        data = None if value is None else control_value(value)
        other.take(record_of(number, key.encode(), data))
    other.began(len(topic.records))
    other.moved(len(topic.records))
    topic.followers.append(other)
    await other.claim(
        claimed, {**SPLIT, "more": 1}, starting_point=None, highest_epoch=topic.nothing
    )
    assert topic.control.described("pods") == other.described("pods")
    assert topic.control.altered(["pods"]) == []
    assert other.altered(["pods"]) == []
