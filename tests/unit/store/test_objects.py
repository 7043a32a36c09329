"""Frames and lists become changes, in the order to publish them. Cases T40 to T48 are those of the
watch conformance list."""

import hashlib

import msgspec
import pytest

from tests.support.pods import frame_of, pod_frame
from tests.unit.store.frames import WIDGETS, entries, flat, frame, listing, state, widgets
from watchrelay.contract.records import content_hash
from watchrelay.model.changes import ObjectChange, Removed, Upserted
from watchrelay.model.frames import ObjectFrame
from watchrelay.model.resources import Resource
from watchrelay.store.objects import ReplaceResult, Store
from watchrelay.store.transform import Transform

PODS = Resource("", "v1", "pods", "Pod", namespaced=True)


def in_short(changes: list[ObjectChange]) -> list[tuple[str, ...]]:
    """Changes in short: verb, key, and the resourceVersion of their record."""
    short: list[tuple[str, ...]] = []
    for change in changes:
        if isinstance(change, Removed):
            short.append(
                (
                    "removed",
                    change.key.decode(),
                    change.resource_version,
                )
            )
        else:
            verb = "added" if change.replaced is None else "modified"
            short.append((verb, change.key.decode(), change.entry.resource_version))
    return short


def listing_changes(store: Store, frames: list[ObjectFrame]) -> list[ObjectChange]:
    """What a complete list of `frames` changes."""
    store.begin_list()
    store.stage(frames)
    return flat(store.replace("77").pieces)


def test_the_hash_is_that_of_key_zero_value() -> None:
    digest = hashlib.sha256(b"n/a\x00{}").digest()
    assert f"{content_hash(b'n/a', b'{}'):016x}" == digest.hex()[:16]


def test_watch_events_are_upserts_whatever_their_type_says() -> None:
    store = widgets()
    assert in_short(
        store.apply([frame("a", 1, "MODIFIED"), frame("a", 2, "ADDED", body=1)]).changes
    ) == [
        ("added", "n/a", "1"),
        ("modified", "n/a", "2"),
    ]
    assert state(store) == {"n/a": ("uid-a", "2", 1)}


def test_an_upsert_carries_the_published_bytes_their_hash_and_the_state_before() -> None:
    store = widgets()
    first, second = store.apply([frame("a", 1), frame("a", 2, body=1)]).changes
    assert isinstance(first, Upserted)
    assert isinstance(second, Upserted)
    assert second.replaced is first.entry
    for change in (first, second):
        assert change.value is not None
        assert change.entry.hash == content_hash(change.key, change.value)
        assert (change.uid, change.hash) == (change.entry.uid, change.entry.hash)
        assert store.unpack(change.entry) == change.value


def test_T48_a_replay_of_what_is_held_is_counted_and_says_nothing() -> None:
    store = listing(widgets(), [frame("a", 5)])
    applied = store.apply([frame("a", 5), frame("a", 4, body="old"), frame("a", 5, "MODIFIED")])
    assert (applied.changes, applied.repeated) == ([], 3)
    assert state(store) == {"n/a": ("uid-a", "5", 0)}


def test_T48_a_late_deletion_of_another_incarnation_is_ignored_unless_newer() -> None:
    store = listing(widgets(), [frame("a", 5, uid="new")])
    late = store.apply(
        [frame("a", 4, "DELETED", uid="old"), frame("a", "x9", "DELETED", uid="old")]
    )
    assert (late.changes, late.repeated) == ([], 2)
    assert in_short(store.apply([frame("a", 9, "DELETED", uid="newest")]).changes) == [
        ("removed", "n/a", "9")
    ]


def test_a_deletion_carries_its_own_version_even_when_that_is_the_held_one() -> None:
    store = listing(widgets(), [frame("a", 5), frame("b", 6)])
    assert in_short(store.apply([frame("a", 9, "DELETED"), frame("b", 6, "DELETED")]).changes) == [
        ("removed", "n/a", "9"),
        ("removed", "n/b", "6"),
    ]


def test_a_deletion_of_what_is_unknown_is_counted_and_says_nothing() -> None:
    applied = widgets().apply([frame("a", 9, "DELETED")])
    assert (applied.changes, applied.repeated) == ([], 1)


def test_a_replayed_deletion_older_than_what_is_held_does_not_remove_it() -> None:
    store = listing(widgets(), [frame("a", 9)])
    assert store.apply([frame("a", 8, "DELETED")]).changes == []
    assert len(store) == 1


