"""The consumer's side on real parts: readers without every right."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from tests.support.kafkabroker import create_topic, versions
from tests.support.pod_topics import LogAppender
from tests.support.realparts import KafkaBroker
from tests.support.stream_log import Log, Writer, stream
from tests.vectors.document import claim, description
from watchrelay.consumer import KafkaUnavailable, NothingPublished, TopicReader

if TYPE_CHECKING:
    from tests.support.kafkabroker import Version

pytestmark = pytest.mark.real

_TOPIC, _CONTROL = "k8s.t.core.pods", "k8s.t.control"


@pytest.fixture(scope="module", params=versions("4.1"))
def secured(real_parts: None, request: pytest.FixtureRequest) -> Iterator[KafkaBroker]:
    """A secured broker on which `relay` may read the state topic; who else may what is up to a
    test."""
    with KafkaBroker(cast("Version", request.param), secured=True) as broker:
        _grant(broker, "relay", _TOPIC, AclOperation.READ)
        create_topic(broker.admin, _TOPIC, partitions=2, replicas=1, config=None)
        create_topic(broker.admin, _CONTROL, partitions=1, replicas=1, config=None)
        yield broker


def _grant(broker: KafkaBroker, user: str, topic: str, *rights: AclOperation) -> None:
    where = (ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, f"User:{user}", "*")
    bindings = [AclBinding(*where, right, AclPermissionType.ALLOW) for right in rights]
    for made in broker.admin.create_acls(bindings).values():
        made.result(10)


async def test_a_consumer_without_rights_on_the_control_topic_starts_by_heartbeat_and_says_so(
    secured: KafkaBroker,
) -> None:
    logs = [Log(), Log()]
    writer = Writer(stream(partitions=2), logs, epoch=2)
    writer.first(*(f"shop/{letter}" for letter in "abcdef"))
    writer.delete("shop/b")
    writer.snapshot()
    writer.beat()
    async with LogAppender(secured.bootstrap) as appender:
        await appender.append(_TOPIC, logs)
        await appender.send(_CONTROL, "stream/pods", description(2, topic=_TOPIC))
        await appender.send(_CONTROL, "claim/pods", claim("w1"))
    me = {
        "bootstrap_servers": secured.listeners["PLAIN"],
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": secured.user,
        "sasl_plain_password": secured.password,
    }
    held = {key.decode() for each in writer.held for key in each}
    async with TopicReader(me, control_topic=_CONTROL, topics=[_TOPIC], until_end=True) as reader:
        await reader.ready()
        assert set(reader.objects("pods")) == held
        assert [(problem.kind, problem.count) for problem in reader.problems] == [("control", 1)]
    async with TopicReader(me, control_topic=_CONTROL, until_end=True) as reader:
        with pytest.raises(
            NothingPublished, match=f"topic {_CONTROL} is not there, or may not be seen"
        ):
            await reader.ready()
    _grant(secured, "relay", _CONTROL, AclOperation.DESCRIBE)
    async with TopicReader(me, control_topic=_CONTROL, topics=[_TOPIC], until_end=True) as reader:
        await reader.ready()
        assert set(reader.objects("pods")) == held
        assert ["READ is not granted" in problem.detail for problem in reader.problems] == [True]
    async with TopicReader(me, control_topic=_CONTROL, until_end=True) as reader:
        with pytest.raises(KafkaUnavailable, match="grant READ on it, or name the topics"):
            await reader.ready()
    _grant(secured, "relay", _CONTROL, AclOperation.READ)
    async with TopicReader(me, control_topic=_CONTROL, until_end=True) as reader:
        await reader.ready()
        assert set(reader.objects("pods")) == held
        assert reader.problems == []


async def test_credentials_that_are_not_good_are_reported_as_such(secured: KafkaBroker) -> None:
    me = {
        "bootstrap_servers": secured.listeners["PLAIN"],
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": secured.user,
        "sasl_plain_password": "another",
    }
    for wrong, problem in (
        ({}, r"Invalid username or password \(check user, password and mechanism\)"),
        ({"sasl_mechanism": "SCRAM-SHA-512"}, "the broker does not have this SASL mechanism"),
        (
            {"security_protocol": "PLAINTEXT"},
            (
                "no broker answers .check the address, and that security_protocol is that of the "
                "listener"
            ),
        ),
    ):
        with pytest.raises(KafkaUnavailable, match=problem):
            async with TopicReader({**me, **wrong}, control_topic=_CONTROL):
                pass
