"""`ignoreChanges` and `publishWhen`: which changes of an object are changes to the topic."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from tests.support.pods import frame_of
from tests.unit.store.frames import WIDGETS, entries, flat, listing
from watchrelay.contract.partitioning import partition_of
from watchrelay.contract.records import content_hash
from watchrelay.model.changes import Entry, ObjectChange, Removed, Upserted
from watchrelay.model.frames import FrameType, ObjectFrame
from watchrelay.model.paths import LAST_APPLIED, parse_counted, parse_ignored
from watchrelay.store.counting import UNKNOWN, Counting
from watchrelay.store.objects import Store
from watchrelay.store.transform import Transform

HEARTBEAT = "status.conditions[*].lastHeartbeatTime"


def node(
    version: int, kind: FrameType = "MODIFIED", *, uid: str = "u", **parts: Any
) -> ObjectFrame:
    """A node as the kubelet reports it; `parts` replaces top-level keys, `metadata` adds to its
    own."""
    metadata: dict[str, Any] = {"name": "a", "namespace": "n", "uid": uid}
    metadata |= {"resourceVersion": str(version)} | parts.pop("metadata", {})
    whole = {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": metadata, "spec": {}}
    return frame_of(msgspec.json.encode(whole | parts), kind)


def beat(version: int, at: str, ready: str = "True", **metadata: Any) -> ObjectFrame:
    """A heartbeat of a node."""
    status = {"conditions": [{"type": "Ready", "status": ready, "lastHeartbeatTime": at}]}
    return node(version, status=status, metadata=metadata)


def counting_of(
    *ignored: str, published: list[str] | None = None, drop: tuple[str, ...] = (), hides: str = ""
) -> tuple[Transform, Counting]:
    before = Transform.compile(WIDGETS, drop=drop)
    shown = Transform.compile(WIDGETS, drop=drop, redact=(hides,)) if hides else before
    return shown, Counting.compile(
        before,
        redacts=shown.redacts,
        ignored=map(parse_ignored, ignored),
        published=None if published is None else map(parse_counted, published),
    )


def store_of(*ignored: str, train_at: int = 400, piece: int = 2000, **options: Any) -> Store:
    transform, counting = counting_of(*ignored, **options)
    return Store(transform, partitions=3, counting=counting, train_at=train_at, piece=piece)


def versions(changes: list[ObjectChange]) -> list[str]:
    """Of the records, those of removals with a minus."""
    return [
        f"-{each.resource_version}" if isinstance(each, Removed) else each.entry.resource_version
        for each in changes
    ]


def after(store: Store, *frames: ObjectFrame) -> list[str]:
    return versions(store.apply(frames).changes)


def relisted(store: Store, *frames: ObjectFrame) -> tuple[list[str], int]:
    """The records after a list of these objects, and how many changes count as missed."""
    store.begin_list()
    store.stage(frames)
    replaced = store.replace("99")
    return versions(flat(replaced.pieces)), replaced.missed


def resumed(store: Store, *frames: ObjectFrame, in_full: bool = False) -> Store:
    """`store`, new, with these objects as they were published."""
    logged = []
    for each in frames:
        key = f"{each.namespace}/{each.name}".encode()
        value, version = store._transform(each), each.resource_version
        packed = store.pack_logged(value, version)
        value_hash = content_hash(key, value)
        entry = Entry.of(
            each.uid, version, partition_of(key, 3), value_hash=value_hash, packed=packed
        )
        logged.append((key, entry))
    store.resume(logged, skip={}, newest="", in_full=in_full)
    return store


# ---- which changes count -------------------------------------------------------------------------


def test_heartbeats_are_suppressed_and_counted_and_the_state_stays_as_published() -> None:
    store = listing(store_of(HEARTBEAT), [beat(1, "1:00")])
    applied = store.apply([beat(2, "1:10"), beat(3, "1:20")])
    assert (applied.changes, applied.suppressed) == ([], 2)
    held = entries(store)[b"n/a"]
    value = store.unpack(held)
    assert (held.resource_version, held.hash) == ("1", content_hash(b"n/a", value))
    assert b"1:00" in value, "the ignored field is as old as the record"


def test_an_ignored_field_gets_newer_with_the_next_change_that_counts() -> None:
    store = listing(store_of(HEARTBEAT), [beat(1, "1:00")])
    assert after(store, beat(2, "1:10"), beat(3, "1:20", ready="False")) == ["3"]
    assert b"1:20" in store.unpack(entries(store)[b"n/a"])


def test_a_change_is_compared_with_the_published_state_not_with_the_one_before() -> None:
    store = listing(store_of("spec.noise"), [node(1, spec={"noise": 0, "size": 1})])
    assert after(store, node(2, spec={"noise": 1, "size": 1})) == []
    assert after(store, node(3, spec={"noise": 1, "size": 2})) == ["3"]
    assert after(store, node(4, spec={"noise": 0, "size": 1})) == ["4"]


NEVER: dict[str, dict[str, Any]] = {
    "resourceVersion": {},
    "generation": {"generation": 7},
    "managedFields": {"managedFields": [{"manager": "kubectl"}]},
    "last-applied": {"annotations": {LAST_APPLIED: "{}"}},
}


@pytest.mark.parametrize("what", NEVER)
@pytest.mark.parametrize("published", [None, ["spec", "metadata.annotations"]])
def test_what_follows_from_other_changes_never_counts_by_itself(
    what: str, published: list[str] | None
) -> None:
    """Also where it is published."""
    kept = Transform.compile(WIDGETS, keep_managed_fields=True, keep_last_applied=True)
    paths = None if published is None else map(parse_counted, published)
    ignored = [] if published else [parse_ignored("spec.noise")]
    counting = Counting.compile(kept, ignored=ignored, published=paths)
    store = Store(kept, partitions=3, counting=counting)
    before = node(1, metadata={"annotations": {}})
    listing(store, [before])
    assert after(store, node(2, metadata={"annotations": {}} | NEVER[what])) == []


@pytest.mark.parametrize(
    "options", [{"published": []}, {"published": ["spec"]}, {"ignored": ["metadata.*"]}]
)
def test_uid_and_deletion_timestamp_always_count(options: dict[str, Any]) -> None:
    store = listing(store_of(*options.pop("ignored", ()), **options), [node(1)])
    ending = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
    assert after(store, node(2, metadata={"labels": {"a": "b"}})) == []
    assert after(store, node(3, metadata=ending)) == ["3"]
    assert after(store, node(4, metadata=ending | {"finalizers": []})) == []
    assert after(store, node(5, uid="other")) == ["-5", "5"]


def test_publish_when_counts_its_paths_alone_and_an_empty_list_means_adds_and_deletes() -> None:
    store = store_of(published=["spec.replicas", "metadata.labels"])
    listing(store, [node(1, spec={"replicas": 1, "paused": False})])
    assert after(store, node(2, spec={"replicas": 1, "paused": True}, status={"x": 1})) == []
    assert after(store, node(3, spec={"replicas": 2})) == ["3"]
    assert after(store, node(4, spec={"replicas": 2}, metadata={"labels": {"a": "b"}})) == ["4"]
    none = store_of(published=[])
    assert after(none, node(1, "ADDED"), node(2, spec={"x": 1}), node(3, "DELETED")) == ["1", "-3"]


@pytest.mark.parametrize(
    ("path", "same", "other"),
    [
        ("spec.items[*].image", [{"image": "a", "env": 1}], [{"image": "b", "env": 0}]),
        ("spec.items[*].image", [{"image": "a"}, {"env": 0}], None),
        ("spec.*.image", {"x": {"image": "a", "env": 1}}, {"x": {"image": "b", "env": 0}}),
        ('spec.items["a.b"]', {"a.b": 1, "c": 2}, {"a.b": 2, "c": 0}),
    ],
)
def test_paths_are_read_as_those_of_drop(path: str, same: Any, other: Any) -> None:
    def shaped(items: Any, version: int) -> ObjectFrame:
        return node(version, spec=items if path.startswith("spec.*") else {"items": items})

    first = msgspec.json.decode(msgspec.json.encode(same))
    for each in first if isinstance(first, list) else first.values():
        if isinstance(each, dict) and "env" in each:
            each["env"] = 0
    store = listing(store_of(published=[path]), [shaped(first, 1)])
    assert after(store, shaped(same, 2)) == []
    if other is not None:
        assert after(store, shaped(other, 3)) == ["3"]


@pytest.mark.parametrize("value", [1, "text", None, [1], {"a": 1}])
def test_a_path_that_leads_nowhere_counts_nothing_and_ignores_nothing(value: object) -> None:
    """Field names are those of a CRD that nobody here knows, and their shapes may be others."""
    for path in ("spec.x.y", "spec.x[*].y"):
        store = listing(store_of(published=[path]), [node(1, spec={"x": 0})])
        assert after(store, node(2, spec={"x": value})) in ([], ["2"])
        counted = store_of(published=["spec.other"])
        listing(counted, [node(1, spec={"x": 0})])
        assert after(counted, node(2, spec={"x": value})) == []
        ignoring = listing(store_of(path), [node(1, spec={"x": 0})])
        assert after(ignoring, node(2, spec={"x": value})) == ["2"]


ANNOTATED = {"metadata": {"annotations": {"x": "1"}}}
LABELLED = {"metadata": {"labels": {"x": "1"}}}


@pytest.mark.parametrize(
    ("options", "before", "later"),
    [
        ({"ignored": ["metadata.annotations.x"]}, {}, ANNOTATED),
        ({"ignored": ["status.*"]}, {}, {"status": {"x": {}}}),
        ({"ignored": ["spec.noise"]}, {}, {"metadata": {"annotations": {LAST_APPLIED: "{}"}}}),
        ({"ignored": ["metadata.finalizers[*]"]}, {}, {"metadata": {"finalizers": ["x"]}}),
        ({"published": ["metadata.labels.app"]}, {}, LABELLED),
        ({"published": ["status.phase"]}, {}, {"status": {"x": 1}}),
        ({"published": ["status.phase"]}, {"status": None}, {"status": [1]}),
        ({"published": ["status.c[*].reason"]}, {}, {"status": {"c": []}}),
        ({"published": ["status.c[*].reason"]}, {}, {"status": {"c": [{"x": 1}]}}),
    ],
)
def test_a_map_that_comes_or_goes_with_what_does_not_count_is_no_change(
    options: dict[str, Any], before: dict[str, Any], later: dict[str, Any]
) -> None:
    """Servers omit an empty map: the first annotation of an object brings `annotations` along."""
    ignored, only = options.get("ignored", ()), options.get("published")
    for first, second in ((before, later), (later, before)):
        store = listing(store_of(*ignored, published=only), [node(1, **first)])
        assert after(store, node(2, **second)) == []


def test_an_item_that_comes_or_goes_counts_whatever_of_it_is_ignored() -> None:
    """A network policy with the rule {} allows all, one without rules nothing."""
    store = listing(store_of("spec.rules[*].note"), [node(1, spec={"rules": [{"note": 1}]})])
    assert after(store, node(2, spec={"rules": [{}]})) == []
    assert after(store, node(3, spec={"rules": []})) == ["3"]
    assert after(store, node(4, spec={})) == ["4"]


def test_what_is_dropped_never_counts_and_an_object_that_cannot_be_split_always_does() -> None:
    store = listing(store_of("spec.noise", drop=("status",)), [node(1)])
    assert after(store, node(2, status={"x": 1})) == []
    _, counting = counting_of("spec.noise")
    assert counting.of_value(b"no JSON") == UNKNOWN
    assert counting.of_value(b'{"spec":{}}') == UNKNOWN


def test_what_is_read_back_from_the_log_is_held_as_it_was_received() -> None:
    """So a restart, and a standby, go on with what the log has."""
    rng = random.Random(1)
    for drop in ((), ("status.x",)):
        store = store_of("spec.noise", "status.conditions[*].at", drop=drop)
        for version in range(1, 50):
            conditions = [{"at": rng.random(), "n": version} for _ in range(rng.randrange(3))]
            status = {"conditions": conditions, "x": "\u2028"}
            store.apply([node(version, status=status, spec={"a": 1.50, "n": version})])
            held = entries(store)[b"n/a"]
            assert held.resource_version == str(version)
            assert store.pack_logged(store.unpack(held), str(version)) == held.packed
            assert held.packed[:8] != UNKNOWN


# ---- lists, resume, another config ---------------------------------------------------------------


def test_a_list_finds_no_missed_change_in_what_was_suppressed() -> None:
    store = listing(store_of(HEARTBEAT), [beat(1, "1:00")])
    after(store, beat(2, "1:10"))
    assert relisted(store, beat(2, "1:10")) == ([], 0)
    assert relisted(store, beat(3, "1:30")) == ([], 0)
    assert relisted(store, beat(4, "1:40", ready="False")) == (["4"], 1)


def test_a_list_by_content_compares_by_what_counts() -> None:
    store = listing(store_of(HEARTBEAT), [beat(1, "1:00")])
    store.begin_list(by_content=True)
    store.stage([beat(1, "1:30")])
    assert flat(store.replace("99").pieces) == []


def test_after_a_restart_changes_and_lists_are_compared_with_what_the_log_has() -> None:
    store = resumed(store_of(HEARTBEAT), beat(5, "1:00"))
    assert after(store, beat(6, "1:10")) == []
    assert relisted(store, beat(7, "1:20")) == ([], 0)
    assert after(store, beat(8, "1:30", ready="False")) == ["8"]


def test_after_another_config_the_list_is_compared_in_full_and_only_that() -> None:
    store = resumed(store_of(HEARTBEAT), beat(5, "1:00"), in_full=True)
    assert relisted(store, beat(6, "1:10"))[0] == ["6"]
    assert relisted(store, beat(7, "1:20")) == ([], 0)
    unchanged = resumed(store_of(HEARTBEAT), beat(5, "1:00"), in_full=True)
    assert relisted(unchanged, beat(6, "1:00")) == ([], 0), "nothing that is published differs"


def test_training_keeps_what_counts_and_values() -> None:
    frames = [
        node(each + 1, metadata={"name": f"w{each}"}, spec={"noise": each, "text": "x" * each})
        for each in range(60)
    ]
    store = store_of("spec.noise", train_at=50)
    listing(store, frames)
    store.apply([node(100, metadata={"name": "w0"}, spec={"noise": 9, "text": "y"})])
    for each in frames[1:]:
        key = f"n/{each.name}".encode()
        assert store.unpack(entries(store)[key]) == store._transform(each)
        again = node(200, metadata={"name": each.name}, spec={"noise": -1, "text": "x" * 0})
        assert after(store, again) == ([] if each.name == "w0" else ["200"])


def test_the_state_after_one_that_the_topic_has_in_part_is_a_change_whatever_differs() -> None:
    """What was cut off may fit by now, and counts."""
    store = listing(store_of(HEARTBEAT), [beat(1, "1:00")])
    published = entries(store)[b"n/a"]
    store.published_in_part(published)
    assert after(store, beat(2, "1:00")) == [], "nothing that is published differs"
    assert not store.settle(b"n/a", published)
    assert after(store, beat(3, "1:10"), beat(4, "1:20")) == ["3"]
    store.published_in_part(entries(store)[b"n/a"])
    assert relisted(store, beat(5, "1:30")) == (["5"], 1)


# ---- redacted ------------------------------------------------------------------------------------


def secret(version: int, text: str, noise: int = 0) -> ObjectFrame:
    return node(version, data={"password": text}, spec={"noise": noise})


def redacting() -> Store:
    return store_of("spec.noise", hides="data.*")


def test_what_is_redacted_counts_by_its_hidden_value() -> None:
    store = listing(redacting(), [secret(1, "a")])
    assert after(store, secret(2, "a", noise=1)) == []
    assert after(store, secret(3, "b", noise=1)) == ["3"], "the published bytes are the same"
    assert b'"<redacted>"' in store.unpack(entries(store)[b"n/a"])


def test_after_a_restart_a_redacting_stream_publishes_a_change_too_many_and_none_too_few() -> None:
    for text in ("a", "b"):
        store = resumed(redacting(), secret(5, "a"))
        assert after(store, secret(6, text, noise=1)) == ["6"]
        assert after(store, secret(7, text, noise=2)) == []
        assert after(store, secret(8, "c", noise=2)) == ["8"]


def test_what_the_first_comparison_publishes_is_not_counted_as_missed() -> None:
    store = resumed(redacting(), secret(5, "a"))
    store.passed("9")
    store.begin_list()
    store.stage([secret(6, "a", noise=1)])
    replaced = store.replace("99")
    assert versions(flat(replaced.pieces)) == ["6"]
    assert (replaced.missed, replaced.unsure) == (0, {b"n/a"})
    assert relisted(store, secret(7, "b")) == (["7"], 1), "from then on what counts is known"


def test_an_equal_version_tells_what_counts_of_a_redacted_object() -> None:
    store = resumed(redacting(), secret(5, "a"))
    assert relisted(store, secret(5, "a")) == ([], 0)
    assert after(store, secret(6, "a", noise=1)) == []


# ---- overload ------------------------------------------------------------------------------------


def test_a_state_is_settled_by_the_published_one_if_both_are_equal_in_what_counts() -> None:
    store = listing(store_of("spec.noise"), [node(1, spec={"noise": 0, "a": 0})])
    published = entries(store)[b"n/a"]
    first, *_ = store.apply([node(2, spec={"noise": 1, "a": 1})]).changes
    assert isinstance(first, Upserted)
    assert first.replaced is published
    assert not store.settle(b"n/a", published)
    store.apply([node(3, spec={"noise": 2, "a": 0})])
    assert store.settle(b"n/a", published)
    assert store.get(b"n/a") is published
    store.apply([node(4, uid="other", spec={"noise": 3, "a": 0})])
    assert not store.settle(b"n/a", published)
    store.apply([node(5, "DELETED", uid="other")])
    assert not store.settle(b"n/a", published)


@pytest.mark.parametrize("when", ["in the list", "between two pieces"])
def test_a_list_finds_no_difference_in_what_was_settled_meanwhile(when: str) -> None:
    frames = [node(each, metadata={"name": f"w{each}"}, spec={"a": 0}) for each in range(1, 5)]
    store = listing(store_of("spec.noise", piece=1), frames)
    key, published = b"n/w1", entries(store)[b"n/w1"]
    store.apply([node(10, metadata={"name": "w1"}, spec={"a": 1})])
    latest = node(12, metadata={"name": "w1"}, spec={"a": 0, "noise": 2})
    if when == "in the list":
        store.apply([node(11, metadata={"name": "w1"}, spec={"a": 0, "noise": 1})])
        store.begin_list()
        store.stage([latest, *frames[1:]])
        assert store.settle(key, published)
        assert flat(store.replace("99").pieces) == []
    else:
        store.begin_list()
        store.stage([latest, *frames[1:]])
        changes = list[ObjectChange]()
        for piece in store.replace("99").pieces:
            changes += piece
            if any(each.key == key for each in piece):
                assert store.settle(key, published)
        assert versions(changes) == ["12"]
    assert store.get(key) is published
    assert not store.in_difference
    assert after(store, node(20, metadata={"name": "w1"}, spec={"a": 0, "noise": 3})) == []


def test_where_everything_counts_nothing_is_settled() -> None:
    store = listing(Store(Transform.compile(WIDGETS), partitions=1), [node(1)])
    published = entries(store)[b"n/a"]
    store.apply([node(2, spec={"a": 1})])
    assert not store.settle(b"n/a", published)
    assert not store.settle(b"n/a", entries(store)[b"n/a"])
