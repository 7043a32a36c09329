"""A topic whose limit takes nothing of some records: what is withheld, and what waits. In virtual
time."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.support.extent import seeds
from tests.support.fakesink import FakeSink
from tests.support.relays import Rig, spec_of, until, virtual
from tests.support.troubles import trouble
from watchrelay.contract.wire import Batch, Receipt, WireRecord
from watchrelay.core.errors import RecordTooLarge
from watchrelay.model.streams import Format


class Strict(FakeSink):
    """Its limit counts all of a record: key, headers and value."""

    most_bytes: int | None = None
    bounded_by = "max.message.bytes"

    async def deliver(self, batch: Batch) -> Receipt:
        for index, record in enumerate(batch.records):
            if self.most_bytes is not None and size(record) > self.most_bytes:
                raise RecordTooLarge("too large", index=index, setting=self.bounded_by)
        return await super().deliver(batch)


def size(record: WireRecord) -> int:
    return (
        len(record.key)
        + len(record.value or b"")
        + sum(len(name) + len(value) for name, value in record.headers)
    )


def strict(most_bytes: int | None, **options: object) -> tuple[Rig, Strict]:
    sink = Strict()
    sink.most_bytes = most_bytes
    return Rig(partitions=1, sink=sink, **options), sink  # type: ignore[arg-type]  # options of Rig by name


def pod(name: str, filling: int = 0) -> bytes:
    return json.dumps({"kind": "Pod", "metadata": {"name": name, "uid": "u" * filling}}).encode()


def withheld(rig: Rig) -> float:
    return float(
        rig.metrics.counter("records_trimmed").labels(rig.spec.topic, "withheld")._value.get()
    )


def read(state: dict[bytes, bytes]) -> dict[bytes, object]:
    return {key: json.loads(value) for key, value in state.items()}


FITS = 1200
"""Every marker, and small objects."""


@pytest.mark.parametrize("format_", ["cloudevents", "structured", "debezium"])
@virtual
async def test_an_object_of_which_nothing_fits_is_withheld_and_the_others_and_the_digests_are_right(
    format_: Format,
) -> None:
    limit = FITS if format_ == "cloudevents" else 2 * FITS

    rig, _ = strict(limit, spec=dataclasses.replace(spec_of(partitions=1), format=format_))
    rig.store.put(b"shop/first", pod("first", 5000))
    rig.store.put(b"shop/other", pod("other"))
    async with rig.running():
        rig.sync()
        await until(lambda: rig.status.complete)
        rig.say(
            [
                *rig.store.put(b"shop/a", pod("a")),
                *rig.store.put(b"shop/b", pod("b", 5000)),
                *rig.store.put(b"shop/c", pod("c")),
            ]
        )
        await asyncio.sleep(30)
        assert set(rig.rebuilt()) == {b"shop/other", b"shop/a", b"shop/c"}
        assert rig.markers("heartbeat")[-1].count == 3
        rig.say(rig.store.put(b"shop/a", pod("a", 5000)))
        await asyncio.sleep(30)
        assert set(rig.rebuilt()) == {b"shop/other", b"shop/c"}, (
            "what the log held of it is deleted"
        )
        rig.say(
            [
                *rig.store.put(b"shop/a", pod("a", 1)),
                *rig.store.put(b"shop/b", pod("b", 1)),
                *rig.store.remove(b"shop/first"),
            ]
        )
        await asyncio.sleep(30)
        assert set(rig.rebuilt()) == {b"shop/other", b"shop/a", b"shop/b", b"shop/c"}
        rig.say([*rig.store.remove(b"shop/a"), *rig.store.remove(b"shop/b")])
        await asyncio.sleep(30)
    assert rig.rebuilt() == {b"shop/other": pod("other"), b"shop/c": pod("c")}
    assert all(replica.proven for replica in rig.replicas())
    assert withheld(rig) == 3
    rig.assert_hashes()
    verbs = [record.verb for record in rig.objects() if record.key == b"shop/b"]
    assert verbs[:1] == ["added"]


@virtual
async def test_a_snapshot_tries_again_what_was_withheld() -> None:
    rig, sink = strict(FITS)
    rig.store.put(b"shop/a", pod("a", 5000))
    async with rig.running():
        rig.sync()
        await until(lambda: rig.status.complete)
        assert rig.rebuilt() == {}
        sink.most_bytes = None
        rig.relay.request_snapshot("again")
        await asyncio.sleep(30)
    (record,) = rig.objects()
    assert (record.verb, record.key) == ("added", b"shop/a")
    assert rig.replicas()[0].proven
    rig.assert_hashes()


@virtual
async def test_a_limit_that_is_raised_is_noticed_by_the_next_snapshot() -> None:
    """As on a real topic: the sink refuses by the limit that was read last."""
    whole = {name: large(name) for name in ("withheld", "part", "later")}

    sink = Strict()
    topic_limit = sink.most_bytes = 3500

    async def read() -> int:
        sink.most_bytes = topic_limit
        return topic_limit

    rig = Rig(
        partitions=1,
        sink=sink,
        snapshot_interval_s=60,
        max_message_bytes=topic_limit,
        reread_limit=read,
    )
    long = b"shop/" + b"n" * 3000  # its key and the stub together are over the limit
    rig.store.put(long, whole["withheld"])
    rig.store.put(b"shop/part", whole["part"])
    async with rig.running():
        rig.sync()
        await asyncio.sleep(300)
        assert (withheld(rig) >= 4, list(rig.rebuilt())) == (True, [b"shop/part"])
        topic_limit = 1 << 20
        await asyncio.sleep(300)
        assert rig.rebuilt()[long] == whole["withheld"]
        rig.say(rig.store.put(b"shop/part", whole["later"]))
        await asyncio.sleep(300)
    assert rig.rebuilt() == {long: whole["withheld"], b"shop/part": whole["later"]}
    assert [record.verb for record in rig.objects() if record.key == long][:2] == [
        "added",
        "read",
    ]
    of_part = [
        (record.verb, record.trimmed) for record in rig.objects() if record.key == b"shop/part"
    ]
    assert list(dict.fromkeys(of_part)) == [
        ("added", "stub"),
        ("read", "stub"),
        ("modified", ""),
        ("read", ""),
    ]
    assert rig.replicas()[0].proven
    rig.assert_hashes()


def large(name: str) -> bytes:
    """An object that no compressor makes smaller than 4000 bytes, and whose stub is small."""
    return json.dumps(
        {
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": random.Random(name).randbytes(4000).hex(),
        }
    ).encode()


class OnePartition(Strict):
    """Takes nothing on one partition."""

    stuck = False

    async def deliver(self, batch: Batch) -> Receipt:
        if self.stuck and batch.partition == 0:
            raise RecordTooLarge(f"record {batch.records[0].key.decode()} is too large", index=0)
        return await super().deliver(batch)


@asynccontextmanager
async def blocked() -> AsyncIterator[tuple[Rig, OnePartition]]:
    """A running writer of two partitions, of which one waits for a larger limit."""
    sink = OnePartition()
    rig = Rig(partitions=2, sink=sink)
    async with rig.running():
        rig.sync()
        await until(lambda: rig.status.complete)
        sink.stuck = True
        await until(lambda: bool(rig.status.waits_for))
        yield rig, sink


@virtual
async def test_a_partition_that_waits_is_shown_until_it_goes_on_whatever_the_others_do(
    caplog: pytest.LogCaptureFixture,
) -> None:

    with caplog.at_level(logging.ERROR):
        async with blocked() as (rig, sink):
            assert rig.status.waits_for.startswith("partition 0 is blocked: record ")
            for _ in range(600):
                await asyncio.sleep(1)
                assert rig.status.waits_for
            sink.stuck = False
            await asyncio.sleep(60)
            assert rig.status.waits_for == ""
    (line,) = caplog.records
    assert line.__dict__["partition"] == 0


@virtual
async def test_another_partition_that_is_acknowledged_again_hides_no_blocked_one() -> None:
    async with blocked() as (rig, _):
        rig.status.failed("records", trouble("no acknowledgement from Kafka for 10 s"))
        assert rig.status.waits_for.startswith("partition 0 is blocked")
        rig.status.recovered("records")  # as the sink does
        assert rig.status.waits_for.startswith("partition 0 is blocked")


@virtual
async def test_a_writer_that_ends_leaves_no_word_of_a_partition_that_was_blocked() -> None:
    async with blocked() as (rig, _):
        assert rig.status.waits_for.startswith("partition 0 is blocked")
    assert rig.status.waits_for == ""


@virtual
async def test_an_object_whose_key_alone_does_not_fit_comes_and_goes_and_holds_up_nothing() -> None:
    rig, _ = strict(FITS)
    long = b"shop/" + b"x" * 5_000_000
    async with rig.running():
        rig.sync()
        await until(lambda: rig.status.complete)
        for value in (pod("x"), pod("x", 5), pod("x", 5000)):
            rig.say(rig.store.put(long, value))
            await asyncio.sleep(1)
        rig.say(rig.store.put(long, pod("x"), uid="another"))
        rig.say(rig.store.remove(long))
        rig.say(rig.store.put(b"shop/a", pod("a")))
        await asyncio.sleep(30)
        assert await rig.relay.drain(10.0)
    assert rig.rebuilt() == {b"shop/a": pod("a")}
    assert rig.replicas()[0].proven


@virtual
async def test_a_healed_null_that_does_not_fit_is_named_and_holds_up_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:

    with caplog.at_level(logging.ERROR):
        rig, _ = strict(FITS)
        stale = b"shop/" + b"x" * 3000
        async with rig.running():
            rig.sync()
            await until(lambda: rig.status.complete)
            rig.relay._repairs.found[stale, 0] = None
            rig.relay._repair_keys()
            rig.say(rig.store.put(b"shop/a", pod("a")))
            await asyncio.sleep(30)
        assert rig.rebuilt() == {b"shop/a": pod("a")}
        assert withheld(rig) == 1
    (line,) = [record for record in caplog.records if "delete not published" in record.message]
    assert "shop/xxx" in vars(line)["object"]


@pytest.mark.parametrize("conflated", [False, True])
@virtual
async def test_a_stale_record_of_a_withheld_object_is_followed_by_a_null(
    *, conflated: bool
) -> None:
    rig, sink = strict(FITS, queue_bytes=4000)
    rig.store.put(b"shop/a", pod("a", 5000))
    async with rig.running():
        rig.sync()
        await until(lambda: rig.status.complete)
        sink.up.clear()
        rig.say(rig.store.put(b"shop/b", pod("b")))
        await asyncio.sleep(30)
        rig.relay._repairs.found[b"shop/a", 0] = None
        rig.relay._repair_keys()
        if conflated:
            for number in range(20):
                rig.say(rig.store.put(f"shop/c{number}".encode(), pod("c")))
            assert rig.relay._queues.conflating
        sink.up.set()
        await asyncio.sleep(30)
    (null,) = [record for record in rig.objects() if record.key == b"shop/a"]
    assert (null.verb, null.reason, null.value) == ("deleted", "healed", None)
    assert len(rig.rebuilt()) == (21 if conflated else 1)
    assert all(replica.proven for replica in rig.replicas())


@pytest.mark.parametrize("setting", ["max.message.bytes", "segment.bytes"])
@virtual
async def test_a_limit_below_every_marker_makes_the_stream_wait_and_say_why_until_it_is_raised(
    caplog: pytest.LogCaptureFixture, setting: str
) -> None:

    with caplog.at_level(logging.ERROR):
        rig, sink = strict(100)
        sink.bounded_by = setting
        async with asyncio.TaskGroup() as tasks:
            claim = tasks.create_task(rig.relay.claim(rig.highest_epoch))
            await asyncio.sleep(600)
            assert not claim.done()
            assert f"raise {setting} of topic" in rig.status.waits_for
            sink.most_bytes = None
            await claim
            assert rig.status.waits_for == ""
            running = tasks.create_task(rig.relay.run())
            rig.sync()
            await until(lambda: rig.status.complete)
            sink.most_bytes = 100
            rig.say(rig.store.put(b"shop/a", pod("a")))
            await asyncio.sleep(600)
            assert rig.status.waits_for
            sink.most_bytes = None
            await asyncio.sleep(60)
            running.cancel()
        assert rig.status.waits_for == ""
        assert rig.rebuilt() in ({b"shop/a": pod("a")}, {})
        assert rig.replicas()[0].proven
    assert [
        record.message for record in caplog.records if "partition blocked" in record.message
    ] != []
    assert len(caplog.records) < 10


@virtual
async def test_each_object_that_is_published_in_part_is_one_line_and_its_updates_are_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:

    with caplog.at_level(logging.WARNING):
        rig = Rig(partitions=1)
        rig.sink.limit_bytes = 100
        async with rig.running():
            rig.sync()
            await until(lambda: rig.status.complete)
            for number in range(300):
                large = json.dumps(
                    {"kind": "Pod", "metadata": {"name": "a"}, "spec": "s" * (200 + number)}
                ).encode()
                rig.say(rig.store.put(b"shop/a", large))
                await asyncio.sleep(0.1)
            await asyncio.sleep(30)
        assert len([record for record in rig.objects() if record.trimmed]) == 300
        assert (
            rig.metrics.counter("records_trimmed").labels(rig.spec.topic, "stub")._value.get()
            >= 300
        )
    lines = [record for record in caplog.records if "too large" in record.message]
    assert 1 <= len(lines) <= 4


@virtual
async def test_nothing_is_remembered_of_objects_that_are_gone() -> None:
    rig, sink = strict(FITS)
    sink.limit_bytes = 100
    async with rig.running():
        rig.sync()
        await until(lambda: rig.status.complete)
        for number in range(50):
            name = f"p{number}"
            large = json.dumps(
                {"kind": "Pod", "metadata": {"name": name}, "spec": "s" * 300}
            ).encode()
            rig.say(
                rig.store.put(b"shop/" + name.encode(), large if number % 2 else pod(name, 5000))
            )
        await asyncio.sleep(30)
        queues = rig.relay._queues
        assert len(queues.trimmed_hashes) >= 25
        assert len(queues.uncounted_keys) == 25
        for number in range(50):
            rig.say(rig.store.remove(b"shop/p%d" % number))
        rig.relay.request_snapshot("again")
        await asyncio.sleep(30)
        assert (queues.trimmed_hashes, queues.uncounted_keys, queues.trimmed_before) == (
            {},
            set(),
            {},
        )
    assert rig.rebuilt() == {}
    assert rig.replicas()[0].proven


@pytest.mark.parametrize("seed", range(seeds(40)))
@virtual
async def test_whatever_changes_while_the_limit_does_readers_prove_the_state(seed: int) -> None:
    rng = random.Random(seed)

    rig, sink = strict(FITS, queue_bytes=rng.choice((8_000, 64 << 20)))
    async with rig.running():
        rig.sync()
        await until(lambda: rig.status.complete)
        for _ in range(200):
            key = b"shop/%d" % rng.randrange(6)
            if rng.random() < 0.3 and key in rig.store.entries:
                rig.say(rig.store.remove(key))
            else:
                filling = rng.choice((0, 0, 3000, 6000)) + rng.randrange(9)
                rig.say(rig.store.put(key, pod("x", filling), uid=rng.choice("uv")))
            if rng.random() < 0.05:
                sink.most_bytes = rng.choice((FITS, FITS, 5000))
            if rng.random() < 0.05:
                rig.relay.request_snapshot("r")
            if rng.random() < 0.3:
                await asyncio.sleep(rng.choice((0.0, 0.01, 3.0)))
        sink.most_bytes = None
        await asyncio.sleep(60)
        rig.relay.request_snapshot("last")
        await asyncio.sleep(60)
    assert read(rig.rebuilt()) == read(rig.store.values())
    assert all(replica.proven for replica in rig.replicas())
    rig.assert_hashes()


@virtual
async def test_a_broker_that_is_slow_to_show_its_limit_delays_no_heartbeat() -> None:
    async def read() -> int:
        await asyncio.sleep(100)
        return 3500

    rig = Rig(
        partitions=1,
        sink=Strict(),
        snapshot_interval_s=60,
        max_message_bytes=3500,
        reread_limit=read,
    )
    rig.store.put(b"shop/part", large("part"))
    async with rig.running():
        rig.sync()
        await asyncio.sleep(150)
        assert len(rig.markers("heartbeat")) >= 14
        assert len(rig.markers("begin")) == 1
        await asyncio.sleep(60)
        assert len(rig.markers("begin")) == 2
