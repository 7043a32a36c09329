"""Records of others on the topics of a daemon: each is refused alone, and no stream but its own
waits."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.anyclient import write
from tests.support.extent import few
from tests.support.topicreader import read_control
from tests.unit.daemon.conftest import World, running, until
from watchrelay.admin.retire import StillWritten, refuse_written, retire_stream, spec_of
from watchrelay.admin.snapshot_request import ReadOnlySink, read_control_topic
from watchrelay.consumer import TopicReader
from watchrelay.consumer.audit import AuditProblem
from watchrelay.consumer.audit_run import open_auditor
from watchrelay.contract.control import EPOCH_BASE_MAX
from watchrelay.contract.records import EPOCH_MAX, Marker, encoder_for
from watchrelay.core import clock
from watchrelay.kafka.control_topic import ControlTopic
from watchrelay.plan.kafka import kafka_connection

DESCRIBED: dict[str, object] = {
    "topic": "k8s.test.core.pods",
    "partitions": 1,
    "keyFormat": "plain",
    "resource": "pods/v1",
    "namespace": None,
    "selectors": {"labelSelector": "", "fieldSelector": "", "namespaces": []},
    "configHash": "0" * 16,
    "epochBase": 1,
}
ODD: dict[str, list[object]] = {
    "topic": [["k8s.test.core.pods"], {}, 7, "", "a b", "x" * 250, None],
    "partitions": ["1", 1.5, 0, -1, True, 10**30, [1]],
    "keyFormat": [["plain"], {}, 1, "other", None],
    "resource": [["pods/v1"], {}, 7, "", "x" * 5000],
    "namespace": [7, [], {}],
    "selectors": [7, [], "x", {"namespaces": 7}, {"namespaces": [["shop"]]}, {"namespaces": {"shop": 1}}, {"labelSelector": []}],
    "configHash": [7, [], {}],
    "epochBase": ["1", True, -1, 1.5, None, [1], {}],
}  # fmt: skip
CASES = [(field, value) for field, values in ODD.items() for value in values]


def put(world: World, key: str | bytes, value: object, topic: str = "k8s.test.control") -> None:
    """A record of somebody else."""
    write(
        world.kafka.bootstrap,
        topic,
        key,
        value if value is None or isinstance(value, bytes) else json.dumps(value),
        partition=0,
    )


def logged(caplog: pytest.LogCaptureFixture, message: str) -> list[dict[str, Any]]:
    return [vars(record) for record in caplog.records if record.getMessage() == message]


async def test_descriptions_of_odd_types_end_no_relay_and_hold_up_no_stream(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    for resource in ("pods", "configmaps"):
        world.make_topic(f"core.{resource}")
    for number, (field, value) in enumerate(CASES):
        put(world, f"stream/other-{number}", {**DESCRIBED, field: value})
        put(world, "stream/pods", {**DESCRIBED, field: value})
    with caplog.at_level(logging.WARNING, "watchrelay"):
        async with running(world.settings("pods", "configmaps")) as relay:
            await relay.ready()
            await until(
                "both are whole",
                lambda: all(relay.row(each).complete for each in ("pods", "configmaps")),
            )
            relay.daemon.stop()
            assert await relay.ended() == 0
    refused = logged(caplog, "control record ignored")
    for number, (field, _) in enumerate(CASES):
        (line,) = [line for line in refused if line["key"] == f"stream/other-{number}"]
        assert (line["topic"], line["partition"], line["offset"]) == (
            "k8s.test.control",
            0,
            2 * number,
        )
        assert f"field {field}" in line["error"]
        assert line["hint"]
    assert len([line for line in refused if line["key"] == "stream/pods"]) == 1, (
        "the same key again is not named again"
    )


@pytest.mark.parametrize(
    "base", few([EPOCH_BASE_MAX + 1, 10**30, EPOCH_MAX - 1, EPOCH_MAX, EPOCH_MAX + 1], 2)
)
async def test_an_epoch_base_that_is_too_high_holds_up_its_stream_alone_until_the_record_is_deleted(
    world: World, base: int
) -> None:
    for resource in ("pods", "configmaps"):
        world.make_topic(f"core.{resource}")
    put(world, "stream/pods", {**DESCRIBED, "epochBase": base})
    async with running(world.settings("pods", "configmaps")) as relay:
        await relay.ready()
        await until("the other is whole", lambda: relay.row("configmaps").complete)
        row = relay.row("pods")
        assert (row.state, row.complete, row.epoch) == ("waiting", False, None)
        assert f"epochBase {base} exceeds the maximum {EPOCH_BASE_MAX}" in row.waits_for
        assert "record stream/pods of topic k8s.test.control" in row.waits_for
        assert "watchrelay retire pods" in row.waits_for
        _, body = await relay.get("/readyz")
        assert body["streams"]["pods"] == {"state": "waiting", "reason": row.waits_for}
        put(world, "stream/pods", None)
        await until("it goes on", lambda: row.complete)
        assert row.waits_for == ""
        assert 0 < row.epoch < EPOCH_BASE_MAX
    async with running(world.settings("pods", "configmaps")) as again:
        await again.ready()
        assert again.row("pods").complete, "the record that was deleted counts again"


async def test_a_stream_whose_epoch_base_is_too_high_can_be_retired(world: World) -> None:
    world.make_topic("core.pods")
    world.make_topic("core.configmaps")
    put(world, "stream/pods", {**DESCRIBED, "epochBase": EPOCH_MAX - 1})
    settings = world.settings("configmaps")
    retired = await retire_stream(settings, "pods")
    assert (retired.topic, retired.deletes) == ("k8s.test.core.pods", 0)
    async with running(world.settings("pods", "configmaps")) as relay:
        await relay.ready()
        assert relay.row("pods").complete


def claim(instance: object, **more: object) -> dict[str, object]:
    return {"instance": instance, **more}


def since(snapshot: object, begin: object) -> dict[str, object]:
    """A claim's `from`."""
    return {"from": {"snapshot": snapshot, "begin": begin}}


