"""What `watchrelay tail` prints."""

from __future__ import annotations

import io
import json
import logging
from dataclasses import replace

import msgspec
import pytest
import yaml

from tests.support.relays import spec_of
from watchrelay.cli.records import (
    RecordFilter,
    ShortClientLog,
    as_json,
    as_name,
    as_text,
    json_printer,
    print_batch,
    text_printer,
    yaml_printer,
)
from watchrelay.consumer.reader import TailRecord
from watchrelay.contract.records import CloudEvents, Marker, ObjectRecord, decode

ENCODER = CloudEvents(spec_of(), 17)
AT_MS = 1_767_323_045_006
OBJECT = b'{"apiVersion":"v1", "kind":"Pod"}'


def object_seen(verb: str = "modified", trimmed: str = "") -> TailRecord:
    value = None if verb == "deleted" else OBJECT
    record = ENCODER.object(1, 7, b"shop/web", value, verb, "watch", "u-1", "42", 5, AT_MS, trimmed)  # type: ignore[arg-type]
    return TailRecord("k8s.test.core.pods", 1, 99, decode(*record))


def holding(value: bytes) -> TailRecord:
    """A record whose headers are right, whatever its value is."""
    seen = object_seen()
    assert isinstance(seen.record, ObjectRecord)
    return replace(seen, record=msgspec.structs.replace(seen.record, value=value))


def marker_seen(marker: Marker) -> TailRecord:
    return TailRecord("k8s.test.core.pods", 1, 100, decode(*ENCODER.marker(1, 8, AT_MS, marker)))


def test_json_of_an_object_has_exactly_the_keys_of_the_contract() -> None:
    assert json.loads(as_json(object_seen())) == {
        "topic": "k8s.test.core.pods",
        "partition": 1,
        "offset": 99,
        "stream": "pods",
        "type": "modified",
        "key": "shop/web",
        "uid": "u-1",
        "resourceVersion": "42",
        "epoch": 17,
        "sequence": 7,
        "reason": "watch",
        "object": {"apiVersion": "v1", "kind": "Pod"},
    }
    assert json.loads(as_json(object_seen("deleted")))["object"] is None


def test_json_keeps_the_bytes_of_the_object_on_one_line() -> None:
    line = as_json(object_seen())
    assert OBJECT.decode() in line
    assert "\n" not in line


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (
            b'{ "apiVersion": "v1",\n  "n": 1.50000000000000000001,\n\t"x": [ 1, 2 ] }',
            '{"apiVersion":"v1","n":1.50000000000000000001,"x":[1,2]}',
        ),
        ('{"a":"\u202e\x9b1m\u00e9"}'.encode(), '{"a":"\\u202e\\u009b1m\u00e9"}'),
    ],
    ids=["blanks", "marks"],
)
def test_json_of_any_object_is_one_line_that_a_terminal_can_show(value: bytes, shown: str) -> None:
    line = as_json(holding(value))
    assert line.endswith(f'"object":{shown}}}')
    assert line.isprintable()
    assert json.loads(line)["object"] == json.loads(value)


