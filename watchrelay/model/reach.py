"""Which keys the objects of a stream can have, and which streams can have the same ones. Pure.

Only namespaces and names separate two streams of one resource on one topic. A label or a field
selector does not: an object that changes leaves one stream and joins the other, and the delete that
the first publishes then removes the live object of the second.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Hashable
from dataclasses import dataclass
from functools import lru_cache
from typing import Generic, TypeVar

Item = TypeVar("Item")

_TERM = re.compile(r"\s*metadata\.(namespace|name)\s*(==|!=|=)(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ValueSet:
    """A set of strings: those `listed`, or with `inverted` all but those."""

    listed: frozenset[str] = frozenset()
    inverted: bool = True

    def meet(self, other: ValueSet) -> bool:
        """Whether both sets can have a string in common."""
        if self.inverted:
            return other.inverted or bool(other.listed - self.listed)
        return bool(self.listed - other.listed if other.inverted else self.listed & other.listed)

    def has(self, value: str) -> bool:
        """Whether the string is in the set."""
        return (value in self.listed) != self.inverted

    def only(self, listed: Collection[str]) -> ValueSet:
        """Those of this set that are among `listed`."""
        return ValueSet(
            frozenset(each for each in listed if self.has(each)),
            inverted=False,
        )

    def without(self, value: str) -> ValueSet:
        return ValueSet(
            self.listed | {value} if self.inverted else self.listed - {value}, self.inverted
        )


@dataclass(frozen=True, slots=True)
class Reach:
    """The namespaces and names that the objects of a stream can have."""

    namespaces: ValueSet = ValueSet()
    names: ValueSet = ValueSet()

    @classmethod
    def of(cls, namespaces: Collection[str], fields: str) -> Reach:
        """The reach of a selection: `namespaces` (none: all), and `fields`, the field
        selector with `name` and `excludeNamespaces`."""
        reach = _of_fields(fields)
        return cls(reach.namespaces.only(namespaces), reach.names) if namespaces else reach

    def meets(self, other: Reach) -> bool:
        """Whether some object can be in both selections, now or after a change of it."""
        return self.namespaces.meet(other.namespaces) and self.names.meet(other.names)


def reach_of(selectors: object) -> Reach:
    """Of a description's selectors; what is none of those that a relay writes limits nothing."""
    held = selectors if isinstance(selectors, dict) else {}
    namespaces, fields = held.get("namespaces"), held.get("fieldSelector")
    listed = namespaces if isinstance(namespaces, list) else []
    return Reach.of(
        [each for each in listed if isinstance(each, str)],
        fields if isinstance(fields, str) else "",
    )


@dataclass(frozen=True, slots=True)
class KeyRange:
    """The keys that the objects of a stream can have: `prefix` is of each of them."""

    prefix: bytes = b""
    reach: Reach = Reach()

    def has(self, key: bytes) -> bool:
        """Whether an object of the stream can have this key."""
        if not key.startswith(self.prefix):
            return False
        namespace, slash, name = key[len(self.prefix) :].partition(b"/")
        if not slash or not name or b"/" in name:
            return False
        reach = self.reach
        return reach.namespaces.has(namespace.decode(errors="replace")) and reach.names.has(
            name.decode(errors="replace")
        )


@lru_cache(maxsize=4096)
def _of_fields(fields: str) -> Reach:
    """Source: k8s.io/apimachinery/pkg/fields: terms joined by commas without a backslash; all
    must match."""
    found = {"namespace": ValueSet(), "name": ValueSet()}
    for term in re.split(r"(?<!\\),", fields):
        if match := _TERM.fullmatch(term):
            field, operator, value = match.groups()
            value = re.sub(r"\\(.)", r"\1", value)
            found[field] = (
                found[field].without(value) if operator == "!=" else found[field].only([value])
            )
    return Reach(found["namespace"], found["name"])


class Overlaps(Generic[Item]):
    """Items with a reach each, in groups; finds which of a group overlap, without comparing all."""

    def __init__(self) -> None:
        self._items: dict[tuple[Hashable, str | None], list[tuple[int, Reach, Item]]] = {}
        self._groups: dict[Hashable, list[tuple[int, Reach, Item]]] = {}
        self._count = 0

    def add(self, group: Hashable, reach: Reach, item: Item) -> None:
        self._count += 1
        added = self._count, reach, item
        self._groups.setdefault(group, []).append(added)
        for namespace in (None,) if reach.namespaces.inverted else reach.namespaces.listed:
            self._items.setdefault((group, namespace), []).append(added)

    def first(self, group: Hashable, reach: Reach) -> Item | None:
        """The item of the group that was added first of those that `reach` meets."""
        if reach.namespaces.inverted:
            candidates = [self._groups.get(group, [])]
        else:
            candidates = [
                self._items.get((group, each), []) for each in (None, *reach.namespaces.listed)
            ]
        firsts = (
            next((each for each in some if each[1].meets(reach)), None) for some in candidates
        )
        found = min((each for each in firsts if each), key=lambda each: each[0], default=None)
        return found[2] if found else None