CLAIMS: list[object] = [
    claim("a", **{"from": 7}),
    claim("b", **since("1-1", 7)),
    claim("c", **since([], [0])),
    claim("d", **since("1-1", [-1])),
    claim("e", **since("1-1", [0, 0, 0])),
    claim("f", **since("1-1", [2**52])),
    claim("g", holder=["h"]),
    *({}, claim(""), claim(["i"]), claim("x" * 9999), [], b"{", b'{"instance":"\xff"}', b'{"instance":"a","from":' + b"[" * 5000),
]  # fmt: skip
INDEXES: list[object] = [
    {"snapshot": "1-1", "epoch": {}, "partitions": 7, "requests": 7, "time": 7, "count": "x", "rv": []},
    {"partitions": [{"partition": {}, "begin": 0}]},
    {"requests": [[]]},
    {"requests": ["x" * 5000]},
    {"time": "noon"},
    {"time": "9999-12-31T23:59:59Z", "partitions": [{"partition": 0, "begin": 2**60}]},
]  # fmt: skip


@pytest.mark.parametrize("last", few([1, 4, 5], 1))
async def test_claims_and_index_records_of_odd_content_end_no_relay(
    world: World, last: int
) -> None:
    world.make_topic("core.pods")
    put(world, "stream/pods", DESCRIBED)
    for claim in [*CLAIMS[last + 1 :], *CLAIMS[: last + 1]]:
        put(world, "claim/pods", claim)
    for index in INDEXES:
        put(world, "snapshot/pods", index)
    async with running(world.settings("pods")) as relay:
        await relay.ready()
        assert relay.row("pods").complete
        relay.daemon.stop()
        assert await relay.ended() == 0


async def test_a_starting_point_of_a_topic_that_was_recreated_is_not_claimed_again(
    world: World,
) -> None:
    world.make_topic("core.pods")
    put(world, "stream/pods", DESCRIBED)
    put(world, "claim/pods", {"instance": "a", "from": {"snapshot": "1-1", "begin": [500]}})
    async with running(world.settings("pods")) as relay:
        await relay.ready()
        assert relay.row("pods").complete
        claims = [
            value
            for _, key, value in read_control(world.kafka.bootstrap, "k8s.test.control")
            if key == "claim/pods"
        ]
        assert claims[-1]["from"] is None


async def audited(world: World) -> tuple[int, list[AuditProblem]]:
    """The end of the topic of pods, and what `verify` finds in it."""
    connection = kafka_connection(world.settings("pods"), client_id="test")
    async with open_auditor(connection, control_topic="k8s.test.control") as auditor:
        await auditor.read_to_end()
        ((audit, _, end),) = auditor.rows()
    return end, audit.problems


@pytest.mark.parametrize("beyond", few([0, 500, 1, 2], 2))
async def test_a_starting_point_without_a_record_is_that_of_no_claim_and_of_no_reader(
    world: World, beyond: int
) -> None:
    """As it remains where the log has lost its newest records, the begin of a snapshot among
    them: its first missing offset is the end of the log."""
    world.make_topic("core.pods")
    world.cluster.open_shop()
    settings = world.settings("pods")
    async with running(settings) as relay:
        await relay.ready()
        relay.daemon.stop()
        assert await relay.ended() == 0
    end, problems = await audited(world)
    assert problems == []
    put(world, "claim/pods", claim("lost", **since("9-1", [end + beyond])))
    assert await audited(world) == (end, [])
    async with running(settings) as relay:
        await relay.ready()
        relay.daemon.stop()
        assert await relay.ended() == 0
    claims = [
        value
        for _, key, value in read_control(world.kafka.bootstrap, "k8s.test.control")
        if key == "claim/pods"
    ]
    assert claims[-1]["from"] is None
    assert (await audited(world))[1] == []


