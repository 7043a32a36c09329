"""Config and discovery results as the streams to run, with ids, topics, key formats and the hash of
what decides their content; and which of them may be written as their topics are. Pure.

Only the config decides which topics are shared, but an older release or another config may have
started a topic with other keys. Such a topic keeps its keys, and only a stream that cannot be
written beside them is refused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import msgspec

from watchrelay.config.settings import DEFAULT_PARTITIONS
from watchrelay.config.streams import (
    asked_partitions,
    field_selector,
    namespaces_of,
    resource_topic,
    separate,
    shared_topics,
)
from watchrelay.contract.records import PARTITIONS_MAX
from watchrelay.core import causes
from watchrelay.core.causes import Cause
from watchrelay.kafka.topic_config import TopicSpec
from watchrelay.kube.discovery.resolve import Found, Missing, Resolution, Unknown
from watchrelay.model.names import DOTLESS_GROUPS, parse_name
from watchrelay.model.parts import Part, part_id
from watchrelay.model.reach import Overlaps, Reach
from watchrelay.model.resources import Resource, Selection
from watchrelay.model.streams import StreamSpec, WatchPlan
from watchrelay.store.transform import Transform

if TYPE_CHECKING:
    from watchrelay.config import ResourceEntry, Settings

PLAIN, PREFIXED = "plain", "prefixed"

DEADLOCK_CURE = (
    "take {0} out of the config, retire it (`watchrelay retire {0}`) and put it back as it "
    "is to be; or name another topic"
)
"""What to do about a stream that `deadlocked` names."""

CONTENT_VERSION = 1
"""Raised when a release publishes other bytes for the same object and config."""


@dataclass(frozen=True, slots=True)
class PlannedStream:
    """A stream and how its objects are shaped before they are published."""

    spec: StreamSpec
    transform: Transform
    suppress_unchanged: bool
    entry: ResourceEntry


@dataclass(frozen=True, slots=True)
class EntryPlan:
    """The streams of one entry, or why it has none now.

    Attributes:
        resources: what it means; empty while that is not known.
        cause: of `problem`; None while nothing is known about its resource.
    """

    entry: ResourceEntry
    resources: tuple[Resource, ...] = ()
    streams: list[PlannedStream] = field(default_factory=list)
    warnings: tuple[str, ...] = ()
    problem: str = ""
    cause: Cause | None = None


def plan_entry(
    settings: Settings, entry: ResourceEntry, resolution: Resolution, shared: set[str]
) -> EntryPlan:
    """The streams of an entry that discovery has resolved; `shared` as `shared_topics` gives it."""
    if isinstance(resolution, Unknown):
        return EntryPlan(entry, problem=resolution.reason)
    unusable = causes.ENTRY_UNUSABLE.about(entry.resource)
    if not isinstance(resolution, Found):
        absent = causes.RESOURCE_NOT_SERVED.about(entry.resource)
        cause = absent if isinstance(resolution, Missing) else unusable
        return EntryPlan(entry, problem=resolution.reason, cause=cause)
    resources, warnings = resolution.resources, resolution.warnings
    try:
        streams = [
            stream
            for each in resources
            for stream in plan_streams(
                settings, entry, each, prefixed=resource_topic(settings, entry, each) in shared
            )
        ]
    except ValueError as error:
        return EntryPlan(entry, resources, [], warnings, str(error), unusable)
    return EntryPlan(entry, resources, streams, warnings)


def plan_entries(
    settings: Settings,
    resolve: Callable[[str], Resolution],
    plan: Callable[[Settings, ResourceEntry, Resolution, set[str]], EntryPlan] = plan_entry,
) -> list[EntryPlan]:
    """What each entry means now; named resources come first, a wildcard means all others of its
    group."""
    entries = sorted(settings.resources, key=lambda entry: entry.resource.startswith("*"))
    resolved = [(entry, resolve(entry.resource)) for entry in entries]
    found = ((entry, each.resources if isinstance(each, Found) else ()) for entry, each in resolved)
    shared = shared_topics(settings, found)
    return [plan(settings, entry, each, shared) for entry, each in resolved]


def resources_described(
    entry: ResourceEntry, described: Mapping[str, Mapping[str, object]]
) -> tuple[Resource, ...]:
    """What an entry meant when its streams were described: what it names in the plural, or all of
    the group of a wildcard. None where a name without a group has meant several.

    Args:
        described: the descriptions on the control topic, by stream."""
    wanted, found = parse_name(entry.resource), dict[str, Resource]()
    for stream, description in described.items():
        if (resource := resource_of(description)) is None:
            continue
        name = entry.id or resource.qualified
        if (
            stream in {name + (f"@{each}" if each else "") for each in namespaces_of(entry)}
            and (wanted.wildcard or wanted.name.lower() == resource.plural)
            and wanted.group in {None, resource.group}
            and wanted.version in {"", resource.version}
        ):
            found[resource.qualified] = resource
    return tuple(found.values()) if wanted.wildcard or len(found) == 1 else ()


def streams_by_id(plans: Iterable[EntryPlan]) -> dict[str, PlannedStream]:
    """All streams; of two entries that mean one, the first."""
    planned: dict[str, PlannedStream] = {}
    for each in (stream for plan in plans for stream in plan.streams):
        planned.setdefault(each.spec.id, each)
    return planned


def parts_of(planned: PlannedStream, partitions: int) -> list[PlannedStream]:
    """The parts of a stream that its entry splits, each with a partition at least; otherwise the
    stream itself.

    Args:
        partitions: those of its topic."""
    count = max(1, min(planned.entry.split, partitions))
    return [
        replace(
            planned, spec=replace(planned.spec, id=part_id(planned.spec.id, Part(place, count)))
        )
        for place in range(count)
    ]


def plan_streams(
    settings: Settings, entry: ResourceEntry, resource: Resource, *, prefixed: bool
) -> list[PlannedStream]:
    """The streams of one entry for one resource: one per namespace, or one for all.

    Raises: ValueError with one line for the operator: the entry cannot be meant for it."""
    if entry.namespaces and not resource.namespaced:
        raise ValueError(
            f"{resource.qualified} is cluster-scoped: remove namespaces from its entry"
        )
    if entry.include_secret_data and (resource.group, resource.plural) != ("", "secrets"):
        raise ValueError(f"includeSecretData is for secrets only, not for {resource.qualified}")
    return [
        _plan(settings, entry, resource, namespace, prefixed) for namespace in namespaces_of(entry)
    ]


def plan_hash(spec: StreamSpec, *, suppress_unchanged: bool) -> str:
    """The hash of how a replica would run the stream: the same before and after it has read where
    the number of partitions comes from."""
    spec = replace(spec, partitions_from="config")
    plan = msgspec.json.encode((spec, suppress_unchanged), order="deterministic")
    return hashlib.sha256(plan).hexdigest()[:16]


def config_hash(settings: Settings) -> str:
    """Twelve digits that change with the settings. Neither passwords go into them nor the name of
    a replica, the one thing in which replicas of one config differ, nor the revision."""
    shared = settings.model_dump_json(exclude={"sharding": {"instance"}, "revision": True})
    return hashlib.sha256(shared.encode()).hexdigest()[:12]


def provisional_ids(entry: ResourceEntry) -> list[str]:
    """What an entry's streams are called until discovery knows its resource."""
    base = entry.id or entry.resource
    return [base + (f"@{each}" if each else "") for each in namespaces_of(entry)]


