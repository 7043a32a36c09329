"""What is wrong with Kafka: what operators are shown of several troubles, and what is logged."""

import logging

import pytest

from watchrelay.core.trouble import Cause, Trouble
from watchrelay.kafka.record_times import RecordTimes
from watchrelay.kafka.troubles import SILENCE, KafkaTroubles
from watchrelay.observe.metrics import Metrics
from watchrelay.observe.status import StatusRegistry

AWAY = "kafka at kafka-0:9092 is not usable: connection refused"


def test_brokers_that_several_producers_do_not_reach_are_one_trouble_until_each_does(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "watchrelay")
    troubles = KafkaTroubles(
        StatusRegistry(),
        Metrics(),
        RecordTimes(),
        servers="kafka-0:9092",
        patience_s=10.0,
        deliveries=list,
    )
    for subject in ("", "/k8s.c.pods", "/k8s.c.jobs"):
        troubles.began(Trouble(subject, Cause.KAFKA, AWAY))
    assert troubles.problem == AWAY
    troubles.began(Trouble(SILENCE, Cause.KAFKA, "no acknowledgement"))
    assert troubles.problem == f"no acknowledgement: {AWAY}"
    troubles.ended(SILENCE)
    troubles.ended("")
    troubles.forget("/k8s.c.jobs")
    assert troubles.problem == AWAY
    troubles.ended("/k8s.c.pods")
    assert not troubles.problem
    assert caplog.messages == ["kafka does not accept records", "kafka accepts records again"]
