"""A log that is recovered in pieces, as it grows and for long, gives what a new writer reads back."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.properties.test_relay_replica import FAULTS, KEYS, OPS, QUEUES, Snapshot, Wait, play
from tests.support.extent import examples
from tests.support.relays import Rig, run_virtually
from tests.support.stream_log import PODS
from watchrelay.contract.records import Decoded, MarkerRecord
from watchrelay.daemon.recovery import LogFold
from watchrelay.publish.recovery import (
    LogRecovery,
    RecoveredState,
    decide,
    recovered_state,
    remove_strays,
)
from watchrelay.store.objects import Store
from watchrelay.store.transform import Transform

HELD = st.lists(st.sampled_from(KEYS), unique=True)


def new_store(rig: Rig) -> Store:
    return Store(Transform.compile(PODS), partitions=rig.spec.partitions)


def recovered(rig: Rig, recoveries: Sequence[LogRecovery]) -> RecoveredState:
    decision = decide(
        recoveries, config=rig.spec.config_hash, from_start=range(rig.spec.partitions)
    )
    for _ in remove_strays(recoveries):
        pass
    return recovered_state(recoveries, decision)


def markers(records: list[Decoded], kind: str) -> list[MarkerRecord]:
    return [each for each in records if isinstance(each, MarkerRecord) and each.kind == kind]


def at_once(rig: Rig, logs: Sequence[list[Decoded]]) -> RecoveredState:
    recoveries = [
        LogRecovery(
            rig.spec.id, partition, partitions=rig.spec.partitions, pack=new_store(rig).pack
        )
        for partition in range(rig.spec.partitions)
    ]
    for recovery, records in zip(recoveries, logs, strict=True):
        recovery.apply(records)
    return recovered(rig, recoveries)


def in_pieces(rig: Rig, data: st.DataObject) -> RecoveredState:
    """Of all records, in any order of the partitions."""
    fold = LogFold(rig.spec, new_store(rig))
    left = {partition: rig.records(partition) for partition in range(rig.spec.partitions)}
    while left := {partition: records for partition, records in left.items() if records}:
        partition = data.draw(st.sampled_from(sorted(left)))
        count = data.draw(st.integers(1, len(left[partition])))
        fold.take(partition, left[partition][:count])
        left[partition] = left[partition][count:]
    return recovered(rig, list(fold.recoveries.values()))


@settings(max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(OPS, HELD, FAULTS, st.integers(0, 1000), QUEUES, st.data())
def test_folds_fed_in_pieces_are_the_fold_at_once(
    ops: list[object],
    held: list[bytes],
    faults: object,
    seed: int,
    queue_bytes: int,
    data: st.DataObject,
) -> None:
    rig = run_virtually(play(ops, held, faults, seed, queue_bytes))  # type: ignore[arg-type]  # of FAULTS
    logs = [rig.records(partition) for partition in range(rig.spec.partitions)]
    assert in_pieces(rig, data) == at_once(rig, logs)


@settings(max_examples=examples(30), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(OPS, HELD, FAULTS, st.integers(0, 1000), st.data())
def test_a_log_followed_over_snapshots_is_the_log_from_the_newest_one(
    ops: list[object], held: list[bytes], faults: object, seed: int, data: st.DataObject
) -> None:
    asked = [*ops, Wait(1.5), Snapshot(), Wait(1.5), Wait(1.5), *ops[:5]]
    rig = run_virtually(play(asked, held, faults, seed))  # type: ignore[arg-type]  # of FAULTS
    logs = [rig.records(partition) for partition in range(rig.spec.partitions)]
    ended = [{each.snapshot for each in markers(records, "end")} for records in logs]
    newest = max(set.intersection(*ended), key=lambda snapshot: int(snapshot.partition("-")[2]))
    for at, records in enumerate(logs):
        begin = next(each for each in markers(records, "begin") if each.snapshot == newest)
        logs[at] = records[records.index(begin) :]
    followed, read_back = in_pieces(rig, data), at_once(rig, logs)
    assert followed.entries == read_back.entries
    assert followed.partitions == read_back.partitions
    assert followed.pending_repairs == read_back.pending_repairs
    assert followed.records_since_snapshot == read_back.records_since_snapshot
