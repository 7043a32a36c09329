"""What `watchrelay verify` prints: a line for each stream, or for each partition; JSON for each
stream and partition in any case."""

from __future__ import annotations

import io
import json

import msgspec

from watchrelay.cli.audits import Row, judge_age, print_rows
from watchrelay.consumer.audit import Audit, AuditProblem
from watchrelay.contract.age import APPEND_TIME
from watchrelay.contract.control_state import Origin
from watchrelay.contract.records import MarkerRecord
from watchrelay.contract.state import Held

BEAT = MarkerRecord(
    stream="pods",
    epoch=4,
    sequence=9,
    kind="heartbeat",
    partition=0,
    time="1970-01-01T00:05:05.000Z",
    config="c",
    partitions=2,
    frontier="7",
    count=0,
    digest=0,
    seen="1970-01-01T00:05:00.000Z",
)
NOW_MS = 63_000
"""Two seconds after the heartbeat was appended, which was five after the API server was seen."""


def row(stream: str, partition: int, *problems: AuditProblem, proven: bool = True) -> Row:
    audit = Audit(
        stream,
        f"k8s.t.{stream}",
        partition,
        origin=Origin(),
        partitions=2,
    )
    audit.state.proven, audit.state.digest, audit.state.epoch, audit.records = (
        proven,
        (1 << 64) - 1 - partition,
        4 + partition,
        10,
    )
    audit.problems.extend(problems)
    audit.newest_marker = BEAT
    audit.newest_stamp = 61_000, APPEND_TIME
    return audit, 3, 13


GOOD = [row("nodes", 0), row("pods", 0), row("pods", 1)]
BAD = [
    *GOOD[:2],
    row("pods", 1, AuditProblem("gap", 7, None, "sequence 5 never reached the log"), proven=False),
]


def printed(
    rows: list[Row], output: str = "text", *, absent: int = 0, each: bool = False
) -> list[str]:
    out = io.StringIO()
    print_rows(rows, out, as_json=output == "json", absent=absent, each=each, now_ms=NOW_MS)
    return out.getvalue().splitlines()


def test_each_stream_is_one_line() -> None:
    assert printed(GOOD) == [
        (
            "nodes  k8s.t.nodes: 1 partition, 10 records, 0 objects, digest ffffffffffffffff, "
            "epoch 4: holds, 7s old"
        ),
        (
            "pods   k8s.t.pods: 2 partitions, 20 records, 0 objects, digest fffffffffffffffd, "
            "epoch 5: holds, 7s old"
        ),
        "all 3 partitions hold, 30 records read",
    ]


def test_what_does_not_hold_is_shown_with_its_partition_below_the_stream() -> None:
    assert printed(BAD, absent=1) == [
        "nodes  k8s.t.nodes: 1 partition, 10 records, 0 objects, digest ffffffffffffffff, epoch 4: holds, 7s old",
        (
            "pods   k8s.t.pods: 2 partitions, 20 records, 0 objects, digest fffffffffffffffd, "
            "epoch 5: NOT PROVEN, 7s old"
        ),
        (
            "  k8s.t.pods/1 @3..13: 10 records, 0 objects, digest fffffffffffffffe, epoch 5: NOT "
            "PROVEN, 7s old"
        ),
        "  gap @7: sequence 5 never reached the log",
        (
            "1 of 3 partitions does not hold; 1 stream of the config was never published, 30 "
            "records read"
        ),
    ]


def test_with_partitions_each_is_one_line() -> None:
    assert printed(BAD, each=True) == [
        (
            "nodes  k8s.t.nodes/0 @3..13: 10 records, 0 objects, digest ffffffffffffffff, epoch "
            "4: holds, 7s old"
        ),
        (
            "pods   k8s.t.pods/0 @3..13: 10 records, 0 objects, digest ffffffffffffffff, epoch "
            "4: holds, 7s old"
        ),
        (
            "pods   k8s.t.pods/1 @3..13: 10 records, 0 objects, digest fffffffffffffffe, epoch "
            "5: NOT PROVEN, 7s old"
        ),
        "  gap @7: sequence 5 never reached the log",
        "1 of 3 partitions does not hold, 30 records read",
    ]


