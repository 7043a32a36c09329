"""Which resources a synthetic cluster serves, and how it says so.

The built-in resources, and CustomResourceDefinitions that come and go: what a path means, and
discovery documents in the aggregated (v2) and in the legacy form. Source: docs/watch-facts.md
8.1-8.2, KEP-3352.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from watchrelay.demo.storage import Refused
from watchrelay.model.builtin import BUILTIN
from watchrelay.model.resources import Resource

CRDS = "customresourcedefinitions.apiextensions.k8s.io"
AGGREGATED_TYPE = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
_VERBS = ["create", "delete", "get", "list", "update", "watch"]


@dataclass(frozen=True, slots=True)
class Served:
    """One resource. `resource` is the version that objects are stored in; `versions` are all
    served, preferred first."""

    resource: Resource
    singular: str
    short_names: tuple[str, ...] = ()
    versions: tuple[str, ...] = ()
    custom: bool = False

    @property
    def name(self) -> str:
        """The collection in the storage: `pods`, `orders.shop.example.com`."""
        return self.resource.qualified

    def api_version(self, version: str) -> str:
        """As objects asked for in `version` carry it."""
        return f"{self.resource.group}/{version}" if self.resource.group else version


@dataclass(slots=True)
class Catalog:
    """Everything served now. `stale` holds (group, version) pairs whose backing server is away, as
    aggregated discovery shows it."""

    stale: set[tuple[str, str]] = field(default_factory=set)
    _served: dict[str, Served] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for entry in BUILTIN:
            resource = entry.resource
            if entry.watchable and resource.qualified not in self._served:
                served = Served(resource, entry.singular, entry.short_names, (resource.version,))
                self._served[served.name] = served

    def __iter__(self) -> Iterator[Served]:
        return iter(self._served.values())

    def named(self, name: str) -> Served:
        """The resource of that qualified name; it must be served."""
        return self._served[name]

    def find(self, group: str, version: str, plural: str) -> Served | None:
        """What a path means; None when it is not served, or not in this version."""
        served = self._served.get(f"{plural}.{group}" if group else plural)
        return served if served is not None and version in served.versions else None

    def define(self, definition: Mapping[str, Any]) -> Served:
        """Serves what a CustomResourceDefinition defines, in place of what it defined before.
        Raises: Refused 422."""
        try:
            spec, names = definition["spec"], definition["spec"]["names"]
            versions = [
                version["name"] for version in spec["versions"] if version.get("served", True)
            ]
            stored = [
                version["name"]
                for version in spec["versions"]
                if version.get("storage", len(spec["versions"]) == 1)
            ]
            resource = Resource(
                spec["group"],
                stored[0],
                names["plural"],
                names["kind"],
                spec["scope"] == "Namespaced",
            )
            name = definition["metadata"]["name"]
        except (KeyError, TypeError, IndexError) as error:
            raise Refused(
                422,
                "Invalid",
                f"CustomResourceDefinition is invalid: {error!r} is missing or wrong",
            ) from None
        if name != resource.qualified:
            raise Refused(
                422,
                "Invalid",
                f'metadata.name: Invalid value: "{name}": must be spec.names.plural+"."+spec.group',
            )
        singular = names.get("singular") or resource.kind.lower()
        served = Served(
            resource, singular, tuple(names.get("shortNames") or ()), tuple(versions), custom=True
        )
        self._served[served.name] = served
        return served

    def serve(self, name: str, *versions: str) -> None:
        """Serves a resource in these versions, as another release of Kubernetes does; in none: its
        objects stay stored."""
        self._served[name] = replace(self._served[name], versions=versions)

    def undefine(self, name: str) -> None:
        """Stops serving it."""
        self._served.pop(name, None)

    # ---- discovery -------------------------------------------------------------------------------

    def groups(self) -> dict[str, list[str]]:
        """Versions by group, both in order of preference; the core group is ""."""
        found: dict[str, dict[str, None]] = {"": {}}
        for served in self:
            if served.versions:
                found.setdefault(served.resource.group, {}).update(dict.fromkeys(served.versions))
        return {group: list(versions) for group, versions in found.items()}

    def aggregated(self, *, core: bool) -> dict[str, Any]:
        """The APIGroupDiscoveryList of `/api` (core) or of `/apis`."""
        items = [
            {
                "metadata": {"name": group, "creationTimestamp": None},
                "versions": [self._aggregated_version(group, version) for version in versions],
            }
            for group, versions in self.groups().items()
            if (group == "") is core
        ]
        return {
            "kind": "APIGroupDiscoveryList",
            "apiVersion": "apidiscovery.k8s.io/v2",
            "metadata": {},
            "items": items,
        }

    def _aggregated_version(self, group: str, version: str) -> dict[str, Any]:
        if (group, version) in self.stale:
            return {"version": version, "freshness": "Stale"}
        resources = [
            {
                "resource": served.resource.plural,
                "responseKind": {"group": group, "version": version, "kind": served.resource.kind},
                "scope": "Namespaced" if served.resource.namespaced else "Cluster",
                "singularResource": served.singular,
                "verbs": _VERBS,
                **({"shortNames": list(served.short_names)} if served.short_names else {}),
            }
            for served in self._of(group, version)
        ]
        return {"version": version, "resources": resources, "freshness": "Current"}

    def group_list(self) -> dict[str, Any]:
        """The legacy APIGroupList of `/apis`."""
        groups = [self.group(name) for name in self.groups() if name]
        return {
            "kind": "APIGroupList",
            "apiVersion": "v1",
            "groups": [group for group in groups if group],
        }

    def group(self, name: str) -> dict[str, Any] | None:
        """The legacy APIGroup of `/apis/<name>`; None when it is not served."""
        versions = [
            {"groupVersion": f"{name}/{version}", "version": version}
            for version in self.groups().get(name, ())
        ]
        return (
            {"name": name, "versions": versions, "preferredVersion": versions[0]}
            if versions
            else None
        )

    def resource_list(self, group: str, version: str) -> dict[str, Any] | None:
        """The legacy APIResourceList; None when nothing is served there. Raises: Refused 503 for a
        stale one."""
        if (group, version) in self.stale:
            raise Refused(503, "ServiceUnavailable", "service unavailable")
        resources = [
            {
                "name": served.resource.plural,
                "singularName": served.singular,
                "namespaced": served.resource.namespaced,
                "kind": served.resource.kind,
                "verbs": _VERBS,
                **({"shortNames": list(served.short_names)} if served.short_names else {}),
            }
            for served in self._of(group, version)
        ]
        group_version = f"{group}/{version}" if group else version
        return (
            {"kind": "APIResourceList", "groupVersion": group_version, "resources": resources}
            if resources
            else None
        )

    def _of(self, group: str, version: str) -> Iterable[Served]:
        return (
            served
            for served in self
            if served.resource.group == group and version in served.versions
        )
