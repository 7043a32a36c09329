"""What has arrived is handed on in pieces."""

from __future__ import annotations

from typing import Any

from aiokafka import TopicPartition

from tests.support.virtualtime import virtual
from watchrelay.kafka.client.fetched import BYTES_AT_ONCE, Share, in_pieces

T0 = TopicPartition("t", 0)


@virtual
async def test_who_reads_can_tell_a_piece_from_all_that_has_arrived() -> None:
    share, sizes = Share(), [BYTES_AT_ONCE, 10]

    async def fetched(*_: object) -> dict[TopicPartition, list[Any]]:
        share.room_bytes -= sizes.pop(0)
        return {T0: ["a record"]}

    handed_on = in_pieces(fetched, share)
    await handed_on([T0])
    assert share.was_used
    await handed_on([T0])
    assert not share.was_used