@pytest.mark.parametrize("epoch", few([10**6, EPOCH_BASE_MAX, EPOCH_MAX], 1))
async def test_a_record_of_an_epoch_that_nobody_claimed_holds_up_its_stream_alone(
    world: World, epoch: int
) -> None:
    for resource in ("pods", "configmaps"):
        world.make_topic(f"core.{resource}")
    put(world, "stream/pods", DESCRIBED)
    spec = spec_of(world.settings("configmaps"), "pods", DESCRIBED)
    odd = encoder_for(spec, epoch).marker(0, 1, 1_767_323_045_000, Marker("heartbeat", "5"))
    write(world.kafka.bootstrap, spec.topic, odd.key, None, headers=dict(odd.headers), partition=0)
    async with running(world.settings("pods", "configmaps")) as relay:
        await relay.ready()
        await until("the other is whole", lambda: relay.row("configmaps").complete)
        row = relay.row("pods")
        assert (row.state, row.complete) == ("waiting", False)
        assert f"epoch {epoch}" in row.waits_for
        assert (
            "name another topic" in row.waits_for
            or "delete the record stream/pods" in row.waits_for
        )
        assert not relay.task.done()


async def test_a_reader_begins_at_the_start_where_the_claim_names_an_offset_beyond_the_end(
    world: World,
) -> None:
    world.make_topic("core.pods")
    async with running(world.settings("pods")) as relay:
        await relay.ready()
        relay.daemon.stop()
        assert await relay.ended() == 0
    put(world, "claim/pods", {"instance": "a", "from": {"snapshot": "1-1", "begin": [500]}})
    for number, (field, value) in enumerate(CASES):
        put(world, f"stream/other-{number}", {**DESCRIBED, field: value})
    async with TopicReader(
        world.kafka.bootstrap, control_topic="k8s.test.control", until_end=True
    ) as reader:
        await reader.ready()
        assert reader.streams == ["pods"]
        foreign = [problem for problem in reader.problems if problem.kind == "foreign"]
    assert len(foreign) == len({problem.offset for problem in foreign})
    assert all("field " in problem.detail for problem in foreign), foreign


def mark(world: World, marker: Marker, sequence: int, age_s: int) -> None:
    """Write a marker of epoch 7 of the stream pods."""
    spec = spec_of(world.settings("configmaps"), "pods", DESCRIBED)
    sent = encoder_for(spec, 7).marker(0, sequence, 0, marker)
    write(
        world.kafka.bootstrap,
        spec.topic,
        sent.key,
        None,
        headers=dict(sent.headers),
        partition=0,
        at_ms=clock.wall_ms() - age_s * 1000,
    )


async def refuse(
    world: World,
    interval_s: float,
    watching: Callable[[str, float], None],
    session_s: float | None = None,
) -> None:
    settings = world.settings("configmaps")
    connection = kafka_connection(settings, client_id="test")
    control_topic = ControlTopic(connection, "k8s.test.control", ReadOnlySink())
    async with read_control_topic(control_topic) as control:
        await refuse_written(
            spec_of(settings, "pods", DESCRIBED),
            connection,
            control,
            interval_s=interval_s,
            session_s=session_s,
            watching=watching,
        )


async def test_a_relay_whose_clock_is_behind_is_found_before_its_stream_is_retired(
    world: World,
) -> None:
    world.make_topic("core.pods")
    put(world, "stream/pods", DESCRIBED)
    heartbeat = Marker("heartbeat", "5")
    mark(world, heartbeat, 1, age_s=3600)
    with pytest.raises(StillWritten, match="epoch 7"):
        await refuse(world, 10.0, lambda _topic, _s: mark(world, heartbeat, 2, age_s=3600))


async def test_a_replica_that_may_take_the_stream_over_is_waited_for(world: World) -> None:
    world.make_topic("core.pods")
    put(world, "stream/pods", DESCRIBED)
    heartbeat = Marker("heartbeat", "5")
    mark(world, heartbeat, 1, age_s=3600)
    waits = []

    def watching(_topic: str, wait_s: float) -> None:
        waits.append(wait_s)
        mark(world, heartbeat, 2, age_s=0)

    with pytest.raises(StillWritten, match="from the config of every replica"):
        await refuse(world, 1.0, watching, session_s=6.0)
    assert waits == [11.0]


async def test_a_record_that_takes_a_sequence_of_the_running_epoch_costs_an_epoch_and_readers_are_right_again(
    world: World,
) -> None:
    world.make_topic("core.pods")
    async with running(world.settings("pods", heartbeatInterval="1s")) as relay:
        await relay.ready()
        row, spec = relay.row("pods"), spec_of(world.settings("configmaps"), "pods", DESCRIBED)
        epoch = row.epoch
        odd = encoder_for(spec, epoch).marker(0, 10**15, 0, Marker("heartbeat", "5"))
        write(
            world.kafka.bootstrap, spec.topic, odd.key, None, headers=dict(odd.headers), partition=0
        )
        await until("another epoch was claimed", lambda: row.epoch > epoch)
        await until("it is whole", lambda: row.complete)
        assert not relay.task.done()
    async with TopicReader(
        world.kafka.bootstrap, control_topic="k8s.test.control", until_end=True
    ) as reader:
        await reader.ready()
