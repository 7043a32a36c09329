"""Floods from a seed: what others may write to the topics of a relay, and put into the API server,
that is well-formed or nearly, and much of it or large."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from random import Random
from typing import Any

import cramjam

from tests.support.rawbatches import Raw, batch, bomb, compressed, encoded, framed

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
BATCH_BYTES = 900_000
"""A broker takes a little more by default."""
MIB = 1 << 20

Batches = list[bytes]
Flood = Callable[[Random, str], Batches]
"""From a stream's id, what is written to one partition."""


def _requests(rng: Random, stream: str) -> Batches:
    """Well-formed requests, each its own."""
    count, names = rng.choice([(1300, 1), (60, 100), (8, 1000)])
    others = [f"unknown-{number}" for number in range(names - 1)]
    records = [_request(f"r{rng.random()}", [stream, *others]) for _ in range(count)]
    return within(rng, records)


def _request(name: str, streams: list[str]) -> Raw:
    signal = {"id": name, "type": "execute-snapshot", "data": {"streams": streams}}
    return (b"c", json.dumps(signal).encode(), [])


def within(rng: Random, records: list[Raw]) -> Batches:
    """In batches that a broker takes."""
    batches, part, size = Batches(), list[Raw](), 0
    codec = rng.choice(CODECS)
    for record in records:
        part.append(record)
        size += len(encoded(record, len(part)))
        if size > BATCH_BYTES // 2:
            batches.append(batch(part, codec=codec))
            part, size = [], 0
    return [*batches, batch(part, codec=codec)] if part else batches


def _empties(rng: Random, _: str) -> Batches:
    """Records of nothing, as many as go into a batch."""
    count = BATCH_BYTES // rng.choice([8, 16])
    body = b"".join(encoded((None, b"", []), index) for index in range(count))
    codec = rng.choice(CODECS)
    return [framed(compressed(body, codec), count, codec=codec)]


