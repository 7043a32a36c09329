"""Lines of a watch and bodies of a list, as a server says them that follows the protocol loosely or
not at all."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from tests.fuzz.oddjson import Pairs, Raw, odd_value, odd_version, text
from tests.fuzz.oddobjects import shaped
from watchrelay.demo.storage import Stored
from watchrelay.model.resources import Resource

INITIAL_END = "k8s.io/initial-events-end"
REASONS = (
    "Expired",
    "Gone",
    "Timeout",
    "InternalError",
    "NotFound",
    "Forbidden",
    "ResourceVersionTooLarge",
    "",
    "Odd",
    "BadRequest",
)


@dataclass(slots=True)
class Source:
    """What the server holds of one resource, and the present version. `existing`: its objects;
    `taken`: a version that no object will have."""

    rng: Random
    resource: Resource
    namespace: str
    existing: Callable[[], list[Stored]]
    version: Callable[[], int]
    taken: Callable[[], int]

    def unknown(self, *, odder: bool) -> tuple[str, str]:
        """The JSON of an object that the server does not hold, and what is odd about it."""
        rng = self.rng
        made = shaped(
            rng,
            self.resource,
            self.namespace,
            f"ghost-{rng.randrange(20)}",
            f"ghost-{rng.randrange(10**6)}",
            odder=odder,
        )
        return made.at(str(self.version() + rng.randrange(5))), made.why

    def known(self) -> bytes | None:
        """One of those it holds."""
        existing = self.existing()
        return self.rng.choice(existing).body() if existing else None


def event(kind: Any, obj: Any) -> str:
    """One line's JSON."""
    return text({"type": kind, "object": obj})


# ---- lines ---------------------------------------------------------------------------------------


def _ghost(source: Source) -> str:
    obj, _ = source.unknown(odder=False)
    return event(source.rng.choice(["ADDED", "MODIFIED", "DELETED"]), Raw(obj))


def _odder(source: Source) -> str:
    obj, _ = source.unknown(odder=True)
    return event(source.rng.choice(["ADDED", "MODIFIED", "DELETED"]), Raw(obj))


def _again(source: Source) -> str:
    """An existing object: repeated, deleted, at another version, with another uid or content."""
    body, rng = source.known(), source.rng
    if body is None:
        return _ghost(source)
    kind, how = rng.choice(["ADDED", "MODIFIED", "DELETED"]), rng.randrange(5)
    try:
        obj = json.loads(body, parse_int=Raw, parse_float=Raw, parse_constant=Raw)
        if isinstance(obj, dict) and isinstance(obj.get("metadata"), dict):
            _changed(source, obj, how)
        return event(kind, obj)
    except (ValueError, RecursionError):  # nested deeper than Python reads or writes
        return event(kind, Raw(body.decode("utf-8", "surrogatepass")))


def _changed(source: Source, obj: dict[str, Any], how: int) -> None:
    rng = source.rng
    match how:
        case 0:
            obj["metadata"]["resourceVersion"] = odd_version(rng, source.version())
        case 1:
            obj["metadata"]["resourceVersion"] = str(source.version() + rng.choice([-5, 0, 1, 2]))
            obj["metadata"]["uid"] = rng.choice(["another", "", odd_value(rng)])
        case 2:
            # with the version of the truth it would be the truth: uid and version are all that
            # tells a state
            obj["metadata"]["resourceVersion"] = str(source.taken())
            obj["spec"] = {"lie": rng.randrange(100)}
        case _:
            pass


def _bookmark(source: Source) -> str:
    rng = source.rng
    metadata: Any = {"resourceVersion": odd_version(rng, source.version())}
    match rng.randrange(6):
        case 0:
            metadata["annotations"] = {INITIAL_END: rng.choice(["true", True, "false", None])}
        case 1:
            metadata = odd_value(rng)
        case 2:
            return event("BOOKMARK", odd_value(rng))
        case 3:
            metadata = Pairs([*metadata.items(), ("resourceVersion", "5")])
        case _:
            pass
    return event(
        "BOOKMARK",
        {
            "kind": source.resource.kind,
            "apiVersion": source.resource.api_version,
            "metadata": metadata,
        },
    )


def status(rng: Random, code: int) -> Any:
    """A Status, more or less."""
    found: dict[str, Any] = {
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": rng.choice(["odd", "", "too old resource version"]), "reason": rng.choice(REASONS), "code": code,
    }  # fmt: skip
    for _ in range(rng.randrange(3)):
        found[rng.choice(["code", "reason", "message", "details", "metadata", "kind"])] = odd_value(
            rng
        )
    if rng.random() < 0.3:
        causes = rng.choice(
            [odd_value(rng), [odd_value(rng)], [{"reason": "ResourceVersionTooLarge"}]]
        )
        found["details"] = {
            "causes": causes,
            "retryAfterSeconds": rng.choice([1, "2", -1, 10**12, None, Raw("1e9")]),
        }
    return found