def control_topic(settings: Settings) -> str:
    """The topic of claims, stream descriptions and the snapshot index."""
    return f"{settings.kafka.topic_prefix}.{settings.cluster}.control"


def signal_topic(settings: Settings) -> str:
    """The topic of consumers' requests."""
    return f"{settings.kafka.topic_prefix}.{settings.cluster}.signal"


def replicas_group(settings: Settings) -> str:
    """The group by which replicas share the streams."""
    return f"{settings.kafka.topic_prefix}.{settings.cluster}.relays"


def transactional_id(settings: Settings, stream: str) -> str:
    """The id under which the brokers know the writer of `stream`; "" without transactions."""
    if settings.kafka.delivery != "transactional":
        return ""
    return f"{settings.kafka.topic_prefix}.{settings.cluster}.{stream}"


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
    waiting = {plan.id: _clashes(plan, known) for plan in plans.values()}
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
                f"{resource}, "
                f"stream {other} on the same topic {stream.topic} plain ones for "
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
    resource, reach = stream.plan.selection.resource.qualified, _reach(ours["selectors"])
    for other, theirs in described.items():
        if other == stream.stream or theirs.get("topic") != stream.topic:
            continue
        if theirs.get("keyFormat") != ours["keyFormat"]:
            found[other] = (
                f"writes {ours['keyFormat']} keys, stream {other} on the same topic "
                f"{stream.topic} {theirs.get('keyFormat')} ones"
            )
        elif qualified(theirs) == resource and _reach(theirs.get("selectors")).meets(reach):
            found[other] = (
                f"takes objects that stream {other} on the same topic {stream.topic} has too"
            )
    return found