@pytest.mark.parametrize(
    "value", [b"\x1b[2Jnot json", b'{"a":"\xff"}', b"", b"[" * 100_000, b'{"a":"\n"}']
)
def test_an_object_that_is_not_json_is_complained_of_and_the_rest_is_shown(
    value: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    out, seen = io.StringIO(), object_seen()
    print_batch([holding(value), seen], as_json, out)
    assert out.getvalue() == as_json(seen) + "\n"
    complaints = capsys.readouterr().err
    assert complaints.startswith("k8s.test.core.pods/1@99: the value is not JSON: ")
    assert complaints[:-1].isprintable()


def test_json_of_a_marker_says_what_it_carries_and_nothing_else() -> None:
    beat = json.loads(
        as_json(
            marker_seen(
                Marker("heartbeat", "99", 2, 5, AT_MS, last_snapshot="17-1", last_snapshot_offset=3)
            )
        )
    )
    assert beat["key"] == "%wr/heartbeat/pods/1"
    assert (beat["type"], beat["count"], beat["digest"], beat["resourceVersion"]) == (
        "heartbeat",
        2,
        "0000000000000005",
        "99",
    )
    assert (beat["lastSnapshot"], beat["lastSnapshotOffset"], beat["seen"]) == (
        "17-1",
        3,
        "2026-01-02T03:04:05.006Z",
    )
    end = json.loads(as_json(marker_seen(Marker("end", "99", 2, 5, None, "17-1", 2, 50))))
    assert (end["snapshot"], end["begin"], end["beginOffset"]) == ("17-1", 2, 50)
    claim = json.loads(as_json(marker_seen(Marker("claim"))))
    assert (
        not {"count", "digest", "resourceVersion", "snapshot", "begin", "seen", "object"}
        & claim.keys()
    )


def test_text_is_one_line_with_what_people_look_for() -> None:
    line = as_text(object_seen(), coloured=False)
    assert "\x1b" not in line
    for part in ("03:04:05.006", "pods", "modified", "shop/web", "rv 42", "p1@99", "watch"):
        assert part in line
    assert as_text(object_seen(trimmed="stub"), coloured=False).endswith("stub only")
    assert "2 objects, digest 0000000000000005, rv 99" in as_text(
        marker_seen(Marker("heartbeat", "99", 2, 5)), coloured=False
    )


def test_colour_only_on_a_terminal_and_never_against_no_color(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert "\x1b[" in text_printer(Terminal())(object_seen())
    assert "\x1b[" in text_printer(Terminal())(marker_seen(Marker("claim")))
    assert "\x1b[" not in text_printer(io.StringIO())(object_seen())
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in text_printer(Terminal())(object_seen())


def keyed(key: bytes, verb: str = "modified") -> TailRecord:
    seen = object_seen(verb)
    assert isinstance(seen.record, ObjectRecord)
    return replace(
        seen,
        record=msgspec.structs.replace(seen.record, key=key),
        source="/clusters/c/apis/apps/v1/deployments",
    )


BEAT = marker_seen(Marker("heartbeat", "99", 2, 5))
SHOWN = [
    keyed(b"shop/web", "added"),
    keyed(b"pay/web"),
    keyed(b"/n1", "read"),
    keyed(b"pods/shop/till", "deleted"),
    keyed(b"odd"),
    BEAT,
]


@pytest.mark.parametrize(
    ("wanted", "shown"),
    [
        (RecordFilter(), [0, 1, 2, 3, 4]),
        (RecordFilter(markers=True), [0, 1, 2, 3, 4, 5]),
        (RecordFilter(keys=("shop/web", "/n1")), [0, 2]),
        (RecordFilter(keys=("*/web",)), [0, 1]),
        (RecordFilter(keys=("shop",)), []),
        (RecordFilter(namespaces=frozenset({"shop"})), [0, 3]),
        (RecordFilter(namespaces=frozenset({"web"})), []),
        (RecordFilter(types=frozenset({"added", "deleted"})), [0, 3]),
        (RecordFilter(types=frozenset({"heartbeat"})), [5]),
        (RecordFilter(markers=True, types=frozenset({"read"})), [2, 5]),
        (RecordFilter(keys=("*/web",), types=frozenset({"modified"}), namespaces=frozenset({"pay", "shop"})), [1]),
    ],
)  # fmt: skip
def test_only_what_was_asked_for_is_shown_and_markers_only_when_asked_for(
    wanted: RecordFilter, shown: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    out = io.StringIO()
    print_batch(SHOWN, as_json, out, wanted)
    assert out.getvalue().splitlines() == [as_json(SHOWN[number]) for number in shown]
    assert capsys.readouterr().err == ""


def test_without_a_selection_no_marker_is_printed() -> None:
    out = io.StringIO()
    print_batch([BEAT, object_seen()], as_json, out)
    assert out.getvalue() == as_json(object_seen()) + "\n"


def test_names_are_those_of_kubectl_with_the_namespace() -> None:
    assert [as_name(seen) for seen in SHOWN[:5]] == [
        f"deployments.apps/{name}" for name in ("shop/web", "pay/web", "n1", "shop/till", "odd")
    ]
    assert as_name(replace(SHOWN[0], source="/clusters/c/api/v1/pods")) == "pods/shop/web"
    assert as_name(replace(SHOWN[0], source="nonsense")) == "pods/shop/web", "the stream's id"
    assert as_name(BEAT) == "%wr/heartbeat/pods/1"


MANIFEST = """\
apiVersion: v1
kind: Pod
metadata:
  annotations:
    empty: ""
    number: "42"
    script: |
      set -e
      run
    unsafe: "\\e[1m\\u202e"
    words: 'a: b'
  creationTimestamp: "2026-01-02T03:04:05Z"
  name: grün
spec:
  containers:
  - args: []
    name: c
  weight: 1.5
"""


def test_yaml_is_what_kubectl_prints_with_a_line_between_objects_and_comments_for_the_rest(
    capsys: pytest.CaptureFixture[str],
) -> None:
    notes = {
        "words": "a: b",
        "number": "42",
        "script": "set -e\nrun\n",
        "empty": "",
        "unsafe": "\x1b[1m\u202e",
    }
    metadata = {"name": "grün", "creationTimestamp": "2026-01-02T03:04:05Z", "annotations": notes}
    pod = {
        "kind": "Pod",
        "spec": {"weight": 1.5, "containers": [{"name": "c", "args": []}]},
        "metadata": metadata,
        "apiVersion": "v1",
    }
    out, printer = io.StringIO(), yaml_printer()
    batch = [
        BEAT,
        holding(json.dumps(pod).encode()),
        object_seen("deleted"),
        holding(b"[" * 100_000),
        object_seen(),
    ]
    print_batch(batch, printer, out, RecordFilter(markers=True))
    print_batch([object_seen()], printer, out)
    simple = "apiVersion: v1\nkind: Pod\n"
    beat, deleted = (
        f"# {as_text(seen, coloured=False)}\n" for seen in (BEAT, object_seen("deleted"))
    )
    assert out.getvalue() == f"{beat}{MANIFEST}{deleted}---\n{simple}---\n{simple}"
    assert [*yaml.safe_load_all(out.getvalue())] == [
        pod,
        *[{"apiVersion": "v1", "kind": "Pod"}] * 2,
    ]
    assert all(line.isprintable() for line in out.getvalue().splitlines())
    assert (
        capsys.readouterr().err
        == "k8s.test.core.pods/1@99: the value is not JSON: it is nested too deeply\n"
    )


def test_json_is_valid_also_where_stdout_cannot_encode_it() -> None:
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding="latin-1", errors="backslashreplace")
    print_batch([holding('{"name":"Grüße €\U0001f600"}'.encode())], json_printer(out), out)
    assert raw.getvalue().isascii()
    assert json.loads(raw.getvalue())["object"] == {"name": "Grüße €\U0001f600"}


def test_what_is_no_record_is_complained_of_apart_from_the_data(
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = io.StringIO()
    print_batch(
        [TailRecord("t", 0, 5, None, "header ce_id is missing"), object_seen()],
        as_json,
        out,
    )
    assert capsys.readouterr().err == "t/0@5: header ce_id is missing\n"
    assert len(out.getvalue().splitlines()) == 1


def test_a_client_in_trouble_says_so_once_in_half_a_minute() -> None:
    out, moments_s = io.StringIO(), [100.0]
    words = ShortClientLog(out, now_s=lambda: moments_s[-1])
    line = logging.LogRecord(
        "aiokafka", logging.ERROR, "", 0, "Unable connect to\n %s", ("kafka-0:9092",), None
    )
    # the last two: another trouble, over at once
    for moment_s in (100.0, 100.1, 103.0, 132.9, 133.0, 134.0, 165.0, 165.1):
        moments_s.append(moment_s)
        words.emit(line)
    assert out.getvalue() == "kafka: Unable connect to kafka-0:9092\n" * 2
