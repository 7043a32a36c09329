"""Short logs, written out: what a new writer makes of each; cases are named as in the contract's
reasons."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.simulation.planted import of_a_snapshot
from watchrelay.contract.partitioning import partition_of
from watchrelay.contract.records import (
    DIGEST_MASK,
    Decoded,
    Foreign,
    MarkerRecord,
    ObjectRecord,
    OtherCluster,
    content_hash,
)
from watchrelay.contract.state import ObjectState
from watchrelay.contract.wire import MarkerKind, Reason, Verb
from watchrelay.publish.recovery import (
    Decision,
    FirstSnapshot,
    ListAndDiff,
    LogRecovery,
    ReadAgainFromStart,
    WatchFrom,
    decide,
    interleaved,
    recovered_state,
    remove_strays,
)

OURS = "ours"


class Log:
    """Writes a log and keeps count, as a right writer does. `stale` writes without
    counting."""

    def __init__(self, epoch: int = 1) -> None:
        self.epoch, self.sequence = epoch, 0
        self.live: dict[bytes, int] = {}
        self.records: list[Decoded] = []

    def say(
        self,
        key: str,
        version: int | str,
        verb: Verb = "added",
        *,
        reason: Reason = "watch",
        epoch: int = 0,
        sequence: int = 0,
        stale: bool = False,
    ) -> Log:
        """One object record."""
        name = key.encode()
        self.sequence += not stale
        value = None if verb == "deleted" else b"%b@%b" % (name, str(version).encode())
        value_hash = 0 if value is None else content_hash(name, value)
        if not stale:
            self.live.pop(name, None)
            if value is not None:
                self.live[name] = value_hash
        place = (epoch or self.epoch, sequence or self.sequence)
        self.records.append(
            ObjectRecord(
                "pods", *place, verb, name, value, value_hash, f"u-{key}", str(version), reason, "t"
            )
        )
        return self

    def delete(self, key: str, version: int, reason: Reason = "watch") -> Log:
        """A delete."""
        return self.say(key, version, "deleted", reason=reason)

    def mark(
        self,
        kind: MarkerKind,
        frontier: str = "",
        *,
        config: str = OURS,
        off: int = 0,
        begin: int = 0,
        last: tuple[str, int] = ("", 0),
    ) -> Log:
        """A marker; `off` is added to what it counts."""
        self.sequence += 1
        digest = sum(self.live.values()) & DIGEST_MASK
        snapshot = f"{self.epoch}-1" if kind in {"begin", "end"} else ""
        self.records.append(
            MarkerRecord(
                "pods", self.epoch, self.sequence, kind, 0, "t", config, 1, frontier, len(self.live) + off, digest, "", snapshot, begin,
                last_snapshot=last[0], last_snapshot_offset=last[1] if last[0] else None,
            )
        )  # fmt: skip
        return self

    def claim(self, epoch: int, *, config: str = OURS) -> Log:
        """A new writer."""
        self.epoch, self.sequence = epoch, 0
        return self.mark("claim", config=config)


def damage(log: Log, value: bytes) -> Log:
    """The newest record has another value, and the hash that it had."""
    log.records[-1] = replace(log.records[-1], value=value)
    return log


def folded(*logs: Log | Sequence[Decoded]) -> list[LogRecovery]:
    """One partition each."""
    recoveries = []
    for partition, log in enumerate(logs):
        recovery = LogRecovery("pods", partition, partitions=1, pack=lambda value, _version: value)
        recovery.apply(log.records if isinstance(log, Log) else log)
        recoveries.append(recovery)
    return recoveries


def decided(*logs: Log | Sequence[Decoded], whole: bool = True, bookmarks: bool = True) -> Decision:
    """The decision about these partitions."""
    recoveries = folded(*logs)
    return decide(
        recoveries,
        config=OURS,
        from_start=range(len(recoveries)) if whole else (),
        bookmarks=bookmarks,
    )


def test_a_whole_log_is_watched_on_from_its_frontier() -> None:
    log = (
        Log()
        .claim(1)
        .mark("begin", "0")
        .say("a", 1)
        .say("b", 2)
        .mark("end", "5", begin=2)
        .say("a", 6, "modified")
        .mark("heartbeat", "7")
    )
    log.delete("b", 8).claim(2)
    assert decided(log) == WatchFrom("7")
    (recovery,) = folded(log)
    result = recovered_state([recovery], WatchFrom("7"))
    assert {
        key: (entry.resource_version, entry.packed, entry.position)
        for key, entry in result.entries[0].items()
    } == {b"a": ("6", b"a@6", 0)}
    assert (result.deleted_versions, result.newest_on_log, result.pending_repairs) == (
        {b"b": "8"},
        "8",
        {},
    )
    assert (result.partitions[0].count, result.partitions[0].digest) == (1, log.live[b"a"])
    assert result.partitions[0].last_snapshot == ("1-1", 0)


def test_the_lowest_frontier_counts_and_numbers_are_compared_as_numbers() -> None:
    assert decided(
        Log().claim(1).say("a", 1).mark("heartbeat", "100"),
        Log().claim(1).say("b", 2).mark("heartbeat", "99"),
    ) == WatchFrom("99")


def test_nothing_on_the_log_is_a_first_snapshot() -> None:
    assert isinstance(decided(Log().claim(3)), FirstSnapshot)
    waiting = decided(Log().claim(1).mark("heartbeat", "0").claim(2))
    assert waiting == FirstSnapshot("nothing was published before")


@pytest.mark.parametrize("frontier", ["0", ""])
def test_a_partition_without_frontier_is_listed_for(frontier: str) -> None:
    whole = Log().claim(1).say("a", 1).mark("heartbeat", "9")
    assert decided(whole, Log().claim(1).mark("heartbeat", frontier)) == ListAndDiff(
        "a partition has no frontier"
    )
    assert decided(whole, Log().claim(1)) == ListAndDiff("a partition has no frontier")


def test_versions_that_cannot_be_compared_are_listed_for() -> None:
    decision = ListAndDiff("resourceVersions cannot be compared")
    assert decided(Log().claim(1).say("a", "x7").mark("heartbeat", "9")) == decision
    assert decided(Log().claim(1).say("a", 7).mark("heartbeat", "x9")) == decision


@pytest.mark.parametrize("reason", ["relist", "resume", "conflated"])
@pytest.mark.parametrize("verb", ["deleted", "modified"])
def test_without_bookmarks_what_a_list_brought_above_the_frontier_is_listed_for(
    reason: Reason, verb: Verb
) -> None:
    def log(version: int) -> Log:
        return (
            Log()
            .claim(1)
            .mark("begin", "5")
            .say("a", 1)
            .mark("end", "5", begin=2)
            .say("a", version, verb, reason=reason)
            .claim(2)
        )

    decision = decided(log(9), bookmarks=False)
    assert isinstance(decision, ListAndDiff)
    assert "above the frontier" in decision.reason
    assert decided(log(5), bookmarks=False) == WatchFrom("5"), "the watch begins behind it"
    assert decided(log(9)) == WatchFrom("5"), "a bookmark will show it"


@pytest.mark.parametrize("between", [[], ["0"], ["0", "0"]])
def test_a_marker_that_goes_back_is_listed_for_also_where_another_partition_has_none_yet(
    between: list[str],
) -> None:
    back = Log().claim(1).say("a", 8).mark("heartbeat", "9").say("a", 4, "modified")
    for frontier in between:
        back.mark("heartbeat", frontier)
    back.mark("heartbeat", "5").claim(2)
    behind = Log().claim(1).say("b", 8).mark("heartbeat", "9").claim(2)
    for logs in ((back,), (back, behind), (behind, back)):
        decision = decided(*logs)
        assert isinstance(decision, ListAndDiff)
        assert "restored from a backup" in decision.reason
    assert decided(behind) == WatchFrom("9")


def test_f1_the_version_of_the_last_record_counts_also_that_of_a_read() -> None:
    log = (
        Log()
        .claim(1)
        .say("k", 2)
        .mark("heartbeat", "2")
        .say("k", 2, "read", reason="snapshot")
        .claim(2)
    )
    (recovery,) = folded(log)
    assert decide([recovery], config=OURS, from_start=()) == WatchFrom("2")
    assert recovery.entries[b"k"].resource_version == "2", (
        "the change at 3 is newer, and will be published"
    )


def test_f2_records_of_the_old_epoch_count_until_the_claim_behind_them_here() -> None:
    log = (
        Log()
        .claim(1)
        .mark("heartbeat", "1")
        .say("k", 3)
        .claim(4)
        .mark("heartbeat", "3")
        .say("late", 9, epoch=1, sequence=77, stale=True)
    )
    (recovery,) = folded(log)
    assert set(recovery.entries) == {b"k"}
    assert recovery.proven


def test_f3_a_former_writer_behind_a_newer_claim_is_ignored_and_healed() -> None:
    log = Log().claim(1).say("k", 3).mark("heartbeat", "3").claim(2).delete("k", 5)
    log.say("k", 3, "read", reason="snapshot", epoch=1, sequence=4, stale=True).mark(
        "heartbeat", "6"
    ).claim(3)
    (recovery,) = folded(log)
    assert (recovery.entries, recovery.deleted, recovery.proven) == ({}, {b"k": "5"}, True)
    assert recovered_state([recovery], WatchFrom("6")).pending_repairs == {(b"k", 0): None}


@pytest.mark.parametrize(
    ("configs", "same"),
    [
        (("ours", "ours"), True),
        (("other", "ours"), False),
        (("ours", "other"), False),
        (("other", "other"), False),
    ],
    ids=str,
)
def test_f4_the_config_of_the_newest_marker_and_of_every_claim_behind_it_must_be_ours(
    configs: tuple[str, str], same: bool
) -> None:
    marker, claim = configs
    log = (
        Log()
        .claim(1, config=marker)
        .say("k", 1)
        .mark("heartbeat", "5", config=marker)
        .claim(2, config=claim)
        .say("k", 6)
        .claim(3)
    )
    assert decided(log) == (
        WatchFrom("5") if same else ListAndDiff("the stream's config changed", config_changed=True)
    )


@pytest.mark.parametrize(
    ("epoch", "sequence", "watched"),
    [(1, 6, True), (1, 7, False), (1, 500, False), (2, 1, False), (2, 2, False), (2, 500, False)],
)
def test_a_record_behind_the_newest_marker_that_does_not_follow_is_listed_for(
    epoch: int, sequence: int, watched: bool
) -> None:
    log = Log().mark("claim").mark("begin", "0").say("a", 1).mark("end", "2").say("b", 3)
    assert decided(log) == WatchFrom("2")
    log.say("a", 4, "modified", epoch=epoch, sequence=sequence)
    log.records += Log(3).mark("claim").records
    assert isinstance(decided(log), WatchFrom if watched else ListAndDiff)


def test_a_record_that_does_not_follow_is_no_matter_once_a_marker_agrees_with_it() -> None:
    log = Log().mark("claim").say("a", 1).mark("heartbeat", "1")
    log.sequence += 5
    log.say("b", 2).mark("heartbeat", "2")
    assert decided(log) == WatchFrom("2")
    assert isinstance(decide(folded(log), config=OURS, from_start=(), foreign=True), ListAndDiff)


def test_f5_deletes_behind_the_frontier_are_remembered_with_their_versions() -> None:
    log = (
        Log()
        .claim(1)
        .mark("heartbeat", "4")
        .say("d", 6)
        .delete("d", 7)
        .say("d", 8)
        .delete("d", 9)
        .mark("claim")
        .delete("old", 3)
        .claim(2)
    )
    (recovery,) = folded(log)
    result = recovered_state([recovery], WatchFrom("4"))
    assert (result.deleted_versions, result.newest_on_log) == ({b"d": "9"}, "9")


def test_f7_a_late_copy_is_healed_unless_nothing_is_the_truth() -> None:
    log = Log().claim(1).say("a", 1).say("b", 2).delete("b", 3)
    again = [log.records[1], log.records[2], log.records[3]]
    (recovery,) = folded([*log.records, *again])
    assert list(recovery.to_repair) == [b"a"], (
        "a table is right, but compaction takes the true record for its copy, which readers pass "
        "over"
    )
    (recovery,) = folded([*log.records, again[1]])
    assert list(recovery.to_repair) == [b"b"], "a late first copy shows a dead object"
    later = Log().claim(1).say("a", 1).say("a", 2, "modified")
    (recovery,) = folded([*later.records, later.records[1]])
    assert list(recovery.to_repair) == [b"a"]
    (recovery,) = folded(
        [
            *later.records,
            later.records[1],
            *Log(1).say("x", 1, sequence=4).say("a", 5, sequence=5).records,
        ]
    )
    assert not recovery.to_repair, "published again behind it already"


def with_a_late_marker() -> Log:
    """Epoch 11 had claimed and repaired its state; compaction left the late marker of epoch 10."""
    log = Log().claim(10).mark("begin", "0").say("a", 1).mark("end", "5", begin=2)
    return log.delete("a", 131).mark("heartbeat", "139").claim(12)


def test_f32_without_the_rule_the_watch_goes_on_behind_deletes() -> None:
    """The planted fault of the simulation, of which no seed is known."""
    log = with_a_late_marker().say("a", 1, "read", reason="healed")
    assert isinstance(decided(log), ListAndDiff)
    assert decided([of_a_snapshot(each) for each in log.records]) == WatchFrom("139")


def test_a_repair_that_differs_from_what_the_newest_marker_covers_is_listed_for() -> None:
    log = with_a_late_marker()
    assert decided(log) == WatchFrom("139")
    log.say("a", 1, "read", reason="healed")
    decision = decided(log)
    assert isinstance(decision, ListAndDiff)
    assert decision.reason.startswith("a repair")
    log.mark("heartbeat", "116")
    assert isinstance(decided(log), ListAndDiff), "the frontier goes back"
    removed = Log().claim(1).mark("begin", "0").say("a", 1).mark("end", "5", begin=2).claim(2)
    assert decided(removed) == WatchFrom("5")
    assert isinstance(decided(removed.delete("a", 5, "healed")), ListAndDiff)
    same = Log().claim(1).mark("begin", "0").say("a", 1).mark("end", "5", begin=2).claim(2)
    assert decided(same.say("a", 1, "read", reason="healed")) == WatchFrom("5")


def test_f7_a_healed_null_is_no_delete_of_the_server() -> None:
    log = Log().claim(1).mark("heartbeat", "4").say("k", 4, "deleted", reason="healed").claim(2)
    (recovery,) = folded(log)
    assert (recovery.deleted, recovery.versions.newest) == ({}, "")
    assert folded(Log().claim(1).delete("k", 9).say("k", 4, "deleted", reason="healed"))[
        0
    ].deleted == {b"k": "9"}


def test_f11_what_does_not_agree_is_read_from_its_start_and_then_listed() -> None:
    bad = Log().claim(1).say("a", 1).mark("heartbeat", "5", off=1).claim(2)
    good = Log().claim(1).say("b", 1).mark("heartbeat", "5").claim(2)
    assert decided(good, bad, whole=False) == ReadAgainFromStart((1,))
    assert decided(good, bad) == FirstSnapshot(
        "the log does not match its digests, or is of another number of partitions",
        log_unverified=True,
    )
    assert decided(Log().claim(1).say("a", 1).claim(2)) == FirstSnapshot(
        "the log does not match its digests, or is of another number of partitions",
        log_unverified=True,
    )


def test_an_end_removes_what_is_older_than_its_begin_and_so_proves_a_stale_state() -> None:
    log = Log().claim(1).say("dead", 1).say("alive", 2)
    log.live.clear()
    log.claim(2).mark("begin", "0").say("alive", 2, reason="snapshot").mark(
        "end", "5", begin=2
    ).claim(3)
    (recovery,) = folded(log)
    assert (set(recovery.entries), recovery.proven, recovery.state.digest) == (
        {b"alive"},
        True,
        sum(log.live.values()) & DIGEST_MASK,
    )
    assert decided(log) == WatchFrom("5")


def test_other_streams_of_the_topic_are_passed_over_and_the_highest_epoch_is_ours_alone() -> None:
    log = Log().claim(1).say("a", 1).mark("heartbeat", "5")
    recovery = LogRecovery("nodes", 0, partitions=1, pack=lambda value, _version: value)
    recovery.apply(log.records)
    assert (recovery.empty, recovery.writers.highest_epoch) == (True, 0)
    assert folded(log)[0].writers.highest_epoch == 1


def test_a_log_of_another_number_of_partitions_is_no_proof() -> None:
    log = Log().claim(1).mark("begin", "0").say("a", 1).mark("end", "5", begin=2).claim(2)
    recovery = LogRecovery("pods", 0, partitions=2, pack=lambda value, _version: value)
    recovery.apply(log.records)
    assert decide([recovery], config=OURS, from_start=()) == ReadAgainFromStart((0,))
    assert decide([recovery], config=OURS, from_start=[0]) == FirstSnapshot(
        "the log does not match its digests, or is of another number of partitions",
        log_unverified=True,
    )
    log.mark("heartbeat", "6")
    (own,) = folded(log)
    assert isinstance(decide([own], config=OURS, from_start=[0]), WatchFrom)


@pytest.mark.parametrize(("frontier", "proven"), [("0", True), ("5", False)])
def test_the_end_of_a_retirement_is_believed_whatever_its_number_of_partitions(
    frontier: str, proven: bool
) -> None:
    log = Log().claim(1).mark("begin", "0").mark("end", frontier, begin=2).claim(2)
    recovery = LogRecovery("pods", 0, partitions=2, pack=lambda value, _version: value)
    recovery.apply(log.records)
    assert recovery.proven == proven


def test_objects_published_since_the_last_snapshot_are_counted() -> None:
    log = (
        Log()
        .claim(1)
        .say("a", 1)
        .mark("begin", "1")
        .say("a", 1, "read")
        .mark("end", "2", begin=3)
        .say("b", 3)
        .say("c", 4)
    )
    assert folded(log)[0].records_since_snapshot == 3


def test_entries_of_all_partitions_take_turns() -> None:
    recoveries = folded(Log().say("a", 1).say("b", 1).say("c", 1), Log().say("d", 1))
    assert [key for key, _ in interleaved([recovery.entries for recovery in recoveries])] == [
        b"a",
        b"d",
        b"b",
        b"c",
    ]


KEYS = st.sampled_from(["a", "b", "c"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("say"), KEYS, st.integers(1, 9)),
        st.tuples(st.just("delete"), KEYS, st.integers(1, 9)),
        st.tuples(
            st.sampled_from(["begin", "end", "heartbeat", "claim", "again", "lose", "zombie"]),
            KEYS,
            st.integers(0, 3),
        ),
    ),
    max_size=40,
)


def written(steps: list[tuple[str, str, int]]) -> Log:
    """A log of right and wrong records."""
    log, begin = Log().claim(1), 0
    for what, key, number in steps:
        if what == "say":
            log.say(key, number)
        elif what == "delete":
            log.delete(key, number)
        elif what == "claim":
            log.claim(log.epoch + number)
            begin = 0
        elif what == "again":
            log.records.extend(log.records[-number - 1 :])
        elif what == "lose":
            del log.records[-1:]
        elif what == "zombie":
            log.say(key, number, epoch=max(1, log.epoch - number), sequence=number + 1, stale=True)
        else:
            begin = log.sequence + 1 if what == "begin" else begin
            log.mark(what, "5", begin=begin if what == "end" else 0)  # type: ignore[arg-type]  # the rest are markers
    return log


@given(STEPS)
def test_recovery_has_the_state_of_a_reader_whatever_is_on_the_log(
    steps: list[tuple[str, str, int]],
) -> None:
    log = written(steps)
    (recovery,) = folded(log)
    shown = ObjectState()
    for record in log.records:
        if shown.admit(record.epoch, record.sequence) is not None:
            continue
        if isinstance(record, ObjectRecord):
            shown.put(record)
        elif record.kind != "claim":
            shown.judge(record)
    assert {key: (entry.hash, entry.packed) for key, entry in recovery.entries.items()} == {
        key: (held.value_hash, held.value) for key, held in shown.held.items()
    }
    state = recovery.state
    assert (state.digest, state.epoch, state.last) == (shown.digest, shown.epoch, shown.last)


def test_a_value_that_is_not_what_its_hash_says_counts_by_its_bytes_as_for_readers() -> None:
    believed = damage(Log().claim(1).say("a", 1), b"other").mark("heartbeat", "5").claim(2)
    decision = decided(believed)
    assert decision == FirstSnapshot(
        "the log does not match its digests, or is of another number of partitions",
        log_unverified=True,
    ), "the marker is of a writer that believed the header"
    behind = damage(Log().claim(1).say("a", 1).mark("heartbeat", "5").say("a", 2), b"other")
    assert decided(behind.claim(2)) == ListAndDiff(
        "a value after the newest marker is not what its ce_wrhash says", doubted=True
    )
    corrected = damage(Log().claim(1).say("a", 1), b"other").say("a", 2).mark("heartbeat", "5")
    assert decided(corrected.claim(2)) == WatchFrom("5"), "the true record follows it"


@pytest.mark.parametrize("where", ["tail", "twice", "unproven"])
def test_an_object_where_its_key_does_not_belong_is_removed_there_and_held_nowhere(
    where: str,
) -> None:
    home = partition_of(b"a", 2)
    logs = [Log().claim(1) for _ in range(2)]
    if where != "unproven":
        logs[home].say("a", 1)
    if where == "unproven":  # by a writer that did not know of it
        logs[1 - home].say("a", 9)
        logs[1 - home].live.clear()
    if where == "twice":
        logs[1 - home].say("a", 9)
    for log in logs:
        log.mark("heartbeat", "5")
    if where == "tail":
        logs[1 - home].say("a", 9)
    recoveries = []
    for partition, log in enumerate(logs):
        recovery = LogRecovery("pods", partition, partitions=2, pack=lambda value, _version: value)
        recovery.apply(
            [
                replace(each, partitions=2) if isinstance(each, MarkerRecord) else each
                for each in log.claim(2).records
            ]
        )
        recoveries.append(recovery)
    for _ in remove_strays(recoveries):
        pass
    result = recovered_state(recoveries, WatchFrom("5"))
    assert result.pending_repairs == {(b"a", 1 - home): None}
    assert [set(entries) for entries in result.entries] == [
        {b"a"} if partition == home and where != "unproven" else set() for partition in range(2)
    ]
    stray = result.partitions[1 - home]
    assert (stray.count, stray.digest) == (0, 0)


def test_a_marker_of_another_cluster_proves_nothing_and_is_over_with_the_next_own_one() -> None:
    before, after = Log().claim(1).say("a", 1).mark("heartbeat", "5"), Log()
    (recovery,) = folded(before)
    recovery.apply([OtherCluster(1, recovery.state.last + 1, "of cluster old")])
    assert (recovery.frontier, recovery.writers.shared) == ("5", "of cluster old")
    assert decide([recovery], config=OURS, from_start=[0]) == ListAndDiff(
        "the sequences have a gap, or a record may be from another writer", doubted=True
    )
    after.epoch, after.sequence = 1, recovery.state.last
    recovery.apply(
        [replace(after.mark("heartbeat", "6").records[0], count=1, digest=recovery.state.digest)]
    )
    assert recovery.writers.shared == ""
    assert decide([recovery], config=OURS, from_start=[0]) == WatchFrom("6")


def test_a_marker_of_another_cluster_that_readers_ignore_is_nothing() -> None:
    (recovery,) = folded(Log().claim(2).say("a", 1).mark("heartbeat", "5"))
    recovery.apply([OtherCluster(1, 900, "of cluster old"), OtherCluster(2, 1, "of cluster old")])
    assert recovery.writers.shared == ""
    assert decide([recovery], config=OURS, from_start=[0]) == WatchFrom("5")


def test_what_was_under_a_key_of_another_stream_is_left_to_a_snapshot() -> None:
    (recovery,) = folded(Log().claim(1).say("a", 1).mark("heartbeat", "5").say("b", 6))
    assert recovery.leave(b"b")
    assert set(recovery.entries) == {b"a"}
    assert decide([recovery], config=OURS, from_start=[0], others=True) == FirstSnapshot(
        "the log holds objects under keys of other streams on the topic", log_unverified=True
    )


@pytest.mark.parametrize("named", [False, True])
def test_a_record_that_readers_ignore_has_its_key_repaired_unless_the_true_one_follows(
    *, named: bool
) -> None:
    log = Log().claim(1).say("a", 1)
    (recovery,) = folded(log)
    recovery.apply([Foreign(b"a", named), Foreign(b"b", named)])
    assert list(recovery.to_repair) == [b"a"] + [b"b"] * named
    recovery.apply(log.say("a", 2).records[-1:])
    assert list(recovery.to_repair) == [b"b"] * named
