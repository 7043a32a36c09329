"""The reflector hands on what the store finds, in the step that found it, and counts it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.unit.store.frames import WIDGETS, frame, state, widgets
from watchrelay.contract.records import content_hash
from watchrelay.contract.wire import Reason
from watchrelay.model.changes import Entry, ObjectChange
from watchrelay.model.frames import ObjectFrame
from watchrelay.model.watch_output import (
    ListBegun,
    ListDone,
    ListedObjects,
    ResourceRemoved,
    Watched,
)
from watchrelay.observe.metrics import Metrics
from watchrelay.observe.status import StreamStatus
from watchrelay.store.counting import Counting
from watchrelay.store.objects import Store
from watchrelay.store.reflector import Reflector
from watchrelay.store.transform import Transform


@dataclass
class FakePublisher:
    """Records its calls, with the number of keys in the store at that moment."""

    store: Store
    calls: list[tuple[object, ...]] = field(default_factory=list)
    seen_ms: list[int] = field(default_factory=list)
    seen_behind: list[object] = field(default_factory=list)
    """The call before each of `seen_ms`."""
    now_ms: int = 1_000
    """The wall clock, which moves on by `waits_ms` in each wait for room."""
    waits_ms: int = 0

    async def room(self) -> None:
        self.calls.append(("room", len(self.store)))
        self.now_ms += self.waits_ms

    def has_room(self) -> bool:
        return True

    def push(
        self, changes: Sequence[ObjectChange], *, reason: Reason, received_at_s: float
    ) -> None:
        self.calls.append(
            (
                "push",
                reason,
                received_at_s,
                [(type(c).__name__, c.key) for c in changes],
                len(self.store),
            )
        )

    def list_completed(self, resource_version: str) -> None:
        self.calls.append(("list_completed", resource_version, len(self.store)))

    def version_reached(self, resource_version: str) -> None:
        self.calls.append(("version_reached", resource_version))

    def resource_removed(self) -> None:
        self.calls.append(("resource_removed",))

    def server_seen(self, at_ms: int) -> None:
        self.seen_ms.append(at_ms)
        self.seen_behind.append(self.calls[-1][0] if self.calls else "")


class Stream:
    """A reflector with everything around it."""

    def __init__(self, *, recovered: bool = False, **options: object) -> None:
        self.store = widgets(**options)
        self.outbox = FakePublisher(self.store)
        self.metrics = Metrics()
        self.status = StreamStatus("widgets.example.com")
        metrics = self.metrics.stream("widgets.example.com", WIDGETS)
        self.reflector = Reflector(
            "widgets.example.com",
            self.store,
            self.outbox,
            metrics=metrics,
            status=self.status,
            recovered=recovered,
            wall_ms=lambda: self.outbox.now_ms,
        )

    async def relist(
        self,
        frames: list[ObjectFrame],
        version: str,
        *,
        accept_any_size: bool = False,
        continue_from: str = "",
    ) -> bool:
        assert await self.reflector.take(ListBegun())
        assert await self.reflector.take(ListedObjects(frames))
        return await self.reflector.take(
            ListDone(version, accept_any_size=accept_any_size, continue_from=continue_from)
        )

    def count(self, name: str, **labels: str) -> float:
        named = {
            "stream": "widgets.example.com",
            "group": "example.com",
            "version": "v1",
            "resource": "widgets",
        }
        return self.metrics.registry.get_sample_value(f"watchrelay_{name}", named | labels) or 0.0

    def pushed(self) -> list[tuple[object, ...]]:
        return [call for call in self.outbox.calls if call[0] == "push"]


@pytest.fixture
def stream() -> Stream:
    return Stream()


async def test_the_first_list_is_announced_as_complete_and_pushes_nothing(stream: Stream) -> None:
    assert await stream.relist([frame("a", 1), frame("b", 2)], "9")
    assert [call for call in stream.outbox.calls if call[0] != "room"] == [
        ("list_completed", "9", 2)
    ]
    assert stream.status.objects == 2
    assert stream.count("store_objects") == 2
    assert stream.count("missed_changes_total") == 0


async def test_watch_changes_are_pushed_once_there_is_room_and_after_the_store_has_them(
    stream: Stream,
) -> None:
    await stream.relist([], "1")
    stream.outbox.calls.clear()
    assert await stream.reflector.take(
        Watched([frame("a", 2), frame("a", 3, "DELETED"), frame("b", 4)], 12.5)
    )
    assert stream.outbox.calls == [
        ("room", 0),
        (
            "push",
            "watch",
            12.5,
            [("Upserted", b"n/a"), ("Removed", b"n/a"), ("Upserted", b"n/b")],
            1,
        ),
    ]
    assert stream.status.objects == 1


async def test_a_batch_that_changes_nothing_pushes_nothing_but_is_counted(stream: Stream) -> None:
    await stream.relist([frame("a", 1)], "1")
    await stream.reflector.take(
        Watched([frame("a", 1), frame("a", 2, noise=[1]), frame("x", 3, "DELETED")], 1.0)
    )
    assert stream.pushed() == []
    assert stream.count("events_deduplicated_total") == 2
    assert stream.count("events_filtered_total", reason="suppressed") == 1


async def test_other_namespaces_are_counted_as_filtered_on_both_paths() -> None:
    stream = Stream(namespaces=frozenset({"n"}))
    await stream.relist([frame("a", 1), frame("b", 2, namespace="m")], "2")
    await stream.reflector.take(Watched([frame("c", 3, namespace="m")], 1.0))
    assert stream.count("events_filtered_total", reason="namespace") == 2
    assert list(state(stream.store)) == ["n/a"]


async def test_T41_a_relist_announces_what_the_watch_did_not_show_and_counts_it(
    stream: Stream,
) -> None:
    await stream.relist([frame("a", 1), frame("b", 2)], "2")
    await stream.relist([frame("b", 5, body=1), frame("c", 6)], "7")
    assert stream.pushed() == [
        (
            "push",
            "relist",
            0.0,
            [("Removed", b"n/a"), ("Upserted", b"n/b"), ("Upserted", b"n/c")],
            2,
        )
    ]
    assert stream.outbox.calls[-1] == ("list_completed", "7", 2)
    assert stream.count("missed_changes_total") == 3


async def test_an_suspicious_list_changes_nothing_until_a_second_one_confirms_it(
    stream: Stream,
) -> None:
    await stream.relist([frame(f"w{n}", n + 1) for n in range(120)], "200")
    stream.outbox.calls.clear()
    assert not await stream.relist([frame("w1", 2)], "300")
    assert (len(stream.store), stream.outbox.calls) == (120, [])
    assert len(stream.outbox.seen_ms) == 1, "what the suspicious list shows is not pushed"
    assert await stream.relist([frame("w1", 2)], "301", accept_any_size=True)
    assert len(stream.store) == 1
    assert stream.count("missed_changes_total") == 119


async def test_progress_and_every_sign_of_life_are_handed_on(stream: Stream) -> None:
    await stream.relist([], "1")
    seen = len(stream.outbox.seen_ms)
    await stream.reflector.take(Watched(cursor="44"))
    await stream.reflector.take(Watched([frame("a", 45)], 1.0))
    assert ("version_reached", "44") in stream.outbox.calls
    assert len(stream.outbox.seen_ms) == seen + 2
    assert stream.outbox.seen_ms == sorted(stream.outbox.seen_ms)


async def test_a_list_counts_as_seen_once_its_difference_is_pushed(stream: Stream) -> None:
    await stream.relist([frame("a", 1)], "1")
    await stream.reflector.take(ListBegun())
    for page in ([frame("a", 5)], [frame("b", 6)]):
        await stream.reflector.take(ListedObjects(page))
    assert len(stream.outbox.seen_ms) == 1, "a page shows what is pushed at the end only"
    await stream.reflector.take(ListDone("6"))
    assert stream.outbox.seen_behind[1:] == ["push"], "and markers of the end know of it"


async def test_what_waits_for_room_counts_as_seen_when_it_came(stream: Stream) -> None:
    stream.outbox.waits_ms = 3_600_000
    await stream.relist([frame("a", 1)], "1")
    await stream.reflector.take(Watched([frame("a", 2)], 1.0))
    assert stream.outbox.seen_ms == [1_000, 3_601_000]
    assert stream.outbox.now_ms == 7_201_000


async def test_T74_a_resource_served_no_longer_removes_everything_and_its_return_is_no_missed_change(
    stream: Stream,
) -> None:
    await stream.relist([frame("a", 1), frame("b", 2)], "2")
    await stream.reflector.take(Watched(cursor="8"))
    await stream.reflector.take(ResourceRemoved())
    assert stream.pushed() == [
        ("push", "relist", 0.0, [("Removed", b"n/a"), ("Removed", b"n/b")], 0)
    ]
    calls = stream.outbox.calls
    assert calls.index(("resource_removed",)) == calls.index(stream.pushed()[0]) - 1
    assert stream.status.objects == 0
    await stream.relist([frame("a", 11, uid="again")], "12")
    assert stream.pushed()[1:] == [("push", "relist", 0.0, [("Upserted", b"n/a")], 1)]
    assert stream.count("missed_changes_total") == 0


async def compared(stream: Stream) -> None:
    """A watch that stood at 10, and a list at 20 that shows of a, b and c: a as it was, b changed,
    c gone, and d."""
    await stream.relist([frame("a", 1), frame("b", 2), frame("c", 3)], "10")
    stream.outbox.calls.clear()
    await stream.relist(
        [frame("a", 1), frame("b", 15, body=1), frame("d", 12)], "20", continue_from="10"
    )


async def test_what_the_watch_shows_of_a_comparing_list_was_not_missed_and_is_published_once(
    stream: Stream,
) -> None:
    await compared(stream)
    found = (
        "push",
        "relist",
        0.0,
        [("Removed", b"n/c"), ("Upserted", b"n/b"), ("Upserted", b"n/d")],
        3,
    )
    assert stream.pushed() == [found]
    replayed = [
        frame("d", 12),
        frame("c", 14, body=1),
        frame("b", 15, body=1),
        frame("c", 16, "DELETED"),
    ]
    await stream.reflector.take(Watched(replayed, 1.0))
    await stream.reflector.take(Watched(cursor="16"))
    assert stream.outbox.calls[-1][0] != "version_reached", "the list was further already"
    await stream.reflector.take(Watched([frame("a", 21, body=1)], 2.0))
    await stream.reflector.take(Watched(cursor="21"))
    assert stream.pushed() == [found, ("push", "watch", 2.0, [("Upserted", b"n/a")], 3)]
    assert stream.outbox.calls[-1] == ("version_reached", "21")
    assert stream.count("missed_changes_total") == 0
    assert stream.count("events_deduplicated_total") == 4


@pytest.mark.parametrize("passed", ["bookmark", "event", "list"])
async def test_what_the_watch_does_not_show_until_it_has_passed_the_list_was_missed(
    stream: Stream, passed: str
) -> None:
    await compared(stream)
    await stream.reflector.take(Watched([frame("d", 12)], 1.0))
    await stream.reflector.take(Watched(cursor="12"))
    assert stream.count("missed_changes_total") == 0
    match passed:
        case "bookmark":
            await stream.reflector.take(Watched(cursor="20"))
        case "event":
            await stream.reflector.take(Watched([frame("b", 30)], 2.0))
        case _:
            await stream.relist([frame("a", 1), frame("b", 15, body=1), frame("d", 12)], "25")
    assert stream.count("missed_changes_total") == 2
    await stream.reflector.take(Watched(cursor="31"))
    assert stream.count("missed_changes_total") == 2


async def test_a_comparing_list_that_finds_nothing_counts_nothing(stream: Stream) -> None:
    await stream.relist([frame("a", 1)], "10")
    await stream.relist([frame("a", 1)], "20", continue_from="10")
    await stream.reflector.take(Watched(cursor="25"))
    assert (stream.pushed(), stream.count("missed_changes_total")) == ([], 0)


async def test_a_comparing_list_behind_which_another_one_failed_is_still_not_published_again(
    stream: Stream,
) -> None:
    await compared(stream)
    await stream.reflector.take(ListBegun())
    assert stream.count("missed_changes_total") == 0
    await stream.reflector.take(
        Watched([frame("d", 12), frame("c", 14, body=1), frame("b", 15, body=1)], 1.0)
    )
    await stream.reflector.take(Watched(cursor="15"))
    assert len(stream.pushed()) == 1
    await stream.reflector.take(Watched([frame("c", 16, "DELETED")], 2.0))
    await stream.reflector.take(Watched(cursor="21"))
    assert (len(stream.pushed()), stream.count("missed_changes_total")) == (1, 0)


@pytest.mark.parametrize("odd", [{"unreadable": 1}, {"damaged": (("n", "a"), ("n", "b"))}])
async def test_what_the_watch_shows_of_objects_that_a_comparing_list_kept_is_published(
    stream: Stream, odd: dict[str, Any]
) -> None:
    await stream.relist([frame("a", 1), frame("b", 2), frame("c", 3)], "10")
    await stream.reflector.take(ListBegun())
    await stream.reflector.take(ListedObjects([frame("c", 15, body=1)], **odd))
    await stream.reflector.take(ListDone("20", continue_from="10"))
    replayed = [frame("a", 12, "DELETED"), frame("a", 13, uid="again"), frame("b", 2)]
    await stream.reflector.take(Watched(replayed, 1.0))
    assert stream.count("missed_changes_total") == 0, "the list is not passed yet"
    await stream.reflector.take(Watched([frame("c", 15, body=1)], 2.0))
    await stream.reflector.take(Watched(cursor="20"))
    assert stream.pushed() == [
        ("push", "relist", 0.0, [("Upserted", b"n/c")], 3),
        ("push", "watch", 1.0, [("Removed", b"n/a"), ("Upserted", b"n/a")], 3),
    ]
    assert stream.count("missed_changes_total") == 0


async def test_of_two_comparing_lists_the_watch_shows_what_both_found(stream: Stream) -> None:
    await compared(stream)
    await stream.relist(
        [frame("a", 1), frame("b", 15, body=1), frame("d", 12), frame("e", 25)],
        "30",
        continue_from="10",
    )
    await stream.reflector.take(
        Watched(
            [frame("d", 12), frame("b", 15, body=1), frame("c", 16, "DELETED"), frame("e", 25)], 1.0
        )
    )
    await stream.reflector.take(Watched(cursor="30"))
    assert (len(stream.pushed()), stream.count("missed_changes_total")) == (2, 0)


async def test_a_comparing_list_before_the_watch_showed_anything_behind_the_log_raises_nothing_dead() -> (
    None
):
    stream = Stream(recovered=True)
    stream.store.resume([], skip={}, newest="10")
    await stream.relist([frame("b", 18)], "20", continue_from="10")
    await stream.reflector.take(
        Watched([frame("a", 12), frame("a", 14, "DELETED"), frame("b", 18)], 1.0)
    )
    await stream.reflector.take(Watched(cursor="20"))
    assert stream.pushed() == [("push", "resume", 0.0, [("Upserted", b"n/b")], 1)]
    assert (stream.outbox.calls[-1], stream.count("missed_changes_total")) == (
        ("version_reached", "20"),
        0,
    )


async def test_a_list_because_of_a_restore_is_compared_by_content_and_damaged_objects_keep_their_state(
    stream: Stream,
) -> None:
    await stream.relist([frame("a", 5), frame("b", 6), frame("c", 7)], "10")
    await stream.reflector.take(ListBegun(by_content=True))
    await stream.reflector.take(ListedObjects([frame("a", 5, body="other")], damaged=(("n", "b"),)))
    await stream.reflector.take(ListDone("9"))
    assert state(stream.store) == {"n/a": ("uid-a", "5", "other"), "n/b": ("uid-b", "6", 0)}
    pushed = [call[3] for call in stream.outbox.calls if call[0] == "push"]
    assert pushed == [[("Removed", b"n/c"), ("Upserted", b"n/a")]]


async def test_changes_that_do_not_count_are_counted_as_ignored_and_never_as_missed() -> None:
    counting = Counting.compile(Transform.compile(WIDGETS), ignored=[("spec", "noise")])
    stream = Stream(counting=counting)
    await stream.relist([frame("a", 5, body={"noise": 0})], "10")
    assert await stream.reflector.take(
        Watched([frame("a", 11, "MODIFIED", body={"noise": 1})], 1.0)
    )
    assert stream.pushed() == []
    assert stream.count("events_filtered_total", reason="ignored") == 1
    assert stream.count("events_filtered_total", reason="suppressed") == 0
    await stream.relist([frame("a", 12, body={"noise": 2})], "20", continue_from="11")
    assert await stream.reflector.take(Watched(cursor="21"))
    assert stream.pushed() == []
    assert stream.count("missed_changes_total") == 0


async def test_what_only_a_version_tells_apart_is_published_and_not_counted_as_missed() -> None:
    """Where the stream redacts, after a start."""
    transform = Transform.compile(WIDGETS)
    counting = Counting.compile(transform, redacts=True, ignored=[("spec", "noise")])
    for continue_from in ("", "9"):
        stream = Stream(counting=counting)
        store, first = stream.store, frame("a", 5, body={"noise": 0})
        value = transform.apply(first)
        key, packed = b"n/a", store.pack_logged(value, "5")
        held = Entry.of("uid-a", "5", 0, value_hash=content_hash(key, value), packed=packed)
        store.resume([(key, held)], skip={}, newest="5")
        assert await stream.reflector.take(Watched(cursor="9"))
        await stream.relist(
            [frame("a", 8, body={"noise": 1}), frame("b", 7)], "10", continue_from=continue_from
        )
        assert await stream.reflector.take(Watched(cursor="11"))
        assert [call[3] for call in stream.pushed()] == [
            [("Upserted", b"n/a"), ("Upserted", b"n/b")]
        ]
        assert stream.count("missed_changes_total") == 1, "b alone"
