"""Config and discovery results as the streams to run, with ids, topics, key formats and the hash of
what decides their content. Pure.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

import msgspec

from watchrelay.config.settings import DEFAULT_PARTITIONS, ResourceEntry, Settings
from watchrelay.config.streams import (
    asked_partitions,
    field_selector,
    namespaces_of,
    resource_topic,
    selectors_of,
    separate,
    shared_topics,
    stream_id,
)
from watchrelay.core.trouble import Cause, Trouble
from watchrelay.kube.discovery.resolve import Found, Missing, Resolution, Unknown
from watchrelay.model.names import DOTLESS_GROUPS
from watchrelay.model.parts import Part, part_id
from watchrelay.model.paths import parse_counted, parse_ignored
from watchrelay.model.reach import Overlaps, reach_of
from watchrelay.model.resources import Resource, Selection
from watchrelay.model.streams import StreamSpec, WatchPlan
from watchrelay.store.counting import Counting
from watchrelay.store.transform import Transform

PLAIN, PREFIXED = "plain", "prefixed"

CONTENT_VERSION = 1
"""Raised when a release publishes other bytes for the same object and config."""


@dataclass(frozen=True, slots=True)
class PlannedStream:
    """A stream and how its objects are shaped before they are published."""

    spec: StreamSpec
    transform: Transform
    suppress_unchanged: bool
    entry: ResourceEntry
    counting: Counting | None = None


@dataclass(frozen=True, slots=True)
class EntryPlan:
    """The streams of one entry, or why it has none now.

    Attributes:
        resources: what it means; empty while that is not known.
        problem: of the cause KUBERNETES while nothing is known about its resource.
    """

    entry: ResourceEntry
    resources: tuple[Resource, ...] = ()
    streams: list[PlannedStream] = field(default_factory=list)
    warnings: tuple[str, ...] = ()
    problem: Trouble | None = None


def plan_entry(
    settings: Settings, entry: ResourceEntry, resolution: Resolution, shared: set[str]
) -> EntryPlan:
    """The streams of an entry that discovery has resolved; `shared` as `shared_topics` gives it."""
    if isinstance(resolution, Unknown):
        unknown = Trouble(entry.resource, Cause.KUBERNETES, resolution.reason)
        return EntryPlan(entry, problem=unknown)
    if not isinstance(resolution, Found):
        absent = isinstance(resolution, Missing)
        cause = Cause.RESOURCE_NOT_SERVED if absent else Cause.ENTRY_UNUSABLE
        return EntryPlan(entry, problem=Trouble(entry.resource, cause, resolution.reason))
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
        unusable = Trouble(entry.resource, Cause.ENTRY_UNUSABLE, str(error))
        return EntryPlan(entry, resources, [], warnings, unusable)
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
    the number of partitions comes from. Ten digits: the group's record has them once for each
    stream and replica."""
    spec = replace(spec, partitions_from="config")
    plan = msgspec.json.encode((spec, suppress_unchanged), order="deterministic")
    return hashlib.sha256(plan).hexdigest()[:10]


def config_hash(settings: Settings) -> str:
    """Twelve digits that change with the settings. Passwords do not go into them, nor the name of a
    replica and the address that it listens on, in which replicas of one config differ, nor the
    revision."""
    shared = settings.model_dump_json(
        exclude={"sharding": {"instance"}, "observe": {"listen"}, "revision": True}
    )
    return hashlib.sha256(shared.encode()).hexdigest()[:12]


def stream_ids(entry: ResourceEntry, resource: str) -> list[str]:
    """What an entry's streams of a resource are called."""
    return [stream_id(entry, resource, each) for each in namespaces_of(entry)]


def provisional_ids(entry: ResourceEntry) -> list[str]:
    """What an entry's streams are called until discovery knows its resource."""
    return stream_ids(entry, entry.resource)


def overlapping(planned: Iterable[PlannedStream]) -> Iterator[tuple[PlannedStream, PlannedStream]]:
    """The streams that can have objects of an earlier one of `planned` on the same topic, with
    it."""
    overlaps = Overlaps[PlannedStream]()
    for each in planned:
        group = each.spec.topic, each.spec.plan.selection.resource.qualified
        reach = reach_of(each.spec.description["selectors"])
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
    transform = _transform(resource, entry)
    counting = _counting(resource, entry, transform)
    selection = Selection(
        resource=resource,
        namespace=namespace,
        label_selector=entry.label_selector or "",
        field_selector=field_selector(entry, namespace),
        metadata_only=entry.metadata_only,
        depth_checked=transform.enters
        or counting is not None
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
    selectors = selectors_of(entry, namespace)
    decides = {
        "content": CONTENT_VERSION,
        "resource": str(resource),
        "selectors": selectors,
        "metadataOnly": entry.metadata_only,
        "transform": transform.describe(),
        "format": kafka.format,
    }
    counted = {} if counting is None else counting.describe()
    if counted:
        decides["counted"] = counted
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
        **counted,
    }
    spec = StreamSpec(
        id=stream_id(entry, resource.qualified, namespace),
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
    return PlannedStream(spec, transform, entry.suppress_unchanged, entry, counting)


def _transform(resource: Resource, entry: ResourceEntry, *, hides: bool = True) -> Transform:
    """How objects are shaped before they are published; without `hides`, but for what is
    redacted."""
    return Transform.compile(
        resource,
        drop=entry.drop,
        redact=entry.redact if hides else (),
        keep_managed_fields=entry.keep_managed_fields,
        keep_last_applied=entry.keep_last_applied,
        include_secret_data=entry.include_secret_data or not hides,
        metadata_only=entry.metadata_only,
    )


def _counting(resource: Resource, entry: ResourceEntry, transform: Transform) -> Counting | None:
    """What counts of objects; None where all of it does."""
    if not entry.ignore_changes and entry.publish_when is None:
        return None
    before = _transform(resource, entry, hides=False) if transform.redacts else transform
    return Counting.compile(
        before,
        redacts=transform.redacts,
        ignored=map(parse_ignored, entry.ignore_changes),
        published=None if entry.publish_when is None else map(parse_counted, entry.publish_when),
    )
