"""Objects as no API server of today writes them; some of them may live forever, others only while
the source is odd."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from tests.fuzz.oddjson import (
    DEPTHS,
    NUMBERS,
    STRINGS,
    Pairs,
    Raw,
    deep,
    odd_value,
    odd_version,
    text,
)
from watchrelay.demo.storage import Stored
from watchrelay.model.resources import Resource

MARK = "@version@"
_PLACE = f'"{MARK}"'

Tree = dict[str, Any]
Change = Callable[[Random, Tree], Any]


@dataclass(frozen=True, slots=True)
class Shaped:
    """One object's JSON with the mark in place of its version. `decent`: a relay must be able to
    publish it."""

    namespace: str
    name: str
    uid: str
    json: str
    decent: bool
    why: str

    def stored(self) -> Stored:
        """As the synthetic API server keeps it."""
        head, _, tail = self.json.encode("utf-8", "surrogatepass").partition(_PLACE.encode())
        return Stored(self.namespace, self.name, self.uid, 0, {}, {}, (head + b'"', b'"' + tail), 1)

    def at(self, version: object) -> str:
        """The JSON text with this version in it."""
        return self.json.replace(_PLACE, text(version), 1)


def plain_object(rng: Random, resource: Resource, namespace: str, name: str, uid: str) -> Tree:
    """An object with nothing odd about it."""
    metadata: Tree = {
        "name": name,
        "uid": uid,
        "resourceVersion": Raw(_PLACE),
        "labels": {"app": name},
    }
    if resource.namespaced:
        metadata["namespace"] = namespace
    spec = {
        "n": rng.randrange(10**9),
        "noise": rng.randrange(100),
        "secret": "hidden",
        "text": "x" * rng.randrange(200),
    }
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": metadata,
        "spec": spec,
    }


# ---- odd, and to be published all the same -------------------------------------------------------


def _numbers(rng: Random, obj: Tree) -> None:
    obj["spec"]["numbers"] = [Raw(number) for number in rng.sample(NUMBERS, 4)]


def _texts(rng: Random, obj: Tree) -> None:
    obj["spec"]["texts"] = {
        str(index): each
        for index, each in enumerate(rng.sample(STRINGS, 6))
        if "\ud800" not in each
    }


def _huge(rng: Random, obj: Tree) -> None:
    obj["spec"]["huge"] = rng.choice(["x", "é", "\\", '"']) * rng.choice([10_000, 60_000, 200_000])


def _many_keys(rng: Random, obj: Tree) -> None:
    obj["spec"]["keys"] = {f"key{index}": index for index in range(rng.choice([300, 3000]))}


def _odd_keys(rng: Random, obj: Tree) -> None:
    obj["spec"]["odd"] = {"": 1, "a.b": 2, "*": 3, '"': 4, "é\n": 5}
    obj[rng.choice(["", "$schema", "Spec", "items"])] = [1]


def _nested(rng: Random, obj: Tree) -> None:
    obj["spec"]["deep"] = deep(rng, rng.choice([10, 60]))


def _spread_types(rng: Random, obj: Tree) -> None:
    obj["spec"]["noise"] = rng.choice([None, [], {}, [[1]], "text", {"a": {"b": 1}}])
    obj["status"] = rng.choice([None, [], "none", 7, {"conditions": {}}])


def _version_elsewhere(rng: Random, obj: Tree) -> None:
    obj["spec"]["copy"] = {"resourceVersion": "1000", "metadata": {"resourceVersion": "2"}}


def _labels(rng: Random, obj: Tree) -> None:
    metadata = obj["metadata"]
    field = rng.choice(
        [
            "labels",
            "annotations",
            "ownerReferences",
            "finalizers",
            "creationTimestamp",
            "generation",
            "deletionTimestamp",
        ]
    )
    metadata[field] = rng.choice([None, [], 7, "text", {"a": 1}, [None], {"": None}])


def _no_kind(rng: Random, obj: Tree) -> None:
    for name in rng.choice([["kind"], ["apiVersion"], ["kind", "apiVersion"]]):
        del obj[name]


DECENT: dict[str, Change] = {
    "numbers": _numbers,
    "texts": _texts,
    "huge": _huge,
    "many keys": _many_keys,
    "odd keys": _odd_keys,
    "nested": _nested,
    "types of spec": _spread_types,
    "versions elsewhere": _version_elsewhere,
    "types of metadata": _labels,
    "no kind": _no_kind,
}

# ---- odder ---------------------------------------------------------------------------------------


def _too_deep(rng: Random, obj: Tree) -> None:
    place = rng.choice([obj, obj["spec"], obj["metadata"], obj["metadata"]["labels"]])
    if not isinstance(place, dict):  # an odd object's labels may be null, or a list
        place = obj
    place[rng.choice(["deep", "secret", "noise", "spec", "annotations"])] = deep(
        rng, rng.choice(DEPTHS)
    )


def _uid(rng: Random, obj: Tree) -> None:
    obj["metadata"]["uid"] = rng.choice(
        [odd_value(rng), "é" * 200, "u" * 300, "🦆" * 3000, "x" * 200_000, "", None]
    )


def _no_uid(rng: Random, obj: Tree) -> None:
    del obj["metadata"]["uid"]


def _name(rng: Random, obj: Tree) -> None:
    obj["metadata"]["name"] = rng.choice(
        [odd_value(rng), rng.choice(STRINGS), "é" * 120, "n" * 40_000, "n" * 600_000]
    )


def _namespace(rng: Random, obj: Tree) -> None:
    obj["metadata"]["namespace"] = rng.choice(
        [odd_value(rng), rng.choice(STRINGS), "elsewhere", "sane", "ns" * 20_000]
    )


def _no_namespace(rng: Random, obj: Tree) -> None:
    obj["metadata"].pop("namespace", None)


def _version(rng: Random, obj: Tree) -> None:
    obj["metadata"]["resourceVersion"] = odd_version(rng, 2000)
    obj["spec"]["place"] = Raw(_PLACE)


def _no_version(rng: Random, obj: Tree) -> None:
    del obj["metadata"]["resourceVersion"]
    obj["spec"]["place"] = Raw(_PLACE)


def _metadata(rng: Random, obj: Tree) -> None:
    obj["metadata"] = odd_value(rng)
    obj["spec"]["place"] = Raw(_PLACE)


def _metadata_field(rng: Random, obj: Tree) -> None:
    names = [
        "labels",
        "annotations",
        "managedFields",
        "ownerReferences",
        "finalizers",
        "creationTimestamp",
        "generation",
        "selfLink",
        "",
    ]
    obj["metadata"][rng.choice(names)] = odd_value(rng)


def _kind(rng: Random, obj: Tree) -> None:
    obj[rng.choice(["kind", "apiVersion"])] = odd_value(rng)


def _twice(rng: Random, obj: Tree) -> Any:
    where = rng.choice(["top", "metadata", "spec"])
    if where == "top":
        return Pairs([*obj.items(), rng.choice(list(obj.items()))])
    obj[where] = Pairs([*obj[where].items(), (rng.choice([*obj[where], "name"]), odd_value(rng))])
    return None


def _nothing(rng: Random, obj: Tree) -> Any:
    return rng.choice(
        [{}, {"place": Raw(_PLACE)}, [Raw(_PLACE)], Pairs([("metadata", None), ("x", Raw(_PLACE))])]
    )


ODDER: dict[str, Change] = {
    "too deep": _too_deep,
    "uid": _uid,
    "no uid": _no_uid,
    "name": _name,
    "namespace": _namespace,
    "no namespace": _no_namespace,
    "version": _version,
    "no version": _no_version,
    "metadata": _metadata,
    "metadata field": _metadata_field,
    "kind": _kind,
    "twice": _twice,
    "nothing": _nothing,
}


def shaped(
    rng: Random,
    resource: Resource,
    namespace: str,
    name: str,
    uid: str,
    *,
    odder: bool = False,
    plain: bool = False,
) -> Shaped:
    """An object of `resource`: plain, odd but publishable, or `odder`."""
    obj: Any = plain_object(rng, resource, namespace, name, uid)
    named: list[str] = []
    for changes, wanted in (
        (DECENT, not plain and (not odder or rng.random() < 0.3)),
        (ODDER, odder and not plain),
    ):
        if wanted:
            named.append(rng.choice(list(changes)))
            replaced = changes[named[-1]](rng, obj)
            obj = obj if replaced is None else replaced
    written = text(obj)
    if _PLACE not in written:
        written = text({"place": Raw(_PLACE), "was": Raw(written)})
    return Shaped(namespace, name, uid, written, not odder, "+".join(named) or "plain")


def published(
    body: bytes, resource: Resource, *, metadata_only: bool, drop: bool, redact: bool
) -> Any:
    """What a relay publishes of a decent object."""
    obj = tree(body)
    kept = {"apiVersion": resource.api_version, "kind": resource.kind} | (
        {} if metadata_only else obj
    )
    kept["metadata"] = {
        name: value for name, value in obj["metadata"].items() if name != "managedFields"
    }
    spec = kept.get("spec")
    if drop and isinstance(spec, dict):
        spec.pop("noise", None)
    if redact and isinstance(spec, dict) and "secret" in spec:
        spec["secret"] = "<redacted>"
    return kept


def counted(obj: Any, keys: Mapping[str, Any]) -> Any:
    """What counts of a published object, by the keys of its entry."""
    metadata = obj["metadata"]
    if "publishWhen" in keys:
        always = {name: metadata.get(name) for name in ("uid", "deletionTimestamp")}
        return {"metadata": always} | {name: obj.get(name) for name in keys["publishWhen"]}
    if "ignoreChanges" in keys:
        out = {"labels", "resourceVersion", "generation", "managedFields"}
        left = {name: value for name, value in metadata.items() if name not in out}
        return {name: value for name, value in obj.items() if name != "spec"} | {"metadata": left}
    return obj


def tree(body: bytes) -> Any:
    """JSON whose numbers are text."""
    return json.loads(body, parse_int=str, parse_float=str)


def alike(left: Any, right: Any, *, but_version: bool) -> bool:
    """Whether two objects are the same, or the same but for their resourceVersion."""
    if but_version:
        left, right = (
            {**each, "metadata": {**each["metadata"], "resourceVersion": ""}}
            for each in (left, right)
        )
    return bool(left == right)
