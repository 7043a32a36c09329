"""What the watch machine makes of a server that answers at random is the server's state.

The model keeps the state at every version. Whenever the machine has a cursor, what it delivered
equals the state at that version; every request is one that the server allows; failures are not
retried without a delay again and again; every step is in the transition table.
"""

from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.support.extent import examples
from tools.docs.machine import TRANSITIONS
from watchrelay.core.errors import (
    Expired,
    Forbidden,
    Interrupted,
    Invalid,
    KubeError,
    NotFound,
    Throttled,
    Unauthorized,
    Unavailable,
    Undecodable,
    VersionTooLarge,
)
from watchrelay.model.frames import (
    Bookmark,
    Failure,
    Frame,
    ListQuery,
    ObjectFrame,
    Page,
    WatchQuery,
)
from watchrelay.model.resources import GONE, SERVED, UNKNOWN, Availability, Resource, Selection
from watchrelay.model.streams import WatchPlan
from watchrelay.model.watch_output import (
    ListBegun,
    ListDone,
    ListedObjects,
    ResourceRemoved,
    ServerSeen,
    Watched,
    WatchOutput,
)
from watchrelay.watch.context import WatchRules
from watchrelay.watch.machine import BRIEF_WATCH_S, start, step
from watchrelay.watch.messages import (
    CheckDiscovery,
    CheckLists,
    CheckVersion,
    Command,
    DeadlineReached,
    DiscoveryChecked,
    Event,
    FetchPage,
    FramesReceived,
    ListFinished,
    ListsChecked,
    OpenWatch,
    PageReceived,
    ReadWatch,
    RequestFailed,
    Sleep,
    SleepEnded,
    VersionChecked,
    WatchEnded,
    WatchOpened,
)
from watchrelay.watch.states import State, Watching

PODS = Selection(Resource("", "v1", "pods", "Pod", namespaced=True))
ERRORS: list[KubeError] = [
    Unavailable("refused"), Throttled("busy", retry_after_s=2), Interrupted("in-stream 500", status=500), Expired("410"), VersionTooLarge("504"),
    Unauthorized("401"), Forbidden("403"), NotFound("404"), Undecodable("?"), Invalid("422", about="version"), Invalid("422"),
]  # fmt: skip


def frame(kind: str, name: str, version: int) -> ObjectFrame:
    return ObjectFrame(kind, "ns", name, f"uid-{name}", str(version), {}, {}, 10)  # type: ignore[arg-type]


