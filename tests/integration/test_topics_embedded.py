"""Topics, and the control topic, on an embedded Kafka that is lost or refuses."""

import asyncio
from collections.abc import Iterator

import pytest

from tests.support.sinkparts import QUICK, running_sink, until
from watchrelay.contract.wire import Batch, WireRecord
from watchrelay.core.errors import SinkUnavailable, TopicRefused
from watchrelay.demo.kafka import EmbeddedKafka
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.control_topic import ControlTopic
from watchrelay.kafka.log_scan import highest_epoch
from watchrelay.kafka.topics import Topics, TopicSpec
from watchrelay.observe.status import StatusRegistry


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka.start() as broker:
        broker.create_topic("t", 3)
        broker.create_topic("control", 1)
        yield broker


async def test_brokers_that_do_not_tell_configs_are_warned_of(kafka: EmbeddedKafka) -> None:
    facts = await Topics(KafkaConnection(bootstrap_servers=(kafka.bootstrap,))).ensure_topic(
        TopicSpec(name="t", partitions=3)
    )
    assert (facts.partitions, facts.replication_factor, facts.checked) == (3, 1, False)
    assert "could not be checked" in facts.findings[0].why


async def test_a_topic_that_cannot_be_created_is_refused_with_the_command_that_does_it(
    kafka: EmbeddedKafka,
) -> None:
    topics = Topics(KafkaConnection(bootstrap_servers=(kafka.bootstrap,)))
    with pytest.raises(
        TopicRefused, match=r"kafka-topics.sh .* --create --topic absent --partitions 2"
    ):
        await topics.ensure_topic(TopicSpec(name="absent", partitions=2, replication_factor=1))
    with pytest.raises(
        TopicRefused,
        match=r"replicationFactor is 3, the cluster has 1 broker running; start the others",
    ):
        await topics.ensure_topic(TopicSpec(name="absent", partitions=2, replication_factor=3))


async def test_topics_of_a_cluster_that_is_away_are_unavailable_not_refused() -> None:
    with pytest.raises(SinkUnavailable, match="Connect call failed"):
        await Topics(KafkaConnection(bootstrap_servers=("127.0.0.1:1",))).ensure_topic(
            TopicSpec(name="t")
        )


# ---- control -------------------------------------------------------------------------------------


async def none() -> int:
    return 0


async def test_each_claim_opens_a_higher_epoch_and_the_former_owner_sees_it(
    kafka: EmbeddedKafka,
) -> None:
    described: dict[str, object] = {"topic": "t", "partitions": 3}
    async with running_sink(kafka.bootstrap, QUICK) as running:
        first = ControlTopic(running.connection, "control", running.sink, statuses=StatusRegistry())
        second = ControlTopic(running.connection, "control", running.sink, holder="other-1")
        loop = asyncio.get_running_loop()
        tails = [loop.create_task(control.run(), name="control") for control in (first, second)]
        try:
            older = await first.claim("pods", described, starting_point=None, highest_epoch=none)
            assert not first.superseded("pods", older)
            newer = await second.claim(
                "pods", {**described, "configHash": "x"}, starting_point=None, highest_epoch=none
            )
            assert newer > older
            await until(lambda: first.superseded("pods", older))
            assert not second.superseded("pods", newer)
            assert first.holder_of("pods") == "other-1"
            await until(
                lambda: second.described("pods") == {**described, "configHash": "x", "epochBase": 1}
            )
            await second.write("snapshot", "pods", {"snapshot": f"{newer}-1"})
            await until(lambda: second.index("pods") == {"snapshot": f"{newer}-1"})
            await second.write("snapshot", "pods", None)
            await until(lambda: second.index("pods") is None)
        finally:
            for tail in tails:
                tail.cancel()
            await asyncio.wait(tails)


async def test_a_lost_control_topic_does_not_make_epochs_go_down(kafka: EmbeddedKafka) -> None:
    async def highest() -> int:
        return await highest_epoch(running.connection, "t", "pods")

    async with running_sink(kafka.bootstrap) as running:
        mine = [("ce_wrstream", b"pods"), ("ce_wrepoch", b"77")]
        others = [("ce_wrstream", b"nodes"), ("ce_wrepoch", b"990")]
        await running.sink.deliver(
            Batch("t", 1, [WireRecord(b"a/b", b"{}", mine), WireRecord(b"/n", b"{}", others)])
        )
        assert await highest_epoch(running.connection, "t", "jobs") == 0
        control = ControlTopic(running.connection, "control", running.sink)
        tail = asyncio.get_running_loop().create_task(control.run(), name="control")
        assert (
            await control.claim(
                "pods", {"topic": "t", "partitions": 3}, starting_point=None, highest_epoch=highest
            )
            > 77
        )
        tail.cancel()
        await asyncio.wait([tail])


async def test_the_control_topic_is_read_on_after_an_outage_and_rubbish_on_it_is_passed_over(
    kafka: EmbeddedKafka, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_sink(kafka.bootstrap) as running:
        control = ControlTopic(running.connection, "control", running.sink)
        tail = asyncio.get_running_loop().create_task(control.run(), name="control")
        rubbish = [
            WireRecord(b"junk", b"1", []),
            WireRecord(b"claim/pods", b"{", []),
            WireRecord(b"claim/pods", b"{", []),
        ]
        await running.sink.deliver(Batch("control", 0, rubbish))
        await control.write("snapshot", "pods", {"n": 1})
        kafka.broker_down()
        kafka.broker_up()
        await control.write("snapshot", "pods", {"n": 2})
        await until(lambda: control.index("pods") == {"n": 2})
        assert [record.getMessage() for record in caplog.records].count(
            "control record ignored"
        ) == 2
        tail.cancel()
        await asyncio.wait([tail])
