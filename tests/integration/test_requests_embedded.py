"""Room: integration tests.  In: the embedded parts.  Out: `watchrelay snapshot` and `retire`
against a daemon, and formats end to end."""

import asyncio
import functools
import json
import socket
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.daemon import Daemon, Outcome, command
from tests.support.embedded import EmbeddedBroker, EmbeddedCluster
from tests.support.process import free_port, wait_until
from tests.support.published import RESOURCES, assert_retired, fill, index_of, replicas, seen
from tests.support.topicreader import read_control
from tests.support.trial import Trial
from watchrelay.admin.retire import retire_with, spec_of
from watchrelay.admin.snapshot_request import read_control_topic
from watchrelay.config import Settings, load_settings
from watchrelay.consumer.reader import Seen
from watchrelay.contract.records import Marker, MarkerRecord, ObjectRecord, encoder_for
from watchrelay.contract.wire import Batch, Receipt
from watchrelay.core import clock
from watchrelay.core.errors import Fenced, SinkUnavailable
from watchrelay.daemon.ownership import retirement_holder
from watchrelay.daemon.tasks import only_error
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.control_topic import ControlTopic
from watchrelay.kafka.signal_records import SnapshotRequest, signal_value
from watchrelay.kafka.sink import KafkaSink
from watchrelay.observe.metrics import Metrics
from watchrelay.observe.status import StatusRegistry


@pytest.fixture
def trial(cluster: EmbeddedCluster, broker: EmbeddedBroker, tmp_path: Path) -> Trial:
    trial = Trial(cluster, broker, tmp_path)
    trial.make_topics(*RESOURCES)
    return trial


# ---- snapshot ------------------------------------------------------------------------------------


def test_snapshot_asks_a_running_relay_and_says_what_it_holds(trial: Trial) -> None:
    keys = fill(trial, 5)
    with trial.relay(*RESOURCES) as relay:
        relay.await_ready()
        before = index_of(trial, "configmaps")["snapshot"]
        one = command("snapshot", "configmaps", "-c", relay.file)
        assert (one.code, one.stderr) == (0, ""), one
        index = index_of(trial, "configmaps")
        assert index["snapshot"] != before
        assert len(index["requests"]) == 1
        begins = " ".join(f"{part['partition']}@{part['begin']}" for part in index["partitions"])
        said = (
            f"configmaps: snapshot {index['snapshot']}: {len(keys)} objects at "
            f"resourceVersion {index['rv']}, begins at {begins}"
        )
        assert one.stdout.splitlines() == [said]
        both = command("snapshot", "-c", relay.file)
        assert both.code == 0, both
        assert sorted(line.partition(":")[0] for line in both.stdout.splitlines()) == sorted(
            RESOURCES
        )
        assert relay.metric("watchrelay_signals_total", result="taken") == 2
        assert relay.stop() == 0
    assert all(replica.proven for replica in replicas(seen(trial)).values())


def test_a_snapshot_of_what_nobody_published_is_1_with_one_line(trial: Trial) -> None:
    with trial.relay(*RESOURCES) as relay:
        missing = command("snapshot", "-c", relay.file)
        relay.await_ready()
        unknown = command("snapshot", "configmaps", "pods", "-c", relay.file)
        assert relay.stop() == 0
    assert unknown.code == 1
    assert unknown.stdout == ""
    topic = trial.control_topic
    assert (
        unknown.stderr
        == f"watchrelay: stream pods is not published: {topic} describes configmaps, namespaces\n"
    )
    assert missing.code in {0, 1}


def test_snapshot_without_kafka_is_69_and_without_a_control_topic_1(trial: Trial) -> None:
    away = Daemon(
        trial.config(*RESOURCES, kafka={"bootstrapServers": [f"127.0.0.1:{free_port()}"]}),
        trial.directory,
        name="away",
    )
    other = Daemon(
        {**trial.config(*RESOURCES), "cluster": "another"}, trial.directory, name="other"
    )
    for daemon, code, words in (
        (away, 69, "check"),
        (other, 1, "k8s.another.control does not exist"),
    ):
        done = command("snapshot", "-c", daemon.file)
        assert done.code == code, done
        assert done.stderr.count("\n") == 1, done.stderr
        if code == 1:
            assert words in done.stderr


