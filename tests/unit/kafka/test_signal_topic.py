"""Records of the signal topic: which are taken, counted and logged."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from watchrelay.contract.headers import UNREADABLE
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.signal_records import SnapshotRequest, signal_value
from watchrelay.kafka.signal_topic import SignalTopic
from watchrelay.observe.metrics import Metrics
from watchrelay.observe.status import StatusRegistry


def test_a_flood_of_signals_is_counted_whole_and_logged_in_part(
    caplog: pytest.LogCaptureFixture,
) -> None:
    taken, metrics = list[str](), Metrics()

    def take(request: SnapshotRequest, written_ms: int, *, backlog: bool) -> None:
        taken.append(request.id)

    topic = SignalTopic(
        KafkaConnection(bootstrap_servers=("k:9092",)),
        "signal",
        take,
        metrics=metrics,
        statuses=StatusRegistry(),
    )
    topic.began(0, 0)
    with caplog.at_level(logging.INFO, "watchrelay"):
        for offset in range(3000):
            value = b"{}" if offset % 2 else signal_value(SnapshotRequest(f"r{offset}", ("pods",)))
            topic.take(
                SimpleNamespace(partition=0, offset=offset, value=value, timestamp=0, headers=())
            )
    count = metrics.counter("signals")
    assert (
        len(taken)
        == count.labels("taken")._value.get()
        == count.labels("refused")._value.get()
        == 1500
    )
    assert [line.message for line in caplog.records[-1:]] == [
        "too many signals; not logging more of them this minute"
    ]
    assert len(caplog.records) == 101


def test_a_signal_that_could_not_be_read_is_refused_in_the_readers_words(
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic = SignalTopic(
        KafkaConnection(bootstrap_servers=("k:9092",)),
        "signal",
        lambda *_, **__: None,
        metrics=Metrics(),
        statuses=StatusRegistry(),
    )
    topic.began(0, 0)
    topic.take(
        SimpleNamespace(
            partition=0,
            offset=0,
            value=None,
            timestamp=0,
            headers=((UNREADABLE, b"a batch that is a bomb"),),
        )
    )
    assert [vars(line)["error"] for line in caplog.records] == ["a batch that is a bomb"]


NOW_MS = 1_767_323_045_000
HOUR_MS = 3_600_000


class Signals:
    """A signal topic whose records of the past end at offset 100."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, tuple[str, ...], int]] = []
        self.metrics, self.now_s = Metrics(), 0.0
        connection = KafkaConnection(bootstrap_servers=("k:9092",))
        clocks: dict[str, Any] = {"now_s": lambda: self.now_s, "wall_ms": lambda: NOW_MS}
        self.topic = SignalTopic(
            connection,
            "signal",
            self.take,
            metrics=self.metrics,
            statuses=StatusRegistry(),
            **clocks,
        )
        self.topic.began(100, 0)

    def take(self, request: SnapshotRequest, written_ms: int, *, backlog: bool) -> None:
        self.taken.append((request.id, request.streams, written_ms))

    def receive(self, request_id: str, *streams: str, offset: int, at_ms: int = NOW_MS) -> None:
        value = signal_value(SnapshotRequest(request_id, streams))
        self.topic.take(
            SimpleNamespace(partition=0, offset=offset, value=value, timestamp=at_ms, headers=())
        )

    def count(self, result: str) -> float:
        return float(self.metrics.counter("signals").labels(result)._value.get())


def test_a_signal_of_the_past_that_is_dated_in_the_future_is_not_taken_at_every_start() -> None:
    signals = Signals()
    for number, at_ms in enumerate(
        (NOW_MS - HOUR_MS - 1, NOW_MS - HOUR_MS, NOW_MS + HOUR_MS, NOW_MS + HOUR_MS + 1, 2**62, -1)
    ):
        signals.receive(f"r{number}", "pods", offset=number, at_ms=at_ms)
    assert [request for request, _, _ in signals.taken] == ["r1", "r2"]
    assert signals.count("expired") == 4


def test_a_signal_that_comes_now_was_written_now_whatever_the_clock_of_its_writer_shows() -> None:
    signals = Signals()
    for number, at_ms in enumerate((0, NOW_MS - 10 * HOUR_MS, NOW_MS + 10 * HOUR_MS, 2**62, -1)):
        signals.receive(f"r{number}", "pods", offset=100 + number, at_ms=at_ms)
    assert [written_ms for _, _, written_ms in signals.taken] == [NOW_MS] * 5


def test_an_id_that_another_consumer_uses_for_other_streams_is_another_request() -> None:
    signals = Signals()
    for offset, stream in enumerate(("pods", "nodes", "pods", "nodes")):
        signals.receive("1", stream, offset=100 + offset)
    assert [streams for _, streams, _ in signals.taken] == [("pods",), ("nodes",)]
    assert signals.count("repeated") == 2


def test_an_id_may_be_used_again_an_hour_later() -> None:
    signals = Signals()
    for offset, now_s in enumerate((0.0, HOUR_MS / 1000, HOUR_MS / 1000 + 1)):
        signals.now_s = now_s
        signals.receive("1", "pods", offset=100 + offset)
    assert (len(signals.taken), signals.count("repeated")) == (2, 1)


def test_the_clock_is_asked_once_for_the_records_of_a_batch() -> None:
    asked = list[int]()

    def wall_ms() -> int:
        asked.append(NOW_MS + len(asked))
        return asked[-1]

    signals = Signals()
    signals.topic._wall_ms = wall_ms
    for batch in range(2):
        for number in range(50):
            signals.receive(f"r{batch}-{number}", "pods", offset=100 + 50 * batch + number)
        signals.topic.moved(150 + 50 * batch)
    assert asked == [NOW_MS, NOW_MS + 1]
    assert [written_ms for _, _, written_ms in signals.taken] == [NOW_MS] * 50 + [NOW_MS + 1] * 50