def _headers(rng: Random, _: str) -> Batches:
    """Records with as many headers as are taken, or more."""
    count = rng.choice([255, 256, 257, 2000])
    record: Raw = (b"k", b"{}", [(b"h%d" % number, b"v") for number in range(count)])
    return [batch([record] * (200_000 // count), codec="zstd")]


def _bombs(rng: Random, _: str) -> Batches:
    """Little that becomes much."""
    kinds = rng.sample(("gzip", "snappy", "lz4", "zstd"), 2)
    return [
        bomb(kind, rng.choice([2, 30, 39, 127] if kind != "snappy" else [2, 16])) for kind in kinds
    ]


def _tiny_in_a_bomb(rng: Random, _: str) -> Batches:
    """Many records of nothing, well packed."""
    count = rng.choice([50_000, 150_000])
    body = b"\x0c\0\0\0\x01\0\0" * count  # of one offset: each but the first is astray
    return [framed(compressed(body, "zstd"), count, codec="zstd")]


def _blocks(rng: Random, _: str) -> Batches:
    """What unpacks to nothing, in as many steps as it can."""
    match rng.randrange(3):
        case 0:
            return [framed(compressed(b"", "gzip") * 40_000, 1, codec="gzip")]
        case 1:
            return [framed(compressed(b"", "zstd") * 90_000, 1, codec="zstd")]
        case _:
            packed = bytes(cramjam.snappy.compress_raw(b"a"))
            block = len(packed).to_bytes(4, "big") + packed
            head = b"\x82SNAPPY\0\0\0\0\1\0\0\0\1"
            return [framed(head + block * 120_000, 1, codec="snappy")]


def _json(rng: Random, stream: str) -> Batches:
    """One value that is deep, or wide, or has millions of values in it."""
    value = rng.choice(
        [
            b"[" * 900_000,
            b'{"a":' * 150_000 + b"1" + b"}" * 150_000,
            b'{"id":"x","type":"execute-snapshot","data":{"streams":[' + b'"a",' * 200_000 + b'"a"]}}',
            b'{"partitions":[' + b"{}," * 300_000 + b"{}]}",
            b'{"a":[' + b"[]," * 300_000 + b"[]]}",
            b'{"' + b'","'.join(b"k%d\":\"" % number for number in range(50_000)) + b'"}',
            b'{"instance":"x","ids":[' + b'"%d",' % rng.randrange(10) * 100_000 + b'"a"]}',
        ]
    )  # fmt: skip
    kind = rng.choice(["snapshot", "claim", "stream", "release"])
    key = f"{kind}/{rng.choice(['unknown', stream if kind == 'snapshot' else 'unknown'])}".encode()
    return [batch([(key, value, [])], codec="zstd")]


def _streams(rng: Random, _: str) -> Batches:
    """Control records of streams that there are not, well-formed."""
    kind = rng.choice(["stream", "claim", "release", "snapshot"])
    values: dict[str, dict[str, Any]] = {
        "stream": {"topic": "elsewhere", "partitions": 3, "epochBase": 1},
        "claim": {"instance": "i", "holder": "h", "from": None},
        "release": {"epoch": 3},
        "snapshot": {"snapshot": "1-1", "epoch": 1, "partitions": []},
    }
    value = json.dumps(values[kind]).encode()
    names = [b"%s/other%d" % (kind.encode(), number) for number in range(20_000)]
    return within(rng, [(name, value, []) for name in names])


def _parts(rng: Random, stream: str) -> Batches:
    """Releases of parts that the stream does not have: none takes it."""
    return within(
        rng,
        [
            (b"release/%s%%%d/%d" % (stream.encode(), number % of, of), b'{"epoch":1}', [])
            for of in (1 << power for power in range(1, 12))
            for number in range(of)
        ],
    )


def _objects(rng: Random, stream: str) -> Batches:
    """Records of objects, as a former writer of epoch 0 left them."""
    headers = [
        (b"ce_wrstream", stream.encode()),
        (b"ce_wrepoch", b"0"),
        (b"ce_type", b"dev.watchrelay.object.added.v1"),
        (b"ce_source", b"/clusters/x/api/v1/configmaps"),
    ]
    keys = [b"a/odd%d" % number for number in range(100_000)]
    return within(rng, [(key, b"{}", headers) for key in keys])


ANYWHERE: dict[str, Flood] = {
    "empties": _empties,
    "headers": _headers,
    "bombs": _bombs,
    "tiny in a bomb": _tiny_in_a_bomb,
    "blocks": _blocks,
    "json": _json,
}
SIGNAL: dict[str, Flood] = {**ANYWHERE, "requests": _requests}
CONTROL: dict[str, Flood] = {**ANYWHERE, "streams": _streams, "parts": _parts}
STATE: dict[str, Flood] = {**ANYWHERE, "objects": _objects}


def _odd_data(rng: Random) -> dict[str, Any]:
    match rng.randrange(5):
        case 0:
            return {"data": {f"k{number}": "" for number in range(150_000)}}
        case 1:
            return {"data": {"k": '\x01\\"é' * 150_000}}
        case 2:
            nested: Any = 1
            for _ in range(400):
                nested = {"a": nested}
            return {"data": {"k": "v"}, "deep": [nested] * 400}
        case 3:
            return {"data": {"k": "v"}, "lists": [[]] * 500_000}
        case _:
            return {"data": {"k": "v" * (2 * MIB)}}


def bad_list(rng: Random) -> bytes:
    """The body of a list that takes long to judge: many items that are no objects, or large ones
    that cannot be decoded."""
    item = b'{"metadata":{"name":"a","uid":"u","resourceVersion":"1"},"spec":{}}'
    match rng.randrange(5):
        case 0:
            items: Iterable[bytes] = [rng.choice([b"{}", b"1", b'{"a":1}', b"null"])] * 100_000
        case 1:
            items = [rng.choice([b"null", b"{}"]), *[item] * 40_000]
        case 2:
            items = [b"null", b"1", *[b"{}"] * 600_000]
        case 3:
            items = [b'{"metadata":{"name":"a"},' + damaged(rng) + b"}", *[item] * 100]
        case _:
            return b'{"items":[{"metadata":{"name":"' + b'\\"' * rng.choice([30_000, 2_000_000])
    return b'{"kind":"ConfigMapList","metadata":{"resourceVersion":"5"},"items":[%b]}' % (
        b",".join(items)
    )


def bad_lines(rng: Random) -> bytes:
    """Lines of a watch that take long to judge: many short ones, or one of up to 4 MiB."""
    match rng.randrange(4):
        case 0:
            line = rng.choice([b"1", b"{}", b'{"type":"ADDED","object":{}}'])
            return (line + b"\n") * (1_000_000 // len(line))
        case 1:
            message = rng.choice([b"resource version ", b"too old ", b"{"]) * 250_000
            return b'{"type":"ERROR","object":{"kind":"Status","message":"%b"}}\n' % message
        case 2:
            return b'{"type":"ADDED","object":{"a":"' + b'\\"' * 1_900_000 + b"\n"
        case _:
            return b'{"type":"ADDED","object":{"metadata":{"name":"a"},%b}}\n' % damaged(rng)


def damaged(rng: Random) -> bytes:
    """Members of an object of about 4 MiB: repeated, or no JSON at the end."""
    return rng.choice(
        [
            b",".join([b'"x":[]'] * 550_000),
            b'"x":{' + b",".join([b'"y":1'] * 650_000) + b"}",
            b'"x":[' + b",".join([b"[]"] * 1_300_000) + b"}",
            b'"x":[' + b",".join([b'"a b"'] * 600_000) + b'], "x":[]',
        ]
    )


def odd_object(rng: Random, name: str) -> bytes:
    """The JSON of a ConfigMap of up to 4 MiB."""
    made = {"metadata": {"name": name, **_odd_metadata(rng)}, **_odd_data(rng)}
    return json.dumps(made, separators=(",", ":")).encode()


def _odd_metadata(rng: Random) -> dict[str, Any]:
    match rng.randrange(3):
        case 0:
            return {"annotations": {f"example.com/k{number}": "v" * 20 for number in range(30_000)}}
        case 1:
            entry = {"manager": "m", "operation": "Update", "fieldsV1": {"f:data": {}}}
            return {"managedFields": [entry] * 12_000}
        case _:
            return {}