@pytest.fixture
def black_hole() -> Iterator[str]:
    """The address of a broker that takes every connection and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


def test_the_timeout_is_for_the_whole_of_snapshot_also_where_a_broker_takes_connections_and_says_nothing(
    trial: Trial, black_hole: str
) -> None:
    hole = Daemon(
        trial.config("configmaps", kafka={"bootstrapServers": [black_hole]}),
        trial.directory,
        name="hole",
    )
    done = command("snapshot", "-c", hole.file, "--timeout", "1s")
    assert (done.code, done.stdout) == (69, "")
    assert done.stderr.startswith(
        f"watchrelay: kafka at {black_hole} accepted no request within 1 s (most likely "
        "the broker is frozen"
    )
    assert done.stderr.count("\n") == 1


def test_a_request_made_while_the_relay_is_down_is_answered_once_when_it_is_back(
    trial: Trial,
) -> None:
    fill(trial, 3)
    relay = trial.relay(*RESOURCES)
    with relay:
        relay.await_ready()
        assert relay.stop() == 0
        late = command("snapshot", "configmaps", "-c", relay.file, "--timeout", "1s")
        assert late.code == 1
        assert "no snapshot of configmaps within 1 s: is a relay running" in late.stderr
        relay.start().await_ready()
        wait_until(
            "the request is answered",
            lambda: index_of(trial, "configmaps").get("requests"),
            deadline_s=30.0,
        )
        answer = index_of(trial, "configmaps")
        assert answer["requests"][0] in late.stderr
        assert relay.stop() == 0
        relay.start().await_ready()
        again = command("snapshot", "namespaces", "-c", relay.file)
        assert again.code == 0, again
        assert answer["requests"][0] not in json.dumps(relay.said("snapshot started")[-1])
        assert relay.stop() == 0
    ids = [
        request
        for _, key, value in read_control(trial.broker.bootstrap, trial.control_topic)
        if key == "snapshot/configmaps" and value
        for request in value["requests"]
    ]
    assert ids == answer["requests"], "a request was answered twice"


def test_a_signal_that_does_not_parse_is_said_and_counted_and_nothing_is_lost(trial: Trial) -> None:
    fill(trial, 3)
    with trial.relay(*RESOURCES) as relay:
        relay.await_ready()
        request = SnapshotRequest("mine", ("configmaps", "nosuch"))
        trial.write(
            trial.signal_topic,
            trial.name,
            b"\xff",
            b'{"id":"x","type":"stop-snapshot","data":{}}',
            signal_value(request),
            signal_value(request),
        )
        wait_until(
            "the request behind them is answered",
            lambda: index_of(trial, "configmaps").get("requests") == ["mine"],
            deadline_s=30.0,
        )
        ignored = relay.said("signal ignored")
        assert [line["offset"] for line in ignored] == [0, 1]
        assert "not a signal" in ignored[0]["error"]
        assert "only execute-snapshot is known" in ignored[1]["error"]
        assert {line["level"] for line in ignored} == {"warning"}
        assert len(relay.said("signal names an unknown stream", "nosuch")) == 1
        results = {
            result: relay.metric("watchrelay_signals_total", result=result)
            for result in ("taken", "refused", "repeated")
        }
        assert results == {"taken": 1, "refused": 2, "repeated": 1}
        assert relay.stop() == 0


def test_a_relay_without_a_signal_topic_runs_and_says_what_is_not_heard(trial: Trial) -> None:
    config = {**trial.config("configmaps"), "cluster": f"{trial.name}-x"}
    trial.broker.create_topic(f"k8s.{trial.name}-x.control")
    trial.broker.create_topic(f"k8s.{trial.name}-x.core.configmaps", partitions=3)
    with Daemon(config, trial.directory, name="deaf") as relay:
        relay.await_ready()
        relay.wait(
            "it is said",
            lambda: relay.said("signal topic is not usable", f"k8s.{trial.name}-x.signal"),
        )
        assert "signal" in relay.readyz()[1]["problems"]
        assert relay.stop() == 0


# ---- retire --------------------------------------------------------------------------------------


def published(trial: Trial, **kafka: Any) -> tuple[Path, list[str]]:
    """Both streams are on their topics and the relay has stopped; a config without configmaps, and
    the keys of those."""
    keys = fill(trial, 12)
    relay = trial.relay(*RESOURCES, kafka=kafka)
    with relay:
        relay.await_ready()
        assert relay.stop() == 0
    left = Daemon(trial.config("namespaces", kafka=kafka), trial.directory, name="left")
    return left.file, keys


def test_retire_leaves_every_reader_with_nothing(trial: Trial) -> None:
    file, keys = published(trial)
    done = command("retire", "configmaps", "--yes", "-c", file)
    assert done.code == 0, done
    topic = trial.topic("configmaps")
    assert done.stdout == (
        f"configmaps: retired: 12 objects deleted from {topic}, an empty snapshot "
        "published, control records removed\n"
    )
    assert_retired(trial, keys)
    again = command("retire", "configmaps", "--yes", "-c", file)
    assert again.code == 1
    assert "stream configmaps is not published" in again.stderr


def test_a_stream_that_comes_back_after_all_is_whole_again(trial: Trial) -> None:
    file, _ = published(trial)
    assert command("retire", "configmaps", "--yes", "-c", file).code == 0
    with trial.relay(*RESOURCES) as relay:
        relay.await_ready()
        assert relay.stop() == 0
    with trial.reader(trial.topic("configmaps")) as reader:
        reader.read()
        assert len(reader.table("configmaps")) == 12
        assert reader.proven("configmaps")
        assert len({said.epoch for said in reader.of("configmaps")}) == 3


def test_retire_refuses_a_stream_of_the_config_and_one_that_nobody_confirms(trial: Trial) -> None:
    file, _ = published(trial)
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
    with trial.reader(trial.topic("configmaps")) as reader:
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
    trial: Trial,
    settings: Settings,
    *,
    at: int,
    instead: Callable[[KafkaConnection, ControlTopic], Awaitable[None]],
    patience_s: float = 60.0,
) -> None:
    connection = KafkaConnection(bootstrap_servers=(trial.broker.bootstrap,))
    sink = Interrupted(connection, metrics=Metrics(), statuses=StatusRegistry())
    control = ControlTopic(connection, trial.control_topic, sink, holder=retirement_holder())
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


@pytest.mark.parametrize("batches", [0, 1, 3, 5, 9, 12, 15])
def test_a_retirement_that_was_killed_is_finished_by_the_next(trial: Trial, batches: int) -> None:
    async def die(_connection: KafkaConnection, _control: ControlTopic) -> None:
        raise SinkUnavailable("killed here")

    file, keys = published(trial)
    with pytest.raises(BaseExceptionGroup) as caught:
        asyncio.run(retire_interrupted(trial, load_settings(str(file)), at=batches, instead=die))
    assert str(only_error(caught.value)) == "killed here"
    done = command("retire", "configmaps", "--yes", "-c", file)
    assert done.code == 0, done
    assert_retired(trial, keys)


def test_a_retirement_that_kafka_leaves_alone_gives_up_says_so_and_is_finished_by_the_next(
    trial: Trial, broker: EmbeddedBroker
) -> None:
    async def goes_away(_connection: KafkaConnection, _control: ControlTopic) -> None:
        broker.kafka.broker_down()

    file, keys = published(trial)
    with pytest.raises(BaseExceptionGroup) as caught:
        asyncio.run(
            retire_interrupted(
                trial, load_settings(str(file)), at=5, instead=goes_away, patience_s=2.0
            )
        )
    error = only_error(caught.value)
    assert isinstance(error, SinkUnavailable), "exit code 69"
    assert str(error).startswith(
        f"kafka at {trial.broker.bootstrap} has accepted nothing for 2 s, so stream configmaps is "
        "not retired"
    )
    assert str(error).endswith(": it completes the retirement")
    broker.kafka.broker_up()
    done = command("retire", "configmaps", "--yes", "-c", file)
    assert done.code == 0, done
    assert_retired(trial, keys)


def test_a_relay_that_claims_the_stream_meanwhile_stops_the_retirement(trial: Trial) -> None:
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
        await control.until(lambda: control.outclaimed("configmaps", epoch - 1))

    file, _ = published(trial)
    with pytest.raises(BaseExceptionGroup) as caught:
        asyncio.run(retire_interrupted(trial, load_settings(str(file)), at=5, instead=claim))
    assert isinstance(only_error(caught.value), Fenced)
    assert command("retire", "configmaps", "--yes", "--force", "-c", file).code == 0


def test_a_stream_whose_topic_is_gone_is_only_forgotten(trial: Trial) -> None:
    control = trial.control_topic
    described = {
        "topic": "gone",
        "partitions": 2,
        "keyFormat": "plain",
        "resource": "pods/v1",
        "configHash": "x",
        "epochBase": 1,
    }
    trial.write(control, "stream/ghost", json.dumps(described).encode())
    left = Daemon(trial.config("namespaces"), trial.directory, name="left")
    done = command("retire", "ghost", "--yes", "-c", left.file)
    assert (done.code, done.stdout) == (
        0,
        "ghost: retired: topic gone is gone, control records removed\n",
    ), done
    assert {key: value for _, key, value in read_control(trial.broker.bootstrap, control)}[
        "stream/ghost"
    ] is None


def test_a_stream_that_a_relay_still_writes_is_not_retired_unless_by_force_and_then_the_relay_says_what_happened(
    trial: Trial,
) -> None:
    file, keys = published(trial)
    with trial.relay(*RESOURCES, name="second") as relay:
        relay.await_ready()
        refused = command("retire", "configmaps", "--yes", "-c", file)
        assert (refused.code, refused.stdout) == (1, ""), refused
        looking, why = refused.stderr.splitlines()
        assert looking.startswith("watchrelay retire: checking for")
        epoch, owner = relay.stream("configmaps")["epoch"], relay.stream("configmaps")["owner"]
        assert why.startswith(
            f"watchrelay: stream configmaps is being written by relay {owner} (epoch {epoch}, a "
            "record"
        )
        assert "take it out of that relay's config" in why
        assert "--force" in why
        assert relay.stream("configmaps")["epoch"] == epoch, "the refusal claimed the stream"
        assert relay.readyz()[0] == 200
        forced = command("retire", "configmaps", "--yes", "--force", "-c", file)
        assert (forced.code, forced.stderr) == (0, ""), forced
        assert relay.exit_code() == 75
        (said,) = relay.said("stream ownership lost to another relay")
        assert said["error"].startswith(
            "stream configmaps was retired while this relay wrote it, by `watchrelay retire on "
        )
        assert (
            "take it out of this relay's config, or its next start publishes them again"
            in said["error"]
        )
    assert_retired(trial, keys)


def test_a_stream_whose_relay_has_claimed_and_says_nothing_yet_is_not_retired_unless_by_force(
    trial: Trial,
) -> None:
    async def claim_and_fall_silent(settings: Settings) -> None:
        connection = KafkaConnection(bootstrap_servers=(trial.broker.bootstrap,))
        sink = KafkaSink(connection, metrics=Metrics(), statuses=StatusRegistry())

        async def nothing() -> int:
            return 0

        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(sink.run())
            async with read_control_topic(
                ControlTopic(connection, trial.control_topic, sink, holder="slow-1")
            ) as control:
                described = control.described_streams()["configmaps"]
                epoch = await control.claim(
                    "configmaps", described, starting_point=None, highest_epoch=nothing
                )
                encoder = encoder_for(spec_of(settings, "configmaps", described), epoch)
                for partition in range(3):
                    marker = encoder.marker(partition, 1, clock.wall_ms(), Marker("claim"))
                    await sink.deliver(Batch(trial.topic("configmaps"), partition, [marker]))
            running.cancel()

    file, keys = published(trial)
    asyncio.run(claim_and_fall_silent(load_settings(str(file))))
    refused = command("retire", "configmaps", "--yes", "-c", file)
    assert refused.code == 1, refused
    assert refused.stderr.startswith("watchrelay: stream configmaps was claimed by relay slow-1 ")
    assert refused.stderr.count("\n") == 1
    assert "--force" in refused.stderr
    assert command("retire", "configmaps", "--yes", "--force", "-c", file).code == 0
    assert_retired(trial, keys)


# ---- formats -------------------------------------------------------------------------------------


@pytest.mark.parametrize("format_", ["structured", "debezium"])
def test_a_format_end_to_end(trial: Trial, cluster: EmbeddedCluster, format_: str) -> None:
    keys = fill(trial, 6)
    namespace = keys[0].partition("/")[0]
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    relay = trial.relay(*RESOURCES, kafka={"format": format_})
    with relay:
        relay.await_ready()
        cluster.request("DELETE", f"{path}/c1")
        trial.make(path, [{"metadata": {"name": "new"}, "data": {"a": "<b>"}}])
        relay.wait("the changes are published", lambda: relay.stream("configmaps")["objects"] == 6)
        assert command("snapshot", "configmaps", "-c", relay.file).code == 0
        assert relay.stop() == 0
    records = seen(trial)
    state = {
        key: held
        for (stream, _), replica in replicas(records).items()
        if stream == "configmaps"
        for key, held in replica.held.items()
    }
    listed = cluster.request("GET", path)["items"]
    assert all(replica.proven for replica in replicas(records).values())
    assert {key.decode(): json.loads(held.value)["data"] for key, held in state.items()} == {
        f"{namespace}/{item['metadata']['name']}": item["data"] for item in listed
    }
    gone = [
        one.record
        for one in records
        if isinstance(one.record, ObjectRecord) and one.record.verb == "deleted"
    ]
    assert [(record.key.decode(), record.enveloped) for record in gone] == [
        (f"{namespace}/c1", True),
        (f"{namespace}/c1", False),
    ]
    assert gone[1].sequence == gone[0].sequence + 1
    shown = command(
        "tail",
        "configmaps",
        "-c",
        relay.file,
        "--output",
        "json",
        "--markers",
        "--from-beginning",
        "--until-end",
    )
    assert shown.code == 0, shown
    _assert_shown(shown, records)
    people = command("tail", "configmaps", "-c", relay.file, "--from-beginning", "--until-end")
    assert (people.code, people.stderr) == (0, "")
    left = Daemon(
        trial.config("namespaces", kafka={"format": format_}), trial.directory, name="left"
    )
    assert command("retire", "configmaps", "--yes", "-c", left.file).code == 0
    emptied = replicas(seen_raw(trial, "configmaps"))
    assert all(replica.proven and not replica.held for replica in emptied.values())


def seen_raw(trial: Trial, resource: str) -> list[Seen]:
    """Everything on a topic that the control topic no longer describes."""
    from confluent_kafka import Consumer, TopicPartition

    from watchrelay.contract.records import decode

    topic = trial.topic(resource)
    consumer = Consumer(
        {
            "bootstrap.servers": trial.broker.bootstrap,
            "group.id": "raw",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    found: list[Seen] = []
    try:
        for partition in range(3):
            _, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=10.0)
            consumer.assign([TopicPartition(topic, partition, 0)])
            offset = -1
            while offset < end - 1:
                message = consumer.poll(10.0)
                assert message is not None
                offset = message.offset() or 0
                headers: Any = message.headers() or []
                found.append(
                    Seen(topic, partition, offset, decode(message.key(), message.value(), headers))
                )
    finally:
        consumer.close()
    return found


def _assert_shown(shown: Outcome, records: list[Seen]) -> None:
    lines = {(line["topic"], line["partition"], line["offset"]): line for line in shown.objects()}
    wanted = {
        (one.topic, one.partition, one.offset): one.record
        for one in records
        if one.record and one.record.stream == "configmaps"
    }
    assert lines.keys() == wanted.keys()
    for place, record in wanted.items():
        if isinstance(record, MarkerRecord):
            continue
        assert record is not None
        assert lines[place]["type"] == record.verb
        assert lines[place]["object"] == (
            None if record.value is None else json.loads(record.value)
        )


def holds(relay: Daemon, objects: int) -> bool:
    return bool(relay.stream("configmaps")["objects"] == objects)


def test_a_changed_format_is_read_by_those_that_were_there_before(
    trial: Trial, cluster: EmbeddedCluster
) -> None:
    keys = fill(trial, 6)
    namespace = keys[0].partition("/")[0]
    for number, format_ in enumerate(("cloudevents", "structured", "debezium")):
        with trial.relay("configmaps", name=f"relay-{number}", kafka={"format": format_}) as relay:
            relay.await_ready()
            cluster.request("DELETE", f"/api/v1/namespaces/{namespace}/configmaps/c{number}")
            relay.wait("the delete is published", functools.partial(holds, relay, 5 - number))
            assert relay.stop() == 0
    held = replicas(seen(trial, "configmaps"))
    assert all(replica.proven for replica in held.values())
    assert {key.decode() for replica in held.values() for key in replica.held} == {
        f"{namespace}/c{number}" for number in (3, 4, 5)
    }
