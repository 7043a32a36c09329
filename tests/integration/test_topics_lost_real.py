"""Real Kafka of both versions, topics deleted under a relay: new ones that a reader can trust."""

import functools
from pathlib import Path
from typing import Any

import pytest

from tests.support.daemon import Daemon
from tests.support.embedded import EmbeddedCluster
from tests.support.listed import await_equal
from tests.support.process import wait_until
from tests.support.realparts import KafkaBroker
from tests.support.testbed import Testbed
from tests.support.topicreader import TopicReader, read_control
from watchrelay.kafka.topic_config import TopicSpec

pytestmark = pytest.mark.real

_PATHS = {"configmaps": "/api/v1/configmaps"}
_LATE_S = 90.0
"""A producer gives a batch up after 15 s, and a topic that waits for a person is looked at every 30
s."""


@pytest.fixture
def testbed(cluster: EmbeddedCluster, kafka_broker: KafkaBroker, tmp_path: Path) -> Testbed:
    return Testbed(cluster, kafka_broker, tmp_path)


@pytest.fixture
def path(testbed: Testbed) -> str:
    return testbed.config_maps(20)


def _delete(broker: KafkaBroker, topic: str) -> None:
    broker.admin.delete_topics([topic])[topic].result(15)

    def gone() -> bool:
        return topic not in broker.admin.list_topics(timeout=10).topics

    wait_until(f"{topic} is gone", gone)


def _exists(broker: KafkaBroker, topic: str) -> bool:
    return topic in broker.admin.list_topics(timeout=10).topics


def _make(broker: KafkaBroker, topic: str, *, partitions: int) -> None:
    spec = TopicSpec(
        name=topic,
        partitions=partitions,
        replication_factor=1,
        min_insync_replicas=1,
        snapshot_interval_s=3600,
    )
    broker.create_topic(topic, partitions=partitions, config=spec.configs())


def _make_by_hand(testbed: Testbed, broker: KafkaBroker) -> None:
    """All that the relay needs, for one that may make no topics."""
    _make(broker, testbed.topic("configmaps"), partitions=3)
    for name, policy in ((testbed.control_topic, "compact"), (testbed.signal_topic, "delete")):
        broker.create_topic(name, config={"cleanup.policy": policy})


def _settled(testbed: Testbed, relay: Daemon) -> None:
    with testbed.reader(testbed.topic("configmaps")) as reader:
        relay.await_ready()
        await_equal(testbed.cluster, reader, _PATHS)
        reader.read_until("heartbeats follow", lambda: reader.of("configmaps", "heartbeat"))


def _newest(testbed: Testbed, kind: str) -> Any:
    return next(
        (
            value
            for _, key, value in reversed(
                read_control(testbed.broker.bootstrap, testbed.control_topic)
            )
            if key == f"{kind}/configmaps"
        ),
        None,
    )


def _published_again(
    testbed: Testbed, relay: Daemon, reader: TopicReader, epoch: int, *, stale: bool = False
) -> None:
    """The new topic begins with a claim above `epoch` and a first snapshot, and equals the cluster;
    `stale`: others may stand before."""
    wait_until(
        "the stream is whole again",
        lambda: relay.stream("configmaps").get("complete"),
        deadline_s=_LATE_S,
    )
    if stale:
        _ignore_records_before_the_claims(reader, epoch)
    await_equal(testbed.cluster, reader, _PATHS)
    claims = [record for record in reader.of("configmaps", "claim") if record.epoch > epoch]
    assert {record.raw.partition for record in claims} == {0, 1, 2}
    assert {record.epoch for record in claims} == {relay.stream("configmaps")["epoch"]}
    if not stale:
        assert {record.epoch for record in reader.records} == {claims[0].epoch}
        assert {record.raw.offset for record in claims} == {0}
    mine = [
        record
        for record in reader.of("configmaps")
        if record.epoch == claims[0].epoch
        and record.raw.partition == 0
        and record.type != "heartbeat"
    ]
    assert [record.type for record in mine[:2]] == ["claim", "begin"]
    assert {
        record.headers["ce_wrrv"]
        for record in reader.of("configmaps", "begin")
        if record.epoch > epoch
    } == {"0"}
    assert reader.proven("configmaps"), reader.describe()
    assert reader.plain[testbed.topic("configmaps")] == reader.table("configmaps")
    (last,) = [
        value
        for _, key, value in read_control(testbed.broker.bootstrap, testbed.control_topic)[-1:]
        if key == "snapshot/configmaps"
    ]
    assert (last["epoch"], last["count"]) == (claims[0].epoch, len(reader.table("configmaps")))
    assert _newest(testbed, "claim")["from"] is None


