"""What the reporter of a watch logs and shows."""

from __future__ import annotations

import asyncio
import logging

import pytest

from tests.support.virtualtime import virtual
from tests.support.watchmachine import PODS, frame, rules
from watchrelay.core.errors import Expired, Invalid, Undecodable
from watchrelay.model.frames import Bookmark, Failure, Frame, Page
from watchrelay.observe.loglimit import SUBJECTS_MAX
from watchrelay.observe.metrics import Metrics
from watchrelay.observe.status import StreamStatus
from watchrelay.watch import machine, messages
from watchrelay.watch.reporting import WatchReporter
from watchrelay.watch.states import State


def reporter_of(status: StreamStatus, metrics: Metrics | None = None) -> WatchReporter:
    of_stream = (metrics or Metrics()).stream("pods", PODS.resource)
    return WatchReporter("pods", of_stream, status, status.progress)


def bad(name: str, why: str = "deep") -> Undecodable:
    return Undecodable(f"a watch line cannot be decoded: {why}", about=("shop", name))


@virtual
async def test_an_object_skipped_again_and_again_is_one_line_per_cause_with_a_count(
    caplog: pytest.LogCaptureFixture,
) -> None:
    metrics = Metrics()

    with caplog.at_level(logging.ERROR):
        reporter = reporter_of(StreamStatus("pods"), metrics)
        for _ in range(600):
            reporter.skipped((bad("a"), bad("b")))
            await asyncio.sleep(1)
        reporter.skipped((bad("a", "not UTF-8"),))
    lines = [(record.__dict__["object"], record.__dict__["count"]) for record in caplog.records]
    assert lines == [("shop/a", 1), ("shop/b", 1), ("shop/a", 300), ("shop/b", 300), ("shop/a", 1)]
    assert (
        metrics.counter("events_filtered")
        .labels("pods", "", "v1", "pods", "quarantined")
        ._value.get()
        == 1201
    )


@virtual
async def test_a_flood_of_different_objects_is_a_bounded_number_of_lines(
    caplog: pytest.LogCaptureFixture,
) -> None:

    with caplog.at_level(logging.ERROR):
        reporter = reporter_of(StreamStatus("pods"))
        for number in range(5000):
            reporter.skipped((bad(f"p{number}" + "x" * 5000),))
    assert 1 < len(caplog.records) <= SUBJECTS_MAX + 1
    assert all(len(record.__dict__["object"]) <= 300 for record in caplog.records)


def test_a_history_that_expires_between_pages_is_not_logged_as_that_of_the_watch(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def logged(state: State, event: messages.Event) -> list[str]:
        caplog.clear()
        reporter.stepped(state)
        after, commands = machine.step(by, state, event, 0.0)
        reporter.stepped(after, event)
        for command in commands[:-1]:
            if isinstance(command, messages.Retrying):
                reporter.report(command)
        return [each.message for each in caplog.records if "expired" in each.message]

    status, by = StreamStatus("pods"), rules()
    reporter = reporter_of(status)
    with caplog.at_level(logging.INFO):
        listing, _ = machine.start(by, now_s=0.0)
        first_page = messages.PageReceived(Page("5", "next", []))
        listing, _ = machine.step(by, listing, first_page, 0.0)
        assert logged(listing, messages.RequestFailed(Expired("too old"))) == [
            "history expired between pages; listing again in one page"
        ]
        watching, _ = machine.start(by, cursor="5", now_s=0.0)
        watching, _ = machine.step(by, watching, messages.WatchOpened(), 0.0)
        frames: list[Frame] = [Failure(Expired("too old"))]
        assert logged(watching, messages.FramesReceived(frames, 0.0)) == [
            "watch history expired; relisting"
        ]


@pytest.mark.parametrize(
    ("about", "level", "state"),
    [("selector", "ERROR", "waiting"), ("continue", "WARNING", "backoff")],
)
@virtual
async def test_a_refused_form_of_a_request_asks_for_no_operator(
    about: str, level: str, state: str, caplog: pytest.LogCaptureFixture
) -> None:

    with caplog.at_level(logging.WARNING):
        status, by = StreamStatus("pods"), rules()
        reporter = reporter_of(status)
        listing, _ = machine.start(by, now_s=0.0)
        reporter.stepped(listing)
        event = messages.RequestFailed(Invalid("refused", about=about, status=400))
        after, commands = machine.step(by, listing, event, 0.0)
        reporter.stepped(after, event)
        (retrying,) = (each for each in commands if isinstance(each, messages.Retrying))
        reporter.report(retrying)
        assert status.state == state
        assert (status.wait is not None) == (state == "waiting")
    assert [each.levelname for each in caplog.records] == [level]


def test_objects_and_bookmarks_of_the_watch_have_their_newest_times() -> None:
    status = StreamStatus("pods")
    reporter = reporter_of(status)
    reporter.received([Bookmark("7")])
    assert status.last_bookmark_ms is not None
    assert status.last_event_ms is None, "a bookmark is no event"
    reporter.received([frame("a", "8")])
    assert status.last_event_ms is not None


@virtual
async def test_a_stream_that_waited_for_the_circuit_breaker_shows_no_next_attempt_once_it_goes_on() -> (
    None
):
    status, by = StreamStatus("pods"), rules()
    reporter = reporter_of(status)
    before, _ = machine.start(by, cursor="7", now_s=0.0)
    reporter.stepped(before)
    reporter.paused(asyncio.get_running_loop().time() + 30.0)
    shown = [status.next_attempt_ms]
    reporter.requesting(streaming=False, listing=False)
    event = messages.WatchOpened()
    after, _ = machine.step(by, before, event, 31.0)
    reporter.stepped(after, event)
    shown.append(status.next_attempt_ms)
    assert shown[0] is not None
    assert shown[1] is None
