"""Real Apache Kafka 3.9 and 4.1, plain and secured, also killed under load: what the embedded one
cannot show."""

import asyncio
import itertools
import os
import random
import shutil
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.kafkabroker import Version, versions
from tests.support.kafkarights import PREFIX, RIGHTS, grant
from tests.support.realparts import KafkaBroker
from tests.support.sinkparts import Running, batch, keys_on, running_sink, until
from tests.vectors.document import description
from watchrelay.contract.wire import Batch, Receipt, WireRecord
from watchrelay.core.errors import RecordTooLarge, SinkUnavailable, TopicRefused
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.client.record_batch import Packer
from watchrelay.kafka.control_topic import ControlTopic
from watchrelay.kafka.producer import ProducerSettings
from watchrelay.kafka.topics import Topics, TopicSpec

pytestmark = pytest.mark.real

HASTY = ProducerSettings(request_timeout_s=5.0, secrets_every_s=0.2)


def plain(broker: KafkaBroker) -> KafkaConnection:
    return KafkaConnection(bootstrap_servers=(broker.bootstrap,))


def fresh_topic() -> str:
    return f"{PREFIX}{uuid.uuid4().hex}"


def one(
    name: str, *, partitions: int = 2, interval_s: float = 3600.0, replication_factor: int = 1
) -> TopicSpec:
    return TopicSpec(
        name=name,
        partitions=partitions,
        replication_factor=replication_factor,
        min_insync_replicas=1,
        snapshot_interval_s=interval_s,
    )


# ---- topics --------------------------------------------------------------------------------------


async def test_a_topic_is_created_as_the_contract_says_and_then_found_good(
    kafka_broker: KafkaBroker,
) -> None:
    name = fresh_topic()
    assert await Topics(plain(kafka_broker)).check_topic(one(name)) is None
    facts = await Topics(plain(kafka_broker)).ensure_topic(one(name))
    assert (
        facts.partitions,
        facts.max_message_bytes,
        facts.created,
        facts.checked,
        facts.warnings,
    ) == (2, 4 << 20, True, True, ())
    again = await Topics(plain(kafka_broker), create=False).ensure_topic(one(name))
    assert (again.created, again.checked, again.warnings) == (False, True, ())


async def test_control_and_signal_topics_are_created(kafka_broker: KafkaBroker) -> None:
    topics = Topics(plain(kafka_broker))
    for kind in ("control", "signal"):
        spec = TopicSpec(name=fresh_topic(), kind=kind, replication_factor=1, min_insync_replicas=1)
        facts = await topics.ensure_topic(spec)
        assert (facts.partitions, facts.warnings) == (1, ())


@pytest.mark.parametrize(
    ("configs", "why"),
    [
        ({"cleanup.policy": "compact"}, "min.compaction.lag.ms is 0"),
        (
            {
                "cleanup.policy": "compact",
                "min.compaction.lag.ms": "9000000",
                "delete.retention.ms": "1000",
            },
            "delete.retention.ms is 1000",
        ),
        ({"retention.ms": "7199999"}, "retention.ms is 7199999"),
        ({"retention.ms": "9000000", "min.insync.replicas": "2"}, "min.insync.replicas is 2"),
    ],
)
async def test_a_dangerous_topic_is_refused_until_the_command_named_was_run(
    kafka_broker: KafkaBroker, configs: dict[str, str], why: str
) -> None:
    name = fresh_topic()
    await asyncio.to_thread(kafka_broker.create_topic, name, partitions=2, config=configs)
    with pytest.raises(TopicRefused, match=why) as caught:
        await Topics(plain(kafka_broker)).ensure_topic(one(name))
    command = str(caught.value).partition("mend it with: ")[2]
    assert command.startswith(
        f"kafka-configs.sh --bootstrap-server {kafka_broker.bootstrap} --alter --entity-type "
        f"topics --entity-name {name}"
    )


