"""The streams and topics of a config, as far as they are known without an API server."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from watchrelay.config.settings import DEFAULT_PARTITIONS, ResourceEntry, Settings
from watchrelay.model.builtin import GROUPS, resolve
from watchrelay.model.names import ResourceName, parse_name
from watchrelay.model.reach import Reach, reach_of
from watchrelay.model.resources import Resource, ServedResource

CORE = "core"
"""The core group in a topic's name."""


def separate(*, namespaced: bool) -> str:
    """The cure for two streams of one resource on one topic."""
    return (
        "give one of the two another "
        f"`topic`{', or both disjoint `namespaces`' if namespaced else ''}; "
        "label and field selectors do not separate them: an object that changes moves from "
        "one to the other"
    )


@dataclass(frozen=True, slots=True)
class Planned:
    """One stream of one entry.

    Attributes:
        index: the entry's place in `resources`.
        builtin: None where only discovery knows the resource.
        what: the qualified resource (`deployments.apps`), or its name as written.
        namespace: None: all, or filtered.
        topic: None where only discovery can decide it."""

    index: int
    entry: ResourceEntry
    name: ResourceName
    builtin: ServedResource | None
    what: str
    id: str
    namespace: str | None
    topic: str | None
    partitions: int

    @property
    def reach(self) -> Reach:
        """Which objects it can have."""
        return reach_of(selectors_of(self.entry, self.namespace))

    @property
    def certain(self) -> bool:
        """Whether the id is known without a cluster."""
        return (
            self.builtin is not None
            or bool(self.entry.id)
            or (self.name.group is not None and _plural(self.name))
        )

    @property
    def may_be_short(self) -> bool:
        """Whether the name is neither a plural nor a kind, and so may be a short name."""
        return self.builtin is None and self.name.name.islower() and not _plural(self.name)


def plan(settings: Settings) -> list[Planned]:
    """Every stream, in the config's order; a wildcard over a group that is not built in is one
    of them."""
    planned: list[Planned] = []
    for index, entry in enumerate(settings.resources):
        name = parse_name(entry.resource)
        for builtin, what in _meanings(name):
            topic = topic_of(settings, entry, name, builtin)
            planned.extend(
                Planned(
                    index=index,
                    entry=entry,
                    name=name,
                    builtin=builtin,
                    what=what,
                    id=stream_id(entry, what, namespace),
                    namespace=namespace,
                    topic=topic,
                    partitions=asked_partitions(settings, entry) or DEFAULT_PARTITIONS,
                )
                for namespace in namespaces_of(entry)
            )
    return planned


def namespaces_of(entry: ResourceEntry) -> Sequence[str | None]:
    """One per watch of the entry: a namespace, or None for all (filtered where `scope` is
    cluster)."""
    return entry.namespaces if entry.namespaces and entry.scope == "namespace" else (None,)


def stream_id(entry: ResourceEntry, resource: str, namespace: str | None) -> str:
    """What the stream of an entry is called. Args: resource: qualified, or as written."""
    return (entry.id or resource) + (f"@{namespace}" if namespace else "")


def asked_partitions(settings: Settings, entry: ResourceEntry) -> int | None:
    """The partitions that the config sets for an entry; None: those of the topic, or the
    default."""
    return entry.partitions or settings.kafka.partitions


def field_selector(entry: ResourceEntry, namespace: str | None) -> str:
    """The entry's field selector with what `name` and `excludeNamespaces` add to it."""
    terms = [entry.field_selector] if entry.field_selector else []
    if entry.name:
        terms.append(f"metadata.name={entry.name}")
    if namespace is None:
        terms.extend(f"metadata.namespace!={excluded}" for excluded in entry.exclude_namespaces)
    return ",".join(terms)


def selectors_of(entry: ResourceEntry, namespace: str | None) -> dict[str, object]:
    """Which objects of its resource a stream has, as its description on the control topic says."""
    return {
        "labelSelector": entry.label_selector or "",
        "fieldSelector": field_selector(entry, namespace),
        "namespaces": [namespace] if namespace else sorted({*entry.namespaces}),
    }


def topic_of(
    settings: Settings, entry: ResourceEntry, name: ResourceName, builtin: ServedResource | None
) -> str | None:
    """The topic of an entry's records; None where the template needs what only discovery knows."""
    if entry.topic:
        return entry.topic
    template = settings.kafka.topic_template
    if builtin is not None:
        return resource_topic(settings, entry, builtin.resource)
    if name.group and _plural(name):
        return _from_template(settings, name.group, name.name)
    if "{resource}" not in template and ("{group}" not in template or name.group):
        return _from_template(settings, name.group or "", "")
    return None