class KeyFormats:
    """Key formats and partitions of topics, as the control topic describes their streams."""

    def __init__(self, described: Mapping[str, Mapping[str, object]]) -> None:
        self._topics: dict[object, dict[str, Mapping[str, object]]] = {}
        for stream, description in described.items():
            self._topics.setdefault(description.get("topic"), {})[stream] = description

    def kept(self, stream: StreamSpec) -> StreamSpec:
        """The stream with its keys on its topic; a new one with those of the topic, unless
        these are plain keys of another resource. Likewise with partitions, unless the
        config sets their number."""
        others = self._topics.get(stream.topic, {})
        known = stream.stream in others
        there = [others[stream.stream]] if known else list(others.values())
        counts = {_partitions(each) for each in there}
        if len(counts) == 1 and (count := counts.pop()):
            stream = _with_partitions(stream, count, known=known)
        resource = stream.plan.selection.resource.qualified
        formats = {each.get("keyFormat") for each in there}
        alike = all(qualified(each) == resource for each in there)
        if formats == {PREFIXED} and (alike or not known):
            return _with_keys(stream, PREFIXED)
        return _with_keys(stream, PLAIN) if formats == {PLAIN} and alike else stream


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


def overlapping(planned: Iterable[PlannedStream]) -> Iterator[tuple[PlannedStream, PlannedStream]]:
    """The streams that can have objects of an earlier one of `planned` on the same topic, with
    it."""
    overlaps = Overlaps[PlannedStream]()
    for each in planned:
        group = each.spec.topic, each.spec.plan.selection.resource.qualified
        reach = _reach(each.spec.description["selectors"])
        if (earlier := overlaps.first(group, reach)) is None:
            overlaps.add(group, reach, each)
        else:
            yield each, earlier


def why_overlapping(
    settings: Settings, stream: PlannedStream, earlier: PlannedStream
) -> tuple[str, str]:
    """What is wrong about a pair of `overlapping`, with both entries of the config, and the
    cure."""
    entries = [f"resources[{settings.resources.index(each.entry)}]" for each in (stream, earlier)]
    why = (
        f"stream {stream.spec.id} ({entries[0]}) can have the same objects as stream "
        f"{earlier.spec.id} ({entries[1]}) "
        f"on the same topic {stream.spec.topic}"
    )
    return why, separate(namespaced=stream.spec.plan.selection.resource.namespaced)


def _reach(selectors: object) -> Reach:
    """Of a description's selectors; what is none of those that a relay writes limits nothing."""
    held = selectors if isinstance(selectors, dict) else {}
    namespaces, fields = held.get("namespaces"), held.get("fieldSelector")
    listed = namespaces if isinstance(namespaces, list) else []
    return Reach.of(
        [each for each in listed if isinstance(each, str)],
        fields if isinstance(fields, str) else "",
    )