async def test_fewer_partitions_and_too_many_replicas_are_refused_and_more_partitions_are_warned_of(
    kafka_broker: KafkaBroker,
) -> None:
    name, topics = fresh_topic(), Topics(plain(kafka_broker))
    await asyncio.to_thread(
        kafka_broker.create_topic, name, partitions=2, config={"max.message.bytes": "1000"}
    )
    with pytest.raises(TopicRefused, match="it has 2 partitions, the stream is pinned to 3"):
        await topics.ensure_topic(one(name, partitions=3))
    facts = await topics.ensure_topic(one(name, partitions=1))
    assert len(facts.warnings) == 2
    assert "has 2 partitions, the pinned 1 is used" in facts.warnings[0]
    assert "max.message.bytes is 1000" in facts.warnings[1]
    with pytest.raises(TopicRefused, match="replicationFactor is 3, the cluster has 1 broker"):
        await topics.ensure_topic(one(fresh_topic(), replication_factor=3))
    with pytest.raises(TopicRefused, match="createTopics is false"):
        await Topics(plain(kafka_broker), create=False).ensure_topic(one(fresh_topic()))


async def test_a_topic_of_two_streams_is_made_for_the_slower_one(kafka_broker: KafkaBroker) -> None:
    name, topics = fresh_topic(), Topics(plain(kafka_broker))
    topics.expect([one(name, interval_s=60), one(name, interval_s=86400)])
    await topics.ensure_topic(one(name, interval_s=60))
    assert (await topics.ensure_topic(one(name, interval_s=86400))).warnings == ()


# ---- sizes ---------------------------------------------------------------------------------------


async def test_kafka_s_own_limit_finds_the_record_when_ours_was_out_of_date(
    kafka_broker: KafkaBroker,
) -> None:
    name = fresh_topic()
    await asyncio.to_thread(kafka_broker.create_topic, name, config={"max.message.bytes": "2000"})
    records = [WireRecord(f"n{index}".encode(), os.urandom(100), []) for index in range(9)]
    records.insert(5, WireRecord(b"big", os.urandom(5000), []))
    async with running_sink(plain(kafka_broker)) as running:
        running.sink.limit(name, 4 << 20)
        with pytest.raises(RecordTooLarge, match="record big") as caught:
            await running.sink.deliver(Batch(name, 0, records))
        assert caught.value.index == 5
        assert caught.value.acked == tuple(range(len(caught.value.acked)))
        rest = [record for record in records[len(caught.value.acked) :] if record.key != b"big"]
        await running.sink.deliver(Batch(name, 0, rest))
        # With the limit known, nothing needs to be tried.
        running.sink.limit(name, 2000)
        with pytest.raises(RecordTooLarge) as early:
            await running.sink.deliver(Batch(name, 0, records))
        assert early.value.acked == ()
    assert (await keys_on(kafka_broker.bootstrap, name, 1))[0] == [
        f"n{index}".encode() for index in range(9)
    ]


async def test_a_batch_of_exactly_the_limit_passes_and_one_byte_more_does_not(
    kafka_broker: KafkaBroker,
) -> None:
    name = fresh_topic()
    record = WireRecord(b"k", random.Random(1).randbytes(3000), [])
    async with running_sink(plain(kafka_broker)) as running:
        size = (
            Packer()
            .pack([record], start=0, stop=1, batch_bytes=1 << 20, limit_bytes=1 << 20, now_ms=0)[0][
                0
            ]
            .size()
        )
        await asyncio.to_thread(
            kafka_broker.create_topic, name, config={"max.message.bytes": str(size)}
        )
        running.sink.limit(name, size)
        assert await running.sink.deliver(Batch(name, 0, [record])) == Receipt([0])
        assert not any(running.errors(name).values())
        running.sink.limit(name, size - 1)
        with pytest.raises(RecordTooLarge):
            await running.sink.deliver(Batch(name, 0, [record]))


