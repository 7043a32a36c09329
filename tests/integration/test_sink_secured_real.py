"""Real Apache Kafka 3.9 and 4.1 with TLS and SASL: every way in, and secrets that are replaced."""

import asyncio
import itertools
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.kafkabroker import versions
from tests.support.kafkarights import PREFIX, RIGHTS, grant
from tests.support.realparts import KafkaBroker
from tests.support.sinkparts import Running, batch, fresh_topic, keys_on, one, running_sink, until
from tests.vectors.document import description
from watchrelay.contract.wire import Receipt
from watchrelay.core.errors import SinkUnavailable, TopicRefused
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.control_topic import ControlTopic
from watchrelay.kafka.producer import ProducerSettings
from watchrelay.kafka.topics import Topics, TopicSpec

pytestmark = pytest.mark.real

HASTY = ProducerSettings(request_timeout_s=5.0, secrets_every_s=0.2)


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


async def test_a_wrong_password_is_reported_as_such_and_corrected_by_the_file_alone(
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
    acked: list[bytes] = []

    async def deliver() -> None:
        for number in itertools.count():
            await running.sink.deliver(batch(topic, 0, f"n{number}"))
            acked.append(f"n{number}".encode())

    task = asyncio.get_running_loop().create_task(deliver(), name="load")
    try:
        yield acked
    finally:
        task.cancel()
        await asyncio.wait([task])


async def goes_on(acked: list[bytes]) -> None:
    """Returns when more was acknowledged."""
    more = len(acked) + 20
    await until(lambda: len(acked) >= more)


def assert_in_order(log: list[bytes], acked: list[bytes]) -> None:
    """What was acknowledged is there, in order and once."""
    assert log[: len(acked)] == acked
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
    async with running_sink(connection, HASTY) as running, load(running, name) as acked:
        control = ControlTopic(connection, f"{name}.control", running.sink)
        tail = asyncio.get_running_loop().create_task(control.run(), name="control")
        await control.caught_up()
        await goes_on(acked)
        file.write_text("not yet known to the broker")
        await until(lambda: "are not usable; keeping the previous ones" in running.problem)
        await goes_on(acked)
        assert running.rebuilds("credentials") == 0
        await asyncio.to_thread(secured.set_password, "the next one")
        try:
            file.write_text("the next one")
            await until(lambda: running.rebuilds("credentials") == 1)
            await until(lambda: running.problem == "")
            await goes_on(acked)
            await control.write("stream", "pods", description(1, topic=name))
            await control.until(lambda: control.described("pods") is not None)
        finally:
            await asyncio.to_thread(secured.set_password, secured.password)
            tail.cancel()
            await asyncio.wait([tail])
        assert running.rebuilds("identity") == running.rebuilds("watchdog") == 0, "nothing was cut"
    assert_in_order((await keys_on(secured.bootstrap, name, 1))[0], acked)


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
    async with running_sink(connection, HASTY) as running, load(running, name) as acked:
        await goes_on(acked)
        issued = secured.client_certificate()
        shutil.copy(issued.certificate, files["certificate"])
        await until(lambda: "belong together" in running.problem)
        await goes_on(acked)
        shutil.copy(issued.key, files["key"])
        await until(lambda: running.rebuilds("credentials") == 1)
        await goes_on(acked)
        assert running.problem == ""
    assert_in_order((await keys_on(secured.bootstrap, name, 1))[0], acked)


async def test_an_unknown_authority_and_a_missing_client_certificate_are_reported_as_such(
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
