"""Checks over several keys: combinations that cannot work, and keys of a later release."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from pydantic import SecretStr

from watchrelay.config.grammar import TOPIC_MAX
from watchrelay.config.keys import field_name
from watchrelay.config.settings import KafkaSecurity, ResourceEntry, Settings
from watchrelay.config.streams import Planned, is_secrets, own_topics, plan, reach_of, separate
from watchrelay.config.tree import Path
from watchrelay.model.builtin import resolve
from watchrelay.model.names import parse_name
from watchrelay.model.reach import Overlaps


@dataclass(frozen=True, slots=True)
class Refusal:
    """A combination that cannot work.

    Attributes:
        paths: the keys it is about; it is shown at the first of them that was given.
        other: a second place, whose line is shown too.
    """

    paths: tuple[Path, ...]
    message: str
    hint: str = ""
    other: Path = ()


@dataclass(frozen=True, slots=True)
class Later:
    """A key that this release supports only in part.

    Attributes:
        only: the values it accepts; none: it must not be given.
        written: those values as a file has them.
    """

    path: tuple[str, ...]
    only: tuple[object, ...] = ()
    written: str = ""


LATER: Final = (
    Later(("kafka", "delivery"), only=("idempotent",), written="idempotent"),
    Later(("sharding", "enabled"), only=(False,), written="false"),
    Later(("sharding", "sessionTimeout")),
)
"""What comes with a later release; remove the row when the behaviour arrives."""


def refusals(settings: Settings, given: Callable[[Path], bool]) -> Iterator[Refusal]:
    """Everything that is wrong about `settings` as a whole.

    Args:
        settings: with `defaults` merged.
        given: whether a source sets the key at a path.
    """
    yield from _later(settings, given)
    yield from _security(settings.kafka.security)
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


def _later(settings: Settings, given: Callable[[Path], bool]) -> Iterator[Refusal]:
    for row in LATER:
        value: Any = settings
        for key in row.path:
            value = getattr(value, field_name(value, key))
        if not given(row.path) or value in row.only:
            continue
        if not row.only:
            yield Refusal((row.path,), "comes with a later release", "leave the key out")
        else:
            shown = f"{value} " if isinstance(value, str) else ""
            yield Refusal(
                (row.path,), f"{shown}comes with a later release", f"in this one: {row.written}"
            )


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
            "excludeNamespaces cannot be combined with namespaces",
            "keep one of the two",
        )
    if entry.name and len(entry.namespaces) > 1:
        yield Refusal(
            at("name", "namespaces"),
            "name cannot be combined with more than one namespace",
            "write an entry for each namespace",
        )
    if entry.name and re.search(r"(^|,)\s*metadata\.name\s*(=|!=)", entry.field_selector):
        yield Refusal(
            at("fieldSelector", "name"),
            "a field selector on metadata.name cannot be combined with name",
            "keep one of the two",
        )
    if entry.name and name.wildcard:
        yield Refusal(
            at("name"),
            "name cannot be combined with a wildcard: it names one object of one resource",
        )
    if entry.id and name.wildcard:
        yield Refusal(
            at("id"), "id cannot be combined with a wildcard: it would name several streams"
        )
    if entry.initial_list == "streaming" and not entry.bookmarks:
        yield Refusal(
            at("bookmarks", "initialList"),
            "bookmarks: false cannot be combined with initialList: streaming, which ends in a "
            "bookmark",
        )
    if entry.initial_list == "streaming" and entry.list_semantic == "any":
        yield Refusal(
            at("listSemantic", "initialList"),
            "listSemantic: any cannot be combined with initialList: streaming, always the newest",
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
    """The keys that decide ids, topics and objects of `streams`: where one of them is wrong itself,
    the refusal is not reported."""
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
                "set the same number in both",
            )
        if found:
            refused.add((stream.index, topic))
            yield replace(found, paths=(*found.paths, *_about(stream, other)))


def _same_objects(planned: list[Planned], duplicates: Collection[int | str]) -> Iterator[Refusal]:
    """Streams of one resource on one topic must have disjoint objects: a tombstone of one would
    delete the object of the other.

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


