"""The streams and topics of a config, as far as they follow from it alone, without asking an API server.

Room: config. In: settings, defaults merged. Out: one `Planned` per stream, with what is known of its id and topic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from watchrelay.config.settings import ResourceEntry, Settings
from watchrelay.model.builtin import GROUPS, Builtin, resolve
from watchrelay.model.names import ResourceName, parse_name

CORE = "core"
"""What stands for the core group in a topic's name."""


@dataclass(frozen=True, slots=True)
class Planned:
    """One stream of one entry.

    Shape: `index` is the entry's place in `resources`; `what` is the qualified resource (`deployments.apps`), or the name as written
    where only discovery knows it (then `builtin` is None); `topic` is None where it cannot be known; `namespace` None: all, or filtered.
    """

    index: int
    entry: ResourceEntry
    name: ResourceName
    builtin: Builtin | None
    what: str
    id: str
    namespace: str | None
    topic: str | None
    partitions: int


def plan(settings: Settings) -> list[Planned]:
    """Every stream of the config, in its order; a wildcard over a group that is not built in is one of them, named as written."""
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
                    id=(entry.id or what) + (f"@{namespace}" if namespace else ""),
                    namespace=namespace,
                    topic=topic,
                    partitions=entry.partitions or settings.kafka.partitions,
                )
                for namespace in namespaces_of(entry)
            )
    return planned


def namespaces_of(entry: ResourceEntry) -> Sequence[str | None]:
    """One item per watch of the entry: a namespace, or None for a watch of all (filtered on arrival where `scope` is cluster)."""
    return entry.namespaces if entry.namespaces and entry.scope == "namespace" else (None,)


def topic_of(settings: Settings, entry: ResourceEntry, name: ResourceName, builtin: Builtin | None) -> str | None:
    """The topic of an entry's records; None where the template needs what only discovery knows."""
    if entry.topic:
        return entry.topic
    template = settings.kafka.topic_template
    if builtin is not None:
        group, resource = builtin.resource.group or CORE, builtin.resource.plural
    elif name.group and not name.wildcard:
        group, resource = name.group, name.name.lower()
    elif "{resource}" not in template and ("{group}" not in template or name.group):
        group, resource = name.group or "", ""
    else:
        return None
    return template.format(prefix=settings.kafka.topic_prefix, cluster=settings.cluster, group=group, resource=resource)


def own_topics(settings: Settings) -> dict[str, str]:
    """The relay's own topics: name -> what it holds. Source: the record contract, section 2."""
    base = f"{settings.kafka.topic_prefix}.{settings.cluster}"
    return {f"{base}.control": "claims and snapshots", f"{base}.signal": "consumers' requests", f"{base}.shards": "the replicas' shares"}


def is_secrets(entry: ResourceEntry) -> bool:
    """True when the entry means Secrets, by name."""
    name = parse_name(entry.resource)
    return not name.wildcard and any((b.resource.group, b.resource.plural) == ("", "secrets") for b in resolve(name))


def _meanings(name: ResourceName) -> list[tuple[Builtin | None, str]]:
    found = resolve(name)
    if name.wildcard and name.group in GROUPS:
        return [(builtin, builtin.resource.qualified) for builtin in found]
    if found:
        return [(found[0], found[0].resource.qualified)]
    return [(None, f"{name.name.lower()}.{name.group}" if name.group else name.name.lower())]
