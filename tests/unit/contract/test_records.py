"""The record contract, both ways."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.relays import spec_of
from tests.support.stream_log import PODS
from watchrelay.contract import control, control_state, records
from watchrelay.contract.control import SnapshotPartition
from watchrelay.contract.headers import Header
from watchrelay.contract.records import (
    CloudEvents,
    Marker,
    MarkerRecord,
    ObjectRecord,
    Trimmed,
    decode,
)
from watchrelay.contract.wire import MarkerKind, Reason, Verb, WireRecord
from watchrelay.core.errors import RecordRefused
from watchrelay.core.timestamps import parse_timestamp, rfc3339
from watchrelay.model.resources import Resource

AT_MS = 1_767_323_045_006
KEY = b"shop/web-1"
VALUE = b'{"apiVersion":"v1","kind":"Pod"}'
NODES = Resource("", "v1", "nodes", "Node", namespaced=False)
DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment", namespaced=True)


def added(encoder: CloudEvents | None = None, **changed: Any) -> WireRecord:
    fields: dict[str, Any] = {
        "partition": 1,
        "sequence": 7,
        "key": KEY,
        "value": VALUE,
        "verb": "added",
        "reason": "watch",
    }
    fields |= {"uid": "u-1", "version": "42", "value_hash": 0xABC, "time_ms": AT_MS}
    return (encoder or CloudEvents(spec_of(), 17)).object(**(fields | changed))


def test_an_object_carries_every_header_of_the_contract_and_no_other() -> None:
    assert dict(added().headers) == {
        "ce_specversion": b"1.0",
        "ce_source": b"/clusters/test/api/v1/pods",
        "ce_wrstream": b"pods",
        "ce_wrepoch": b"17",
        "ce_kind": b"Pod",
        "ce_apiversion": b"v1",
        "content-type": b"application/json",
        "ce_type": b"dev.watchrelay.object.added.v1",
        "ce_wrreason": b"watch",
        "ce_time": b"2026-01-02T03:04:05.006Z",
        "ce_namespace": b"shop",
        "ce_name": b"web-1",
        "ce_subject": b"shop/web-1",
        "ce_wruid": b"u-1",
        "ce_wrrv": b"42",
        "ce_wrhash": b"0000000000000abc",
        "ce_id": b"pods.17.1.7",
        "ce_sequence": b"00000000000000000007",
    }


def test_what_is_constant_for_a_writer_comes_first() -> None:
    encoder = CloudEvents(spec_of(), 17)
    one, other = added(encoder).headers, added(encoder, sequence=8, key=b"pay/x", uid="u-2").headers
    assert [left == right for left, right in zip(one, other, strict=True)][:9] == [True] * 9


@pytest.mark.parametrize("length", [1, 63, 64, 250, 600])
def test_the_order_of_headers_is_the_same_however_long_they_are(length: int) -> None:
    key, uid, version = b"shop/" + b"w" * length, "u" * length, "9" * length
    whole, stub = (
        list(added(key=key, uid=uid, version=version, trimmed=trimmed).headers)
        for trimmed in ("", "stub")
    )
    assert whole == [header for header in stub if header[0] != "ce_wrtrimmed"]


@pytest.mark.parametrize("length", [4, 270, 281, 282, 283, 284, 300, 317, 381, 5000])
def test_a_stream_may_be_called_by_any_name_that_kubernetes_allows(length: int) -> None:
    encoder = CloudEvents(replace(spec_of(), id="p" * length), 17)
    for sequence in (1, 10**20 - 1):
        whole, stub = (
            list(added(encoder, sequence=sequence, trimmed=trimmed).headers)
            for trimmed in ("", "stub")
        )
        assert ("ce_id", b"%b.17.1.%d" % (b"p" * length, sequence)) in whole
        assert whole == [header for header in stub if header[0] != "ce_wrtrimmed"]


def test_a_delete_has_a_null_value_its_uid_and_neither_content_type_nor_hash() -> None:
    record = added(value=None, verb="deleted", value_hash=0)
    headers = dict(record.headers)
    assert record.value is None
    assert headers["ce_wruid"] == b"u-1"
    assert headers["ce_wrrv"] == b"42"
    assert not {"content-type", "ce_wrhash", "ce_wrtrimmed"} & headers.keys()


def test_what_does_not_apply_is_absent_never_empty() -> None:
    for record in (
        added(uid="", version=""),
        added(CloudEvents(spec_of(resource=NODES), 1), key=b"/n1"),
    ):
        assert all(value for _, value in record.headers)
    assert not {"ce_wruid", "ce_wrrv"} & dict(added(uid="", version="").headers).keys()


def test_a_cluster_scoped_object_has_its_name_as_subject_and_no_namespace() -> None:
    headers = dict(added(CloudEvents(spec_of(resource=NODES), 1), key=b"/n1").headers)
    assert headers["ce_subject"] == headers["ce_name"] == b"n1"
    assert "ce_namespace" not in headers


def test_a_prefixed_key_leaves_no_trace_in_the_subject() -> None:
    encoder = CloudEvents(spec_of(resource=DEPLOYMENTS, key_prefix=b"deployments.apps/"), 1)
    headers = dict(added(encoder, key=b"deployments.apps/shop/web").headers)
    assert (headers["ce_subject"], headers["ce_namespace"]) == (b"shop/web", b"shop")
    assert headers["ce_source"] == b"/clusters/test/apis/apps/v1/deployments"
    encoder = CloudEvents(spec_of(resource=NODES, key_prefix=b"nodes/"), 1)
    assert dict(added(encoder, key=b"nodes//n1").headers)["ce_subject"] == b"n1"


def test_a_claim_has_neither_frontier_nor_count_nor_the_time_of_the_servers_last_answer() -> None:
    record = CloudEvents(spec_of(), 17).marker(
        1, 1, AT_MS, Marker("claim", frontier="9", count=3, seen_ms=AT_MS)
    )
    assert record.key == b"%wr/claim/pods/1"
    assert record.value is None
    assert dict(record.headers).keys() == {
        "ce_specversion",
        "ce_source",
        "ce_wrstream",
        "ce_wrepoch",
        "ce_wrconfig",
        "ce_wrpartitions",
        "ce_type",
        "ce_time",
        "ce_id",
        "ce_sequence",
    }


def test_an_end_names_its_begin_and_a_heartbeat_the_last_snapshot() -> None:
    encoder = CloudEvents(spec_of(), 17)
    end = Marker("end", "99", 2, 5, AT_MS, "17-1", begin_sequence=2, begin_offset=1000)
    headers = dict(encoder.marker(0, 9, AT_MS, end).headers)
    assert headers["ce_wrsnap"] == b"17-1"
    assert (headers["ce_wrbegin"], headers["ce_wrbeginoff"]) == (b"2", b"1000")
    assert (headers["ce_wrcount"], headers["ce_wrdigest"], headers["ce_wrrv"]) == (
        b"2",
        b"0000000000000005",
        b"99",
    )
    assert headers["ce_wrseen"] == b"2026-01-02T03:04:05.006Z"
    beat = Marker("heartbeat", "99", last_snapshot="17-1", last_snapshot_offset=0)
    headers = dict(encoder.marker(0, 10, AT_MS, beat).headers)
    assert (headers["ce_wrlastsnap"], headers["ce_wrlastsnapoff"]) == (b"17-1", b"0")
    assert not {"ce_wrseen", "ce_wrsnap", "ce_wrbegin"} & headers.keys()
    assert (
        not {"ce_wrlastsnap", "ce_wrlastsnapoff"}
        & dict(encoder.marker(0, 11, AT_MS, Marker("heartbeat", "99")).headers).keys()
    )


@given(
    st.sampled_from(["added", "modified", "deleted", "read"]),
    st.sampled_from(["watch", "relist", "resume", "conflated", "snapshot", "healed"]),
    st.integers(1, 2**63),
    st.integers(0, 2**64 - 1),
    st.sampled_from(["", "fields", "stub"]),
    st.text(st.characters(codec="utf-8", min_codepoint=33), max_size=20),
)
def test_decode_says_what_was_rendered(
    verb: Verb, reason: Reason, sequence: int, value_hash: int, trimmed: Trimmed, uid: str
) -> None:
    value = None if verb == "deleted" else VALUE
    expected = 0 if value is None else value_hash
    record = added(
        value=value,
        verb=verb,
        reason=reason,
        sequence=sequence,
        value_hash=value_hash,
        trimmed=trimmed,
        uid=uid,
    )
    decoded = decode(*record)
    assert decoded == ObjectRecord(
        "pods", 17, sequence, verb, KEY, value, expected, uid, "42", reason, "2026-01-02T03:04:05.006Z", trimmed,
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["claim", "begin", "end", "heartbeat"])
def test_a_marker_is_decoded_as_it_was_encoded(kind: MarkerKind) -> None:
    snapshot = "17-1" if kind in {"begin", "end"} else ""
    last = "17-0" if kind == "heartbeat" else ""
    begin = (5, 6) if kind == "end" else (0, 0)
    marker = Marker(kind, "99", 2, 5, AT_MS, snapshot, *begin, last, 7)
    record = decode(*CloudEvents(spec_of(), 17).marker(1, 4, AT_MS, marker))
    assert isinstance(record, MarkerRecord)
    assert (record.kind, record.partition, record.sequence, record.partitions, record.config) == (
        kind,
        1,
        4,
        2,
        "c0ffee",
    )
    if kind != "claim":
        assert (record.frontier, record.count, record.digest, record.seen) == (
            "99",
            2,
            5,
            "2026-01-02T03:04:05.006Z",
        )
    assert (record.snapshot, record.begin_sequence, record.begin_offset) == (snapshot, *begin)
    assert (record.last_snapshot, record.last_snapshot_offset) == (last, 7 if last else None)


def without(record: WireRecord, name: str) -> WireRecord:
    return record._replace(headers=[header for header in record.headers if header[0] != name])


def with_header(record: WireRecord, name: str, value: bytes) -> WireRecord:
    changed: Header = (name, value)
    return record._replace(
        headers=[changed if header[0] == name else header for header in record.headers]
    )


@pytest.mark.parametrize(
    ("record", "rule"),
    [
        (WireRecord(b"k", b"{}", []), "not a record of watchrelay"),
        (without(added(), "ce_wrstream"), "not a record of watchrelay"),
        (without(added(), "ce_sequence"), "ce_sequence is missing"),
        (without(added(), "ce_wrhash"), "ce_wrhash is missing"),
        (with_header(added(), "ce_wrhash", b"abc"), "16 hex digits"),
        (with_header(added(), "ce_wrepoch", b"x"), "does not parse"),
        (with_header(added(), "ce_wruid", b"\xff"), "does not parse"),
        (with_header(added(), "ce_type", b"dev.watchrelay.object.added.v2"), "not of this contract version"),
        (with_header(added(), "ce_wrreason", b"because"), "not of this contract version"),
        (with_header(added(), "content-type", b"application/avro"), "not read by this version"),
        (with_header(added(), "content-type", b"application/cloudevents+json"), "not a CloudEvent"),
        (added()._replace(value=None), "added without a value"),
        (added(value=None, verb="deleted")._replace(value=b"{}"), "a delete with a value"),
        (CloudEvents(spec_of(), 1).marker(0, 1, 0, Marker("claim"))._replace(key=b"shop/x"), "not a marker's"),
        (CloudEvents(spec_of(), 1).marker(0, 1, 0, Marker("claim"))._replace(value=b"{}"), "not a marker's"),
    ],
)  # fmt: skip
def test_a_record_off_the_contract_is_refused_with_the_rule(record: WireRecord, rule: str) -> None:
    with pytest.raises(RecordRefused, match=rule):
        decode(*record)


@pytest.mark.parametrize(
    "name",
    [
        "ce_type",
        "ce_wrstream",
        "ce_wrepoch",
        "ce_sequence",
        "ce_time",
        "ce_wrhash",
        "ce_wrrv",
        "content-type",
    ],
)
def test_a_header_that_is_null_as_kafka_allows_is_refused_and_stops_no_reader(name: str) -> None:
    with pytest.raises(RecordRefused):
        decode(*with_header(added(), name, None))  # type: ignore[arg-type]  # the type says what we write, not what others do


def test_a_value_nested_deeper_than_anybody_can_read_is_taken_as_it_is() -> None:
    deep = b'{"before":null,"op":"c","after":' + b"[" * 100_000
    decoded = decode(*added()._replace(value=deep))
    assert isinstance(decoded, ObjectRecord)
    assert decoded.value == deep


def test_a_record_without_a_key_is_refused() -> None:
    with pytest.raises(RecordRefused, match="without a key"):
        decode(None, VALUE, added().headers)


def test_the_hash_is_the_one_of_the_contract() -> None:
    # printf 'a/b\0{}' | sha256sum
    assert f"{records.content_hash(b'a/b', b'{}'):016x}" == "021faf9a049ce132"


@given(st.integers(0, 4_102_444_800_000))
def test_an_instant_reads_back_as_the_millisecond_it_was(moment: int) -> None:
    assert parse_timestamp(rfc3339(moment).encode()) == moment


def test_an_index_record_gives_the_starting_point_of_the_next_claim() -> None:
    partitions = [SnapshotPartition(0, 10, 20, 2, 5), SnapshotPartition(1, 11, 21, 1, 2**64 - 1)]
    value = control.snapshot_value(
        snapshot="3-1", epoch=3, frontier="99", time_ms=AT_MS, requests=["r"], partitions=partitions
    )
    assert value == {
        "snapshot": "3-1",
        "epoch": 3,
        "rv": "99",
        "time": "2026-01-02T03:04:05.006Z",
        "count": 3,
        "requests": ["r"],
        "partitions": [
            {"partition": 0, "begin": 10, "end": 20, "count": 2, "digest": "0000000000000005"},
            {"partition": 1, "begin": 11, "end": 21, "count": 1, "digest": "ffffffffffffffff"},
        ],
    }
    read_back = control.parse_control(b"snapshot/pods", control.control_value(value)).value
    assert read_back is not None
    origins = control_state.index_origins(read_back, range(2))
    assert control_state.from_value(origins, 2) == {"snapshot": "3-1", "begin": [10, 11]}
    assert control_state.index_origins(read_back, range(3)) == {}


def test_a_claim_says_who_when_and_where_from() -> None:
    value = control.claim_value(
        holder="relay-0", instance="i", version="0.1.0", time_ms=AT_MS, starting_point=None
    )
    assert list(value) == ["holder", "instance", "version", "time", "from"]


def test_control_keys_read_back_and_others_are_refused() -> None:
    assert control.parse_control_key(control.control_key("claim", "pods@shop")) == (
        "claim",
        "pods@shop",
    )
    for key in (None, b"", b"claim", b"claim/", b"other/pods"):
        with pytest.raises(RecordRefused):
            control.parse_control_key(key)
    with pytest.raises(RecordRefused, match="not a JSON object"):
        control.parse_control(b"claim/pods", b"[1]")


def test_the_resource_of_the_fixture_is_pods() -> None:
    assert spec_of().plan.selection.resource is PODS
