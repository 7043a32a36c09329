"""`watchrelay retire` against a daemon on the embedded parts."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.daemon import Daemon, command
from tests.support.embedded import EmbeddedBroker, EmbeddedCluster
from tests.support.extent import few
from tests.support.process import free_port
from tests.support.testbed import Testbed
from tests.support.topic_contents import RESOURCES, assert_retired, fill
from tests.support.topicreader import read_control
from watchrelay.admin.retire import retire_with
from watchrelay.admin.snapshot_request import read_control_topic
from watchrelay.config import Settings, load_settings
from watchrelay.contract.wire import Batch, Receipt
from watchrelay.core.errors import Fenced, SinkUnavailable, first_cause
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.control_topic import ControlTopic
from watchrelay.kafka.sink import KafkaSink
from watchrelay.observe.metrics import Metrics
from watchrelay.observe.status import StatusRegistry
from watchrelay.replicas.ownership import retirement_holder


@pytest.fixture
def testbed(cluster: EmbeddedCluster, broker: EmbeddedBroker, tmp_path: Path) -> Testbed:
    testbed = Testbed(cluster, broker, tmp_path)
    testbed.make_topics(*RESOURCES)
    return testbed


def published(testbed: Testbed, **kafka: Any) -> tuple[Path, list[str]]:
    """Both streams are on their topics and the relay has stopped; a config without configmaps, and
    the keys of those."""
    keys = fill(testbed, 12)
    relay = testbed.relay(*RESOURCES, kafka=kafka)
    with relay:
        relay.await_ready()
        assert relay.stop() == 0
    left = Daemon(testbed.config("namespaces", kafka=kafka), testbed.directory, name="left")
    return left.file, keys


def test_retire_leaves_every_reader_with_nothing(testbed: Testbed) -> None:
    file, keys = published(testbed)
    done = command("retire", "configmaps", "--yes", "-c", file)
    assert done.code == 0, done
    topic = testbed.topic("configmaps")
    assert done.stdout == (
        f"configmaps: retired: 12 objects deleted from {topic}, an empty snapshot "
        "published, control records removed\n"
    )
    assert_retired(testbed, keys)
    again = command("retire", "configmaps", "--yes", "-c", file)
    assert again.code == 1
    assert "stream configmaps is not published" in again.stderr


def test_the_streams_of_a_former_cluster_name_are_retired_with_the_new_config(
    testbed: Testbed,
) -> None:
    keys = fill(testbed, 3)
    with testbed.relay(*RESOURCES) as relay:
        relay.await_ready()
        assert relay.stop() == 0
    config = {**testbed.config(*RESOURCES), "cluster": "renamed"}
    (testbed.directory / "renamed.yaml").write_text(json.dumps(config))
    retire = ("retire", "configmaps", "--yes", "-c", testbed.directory / "renamed.yaml")
    assert "is still in the config" in command(*retire).stderr
    done = command(*retire, "--cluster", testbed.name)
    assert (done.code, "3 objects deleted" in done.stdout) == (0, True), done
    assert_retired(testbed, keys)


def test_a_stream_that_comes_back_after_all_is_whole_again(testbed: Testbed) -> None:
    file, _ = published(testbed)
    assert command("retire", "configmaps", "--yes", "-c", file).code == 0
    with testbed.relay(*RESOURCES) as relay:
        relay.await_ready()
        assert relay.stop() == 0
    with testbed.reader(testbed.topic("configmaps")) as reader:
        reader.read()
        assert len(reader.table("configmaps")) == 12
        assert reader.proven("configmaps")
        assert len({record.epoch for record in reader.of("configmaps")}) == 3


def test_retire_refuses_a_stream_of_the_config_and_one_that_nobody_confirms(
    testbed: Testbed,
) -> None:
    file, _ = published(testbed)
    for stream, code, word in (
        ("namespaces", 1, "stream namespaces is still in the config, by resources[0]"),
        ("nosuch", 2, "--yes"),
        ("configmaps", 2, "--yes"),
    ):
        done = command("retire", stream, "-c", file)
        assert done.code == code, done
        assert word in done.stderr
        assert done.stderr.count("\n") == 1
    away = command(
        "retire",
        "configmaps",
        "--yes",
        "-c",
        file,
        "--set",
        f"kafka.bootstrapServers=[127.0.0.1:{free_port()}]",
    )
    assert away.code == 69, away
    with testbed.reader(testbed.topic("configmaps")) as reader:
        reader.read()
        assert len(reader.table("configmaps")) == 12, "something was retired"


class Interrupted(KafkaSink):
    """A sink that does something else instead of its batch number `at`."""

    at = -1
    instead: Callable[[], Awaitable[None]]

    async def deliver(self, batch: Batch) -> Receipt:
        self.at -= 1
        if self.at == -1:
            await self.instead()
        return await super().deliver(batch)


async def retire_interrupted(
    testbed: Testbed,
    settings: Settings,
    *,
    at: int,
    instead: Callable[[KafkaConnection, ControlTopic], Awaitable[None]],
    patience_s: float = 60.0,
) -> None:
    connection = KafkaConnection(bootstrap_servers=(testbed.broker.bootstrap,))
    sink = Interrupted(connection, metrics=Metrics(), statuses=StatusRegistry())
    control = ControlTopic(connection, testbed.control_topic, sink, holder=retirement_holder())
    sink.at, sink.instead = at, lambda: instead(connection, control)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(sink.run())
        try:
            async with read_control_topic(control):
                await retire_with(
                    settings,
                    "configmaps",
                    connection=connection,
                    sink=sink,
                    control=control,
                    patience_s=patience_s,
                )
        finally:
            running.cancel()


@pytest.mark.parametrize("batches", few([0, 9, 1, 3, 5, 12, 15], 2))
def test_a_retirement_that_was_killed_is_finished_by_the_next(
    testbed: Testbed, batches: int
) -> None:
    async def die(_connection: KafkaConnection, _control: ControlTopic) -> None:
        raise SinkUnavailable("killed here")

    file, keys = published(testbed)
    with pytest.raises(BaseExceptionGroup) as caught:
        asyncio.run(retire_interrupted(testbed, load_settings(str(file)), at=batches, instead=die))
    assert str(first_cause(caught.value)) == "killed here"
    done = command("retire", "configmaps", "--yes", "-c", file)
    assert done.code == 0, done
    assert_retired(testbed, keys)


@pytest.mark.parametrize("batches", few([7, 4, 10, 12], 1))
def test_last_records_of_the_former_writer_are_deleted_too(testbed: Testbed, batches: int) -> None:
    async def land(_connection: KafkaConnection, _control: ControlTopic) -> None:
        for raw in late:
            assert raw.key is not None
            headers = {name: value or b"" for name, value in raw.headers}
            name = {"ce_name": b"late", "ce_subject": raw.key + b"-late"}
            for key, changed in ((raw.key, {}), (raw.key + b"-late", name)):
                testbed.write(
                    topic,
                    key.decode(),
                    raw.value,
                    headers=headers | changed,
                    partition=raw.partition,
                )

    file, keys = published(testbed)
    topic = testbed.topic("configmaps")
    with testbed.reader(topic) as reader:
        reader.read()
        late = [record.raw for record in reader.of("configmaps", "added", "read")]
    assert {raw.partition for raw in late} == {0, 1, 2}
    asyncio.run(retire_interrupted(testbed, load_settings(str(file)), at=batches, instead=land))
    assert_retired(testbed, keys)


def test_a_retirement_that_kafka_leaves_alone_gives_up_says_so_and_is_finished_by_the_next(
    testbed: Testbed, broker: EmbeddedBroker
) -> None:
    async def goes_away(_connection: KafkaConnection, _control: ControlTopic) -> None:
        broker.kafka.broker_down()

    file, keys = published(testbed)
    with pytest.raises(BaseExceptionGroup) as caught:
        asyncio.run(
            retire_interrupted(
                testbed, load_settings(str(file)), at=5, instead=goes_away, patience_s=2.0
            )
        )
    error = first_cause(caught.value)
    assert isinstance(error, SinkUnavailable), "exit code 69"
    assert str(error).startswith(
        f"kafka at {testbed.broker.bootstrap} has accepted nothing for 2 s, so stream configmaps is "
        "not retired"
    )
    assert str(error).endswith(": it completes the retirement")
    broker.kafka.broker_up()
    done = command("retire", "configmaps", "--yes", "-c", file)
    assert done.code == 0, done
    assert_retired(testbed, keys)


def test_a_relay_that_claims_the_stream_meanwhile_stops_the_retirement(testbed: Testbed) -> None:
    async def claim(connection: KafkaConnection, control: ControlTopic) -> None:
        async def nothing() -> int:
            return 0

        sink = KafkaSink(connection, metrics=Metrics(), statuses=StatusRegistry())
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(sink.run())
            async with read_control_topic(ControlTopic(connection, control.topic, sink)) as other:
                described = other.described_streams()["configmaps"]
                epoch = await other.claim(
                    "configmaps", described, starting_point=None, highest_epoch=nothing
                )
            running.cancel()
        await control.until(lambda: control.superseded("configmaps", epoch - 1))

    file, _ = published(testbed)
    with pytest.raises(BaseExceptionGroup) as caught:
        asyncio.run(retire_interrupted(testbed, load_settings(str(file)), at=5, instead=claim))
    assert isinstance(first_cause(caught.value), Fenced)
    assert command("retire", "configmaps", "--yes", "--force", "-c", file).code == 0


def test_a_stream_whose_topic_is_gone_is_only_forgotten(testbed: Testbed) -> None:
    control = testbed.control_topic
    described = {
        "topic": "gone",
        "partitions": 2,
        "keyFormat": "plain",
        "resource": "pods/v1",
        "configHash": "x",
        "epochBase": 1,
    }
    testbed.write(control, "stream/ghost", json.dumps(described).encode())
    left = Daemon(testbed.config("namespaces"), testbed.directory, name="left")
    done = command("retire", "ghost", "--yes", "-c", left.file)
    assert (done.code, done.stdout) == (
        0,
        "ghost: retired: topic gone is gone, control records removed\n",
    ), done
    assert {key: value for _, key, value in read_control(testbed.broker.bootstrap, control)}[
        "stream/ghost"
    ] is None


def test_a_stream_that_a_relay_still_writes_is_not_retired_unless_by_force_and_then_the_relay_says_what_happened(
    testbed: Testbed,
) -> None:
    file, keys = published(testbed)
    with testbed.relay(*RESOURCES, name="second") as relay:
        relay.await_ready()
        refused = command("retire", "configmaps", "--yes", "-c", file)
        assert (refused.code, refused.stdout) == (1, ""), refused
        looking, why = refused.stderr.splitlines()
        assert looking.startswith("watchrelay retire: checking for")
        epoch, owner = relay.stream("configmaps")["epoch"], relay.stream("configmaps")["owner"]
        assert why.startswith(
            f"watchrelay: stream configmaps is being written by relay {owner} (epoch {epoch}, "
        )
        assert "remove it from that relay's config" in why
        assert "--force" in why
        assert relay.stream("configmaps")["epoch"] == epoch, "the refusal claimed the stream"
        assert relay.readyz()[0] == 200
        forced = command("retire", "configmaps", "--yes", "--force", "-c", file)
        assert (forced.code, forced.stderr) == (0, ""), forced
        assert relay.exit_code() == 75
        (line,) = relay.logged("stream ownership lost to another relay")
        assert line["error"].startswith(
            "stream configmaps was retired while this relay wrote it, by `watchrelay retire on "
        )
        assert (
            "take it out of this relay's config, or its next start publishes them again"
            in line["error"]
        )
    assert_retired(testbed, keys)
