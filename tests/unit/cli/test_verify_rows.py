"""What `watchrelay verify` prints: a line for each stream, or for each partition; JSON for each
stream and partition in any case."""

from __future__ import annotations

import io
import json

from watchrelay.cli.audits import Row, print_rows
from watchrelay.consumer.audit import Audit, AuditProblem
from watchrelay.contract.control_state import Origin


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
    print_rows(rows, out, as_json=output == "json", absent=absent, each=each)
    return out.getvalue().splitlines()


def test_each_stream_is_one_line() -> None:
    assert printed(GOOD) == [
        (
            "nodes  k8s.t.nodes: 1 partition, 10 records, 0 objects, digest ffffffffffffffff, "
            "epoch 4: holds"
        ),
        (
            "pods   k8s.t.pods: 2 partitions, 20 records, 0 objects, digest fffffffffffffffd, "
            "epoch 5: holds"
        ),
        "all 3 partitions hold, 30 records read",
    ]


def test_what_does_not_hold_is_shown_with_its_partition_below_the_stream() -> None:
    assert printed(BAD, absent=1) == [
        "nodes  k8s.t.nodes: 1 partition, 10 records, 0 objects, digest ffffffffffffffff, epoch 4: holds",
        (
            "pods   k8s.t.pods: 2 partitions, 20 records, 0 objects, digest fffffffffffffffd, "
            "epoch 5: NOT PROVEN"
        ),
        (
            "  k8s.t.pods/1 @3..13: 10 records, 0 objects, digest fffffffffffffffe, epoch 5: NOT "
            "PROVEN"
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
            "4: holds"
        ),
        (
            "pods   k8s.t.pods/0 @3..13: 10 records, 0 objects, digest ffffffffffffffff, epoch "
            "4: holds"
        ),
        (
            "pods   k8s.t.pods/1 @3..13: 10 records, 0 objects, digest fffffffffffffffe, epoch "
            "5: NOT PROVEN"
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
        "problems",
        "stale",
    }
    assert {frozenset(line) for line in lines} == {frozenset(fields)}


def test_json_is_valid_also_where_stdout_cannot_encode_it() -> None:
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding="ascii", errors="backslashreplace")
    print_rows([row("pods", 0, AuditProblem("hash", 7, "shop/ü", "€"))], out, as_json=True)
    out.flush()
    assert json.loads(raw.getvalue())["problems"][0]["key"] == "shop/ü"