# ---- trouble -------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions("4.1"))
async def test_a_broker_killed_under_load_loses_nothing_and_keeps_the_order(
    real_parts: None, version: Version
) -> None:
    with KafkaBroker(version) as broker:
        await asyncio.to_thread(broker.create_topic, "t", partitions=3)
        settings = ProducerSettings(request_timeout_s=2.0, stalled_after_s=1.0)
        async with running_sink(plain(broker), settings) as running:
            delivered = [0, 0, 0]
            enough = False

            async def write(partition: int) -> None:
                for index in itertools.count():
                    names = [f"{index}-{place}" for place in range(5)]
                    receipt = await running.sink.deliver(batch("t", partition, *names, padding=200))
                    assert receipt.offsets == list(
                        range(receipt.offsets[0], receipt.offsets[0] + 5)
                    )
                    delivered[partition] = index + 1
                    if enough:
                        return

            async with asyncio.TaskGroup() as writers:
                for partition in range(3):
                    writers.create_task(write(partition), name="writer")
                await until(lambda: min(delivered) > 100)
                await asyncio.to_thread(broker.kill)
                await until(lambda: "no acknowledgement" in running.problem)
                await asyncio.to_thread(broker.restart)
                reached = list(delivered)
                await until(
                    lambda: all(
                        now > then + 50 for now, then in zip(delivered, reached, strict=True)
                    ),
                    deadline_s=60.0,
                )
                await asyncio.to_thread(broker.pause)
                await until(lambda: running.rebuilds("watchdog") >= 1)
                broker.resume()
                reached = list(delivered)
                await until(
                    lambda: all(
                        now > then + 50 for now, then in zip(delivered, reached, strict=True)
                    ),
                    deadline_s=60.0,
                )
                enough = True
            await until(lambda: not running.problem)
        for partition, keys in enumerate(await keys_on(broker.bootstrap, "t", 3)):
            wanted = [
                f"{index}-{place}".encode()
                for index in range(delivered[partition])
                for place in range(5)
            ]
            assert keys == wanted, "in order, and no record twice"


async def test_a_deleted_topic_is_named_and_goes_on_when_it_is_there_again(
    kafka_broker: KafkaBroker,
) -> None:
    name = fresh_topic()
    await asyncio.to_thread(kafka_broker.create_topic, name)
    settings = ProducerSettings(request_timeout_s=1.0, stalled_after_s=5.0)
    async with running_sink(plain(kafka_broker), settings) as running:
        await running.sink.deliver(batch(name, 0, "a"))
        await asyncio.to_thread(lambda: kafka_broker.admin.delete_topics([name])[name].result(10))
        async with asyncio.TaskGroup() as deliveries:
            delivery = deliveries.create_task(
                running.sink.deliver(batch(name, 0, "b")), name="delivery"
            )
            await until(lambda: "was the topic deleted" in running.problem)
            await asyncio.to_thread(kafka_broker.create_topic, name)
        assert delivery.result() == Receipt([0])
        await until(lambda: not running.problem)


async def test_each_relay_that_comes_after_claims_a_higher_epoch(kafka_broker: KafkaBroker) -> None:
    async def none() -> int:
        return 0

    name = fresh_topic()
    await Topics(plain(kafka_broker)).ensure_topic(
        TopicSpec(name=name, kind="control", replication_factor=1, min_insync_replicas=1)
    )
    epochs: list[int] = []

    async def live(holder: str) -> None:
        async with running_sink(plain(kafka_broker)) as running:
            control = ControlTopic(plain(kafka_broker), name, running.sink, holder=holder)
            tail = asyncio.get_running_loop().create_task(control.run(), name="control")
            epochs.append(
                await control.claim(
                    "pods", {"topic": "t", "partitions": 1}, starting_point=None, highest_epoch=none
                )
            )
            await control.write("snapshot", "pods", {"epoch": epochs[-1]})
            await until(lambda: control.index("pods") == {"epoch": epochs[-1]})
            tail.cancel()
            await asyncio.wait([tail])

    for holder in ("first", "second", "third"):
        await live(holder)
    assert epochs == sorted(set(epochs))


# ---- secured -------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=versions("3.9", "4.1"))
def secured(real_parts: None, request: pytest.FixtureRequest) -> Iterator[KafkaBroker]:
    """A secured broker on which `relay` has the rights that the operations reference lists, and
    nobody else has any."""
    with KafkaBroker(request.param, secured=True) as broker:
        grant(broker, *RIGHTS, prefix=PREFIX)
        yield broker


