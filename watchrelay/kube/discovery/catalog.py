"""Parses discovery documents, in any of their three forms, into an `ApiCatalog`.

Source: KEP-3352 (aggregated discovery, v2 and v2beta1), and the older walk from group to group;
docs/watch-facts.md 8.1, 8.2.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from watchrelay.core.text import BROKEN_JSON
from watchrelay.model.resources import Resource, ServedResource

_AGGREGATED = "application/json;g=apidiscovery.k8s.io;v={};as=APIGroupDiscoveryList"
ACCEPT_AGGREGATED = f"{_AGGREGATED.format('v2')},{_AGGREGATED.format('v2beta1')},application/json"
"""The order of the parameters matters to servers. Source: docs/watch-facts.md 8.1."""


T = TypeVar("T")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
"""What is allowed in a URL path, a topic's name, a header and a metric's label. An aggregated API
server names what it likes: anything else is passed over, and so is as good as not served."""


class NotDiscovery(ValueError):
    """The body is no discovery document."""


@dataclass(frozen=True, slots=True)
class Version:
    """One version of a group. `fresh` False: its server does not answer, what it serves is
    unknown."""

    name: str
    fresh: bool
    served: tuple[ServedResource, ...] = ()


@dataclass(frozen=True, slots=True)
class ApiGroup:
    """One group; "" is the core group. Versions in the server's order, the preferred one first."""

    name: str
    versions: tuple[Version, ...]


@dataclass(frozen=True, slots=True)
class ApiCatalog:
    """Everything served, in the server's order, the core group first."""

    groups: tuple[ApiGroup, ...] = ()

    def group(self, name: str) -> ApiGroup | None:
        return next((group for group in self.groups if group.name == name), None)

    def serves(self, resource: Resource) -> bool | None:
        """Whether this very version is served with the same scope; None when that is
        unknown now."""
        group = self.group(resource.group)
        versions = group.versions if group else ()
        version = next((v for v in versions if v.name == resource.version), None)
        if version is None or not version.fresh:
            return None if version else False
        wanted = (resource.plural, resource.namespaced)
        return any((s.resource.plural, s.resource.namespaced) == wanted for s in version.served)

    def may_serve(self, resource: Resource) -> bool:
        """Whether any version of its group has it, or may: what serves it does not answer now."""
        group = self.group(resource.group)
        return any(
            not version.fresh
            or any(each.resource.plural == resource.plural for each in version.served)
            for version in (group.versions if group else ())
        )


def is_aggregated(content_type: str) -> bool:
    return "as=apigroupdiscoverylist" in content_type.lower().replace(" ", "")


# ---- the aggregated form -------------------------------------------------------------------------


class _Name(msgspec.Struct):
    name: str | None = None


class _ResponseKind(msgspec.Struct):
    kind: str = ""


class _Resource(msgspec.Struct, rename="camel"):
    resource: str
    response_kind: _ResponseKind | None = None
    scope: str = ""
    singular_resource: str | None = None
    short_names: list[str] | None = None
    verbs: list[str] | None = None


class _Version(msgspec.Struct):
    version: str
    freshness: str | None = None
    resources: list[_Resource] | None = None


class _ApiGroup(msgspec.Struct):
    metadata: _Name | None = None
    versions: list[_Version] | None = None


class _GroupList(msgspec.Struct):
    items: list[_ApiGroup] | None = None


def parse_aggregated(body: bytes) -> tuple[ApiGroup, ...]:
    """The groups of an APIGroupDiscoveryList, v2 or v2beta1. Raises: NotDiscovery."""
    groups = []
    for item in _decode(body, _GroupList).items or ():
        name = (item.metadata or _Name()).name or ""
        if not name or _usable(name):
            versions = [_version(name, each) for each in item.versions or ()]
            groups.append(ApiGroup(name, tuple(v for v in versions if _usable(v.name))))
    return tuple(groups)


def _version(group: str, version: _Version) -> Version:
    served = []
    for each in version.resources or ():
        kind = each.response_kind.kind if each.response_kind else ""
        if _usable(each.resource, kind):
            namespaced = each.scope == "Namespaced"
            resource = Resource(group, version.version, each.resource, kind, namespaced)
            served.append(_entry(resource, each.singular_resource, each.short_names, each.verbs))
    return Version(version.version, version.freshness != "Stale", tuple(served))


def _usable(name: str, kind: str = "") -> bool:
    """Whether names are such that nothing can be smuggled in by them. A kind may be unknown."""
    return _NAME.fullmatch(name) is not None and (not kind or _NAME.fullmatch(kind) is not None)


def _entry(
    resource: Resource, singular: str | None, short_names: list[str] | None, verbs: list[str] | None
) -> ServedResource:
    return ServedResource(
        resource,
        (singular or resource.kind).lower(),
        tuple(name.lower() for name in short_names or ()),
        {"list", "watch"} <= set(verbs or ()),
    )


# ---- the older form ------------------------------------------------------------------------------


class _Legacy(msgspec.Struct, rename="camel"):
    name: str
    kind: str = ""
    namespaced: bool = False
    singular_name: str | None = None
    short_names: list[str] | None = None
    verbs: list[str] | None = None


class _LegacyResources(msgspec.Struct):
    resources: list[_Legacy] | None = None


class _GroupVersion(msgspec.Struct):
    version: str = ""


class _LegacyGroup(msgspec.Struct, rename="camel"):
    name: str
    versions: list[_GroupVersion] | None = None
    preferred_version: _GroupVersion | None = None


class _LegacyGroups(msgspec.Struct):
    groups: list[_LegacyGroup] | msgspec.UnsetType | None = msgspec.UNSET


class _CoreVersions(msgspec.Struct):
    versions: list[str]


def parse_core_versions(body: bytes) -> list[tuple[str, list[str]]]:
    """Of the legacy `/api`: the core group's name and versions. Raises: NotDiscovery."""
    return [("", [name for name in _decode(body, _CoreVersions).versions if _usable(name)])]


def parse_group_versions(body: bytes) -> list[tuple[str, list[str]]]:
    """Of the legacy `/apis`: each group with its versions, the preferred first. Raises:
    NotDiscovery."""
    found = _decode(body, _LegacyGroups)
    if found.groups is msgspec.UNSET:
        raise NotDiscovery("it lists no groups")
    listed = []
    for group in found.groups or ():
        if not _usable(group.name):
            continue
        versions = [v.version for v in group.versions or () if _usable(v.version)]
        preferred = group.preferred_version.version if group.preferred_version else ""
        listed.append((group.name, sorted(versions, key=lambda version: version != preferred)))
    return listed


def parse_resources(group: str, version: str, body: bytes) -> Version:
    """Of the legacy `/apis/GROUP/VERSION`: its resources, no subresources. Raises: NotDiscovery."""
    served = [
        _entry(
            Resource(group, version, r.name, r.kind, r.namespaced),
            r.singular_name,
            r.short_names,
            r.verbs,
        )
        for r in _decode(body, _LegacyResources).resources or ()
        if _usable(r.name, r.kind)
    ]
    return Version(version, fresh=True, served=tuple(served))


def _decode(body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except BROKEN_JSON:
        raise NotDiscovery("it is no discovery document") from None
