"""What the relay shows of its work."""

import asyncio

from tests.support.relays import Rig, until, virtual

HEARTBEAT_S = 10.0


def shown(rig: Rig) -> float | None:
    """The lag that the status shows, in milliseconds; None before the first event."""
    return rig.status.lag_ms


@virtual
async def test_the_lag_of_a_quiet_stream_is_gone_with_the_next_heartbeats_after_an_outage() -> None:
    rig = Rig(partitions=3, heartbeat_interval_s=HEARTBEAT_S)
    async with rig.running():
        rig.sync()
        await until(lambda: rig.status.complete)
        assert shown(rig) is None, "nothing changed yet"
        rig.sink.up.clear()
        rig.say(rig.store.put(b"a", b"1"))
        await asyncio.sleep(40)
        rig.sink.up.set()
        await until(lambda: (shown(rig) or 0) >= 40_000)
        await asyncio.sleep(HEARTBEAT_S * 2)
        assert shown(rig) == 0


@virtual
async def test_heartbeats_that_wait_and_those_beside_what_waits_reset_nothing() -> None:
    rig = Rig(partitions=2, heartbeat_interval_s=HEARTBEAT_S)
    async with rig.running():
        rig.sync()
        await until(lambda: rig.status.complete)
        rig.sink.up.clear()
        rig.say(rig.store.put(b"a", b"1"))
        await asyncio.sleep(20)
        rig.sink.up.set()
        await until(lambda: (shown(rig) or 0) >= 20_000)
        rig.sink.up.clear()
        await asyncio.sleep(HEARTBEAT_S * 3)
        assert (shown(rig) or 0) >= 20_000, "no heartbeat is acknowledged"