# ---- kafka.security: what is missing, and what would be ignored (a forgotten `protocol` must not
# send secrets in clear)

_TLS_KEYS = ("caFile", "certFile", "keyFile", "keyPasswordFile")
_LOGIN_KEYS = ("username", "usernameFile", "password", "passwordFile")
_TOKEN_KEYS = ("tokenFile", "tokenCommand")


def _security(security: KafkaSecurity) -> Iterator[Refusal]:
    given = _given(security)
    sasl = security.protocol.startswith("SASL_")
    if security.protocol not in ("SSL", "SASL_SSL"):
        for key in _TLS_KEYS:
            if key in given:
                cure = "SASL_SSL" if sasl else "SSL"
                yield Refusal(
                    _security_keys(key, "protocol"),
                    f"means nothing with protocol {security.protocol}",
                    f"set protocol to {cure}",
                )
    if ("certFile" in given) != ("keyFile" in given):
        missing, there = ("keyFile", "certFile") if "certFile" in given else ("certFile", "keyFile")
        yield Refusal(_security_keys(there, missing), f"needs {missing} too")
    elif "keyPasswordFile" in given and "keyFile" not in given:
        yield Refusal(_security_keys("keyPasswordFile", "keyFile"), "needs keyFile too")
    if sasl and security.mechanism is None:
        yield Refusal(
            _security_keys("protocol", "mechanism"),
            f"{security.protocol} needs a mechanism",
            "set mechanism, such as SCRAM-SHA-512",
        )
    elif not sasl and (
        keys := [
            key for key in ("mechanism", *_LOGIN_KEYS, *_TOKEN_KEYS, "awsRegion") if key in given
        ]
    ):
        yield Refusal(
            _security_keys(keys[0], "protocol"),
            f"means nothing with protocol {security.protocol}",
            "set protocol to SASL_SSL",
        )
    elif sasl:
        yield from _mechanism(security, given)


def _mechanism(security: KafkaSecurity, given: set[str]) -> Iterator[Refusal]:
    mechanism = security.mechanism
    login = mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
    allowed = (
        _LOGIN_KEYS if login else _TOKEN_KEYS if mechanism == "OAUTHBEARER" else ("awsRegion",)
    )
    for key in (*_LOGIN_KEYS, *_TOKEN_KEYS, "awsRegion"):
        if key in given and key not in allowed:
            yield Refusal(
                _security_keys(key, "mechanism"), f"means nothing with mechanism {mechanism}"
            )
    if login:
        yield from _one_of(given, "username", "usernameFile", f"mechanism {mechanism} needs")
        yield from _one_of(given, "password", "passwordFile", f"mechanism {mechanism} needs")
    elif mechanism == "OAUTHBEARER":
        yield from _one_of(given, "tokenFile", "tokenCommand", "mechanism OAUTHBEARER needs")
    elif mechanism == "AWS_MSK_IAM":
        if "awsRegion" not in given:
            yield Refusal(
                _security_keys("mechanism", "awsRegion"), "mechanism AWS_MSK_IAM needs awsRegion"
            )
        if security.protocol != "SASL_SSL":
            yield Refusal(
                _security_keys("protocol", "mechanism"),
                "mechanism AWS_MSK_IAM needs protocol SASL_SSL",
            )


def _one_of(given: set[str], one: str, other: str, needs: str) -> Iterator[Refusal]:
    if one in given and other in given:
        yield Refusal(
            _security_keys(other, one),
            f"{other} cannot be combined with {one}",
            "keep one of the two",
        )
    elif one not in given and other not in given:
        yield Refusal(_security_keys("mechanism", one, other), f"{needs} {one} or {other}")


def _given(security: KafkaSecurity) -> set[str]:
    """The keys that hold something, as the file writes them."""
    fields = type(security).model_fields
    return {
        str(info.alias)
        for name, info in fields.items()
        if getattr(security, name) not in ("", None, (), SecretStr(""))
    }


def _security_keys(*keys: str) -> tuple[Path, ...]:
    return tuple(("kafka", "security", key) for key in keys)
