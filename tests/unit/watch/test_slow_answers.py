"""Watches that the server is slow to accept: their age counts from the answer, as that of any other,
unless the answer was held back."""

import pytest

from tests.support.watchmachine import Played, rules
from watchrelay.model.frames import Bookmark
from watchrelay.model.watch_output import ServerSeen
from watchrelay.watch.context import StreamContext
from watchrelay.watch.machine import BRIEF_WATCH_S, step
from watchrelay.watch.messages import Event, FramesReceived, WatchEnded, WatchOpened
from watchrelay.watch.states import OpeningWatch, Watching


class Slow(Played):
    """A server that accepts each watch after `waited_s`, and ends it at once."""

    waited_s = 0.0

    def open(self) -> Event:
        self.now_s += self.waited_s
        return WatchOpened(self.waited_s)

    def read(self, until_s: float) -> Event:
        return WatchEnded()


def opened(waited_s: float, *, timeout_s: int = 0, answers_late: bool = False) -> Watching:
    by = rules()
    context = StreamContext("100", has_state=True, state_shown_at_s=0.0, answers_late=answers_late)
    opening = OpeningWatch(context, context.watch_query(by, "100", timeout_s=timeout_s))
    watch, _ = step(by, opening, WatchOpened(waited_s), waited_s)
    assert isinstance(watch, Watching)
    return watch


@pytest.mark.parametrize("waited_s", [0.1, 1.2, 4.0])
def test_watches_that_end_at_once_follow_at_growing_delays_also_where_they_open_slowly(
    waited_s: float,
) -> None:
    server = Slow(rules(), cursor="100")
    server.waited_s = waited_s
    server.run(600.0)
    assert server.watches <= 30, "one in some 30 s"


def test_a_watch_that_opened_slowly_ends_in_its_time_after_the_answer() -> None:
    watch = opened(4.0)
    _, commands = step(rules(), watch, WatchEnded(), 4.0 + watch.query.timeout_s + 0.2)
    assert ServerSeen() in commands


def test_one_whose_answer_was_held_back_ends_in_its_time_after_the_request() -> None:
    watch = opened(50.0, timeout_s=50, answers_late=True)
    _, commands = step(rules(), watch, WatchEnded(), 50.1)
    assert ServerSeen() in commands


def test_the_last_bookmark_of_a_brief_watch_that_opened_slowly_shows_that_bookmarks_come() -> None:
    watch = opened(1.2, timeout_s=BRIEF_WATCH_S)
    at_s = 1.2 + BRIEF_WATCH_S - 2.0
    watching, _ = step(rules(), watch, FramesReceived([Bookmark("100")], at_s), at_s)
    assert watching.context.bookmarks_seen
