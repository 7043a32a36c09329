"""What no single value shows: combinations that cannot work, and keys whose time has not come.

Room: config. In: settings, defaults merged, and which keys were given. Out: refusals, each with the
keys it is about.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from watchrelay.config.grammar import TOPIC_MAX
from watchrelay.config.security import security_refusals
from watchrelay.config.settings import ResourceEntry, Settings
from watchrelay.config.streams import Planned, is_secrets, own_topics, plan, reach_of, separate
from watchrelay.config.tree import Path, show
from watchrelay.config.verdicts import Refusal
from watchrelay.model.builtin import resolve
from watchrelay.model.names import parse_name
from watchrelay.model.reach import Overlaps


@dataclass(frozen=True, slots=True)
class Later:
    """A key of the design that this release has only in part. Shape: `only` are the values it takes
    here; none: it may not be given."""

    path: tuple[str, ...]
    only: tuple[object, ...] = ()
    written: str = ""


LATER: Final = (
    Later(("kafka", "delivery"), only=("idempotent",), written="idempotent"),
    Later(("sharding", "enabled"), only=(False,), written="false"),
    Later(("sharding", "sessionTimeout")),
)
"""What comes with a later release. When a behaviour arrives, its row goes, and the default in
settings.py becomes the design's."""

Says = Callable[[Path], bool]


def refusals(settings: Settings, says: Says) -> Iterator[Refusal]:
    """Everything that is wrong about `settings` as a whole. `says(path)` tells whether a key was
    given, by whatever source."""
    yield from _later(settings, says)
    yield from security_refusals(settings.kafka.security)
    kafka = settings.kafka
    if kafka.min_insync_replicas > kafka.replication_factor:
        yield Refusal(
            (("kafka", "minInsyncReplicas"), ("kafka", "replicationFactor")),
            f"{kafka.min_insync_replicas} is over replicationFactor "
            f"({kafka.replication_factor}): every write would fail",
            f"set minInsyncReplicas to {kafka.replication_factor} or less",
        )
    for index, entry in enumerate(settings.resources):
        yield from _entry(index, entry)
    planned = plan(settings)
    duplicates = list(_same_ids(planned))
    yield from duplicates
    yield from _topics(settings, planned)
    yield from _same_objects(planned, {refusal.paths[0][1] for refusal in duplicates})


def _later(settings: Settings, says: Says) -> Iterator[Refusal]:
    for row in LATER:
        paths: list[Path] = [row.path]
        if "*" in row.path:
            paths = [
                tuple(index if part == "*" else part for part in row.path)
                for index in range(len(settings.resources))
            ]
        for path in paths:
            if not says(path):
                continue
            if not row.only:
                yield Refusal((path,), "comes with a later release", "leave the key out")
            elif (value := _value(settings, path)) not in row.only:
                said = f"{value} " if isinstance(value, str) else ""
                yield Refusal(
                    (path,), f"{said}comes with a later release", f"in this one: {row.written}"
                )


def _value(settings: Settings, path: Path) -> object:
    here: Any = settings
    for part in path:
        if isinstance(part, int):
            here = here[part]
        else:
            fields = type(here).model_fields
            here = getattr(here, next(name for name, info in fields.items() if info.alias == part))
    return here


def _entry(index: int, entry: ResourceEntry) -> Iterator[Refusal]:
    def at(*keys: str) -> tuple[Path, ...]:
        return tuple(("resources", index, key) for key in keys)

    name = parse_name(entry.resource)
    meant = resolve(name)
    if meant and not any(builtin.watchable for builtin in meant):
        yield Refusal(at("resource"), f"{meant[0].resource.qualified} cannot be listed and watched")
    if entry.namespaces and entry.exclude_namespaces:
        yield Refusal(
            at("excludeNamespaces", "namespaces"),
            "excludeNamespaces cannot stand with namespaces",
            "keep one of the two",
        )
    if entry.name and len(entry.namespaces) > 1:
        yield Refusal(
            at("name", "namespaces"),
            "name cannot stand with more than one namespace",
            "write an entry for each namespace",
        )
    if entry.name and re.search(r"(^|,)\s*metadata\.name\s*(=|!=)", entry.field_selector):
        yield Refusal(
            at("fieldSelector", "name"),
            "a field selector on metadata.name cannot stand with name",
            "keep one of the two",
        )
    if entry.name and name.wildcard:
        yield Refusal(
            at("name"), "name cannot stand with a wildcard: it names one object of one resource"
        )
    if entry.id and name.wildcard:
        yield Refusal(at("id"), "id cannot stand with a wildcard: it would name several streams")
    if entry.initial_list == "streaming" and not entry.bookmarks:
        yield Refusal(
            at("bookmarks", "initialList"),
            "bookmarks: false cannot stand with initialList: streaming, which ends in a bookmark",
        )
    if entry.initial_list == "streaming" and entry.list_semantic == "any":
        yield Refusal(
            at("listSemantic", "initialList"),
            "listSemantic: any cannot stand with initialList: streaming, always the newest",
        )
    if entry.include_secret_data and not is_secrets(entry):
        yield Refusal(
            at("includeSecretData"),
            f"includeSecretData is legal for secrets alone, not for {entry.resource}",
            "leave the key out",
        )