def _ignore_records_before_the_claims(reader: TopicReader, epoch: int) -> None:
    """What the former writer still sent is there without the records before it."""
    reader.read_until(
        "the claims stand there",
        lambda: (
            len([1 for record in reader.of("configmaps", "claim") if record.epoch > epoch]) == 3
        ),
    )
    claims = {
        f"{record.raw.topic}/{record.raw.partition}": record.raw.offset
        for record in reader.of("configmaps", "claim")
        if record.epoch > epoch
    }

    def before(problem: str) -> bool:
        place, _, rest = problem.partition("@")
        return int(rest.partition(" ")[0]) < claims[place]

    reader.problems[:] = [problem for problem in reader.problems if not before(problem)]


def _changes(testbed: Testbed, path: str) -> None:
    testbed.cluster.request("DELETE", f"{path}/c1")
    testbed.cluster.request("POST", path, {"metadata": {"name": "new"}})


def test_a_state_topic_deleted_under_the_relay_is_recreated_and_begins_with_a_claim_and_a_snapshot(
    testbed: Testbed, kafka_broker: KafkaBroker, path: str
) -> None:
    topic = testbed.topic("configmaps")
    with testbed.relay(*_PATHS) as relay:
        _settled(testbed, relay)
        epoch = relay.stream("configmaps")["epoch"]
        _delete(kafka_broker, topic)
        _changes(testbed, path)
        wait_until(
            "the topic is there again",
            functools.partial(_exists, kafka_broker, topic),
            deadline_s=_LATE_S,
        )
        with testbed.reader(topic) as reader:
            _published_again(testbed, relay, reader, epoch)
            testbed.cluster.request("DELETE", f"{path}/c2")
            await_equal(testbed.cluster, reader, _PATHS)
            reader.assert_right("configmaps")
        assert relay.logged("topic was deleted or recreated")[0]["topic"] == topic
        assert [line["stream"] for line in relay.logged("restarting stream")] == ["configmaps"]
        assert relay.stop() == 0


def test_a_state_topic_that_the_relay_may_not_make_is_named_with_the_command_and_goes_on_when_it_was_run(
    testbed: Testbed, kafka_broker: KafkaBroker, path: str
) -> None:
    topic = testbed.topic("configmaps")
    _make_by_hand(testbed, kafka_broker)
    with testbed.relay(*_PATHS, kafka={"createTopics": False}) as relay:
        _settled(testbed, relay)
        epoch = relay.stream("configmaps")["epoch"]
        _delete(kafka_broker, topic)
        _changes(testbed, path)
        wait_until(
            "it says what is missing",
            lambda: relay.stream("configmaps").get("waitsFor"),
            deadline_s=_LATE_S,
        )
        reason = relay.stream("configmaps")["waitsFor"]
        assert f"topic {topic} does not exist and kafka.createTopics is false" in reason
        assert (
            f"kafka-topics.sh --bootstrap-server {kafka_broker.bootstrap} --create --topic "
            f"{topic} --partitions 3"
        ) in reason
        assert relay.alive
        _make(kafka_broker, topic, partitions=3)
        with testbed.reader(topic) as reader:
            _published_again(testbed, relay, reader, epoch)
            reader.assert_right("configmaps")
        assert relay.stream("configmaps")["waitsFor"] is None
        assert relay.stop() == 0


def test_a_state_topic_deleted_and_recreated_by_hand_at_once_is_noticed_and_published_again(
    testbed: Testbed, kafka_broker: KafkaBroker, path: str
) -> None:
    topic = testbed.topic("configmaps")
    with testbed.relay(*_PATHS) as relay:
        _settled(testbed, relay)
        epoch = relay.stream("configmaps")["epoch"]
        kafka_broker.admin.delete_topics([topic])[topic].result(15)
        _changes(testbed, path)
        _make(kafka_broker, topic, partitions=3)
        wait_until(
            "it is noticed",
            lambda: relay.logged("topic was deleted or recreated"),
            deadline_s=_LATE_S,
        )
        with testbed.reader(topic) as reader:
            _published_again(testbed, relay, reader, epoch, stale=True)
        assert "recreated" in relay.logged("topic was deleted or recreated")[0]["error"]
        assert relay.stop() == 0