def test_a_new_uid_is_a_removal_dated_by_its_event_and_an_addition() -> None:
    store = listing(widgets(), [frame("a", 5)])
    assert in_short(store.apply([frame("a", 8, "MODIFIED", uid="other")]).changes) == [
        ("removed", "n/a", "8"),
        ("added", "n/a", "8"),
    ]


def test_a_recreation_with_the_same_content_is_still_announced() -> None:
    store = listing(widgets(), [frame("a", 5)])
    again = frame("a", 5, uid="other")
    assert in_short(store.apply([again]).changes) == [
        ("removed", "n/a", "5"),
        ("added", "n/a", "5"),
    ]


def test_T46_an_object_that_leaves_the_selector_and_returns_keeps_its_uid() -> None:
    store = listing(widgets(), [frame("a", 5)])
    events = [frame("a", 6, "DELETED"), frame("a", 7, "ADDED", body=1)]
    assert in_short(store.apply(events).changes) == [("removed", "n/a", "6"), ("added", "n/a", "7")]
    assert state(store)["n/a"] == ("uid-a", "7", 1)


def test_T81_versions_that_cannot_be_compared_are_only_distinguished() -> None:
    store = listing(widgets(), [frame("a", "zz-9"), frame("b", "9" * 39)])
    applied = store.apply(
        [frame("a", "zz-1", body=1), frame("a", "zz-1", body=1), frame("b", "8" * 39, body=1)]
    )
    assert in_short(applied.changes) == [("modified", "n/a", "zz-1"), ("modified", "n/b", "8" * 39)]
    assert applied.repeated == 1


def test_a_change_of_version_or_of_dropped_fields_alone_is_suppressed_and_touches_nothing() -> None:
    store = listing(widgets(), [frame("a", 5, noise=[1])])
    before = store.get(b"n/a")
    applied = store.apply([frame("a", 6, "MODIFIED", noise=[2]), frame("a", 7, "MODIFIED")])
    assert (applied.changes, applied.suppressed) == ([], 2)
    assert store.get(b"n/a") is before
    assert in_short(store.apply([frame("a", 8, "MODIFIED", body=1)]).changes) == [
        ("modified", "n/a", "8")
    ]


def test_without_suppression_every_version_is_published() -> None:
    store = listing(widgets(suppress_unchanged=False), [frame("a", 5)])
    assert in_short(store.apply([frame("a", 6, "MODIFIED")]).changes) == [("modified", "n/a", "6")]


def test_where_values_are_hidden_every_version_is_published() -> None:
    store = Store(Transform.compile(WIDGETS, redact=["spec"]), partitions=1)
    listing(store, [frame("a", 5, body=1)])
    assert in_short(store.apply([frame("a", 6, "MODIFIED", body=2)]).changes) == [
        ("modified", "n/a", "6")
    ]


