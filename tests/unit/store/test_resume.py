"""A store filled from a log, then a watch that replays, or a list: what counts as a change."""

from __future__ import annotations

from tests.unit.store.frames import WIDGETS, flat, frame, state, widgets
from watchrelay.contract.partitioning import partition_of
from watchrelay.contract.records import content_hash
from watchrelay.model.changes import Entry, ObjectChange, Removed
from watchrelay.store.objects import Store
from watchrelay.store.transform import Transform


def in_short(changes: list[ObjectChange]) -> list[tuple[str, str, str]]:
    return [
        ("deleted", each.key.decode(), each.resource_version)
        if isinstance(each, Removed)
        else (
            "added" if each.replaced is None else "modified",
            each.key.decode(),
            each.entry.resource_version,
        )
        for each in changes
    ]


def published(
    store: Store, name: str, version: int, *, uid: str = "", body: object = 0
) -> tuple[bytes, Entry]:
    """An entry as a read-back makes it, of the bytes that this object is published with."""
    shown = frame(name, version, uid=uid, body=body)
    value = Transform.compile(WIDGETS).apply(shown)
    key = f"n/{name}".encode()
    return key, Entry.of(
        shown.uid,
        str(version),
        partition_of(key, 3),
        value_hash=content_hash(key, value),
        packed=store.pack(value, str(version)),
    )


def resumed(
    *objects: tuple[str, int],
    skip: dict[str, int] | None = None,
    newest: int = 0,
    frontiers: dict[int, str] | None = None,
    **options: object,
) -> Store:
    store = widgets(**options)
    gone = {f"n/{name}".encode(): str(version) for name, version in (skip or {}).items()}
    store.resume(
        [published(store, name, version) for name, version in objects],
        skip=gone,
        newest=str(newest or ""),
        frontiers=frontiers,
    )
    return store


def test_what_was_published_is_held_byte_for_byte() -> None:
    store = resumed(("a", 5), ("b", 6))
    assert state(store) == {"n/a": ("uid-a", "5", 0), "n/b": ("uid-b", "6", 0)}
    key, entry = published(store, "a", 5)
    assert store.unpack(entry) == store.unpack(store.get(key) or entry)


def test_a_replay_publishes_nothing_and_what_is_newer_is_published() -> None:
    store = resumed(("a", 5), ("c", 3), skip={"dead": 9}, newest=9)
    replay = [
        frame("a", 4, body=9),
        frame("dead", 6),
        frame("dead", 7, "DELETED"),
        frame("a", 5),
        frame("dead", 8),
        frame("dead", 9, "DELETED"),
    ]
    assert store.apply(replay).changes == []
    news = [frame("dead", 10), frame("a", 11, body=2), frame("c", 12, "DELETED")]
    assert in_short(store.apply(news).changes) == [
        ("added", "n/dead", "10"),
        ("modified", "n/a", "11"),
        ("deleted", "n/c", "12"),
    ]


def test_the_successor_whose_event_implied_the_delete_is_no_replay() -> None:
    """A new uid is a delete and an upsert of one version: a writer may have died between the
    two."""
    store = resumed(skip={"a": 9}, newest=9)
    assert in_short(store.apply([frame("a", 8), frame("a", 9, uid="second")]).changes) == [
        ("added", "n/a", "9")
    ]


def test_behind_the_newest_version_of_the_log_nothing_is_a_replay() -> None:
    store = resumed(skip={"a": 9}, newest=9)
    store.passed("8")
    assert store.apply([frame("a", 7)]).repeated == 1
    store.passed("9")
    assert in_short(store.apply([frame("a", 7)]).changes) == [("added", "n/a", "7")]


def test_what_a_younger_partition_has_forgotten_does_not_rise_in_a_replay_for_an_older_one() -> (
    None
):
    """Each partition is replayed from the lowest frontier, also one that a snapshot of another
    writer has brought further: of what lived and died before that its log has nothing."""
    young, old = partition_of(b"n/a", 3), partition_of(b"n/c", 3)
    assert young != old
    frontiers = {partition: "20" if partition == young else "10" for partition in range(3)}
    store = resumed(newest=15, frontiers=frontiers)
    replay = [frame("a", 11), frame("a", 12, body=2), frame("a", 20), frame("a", 20, "DELETED")]
    applied = store.apply(replay)
    assert (applied.changes, applied.repeated) == ([], 4)
    store.passed("15")
    assert in_short(store.apply([frame("c", 16), frame("a", 19)]).changes) == [
        ("added", "n/c", "16")
    ]
    assert in_short(store.apply([frame("a", 21)]).changes) == [("added", "n/a", "21")]
    store.passed("21")
    assert store.apply([frame("a", 22, "DELETED")]).changes
    assert in_short(store.apply([frame("a", 7)]).changes) == [("added", "n/a", "7")]


def test_a_list_is_compared_by_uid_and_content_not_by_version() -> None:
    store = resumed(("same", 1), ("touched", 2), ("other", 3), ("gone", 4), ("back", 5), newest=50)
    store.begin_list()
    store.stage(
        [
            frame("same", 1),
            frame("touched", 20),
            frame("other", 3, body="else"),
            frame("back", 5, uid="second"),
            frame("new", 6),
        ]
    )
    assert in_short(flat(store.replace("60").pieces)) == [
        ("deleted", "n/gone", "60"),
        ("deleted", "n/back", "5"),
        ("modified", "n/other", "3"),
        ("added", "n/back", "5"),
        ("added", "n/new", "6"),
    ]


def test_after_the_list_the_log_is_forgotten() -> None:
    store = resumed(skip={"a": 90}, newest=90)
    store.begin_list()
    assert flat(store.replace("60").pieces) == []
    assert in_short(store.apply([frame("a", 61)]).changes) == [("added", "n/a", "61")]


def test_an_object_whose_version_went_back_is_published_and_followed_from_there() -> None:
    store = resumed(("a", 500), newest=500)
    store.begin_list()
    store.stage([frame("a", 200)])
    assert in_short(flat(store.replace("300").pieces)) == [("modified", "n/a", "200")]
    assert in_short(store.apply([frame("a", 301, body=7)]).changes) == [("modified", "n/a", "301")]


def test_a_dictionary_is_learnt_while_loading_and_contents_stay_equal() -> None:
    text = "".join(chr(97 + number * number % 26) for number in range(3000))
    store = widgets(train_at=20)
    states: list[dict[bytes, Entry]] = [{}, {}, {}]
    for number in range(60):
        key, entry = published(store, f"o{number}", number, body={"text": text, "number": number})
        states[entry.partition][key] = entry
        store.loading(states)
    store.resume([item for each in states for item in each.items()], skip={}, newest="")
    assert store.pack(b"x", "") is not None
    assert max(len(each.packed) for held in states for each in held.values()) < 200
    store.begin_list()
    store.stage(
        [frame(f"o{number}", number, body={"text": text, "number": number}) for number in range(60)]
    )
    assert flat(store.replace("99").pieces) == []
