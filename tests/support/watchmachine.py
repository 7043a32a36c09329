"""A watch for the steps of the machine, and servers to play it with."""

from random import Random
from typing import Any, TypeVar

from watchrelay.core.errors import Interrupted, KubeError
from watchrelay.model.frames import FrameType, ObjectFrame, Page
from watchrelay.model.resources import SERVED, Resource, Selection
from watchrelay.model.streams import WatchPlan
from watchrelay.model.watch_output import ListDone
from watchrelay.watch.context import StreamContext, WatchRules
from watchrelay.watch.machine import start, step
from watchrelay.watch.messages import (
    CheckDiscovery,
    CheckLists,
    CheckVersion,
    Command,
    DeadlineReached,
    DiscoveryChecked,
    Event,
    FetchPage,
    ListFinished,
    ListsChecked,
    OpenWatch,
    PageReceived,
    ReadWatch,
    Sleep,
    SleepEnded,
    WatchOpened,
)
from watchrelay.watch.states import OpeningWatch, Watching

T = TypeVar("T")
PODS = Selection(Resource("", "v1", "pods", "Pod", namespaced=True))


def rules(version: tuple[int, int] | None = None, **plan: Any) -> WatchRules:
    return WatchRules(WatchPlan(PODS, **plan), Random(1), version)


def frame(name: str, version: str, kind: FrameType = "MODIFIED") -> ObjectFrame:
    return ObjectFrame(kind, "shop", name, f"uid-{name}", version, {}, {}, 10)


def silent() -> KubeError:
    """What the client reports of a watch that was silent for too long."""
    error = Interrupted("nothing came")
    error.reason = "inactive"
    return error


def watching(by: WatchRules, cursor: str = "100", **context: Any) -> Watching:
    before = StreamContext(cursor=cursor, has_state=True, state_shown_at_s=0.0, **context)
    opening = OpeningWatch(before, before.watch_query(by, cursor))
    opened, _ = step(by, opening, WatchOpened(), 0.0)
    assert isinstance(opened, Watching)
    return opened


def last(commands: tuple[Command, ...], kind: type[T]) -> T:
    """The action of a step, which is of this kind."""
    action = commands[-1]
    assert isinstance(action, kind), action
    return action


class Played:
    """A stream's watch, from its start on, with a server that answers as a subclass says: by
    default each list is complete and empty, each watch opens and shows nothing, and small lists
    have no answer. Time passes in sleeps, and where an answer lets it."""

    def __init__(self, by: WatchRules, **first: Any) -> None:
        self.by, self.now_s, self.version = by, 0.0, 100
        self.listed_s, self.watches = list[float](), 0
        self.state, self.commands = start(by, now_s=0.0, **first)

    def action(self) -> Command:
        return self.commands[-1]

    def step(self, event: Event) -> None:
        self.state, self.commands = step(self.by, self.state, event, self.now_s)

    def run(self, for_s: float) -> None:
        while self.now_s < for_s:
            self.step(self.answer())

    def until(self, *kinds: type) -> None:
        """Play until one of these actions is next."""
        for _ in range(300):
            if isinstance(self.action(), kinds):
                return
            self.step(self.answer())
        raise AssertionError(f"never {kinds}")

    def answer(self) -> Event:
        match self.action():
            case Sleep(until_s=until_s):
                self.now_s = max(self.now_s, until_s)
                return SleepEnded()
            case OpenWatch():
                self.watches += 1
                return self.open()
            case FetchPage():
                self.listed_s.append(self.now_s)
                return PageReceived(Page(str(self.list_version()), None, []))
            case ListDone():
                return ListFinished(accepted=True)
            case CheckLists():
                return self.check_lists()
            case CheckVersion(until_s=until_s):
                return self.check_version(until_s)
            case ReadWatch(until_s=until_s):
                return self.read(until_s)
            case CheckDiscovery():
                return DiscoveryChecked(SERVED)
            case other:
                raise AssertionError(other)

    def list_version(self) -> int:
        return self.version

    def open(self) -> Event:
        return WatchOpened()

    def read(self, until_s: float) -> Event:
        self.now_s = max(self.now_s, until_s)
        return DeadlineReached()

    def check_version(self, until_s: float) -> Event:
        return self.read(until_s)

    def check_lists(self) -> Event:
        return ListsChecked("", may_list=False, asked_at_s=self.now_s)
