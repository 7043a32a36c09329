"""Config and discovery results as the streams to run, with ids, topics, key formats and the hash of
what decides their content. Pure.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from watchrelay.config.settings import DEFAULT_PARTITIONS
from watchrelay.config.streams import (
    asked_partitions,
    field_selector,
    resource_topic,
    separate,
)
from watchrelay.daemon.key_formats import PLAIN, PREFIXED, qualified
from watchrelay.kafka.topic_config import TopicSpec
from watchrelay.model.names import DOTLESS_GROUPS
from watchrelay.model.reach import Overlaps, Reach
from watchrelay.model.resources import Resource, Selection
from watchrelay.model.streams import StreamSpec, WatchPlan
from watchrelay.store.transform import Transform

if TYPE_CHECKING:
    from watchrelay.config import ResourceEntry, Settings

DEADLOCK_CURE = (
    "take {0} out of the config, retire it (`watchrelay retire {0}`) and put it back as it "
    "is to be; or name another topic"
)
"""What to do about a stream of which `deadlocked` tells."""

SHARED_TOPIC_CURE = (
    "take all of topic {0} out of the config, retire {1} (`watchrelay retire {1}`) and put "
    "all of it back; or name another topic"
)
"""What to do where several resources are to share a topic that was started with plain keys:
whatever stays would keep these."""

CONTENT_VERSION = 1
"""Raised when a release publishes other bytes for the same object and config: streams then compare
contents at resume."""


@dataclass(frozen=True, slots=True)
class PlannedStream:
    """A stream and how its objects are shaped before they are published."""

    spec: StreamSpec
    transform: Transform
    suppress_unchanged: bool
    entry: ResourceEntry


def plan_streams(
    settings: Settings, entry: ResourceEntry, resource: Resource, *, prefixed: bool
) -> list[PlannedStream]:
    """The streams of one entry for one resource: one per namespace, or one for all.

    Raises: ValueError with one line for the operator when the entry cannot be meant for this
    resource.
    """
    if entry.namespaces and not resource.namespaced:
        raise ValueError(
            f"{resource.qualified} is cluster-scoped: remove namespaces from its entry"
        )
    if entry.include_secret_data and (resource.group, resource.plural) != ("", "secrets"):
        raise ValueError(f"includeSecretData is for secrets only, not for {resource.qualified}")
    base = entry.id or resource.qualified
    if entry.namespaces and entry.scope == "namespace":
        return [
            _plan(settings, entry, resource, f"{base}@{namespace}", namespace, prefixed)
            for namespace in entry.namespaces
        ]
    return [_plan(settings, entry, resource, base, None, prefixed)]


def config_hash(settings: Settings) -> str:
    """Twelve digits that change with the settings; passwords do not go into them."""

    def tree(value: Any) -> Any:
        if hasattr(value, "get_secret_value"):
            return "secret"
        if isinstance(value, tuple):
            return [tree(item) for item in value]
        return (
            {name: tree(each) for name, each in vars(value).items()}
            if hasattr(value, "__dict__")
            else value
        )

    written = json.dumps(tree(settings), sort_keys=True)
    return hashlib.sha256(written.encode()).hexdigest()[:12]


def provisional_ids(entry: ResourceEntry) -> list[str]:
    """What an entry's streams are called until discovery knows its resource."""
    base = entry.id or entry.resource
    if entry.namespaces and entry.scope == "namespace":
        return [f"{base}@{namespace}" for namespace in entry.namespaces]
    return [base]


def control_topic(settings: Settings) -> str:
    """The topic of claims, stream descriptions and the snapshot index."""
    return f"{settings.kafka.topic_prefix}.{settings.cluster}.control"


def signal_topic(settings: Settings) -> str:
    """The topic of consumers' requests."""
    return f"{settings.kafka.topic_prefix}.{settings.cluster}.signal"


def pinned_conflict(stream: StreamSpec, described: Mapping[str, object] | None) -> str:
    """Why a stream may not be written as the config asks, when its description on the control topic
    pins another shape; "" when it may."""
    pinned = described or {}
    if pinned.get("topic") != stream.topic:
        return ""
    for key, name, cure in (
        ("partitions", "partitions", "`partitions: {}`"),
        ("keyFormat", "key format", "it"),
    ):
        if key == "partitions" and stream.partitions_from == "default":
            continue
        held, asked = pinned.get(key), stream.description[key]
        if held is not None and held != asked:
            return (
                f"stream {stream.id} on topic {stream.topic} has {name} {held!r}, the config "
                f"asks for {asked!r}: "
                f"keep {cure.format(held)}, or give the stream another topic"
            )
    return ""


def described_conflict(stream: StreamSpec, described: Mapping[str, Mapping[str, object]]) -> str:
    """Why a stream may not be written beside those that the control topic describes on the same
    topic; "" when it may.

    Refused are another form of keys, and the same resource unless namespaces or names are disjoint.
    """
    for other, theirs in described.items():
        if why := _clash(stream, other, theirs):
            return (
                f"stream {stream.id} {why}: retire that one first (`watchrelay retire "
                f"{other}`), or name another topic"
            )
    return ""


