"""Each request reaches the writer of each stream it names: once there is one, and not when it was
answered before."""

from __future__ import annotations

import logging

import pytest

from watchrelay.core.timestamps import rfc3339
from watchrelay.daemon.snapshot_requests import (
    ALL_WAITING_MAX,
    EXPIRE_S,
    SNAPSHOT_MS_MAX,
    WAITING_MAX,
    SnapshotRequests,
    answered,
)
from watchrelay.kafka.signal_records import SnapshotRequest
from watchrelay.model.parts import stream_and_part
from watchrelay.observe.loglimit import SUBJECTS_MAX

NOW_MS = 1_767_323_045_006


class Control:
    def __init__(self, **indexes: dict[str, object]) -> None:
        self.indexes = indexes

    def newest_indexes(self, stream: str) -> list[dict[str, object]]:
        return [self.indexes[stream]] if stream in self.indexes else []

    def described(self, stream: str) -> dict[str, object] | None:
        return {} if stream_and_part(stream)[0] in {"pods", "nodes"} else None


def index(*ids: str, ended_ms: int = NOW_MS) -> dict[str, object]:
    return {"requests": list(ids), "time": rfc3339(ended_ms)}


def ask(
    requests: SnapshotRequests,
    request_id: str,
    *streams: str,
    written_ms: int = NOW_MS,
    backlog: bool = False,
) -> None:
    requests.take(SnapshotRequest(request_id, streams or ("pods",)), written_ms, backlog=backlog)


def test_a_request_goes_to_each_stream_that_it_names_and_to_no_other() -> None:
    requests = SnapshotRequests(Control())
    pods: list[str] = []
    nodes: list[str] = []
    with requests.serving("pods", pods.append), requests.serving("nodes", nodes.append):
        ask(requests, "one", "pods", "nodes")
        ask(requests, "two", "nodes")
    assert (pods, nodes) == (["one"], ["one", "two"])


@pytest.mark.parametrize("odd", ["pods%", "pods%0/4", "%", "%0/2"])
def test_what_no_stream_can_be_called_is_unknown_and_the_other_streams_are_asked(
    odd: str, caplog: pytest.LogCaptureFixture
) -> None:
    requests = SnapshotRequests(Control())
    received: list[str] = []
    with requests.serving("nodes", received.append):
        ask(requests, "one", odd, "nodes")
    assert received == ["one"]
    (warning,) = caplog.records
    assert (warning.message, warning.__dict__["stream"]) == ("signal names an unknown stream", odd)


def test_a_request_waits_for_its_writer() -> None:
    requests = SnapshotRequests(Control())
    ask(requests, "early")
    received: list[str] = []
    with requests.serving("pods", received.append):
        assert received == ["early"]


def test_what_a_writer_that_stopped_left_unanswered_goes_to_the_next() -> None:
    control = Control()
    requests = SnapshotRequests(control)
    with requests.serving("pods", lambda _: None):
        ask(requests, "answered")
        ask(requests, "pending")
    control.indexes["pods"] = index("answered")
    received: list[str] = []
    with requests.serving("pods", received.append):
        assert received == ["pending"]


@pytest.mark.parametrize("late", [False, True])
def test_what_an_earlier_relay_answered_is_not_asked_again(late: bool) -> None:
    requests = SnapshotRequests(Control(pods=index("done")))
    received: list[str] = []
    if late:
        with requests.serving("pods", received.append):
            ask(requests, "done", backlog=True)
            ask(requests, "open", backlog=True)
    else:
        ask(requests, "done", backlog=True)
        ask(requests, "open", backlog=True)
        with requests.serving("pods", received.append):
            pass
    assert received == ["open"]


def test_a_request_much_older_than_the_newest_snapshot_was_answered_by_an_earlier_one() -> None:
    assert answered(index(), "x", NOW_MS - SNAPSHOT_MS_MAX - 1, NOW_MS)
    assert not answered(index(), "x", NOW_MS - SNAPSHOT_MS_MAX, NOW_MS)
    assert answered(index("x"), "x", NOW_MS + 1, NOW_MS)


def test_without_an_index_record_or_with_a_strange_one_a_request_is_open() -> None:
    assert not answered(None, "x", 0, NOW_MS)
    for strange in ({}, {"requests": "x"}, {"time": 7}, {"time": "noon"}):
        assert not answered(strange, "x", 0, NOW_MS)


def test_a_stream_that_nobody_published_is_named_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        ask(SnapshotRequests(Control()), "r", "pods", "nosuch")
    assert [(record.getMessage(), record.__dict__["stream"]) for record in caplog.records] == [
        ("signal names an unknown stream", "nosuch")
    ]


