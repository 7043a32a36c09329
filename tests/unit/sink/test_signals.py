"""Room: sink.  In: records of the signal topic, as its tail hands them on.  Out: claims about what is taken, counted and said."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest

from watchrelay.model.headers import UNREADABLE
from watchrelay.observe.metrics import Metrics
from watchrelay.observe.status import Board
from watchrelay.sink.connection import KafkaConnection
from watchrelay.sink.signalrules import SnapshotRequest, signal_value
from watchrelay.sink.signals import SignalTopic


def test_a_flood_of_signals_is_counted_whole_and_logged_in_part(caplog: pytest.LogCaptureFixture) -> None:
    taken, metrics = list[str](), Metrics()

    def take(request: SnapshotRequest, written_ms: int, *, backlog: bool) -> None:
        taken.append(request.id)

    topic = SignalTopic(KafkaConnection(bootstrap_servers=("k:9092",)), "signal", take, metrics=metrics, board=Board())
    topic.began(0)
    with caplog.at_level(logging.INFO, "watchrelay"):
        for offset in range(3000):
            value = b"{}" if offset % 2 else signal_value(SnapshotRequest(f"r{offset}", ("pods",)))
            topic.take(SimpleNamespace(offset=offset, value=value, timestamp=0, headers=()))
    count = metrics.counter("signals")
    assert len(taken) == count.labels("taken")._value.get() == count.labels("refused")._value.get() == 1500
    assert [line.message for line in caplog.records[-1:]] == ["more signals than are logged"]
    assert len(caplog.records) == 101


def test_a_signal_that_could_not_be_read_is_refused_in_the_readers_words(caplog: pytest.LogCaptureFixture) -> None:
    topic = SignalTopic(KafkaConnection(bootstrap_servers=("k:9092",)), "signal", lambda *_, **__: None, metrics=Metrics(), board=Board())
    topic.began(0)
    topic.take(SimpleNamespace(offset=0, value=None, timestamp=0, headers=((UNREADABLE, b"a batch that is a bomb"),)))
    assert [vars(line)["error"] for line in caplog.records] == ["a batch that is a bomb"]
