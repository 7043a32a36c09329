"""The streams of a config beside those that the control topic describes: what a topic keeps, which
streams may not be written as the config asks, and what an entry meant before. Pure.

Only the config decides which topics are shared, but an older release or another config may have
started a topic with other keys. Such a topic keeps its keys, and only a stream that cannot be
written beside them is refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Hashable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from watchrelay.config.settings import ResourceEntry
from watchrelay.contract.records import PARTITIONS_MAX
from watchrelay.kube.discovery.catalog import ApiCatalog
from watchrelay.kube.discovery.resolve import Found, Resolution, Unknown
from watchrelay.model.names import parse_name
from watchrelay.model.reach import KeyRange, Reach, reach_of
from watchrelay.model.resources import Resource
from watchrelay.model.streams import StreamSpec
from watchrelay.plan.streams import PLAIN, PREFIXED, stream_ids

DEADLOCK_CURE = (
    "take {0} out of the config, retire it (`watchrelay retire {0}`) and put it back as it "
    "is to be; or name another topic"
)
"""What to do about a stream that `deadlocked` names."""


def resources_described(
    entry: ResourceEntry, described: Mapping[str, Mapping[str, object]]
) -> tuple[Resource, ...]:
    """What an entry meant when its streams were described: what it names in the plural, or all of
    the group of a wildcard. Empty where a name without a group has meant several.

    Args:
        described: the descriptions on the control topic, by stream."""
    wanted, found = parse_name(entry.resource), dict[str, Resource]()
    for stream, description in described.items():
        if (resource := resource_of(description)) is None:
            continue
        if (
            stream in stream_ids(entry, resource.qualified)
            and (wanted.wildcard or wanted.name.lower() == resource.plural)
            and wanted.group in {None, resource.group}
            and wanted.version in {"", resource.version}
        ):
            found[resource.qualified] = resource
    return tuple(found.values()) if wanted.wildcard or len(found) == 1 else ()


def in_versions_described(
    entry: ResourceEntry,
    resolution: Resolution,
    described: Mapping[str, Mapping[str, object]],
    catalog: ApiCatalog | None,
) -> Resolution:
    """`resolution`, each resource in the version in which its streams are described, unless the
    entry names a version or that one is no longer served. Which version is preferred depends on
    the server that answers: there are two kinds of them during an upgrade of the control plane."""
    if catalog is None or not isinstance(resolution, Found) or parse_name(entry.resource).version:
        return resolution

    def kept(resource: Resource) -> Resource:
        for stream in stream_ids(entry, resource.qualified):
            held = resource_of(described.get(stream, {}))
            if held is not None and held.qualified == resource.qualified:
                former = replace(resource, version=held.version)
                if catalog.availability(former).state in {"served", "unknown"}:
                    return former
        return resource

    return replace(resolution, resources=tuple(kept(each) for each in resolution.resources))


def with_absent(
    entry: ResourceEntry,
    resolution: Resolution,
    described: Mapping[str, Mapping[str, object]],
    catalog: ApiCatalog,
    *,
    running: Container[str],
) -> Resolution:
    """`resolution`, and the resources that the entry meant when its streams were described, if that
    version is not served now. The watch of each one then decides, as in a relay that runs when a
    version ends: it waits, or removes the objects if no version of the resource is served.

    Args:
        running: the resources of the entry whose streams run: their watches know already."""
    if isinstance(resolution, Unknown):
        return resolution
    found = resolution if isinstance(resolution, Found) else Found(())
    if found.resources and not parse_name(entry.resource).wildcard:
        return resolution
    meant = {each.qualified for each in found.resources}
    absent = [
        each
        for each in resources_described(entry, described)
        if each.qualified not in meant
        and each.qualified not in running
        and catalog.availability(each, any_scope=True).state in {"gone", "hidden"}
    ]
    return replace(found, resources=(*found.resources, *absent)) if absent else resolution


def pinned_conflict(stream: StreamSpec, described: Mapping[str, object] | None) -> str:
    """Why a stream may not be written as the config asks, for its description pins another
    shape; "" when it may."""
    pinned = described or {}
    if pinned.get("topic") != stream.topic:
        return ""
    for key, name in (("partitions", "partitions"), ("keyFormat", "key format")):
        held, asked = pinned.get(key), stream.description[key]
        default = key == "partitions" and stream.partitions_from == "default"
        if held is not None and held != asked and not default:
            cure = f"`partitions: {held}`" if key == "partitions" else "it"
            return (
                f"stream {stream.stream} on topic {stream.topic} has {name} {held!r}, the config "
                f"asks for {asked!r}: keep {cure}, or give the stream another topic"
            )
    return ""


def deadlocked(
    planned: Iterable[StreamSpec], described: Mapping[str, Mapping[str, object]]
) -> dict[str, str]:
    """By id the streams of one config that would block each other, with why: each is to take
    objects that another of them has, and lets go of only under its own new config. Those that
    wait for one that may go on are not among them."""
    plans = {each.id: each for each in planned}
    known = {other: theirs for other, theirs in described.items() if other in plans}
    formats = KeyFormats(known)
    waiting = {
        plan.id: _clashes(plan, known) if formats.may_conflict(plan) else {}
        for plan in plans.values()
    }
    while free := [
        stream for stream, others in waiting.items() if not waiting.keys() & others.keys()
    ]:
        for stream in free:
            del waiting[stream]
    stuck: dict[str, str] = {}
    for stream, others in waiting.items():
        other = next(each for each in others if each in waiting)
        # else the config itself is wrong, whatever the topic holds now
        if not _clashes(plans[stream], {other: plans[other].description}):
            stuck[stream] = (
                f"stream {stream} {others[other]}, and neither can let go before the other does"
            )
    return stuck


def topic_conflict(
    stream: StreamSpec, planned: Iterable[StreamSpec], described: Mapping[str, Mapping[str, object]]
) -> str:
    """Why a stream may not be written beside those that the control topic describes, and the
    cure; "" when it may. Refused are another form of keys, plain keys for several resources,
    and the same resource unless namespaces or names are disjoint.

    Args:
        stream: as `KeyFormats` keeps it.
        planned: the streams of the config, likewise: these cannot be retired.
        described: the descriptions on the control topic."""
    plans = {each.id: each for each in planned}
    resource = stream.plan.selection.resource.qualified
    for other, theirs in described.items():
        if (
            other != stream.stream
            and other in plans
            and plans[other].topic == theirs.get("topic") == stream.topic
            and theirs.get("keyFormat") == PLAIN
            and qualified(theirs) != resource
        ):
            return (
                f"stream {stream.stream} writes {stream.description['keyFormat']} keys for "
                f"{resource}, stream {other} on the same topic {stream.topic} plain ones for "
                f"{qualified(theirs)}: take all of topic {stream.topic} out of the config, "
                f"retire {other} (`watchrelay retire {other}`) and put all of it back; or name "
                "another topic"
            )
    clashes = _clashes(stream, described)
    if not clashes:
        return ""
    if stuck := deadlocked(plans.values(), described).get(stream.stream):
        return f"{stuck}: {DEADLOCK_CURE.format(stream.stream)}"
    for other, why in clashes.items():
        if other in plans and not _clashes(stream, {other: plans[other].description}):
            return (
                f"stream {stream.stream} {why}: by this config that one lets go of them, and "
                "this one waits until it has"
            )
    other, why = next(iter(clashes.items()))
    return (
        f"stream {stream.stream} {why}: retire that one first (`watchrelay retire {other}`), or "
        "name another topic"
    )


def _clashes(stream: StreamSpec, described: Mapping[str, Mapping[str, object]]) -> dict[str, str]:
    """By id the other streams on its topic beside which `stream` may not be written, with why."""
    ours, found = stream.description, dict[str, str]()
    resource, reach = stream.plan.selection.resource.qualified, reach_of(ours["selectors"])
    for other, theirs in described.items():
        if other == stream.stream or theirs.get("topic") != stream.topic:
            continue
        if theirs.get("keyFormat") != ours["keyFormat"]:
            found[other] = (
                f"writes {ours['keyFormat']} keys, stream {other} on the same topic "
                f"{stream.topic} {theirs.get('keyFormat')} ones"
            )
        elif qualified(theirs) == resource and reach_of(theirs.get("selectors")).meets(reach):
            found[other] = (
                f"takes objects that stream {other} on the same topic {stream.topic} has too"
            )
    return found


class KeyFormats:
    """Key formats and partitions of topics, as the control topic describes their streams. A
    question about one stream costs the same however many streams its topic has, but for the first
    one about a topic; streams on other topics cost next to nothing."""

    def __init__(self, described: Mapping[str, Mapping[str, object]] | None = None) -> None:
        self._taken: object = None
        self._described: dict[str, Mapping[str, object]] = {}
        self._on_topic: dict[object, dict[str, Mapping[str, object]]] = {}
        self._topics: dict[object, _Topic] = {}
        self.take(described or {})

    def take(self, described: Mapping[str, Mapping[str, object]]) -> None:
        """Hold these descriptions from now on. What is the same object has not changed."""
        if described is self._taken:
            return
        self._taken = described
        for stream in self._described.keys() - described.keys():
            self._forget(stream)
        for stream, description in described.items():
            if self._described.get(stream) is not description:
                self._forget(stream)
                self._described[stream] = description
                topic = description.get("topic")
                self._on_topic.setdefault(topic, {})[stream] = description
                if topic in self._topics:
                    self._topics[topic].add(stream, description)

    def _forget(self, stream: str) -> None:
        former = self._described.pop(stream, None)
        if former is not None:
            topic = former.get("topic")
            del self._on_topic[topic][stream]
            if not self._on_topic[topic]:
                del self._on_topic[topic]
            if topic in self._topics:
                self._topics[topic].remove(stream, former)

    def _topic(self, name: str) -> _Topic:
        if name not in self._topics:
            there = self._topics[name] = _Topic()
            for stream, description in self._on_topic.get(name, {}).items():
                there.add(stream, description)
        return self._topics[name]

    def kept(self, stream: StreamSpec) -> StreamSpec:
        """The stream with its keys on its topic; a new one with those of the topic, unless
        these are plain keys of another resource. Likewise with partitions, unless the
        config sets their number."""
        there = self._topic(stream.topic)
        known = stream.stream in there.streams
        if known:
            own, there = there.streams[stream.stream], _Topic()
            there.add(stream.stream, own)
        counts, formats = there.partitions.keys(), there.formats.keys()
        if len(counts) == 1 and (count := next(iter(counts))):
            stream = _with_partitions(stream, count, known=known)
        alike = there.resources.keys() <= {stream.plan.selection.resource.qualified}
        if formats == {PREFIXED} and (alike or not known):
            return _with_keys(stream, PREFIXED)
        return _with_keys(stream, PLAIN) if formats == {PLAIN} and alike else stream

    def shape(self, topic: str) -> Hashable | None:
        """What `kept` depends on for every stream of the topic, described there or not; None where
        it depends on the stream."""
        there = self._topic(topic)
        counts, formats = frozenset(there.partitions), frozenset(there.formats)
        uniform = formats <= {PREFIXED} or (formats <= {PLAIN} and len(there.resources) <= 1)
        return (counts, formats) if uniform and len(counts) <= 1 else None

    def may_conflict(self, stream: StreamSpec) -> bool:
        """False only where `topic_conflict` finds nothing. Args: stream: as `kept`."""
        return self._topic(stream.topic).may_conflict(stream)


class _Topic:
    """The streams described on one topic, counted by what decides over others there."""

    def __init__(self) -> None:
        self.streams: dict[str, Mapping[str, object]] = {}
        self.partitions = Counter[int | None]()
        self.formats = Counter[object]()
        self.resources = Counter[str]()
        self._reaches: dict[tuple[str, str | None], dict[str, Reach]] = {}
        """By resource and namespace, None for any: the streams with objects there."""

    def add(self, stream: str, description: Mapping[str, object]) -> None:
        self.streams[stream] = description
        self._count(description, 1)
        reach = reach_of(description.get("selectors"))
        for place in _places(qualified(description), reach):
            self._reaches.setdefault(place, {})[stream] = reach

    def remove(self, stream: str, description: Mapping[str, object]) -> None:
        del self.streams[stream]
        self._count(description, -1)
        for place in _places(qualified(description), reach_of(description.get("selectors"))):
            del self._reaches[place][stream]

    def _count(self, description: Mapping[str, object], by: int) -> None:
        counters: tuple[tuple[Counter[Any], object], ...] = (
            (self.partitions, _partitions(description)),
            (self.formats, description.get("keyFormat")),
            (self.resources, qualified(description)),
        )
        for counter, value in counters:
            counter[value] += by
            if not counter[value]:
                del counter[value]

    def may_conflict(self, stream: StreamSpec) -> bool:
        """See `KeyFormats`."""
        resource, ours = stream.plan.selection.resource.qualified, stream.description
        own = self.streams.get(stream.stream)
        formats, resources = self.formats.copy(), self.resources.copy()
        if own is not None:
            formats[own.get("keyFormat")] -= 1
            resources[qualified(own)] -= 1
        if +formats and (+formats).keys() != {ours["keyFormat"]}:
            return True
        if PLAIN in +formats and (+resources).keys() - {resource}:
            return True
        reach = reach_of(ours["selectors"])
        places = _places(resource, reach)
        if reach.namespaces.inverted:
            places = [place for place in self._reaches if place[0] == resource]
        return any(
            other != stream.stream and theirs.meets(reach)
            for place in {*places, (resource, None)}
            for other, theirs in self._reaches.get(place, {}).items()
        )


def _places(resource: str, reach: Reach) -> list[tuple[str, str | None]]:
    namespaces = (None,) if reach.namespaces.inverted else reach.namespaces.listed
    return [(resource, namespace) for namespace in namespaces]


def keys_described(description: Mapping[str, object]) -> KeyRange:
    """The keys that the objects of a stream can have by its description."""
    prefix = f"{qualified(description)}/" if description.get("keyFormat") == PREFIXED else ""
    return KeyRange(prefix.encode(), reach_of(description.get("selectors")))


def resource_of(description: Mapping[str, object]) -> Resource | None:
    """The resource of a stream by its description, which does not tell its scope; None where it
    names none, or not its kind."""
    try:
        named = parse_name(str(description.get("resource")))
    except ValueError:
        return None
    kind = description.get("kind")
    if named.wildcard or not named.version or not isinstance(kind, str) or not kind:
        return None
    return Resource(named.group or "", named.version, named.name, kind, namespaced=True)


def qualified(description: Mapping[str, object]) -> str:
    """The resource of a stream by its description, without the version."""
    return str(description.get("resource")).partition("/")[0]


def _partitions(description: Mapping[str, object]) -> int | None:
    count = description.get("partitions")
    return count if type(count) is int and 0 <= count <= PARTITIONS_MAX else None


def _with_partitions(stream: StreamSpec, count: int, *, known: bool) -> StreamSpec:
    if stream.partitions_from == "config":
        pinned = known and count == stream.partitions
        return replace(stream, partitions_from="topic") if pinned else stream
    description = {**stream.description, "partitions": count}
    return replace(stream, partitions=count, description=description, partitions_from="topic")


def _with_keys(stream: StreamSpec, key_format: str) -> StreamSpec:
    if stream.description["keyFormat"] == key_format:
        return stream
    prefix = (
        f"{stream.plan.selection.resource.qualified}/".encode() if key_format == PREFIXED else b""
    )
    return replace(
        stream, key_prefix=prefix, description={**stream.description, "keyFormat": key_format}
    )
