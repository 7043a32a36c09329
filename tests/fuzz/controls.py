"""Floods of the control topic from a seed: parts, streams, claims, index records, requests and ids
of every type and length, of streams that there are not or of what nobody reads of one that there is.
"""

from __future__ import annotations

import json
from random import Random
from typing import Any

from tests.fuzz.floods import ANYWHERE, CONTROL, Batches, Flood, within
from tests.support.rawbatches import Raw, batch

_SIZES = (0, 1, 200, 201, 1000, 1001, 60_000)
_COUNTS = (1, 500, 10_001, 100_000, 100_001, 349_000)
_FIELDS = {
    "claim": ("instance", "holder", "version", "time", "from", "ids", "partitions"),
    "release": ("epoch",),
    "stream": ("topic", "partitions", "keyFormat", "resource", "kind", "namespace", "selectors", "epochBase"),
    "snapshot": ("snapshot", "epoch", "rv", "time", "count", "requests", "partitions"),
}  # fmt: skip
_RIGHT: dict[str, dict[str, Any]] = {
    "claim": {"instance": "i", "holder": "h", "from": None},
    "release": {"epoch": 3},
    "stream": {"topic": "elsewhere", "partitions": 3, "epochBase": 1},
    "snapshot": {"snapshot": "1-1", "epoch": 1, "partitions": []},
}


def _other(rng: Random, number: int) -> str:
    """A stream that there is not, or a part of one."""
    of = rng.choice([2, 64, 10_000])
    return f"other{number}" + rng.choice(["", f"%{rng.randrange(of)}/{of}"])


def _large(rng: Random, keys: list[tuple[str, dict[str, Any]]]) -> Batches:
    """One record a batch."""
    codec = rng.choice(["gzip", "zstd"])
    records: list[Raw] = [
        (key.encode(), json.dumps(value, separators=(",", ":")).encode(), []) for key, value in keys
    ]
    return [batch([each], codec=codec) for each in records]


def _indexes(rng: Random, stream: str) -> Batches:
    """Index records of many partitions."""
    count = rng.choice([1000, 20_000, 50_000])
    partitions = [{"partition": each, "begin": each, "digest": ""} for each in range(count)]
    value = {"snapshot": "1-1", "epoch": 1, "partitions": partitions}
    names = [
        rng.choice([_other(rng, number), f"{stream}%{number}/64"])
        for number in range(400_000 // count)
    ]
    return _large(rng, [(f"snapshot/{name}", value) for name in names])


def _claims(rng: Random, stream: str) -> Batches:
    """Claims that name many partitions, of which the stream has none."""
    first = rng.choice([10, 50_000, 90_000])
    named = [*range(first, 100_000)]
    by_partition = {str(each): "s" for each in named[:20_000]}
    value = {
        "instance": "i",
        "holder": "h" * 1000,
        "from": rng.choice([None, {"snapshot": by_partition, "begin": dict.fromkeys(by_partition, 7)}]),
        "partitions": named,
    }  # fmt: skip
    return _large(
        rng,
        [
            (f"claim/{rng.choice([_other(rng, number), f'{stream}%{number}/64'])}", value)
            for number in range(16)
        ],
    )


def _ids(rng: Random, _: str) -> Batches:
    """Transactional ids and requests, short and long, many and more, all the same or not."""
    records = []
    for number in range(12):
        count, size = rng.choice(_COUNTS), rng.choice(_SIZES)
        count = min(count, (15 << 20) // (size + 12))
        listed = [f"{each * rng.randrange(2)}".rjust(size, "x") for each in range(count)]
        name = _other(rng, number)
        records.append((f"claim/{name}", {**_RIGHT["claim"], "ids": listed}))
        records.append((f"snapshot/{name}", {**_RIGHT["snapshot"], "requests": listed}))
    return _large(rng, records)


def _value(rng: Random) -> Any:
    """Any JSON, up to some megabytes of it."""
    leaf: Any = rng.choice([None, True, -1, 2**70, 1e300, "x" * rng.choice(_SIZES), [], {}])
    match rng.randrange(4):
        case 0:
            return leaf
        case 1:
            return [leaf] * min(rng.choice(_COUNTS), 5_000_000 // len(json.dumps(leaf)))
        case 2:
            return {str(each): leaf for each in range(rng.choice([1, 1000, 5_000_000 // 80_000]))}
        case _:
            nested = leaf
            for _ in range(rng.choice([2, 40, 400])):
                nested = [nested] if rng.randrange(2) else {"a": nested}
            return nested


def _fields(rng: Random, _: str) -> Batches:
    """Records with one field of any type and length, or one more than there are, or many more."""
    records = []
    for number in range(30):
        kind = rng.choice(sorted(_FIELDS))
        field = rng.choice([*_FIELDS[kind], "other"])
        others = dict.fromkeys(map(str, range(rng.choice([0] * 12 + [1001, 349_000]))), 0)
        value = {**_RIGHT[kind], **others, field: _value(rng)}
        records.append((f"{kind}/{_other(rng, number)}", value))
    return _large(rng, records)


def _keys(rng: Random, stream: str) -> Batches:
    """Records without end, each under a key of its own, of every length."""
    kind = rng.choice(sorted(_RIGHT))
    value = json.dumps(_RIGHT[kind]).encode()
    size = rng.choice([1, 100, 900, 1001])
    of = rng.choice([0, 30_000])
    if of and kind in ("release", "snapshot"):  # of parts of the stream itself
        keys = [f"{kind}/{stream}%{number}/{of}" for number in range(of)]
    else:
        keys = [
            f"{kind}/{str(number).rjust(size, 'k')}" for number in range(15_000_000 // (size + 400))
        ]
    return within(rng, [(key.encode(), value, []) for key in keys])


KINDS: dict[str, Flood] = {
    **CONTROL,
    "indexes": _indexes,
    "claims": _claims,
    "ids": _ids,
    "fields": _fields,
    "keys": _keys,
}
"""What is written to the control topic of a relay."""
OWN = sorted(KINDS.keys() - ANYWHERE.keys())
"""Those that are of no other topic."""
