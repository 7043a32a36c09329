"""Formats `structured` and `debezium`: what is in the value, and that a reader needs to know of
neither."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.fakesink import FakeSink
from tests.support.relays import Rig, run_virtually, spec_of
from watchrelay.consumer.replica import Replica
from watchrelay.contract.formats import unwrap
from watchrelay.contract.records import (
    CloudEvents,
    Marker,
    ObjectRecord,
    content_hash,
    decode,
    encoder_for,
)
from watchrelay.contract.wire import WireRecord
from watchrelay.core.errors import RecordRefused
from watchrelay.kube.frame import DEPTH_MAX
from watchrelay.model.resources import Resource
from watchrelay.model.streams import Format, StreamSpec

AT_MS = 1_767_323_045_006
KEY = b"shop/web-1"
# Spaces and an exponent that no encoder would write again the same way.
VALUE = b'{"apiVersion": "v1","kind":"Pod", "spec":{"n":1.0e3,"s":"\xc3\xa9 \\u00e9"}}'
ENVELOPED: tuple[Format, ...] = ("structured", "debezium")
DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment", namespaced=True)


def spec(format_: Format, resource: Resource | None = None) -> StreamSpec:
    return dataclasses.replace(
        spec_of() if resource is None else spec_of(resource=resource), format=format_
    )


def written(
    format_: Format,
    verb: str = "added",
    value: bytes | None = VALUE,
    encoder: CloudEvents | None = None,
    **more: Any,
) -> WireRecord:
    fields: dict[str, Any] = {
        "partition": 1,
        "sequence": 7,
        "key": KEY,
        "value": value,
        "verb": verb,
        "reason": "watch",
    }
    fields |= {
        "uid": "u-1",
        "version": "42",
        "value_hash": 0 if value is None else content_hash(KEY, value),
        "time_ms": AT_MS,
    }
    return (encoder or encoder_for(spec(format_), 17)).object(**(fields | more))


def value_of(record: WireRecord) -> dict[str, Any]:
    assert record.value is not None
    decoded: dict[str, Any] = json.loads(record.value)
    return decoded


def test_a_structured_value_says_every_attribute_of_the_headers_once_more_and_the_object_as_it_came() -> (
    None
):
    record = written("structured", trimmed="fields")
    event = value_of(record)
    headers = dict(record.headers)
    assert headers["content-type"] == b"application/cloudevents+json"
    attributes = {
        name.removeprefix("ce_"): text.decode()
        for name, text in headers.items()
        if name.startswith("ce_")
    }
    assert {
        name: text for name, text in event.items() if name not in {"data", "datacontenttype"}
    } == attributes
    assert event["datacontenttype"] == "application/json"
    assert record.value is not None
    assert record.value.endswith(b'"data":' + VALUE + b"}")


def test_a_debezium_value_is_a_change_with_the_object_as_it_came() -> None:
    record = written("debezium", encoder=encoder_for(spec("debezium", DEPLOYMENTS), 17))
    assert dict(record.headers)["content-type"] == b"application/json"
    assert record.value is not None
    assert record.value.startswith(b'{"before":null,"after":' + VALUE + b',"source":{')
    change = value_of(record)
    assert (change["op"], change["ts_ms"], change["before"]) == ("c", AT_MS, None)
    assert change["source"] | {"version": "?"} == {
        "version": "?",
        "connector": "watchrelay",
        "name": "test",
        "ts_ms": AT_MS,
        "snapshot": "false",
        "group": "apps",
        "apiVersion": "apps/v1",
        "resource": "deployments",
        "kind": "Deployment",
        "namespace": "shop",
        "object": "web-1",
        "uid": "u-1",
        "resourceVersion": "42",
        "stream": "deployments.apps",
        "epoch": 17,
        "sequence": "00000000000000000007",
    }


def test_the_operation_follows_the_type_and_a_snapshot_says_so_in_the_source() -> None:
    verbs = {
        verb: value_of(written("debezium", verb, None if verb == "deleted" else VALUE))["op"]
        for verb in ("added", "modified", "deleted")
    }
    assert verbs == {"added": "c", "modified": "u", "deleted": "d"}
    read = value_of(written("debezium", "read", reason="snapshot"))
    assert (read["op"], read["source"]["snapshot"]) == ("r", "true")


@pytest.mark.parametrize("format_", ENVELOPED)
def test_a_delete_is_a_value_without_an_object_and_its_tombstone_is_a_null(format_: Format) -> None:
    delete, tombstone = (
        written(format_, "deleted", None),
        written(format_, "deleted", None, sequence=8, tombstone=True),
    )
    value = value_of(delete)
    assert value.get("data") is None
    assert value.get("after") is None
    assert "data" not in value
    assert "ce_wrhash" not in dict(delete.headers)
    assert tombstone.value is None
    assert "content-type" not in dict(tombstone.headers)
    first, second = decode(*delete), decode(*tombstone)
    assert isinstance(first, ObjectRecord)
    assert isinstance(second, ObjectRecord)
    assert (first.verb, first.value, first.value_hash, first.enveloped) == (
        "deleted",
        None,
        0,
        True,
    )
    assert (second.verb, second.value, second.sequence, second.enveloped) == (
        "deleted",
        None,
        8,
        False,
    )


@pytest.mark.parametrize("format_", ENVELOPED)
def test_a_healed_null_is_a_null_in_every_format(format_: Format) -> None:
    assert written(format_, "deleted", None, reason="healed").value is None


@pytest.mark.parametrize("format_", ENVELOPED)
def test_markers_are_header_only_in_every_format(format_: Format) -> None:
    for kind in ("claim", "begin", "end", "heartbeat"):
        marker = Marker(kind, "9", 1, 2, AT_MS, "1-1" if kind in {"begin", "end"} else "")
        assert encoder_for(spec(format_), 1).marker(0, 1, AT_MS, marker) == encoder_for(
            spec("cloudevents"), 1
        ).marker(0, 1, AT_MS, marker)


@given(
    st.sampled_from(["cloudevents", "structured", "debezium"]),
    st.sampled_from(["added", "modified", "read"]),
    st.dictionaries(
        st.text(max_size=5),
        st.recursive(st.none() | st.integers() | st.text(max_size=9), st.lists, max_leaves=5),
        max_size=5,
    ),
    st.sampled_from(["shop/web", "/n1", 'shop/a"b', "shop/a\\b"]),
)
def test_every_format_gives_back_the_very_bytes_that_were_hashed(
    format_: Format, verb: str, fields: dict[str, Any], key: str
) -> None:
    value = json.dumps({**fields, "kind": "K"}).encode()
    record = decode(*written(format_, verb, value, key=key.encode()))
    assert isinstance(record, ObjectRecord)
    assert record.value == value
    assert record.value_hash == content_hash(KEY, value)
    plain = decode(*written("cloudevents", verb, value, key=key.encode()))
    assert isinstance(plain, ObjectRecord)
    assert dataclass_of(record) == dataclass_of(plain)


def dataclass_of(record: ObjectRecord) -> tuple[object, ...]:
    return tuple(
        getattr(record, name) for name in ObjectRecord.__struct_fields__ if name != "enveloped"
    )


@pytest.mark.parametrize(
    ("content_type", "value", "rule"),
    [
        (b"application/cloudevents+json", b"{}", "not a CloudEvent"),
        (b"application/cloudevents+json", b"[", "not a CloudEvent"),
        (b"application/cloudevents+json", b'{"specversion":"2.0"}', "specversion 2.0"),
        (b"text/plain", b"{}", "content-type text/plain"),
    ],
)
def test_a_broken_envelope_is_refused_with_the_rule(
    content_type: bytes, value: bytes, rule: str
) -> None:
    with pytest.raises(RecordRefused, match=rule):
        unwrap(content_type, value)


def test_a_delete_whose_envelope_holds_an_object_and_an_upsert_without_one_are_refused() -> None:
    upsert, delete = written("structured"), written("structured", "deleted", None)
    with pytest.raises(RecordRefused, match="a delete with a value"):
        decode(delete.key, upsert.value, delete.headers)
    with pytest.raises(RecordRefused, match="added without a value"):
        decode(upsert.key, delete.value, upsert.headers)


@pytest.mark.parametrize(
    "value",
    [
        b'{"before":1,"apiVersion":"v1","kind":"K","op":"c","after":{}}',
        b'{"before":1}',
        b'{"before":',
    ],
)
def test_an_object_that_begins_like_a_change_is_an_object(value: bytes) -> None:
    assert unwrap(b"application/json", value) == (value, False)


# ---- the writer ----------------------------------------------------------------------------------


def enveloped_rig(format_: Format, **more: Any) -> Rig:
    return Rig(spec=spec(format_), **more)


async def settled(rig: Rig) -> None:
    assert await rig.relay.drain(5.0)


@pytest.mark.parametrize("format_", ENVELOPED)
def test_a_delete_and_its_tombstone_are_two_records_and_readers_agree_with_the_writer(
    format_: Format,
) -> None:
    rig = enveloped_rig(format_)

    async def play() -> None:
        for number in range(8):
            rig.store.put(b"shop/%d" % number, b'{"kind":"Pod","n":%d}' % number)
        async with rig.running():
            rig.sync()
            await asyncio.sleep(1.0)
            rig.say(rig.store.remove(b"shop/1"))
            rig.say(rig.store.put(b"shop/2", b'{"kind":"Pod","n":22}', uid="u2"))
            await settled(rig)

    run_virtually(play())
    assert rig.rebuilt() == rig.store.values()
    assert all(replica.proven for replica in rig.replicas())
    for partition in range(2):
        sequences = [record.sequence for record in rig.records(partition)]
        assert sequences == list(range(1, len(sequences) + 1))
    gone = [(record.key, record.enveloped) for record in rig.objects() if record.verb == "deleted"]
    assert sorted(gone) == [
        (b"shop/1", False),
        (b"shop/1", True),
        (b"shop/2", False),
        (b"shop/2", True),
    ]
    tables: dict[bytes, bytes] = {}
    for partition in range(2):
        for record in rig.sink.log(rig.spec.topic, partition):
            if record.value is None:
                tables.pop(record.key, None)
            else:
                tables[record.key] = record.value
    assert tables.keys() == rig.store.values().keys(), (
        "a table that ignores headers keeps a dead key"
    )


@pytest.mark.parametrize("format_", ENVELOPED)
def test_an_object_that_the_broker_refuses_is_published_in_part_inside_its_envelope(
    format_: Format,
) -> None:
    rig = enveloped_rig(format_, sink=FakeSink(limit_bytes=2_000))
    big = json.dumps(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": {"x": "y" * 5_000}}
    ).encode()

    async def play() -> None:
        rig.store.put(b"shop/web", big)
        rig.store.put(b"shop/small", b'{"kind":"Pod"}')
        async with rig.running():
            rig.sync()
            await asyncio.sleep(1.0)
            rig.say(rig.store.remove(b"shop/web"))
            await settled(rig)

    run_virtually(play())
    published = next(record for record in rig.objects() if record.key == b"shop/web")
    assert published.trimmed == "stub"
    assert published.value is not None
    assert json.loads(published.value)["metadata"] == {"name": "web"}
    assert published.value_hash == content_hash(b"shop/web", published.value)
    assert all(replica.proven for replica in rig.replicas())


def test_a_reader_takes_a_change_of_format_in_its_stride() -> None:
    replica = Replica()
    one, other = encoder_for(spec("cloudevents"), 1), encoder_for(spec("debezium"), 2)
    for record in (
        written("cloudevents", encoder=one, sequence=1),
        written("debezium", "modified", b'{"kind":"Pod"}', encoder=other, sequence=1),
        written("debezium", "added", VALUE, encoder=other, sequence=2, key=b"shop/other"),
        written("debezium", "deleted", None, encoder=other, sequence=3),
    ):
        replica.apply(decode(*record))
    assert {key: held.value for key, held in replica.held.items()} == {b"shop/other": VALUE}


ODD = ["\U0001f600" * 200, "é" * 160, "\x00\n\x7f\x1b\u202e", "x" * 319, "x" * 5_000_000]


@pytest.mark.parametrize("format_", ["cloudevents", *ENVELOPED])
@pytest.mark.parametrize("text", ODD, ids=range(len(ODD)))
def test_identity_of_any_length_and_alphabet_is_rendered_and_read_back(
    format_: Format, text: str
) -> None:
    odd: list[dict[str, Any]] = [
        {"uid": text},
        {"version": text},
        {"key": f"shop/{text}".encode()},
        {"key": f"{text}/web-1".encode()},
    ]
    for changed in odd:
        key = changed.get("key", KEY)
        record = written(format_, **{"value_hash": content_hash(key, VALUE), **changed})
        read = decode(*record)
        assert isinstance(read, ObjectRecord)
        assert (read.key, read.uid, read.version, read.value) == (
            key,
            changed.get("uid", "u-1"),
            changed.get("version", "42"),
            VALUE,
        )
        assert dict(record.headers)["ce_subject"] == key


@pytest.mark.parametrize("format_", ["cloudevents", *ENVELOPED])
def test_an_object_at_the_depth_limit_is_read_back_by_a_reader_deep_in_the_stack(
    format_: Format,
) -> None:
    deep = b'{"kind":"Pod","a":' + b"[" * (DEPTH_MAX - 1) + b"]" * (DEPTH_MAX - 1) + b"}"
    record = written(format_, value=deep)

    def read(frames: int) -> object:
        return decode(*record) if frames == 0 else read(frames - 1)

    found = read(300)
    assert isinstance(found, ObjectRecord)
    assert found.value == deep
    assert json.loads(deep)["kind"] == "Pod"