@pytest.mark.parametrize("label", ["7", "8", ""])
def test_a_label_named_like_the_version_neither_hides_a_change_nor_invents_one(label: str) -> None:
    def tricky(version: str, marked: str) -> bytes:
        labels = {"resourceVersion": marked}
        metadata = {
            "labels": labels,
            "name": "a",
            "namespace": "n",
            "resourceVersion": version,
            "uid": "u",
        }
        return msgspec.json.encode(
            {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": metadata}
        )

    store = listing(widgets(), [frame_of(tricky("7", "7"))])
    changes = store.apply([frame_of(tricky("8", label))]).changes
    if label == "7":  # only the version differs; here it may be published, as the label hides it
        assert len(changes) <= 1
    else:
        assert len(changes) == 1
        entry = store.get(b"n/a")
        assert entry is not None
        assert store.unpack(entry) == tricky("8", label)


def test_objects_without_any_version_are_distinguished_by_content() -> None:
    store = listing(widgets(), [frame("a", "")])
    assert store.apply([frame("a", "")]).suppressed == 1
    assert in_short(store.apply([frame("a", "", body=1)]).changes) == [("modified", "n/a", "")]


def test_T40_a_relist_says_removals_first_then_upserts_in_list_order() -> None:
    store = listing(
        widgets(),
        [
            frame("gone", 1),
            frame("same", 2),
            frame("new-uid", 3),
            frame("changed", 4),
            frame("gone-too", 5),
        ],
    )
    store.begin_list()
    store.stage([frame("fresh", 9), frame("changed", 8, body=1)])
    store.stage([frame("same", 2), frame("new-uid", 7, uid="other")])
    replaced = store.replace("50")
    assert in_short(flat(replaced.pieces)) == [
        ("removed", "n/gone", "50"),
        ("removed", "n/new-uid", "7"),
        ("removed", "n/gone-too", "50"),
        ("added", "n/fresh", "9"),
        ("modified", "n/changed", "8"),
        ("added", "n/new-uid", "7"),
    ]
    assert replaced.missed == 5


def test_the_first_list_fills_the_store_and_says_nothing() -> None:
    store = widgets()
    store.begin_list()
    store.stage([frame("a", 1)])
    assert flat(store.replace("9").pieces) == []
    assert state(store) == {"n/a": ("uid-a", "1", 0)}


def test_T43_an_empty_first_list_is_a_list() -> None:
    store = listing(widgets(), [])
    assert in_short(listing_changes(store, [frame("a", 1)])) == [("added", "n/a", "1")]


def test_T11_a_relist_of_what_is_held_keeps_the_very_entries() -> None:
    store = listing(widgets(), [frame("a", 1), frame("b", 2)])
    before = entries(store)
    assert listing_changes(store, [frame("a", 1), frame("b", 3, noise=[1])]) == []
    assert list(entries(store)) == list(before)
    assert all(entry is before[key] for key, entry in entries(store).items())


def test_a_list_changes_nothing_before_its_changes_are_taken() -> None:
    store = listing(widgets(), [frame("a", 1)])
    store.begin_list()
    store.stage([frame("b", 2)])
    assert list(state(store)) == ["n/a"]
    store.begin_list()
    store.stage([frame("c", 3)])
    pieces = store.replace("9").pieces
    assert list(state(store)) == ["n/a"]
    assert in_short(flat(pieces)) == [("removed", "n/a", "9"), ("added", "n/c", "3")]
    assert list(state(store)) == ["n/c"]


def test_a_watch_that_goes_on_after_a_broken_list_voids_it() -> None:
    store = listing(widgets(), [frame("a", 1)])
    store.begin_list()
    store.stage([frame("b", 2)])
    store.apply([frame("a", 3, body=1)])
    assert store.staged == 0
    assert list(state(store)) == ["n/a"]


def test_in_a_streaming_list_later_frames_win_and_deletions_take_out() -> None:
    store = widgets()
    store.begin_list()
    store.stage(
        [
            frame("a", 1),
            frame("b", 2),
            frame("a", 3, "MODIFIED", body=1),
            frame("b", 4, "DELETED"),
            frame("c", 5, "DELETED"),
        ]
    )
    store.replace("5")
    assert state(store) == {"n/a": ("uid-a", "3", 1)}


@pytest.mark.parametrize(
    ("held", "listed", "doubted"),
    [(99, 0, False), (100, 0, True), (100, 49, True), (100, 50, False), (101, 50, True)],
)
def test_a_list_that_lost_more_than_half_is_suspicious_from_100_objects_on(
    held: int, listed: int, doubted: bool
) -> None:
    store = listing(widgets(), [frame(f"w{n}", n + 1) for n in range(held)])
    store.begin_list()
    store.stage([frame(f"w{n}", n + 1) for n in range(listed)])
    assert store.suspicious() is doubted


def test_other_namespaces_are_neither_listed_nor_watched() -> None:
    store = widgets(namespaces=frozenset({"n"}))
    store.begin_list()
    assert store.stage([frame("a", 1), frame("b", 2, namespace="m")]) == 1
    store.replace("2")
    applied = store.apply([frame("c", 3, namespace="m"), frame("a", 4, "DELETED", namespace="m")])
    assert (applied.changes, applied.elsewhere) == ([], 2)
    assert list(state(store)) == ["n/a"]


def test_keys_carry_the_prefix_of_a_shared_topic_and_an_empty_namespace() -> None:
    store = widgets(key_prefix=b"widgets.example.com/")
    store.apply([frame("a", 1), frame("b", 2, namespace="")])
    assert store.keys() == [b"widgets.example.com/n/a", b"widgets.example.com//b"]


def test_clearing_removes_every_object_as_of_the_version_given() -> None:
    store = listing(widgets(), [frame("a", 1), frame("b", 2)])
    assert in_short(flat(store.clear("9"))) == [("removed", "n/a", "9"), ("removed", "n/b", "9")]
    assert len(store) == 0


def test_a_queued_entry_stays_what_it_was_when_its_object_changes() -> None:
    store = listing(widgets(), [frame("a", 1, body="one")])
    entry = store.get(b"n/a")
    assert entry is not None
    before = store.unpack(entry)
    store.apply([frame("a", 2, body="two")])
    assert store.unpack(entry) == before


@pytest.mark.parametrize("way", ["list", "watch"])
def test_a_dictionary_learnt_on_the_way_changes_nothing_that_can_be_seen(way: str) -> None:
    store = Store(Transform.compile(PODS), partitions=6, train_at=150)
    frames = [pod_frame(number) for number in range(400)]
    if way == "list":
        listing(store, frames)
    else:
        for start in range(0, 400, 30):
            store.apply(frames[start : start + 30])
    assert [store.unpack(entry) for entry in entries(store).values()] == [
        Transform.compile(PODS).apply(each) for each in frames
    ]
    quiet = store.apply(
        [pod_frame(number, resource_version=95_000_000 + number) for number in range(400)]
    )
    assert (quiet.changes, quiet.suppressed) == ([], 400)
    assert sum(len(entry.packed) for entry in entries(store).values()) < 400 * 600


def test_partitions_do_not_change_over_an_objects_life() -> None:
    store = listing(widgets(), [frame("a", 1)])
    first = store.get(b"n/a")
    store.apply([frame("a", 2, body=1)])
    second = store.get(b"n/a")
    assert first is not None
    assert second is not None
    assert first.partition == second.partition


def test_a_list_with_objects_that_cannot_be_read_deduces_no_removal_and_keeps_what_it_does_not_show() -> (
    None
):
    store = widgets()
    store.begin_list()
    store.stage([frame("a", 1), frame("b", 2)])
    store.replace("2")
    store.begin_list()
    store.stage([frame("a", 3, body=1)], unreadable=1)
    replaced = store.replace("9")
    assert in_short(flat(replaced.pieces)) == [("modified", "n/a", "3")]
    assert (replaced.kept, replaced.missed) == ({b"n/b"}, 1)
    assert set(state(store)) == {"n/a", "n/b"}
    assert in_short(listing_changes(store, [frame("a", 3, body=1)])) == [("removed", "n/b", "77")]


def relisted(store: Store, frames: list[ObjectFrame], **odd: object) -> ReplaceResult:
    store.begin_list()
    store.stage(frames, **odd)  # type: ignore[arg-type]  # options of `stage` by name
    replaced = store.replace("77")
    replaced.pieces = iter(list(replaced.pieces))
    return replaced


def test_a_list_keeps_the_objects_that_it_names_as_damaged_and_removes_the_others_that_it_does_not_show() -> (
    None
):
    store = listing(widgets(), [frame("a", 1), frame("b", 2), frame("c", 3)])
    for _ in range(2):
        replaced = relisted(store, [frame("a", 1)], damaged=[("n", "b")])
        assert set(state(store)) == {"n/a", "n/b"}
        assert replaced.kept == {b"n/b"}
    assert in_short(flat(relisted(store, [frame("a", 1)]).pieces)) == [("removed", "n/b", "77")]


def test_what_a_list_does_not_show_stays_as_long_as_lists_have_objects_without_a_name() -> None:
    store = listing(widgets(), [frame("a", 1), frame("b", 2), frame("c", 3)])
    for _ in range(3):
        replaced = relisted(store, [frame("a", 1)], unreadable=1)
        assert (flat(replaced.pieces), replaced.kept) == ([], {b"n/b", b"n/c"})
    store.apply([frame("b", 4, "DELETED"), frame("c", 5, body=1)])
    assert flat(relisted(store, [frame("a", 1)], unreadable=1).pieces) == []
    assert set(state(store)) == {"n/a", "n/c"}, "what the watch showed holds"
    assert in_short(flat(relisted(store, [frame("a", 1)]).pieces)) == [("removed", "n/c", "77")]


def test_a_list_by_content_finds_what_a_restored_server_gave_the_same_uid_and_version() -> None:
    store = listing(widgets(), [frame("a", 5), frame("b", 6)])
    store.begin_list(by_content=True)
    store.stage([frame("a", 5, body="other"), frame("b", 6)])
    assert in_short(flat(store.replace("6").pieces)) == [("modified", "n/a", "5")]
    assert state(store)["n/a"] == ("uid-a", "5", "other")
    assert listing_changes(store, [frame("a", 5, body="third"), frame("b", 6)]) == [], (
        "later lists go by version again"
    )
