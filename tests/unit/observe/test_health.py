"""Readiness: what `/readyz` promises."""

from tests.support.troubles import trouble
from watchrelay.core.trouble import Cause
from watchrelay.observe.status import Readiness, StatusRegistry


def test_a_process_that_has_not_resolved_its_config_is_not_ready() -> None:
    assert Readiness(StatusRegistry()).check()[0] is False


def test_ready_once_every_stream_is_complete_and_not_before() -> None:
    statuses = StatusRegistry()
    pods, nodes = statuses.open("pods"), statuses.open("nodes")
    readiness = Readiness(statuses, started=True)
    pods.progress.whole = True
    ready, body = readiness.check()
    assert ready is False
    assert body["streams"] == {
        "pods": {"state": "waiting"},
        "nodes": {"state": "waiting", "reason": "not started yet"},
    }
    nodes.progress.whole = True
    assert readiness.check()[0] is True


def test_a_stream_that_waits_for_a_person_does_not_hold_readiness_back_and_is_named() -> None:
    statuses = StatusRegistry()
    statuses.open("pods").progress.whole = True
    statuses.open("secrets").failed("watch", trouble("no right to list secrets", operator=True))
    ready, body = Readiness(statuses, started=True).check()
    assert ready is True
    assert body["streams"] == {
        "pods": {"state": "waiting"},
        "secrets": {"state": "waiting", "reason": "no right to list secrets"},
    }


def test_readiness_stays_through_a_later_outage_and_says_what_is_wrong() -> None:
    statuses = StatusRegistry()
    pods = statuses.open("pods")
    pods.progress.whole = True
    readiness = Readiness(statuses, started=True)
    assert readiness.check()[0] is True
    pods.progress.state = "backoff"
    pods.failed("watch", trouble("connection refused"))
    statuses.problems.put("kafka", trouble("no broker answers", Cause.KAFKA))
    ready, body = readiness.check()
    assert ready is True
    assert body["problems"] == {"kafka": "no broker answers"}
    assert body["streams"] == {"pods": {"state": "backoff", "reason": "connection refused"}}


def test_a_stream_whose_first_records_kafka_does_not_take_says_so() -> None:
    readiness = Readiness(StatusRegistry(), started=True)
    readiness.statuses.open("pods").failed("records", trouble("no acknowledgement for 12 s"))
    ready, body = readiness.check()
    assert not ready
    assert body["streams"] == {
        "pods": {"state": "waiting", "reason": "no acknowledgement for 12 s"}
    }
    readiness.statuses.open("pods").failed(
        "records", trouble("topic t: grant WRITE on the topic", operator=True)
    )
    assert readiness.check() == (
        True,
        {
            "ready": True,
            "streams": {
                "pods": {"state": "waiting", "reason": "topic t: grant WRITE on the topic"}
            },
        },
    )


def test_a_stream_that_another_replica_owns_does_not_keep_this_one_from_being_ready() -> None:
    statuses = StatusRegistry()
    mine, other = statuses.open("pods"), statuses.open("jobs")
    readiness = Readiness(statuses, started=True)
    mine.progress.state, other.progress.state = "resuming", "standby"
    assert readiness.check()[0] is False
    mine.progress.whole = True
    assert readiness.check()[0] is True