def way_in(broker: KafkaBroker, kind: str, directory: Path) -> KafkaConnection:
    user, password, token = (directory / name for name in ("user", "password", "token"))
    user.write_text("relay\n")
    password.write_text(broker.password + "\n")
    token.write_text(broker.oauth_token("relay"))
    ca = str(broker.ca)
    match kind:
        case "SCRAM":
            return KafkaConnection(
                bootstrap_servers=(broker.listeners["SCRAM"],),
                protocol="SASL_SSL",
                mechanism="SCRAM-SHA-512",
                username_file=str(user),
                password_file=str(password),
                ca_file=ca,
            )
        case "MTLS":
            issued = broker.client_certificate()
            return KafkaConnection(
                bootstrap_servers=(broker.listeners["MTLS"],),
                protocol="SSL",
                ca_file=ca,
                cert_file=str(issued.certificate),
                key_file=str(issued.key),
            )
        case "PLAIN":
            return KafkaConnection(
                bootstrap_servers=(broker.listeners["PLAIN"],),
                protocol="SASL_PLAINTEXT",
                mechanism="PLAIN",
                username="relay",
                password=broker.password,
            )
        case "token file":
            return KafkaConnection(
                bootstrap_servers=(broker.listeners["PLAIN"],),
                protocol="SASL_PLAINTEXT",
                mechanism="OAUTHBEARER",
                token_file=str(token),
            )
        case _:
            return KafkaConnection(
                bootstrap_servers=(broker.listeners["PLAIN"],),
                protocol="SASL_PLAINTEXT",
                mechanism="OAUTHBEARER",
                token_command=("cat", str(token)),
            )


@pytest.mark.parametrize("kind", ["SCRAM", "MTLS", "PLAIN", "token file", "token command"])
async def test_each_way_in_creates_checks_writes_and_reads_with_the_rights_listed(
    secured: KafkaBroker, kind: str, tmp_path: Path
) -> None:
    async def none() -> int:
        return 0

    connection, name = way_in(secured, kind, tmp_path), fresh_topic()
    topics = Topics(connection)
    assert (await topics.ensure_topic(one(name))).checked
    await topics.ensure_topic(
        TopicSpec(
            name=f"{name}.control", kind="control", replication_factor=1, min_insync_replicas=1
        )
    )
    async with running_sink(connection) as running:
        assert await running.sink.deliver(batch(name, 1, "a", "b")) == Receipt([0, 1])
        control = ControlTopic(connection, f"{name}.control", running.sink)
        tail = asyncio.get_running_loop().create_task(control.run(), name="control")
        assert (
            await control.claim(
                "pods", {"topic": "t", "partitions": 1}, starting_point=None, highest_epoch=none
            )
            > 0
        )
        tail.cancel()
        await asyncio.wait([tail])


async def test_a_wrong_password_is_told_as_such_and_mended_by_the_file_alone(
    secured: KafkaBroker, tmp_path: Path
) -> None:
    connection, name = way_in(secured, "SCRAM", tmp_path), fresh_topic()
    (tmp_path / "password").write_text("not it")
    with pytest.raises(SinkUnavailable, match="the broker refused the credentials"):
        await Topics(connection).ensure_topic(one(name))
    async with running_sink(connection) as running:
        await until(lambda: "the broker refused the credentials" in running.problem)
        (tmp_path / "password").write_text(secured.password)
        await Topics(connection).ensure_topic(one(name))
        assert await running.sink.deliver(batch(name, 0, "a")) == Receipt([0])


@asynccontextmanager
async def load(running: Running, topic: str) -> AsyncIterator[list[bytes]]:
    """Batches one after the other; the keys that were acknowledged, in order."""
    said: list[bytes] = []

    async def deliver() -> None:
        for number in itertools.count():
            await running.sink.deliver(batch(topic, 0, f"n{number}"))
            said.append(f"n{number}".encode())

    task = asyncio.get_running_loop().create_task(deliver(), name="load")
    try:
        yield said
    finally:
        task.cancel()
        await asyncio.wait([task])


async def goes_on(said: list[bytes]) -> None:
    """Returns when more was acknowledged."""
    more = len(said) + 20
    await until(lambda: len(said) >= more)


def assert_in_order(log: list[bytes], said: list[bytes]) -> None:
    """What was acknowledged is there, in order and once."""
    assert log[: len(said)] == said
    assert len(log) == len(set(log))


