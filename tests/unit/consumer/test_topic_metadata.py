"""What is described and not there, and why no broker can be used: reported with the name and the
cure."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import (
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    SaslAuthenticationFailed,
    TopicAuthorizationFailedError,
    UnsupportedSaslMechanismError,
)

from tests.support.virtualtime import run
from tests.unit.kafka.client.test_brokers import FakeBroker, PerhapsSilent, described, serving
from tests.unit.kafka.test_topics import Divided
from watchrelay.consumer import TopicReader
from watchrelay.consumer.connecting import away, make_consumer
from watchrelay.consumer.locate import Finder, what_is_missing
from watchrelay.contract.control_state import DescribedStream
from watchrelay.kafka.client.consumer import STATE_TOPICS, stop_consumer
from watchrelay.kafka.client.failures import unreadable

CONTROL = "k8s.t.control"
DESCRIBED = {
    "pods": DescribedStream("k8s.t.core.pods", 3),
    "nodes": DescribedStream("k8s.t.core.nodes", 1),
}


def missing(there: dict[str, frozenset[int]]) -> dict[str, str]:
    return what_is_missing(DESCRIBED, there, control=CONTROL, servers="k:9092")


def test_nothing_is_missing_where_all_partitions_are_there() -> None:
    assert (
        missing({"k8s.t.core.pods": frozenset(range(5)), "k8s.t.core.nodes": frozenset({0})}) == {}
    )


def test_too_few_partitions_are_reported_with_the_command_that_adds_them() -> None:
    assert missing({"k8s.t.core.pods": frozenset({0}), "k8s.t.core.nodes": frozenset({0})}) == {
        "pods": "topic k8s.t.core.pods of stream pods has 1 partition, the description on "
        "k8s.t.control says 3: "
        "kafka-topics.sh --bootstrap-server k:9092 --alter --topic k8s.t.core.pods --partitions 3"
    }


def test_a_topic_that_is_not_there_is_named_with_what_to_do() -> None:
    problems = missing({"k8s.t.core.pods": frozenset(range(3))})
    assert problems.keys() == {"nodes"}
    assert problems["nodes"].startswith(
        "topic k8s.t.core.nodes of stream nodes is described on k8s.t.control and not there, or "
        "may not be seen"
    )
    assert "grant READ and DESCRIBE on it" in problems["nodes"]


def test_a_broker_that_does_not_answer_whether_topics_exist_is_passed_over() -> None:
    async def main() -> float:
        silent = [FakeBroker()]
        fakes = [PerhapsSilent(silent) for _ in range(2)]
        async with serving(fakes) as addresses:
            nodes: Any = [(number, "127.0.0.1", fake.port) for number, fake in enumerate(fakes)]
            for fake in fakes:
                fake.metadata = lambda: described(nodes, {"a": 0})
            consumer = make_consumer({"bootstrap_servers": list(addresses)}, STATE_TOPICS)
            await consumer.start()
            silent.clear()
            began_s = asyncio.get_running_loop().time()
            finder = Finder(
                consumer,
                control_topic="",
                topics=["a"],
                streams=frozenset(),
                servers="",
            )
            assert await finder.look() == ""
            took_s = asyncio.get_running_loop().time() - began_s
            assert finder.there == {"a": {0}}
            await stop_consumer(consumer, within_s=1.0)
        return took_s

    assert run(main()) == pytest.approx(3.0, abs=0.5)


async def test_a_topic_is_another_once_a_second_broker_has_its_new_id() -> None:
    finder = Finder(None, control_topic="", topics=["t"], streams=frozenset(), servers="")

    async def recreated(*ids: int) -> set[str]:
        finder.consumer = Divided(*ids)
        assert await finder.look() == ""
        return finder.recreated

    assert await recreated(1) == set()
    assert await recreated(2, 1) == set(), "one broker missed it, or the topic is one of before"
    assert finder.unchanged == {"t"}
    assert await recreated(2, 3) == set()
    assert finder.unchanged == set()
    assert await recreated(2, 2) == {"t"}


@pytest.mark.parametrize(
    ("failure", "error", "expected"),
    [
        (
            SaslAuthenticationFailed("Authentication failed: Invalid username or password"),
            KafkaConnectionError("x"),
            "Invalid username",
        ),
        (UnsupportedSaslMechanismError(object()), KafkaConnectionError("x"), "the broker does not have this SASL mechanism"),
        (ConnectionRefusedError(111, "Connect call failed ('127.0.0.1', 1)"), KafkaConnectionError("x"), "no broker answers"),
        (None, KafkaTimeoutError("Failed to get offsets by times in 40000 ms"), "no answer in time"),
        (None, TimeoutError(), "no answer in time"),
    ],
)  # fmt: skip
def test_why_no_broker_can_be_used_is_reported_by_its_cause(
    failure: BaseException | None, error: BaseException, expected: str
) -> None:
    consumer: Any = SimpleNamespace(_client=SimpleNamespace(failure=failure))
    assert expected in away(consumer, error)


def test_a_topic_that_may_not_be_read_is_named() -> None:
    for error in (
        TopicAuthorizationFailedError("k8s.t.core.pods"),
        TopicAuthorizationFailedError({"k8s.t.core.pods"}),
    ):
        assert unreadable(error) == (
            "topic k8s.t.core.pods may not be read by this user: grant READ on it or its prefix"
        )
    assert unreadable(KafkaError("it is full")) == "it is full"


@pytest.mark.parametrize(
    "kafka",
    ["", [], {}, {"bootstrap": "k:9092"}, "k:x", ["k:9092", "k:0"], ":9092", ["k:99999"], [7]],
)
def test_an_address_that_can_never_be_right_is_refused_at_construction(kafka: Any) -> None:
    with pytest.raises(ValueError, match="bootstrap server"):
        TopicReader(kafka, control_topic=CONTROL)


@pytest.mark.parametrize(
    "kafka",
    ["k", "k:9092", "k:9092,l:9093", ["k:9092", "[::1]:9092"], {"bootstrap_servers": "k:9092"}],
)
def test_addresses_that_aiokafka_takes_are_taken(kafka: Any) -> None:
    TopicReader(kafka, control_topic=CONTROL)


@pytest.mark.parametrize("given", [{"streams": "pods"}, {"topics": "k8s.t.core.pods"}])
def test_a_name_where_several_are_wanted_is_refused(given: Any) -> None:
    with pytest.raises(TypeError, match=r"takes several: \['"):
        TopicReader("k:9092", control_topic=CONTROL, **given)


def test_lines_of_the_client_reach_those_who_ask_for_them_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Without a handler the standard library prints them to stderr."""
    client = logging.getLogger("aiokafka")
    assert any(isinstance(handler, logging.NullHandler) for handler in client.handlers)
    assert client.propagate
    assert client.level == logging.NOTSET
    logging.getLogger("aiokafka.cluster").error("Topic %s not found in cluster metadata", "x")
    assert "Topic x not found" in caplog.text, "a process that configures logging gets them"