def test_the_records_of_a_lost_control_topic_are_written_again_and_every_stream_claims_above_its_epoch(
    testbed: Testbed, kafka_broker: KafkaBroker, path: str
) -> None:
    with testbed.relay(*_PATHS) as relay, testbed.reader(testbed.topic("configmaps")) as reader:
        _settled(testbed, relay)
        epoch, former = relay.stream("configmaps")["epoch"], _newest(testbed, "snapshot")
        _delete(kafka_broker, testbed.control_topic)
        _changes(testbed, path)
        wait_until(
            "it is restored", lambda: relay.logged("control topic restored"), deadline_s=_LATE_S
        )
        wait_until(
            "the stream is claimed",
            lambda: (relay.stream("configmaps").get("epoch") or 0) > epoch,
            deadline_s=_LATE_S,
        )
        relay.await_ready()
        await_equal(testbed.cluster, reader, _PATHS)
        claim, described = _newest(testbed, "claim"), _newest(testbed, "stream")
        assert claim["from"] == {
            "snapshot": former["snapshot"],
            "begin": [each["begin"] for each in former["partitions"]],
        }
        assert (described["topic"], described["epochBase"]) == (
            testbed.topic("configmaps"),
            epoch + 1,
        )
        assert _newest(testbed, "snapshot") == former
        assert relay.stop() == 0
        relay.start().await_ready()
        testbed.cluster.request("DELETE", f"{path}/c2")
        await_equal(testbed.cluster, reader, _PATHS)
        assert relay.stop() == 0
        lives = [line["then"] for line in relay.logged("log read back")]
        assert lives == ["FirstSnapshot", "WatchFrom", "WatchFrom"], "the log is believed as before"
        reader.assert_right("configmaps")


def test_a_lost_control_topic_that_the_relay_may_not_make_does_not_hold_up_the_streams(
    testbed: Testbed, kafka_broker: KafkaBroker, path: str
) -> None:
    topic, control = testbed.topic("configmaps"), testbed.control_topic
    _make(kafka_broker, topic, partitions=3)
    for name, policy in ((control, "compact"), (testbed.signal_topic, "delete")):
        kafka_broker.create_topic(name, config={"cleanup.policy": policy})
    with (
        testbed.relay(*_PATHS, kafka={"createTopics": False}) as relay,
        testbed.reader(topic) as reader,
    ):
        _settled(testbed, relay)
        epoch = relay.stream("configmaps")["epoch"]
        _delete(kafka_broker, control)
        wait_until(
            "it says what is missing",
            lambda: "--create" in relay.readyz()[1].get("problems", {}).get("control", ""),
            deadline_s=_LATE_S,
        )
        _changes(testbed, path)
        await_equal(testbed.cluster, reader, _PATHS)
        assert relay.stream("configmaps")["epoch"] == epoch
        kafka_broker.create_topic(control, config={"cleanup.policy": "compact"})
        wait_until(
            "the stream is claimed",
            lambda: (relay.stream("configmaps").get("epoch") or 0) > epoch,
            deadline_s=_LATE_S,
        )
        testbed.cluster.request("DELETE", f"{path}/c2")
        await_equal(testbed.cluster, reader, _PATHS)
        wait_until(
            "nothing is wrong any more",
            lambda: "control" not in relay.readyz()[1].get("problems", {}),
        )
        assert relay.stop() == 0
        reader.read()
        reader.assert_right("configmaps")


def test_a_recreated_signal_topic_is_read_again(
    testbed: Testbed, kafka_broker: KafkaBroker, path: str
) -> None:
    signal = testbed.signal_topic
    with testbed.relay(*_PATHS) as relay:
        _settled(testbed, relay)
        _delete(kafka_broker, signal)
        wait_until(
            "the topic is there again",
            functools.partial(_exists, kafka_broker, signal),
            deadline_s=_LATE_S,
        )
        before = _newest(testbed, "snapshot")["snapshot"]
        value = b'{"id":"r-1","type":"execute-snapshot","data":{"streams":["configmaps"]}}'
        testbed.write(signal, "test", value)
        wait_until(
            "it is answered",
            lambda: _newest(testbed, "snapshot")["requests"] == ["r-1"],
            deadline_s=_LATE_S,
        )
        assert _newest(testbed, "snapshot")["snapshot"] != before
        assert relay.stop() == 0


def test_a_broker_that_makes_topics_by_itself_is_never_asked_to_make_the_lost_one(
    real_parts: None, cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    with KafkaBroker("4.1", properties={"auto.create.topics.enable": "true"}) as broker:
        testbed = Testbed(cluster, broker, tmp_path)
        testbed.config_maps(5)
        topic = testbed.topic("configmaps")
        with testbed.relay(*_PATHS) as relay:
            _settled(testbed, relay)
            epoch = relay.stream("configmaps")["epoch"]
            _delete(broker, topic)
            with testbed.reader(topic) as reader:
                wait_until(
                    "it starts again", lambda: relay.logged("restarting stream"), deadline_s=_LATE_S
                )
                _published_again(testbed, relay, reader, epoch)
            assert [line["topic"] for line in relay.logged("topic created")].count(topic) == 2, (
                "not by the relay itself"
            )
            assert relay.stop() == 0
