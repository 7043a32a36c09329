"""The transition table of the watch machine, held equal to what its step function does."""

from collections.abc import Iterator
from random import Random
from typing import get_args

from msgspec.structs import replace

from tests.support.watchmachine import PODS, Played, frame, silent
from tools.docs.machine import TRANSITIONS
from watchrelay.core.errors import (
    Expired,
    Forbidden,
    Interrupted,
    Invalid,
    KubeError,
    Misconfigured,
    NotAcceptable,
    NotFound,
    NotWatchable,
    Throttled,
    Unauthorized,
    Unavailable,
    Undecodable,
    Unreachable,
    VersionTooLarge,
)
from watchrelay.model.frames import Bookmark, Failure, Frame, ObjectFrame, Page
from watchrelay.model.resources import GONE, SERVED, UNKNOWN, Availability, Selection
from watchrelay.model.streams import WatchPlan
from watchrelay.model.watch_output import ListDone
from watchrelay.watch.context import WatchRules
from watchrelay.watch.messages import (
    CheckDiscovery,
    DiscoveryChecked,
    Event,
    FetchPage,
    FramesReceived,
    ListFinished,
    ListsChecked,
    OpenWatch,
    PageReceived,
    RequestFailed,
    Sleep,
    SleepEnded,
    VersionChecked,
    WatchEnded,
)
from watchrelay.watch.states import State, Watching

VERSIONS = [None, (1, 33), (1, 36), (1, 36)]
HIDDEN = Availability("hidden", "served in v2")
WALKS, STEPS = 3000, 60


ERRORS: list[KubeError] = [
    Expired("410"), Forbidden("403"), Interrupted("cut"), silent(), Invalid("422"),
    Interrupted("500", status=500), Throttled("500", status=500), NotFound("404", status=404),
    Invalid("422", about="version"), Invalid("422", about="continue"),
    Invalid("422", about="streaming"), Misconfigured("no credential"), NotAcceptable("406"),
    NotFound("404"), NotWatchable("405"), Throttled("429", retry_after_s=2), Unauthorized("401"),
    Unavailable("503"), Undecodable("?"), Undecodable("?", about=("shop", "bad")),
    Unreachable("refused"), VersionTooLarge("504"),
]  # fmt: skip


class Walk(Played):
    """One stream's watch with an API server that answers at random."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = Random(seed)
        self.failing, self.usual_error = False, rng.choice(ERRORS)
        plan = WatchPlan(
            Selection(PODS.resource, metadata_only=rng.random() < 0.5),
            initial_list=rng.choice(["auto", "auto", "auto", "paged", "streaming", "streaming"]),
            list_semantic=rng.choice(["mostRecent", "any"]),
            page_size=rng.choice([0, 2]),
            bookmarks=rng.random() < 0.8,
            relist_interval_s=rng.choice([0.0, 60.0, 60.0, 3600.0]),
        )
        super().__init__(
            WatchRules(plan, Random(seed), rng.choice(VERSIONS)),
            cursor=rng.choice(["", "100"]),
            newest_on_log=rng.choice(["", "90", "110"]),
            recovered=rng.random() < 0.5,
            first_wait_s=rng.choice([0.0, 0.0, 1.0]),
        )

    def events(self) -> Iterator[tuple[State, Event, State]]:
        """Every step of the walk."""
        for _ in range(STEPS):
            self.let_pass()
            before, event = self.state, self.answer()
            self.step(event)
            yield before, event, self.state

    def let_pass(self) -> None:
        """Time, changes, and an upgrade of the server now and then."""
        rng = self.rng
        if not isinstance(self.action(), Sleep):
            self.now_s += rng.choice([0.0, 0.0, 0.1, 2.0, 40.0, 100.0, 700.0])
        self.version += rng.choice([0, 0, 1, 5])
        if rng.random() < 0.03:
            self.by = replace(self.by, server_version=rng.choice(VERSIONS))

    def answer(self) -> Event:
        rng, action = self.rng, self.action()
        if isinstance(action, FetchPage | OpenWatch):
            # what failed is likely to fail again
            self.failing = rng.random() < (0.7 if self.failing else 0.2)
            if self.failing:
                return RequestFailed(self.error())
        match action:
            case FetchPage():
                failures = rng.choice([(), (), (), (Undecodable("?"),)])
                token = rng.choice([None, None, "a", "b", "c"])
                return PageReceived(Page(self.any_version(), token, self.objects(), failures))
            case ListDone(accept_any_size=accept):
                return ListFinished(accept or rng.random() < 0.8)
            case Sleep(wakeable=True) if rng.random() < 0.1:
                return SleepEnded(rechecked=True)
            case CheckDiscovery():
                return DiscoveryChecked(rng.choice([SERVED, GONE, GONE, UNKNOWN, HIDDEN]))
            case _:
                return super().answer()

    def check_version(self, until_s: float) -> Event:
        cursor = self.state.cursor if isinstance(self.state, Watching) else ""
        versions = ["", cursor, cursor, str(self.version), "50"]
        return VersionChecked(self.rng.choice(versions), self.now_s)

    def check_lists(self) -> Event:
        version = self.rng.choice(["", "50", *[str(self.version)] * 3])
        return ListsChecked(version, bool(version) and self.rng.random() < 0.8, self.now_s)

    def error(self) -> KubeError:
        return self.usual_error if self.rng.random() < 0.6 else self.rng.choice(ERRORS)

    def any_version(self) -> str:
        return self.rng.choice([str(self.version)] * 8 + ["60", ""])

    def objects(self) -> list[ObjectFrame]:
        return [frame(name, str(self.version)) for name in "ab"[: self.rng.randrange(3)]]

    def read(self, until_s: float) -> Event:
        rng = self.rng
        kind = rng.randrange(8)
        if kind == 0:
            return WatchEnded()
        if kind == 1:
            return RequestFailed(self.error())
        if kind == 2 and until_s < float("inf"):
            return super().read(until_s)
        frames: list[Frame] = [*self.objects()]
        if rng.random() < 0.5:
            frames.append(Bookmark(self.any_version(), initial_end=rng.random() < 0.7))
            frames.extend(self.objects())
        if not frames or rng.random() < 0.2:
            frames.append(Failure(self.error()))
        return FramesReceived(frames, self.now_s)


def test_the_table_holds_each_transition_and_no_other() -> None:
    seen = {
        (type(before).__name__, type(event).__name__, type(after).__name__)
        for seed in range(WALKS)
        for before, event, after in Walk(seed).events()
    }
    table = {
        (state, event, after)
        for state, row in TRANSITIONS.items()
        for event, (usual, others) in row.items()
        for after in (*usual.split(), *others.split())
    }
    assert sorted(seen - table) == [], "the machine does what the table does not show"
    assert sorted(table - seen) == [], "the table shows what the machine does not do"


def test_the_table_names_every_state_and_every_event() -> None:
    assert set(TRANSITIONS) == {state.__name__ for state in get_args(State)}
    events = {event for row in TRANSITIONS.values() for event in row}
    assert events == {event.__name__ for event in get_args(Event)}
