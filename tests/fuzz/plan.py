"""From a seed: which streams there are, how they are configured, and what is odd about the world
around them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Any, Literal

from tests.fuzz.oddserver import KINDS
from watchrelay.model.resources import Resource

GROUP = "fuzz.example.com"
KEYS: dict[str, list[Any]] = {
    "initialList": ["auto", "paged", "streaming"],
    "pageSize": [500, 500, 1, 2, 0],
    "bookmarks": [True, True, False],
    "relistInterval": ["6h", "6h", "10s", "0s"],
    "snapshotInterval": ["1h", "5s", "30s", "0s"],
    "suppressUnchanged": [True, True, False],
    "listSemantic": ["mostRecent", "any"],
}
"""Of an odd stream; the first value is the default."""
COUNTED: list[dict[str, list[str]]] = [
    {"ignoreChanges": ["spec", "metadata.labels"]},
    {"publishWhen": ["spec"]},
    {"publishWhen": []},
]
"""What counts of the objects of some odd streams, of others all."""
FOREIGN, DISCOVERY, TROUBLE = "foreign writer", "discovery", "server"
Part = str
"""The plural of an odd resource, or one of the three above: what can be left out of a seed."""
How = Literal["history gone", "restored", "nothing"]


@dataclass(frozen=True, slots=True)
class Followed:
    """One resource of the config. `kinds` of oddness: none where it is sane. `namespaces`: those
    that the stream keeps; empty for all."""

    resource: Resource
    topic: str
    kinds: tuple[str, ...]
    share: float
    objects: int
    namespaces: tuple[str, ...]
    keys: dict[str, Any]
    partitions: int
    prefixed: bool
    metadata_only: bool
    drop: bool
    redact: bool

    @property
    def id(self) -> str:
        """The stream's."""
        return self.resource.qualified

    @property
    def odd(self) -> bool:
        """Whether anything is odd about it."""
        return bool(self.kinds)


@dataclass(frozen=True, slots=True)
class Plan:
    """One seed's world. `steps`: how long the odd phase is."""

    seed: int
    followed: tuple[Followed, ...]
    kafka: dict[str, Any]
    top: dict[str, Any]
    steps: int
    foreign: bool
    discovery: bool
    trouble: bool

    @property
    def parts(self) -> tuple[Part, ...]:
        """What can be left out."""
        named = ((FOREIGN, self.foreign), (DISCOVERY, self.discovery), (TROUBLE, self.trouble))
        return (
            *(each.resource.plural for each in self.followed if each.odd),
            *(name for name, there in named if there),
        )


def plan_of(seed: int) -> Plan:
    """The same for the same seed."""
    rng = Random(seed)
    shared = rng.random() < 0.3
    odd = [_odd(rng, index, shared=shared and index < 2) for index in range(rng.randint(2, 4))]
    counts = Random(f"{seed}/counts")
    odd = [_counting(counts, each) for each in odd]
    sane = [_sane(rng, "sanes", "Sane"), _sane(rng, "calms", "Calm")]
    return Plan(
        seed=seed,
        followed=(*sane, *odd),
        kafka={"format": rng.choice(["cloudevents", "cloudevents", "structured", "debezium"])},
        top={
            "overload": rng.choice(["conflate", "conflate", "block"]),
            "queueBytes": rng.choice(["64MiB", "64MiB", "64KiB", "2KiB"]),
            "heartbeatInterval": rng.choice(["1s", "5s", "10s"]),
        },
        steps=rng.randint(6, 14),
        foreign=rng.random() < 0.6,
        discovery=rng.random() < 0.25,
        trouble=rng.random() < 0.2,
    )


def _counting(rng: Random, each: Followed) -> Followed:
    """Of some streams not all of an object counts."""
    if each.metadata_only or "suppressUnchanged" in each.keys or rng.random() < 0.7:
        return each
    return replace(each, keys=each.keys | rng.choice(COUNTED))


def _sane(rng: Random, plural: str, kind: str) -> Followed:
    return _followed(rng, plural, kind, kinds=(), namespaced=True, shared=False, keys={})


def _odd(rng: Random, index: int, *, shared: bool) -> Followed:
    keys: dict[str, Any] = {}
    for name, values in KEYS.items():
        value = rng.choice(values)
        if value != values[0]:
            keys[name] = value
    if keys.get("initialList") == "streaming":  # which ends in a bookmark, and is always the newest
        keys.pop("bookmarks", None)
        keys.pop("listSemantic", None)
    kinds = tuple(sorted(rng.sample(KINDS, rng.choice([1, 1, 2, 3, 5]))))
    return _followed(
        rng,
        f"odd{index}s",
        f"Odd{index}",
        kinds=kinds,
        namespaced=rng.random() < 0.8,
        shared=shared,
        keys=keys,
    )


def _followed(
    rng: Random,
    plural: str,
    kind: str,
    *,
    kinds: tuple[str, ...],
    namespaced: bool,
    shared: bool,
    keys: dict[str, Any],
) -> Followed:
    resource = Resource(GROUP, "v1", plural, kind, namespaced=namespaced)
    odd = bool(kinds)
    metadata_only, drop, redact = (odd and rng.random() < share for share in (0.1, 0.4, 0.4))
    partitions = 2 if shared else rng.choice([1, 1, 2, 3])
    namespaces = ("a",) if odd and namespaced and not shared and rng.random() < 0.2 else ()
    return Followed(
        resource=resource,
        topic="shared" if shared else plural,
        kinds=kinds,
        share=rng.choice([0.3, 0.6, 0.9, 1.0]),
        objects=rng.choice([0, 1, 5, 20, 20, 120]),
        namespaces=namespaces,
        keys=keys | ({"namespaces": list(namespaces), "scope": "cluster"} if namespaces else {}),
        partitions=partitions,
        prefixed=shared,
        metadata_only=metadata_only,
        drop=drop,
        redact=redact,
    )