async def test_a_password_that_is_replaced_under_load_is_used_before_the_former_connection_is_let_go(
    secured: KafkaBroker, tmp_path: Path
) -> None:
    connection, name, file = (
        way_in(secured, "SCRAM", tmp_path),
        fresh_topic(),
        tmp_path / "password",
    )
    await Topics(connection).ensure_topic(one(name, partitions=1))
    await Topics(connection).ensure_topic(
        TopicSpec(
            name=f"{name}.control", kind="control", replication_factor=1, min_insync_replicas=1
        )
    )
    async with running_sink(connection, HASTY) as running, load(running, name) as said:
        control = ControlTopic(connection, f"{name}.control", running.sink)
        tail = asyncio.get_running_loop().create_task(control.run(), name="control")
        await control.caught_up()
        await goes_on(said)
        file.write_text("not yet known to the broker")
        await until(lambda: "are not usable; keeping the previous ones" in running.problem)
        await goes_on(said)
        assert running.rebuilds("credentials") == 0
        await asyncio.to_thread(secured.set_password, "the next one")
        try:
            file.write_text("the next one")
            await until(lambda: running.rebuilds("credentials") == 1)
            await until(lambda: running.problem == "")
            await goes_on(said)
            await control.write("stream", "pods", description(1, topic=name))
            await control.until(lambda: control.described("pods") is not None)
        finally:
            await asyncio.to_thread(secured.set_password, secured.password)
            tail.cancel()
            await asyncio.wait([tail])
        assert running.rebuilds("identity") == running.rebuilds("watchdog") == 0, "nothing was cut"
    assert_in_order((await keys_on(secured.bootstrap, name, 1))[0], said)


async def test_a_client_certificate_that_is_replaced_under_load_is_used_once_it_is_whole(
    secured: KafkaBroker, tmp_path: Path
) -> None:
    own, name = way_in(secured, "MTLS", tmp_path), fresh_topic()
    assert own.cert_file
    assert own.key_file
    files = {"certificate": tmp_path / "tls.crt", "key": tmp_path / "tls.key"}
    shutil.copy(own.cert_file, files["certificate"])
    shutil.copy(own.key_file, files["key"])
    connection = replace(own, cert_file=str(files["certificate"]), key_file=str(files["key"]))
    await Topics(connection).ensure_topic(one(name, partitions=1))
    async with running_sink(connection, HASTY) as running, load(running, name) as said:
        await goes_on(said)
        issued = secured.client_certificate()
        shutil.copy(issued.certificate, files["certificate"])
        await until(lambda: "belong together" in running.problem)
        await goes_on(said)
        shutil.copy(issued.key, files["key"])
        await until(lambda: running.rebuilds("credentials") == 1)
        await goes_on(said)
        assert running.problem == ""
    assert_in_order((await keys_on(secured.bootstrap, name, 1))[0], said)


async def test_an_unknown_authority_and_a_missing_client_certificate_are_told_as_such(
    secured: KafkaBroker,
) -> None:
    for listener, protocol in (("SCRAM", "SASL_SSL"), ("MTLS", "SSL")):
        stranger = KafkaConnection(
            bootstrap_servers=(secured.listeners[listener],),
            protocol=protocol,  # type: ignore[arg-type]  # a literal
            mechanism="SCRAM-SHA-512" if listener == "SCRAM" else None,
            username="relay",
            password=secured.password,
        )
        with pytest.raises(SinkUnavailable, match=r"set kafka\.security\.caFile"):
            await Topics(stranger).ensure_topic(one("x"))
    bare = KafkaConnection(
        bootstrap_servers=(secured.listeners["MTLS"],), protocol="SSL", ca_file=str(secured.ca)
    )
    with pytest.raises(SinkUnavailable, match="client certificate"):
        await Topics(bare).ensure_topic(one("x"))


async def test_topics_outside_the_rights_are_refused_with_the_right_that_is_missing(
    secured: KafkaBroker, tmp_path: Path
) -> None:
    connection = way_in(secured, "SCRAM", tmp_path)
    with pytest.raises(TopicRefused, match="may not"):
        await Topics(connection).ensure_topic(one("elsewhere"))
    await asyncio.to_thread(secured.create_topic, "foreign")
    async with running_sink(connection, ProducerSettings(request_timeout_s=1.0)) as running:
        delivery = asyncio.get_running_loop().create_task(
            running.sink.deliver(batch("foreign", 0, "a")), name="delivery"
        )
        await until(lambda: "grant WRITE" in running.problem)
        delivery.cancel()
        await asyncio.wait([delivery])