def _same_ids(planned: list[Planned]) -> Iterator[Refusal]:
    first: dict[str, Planned] = {}
    wild: dict[tuple[str | None, str | None], Planned] = {}
    named: dict[tuple[str | None, str | None], Planned] = {}
    for stream in planned:
        place = (stream.name.group, stream.namespace)
        if stream.name.wildcard and stream.builtin is None:
            wild.setdefault(place, stream)
        elif not stream.name.wildcard and not stream.entry.id:
            named.setdefault(place, stream)
    refused: set[int] = set()
    for stream in planned:
        other = first.setdefault(stream.id, stream)
        if other.index == stream.index:
            # A wildcard over a group that only discovery knows would make the streams named beside
            # it once more.
            place = (stream.name.group, stream.namespace)
            if stream.name.wildcard and stream.builtin is None:
                other = named.get(place, stream)
            elif not stream.name.wildcard and not stream.entry.id:
                other = wild.get(place, stream)
        if other.index >= stream.index or stream.index in refused:
            continue
        refused.add(stream.index)
        key = "id" if stream.entry.id else "resource"
        one_topic = stream.topic == other.topic or None in (stream.topic, other.topic)
        one_resource = stream.what == other.what or stream.name.wildcard or other.name.wildcard
        alike = one_topic and one_resource and reach_of(stream).meets(reach_of(other))
        yield Refusal(
            (("resources", stream.index, key), *_about(stream, other)),
            f'stream "{stream.id}" is a duplicate of that of resources[{other.index}]',
            f"give one of the two {'another' if stream.entry.id else 'an'} "
            f"id{' and another topic' if alike else ''}"
            f"{'' if stream.entry.id else ', or remove it'}",
        )


def _about(*streams: Planned) -> tuple[Path, ...]:
    """What decides the ids, topics and objects of `streams`: with one of these keys in doubt, so is
    what is said of them."""
    keys = (
        "resource",
        "id",
        "namespaces",
        "scope",
        "excludeNamespaces",
        "name",
        "labelSelector",
        "fieldSelector",
        "topic",
    )
    return tuple(("resources", stream.index, key) for stream in streams for key in keys)


def _topics(settings: Settings, planned: list[Planned]) -> Iterator[Refusal]:
    own = own_topics(settings)
    first: dict[str, Planned] = {}
    by_metric: dict[str, tuple[str, Path]] = {
        name.replace("_", "."): (name, ("kafka", "topicPrefix")) for name in own
    }
    refused: set[tuple[int, str]] = set()
    for stream in planned:
        topic = stream.topic
        if topic is None or (stream.index, topic) in refused:
            continue
        paths: tuple[Path, ...] = (
            ("resources", stream.index, "topic"),
            ("kafka", "topicTemplate"),
            ("resources", stream.index, "resource"),
        )
        other = first.setdefault(topic, stream)
        like, _ = by_metric.setdefault(topic.replace("_", "."), (topic, paths[0]))
        found: Refusal | None = None
        if topic in own:
            found = Refusal(
                paths, f'the topic "{topic}" is the relay\'s own, for {own[topic]}', "name another"
            )
        elif len(topic) > TOPIC_MAX:
            found = Refusal(
                paths,
                f'the topic "{topic[:40]}..." would have {len(topic)} characters: Kafka takes '
                f"{TOPIC_MAX}",
            )
        elif like != topic:
            found = Refusal(
                paths,
                f'the topics "{like}" and "{topic}" differ only in "." and "_", which Kafka '
                "refuses",
            )
        elif other.partitions != stream.partitions:
            found = Refusal(
                (
                    ("resources", stream.index, "partitions"),
                    ("resources", other.index, "partitions"),
                    *paths,
                ),
                f"{stream.partitions} here, but {other.partitions} in resources[{other.index}] "
                f'for the same topic "{topic}"',
                "say the same number in both",
            )
        if found:
            refused.add((stream.index, topic))
            yield replace(found, paths=(*found.paths, *_about(stream, other)))


def _same_objects(planned: list[Planned], duplicates: Collection[int | str]) -> Iterator[Refusal]:
    """Streams of one resource on one topic have disjoint keys: what one of them deletes would be
    deleted for the other too.

    Args:
        planned: the streams of the config.
        duplicates: the indexes of the entries that are refused already.
    """
    overlaps = Overlaps[Planned]()
    refused = set(duplicates)
    for stream in planned:
        if stream.index in refused:
            continue
        # A wildcard over a group that only discovery knows has each resource of the group, on the
        # topics of the entries that name none.
        topic = stream.entry.topic
        resource, wild, named = (
            (stream.topic or topic, stream.what),
            ("*", topic, stream.name.group),
            ("named", topic, stream.name.group),
        )
        is_wild = stream.name.wildcard and stream.builtin is None
        reach = reach_of(stream)
        found = [
            overlaps.first(group, reach)
            for group in ((wild, named) if is_wild else (resource, wild))
        ]
        for group in (wild,) if is_wild else (resource, named):
            overlaps.add(group, reach, stream)
        other = min((each for each in found if each), key=lambda each: each.index, default=None)
        if other is not None:
            refused.add(stream.index)
            where = (
                f'"{stream.topic or other.topic}"'
                if stream.topic or other.topic
                else "that the cluster decides"
            )
            paths: tuple[Path, ...] = (
                ("resources", stream.index, "topic"),
                ("resources", stream.index, "resource"),
            )
            yield Refusal(
                (*paths, *_about(stream, other)),
                f"can have the same objects as resources[{other.index}] on the same topic {where}",
                separate(namespaced=stream.builtin is None or stream.builtin.resource.namespaced),
                other=("resources", other.index),
            )


def later_paths() -> list[str]:
    """The keys of `LATER`, as people write them: for the documentation and its test."""
    return [show(row.path).replace(".*", "[]") for row in LATER]