def resource_topic(settings: Settings, entry: ResourceEntry, resource: Resource) -> str:
    """The topic of an entry's records for one resource."""
    return entry.topic or _from_template(settings, resource.group or CORE, resource.plural)


def _from_template(settings: Settings, group: str, resource: str) -> str:
    kafka = settings.kafka
    return kafka.topic_template.format(
        prefix=kafka.topic_prefix, cluster=settings.cluster, group=group, resource=resource
    )


def shared_topics(
    settings: Settings, found: Iterable[tuple[ResourceEntry, Sequence[Resource]]]
) -> set[str]:
    """The topics that several resources share or may come to share; their keys begin with the
    resource. An entry counts whether or not its resource is served; a wildcard counts as several.
    `found`: entries with the resources they are resolved to; none: not (yet)."""
    by_name = "{resource}" in settings.kafka.topic_template
    shared: dict[str, set[str]] = {}
    custom: set[str] = set()
    anywhere: set[str] = set()
    for entry, resources in found:
        # The version is no part of what a resource is.
        name = replace(parse_name(entry.resource), version="")
        if name.wildcard and (entry.topic or not by_name):
            places = [(topic_of(settings, entry, name, None), what) for what in ("", str(name))]
        elif resources:
            places = [(resource_topic(settings, entry, each), each.qualified) for each in resources]
        else:
            places = [
                (topic_of(settings, entry, name, builtin), what)
                for builtin, what in _meanings(name)
            ]
        groups = {each.group for each in resources} or {name.group or ""}
        for topic, what in places:
            if topic is not None:
                shared.setdefault(topic, set()).add(what)
                if not entry.topic and groups - GROUPS:
                    custom.add(topic)
            elif not by_name:
                # a name without a group, of no built-in resource: it may be of any group but a
                # built-in one
                anywhere.add(what)
    return {
        topic
        for topic, names in shared.items()
        if len(names | anywhere if topic in custom else names) > 1
    }


def own_topics(settings: Settings) -> dict[str, str]:
    """The relay's own topics: name -> what it holds. Source: the record contract, section 2."""
    return {
        control_topic(settings): "claims and snapshots",
        signal_topic(settings): "consumers' requests",
    }


def control_topic(settings: Settings) -> str:
    """The topic of claims, stream descriptions and the snapshot index."""
    return f"{settings.kafka.topic_prefix}.{settings.cluster}.control"


def signal_topic(settings: Settings) -> str:
    """The topic of consumers' requests."""
    return f"{settings.kafka.topic_prefix}.{settings.cluster}.signal"


def is_secrets(entry: ResourceEntry) -> bool:
    """True when the entry means Secrets, by name."""
    name = parse_name(entry.resource)
    return not name.wildcard and any(
        (b.resource.group, b.resource.plural) == ("", "secrets") for b in resolve(name)
    )


def what_counts(entry: ResourceEntry) -> str:
    """Which changes of an object are published, in words; "" where all are."""
    if entry.ignore_changes:
        return f"all but {', '.join(entry.ignore_changes)}"
    if entry.publish_when is None:
        return ""
    return ", ".join(entry.publish_when) or "none, only adds and deletes"


def may_mean(planned: Planned, stream: str) -> bool:
    """Whether an entry means `stream`, or may mean it as far as is known without a cluster."""
    if planned.id == stream:
        return True
    if planned.builtin is not None or planned.entry.id:
        return False
    base, _, namespace = stream.partition("@")
    plural, _, group = base.partition(".")
    if namespace != (planned.namespace or "") or planned.name.group not in (None, group):
        return False
    if planned.name.wildcard or planned.name.name.lower() in called(plural):
        return True
    return planned.may_be_short and group not in GROUPS  # short names of those are known


def called(plural: str) -> set[str]:
    """A plural, and the singulars that it may be the plural of."""
    return {
        plural,
        plural.removesuffix("s"),
        plural.removesuffix("es"),
        plural.removesuffix("ies") + "y",
    }


def _plural(name: ResourceName) -> bool:
    """Whether the name can be a plural: a kind has capitals, and hardly a singular ends in one
    s."""
    return (
        not name.wildcard
        and name.name.islower()
        and name.name.endswith("s")
        and not name.name.endswith("ss")
    )


def _meanings(name: ResourceName) -> list[tuple[ServedResource | None, str]]:
    found = resolve(name)
    if name.wildcard and name.group in GROUPS:
        return [(builtin, builtin.resource.qualified) for builtin in found]
    if found:
        return [(found[0], found[0].resource.qualified)]
    return [(None, f"{name.name.lower()}.{name.group}" if name.group else name.name.lower())]
