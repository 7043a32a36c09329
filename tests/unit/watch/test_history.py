"""What a small list shows of the history from which the held state was made."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import pytest

from tests.support.watchmachine import frame
from watchrelay.core.errors import Undecodable
from watchrelay.model.frames import ObjectFrame, Page
from watchrelay.model.resources import compare
from watchrelay.watch.history import History, HistoryCheck


@dataclass
class State:
    """By name, uid and version."""

    held: dict[str, tuple[str, str]] = field(default_factory=dict)

    def lacks(self, frame: ObjectFrame) -> bool:
        uid, version = self.held.get(frame.name, ("", "0"))
        return uid != frame.uid or compare(frame.resource_version, version) == -1

    def holds_up_to(self, version: str) -> bool:
        return any(compare(each, version) != 1 for _, each in self.held.values())


def page(version: str, *objects: ObjectFrame) -> Page:
    return Page(version, None, list(objects))


@pytest.mark.parametrize(
    ("held", "shown", "history"),
    [
        (("uid-a", "90"), "90", "same"),
        (("uid-a", "80"), "90", "same"),  # a change that was suppressed
        (("uid-a", "95"), "90", "other"),  # restored from a backup
        (("former", "90"), "90", "other"),
        (None, "90", "other"),
        (None, "100", "other"),
        (None, "101", "same"),  # the watch brings it
        (("former", "90"), "101", "same"),
        (None, "x", "same"),
    ],
)
def test_a_first_object_up_to_the_cursor_is_held_as_it_is_shown(
    held: tuple[str, str] | None, shown: str, history: History
) -> None:
    check = HistoryCheck(State({} if held is None else {"a": held}))
    assert check.judge(page("120", frame("a", shown)), "100") == history


def test_what_the_watch_may_have_deleted_since_the_list_takes_a_second_one() -> None:
    state = State({"b": ("uid-b", "50")})
    check = HistoryCheck(state)
    shown = page("120", frame("a", "90"))
    assert check.judge(shown, "121") == "unclear"
    assert check.judge(page("130", frame("b", "50")), "131") == "same", "it was deleted"
    assert check.judge(shown, "131") == "unclear"
    assert check.judge(page("140", frame("a", "90")), "150") == "other", "it is there yet"


def test_a_list_without_objects_counts_once_the_watch_has_passed_it() -> None:
    state = State({"a": ("uid-a", "50")})
    check = HistoryCheck(state)
    assert check.judge(page("120"), "100") == "unclear", "the watch may show why"
    assert check.judge(page("140"), "125") == "other"
    check = HistoryCheck(state)
    assert check.judge(page("120"), "120") == "other"
    assert HistoryCheck(State()).judge(page("120"), "100") == "same"
    check = HistoryCheck(state)
    check.judge(page("120"), "100")
    state.held.clear()
    assert check.judge(page("140"), "125") == "same", "it has shown why"


@pytest.mark.parametrize(
    "shows_nothing",
    [Page("120", "more", []), Page("120", None, [], failures=(Undecodable("a", about=None),))],
)
def test_a_page_whose_objects_are_elsewhere_shows_nothing(shows_nothing: Page) -> None:
    assert HistoryCheck(State({"a": ("uid-a", "50")})).judge(shows_nothing, "120") == "same"


@pytest.mark.parametrize("seed", range(50))
def test_a_server_that_only_lags_or_runs_ahead_of_the_watch_is_never_another(seed: int) -> None:
    """Lists of the present, and a watch that shows each change some time after it."""
    rng = Random(seed)
    server, state, version, cursor = State(), State(), 100, 100
    events: list[tuple[int, str, tuple[str, str] | None]] = []
    check = HistoryCheck(state)
    asked: Page | None = None
    for number in range(2000):
        match rng.randrange(5):
            case 0 | 1:
                name, version = rng.choice("abc"), version + rng.randint(1, 3)
                uid = server.held.get(name, (f"u{number}", ""))[0]
                now = None if name in server.held and rng.random() < 0.5 else (uid, str(version))
                events.append((version, name, now))
                server.held = {each: at for each, at in server.held.items() if each != name}
                server.held |= {} if now is None else {name: now}
            case 2 if events:
                for at, name, now in events[: rng.randint(1, 4)]:
                    events, cursor = events[1:], at
                    state.held.pop(name, None)
                    state.held |= {} if now is None else {name: now}
            case 3 if asked is None:
                first = sorted(server.held)[:1]
                uid_of = server.held
                objects = [frame(each, uid_of[each][1]) for each in first]
                for each in objects:
                    each.uid = uid_of[each.name][0]
                asked = page(str(version), *objects)
            case 4 if asked is not None:
                assert check.judge(asked, str(cursor)) != "other"
                asked = None
            case _:
                pass
