"""Real Kafka whose defaults take records away: what the relay creates, names, and cures."""

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.embedded import EmbeddedCluster
from tests.support.kafkabroker import KafkaBroker, Version, versions
from tests.support.parts import kafka_jars
from tests.support.process import wait_until
from tests.support.sinkparts import fresh_topic, one
from tests.support.testbed import Testbed
from tests.support.topicreader import read_control
from watchrelay.core.errors import TopicRefused
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.topic_config import TopicSpec
from watchrelay.kafka.topic_settings import TopicKind
from watchrelay.kafka.topics import Topics

pytestmark = pytest.mark.real

HOSTILE = {
    "log.retention.bytes": "100000",
    "log.retention.ms": "60000",
    "log.retention.check.interval.ms": "500",
    "log.segment.bytes": "1048576",
    "log.cleanup.policy": "delete",
    "log.cleaner.min.compaction.lag.ms": "0",
    "log.cleaner.max.compaction.lag.ms": "60000",
    "log.cleaner.delete.retention.ms": "1000",
    "log.message.timestamp.type": "CreateTime",
    "log.message.timestamp.after.max.ms": "1000",
    "log.message.timestamp.before.max.ms": "1000",
    "message.max.bytes": "20000",
    "compression.type": "uncompressed",
    "unclean.leader.election.enable": "true",
}
NAMED = {
    "max.compaction.lag.ms",
    "message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms",
    "max.message.bytes",
    "compression.type",
    "retention.bytes",
    "unclean.leader.election.enable",
}
"""What is wrong with a topic of a former release under these defaults."""


@pytest.fixture(scope="module", params=versions("3.9", "4.1"))
def hostile(real_parts: None, request: pytest.FixtureRequest) -> Iterator[KafkaBroker]:
    version: Version = request.param
    with KafkaBroker(version, properties=HOSTILE) as broker:
        yield broker


@pytest.fixture
def topics(hostile: KafkaBroker) -> Topics:
    return Topics(KafkaConnection(bootstrap_servers=(hostile.bootstrap,)))


def run_command(broker: KafkaBroker, command: str) -> None:
    """Run what a message says, by the class that the script starts."""
    script, *arguments = command.split()
    main = {"kafka-configs.sh": "kafka.admin.ConfigCommand"}[script]
    classpath = f"{kafka_jars(broker.version)}/*"
    subprocess.run(
        ["java", "-XX:TieredStopAtLevel=1", "-cp", classpath, main, *arguments],
        check=True,
        capture_output=True,
        timeout=120,
    )


@pytest.mark.parametrize("kind", ["state", "control", "signal"])
async def test_a_new_topic_has_no_setting_that_takes_records_away(
    topics: Topics, hostile: KafkaBroker, kind: TopicKind
) -> None:
    spec = TopicSpec(
        name=fresh_topic(),
        kind=kind,
        replication_factor=1,
        min_insync_replicas=1,
        snapshot_interval_s=3600.0,
    )
    facts = await topics.ensure_topic(spec)
    assert facts.created
    assert facts.keeps_ms == 0
    assert {each.setting for each in facts.findings} == {"unclean.leader.election.enable"}


async def test_each_hostile_default_is_named_on_a_topic_of_a_former_release_and_cured_by_its_command(
    topics: Topics, hostile: KafkaBroker
) -> None:
    name = fresh_topic()
    former = {
        "cleanup.policy": "compact,delete",
        "retention.ms": "612000000",
        "delete.retention.ms": "604800000",
        "max.compaction.lag.ms": "9000000",
        "min.compaction.lag.ms": "9000000",
        "min.insync.replicas": "1",
    }
    await asyncio.to_thread(hostile.create_topic, name, partitions=2, config=former)
    spec = one(name, interval_s=3600)
    facts = await topics.ensure_topic(spec)
    assert {each.setting for each in facts.findings} == NAMED - {"max.compaction.lag.ms"}
    assert facts.keeps_ms == 612_000_000
    cure = ",".join(
        f"{setting}={value}"
        for setting, value in {pair for each in facts.findings for pair in each.cure}
    )
    await asyncio.to_thread(
        run_command,
        hostile,
        f"kafka-configs.sh --bootstrap-server {hostile.bootstrap} --alter --entity-type topics "
        f"--entity-name {name} --add-config {cure}",
    )
    cured = await topics.ensure_topic(spec)
    assert (cured.findings, cured.keeps_ms) == ((), 0)
    assert await topics.look_again([spec]) == {name: []}


