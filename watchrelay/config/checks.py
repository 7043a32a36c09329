"""Checks of settings as a whole: what cannot work, what may not be meant."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from pydantic import SecretStr

from watchrelay.config.settings import KafkaSecurity, ResourceEntry, Settings
from watchrelay.config.streams import Planned, is_secrets, own_topics, plan, separate
from watchrelay.config.tree import Path
from watchrelay.config.values import TOPIC_MAX
from watchrelay.core.text import counted
from watchrelay.model.builtin import GROUPS, known_names, resolve, served_in
from watchrelay.model.names import parse_name
from watchrelay.model.paths import Wild, covers, path_of
from watchrelay.model.reach import Overlaps


@dataclass(frozen=True, slots=True)
class Refusal:
    """A combination that cannot work: shown at the first of `paths` that was given, with the
    line of `other` too."""

    paths: tuple[Path, ...]
    message: str
    hint: str = ""
    other: Path = ()


def refusals(settings: Settings) -> Iterator[Refusal]:
    """Everything that is wrong about `settings` as a whole (`defaults` are merged)."""
    for keys, message, hint in _security(settings.kafka.security):
        yield Refusal(tuple(("kafka", "security", key) for key in keys), message, hint)
    kafka = settings.kafka
    if kafka.min_insync_replicas > kafka.replication_factor:
        default = "" if "min_insync_replicas" in kafka.model_fields_set else ", the default"
        yield Refusal(
            (("kafka", "minInsyncReplicas"), ("kafka", "replicationFactor")),
            f"minInsyncReplicas ({kafka.min_insync_replicas}{default}) is over replicationFactor "
            f"({kafka.replication_factor}): every write would fail",
            f"set minInsyncReplicas to {kafka.replication_factor} or less",
        )
    for index, entry in enumerate(settings.resources):
        for keys, message, hint in _entry(entry):
            yield Refusal(tuple(("resources", index, key) for key in keys), message, hint)
    planned = plan(settings)
    yield from _splits(planned)
    duplicates = list(_same_ids(planned))
    yield from duplicates
    yield from _topics(settings, planned)
    yield from _same_objects(planned, {refusal.paths[0][1] for refusal in duplicates})


Findings = Iterator[tuple[tuple[str, ...], str, str]]
"""Keys of one section, message and hint of each refusal."""


def _entry(entry: ResourceEntry) -> Findings:
    name = parse_name(entry.resource)
    meant = resolve(name)
    if meant and not any(builtin.watchable for builtin in meant):
        qualified = meant[0].resource.qualified
        yield ("resource",), f"{qualified} cannot be listed and watched", ""
    if entry.include_secret_data and not is_secrets(entry):
        message = f"includeSecretData is legal for secrets alone, not for {entry.resource}"
        yield ("includeSecretData",), message, "leave the key out"
    if entry.id and name.wildcard:
        yield ("id",), "id cannot be combined with a wildcard, which means several streams", ""
    if entry.name and name.wildcard:
        yield ("name",), "name cannot be combined with a wildcard: it names one object", ""
    together = "cannot be combined with"
    own_name = re.search(r"(^|,)\s*metadata\.name\s*(=|!=)", entry.field_selector)
    if entry.name and entry.split > 1:
        yield ("split", "name"), f"{together} name, which is a single object", "leave the key out"
    yield from _counted(entry)
    streaming = entry.initial_list == "streaming"
    if entry.namespaces and entry.exclude_namespaces:
        yield ("excludeNamespaces", "namespaces"), f"{together} namespaces", "keep one of the two"
    if entry.name and len(entry.namespaces) > 1:
        hint = "write an entry for each namespace"
        yield ("name", "namespaces"), f"{together} more than one namespace", hint
    if entry.name and own_name:
        hint = "keep one of the two"
        yield ("fieldSelector", "name"), f"metadata.name {together} name", hint
    if streaming and not entry.bookmarks:
        message = f"false {together} initialList: streaming, which ends in a bookmark"
        yield ("bookmarks", "initialList"), message, ""
    if streaming and entry.list_semantic == "any":
        message = f"any {together} initialList: streaming, always the newest"
        yield ("listSemantic", "initialList"), message, ""


def _counted(entry: ResourceEntry) -> Findings:
    """What is wrong about the paths that count, or do not."""
    ignored, published = entry.ignore_changes, entry.publish_when
    if ignored and published is not None:
        message = "cannot be combined with ignoreChanges"
        yield ("publishWhen", "ignoreChanges"), message, "keep one of the two"
    for key, paths in (("ignoreChanges", ignored), ("publishWhen", published)):
        if not (paths or (key == "publishWhen" and paths is not None)):
            continue
        if not entry.suppress_unchanged:
            message = f"false cannot be combined with {key}, which leaves changes out"
            yield ("suppressUnchanged", key), message, "keep one of the two"
        for text in paths or ():
            path = path_of(text)
            dropped = next((each for each in entry.drop if covers(path_of(each), path)), None)
            if dropped is not None:
                message = f"{text} is within {dropped} of drop: what is dropped never counts"
                yield (key, "drop"), message, "leave the path out"
            if entry.metadata_only and path[0] not in {"metadata", Wild.KEY}:
                message = f"{text} is outside metadata, and metadataOnly gets nothing else"
                yield (key, "metadataOnly"), message, "leave the path out"


# ---- kafka.security: what is missing, and what would be ignored (a forgotten `protocol` must not
# send secrets in clear)

_TLS_KEYS: Final = ("caFile", "certFile", "keyFile", "keyPasswordFile")
_LOGIN: Final = (("username", "usernameFile"), ("password", "passwordFile"))
_NEEDS: Final[dict[str, tuple[tuple[str, ...], ...]]] = {
    "PLAIN": _LOGIN,
    "SCRAM-SHA-256": _LOGIN,
    "SCRAM-SHA-512": _LOGIN,
    "OAUTHBEARER": (("tokenFile", "tokenCommand"),),
    "AWS_MSK_IAM": (("awsRegion",),),
}
"""By mechanism: of each group it needs one."""
_CREDENTIALS: Final = tuple(
    dict.fromkeys(key for groups in _NEEDS.values() for group in groups for key in group)
)


def _security(security: KafkaSecurity) -> Findings:
    given = {
        str(info.alias)
        for name, info in type(security).model_fields.items()
        if getattr(security, name) not in ("", None, (), SecretStr(""))
    }
    sasl, mechanism = security.protocol.startswith("SASL_"), security.mechanism
    nothing = f"means nothing with protocol {security.protocol}"
    if security.protocol not in ("SSL", "SASL_SSL"):
        cure = f"set protocol to {'SASL_SSL' if sasl else 'SSL'}"
        for key in _TLS_KEYS:
            if key in given:
                yield (key, "protocol"), nothing, cure
    for key, needed in (
        ("certFile", "keyFile"),
        ("keyFile", "certFile"),
        ("keyPasswordFile", "keyFile"),
    ):
        if key in given and needed not in given:
            yield (key, needed), f"needs {needed} too", ""
    if not sasl:
        without = [key for key in ("mechanism", *_CREDENTIALS) if key in given]
        if without:
            yield (without[0], "protocol"), nothing, "set protocol to SASL_SSL"
    elif mechanism is None:
        message, hint = f"{security.protocol} needs a mechanism", "such as SCRAM-SHA-512"
        yield ("protocol", "mechanism"), message, hint
    else:
        yield from _mechanism(security, mechanism, given)


def _mechanism(security: KafkaSecurity, mechanism: str, given: set[str]) -> Findings:
    groups = _NEEDS[mechanism]
    for key in _CREDENTIALS:
        if key in given and not any(key in group for group in groups):
            yield (key, "mechanism"), f"means nothing with mechanism {mechanism}", ""
    for group in groups:
        keys = [key for key in group if key in given]
        if not keys:
            needs = f"mechanism {mechanism} needs {' or '.join(group)}"
            yield ("mechanism", *group), needs, ""
        elif len(keys) > 1:
            yield (group[1], group[0]), f"cannot be combined with {group[0]}", "keep one of the two"
    if mechanism == "AWS_MSK_IAM" and security.protocol != "SASL_SSL":
        yield ("protocol", "mechanism"), "mechanism AWS_MSK_IAM needs protocol SASL_SSL", ""


# ---- entries that cannot be beside one another ---------------------------------------------------


def _same_ids(planned: list[Planned]) -> Iterator[Refusal]:
    first: dict[object, Planned] = {}
    refused: set[int] = set()
    for stream in planned:
        # A wildcard over a group that only discovery knows would make the streams named beside it
        # once more.
        wild, named = (
            (kind, stream.name.group, stream.namespace) for kind in ("wildcard", "named")
        )
        own: list[object] = [stream.id]
        beside: list[object] = [stream.id]
        if _is_wild(stream):
            own, beside = [*own, wild], [*beside, named]
        elif not stream.name.wildcard and not stream.entry.id:
            own, beside = [*own, named], [*beside, wild]
        others = [first[key] for key in beside if key in first]
        for key in own:
            first.setdefault(key, stream)
        other = next((each for each in others if each.index < stream.index), None)
        if other is not None and stream.index not in refused:
            refused.add(stream.index)
            key = "id" if stream.entry.id else "resource"
            yield Refusal(
                (("resources", stream.index, key), *_about(stream, other)),
                f'stream "{stream.id}" is a duplicate of that of resources[{other.index}]',
                "give one of the two another id, or remove it",
            )


def _splits(planned: list[Planned]) -> Iterator[Refusal]:
    """A part needs a partition."""
    for index, stream in {stream.index: stream for stream in planned}.items():
        if stream.entry.split > stream.partitions:
            yield Refusal(
                (("resources", index, "split"), ("resources", index, "partitions")),
                f"{stream.entry.split} is over the {counted(stream.partitions, 'partition')} of "
                "the topic: a part without a partition has nothing to write",
                f"set split to {stream.partitions} or less, or partitions to {stream.entry.split} "
                "or more for a topic that does not exist yet",
            )


def _is_wild(stream: Planned) -> bool:
    """Whether it is a wildcard over a group that only discovery knows."""
    return stream.name.wildcard and stream.builtin is None


_IDENTITY: Final = (
    "resource",
    "id",
    "namespaces",
    "scope",
    "excludeNamespaces",
    "name",
    "fieldSelector",
    "topic",
)


def _about(*streams: Planned) -> tuple[Path, ...]:
    """The keys that decide about `streams`: where one of them is wrong itself, this is not
    reported."""
    return tuple(("resources", stream.index, key) for stream in streams for key in _IDENTITY)


def _topics(settings: Settings, planned: list[Planned]) -> Iterator[Refusal]:
    own = own_topics(settings)
    first: dict[str, Planned] = {}
    by_metric = {name.replace("_", "."): name for name in own}
    refused: set[tuple[int, str]] = set()
    for stream in planned:
        topic = stream.topic
        if topic is None or (stream.index, topic) in refused:
            continue
        at: Path = ("resources", stream.index)
        other = first.setdefault(topic, stream)
        like = by_metric.setdefault(topic.replace("_", "."), topic)
        hint, keys = "", tuple[Path, ...]()
        if topic in own:
            message = f'the topic "{topic}" is the relay\'s own, for {own[topic]}'
            hint = "name another"
        elif len(topic) > TOPIC_MAX:
            message = (
                f'the topic "{topic[:40]}..." would have {len(topic)} characters: Kafka takes '
                f"{TOPIC_MAX}"
            )
        elif like != topic:
            message = (
                f'the topics "{like}" and "{topic}" differ only in "." and "_", which Kafka refuses'
            )
        elif other.partitions != stream.partitions:
            message = (
                f"{stream.partitions} here, but {other.partitions} in resources[{other.index}] "
                f'for the same topic "{topic}"'
            )
            hint = "set the same number in both"
            keys = ((*at, "partitions"), ("resources", other.index, "partitions"))
        else:
            continue
        refused.add((stream.index, topic))
        paths = (*keys, (*at, "topic"), ("kafka", "topicTemplate"), (*at, "resource"))
        yield Refusal((*paths, *_about(stream, other)), message, hint)


def _same_objects(planned: list[Planned], duplicates: Collection[int | str]) -> Iterator[Refusal]:
    """Streams of one resource on one topic must have disjoint objects: a tombstone of one would
    delete the object of the other. `duplicates`: the entries that are refused already."""
    overlaps = Overlaps[Planned]()
    refused = set(duplicates)
    for stream in planned:
        if stream.index in refused:
            continue
        # A wildcard over a group that only discovery knows has each resource of the group, on the
        # topics of the entries that name none.
        topic, group, reach = stream.entry.topic, stream.name.group, stream.reach
        resource, wild, named = (
            (stream.topic or topic, stream.what),
            ("*", topic, group),
            ("named", topic, group),
        )
        wanted, own = (
            ((wild, named), (wild,)) if _is_wild(stream) else ((resource, wild), (resource, named))
        )
        found = [overlaps.first(each, reach) for each in wanted]
        for each in own:
            overlaps.add(each, reach, stream)
        other = min((each for each in found if each), key=lambda each: each.index, default=None)
        if other is not None:
            refused.add(stream.index)
            shared = stream.topic or other.topic
            where = f'"{shared}"' if shared else "that the cluster decides"
            at: Path = ("resources", stream.index)
            yield Refusal(
                ((*at, "topic"), (*at, "resource"), *_about(stream, other)),
                f"can have the same objects as resources[{other.index}] on the same topic {where}",
                separate(namespaced=stream.builtin is None or stream.builtin.resource.namespaced),
                other=("resources", other.index),
            )


# ---- warnings ------------------------------------------------------------------------------------


class Warned(NamedTuple):
    """Something legal that may not be meant. `name` is the same in each release: `acceptWarnings`
    takes it."""

    name: str
    path: Path
    message: str
    hint: str = ""


WARNINGS: Final = (
    "unencrypted",
    "hostname-unchecked",
    "password-in-config",
    "one-replica",
    "all-namespaces",
    "events-twice",
    "version-unknown",
    "not-built-in",
    "resource-unknown",
    "resource-ambiguous",
    "cluster-scoped",
    "secret-data",
    "accepted-unknown",
)
"""Of the config alone."""
CHECKED: Final = (
    "topic-absent",
    "topic-config",
    "topic-replication.factor",
    "topic-cleanup.policy",
    "topic-retention.ms",
    "topic-retention.bytes",
    "topic-min.compaction.lag.ms",
    "topic-max.compaction.lag.ms",
    "topic-delete.retention.ms",
    "topic-local.retention.ms",
    "topic-local.retention.bytes",
    "topic-message.timestamp.type",
    "topic-message.timestamp.before.max.ms",
    "topic-message.timestamp.after.max.ms",
    "topic-message.timestamp.difference.max.ms",
    "topic-max.message.bytes",
    "topic-segment.bytes",
    "topic-compression.type",
    "topic-min.insync.replicas",
    "topic-unclean.leader.election.enable",
    "resource-not-served",
    "rights-describe-configs",
    "stream-empty-namespace",
)
"""Of cluster and Kafka, with `--connect`: those of topics have the names of their settings."""


def warnings(settings: Settings) -> Iterator[Warned]:
    """What is legal, and may not be meant."""
    security = settings.kafka.security
    at: Path = ("kafka", "security")
    if security.protocol == "SASL_PLAINTEXT":
        message = "credentials and records cross the network unencrypted"
        yield Warned("unencrypted", (*at, "protocol"), message, "SASL_SSL encrypts them")
    if not security.check_hostname and security.protocol in ("SSL", "SASL_SSL"):
        message = "any host with a certificate of that authority can pose as a broker"
        yield Warned("hostname-unchecked", (*at, "checkHostname"), message)
    if security.password is not None:
        message = "the password is written in the config"
        hint = "passwordFile keeps it out"
        yield Warned("password-in-config", (*at, "password"), message, hint)
    if settings.kafka.replication_factor == 1:
        message = "one copy: records are lost with their broker"
        hint = "fine for a test; 3 elsewhere"
        yield Warned("one-replica", ("kafka", "replicationFactor"), message, hint)
    planned = plan(settings)
    for stream in {stream.index: stream for stream in planned}.values():
        yield from _surprises(stream)
    yield from _events_twice(planned)
    for index, name in enumerate(settings.accept_warnings):
        if name not in (known := (*WARNINGS, *CHECKED)):
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]}?" if close else "remove it"
            message = f"no warning has the name {name}"
            yield Warned("accepted-unknown", ("acceptWarnings", index), message, hint)


def _events_twice(planned: Sequence[Planned]) -> Iterator[Warned]:
    """The first two entries that publish the same Events: the API server has them in two groups."""
    events = [
        stream
        for stream in planned
        if stream.builtin is not None
        and stream.builtin.resource.plural == "events"
        and stream.builtin.resource.group in _EVENT_GROUPS
    ]
    earlier = dict[str, Overlaps[Planned]]()
    for stream in events:
        assert stream.builtin is not None
        group = stream.builtin.resource.group
        for other_group in _EVENT_GROUPS - {group}:
            overlaps = earlier.get(other_group)
            other = overlaps.first("events", stream.reach) if overlaps else None
            if other is not None:
                message = (
                    f"the same objects as {other.what} of resources[{other.index}]: the API server "
                    "has Events in two groups, and each is published twice"
                )
                path: Path = ("resources", stream.index, "resource")
                yield Warned("events-twice", path, message, "keep one of the two")
                return
        earlier.setdefault(group, Overlaps[Planned]()).add("events", stream.reach, stream)


_EVENT_GROUPS: Final = frozenset({"", "events.k8s.io"})


def _surprises(stream: Planned) -> Iterator[Warned]:
    name, entry, found = stream.name, stream.entry, resolve(stream.name)
    at: Path = ("resources", stream.index)
    if not entry.namespaces and "namespaces" in entry.model_fields_set:
        message = "an empty list means all namespaces"
        hint = "leave the key out if that is meant, else name namespaces"
        yield Warned("all-namespaces", (*at, "namespaces"), message, hint)
    if not found:
        yield from _not_built_in(stream, (*at, "resource"))
    elif not name.wildcard:
        first, *others = (builtin.resource for builtin in found)
        if others:
            message = f"{entry.resource} means {first.qualified} here, as for kubectl"
            hint = f"not {', '.join(each.qualified for each in others)}"
            yield Warned("resource-ambiguous", (*at, "resource"), message, hint)
        scoped = f"{first.qualified} is cluster-scoped"
        if entry.namespaces and not first.namespaced:
            message = f"{scoped}: the stream would never start"
            yield Warned("cluster-scoped", (*at, "namespaces"), message, "remove namespaces")
        if entry.exclude_namespaces and not first.namespaced:
            message = f"{scoped}: the server refuses that selector"
            yield Warned("cluster-scoped", (*at, "excludeNamespaces"), message, "remove it")
    if entry.include_secret_data:
        message = "the payload of Secrets will be on the topic in clear text"
        yield Warned("secret-data", (*at, "includeSecretData"), message)


def _not_built_in(stream: Planned, at: Path) -> Iterator[Warned]:
    name = stream.name
    close = difflib.get_close_matches(name.name.lower(), known_names(), n=1, cutoff=0.75)
    near = f"did you mean {close[0]}?" if close else ""
    versions = [
        each.resource.version
        for each in served_in(name.name)
        if name.group in (None, each.resource.group)
    ]
    if versions:
        message = f"Kubernetes 1.36 does not serve {stream.what} in {name.version}"
        yield Warned("version-unknown", at, message, f"it does in {', '.join(versions)}")
    elif name.group is None:
        message = f"{stream.what} is not built into Kubernetes: only a cluster can resolve it"
        yield Warned("not-built-in", at, message, near)
    elif name.group in GROUPS and not name.wildcard:
        yield Warned("resource-unknown", at, f"Kubernetes 1.36 has no {stream.what}", near)
