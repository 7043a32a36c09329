"""What an audit complains of, and what it takes for right."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.stream_log import NODES, SERVICES, Log, Writer, resend, stream
from watchrelay.consumer.audit import Audit, AuditProblem, Stale, bare_hash
from watchrelay.contract.control_state import Origin
from watchrelay.contract.partitioning import partition_of
from watchrelay.contract.records import decode
from watchrelay.contract.wire import WireRecord


def begun(*names: str) -> tuple[Log, Writer]:
    log = Log()
    writer = Writer(stream(), [log], epoch=7)
    writer.first(*(names or ("shop/a", "shop/b", "shop/c")))
    writer.beat()
    return log, writer


NOWHERE = Origin()


def audit(
    log: Log,
    origin: Origin = NOWHERE,
    *,
    partitions: int = 1,
    partition: int = 0,
    name: str = "pods",
    finish: bool = True,
) -> Audit:
    found = Audit(name, "t", partition, origin=origin, partitions=partitions, bare=bare_hash)
    before = hole = -1
    for offset, record in sorted(log.records.items()):
        taken = decode(record.key, record.value, record.headers)
        if before != offset - 1:
            hole = offset
        if offset >= found.start and taken.stream == name:
            found.take(offset, hole, taken, record.headers)
        before = offset
    if finish:
        found.finish()
    return found


def complaints(log: Log, origin: Origin = Origin()) -> list[tuple[str, int | None, str | None]]:  # noqa: B008  # a frozen value is a safe default
    return [(problem.kind, problem.offset, problem.key) for problem in audit(log, origin).problems]


def test_a_right_log_is_proven_without_a_complaint() -> None:
    log, writer = begun()
    writer.put("shop/a", 2)
    writer.delete("shop/b")
    writer.snapshot()
    writer.put("shop/b", 3, uid="u-again")
    writer.beat()
    found = audit(log)
    assert (found.state.proven, found.problems, found.records, len(found.state.held)) == (
        True,
        [],
        log.end,
        3,
    )


def test_records_behind_the_last_marker_need_no_marker_of_their_own() -> None:
    log, writer = begun()
    writer.put("shop/a", 2)
    assert audit(log).state.proven


def test_it_starts_at_the_last_snapshot_and_judges_nothing_before_its_end() -> None:
    log, writer = begun()
    writer.delete("shop/b")
    writer.snapshot()
    writer.beat()
    ((snapshot, begin),) = filter(None, writer.last_snapshot)
    found = audit(log, Origin(begin, snapshot))
    assert (found.problems, found.records) == ([], log.end - begin)


def test_duplicates_resends_and_former_writers_are_right() -> None:
    log, old = begun()
    batch = [old.put("shop/a", 2), *old.beat()]
    resend(log, *batch)
    new = Writer(stream(), [log], epoch=9, before=old)
    new.claim()
    old.put("shop/a", 9)
    old.beat()
    resend(log, *batch)
    new.republish("shop/a", reason="healed")
    new.beat()
    assert complaints(log) == []


def test_compaction_is_right_as_long_as_a_marker_agrees_behind_it() -> None:
    log, writer = begun()
    for number in range(5):
        writer.put("shop/a", number)
    writer.delete("shop/b")
    writer.beat()
    log.compact(up_to=log.end - 1)
    assert complaints(log) == []
    assert audit(log).state.proven


def test_a_former_writers_record_is_noted_until_its_key_is_published_again_and_is_no_problem() -> (
    None
):
    log, old = begun()
    new = Writer(stream(), [log], epoch=9, before=old)
    new.claim()
    first = log.end
    old.put("shop/a", 9)
    old.delete("shop/b")
    old.put("shop/new", 1)
    new.beat()
    found = audit(log)
    assert (found.state.proven, found.problems) == (True, [])
    assert found.stale == Stale(keys=3, first=first, last=first + 2, key="shop/a")
    new.republish("shop/a", reason="healed")
    new.delete("shop/new", reason="healed")
    left = audit(log).stale
    assert left == Stale(keys=1, first=first + 1, last=first + 1, key="shop/b")
    new.snapshot()
    assert audit(log).stale is None


def test_a_record_that_was_sent_again_and_says_what_is_true_is_not_noted() -> None:
    log, writer = begun()
    resend(log, writer.put("shop/a", 2), writer.delete("shop/b"))
    assert audit(log).stale is None


def test_compaction_without_a_marker_that_agrees_is_not_proven() -> None:
    log, writer = begun()
    writer.put("shop/a", 2)
    del log.records[log.end - 1]
    writer.put("shop/b", 2)
    writer.beat()
    assert complaints(log) == [("unproven", None, None)]


def test_compaction_behind_a_record_of_another_stream_is_right() -> None:
    log = Log()
    pods = Writer(stream(prefix=b"pods/"), [log], epoch=7)
    services = Writer(stream(SERVICES, prefix=b"services/"), [log], epoch=7)
    pods.first("shop/a")
    pods.beat()
    del log.records[log.end - 1]
    services.claim()
    pods.put("shop/a", 2)
    pods.beat()
    assert complaints(log) == []
    pods.put("shop/a", 3, lose=True)
    services.beat()
    pods.put("shop/a", 4)
    assert ("gap", log.end - 1, None) in complaints(log), "no hole since"


def test_a_log_without_a_marker_is_not_proven() -> None:
    log = Log()
    Writer(stream(), [log], epoch=1).claim()
    assert complaints(log) == [("unproven", None, None)]


def _lost(writer: Writer, log: Log) -> list[tuple[str, int | None, str | None]]:
    writer.put("shop/a", 2, lose=True)
    writer.put("shop/b", 2)
    writer.beat()
    writer.beat()
    return [("gap", log.end - 3, None), ("digest", log.end - 2, None)]


def _lost_and_published_again(writer: Writer, log: Log) -> list[tuple[str, int | None, str | None]]:
    writer.put("shop/a", 2, lose=True)
    writer.put("shop/a", 3)
    writer.beat()
    return [("gap", log.end - 2, None)]


def _other_digest(writer: Writer, log: Log) -> list[tuple[str, int | None, str | None]]:
    writer.held[0][writer.key("shop/a")].hash += 1
    writer.beat()
    return [("digest", log.end - 1, None)]


def _other_value(writer: Writer, log: Log) -> list[tuple[str, int | None, str | None]]:
    record = writer.put("shop/a", 2)
    log.records[log.end - 1] = WireRecord(record.key, (record.value or b"") + b" ", record.headers)
    writer.beat()
    return [("hash", log.end - 2, "shop/a"), ("digest", log.end - 1, None)]


def _back_in_time(writer: Writer, log: Log) -> list[tuple[str, int | None, str | None]]:
    writer.version = 50
    writer.put("shop/a", 2)
    writer.version = 500
    writer.beat()
    return [("order", log.end - 2, "shop/a")]


def _another_resend(writer: Writer, log: Log) -> list[tuple[str, int | None, str | None]]:
    record = writer.put("shop/a", 2)
    at = log.end
    other = Writer(stream(), [Log()], epoch=7, before=writer)
    other._sequence = [writer._sequence[0] - 1]
    log.append(other.put("shop/a", 3))
    assert record.key == log.records[at].key
    writer.beat()
    return [("resend", at, "shop/a")]


def _two_clusters(writer: Writer, log: Log) -> list[tuple[str, int | None, str | None]]:
    record = writer.beat()[0]
    headers = [
        (name, value.replace(b"/test/", b"/other/") if name == "ce_source" else value)
        for name, value in record.headers
    ]
    log.records[log.end - 1] = WireRecord(record.key, record.value, headers)
    return [("source", log.end - 1, None)]


@pytest.mark.parametrize(
    "fault",
    [
        _lost,
        _lost_and_published_again,
        _other_digest,
        _other_value,
        _back_in_time,
        _another_resend,
        _two_clusters,
    ],
    ids=lambda f: f.__name__,
)
def test_each_fault_is_named_with_its_offset_and_key(
    fault: Callable[[Writer, Log], list[tuple[str, int | None, str | None]]],
) -> None:
    log, writer = begun()
    expected = fault(writer, log)
    assert complaints(log) == expected


def test_a_server_that_was_set_back_is_no_fault_of_the_log() -> None:
    log, writer = begun()
    writer.version = 20
    writer.put("shop/a", 2, reason="relist")
    writer.beat()
    writer.put("shop/b", 2)
    writer.beat()
    assert complaints(log) == []


def test_a_part_of_the_first_snapshot_does_not_hold() -> None:
    log = Log()
    writer = Writer(stream(), [log], epoch=7)
    writer.knows_nothing = True
    writer.claim()
    writer.begin()
    writer.put("shop/a", verb="added", reason="snapshot")
    writer.beat()
    (problem,) = audit(log).problems
    assert problem.kind == "unproven"
    assert "the first snapshot of the stream has not ended" in problem.detail
    writer.end()
    assert complaints(log) == []


def test_a_key_in_a_partition_that_is_not_its_own_is_reported_once() -> None:
    log, writer = begun("shop/a", "shop/b", "shop/c", "shop/d")
    wrong = [name for name in writer.names() if partition_of(name.encode(), 2)]
    found = audit(log, partitions=2)
    assert [problem.key for problem in found.problems if problem.kind == "partition"] == wrong
    assert {problem.kind for problem in found.problems} == {"partition", "partitions"}


def test_problems_are_bounded_and_the_rest_is_counted() -> None:
    log, writer = begun("shop/a")
    for number in range(1_200):
        record = writer.put("shop/a", number)
        log.records[log.end - 1] = WireRecord(
            record.key, (record.value or b"") + b" ", record.headers
        )
    found = audit(log)
    assert len(found.problems) == 1_001
    assert found.problems[-1] == AuditProblem("unproven", None, None, "and 200 problems more")


def test_the_objects_at_a_version_can_be_computed_while_the_log_goes_on() -> None:
    log, writer = begun()
    found = audit(log, finish=False)
    then = dict(found.state.held)
    found.freeze(str(writer.version))
    at = log.end
    writer.put("shop/a", 2)
    writer.put("shop/a", 3)
    writer.delete("shop/b")
    writer.put("shop/new")
    for offset in range(at, log.end):
        record = log.records[offset]
        found.take(offset, -1, decode(record.key, record.value, record.headers), record.headers)
    assert found.held_as_of() == then
    assert set(found.state.held) == {b"shop/a", b"shop/c", b"shop/new"}


def test_the_bare_hash_passes_over_the_resource_version_and_nothing_else() -> None:
    one = b'{"metadata":{"name":"a","resourceVersion":"12"},"spec":{"resourceVersion":"12"}}'
    other = b'{"metadata":{"name":"a","resourceVersion":"345"},"spec":{"resourceVersion":"12"}}'
    assert bare_hash(one, "12") == bare_hash(other, "345")
    assert bare_hash(one, "12") != bare_hash(one.replace(b'"a"', b'"b"'), "12")
    assert bare_hash(one, "") != bare_hash(one, "12")


def test_cluster_scoped_keys_are_audited_like_others() -> None:
    log = Log()
    writer = Writer(stream(NODES), [log], epoch=1)
    writer.first("n1", "n2")
    writer.beat()
    assert audit(log, name="nodes").problems == []


def test_a_stream_whose_resource_is_served_in_another_version_is_the_same_stream() -> None:
    log, writer = begun()
    for _ in range(2):
        record = writer.beat()[0]
        headers = [
            (name, value.replace(b"/v1/", b"/v2/") if name == "ce_source" else value)
            for name, value in record.headers
        ]
        log.records[log.end - 1] = WireRecord(record.key, record.value, headers)
    assert complaints(log) == []