class WatchOfAServer(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.version = 10
        self.states: dict[int, dict[str, str]] = {10: {}}
        self.history: list[ObjectFrame] = []
        self.oldest = 10
        self.now_s = 0.0
        self.delivered: dict[str, str] = {}
        self.fresh: dict[str, str] = {}
        self.pages: dict[str, tuple[int, list[str]]] = {}
        self.seen = 0
        self.streaming: list[str] | None = None
        self.at_once = 0
        self.state: State
        self.commands: tuple[Command, ...]

    @initialize(
        seed=st.integers(0, 99),
        page_size=st.sampled_from([0, 1, 3]),
        new=st.booleans(),
        semantic=st.sampled_from(["mostRecent", "any"]),
    )
    def begin(self, seed: int, page_size: int, semantic: str, *, new: bool) -> None:
        plan = WatchPlan(PODS, page_size=page_size, list_semantic=semantic)  # type: ignore[arg-type]
        self.by = WatchRules(plan, Random(seed), (1, 36) if new else (1, 33))
        self._took(start(self.by, now_s=self.now_s))

    # ---- the machine's side ----------------------------------------------------------------------

    def _took(self, result: tuple[State, tuple[Command, ...]]) -> None:
        self.state, self.commands = result
        for command in self.commands[:-1]:
            if isinstance(command, WatchOutput):
                self._take(command)
        match self.commands[-1]:
            case FetchPage(query=query):
                self._legal_list(query)
            case OpenWatch(query=query):
                self._legal_watch(query)
            case _:
                pass

    def _step(self, event: Event) -> None:
        failed, before = isinstance(event, RequestFailed), type(self.state).__name__
        self._took(step(self.by, self.state, event, self.now_s))
        afters = " ".join(TRANSITIONS[before][type(event).__name__])
        assert type(self.state).__name__ in afters.split(), "not in the transition table"
        slept = isinstance(self.commands[-1], Sleep | CheckDiscovery)
        self.at_once = (
            self.at_once + 1
            if failed and not slept
            else 0
            if slept or isinstance(event, FramesReceived | ListFinished)
            else self.at_once
        )
        assert self.at_once <= 4, "failures are retried without a delay"

    def _take(self, event: WatchOutput) -> None:
        match event:
            case ListBegun():
                self.fresh = {}
            case ListedObjects(objects=frames):
                self._apply(self.fresh, frames)
            case Watched(frames=frames):
                self._apply(self.delivered, frames)
            case ResourceRemoved():
                self.delivered = {}
            case ListDone() | ServerSeen():
                pass

    def _apply(self, state: dict[str, str], frames: list[ObjectFrame]) -> None:
        for each in frames:
            if each.type == "DELETED":
                state.pop(each.name, None)
            else:
                state[each.name] = each.resource_version

    def _legal_list(self, query: ListQuery) -> None:
        if query.continue_token:
            assert (query.resource_version, query.version_match) == ("", "")
        if query.version_match:
            assert query.resource_version not in {"", "0"}
        if query.resource_version not in {"", "0"} and query.limit:
            assert query.version_match == "NotOlderThan"

    def _legal_watch(self, query: WatchQuery) -> None:
        assert 300 <= query.timeout_s < 600 or query.timeout_s in {BRIEF_WATCH_S, *range(6, 13)}
        assert query.send_initial_events or query.resource_version not in {"", "0"}
        assert query.bookmarks

    # ---- the server's side -------------------------------------------------------------------------

    @rule(name=st.sampled_from("abcd"), delete=st.booleans())
    def change(self, name: str, *, delete: bool) -> None:
        before = self.states[self.version]
        if delete and name not in before:
            return
        self.version += 1
        after = {key: value for key, value in before.items() if key != name}
        if not delete:
            after[name] = str(self.version)
        self.states[self.version] = after
        self.history.append(
            frame(
                "DELETED" if delete else "MODIFIED" if name in before else "ADDED",
                name,
                self.version,
            )
        )

    @rule()
    def forget_history(self) -> None:
        self.oldest = self.version

    @rule(seconds=st.sampled_from([0.1, 1.0, 20.0, 90.0, 700.0]))
    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds

    # ---- answers ---------------------------------------------------------------------------------

    def _out(self, *kinds: type) -> bool:
        return hasattr(self, "commands") and isinstance(self.commands[-1], kinds)

    @precondition(lambda self: self._out(Sleep))
    @rule(early=st.booleans())
    def wake(self, *, early: bool) -> None:
        sleep = self.commands[-1]
        assert isinstance(sleep, Sleep)
        if early and sleep.wakeable:
            self._step(SleepEnded(rechecked=True))
        else:
            self.now_s = max(self.now_s, sleep.until_s)
            self._step(SleepEnded())

    @precondition(lambda self: self._out(CheckDiscovery))
    @rule(
        availability=st.sampled_from(
            [SERVED, GONE, UNKNOWN, Availability("hidden", "served in v2")]
        )
    )
    def discovery(self, availability: Availability) -> None:
        self._step(DiscoveryChecked(availability))

    @precondition(lambda self: self._out(CheckVersion))
    @rule(answered=st.booleans())
    def look(self, *, answered: bool) -> None:
        self._step(VersionChecked(str(self.version) if answered else "", self.now_s))

    @precondition(lambda self: self._out(CheckLists))
    @rule(answered=st.booleans())
    def lists(self, *, answered: bool) -> None:
        version = str(self.version) if answered else ""
        cursor = self.state.context.cursor
        self._step(ListsChecked(version, version not in {"", cursor}, self.now_s))

    @precondition(lambda self: self._out(ListDone))
    @rule(accepted=st.booleans())
    def commit(self, *, accepted: bool) -> None:
        action = self.commands[-1]
        assert isinstance(action, ListDone)
        accepted = accepted or action.accept_any_size
        if accepted:
            self.delivered = dict(self.fresh)
            assert self.delivered == self.states[int(action.resource_version)]
        self._step(ListFinished(accepted))

    @precondition(lambda self: self._out(FetchPage, OpenWatch, ReadWatch))
    @rule(error=st.sampled_from(ERRORS))
    def fail(self, error: KubeError) -> None:
        self._step(RequestFailed(error))

    @precondition(lambda self: self._out(FetchPage))
    @rule()
    def page(self) -> None:
        fetch = self.commands[-1]
        assert isinstance(fetch, FetchPage)
        query = fetch.query
        if query.continue_token:
            version, names = self.pages.pop(query.continue_token)
        else:
            version, names = self.version, sorted(self.states[self.version])
        if version < self.oldest and query.continue_token:
            self._step(RequestFailed(Expired("the token is too old")))
            return
        now, later = (names[: query.limit], names[query.limit :]) if query.limit else (names, [])
        token = f"token-{len(self.pages)}-{len(later)}-{version}" if later else None
        if token:
            self.pages[token] = (version, later)
        self._step(
            PageReceived(
                Page(
                    str(version),
                    token,
                    [frame("ADDED", n, int(self.states[version][n])) for n in now],
                )
            )
        )

    @precondition(lambda self: self._out(OpenWatch))
    @rule()
    def open(self) -> None:
        opening = self.commands[-1]
        assert isinstance(opening, OpenWatch)
        query = opening.query
        self.streaming = sorted(self.states[self.version]) if query.send_initial_events else None
        self.seen = self.version if query.send_initial_events else int(query.resource_version)
        self._step(RequestFailed(Expired("too old")) if self.seen < self.oldest else WatchOpened())

    @precondition(lambda self: self._out(ReadWatch))
    @rule(count=st.integers(1, 5), mark=st.booleans(), error=st.sampled_from([None, None, *ERRORS]))
    def frames(self, count: int, error: KubeError | None, *, mark: bool) -> None:
        frames: list[Frame] = []
        if self.streaming is not None:
            batch, self.streaming = self.streaming[:count], self.streaming[count:]
            frames += [frame("ADDED", n, int(self.states[self.seen][n])) for n in batch]
            if not self.streaming and mark:
                frames.append(Bookmark(str(self.seen), initial_end=True))
                self.streaming = None
        if self.streaming is None:
            news = [each for each in self.history if int(each.resource_version) > self.seen][:count]
            frames += news
            self.seen = int(news[-1].resource_version) if news else self.seen
            if mark and not any(int(each.resource_version) > self.seen for each in self.history):
                self.seen = self.version
                frames.append(Bookmark(str(self.seen)))
        if error is not None:
            frames.append(Failure(error))
        if frames:
            self._step(FramesReceived(frames, self.now_s))

    @precondition(lambda self: self._out(ReadWatch))
    @rule()
    def end(self) -> None:
        self._step(WatchEnded())

    @precondition(lambda self: self._out(ReadWatch))
    @rule()
    def due(self) -> None:
        read = self.commands[-1]
        assert isinstance(read, ReadWatch)
        if read.until_s < float("inf"):
            self.now_s = max(self.now_s, read.until_s)
            self._step(DeadlineReached())

    # ---- the promise -----------------------------------------------------------------------------

    @invariant()
    def what_was_delivered_is_the_state_at_the_cursor(self) -> None:
        if not hasattr(self, "state"):
            return
        cursor = (
            self.state.cursor if isinstance(self.state, Watching) else self.state.context.cursor
        )
        if cursor:
            assert self.delivered == self.states[int(cursor)]
        elif not isinstance(self.commands[-1], ListDone):
            assert self.delivered == {}


TestWatchOfAServer = WatchOfAServer.TestCase
TestWatchOfAServer.settings = settings(
    max_examples=examples(150), stateful_step_count=60, deadline=None
)
