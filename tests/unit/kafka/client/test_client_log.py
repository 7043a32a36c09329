"""Which line of the client's log is given as the reason."""

import logging

import pytest

from watchrelay.kafka.client.client_log import LogTail, listening


def test_the_newest_error_is_the_reason_and_a_warning_only_without_one() -> None:
    tail = LogTail()
    assert tail.reason == ""
    tail.add(logging.WARNING, "w1")
    assert tail.reason == "w1"
    tail.add(logging.ERROR, "e1")
    tail.add(logging.ERROR, "e2")
    tail.add(logging.WARNING, "w2")
    assert tail.reason == "e2"
    tail.clear()
    assert tail.reason == ""


def test_what_only_follows_from_a_failed_connection_is_not_told_as_its_reason() -> None:
    tail = LogTail()
    tail.add(logging.ERROR, "Unable to update metadata from [1]")
    assert tail.reason == "Unable to update metadata from [1]"
    tail.add(
        logging.ERROR,
        "Unable connect to node with id 1: [Errno 111] Connect call failed ('127.0.0.1', 9092)",
    )
    tail.add(logging.ERROR, "Unable to update metadata from [1]")
    assert "Connect call failed" in tail.reason


def test_a_tail_is_bounded() -> None:
    tail = LogTail()
    tail.add(logging.ERROR, "x" * 10_000)
    assert len(tail.reason) == 300
    for index in range(100):
        tail.add(logging.WARNING, str(index))
    assert tail.reason == "99"


def test_each_client_hears_its_own_lines_and_the_debug_log_all(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, logger="watchrelay")
    log = logging.getLogger("aiokafka.client")
    with listening() as outer:
        with listening() as inner:
            log.error("inner\n  trouble")
        log.error("outer trouble")
    log.error("nobody's trouble")
    assert (inner.reason, outer.reason) == ("inner trouble", "outer trouble")
    said = [
        vars(record)["line"]
        for record in caplog.records
        if record.name == "watchrelay.kafka.client.client_log"
    ]
    assert said == ["inner trouble", "outer trouble", "nobody's trouble"]


def test_a_connection_that_was_closed_without_a_word_is_told_from_one_that_is_silent() -> None:
    log = logging.getLogger("aiokafka.conn")
    with listening() as tail:
        log.error('Unable connect to "%s:%s": %s', "b", 1, ConnectionResetError())
        assert tail.reason == 'Unable connect to "b:1": connection closed'
        log.error('Unable connect to "%s:%s": %s', "b", 1, TimeoutError())
        assert tail.reason == 'Unable connect to "b:1":'
