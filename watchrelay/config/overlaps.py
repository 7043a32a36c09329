"""Streams of a config that put the same objects on the same topic, found without comparing each with each. Pure.

Room: config. In: planned streams. Out: for one of them, the first earlier one that takes some of its objects.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator

from watchrelay.config.streams import Planned

_Place = tuple[Hashable, str | None, str | None]
"""A group, a namespace (None: no limit to some), the name of a single object ("": all of them; None: whatever it is)."""


class Overlaps:
    """All streams by group and place. Shape: only streams of the same `group` are compared."""

    def __init__(self, planned: Iterable[Planned], group: Callable[[Planned], Hashable]) -> None:
        self._group = group
        self._groups: dict[Hashable, dict[str, Planned]] = {}
        self._places: dict[_Place, dict[str, Planned]] = {}
        for stream in planned:
            key = group(stream)
            self._groups.setdefault(key, {}).setdefault(stream.id, stream)
            for place in _places(key, stream):
                self._places.setdefault(place, {}).setdefault(stream.id, stream)

    def earlier(self, stream: Planned) -> Planned | None:
        """The first stream of an earlier entry, with another id, that surely takes an object that `stream` takes."""
        found = (self._first(bucket, stream) for bucket in self._buckets(stream))
        return min((each for each in found if each is not None), key=lambda each: each.index, default=None)

    def _buckets(self, stream: Planned) -> Iterator[Iterable[Planned]]:
        """Where to look: everything that `stream` overlaps is in one of these, and nearly all that is in them overlaps it."""
        key, name = self._group(stream), stream.entry.name or ""
        spaces: Iterable[str | None] = _namespaces(stream)
        if not spaces:
            yield self._groups[key].values()
            return
        for space in (*spaces, None):
            for called in (name, "") if name else (None,):
                yield self._places.get((key, space, called), {}).values()

    @staticmethod
    def _first(bucket: Iterable[Planned], stream: Planned) -> Planned | None:
        for other in bucket:
            if other.index >= stream.index:
                return None
            if other.id != stream.id and overlap(stream, other):
                return other
        return None


def overlap(one: Planned, two: Planned) -> bool:
    """True when both streams take some namespace in common, and not two different single objects."""
    if one.entry.name and two.entry.name and one.entry.name != two.entry.name:
        return False
    mine, theirs = _namespaces(one), _namespaces(two)
    if mine and theirs:
        return bool(mine & theirs)
    return not (mine and mine <= set(two.entry.exclude_namespaces)) and not (theirs and theirs <= set(one.entry.exclude_namespaces))


def _places(key: Hashable, stream: Planned) -> Iterator[_Place]:
    for space in _namespaces(stream) or (None,):
        yield key, space, stream.entry.name or ""
        yield key, space, None


def _namespaces(stream: Planned) -> frozenset[str]:
    return frozenset((stream.namespace,)) if stream.namespace else frozenset(stream.entry.namespaces)