def _error(source: Source) -> str:
    rng = source.rng
    return event(
        "ERROR",
        rng.choice(
            [
                odd_value(rng),
                status(rng, rng.choice([400, 401, 403, 404, 410, 429, 500, 504, 0, -1, 99999])),
            ]
        ),
    )


def _type(source: Source) -> str:
    obj, _ = source.unknown(odder=False)
    return event(
        source.rng.choice(["added", "PATCHED", "", "ADDED ", "\u0000", odd_value(source.rng)]),
        Raw(obj),
    )


def _shape(source: Source) -> str:
    rng = source.rng
    obj, _ = source.unknown(odder=False)
    return rng.choice([
        "{}", "[]", "null", "1", '""', '{"type":"ADDED"}', '{"object":{}}', event("ADDED", odd_value(rng)), event("MODIFIED", [Raw(obj)]),
        text(Pairs([("type", "ADDED"), ("type", "DELETED"), ("object", Raw(obj))])),
        text(Pairs([("type", "ADDED"), ("object", {}), ("object", Raw(obj))])),
        text({"object": Raw(obj), "type": "ADDED"}), text({"type": "ADDED", "object": Raw(obj), "more": odd_value(rng)}),
        f' {{ "type" : "ADDED" ,\t"object" : {obj} }} \r', text(status(rng, 410)),
    ])  # fmt: skip


def _junk(source: Source) -> str:
    return source.rng.choice(
        [
            "",
            "\r",
            "   ",
            "not json",
            "{",
            '{"type":"ADDED","object":{',
            "<html>",
            "\ufeff{}",
            "{}{}",
            "NaN",
            "'a'",
        ]
    )


LINES: dict[str, Callable[[Source], str]] = {
    "ghosts": _ghost,
    "odder objects": _odder,
    "known again": _again,
    "bookmarks": _bookmark,
    "errors": _error,
    "types": _type,
    "shapes": _shape,
    "junk": _junk,
}

# ---- lists ---------------------------------------------------------------------------------------


def _head(source: Source, items: list[Any], metadata: Any) -> dict[str, Any]:
    kind, api_version = f"{source.resource.kind}List", source.resource.api_version
    return {"kind": kind, "apiVersion": api_version, "metadata": metadata, "items": items}


def _items(source: Source) -> list[Any]:
    return [Raw(each.body().decode("utf-8", "surrogatepass")) for each in source.existing()]


def _list_version(source: Source, _token: str) -> str:
    rng = source.rng
    metadata = rng.choice(
        [{"resourceVersion": odd_version(rng, source.version())}, {}, odd_value(rng)]
    )
    return text(_head(source, _items(source), metadata))


def _list_tokens(source: Source, token: str) -> str:
    """Pages that repeat, or never end."""
    rng, items = source.rng, _items(source)
    following = rng.choice([token or "a", "a", "b", f"t{rng.randrange(10**6)}", odd_value(rng)])
    metadata = {
        "resourceVersion": str(source.version()),
        "continue": following,
        "remainingItemCount": rng.choice([-1, 0, 10**18, "3", None, odd_value(rng)]),
    }
    return text(_head(source, rng.choice([[], items[:2], items]), metadata))


def _list_items(source: Source, _token: str) -> str:
    rng, items = source.rng, _items(source)
    for _ in range(rng.randint(1, 3)):
        obj, _why = source.unknown(odder=rng.random() < 0.6)
        items.insert(rng.randint(0, len(items)), rng.choice([Raw(obj), Raw(obj), odd_value(rng)]))
    if items and rng.random() < 0.3:
        items.append(rng.choice(items))
    return text(_head(source, items, {"resourceVersion": str(source.version())}))


def _list_fewer(source: Source, _token: str) -> str:
    """A list that leaves objects out: all of them, or some."""
    rng, items = source.rng, _items(source)
    kept = [] if rng.random() < 0.5 else [each for each in items if rng.random() < 0.5]
    return text(_head(source, kept, {"resourceVersion": str(source.version())}))


def _list_shape(source: Source, _token: str) -> str:
    rng = source.rng
    whole = _head(source, _items(source), {"resourceVersion": str(source.version())})
    match rng.randrange(6):
        case 0:
            whole["items"] = odd_value(rng)
        case 1:
            whole[rng.choice(["kind", "apiVersion"])] = odd_value(rng)
        case 2:
            del whole[rng.choice(list(whole))]
        case 3:
            return text(Pairs([*whole.items(), ("items", []), ("metadata", {})]))
        case 4:
            return text(dict(reversed(whole.items())))
        case _:
            return text(odd_value(rng))
    return text(whole)


LISTS: dict[str, Callable[[Source, str], str]] = {
    "list versions": _list_version,
    "list tokens": _list_tokens,
    "list items": _list_items,
    "list leaves out": _list_fewer,
    "list shapes": _list_shape,
}
