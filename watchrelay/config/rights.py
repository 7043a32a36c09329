"""The rights that a config needs in the cluster: `list` and `watch` of what it names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from watchrelay.config.settings import Settings
from watchrelay.config.streams import namespaces_of
from watchrelay.model.builtin import resolve
from watchrelay.model.names import parse_name

VERBS: Final = ("list", "watch")
DISCOVERY: Final = {
    "nonResourceURLs": ["/api", "/api/*", "/apis", "/apis/*", "/version"],
    "verbs": ["get"],
}
"""What the ClusterRole system:discovery grants, as far as the relay needs it."""


@dataclass(frozen=True, slots=True, order=True)
class Rule:
    """One RBAC rule: plurals, sorted, or ("*",); `names`, when not empty: only these objects."""

    group: str
    resources: tuple[str, ...]
    names: tuple[str, ...] = ()

    def manifest(self) -> dict[str, Any]:
        rule: dict[str, Any] = {"apiGroups": [self.group], "resources": list(self.resources)}
        if self.names:
            rule["resourceNames"] = list(self.names)
        return rule | {"verbs": list(VERBS)}


@dataclass(frozen=True, slots=True)
class Rights:
    """What must be granted, sorted; cluster-wide grants are not repeated in a namespace."""

    cluster: tuple[Rule, ...]
    namespaced: Mapping[str, tuple[Rule, ...]]


@dataclass(frozen=True, slots=True)
class Unresolved:
    """The entry at `index` cannot be granted offline: message and hint for the operator."""

    index: int
    message: str
    hint: str


_Grant = tuple[str, str, str]  # group, plural or "*", object name or ""


def rights(settings: Settings) -> tuple[Rights, list[Unresolved]]:
    """The rights of all entries, and the entries that cannot be granted offline.

    A list or watch with a field selector on metadata.name is matched against resourceNames
    (Kubernetes docs, "Using RBAC authorization: referring to resources")."""
    cluster: set[_Grant] = set()
    namespaced: dict[str, set[_Grant]] = {}
    unresolved: list[Unresolved] = []
    for index, entry in enumerate(settings.resources):
        found = _plural(entry.resource)
        if isinstance(found, str):
            unresolved.append(
                Unresolved(index, found, "write it as plural.group, such as widgets.example.com")
            )
            continue
        group, plural, scoped = found
        grant = (group, plural, entry.name)
        if not scoped and entry.namespaces:
            message = (
                f"{plural} is cluster-scoped: its entry stays pending as long as it has namespaces"
            )
            unresolved.append(Unresolved(index, message, "remove namespaces from the entry"))
            continue
        for namespace in namespaces_of(entry):
            (cluster if namespace is None else namespaced.setdefault(namespace, set())).add(grant)
    whole = {namespace: _rules(grants, cluster) for namespace, grants in sorted(namespaced.items())}
    return Rights(
        _rules(cluster, set()), {namespace: rules for namespace, rules in whole.items() if rules}
    ), unresolved


def _plural(text: str) -> tuple[str, str, bool] | str:
    """Group, plural and whether it is namespaced, as custom resources count; or why that is
    unknown."""
    name = parse_name(text)
    if name.wildcard:
        return name.group or "", "*", True
    found = resolve(name)
    if found:
        resource = found[0].resource
        return resource.group, resource.plural, resource.namespaced
    if name.group is None:
        return (
            f'"{text}" is not built into Kubernetes, so its group is unknown without asking '
            "a cluster"
        )
    if name.name != name.name.lower():
        return f'"{text}" is a Kind: RBAC knows resources by their plural alone'
    return name.group, name.name, True


def _rules(wanted: set[_Grant], already: set[_Grant]) -> tuple[Rule, ...]:
    """`wanted` without what `already` or a wider grant gives; a rule per group and object names."""
    granted = wanted | already
    names: dict[tuple[str, str], set[str]] = {}
    for group, plural, name in wanted - already:
        if not ({(group, "*", ""), (group, plural, "")} - {(group, plural, name)}) & granted:
            names.setdefault((group, plural), set()).add(name)
    plurals: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for (group, plural), objects in sorted(names.items()):
        plurals.setdefault((group, tuple(sorted(objects - {""}))), []).append(plural)
    return tuple(
        sorted(Rule(group, tuple(found), objects) for (group, objects), found in plurals.items())
    )


def manifests(
    granted: Rights, *, namespace: str, name: str, discovery: bool = False
) -> list[dict[str, Any]]:
    """ServiceAccount, roles and bindings for `kubectl apply`, that give the account
    `namespace`/`name` these rights and no others, with `discovery` also that of API discovery.
    Roles are named for the account, so that two relays in one cluster do not overwrite each
    other's."""
    labels = {"app.kubernetes.io/name": "watchrelay"}
    account = {"name": name, "namespace": namespace}
    made: list[dict[str, Any]] = [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account | {"labels": labels}}
    ]
    parts = [
        ("Role", {"namespace": where}, [rule.manifest() for rule in rules])
        for where, rules in granted.namespaced.items()
    ]
    cluster = [*([DISCOVERY] if discovery else []), *(rule.manifest() for rule in granted.cluster)]
    if cluster:
        parts.insert(0, ("ClusterRole", {}, cluster))
    group = "rbac.authorization.k8s.io"
    for kind, where, rules in parts:
        role = f"watchrelay:{namespace}:{name}"
        head = {
            "apiVersion": f"{group}/v1",
            "kind": kind,
            "metadata": {"name": role, **where, "labels": labels},
        }
        made.append(head | {"rules": rules})
        binding = {
            "kind": f"{kind}Binding",
            "roleRef": {"apiGroup": group, "kind": kind, "name": role},
            "subjects": [{"kind": "ServiceAccount", **account}],
        }
        made.append(head | binding)
    return made