def test_json_has_each_stream_and_partition_whatever_is_asked_for() -> None:
    lines = [json.loads(line) for line in printed(BAD, "json")]
    assert [(line["stream"], line["partition"]) for line in lines] == [
        ("nodes", 0),
        ("pods", 0),
        ("pods", 1),
    ]
    assert lines[2]["problems"] == [
        {"kind": "gap", "offset": 7, "key": None, "detail": "sequence 5 never reached the log"}
    ]
    assert printed(BAD, "json", each=True) == printed(BAD, "json")
    fields = {
        "stream",
        "topic",
        "partition",
        "from",
        "to",
        "records",
        "objects",
        "epoch",
        "proven",
        "ageSeconds",
        "ageClock",
        "problems",
        "stale",
        "inPart",
    }
    assert (lines[0]["ageSeconds"], lines[0]["ageClock"]) == (7.0, "broker")
    assert {frozenset(line) for line in lines} == {frozenset(fields)}


def test_json_is_valid_also_where_stdout_cannot_encode_it() -> None:
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding="ascii", errors="backslashreplace")
    print_rows(
        [row("pods", 0, AuditProblem("hash", 7, "shop/ü", "€"))], out, as_json=True, now_ms=NOW_MS
    )
    out.flush()
    assert json.loads(raw.getvalue())["problems"][0]["key"] == "shop/ü"


def test_a_state_that_is_older_than_the_limit_fails_and_says_what_to_do() -> None:
    good, late = row("nodes", 0), row("pods", 0)
    for audit, _, _ in (good, late):
        judge_age(audit, NOW_MS, 7.0)
    assert not good[0].problems
    judge_age(late[0], NOW_MS + 113_001, 120.0)
    assert [problem.kind for problem in late[0].problems] == ["age"]
    assert printed([late])[1:] == [
        (
            "  k8s.t.pods/0 @3..13: 10 records, 0 objects, digest ffffffffffffffff, epoch 4: proven, "
            "with problems, 7s old"
        ),
        (
            "  age: the state is 2m old, the limit is 2m: start the relay, or see what keeps it from "
            "the API server or Kafka"
        ),
        "1 of 1 partition does not hold, 10 records read",
    ]


def test_an_age_that_is_not_known_fails_a_limit_and_nothing_else() -> None:
    unseen, ahead, unmarked = row("a", 0), row("b", 0), row("c", 0)
    unseen[0].newest_marker = msgspec.structs.replace(BEAT, seen="")
    ahead[0].newest_stamp = 305_000, 0
    unmarked[0].newest_marker = None
    ahead_ms = 4_000
    assert [line.rpartition(": ")[2] for line in printed([unseen, unmarked])[:-1]] == [
        "holds, age not known",
        "holds, age not known",
    ]
    for audit in (unseen[0], unmarked[0]):
        judge_age(audit, NOW_MS, 120.0)
    judge_age(ahead[0], ahead_ms, 120.0)
    assert [audit.problems[0].detail for audit, _, _ in (unseen, ahead, unmarked)] == [
        (
            "the age of the state is not known: the newest heartbeat does not tell when the API "
            "server was last seen"
        ),
        (
            "the age of the state is not known: the newest heartbeat is 301 s ahead of this clock: "
            "it, or that of the relay, is wrong"
        ),
        "the age of the state is not known: it has no marker with a digest",
    ]


def test_on_a_topic_with_create_time_the_age_is_by_the_clock_of_the_relay() -> None:
    one = row("pods", 0)
    one[0].newest_stamp = 305_000, 0
    out = io.StringIO()
    print_rows([one], out, as_json=False, now_ms=307_000)
    assert ": holds, 7s old by the clock of the relay\n" in out.getvalue()


def test_objects_that_are_published_in_part_are_noted_and_hold() -> None:
    rows = [row("pods", 0)]
    audit = rows[0][0]
    for key in (b"shop/a", b"shop/b"):
        audit.trimmed[key] = "stub"
        audit.state.held[key] = Held(b"{}", 1, "u", "7", 1, 1)
    audit.trimmed[b"shop/gone"] = "stub"
    text = "\n".join(printed(rows, "text"))
    assert "note: 2 objects (shop/a first) published in part, too large for the topic" in text
    assert "1 partition holds" in text
    assert json.loads(printed(rows, "json")[0])["inPart"] == 2