async def test_a_refused_topic_is_cured_by_the_command_of_its_message(
    topics: Topics, hostile: KafkaBroker
) -> None:
    name = fresh_topic()
    await asyncio.to_thread(
        hostile.create_topic, name, partitions=2, config={"cleanup.policy": "compact,delete"}
    )
    spec = one(name, interval_s=3600)
    with pytest.raises(TopicRefused) as caught:
        await topics.ensure_topic(spec)
    for setting in ("min.compaction.lag.ms", "delete.retention.ms", "retention.ms"):
        assert f"{setting} is " in str(caught.value)
    command = str(caught.value).partition("mend it with: ")[2]
    await asyncio.to_thread(run_command, hostile, command)
    found = await topics.ensure_topic(spec)
    assert "max.compaction.lag.ms" not in {each.setting for each in found.findings}


async def test_the_names_of_a_stream_that_kafka_takes_as_one_are_refused(topics: Topics) -> None:
    name = fresh_topic()
    await topics.ensure_topic(one(f"{name}.a"))
    for check in (topics.check_topic, topics.ensure_topic):
        with pytest.raises(TopicRefused, match=r"takes \. and _ in names of topics as the same"):
            await check(one(f"{name}_a"))


def test_a_relay_of_a_former_release_goes_on_names_the_setting_and_loses_nothing(
    cluster: EmbeddedCluster, hostile: KafkaBroker, tmp_path: Path
) -> None:
    testbed = Testbed(cluster, hostile, tmp_path)
    testbed.config_maps(5)
    topic = testbed.topic("configmaps")
    spec = TopicSpec(
        name=topic, replication_factor=1, min_insync_replicas=1, snapshot_interval_s=3600.0
    )
    former = {
        name: value
        for name, value in spec.configs().items()
        if name not in ("retention.bytes", "message.timestamp.type")
    }
    hostile.create_topic(
        topic, partitions=3, config={**former, "max.compaction.lag.ms": "20000000"}
    )
    with testbed.relay("configmaps") as relay:
        relay.await_ready()
        relay.wait(
            "the setting is shown",
            lambda: "setting retention.bytes" in relay.readyz()[1].get("problems", {}),
        )
        problems = relay.readyz()[1]["problems"]
        assert problems["setting retention.bytes"].startswith(
            f"topic {topic}: retention.bytes is 100000: objects that do not change are removed"
        )
        relay.wait(
            "it is counted",
            lambda: relay.metric("watchrelay_topics_at_risk", setting="retention.bytes") == 1,
        )
        wait_until(
            "the log names the setting",
            lambda: any("retention.bytes" in str(each) for each in relay.logged("questionable")),
        )
        hostile_command = problems["setting retention.bytes"].partition("mend it with: ")[2]
        run_command(hostile, hostile_command)
        assert relay.stop() == 0
    with testbed.relay("configmaps") as relay:
        relay.await_ready()
        assert "setting retention.bytes" not in relay.readyz()[1].get("problems", {})


def test_a_control_topic_that_takes_little_ends_no_stream(
    cluster: EmbeddedCluster, hostile: KafkaBroker, tmp_path: Path
) -> None:
    testbed = Testbed(cluster, hostile, tmp_path)
    testbed.config_maps(20)
    configs = {"cleanup.policy": "compact", "max.message.bytes": "700"}
    hostile.create_topic(testbed.control_topic, config=configs)
    often = {"snapshotInterval": "5s"}
    with testbed.relay("configmaps", kafka={"partitions": 24}, defaults=often) as relay:
        relay.await_ready()

        def problems() -> dict[str, str]:
            found: dict[str, str] = relay.readyz()[1].get("problems", {})
            return found

        wait_until("the setting is shown", lambda: "setting max.message.bytes" in problems())
        assert "max.message.bytes is 700" in problems()["setting max.message.bytes"]
        wait_until("a snapshot is complete", lambda: "index configmaps" in problems())
        assert relay.stream("configmaps")["complete"]
        message = problems()["index configmaps"]
        run_command(hostile, message.partition("mend it with: ")[2])
        wait_until("the next index record is there", lambda: "index configmaps" not in problems())
        assert not relay.logged("unexpected")
        records = read_control(hostile.bootstrap, testbed.control_topic)
        assert [key for _, key, _ in records][-1] == "snapshot/configmaps"
        assert relay.stop() == 0