def topic_spec(stream: StreamSpec, settings: Settings) -> TopicSpec:
    """The state topic as this stream needs it."""
    return TopicSpec(
        name=stream.topic,
        partitions=stream.partitions,
        replication_factor=settings.kafka.replication_factor,
        min_insync_replicas=settings.kafka.min_insync_replicas,
        snapshot_interval_s=stream.snapshot_interval_s,
        pinned=stream.partitions_from == "topic",
    )


def control_spec(settings: Settings) -> TopicSpec:
    kafka = settings.kafka
    return TopicSpec(
        name=control_topic(settings),
        kind="control",
        replication_factor=kafka.replication_factor,
        min_insync_replicas=kafka.min_insync_replicas,
    )


def signal_spec(settings: Settings) -> TopicSpec:
    return replace(control_spec(settings), name=signal_topic(settings), kind="signal")


def _of_bounded_depth(resource: Resource) -> bool:
    """Whether a type of kube-apiserver itself bounds how deeply objects nest."""
    return (
        not resource.group or resource.group in DOTLESS_GROUPS
    ) and resource.plural != "controllerrevisions"


def _plan(
    settings: Settings,
    entry: ResourceEntry,
    resource: Resource,
    namespace: str | None,
    prefixed: bool,
) -> PlannedStream:
    kafka = settings.kafka
    transform = Transform.compile(
        resource,
        drop=entry.drop,
        redact=entry.redact,
        keep_managed_fields=entry.keep_managed_fields,
        keep_last_applied=entry.keep_last_applied,
        include_secret_data=entry.include_secret_data,
        metadata_only=entry.metadata_only,
    )
    selection = Selection(
        resource=resource,
        namespace=namespace,
        label_selector=entry.label_selector or "",
        field_selector=field_selector(entry, namespace),
        metadata_only=entry.metadata_only,
        depth_checked=transform.enters
        or kafka.format != "cloudevents"
        or not _of_bounded_depth(resource),
    )
    arrival = frozenset(entry.namespaces) if entry.scope == "cluster" else frozenset[str]()
    plan = WatchPlan(
        selection=selection,
        initial_list=entry.initial_list,
        list_semantic=entry.list_semantic,
        page_size=entry.page_size,
        bookmarks=entry.bookmarks,
        relist_interval_s=entry.relist_interval_s,
        arrival_namespaces=arrival,
    )
    selectors = {
        "labelSelector": selection.label_selector,
        "fieldSelector": selection.field_selector,
        "namespaces": sorted(arrival) or ([namespace] if namespace else []),
    }
    decides = {
        "content": CONTENT_VERSION,
        "resource": str(resource),
        "selectors": selectors,
        "metadataOnly": entry.metadata_only,
        "transform": transform.describe(),
        "format": kafka.format,
    }
    config_hash = hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:16]
    topic = resource_topic(settings, entry, resource)
    asked = asked_partitions(settings, entry)
    partitions = asked or DEFAULT_PARTITIONS
    description: dict[str, object] = {
        "topic": topic,
        "partitions": partitions,
        "keyFormat": PREFIXED if prefixed else PLAIN,
        "resource": str(resource),
        "kind": resource.kind,
        "namespace": namespace,
        "selectors": selectors,
        "configHash": config_hash,
    }
    spec = StreamSpec(
        id=(entry.id or resource.qualified) + (f"@{namespace}" if namespace else ""),
        cluster=settings.cluster,
        topic=topic,
        partitions=partitions,
        partitions_from="config" if asked else "default",
        plan=plan,
        config_hash=config_hash,
        key_prefix=f"{resource.qualified}/".encode() if prefixed else b"",
        format=kafka.format,
        snapshot_interval_s=entry.snapshot_interval_s,
        description=description,
    )
    return PlannedStream(spec, transform, suppress_unchanged=entry.suppress_unchanged, entry=entry)