def test_what_waits_is_bounded() -> None:
    requests = SnapshotRequests(Control())
    for number in range(WAITING_MAX + 1):
        ask(requests, f"r{number}")
    for number in range(WAITING_MAX + 5):
        ask(requests, "r", f"stream-{number}")
    received: list[str] = []
    with requests.serving("pods", received.append):
        assert (received[0], len(received)) == ("r1", WAITING_MAX)
    with requests.serving(f"stream-{WAITING_MAX + 4}", received.append):
        assert len(received) == WAITING_MAX


def test_a_signal_that_names_a_thousand_unknown_streams_takes_no_place_of_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    requests = SnapshotRequests(Control(), configured={"jobs"})
    with caplog.at_level(logging.WARNING):
        for number in range(20):
            ask(
                requests,
                f"flood-{number}",
                *(f"stream-{number}-{each}" for each in range(WAITING_MAX)),
            )
    assert len(caplog.records) == 20, "one line for each request"
    assert vars(caplog.records[0])["unknown"] == WAITING_MAX
    ask(requests, "wanted", "pods", "jobs")
    received: list[str] = []
    with requests.serving("pods", received.append), requests.serving("jobs", received.append):
        assert received == ["wanted", "wanted"], "jobs is in the config, and not described yet"
    with requests.serving("stream-0-0", received.append):
        assert len(received) == 2


def test_a_flood_of_signals_that_name_unknown_streams_is_logged_in_part(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now_s = [0.0]
    requests = SnapshotRequests(Control(), now_s=lambda: now_s[0])
    with caplog.at_level(logging.WARNING):
        for number in range(5000):
            ask(requests, f"r{number}", f"stream-{number}")
            ask(requests, f"s{number}", "the same")
        assert len(caplog.records) <= SUBJECTS_MAX + 1
        now_s[0] += EXPIRE_S + 1
        ask(requests, "later", "stream-1")
    assert len(caplog.records) <= SUBJECTS_MAX + 2
    assert vars(caplog.records[-1])["stream"] == "stream-1"


def test_a_request_expires_also_where_the_clock_of_who_wrote_it_is_ahead() -> None:
    now_s = [0.0]
    requests = SnapshotRequests(Control(), now_s=lambda: now_s[0])
    ask(requests, "old", written_ms=NOW_MS + 10**9)
    now_s[0] += EXPIRE_S + 1
    ask(requests, "new")
    received: list[str] = []
    with requests.serving("pods", received.append):
        assert received == ["new"]
    now_s[0] += EXPIRE_S + 1
    with requests.serving("pods", received.append):
        assert received == ["new"]


def test_many_requests_for_one_stream_push_out_none_for_another() -> None:
    class Many(Control):
        def described(self, stream: str) -> dict[str, object] | None:
            return {}

    requests = SnapshotRequests(Many())
    ask(requests, "quiet", "nodes")
    for number in range(3 * ALL_WAITING_MAX // WAITING_MAX):
        for each in range(WAITING_MAX + 1):
            ask(requests, f"r{each}", f"stream-{number}")
    assert sum(map(len, requests._open.values())) <= 3 * ALL_WAITING_MAX
    received: list[str] = []
    with requests.serving("nodes", received.append):
        assert received == ["quiet"]


def test_an_index_record_dated_in_the_future_answers_only_what_it_names() -> None:
    ahead = index("named", ended_ms=NOW_MS + 3_600_000)
    assert answered(ahead, "named", NOW_MS, NOW_MS)
    assert not answered(ahead, "other", NOW_MS, NOW_MS)
    assert not answered(ahead, "other", NOW_MS - SNAPSHOT_MS_MAX - 1, NOW_MS)
    requests = SnapshotRequests(Control(pods=ahead), wall_ms=lambda: NOW_MS)
    ask(requests, "named", backlog=True)
    ask(requests, "other", backlog=True)
    received: list[str] = []
    with requests.serving("pods", received.append):
        assert received == ["other"]


def test_a_request_for_a_split_stream_goes_to_each_of_its_parts_also_where_one_has_answered() -> (
    None
):
    control = Control()
    requests = SnapshotRequests(control)
    first: list[str] = []
    second: list[str] = []
    with requests.serving("pods%0/2", first.append):
        ask(requests, "one", "pods")
        control.indexes["pods%0/2"] = index("one")
    with (
        requests.serving("pods%0/2", first.append),
        requests.serving("pods%1/2", second.append),
    ):
        assert (first, second) == (["one"], ["one"])
        ask(requests, "two", "pods")
    assert (first, second) == (["one", "two"], ["one", "two"])


def test_a_request_is_answered_only_once_the_newest_snapshot_of_each_partition_answers_it() -> None:
    class Resized(Control):
        def newest_indexes(self, stream: str) -> list[dict[str, object]]:
            return [index("one"), index()]  # of the parts before

    requests = SnapshotRequests(Resized())
    ask(requests, "one", "pods", backlog=True)
    received: list[str] = []
    with requests.serving("pods", received.append):
        assert received == ["one"]
