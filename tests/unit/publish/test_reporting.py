"""What the relay shows of its work."""

import asyncio

from tests.support.relays import Rig, until, virtual
from watchrelay.observe.overview import judge

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


@virtual
async def test_what_a_writer_had_queued_when_it_ended_is_not_shown_any_more() -> None:
    rig = Rig(partitions=1, queue_bytes=1_000, heartbeat_interval_s=HEARTBEAT_S)

    def queued() -> list[float]:
        return [*map(rig.gauge, ("queue_records", "queue_bytes", "queue_dirty_keys"))]

    async with rig.running():
        rig.sync()
        await until(lambda: rig.status.complete)
        rig.sink.up.clear()
        rig.say(rig.store.put(b"a", b"1"))
        await asyncio.sleep(0.1)
        for number in range(100):
            rig.say(rig.store.put(b"%d" % number, b"1"))
        await until(lambda: all(queued()))
        assert judge(rig.status, rig.status.state_ms).level == "behind"
    rig.progress.state = "standby"
    assert judge(rig.status, rig.status.state_ms + 60_000).level == "standby"
    assert queued() == [0, 0, 0]


class VirtualWall(Rig):
    """Its wall clock goes with the loop's."""

    def _wall_ms(self) -> int:
        return wall_ms()


def wall_ms() -> int:
    return int(asyncio.get_running_loop().time() * 1000)


def ages(rig: Rig) -> list[float]:
    """The samples of the state's age, in seconds."""
    return [
        sample.value
        for family in rig.metrics.registry.collect()
        if family.name == "watchrelay_state_age_seconds"
        for sample in family.samples
    ]


@virtual
async def test_the_age_of_the_state_is_that_of_what_was_acknowledged_and_grows_after_the_end() -> (
    None
):
    rig = VirtualWall(partitions=2, heartbeat_interval_s=HEARTBEAT_S)
    async with rig.running():
        assert ages(rig) == [], "no marker is acknowledged"
        rig.relay.server_seen(wall_ms())
        rig.sync()
        await until(lambda: rig.status.complete)
        for _ in range(3):
            rig.relay.server_seen(wall_ms())
            await asyncio.sleep(HEARTBEAT_S)
        assert ages(rig)[0] <= 2 * HEARTBEAT_S
        rig.sink.up.clear()
        for _ in range(12):
            rig.relay.server_seen(wall_ms())
            await asyncio.sleep(HEARTBEAT_S)
        assert 120.0 <= ages(rig)[0] <= 140.0, "the API server is seen, and Kafka takes nothing"
    await asyncio.sleep(60.0)
    assert 180.0 <= ages(rig)[0] <= 200.0
    rig.metrics.forget("pods")
    assert ages(rig) == []
