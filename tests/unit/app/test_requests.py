"""Each request reaches the writer of each stream it names: once there is one, and not when it was answered before."""

from __future__ import annotations

import logging

import pytest

from watchrelay.app.requests import SNAPSHOT_MS_MAX, WAITING_MAX, Requests, answered
from watchrelay.codec import Instants
from watchrelay.sink.signalrules import SnapshotRequest

NOW_MS = 1_767_323_045_006


class Control:
    def __init__(self, **indexes: dict[str, object]) -> None:
        self.indexes = indexes

    def index(self, stream: str) -> dict[str, object] | None:
        return self.indexes.get(stream)

    def described(self, stream: str) -> dict[str, object] | None:
        return {} if stream in {"pods", "nodes"} else None


def index(*ids: str, ended_ms: int = NOW_MS) -> dict[str, object]:
    return {"requests": list(ids), "time": Instants().render(ended_ms).decode()}


def ask(requests: Requests, request_id: str, *streams: str, written_ms: int = NOW_MS, backlog: bool = False) -> None:
    requests.take(SnapshotRequest(request_id, streams or ("pods",)), written_ms, backlog=backlog)


def test_a_request_goes_to_each_stream_that_it_names_and_to_no_other() -> None:
    requests = Requests(Control())
    pods: list[str] = []
    nodes: list[str] = []
    with requests.serving("pods", pods.append), requests.serving("nodes", nodes.append):
        ask(requests, "one", "pods", "nodes")
        ask(requests, "two", "nodes")
    assert (pods, nodes) == (["one"], ["one", "two"])


def test_a_request_waits_for_its_writer() -> None:
    requests = Requests(Control())
    ask(requests, "early")
    heard: list[str] = []
    with requests.serving("pods", heard.append):
        assert heard == ["early"]


def test_what_a_writer_that_stopped_left_unanswered_goes_to_the_next() -> None:
    control = Control()
    requests = Requests(control)
    with requests.serving("pods", lambda _: None):
        ask(requests, "answered")
        ask(requests, "owed")
    control.indexes["pods"] = index("answered")
    heard: list[str] = []
    with requests.serving("pods", heard.append):
        assert heard == ["owed"]


@pytest.mark.parametrize("late", [False, True])
def test_what_an_earlier_relay_answered_is_not_asked_again(late: bool) -> None:
    requests = Requests(Control(pods=index("done")))
    heard: list[str] = []
    if late:
        with requests.serving("pods", heard.append):
            ask(requests, "done", backlog=True)
            ask(requests, "open", backlog=True)
    else:
        ask(requests, "done", backlog=True)
        ask(requests, "open", backlog=True)
        with requests.serving("pods", heard.append):
            pass
    assert heard == ["open"]


def test_a_request_much_older_than_the_newest_snapshot_was_answered_by_an_earlier_one() -> None:
    assert answered(index(), "x", NOW_MS - SNAPSHOT_MS_MAX - 1)
    assert not answered(index(), "x", NOW_MS - SNAPSHOT_MS_MAX)
    assert answered(index("x"), "x", NOW_MS + 1)


def test_without_an_index_record_or_with_a_strange_one_a_request_is_open() -> None:
    assert not answered(None, "x", 0)
    for strange in ({}, {"requests": "x"}, {"time": 7}, {"time": "noon"}):
        assert not answered(strange, "x", 0)


def test_a_stream_that_nobody_published_is_named_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        ask(Requests(Control()), "r", "pods", "nosuch")
    assert [(record.getMessage(), record.__dict__["stream"]) for record in caplog.records] == [
        ("signal names a stream that is not there", "nosuch")
    ]


def test_what_waits_is_bounded() -> None:
    requests = Requests(Control())
    for number in range(WAITING_MAX + 1):
        ask(requests, f"r{number}")
    for number in range(WAITING_MAX + 5):
        ask(requests, "r", f"stream-{number}")
    heard: list[str] = []
    with requests.serving("pods", heard.append):
        assert (heard[0], len(heard)) == ("r1", WAITING_MAX)
    with requests.serving(f"stream-{WAITING_MAX + 4}", heard.append):
        assert len(heard) == WAITING_MAX
