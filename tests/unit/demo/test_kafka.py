"""A machine with or without confluent-kafka: claims about the embedded Kafka's life."""

import sys

import pytest

from watchrelay.demo.kafka import EmbeddedKafka, EmbeddedKafkaError


def test_without_confluent_kafka_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(EmbeddedKafkaError, match=r"pip install 'watchrelay\[demo\]'"):
        EmbeddedKafka.start()


def test_each_broker_has_an_address_and_stopping_twice_is_no_harm() -> None:
    kafka = EmbeddedKafka.start(3)
    assert len(kafka.bootstrap.split(",")) == 3
    kafka.stop()
    kafka.stop()
    with pytest.raises(EmbeddedKafkaError, match="was stopped"):
        kafka.create_topic("t")


def test_what_it_refuses_is_reported_with_the_reason() -> None:
    with EmbeddedKafka.start() as kafka:
        kafka.create_topic("t", 2)
        with pytest.raises(EmbeddedKafkaError, match=r"topic_create.*already exists"):
            kafka.create_topic("t", 2)
        with pytest.raises(EmbeddedKafkaError, match="broker_set_down"):
            kafka.broker_down(9)


def test_nothing_is_written_to_the_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    with EmbeddedKafka.start() as kafka:
        kafka.create_topic("t", 1)
        kafka.broker_down()
        kafka.broker_up()
    assert capfd.readouterr() == ("", "")
