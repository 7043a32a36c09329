"""Replicas in a group of real Kafka: who dies, freezes, leaves and comes back, and what others see
of the group."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.errors import InconsistentGroupProtocolError

from tests.support.groupmember import STREAMS, GroupProcess
from tests.support.kafkabroker import KafkaBroker, on_both
from tests.support.process import wait_until
from watchrelay.core.errors import SinkMisconfigured
from watchrelay.kafka.client.admin import make_admin
from watchrelay.kafka.client.brokers import Brokers
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.client.coordinator import DescribedGroup
from watchrelay.replicas.group import PROTOCOL_TYPE, check_group

pytestmark = pytest.mark.real

SESSION_S = 6.0


class Replicas:
    """Processes in a group of the test's own."""

    def __init__(self, broker: KafkaBroker, directory: Path, stack: ExitStack) -> None:
        self.group = f"k8s.{uuid.uuid4().hex}.relays"
        self.broker, self._directory, self._stack = broker, directory, stack

    def start(self, name: str, *, instance: str = "", session_s: float = SESSION_S) -> GroupProcess:
        return self._stack.enter_context(
            GroupProcess(
                self._directory,
                self.broker.bootstrap,
                self.group,
                name,
                session_s=session_s,
                instance=instance,
            )
        )

    def three(self, *, static: bool = False) -> list[GroupProcess]:
        started = [self.start(name, instance=name if static else "") for name in "abc"]
        self.await_shares(*started)
        for each in started:
            each.await_event("certain")
        return started

    def await_shares(self, *replicas: GroupProcess, deadline_s: float = 60.0) -> None:
        """Return once these have all streams between them, as many each, in one generation."""

        def shared() -> bool:
            owned = sorted(stream for each in replicas for stream in each.own)
            newest = {each.of("assigned")[-1]["generation"] for each in replicas if each.own}
            even = {len(each.own) for each in replicas} == {len(STREAMS) // len(replicas)}
            return owned == sorted(STREAMS) and even and len(newest) == 1

        wait_until("the streams are shared", shared, deadline_s=deadline_s)

    @staticmethod
    def await_rest(*replicas: GroupProcess) -> None:
        """Return once none of these was assigned anything for longer than a rebalance takes."""
        wait_until(
            "the group is at rest",
            lambda: time.time() - max(each.events[-1]["at_s"] for each in replicas) > 2.5,
        )


@pytest.fixture
def replicas(kafka_broker: KafkaBroker, tmp_path: Path) -> Iterator[Replicas]:
    with ExitStack() as stack:
        yield Replicas(kafka_broker, tmp_path, stack)


@on_both
def test_the_streams_of_a_killed_replica_are_assigned_when_its_session_ends(
    replicas: Replicas,
) -> None:
    a, b, c = replicas.three()
    counts = {each.name: len(each.of("assigned")) for each in (b, c)}
    kept = {each.name: set(each.own) for each in (b, c)}
    a.process.kill()
    killed_s = time.time()
    replicas.await_shares(b, c)
    for each in (b, c):
        after_s = each.of("assigned")[counts[each.name]]["at_s"] - killed_s
        assert SESSION_S - 1.5 <= after_s <= SESSION_S + 3.0
        assert kept[each.name] <= set(each.own)
        assert not each.of("lost")


@on_both
def test_a_frozen_replica_is_in_doubt_when_it_wakes_and_gets_a_share_again(
    replicas: Replicas,
) -> None:
    a, b, c = replicas.three()
    a.process.pause()
    replicas.await_shares(b, c)
    a.process.resume()
    replicas.await_shares(a, b, c)
    lost = a.await_event("lost")
    doubtful, certain = a.await_event("doubtful"), a.await_event("certain", 2)
    assert doubtful["at_s"] <= lost["at_s"] + 0.2
    assert certain["at_s"] >= lost["at_s"]
    assert certain["id"] != a.of("certain")[0]["id"]
    assert not b.of("doubtful")


@on_both
def test_a_replica_that_leaves_is_replaced_at_once(replicas: Replicas) -> None:
    a, b, c = replicas.three()
    assert a.process.alive
    began_s = time.time()
    a.process.stop()
    a.await_event("left")
    replicas.await_shares(b, c, deadline_s=SESSION_S - 2.0)
    assert a.of("left")[0]["at_s"] - began_s < 2.0


@on_both
def test_a_static_replica_that_restarts_has_its_streams_back_and_no_other_notices(
    replicas: Replicas,
) -> None:
    a, b, c = replicas.three(static=True)
    replicas.await_rest(a, b, c)
    own, counts = sorted(a.own), [len(each.of("assigned")) for each in (b, c)]
    losses = [len(each.of("lost")) for each in (b, c)]
    generation = a.of("assigned")[-1]["generation"]
    a.process.kill()
    again = replicas.start("a", instance="a")
    first = again.await_event("assigned")
    assert (first["generation"], sorted(first["own"])) == (generation, own)
    replicas.await_shares(again, b, c)
    assert [len(each.of("lost")) for each in (b, c)] == losses
    assert all(
        len(each.of("assigned")) <= count + 1 for each, count in zip((b, c), counts, strict=True)
    ), "one assignment more, with what the replica reports"


@on_both
def test_two_processes_of_one_instance_both_go_on(replicas: Replicas) -> None:
    a, b = replicas.start("a", instance="same"), replicas.start("b", instance="same")
    wait_until(
        "one of them gives the name up",
        lambda: any("sharding.instance" in each.process.tail(200) for each in (a, b)),
        deadline_s=60.0,
    )
    replicas.await_shares(a, b, deadline_s=60.0)
    assert max(len(each.of("lost")) for each in (a, b)) <= 3


@on_both
def test_a_session_that_the_broker_refuses_is_reported_with_the_cure(replicas: Replicas) -> None:
    hasty = replicas.start("hasty", session_s=3.0)
    problem = hasty.await_event("problem")
    assert "sharding.sessionTimeout" in problem["message"]
    assert "group.min.session.timeout.ms" in problem["message"]
    assert hasty.process.alive
    assert not hasty.of("assigned")


@on_both
def test_the_group_is_seen_by_others_and_closed_to_ordinary_consumers(replicas: Replicas) -> None:
    replicas.three()
    connection = KafkaConnection(bootstrap_servers=(replicas.broker.bootstrap,))

    async def seen() -> tuple[DescribedGroup, set[tuple[str, str]]]:
        brokers, admin = Brokers(connection), make_admin(connection.arguments())
        await admin.start()
        coordinator = await brokers.coordinator(replicas.group)
        try:
            return await coordinator.describe(), set(await admin.list_consumer_groups())
        finally:
            coordinator.close()
            brokers.close()
            await admin.close()

    described, listed = asyncio.run(seen())
    assert described == DescribedGroup(0, PROTOCOL_TYPE, 3)
    assert (replicas.group, PROTOCOL_TYPE) in listed
    assert asyncio.run(check_group(connection, replicas.group, session_s=6.0)) == 3

    replicas.broker.create_topic(replicas.group)

    async def consume() -> None:
        consumer = AIOKafkaConsumer(
            replicas.group, bootstrap_servers=replicas.broker.bootstrap, group_id=replicas.group
        )
        try:
            async with asyncio.timeout(60.0):
                await consumer.start()
        finally:
            await consumer.stop()

    with pytest.raises(InconsistentGroupProtocolError):
        asyncio.run(consume())


@on_both
async def test_a_name_that_consumers_have_taken_is_reported_with_the_cure(
    replicas: Replicas,
) -> None:
    replicas.broker.create_topic(replicas.group)
    connection = KafkaConnection(bootstrap_servers=(replicas.broker.bootstrap,))
    assert await check_group(connection, replicas.group, session_s=6.0) == 0
    async with AIOKafkaConsumer(
        replicas.group, bootstrap_servers=replicas.broker.bootstrap, group_id=replicas.group
    ):
        with pytest.raises(SinkMisconfigured, match="another kind of program"):
            await check_group(connection, replicas.group, session_s=6.0)
        late = replicas.start("late")
        problem = await asyncio.to_thread(late.await_event, "problem")
        assert "another kind of program" in problem["message"]
    # it is gone, and the name is free
    await asyncio.to_thread(late.await_event, "assigned", deadline_s=60.0)
    cleared = await asyncio.to_thread(late.await_event, "problem", 2)
    assert cleared["message"] == ""


@on_both
def test_members_are_the_same_after_a_restart_of_the_coordinator(
    kafka_broker: KafkaBroker, replicas: Replicas
) -> None:
    """Also when it was away for longer than a session: it begins a new one for each member."""
    a, b, c = started = replicas.three()
    replicas.await_rest(a, b, c)
    before = [(each.own, len(each.of("assigned"))) for each in started]
    kafka_broker.kill()
    for each in started:
        each.await_event("doubtful")
    kafka_broker.restart()
    for each in started:
        each.await_event("certain", 2, deadline_s=60.0)
    assert [(each.own, len(each.of("assigned"))) for each in started] == before
    assert not any(each.of("lost") for each in started)