def deadlocked(
    planned: Iterable[StreamSpec], described: Mapping[str, Mapping[str, object]]
) -> dict[str, str]:
    """By id the streams of one config that would block each other, with why: each is to
    take objects that another of them has still, and that lets go of them only when it writes by its
    own new config. Those that wait for one that may go on are not among them.
    """
    plans = {each.id: each for each in planned}
    waiting: dict[str, dict[str, str]] = {}
    for plan in plans.values():
        reasons = {
            other: _clash(plan, other, theirs)
            for other, theirs in described.items()
            if other in plans
        }
        waiting[plan.id] = {other: why for other, why in reasons.items() if why}
    while free := [
        stream for stream, others in waiting.items() if not waiting.keys() & others.keys()
    ]:
        for stream in free:
            del waiting[stream]
    stuck: dict[str, str] = {}
    for stream, others in waiting.items():
        other = next(each for each in others if each in waiting)
        # else the config itself says so, whatever the topic holds now
        if not _clash(plans[stream], other, plans[other].description):
            stuck[stream] = (
                f"stream {stream} {others[other]}, and neither can let go before the other does"
            )
    return stuck


def topic_conflict(
    stream: StreamSpec, planned: Iterable[StreamSpec], described: Mapping[str, Mapping[str, object]]
) -> str:
    """As `described_conflict`, with the cure that fits where the other stream is in the same config
    (`planned`) and cannot be retired."""
    mixed = {
        other: why for other, theirs in described.items() if (why := _mixed(stream, other, theirs))
    }
    if not (clash := described_conflict(stream, described)) and not mixed:
        return ""
    plans = {each.id: each for each in planned}
    for other, why in mixed.items():
        if other in plans and plans[other].topic == stream.topic:
            return f"stream {stream.id} {why}: {SHARED_TOPIC_CURE.format(stream.topic, other)}"
    if stuck := deadlocked(plans.values(), described).get(stream.id):
        return f"{stuck}: {DEADLOCK_CURE.format(stream.id)}"
    for other, theirs in described.items():
        if (
            (why := _clash(stream, other, theirs))
            and other in plans
            and not _clash(stream, other, plans[other].description)
        ):
            return (
                f"stream {stream.id} {why}: by this config that one lets go of them, and "
                "this one waits until it has"
            )
    return clash


def _clash(stream: StreamSpec, other: str, theirs: Mapping[str, object]) -> str:
    ours = stream.description
    if other == stream.id or theirs.get("topic") != stream.topic:
        return ""
    if theirs.get("keyFormat") != ours["keyFormat"]:
        return (
            f"writes {ours['keyFormat']} keys, stream {other} on the same topic "
            f"{stream.topic} {theirs.get('keyFormat')} ones"
        )
    same = qualified(theirs) == stream.plan.selection.resource.qualified
    if same and _reach(theirs.get("selectors")).meets(_reach(ours["selectors"])):
        return f"takes objects that stream {other} on the same topic {stream.topic} has too"
    return ""


def _mixed(stream: StreamSpec, other: str, theirs: Mapping[str, object]) -> str:
    """Why the keys of two resources would not be distinct on one topic, in the words of
    `_clash`."""
    resource, named = stream.plan.selection.resource.qualified, qualified(theirs)
    if (
        other == stream.id
        or theirs.get("topic") != stream.topic
        or theirs.get("keyFormat") != PLAIN
        or named == resource
    ):
        return ""
    keys = f"writes {stream.description['keyFormat']} keys for {resource}"
    return f"{keys}, stream {other} on the same topic {stream.topic} plain ones for {named}"


def overlapping(planned: Iterable[PlannedStream]) -> Iterator[tuple[PlannedStream, PlannedStream]]:
    """The streams that can have objects of an earlier stream of `planned` on the same topic, each
    with that earlier one."""
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
    """What is wrong about a pair of `overlapping`, in one line that names both entries of the
    config, and the cure."""
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
    listed = (
        [each for each in namespaces if isinstance(each, str)]
        if isinstance(namespaces, list)
        else []
    )
    return Reach.of(listed, fields if isinstance(fields, str) else "")


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
    """The control topic."""
    kafka = settings.kafka
    return TopicSpec(
        name=control_topic(settings),
        kind="control",
        replication_factor=kafka.replication_factor,
        min_insync_replicas=kafka.min_insync_replicas,
    )


def signal_spec(settings: Settings) -> TopicSpec:
    """The signal topic."""
    return replace(control_spec(settings), name=signal_topic(settings), kind="signal")


def _transform(entry: ResourceEntry, resource: Resource) -> Transform:
    """What the entry makes of each object."""
    return Transform.compile(
        resource,
        drop=entry.drop,
        redact=entry.redact,
        keep_managed_fields=entry.keep_managed_fields,
        keep_last_applied=entry.keep_last_applied,
        include_secret_data=entry.include_secret_data,
        metadata_only=entry.metadata_only,
    )


def _of_bounded_depth(resource: Resource) -> bool:
    """Whether a type of kube-apiserver itself bounds how deeply objects nest."""
    return (
        not resource.group or resource.group in DOTLESS_GROUPS
    ) and resource.plural != "controllerrevisions"


def _plan(
    settings: Settings,
    entry: ResourceEntry,
    resource: Resource,
    stream: str,
    namespace: str | None,
    prefixed: bool,
) -> PlannedStream:
    kafka = settings.kafka
    transform = _transform(entry, resource)
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
        "namespace": namespace,
        "selectors": selectors,
        "configHash": config_hash,
    }
    spec = StreamSpec(
        id=stream,
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
