"""Parses discovery documents, in any of their three forms, into an `ApiCatalog`.

Source: KEP-3352 (aggregated discovery, v2 and v2beta1), and the older walk from group to group;
docs/watch-facts.md 8.1, 8.2.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, TypeVar

import msgspec
from msgspec.json import Decoder as _Decoder

from watchrelay.core.text import BROKEN_JSON
from watchrelay.model.builtin import is_own_group
from watchrelay.model.resources import GONE, SERVED, UNKNOWN, Availability, Resource, ServedResource

_AGGREGATED = "application/json;g=apidiscovery.k8s.io;v={};as=APIGroupDiscoveryList"
ACCEPT_AGGREGATED = f"{_AGGREGATED.format('v2')},{_AGGREGATED.format('v2beta1')},application/json"
"""The order of the parameters matters to servers. Source: docs/watch-facts.md 8.1."""

GROUP_RESOURCES_MAX: Final = 5_000
"""Resources of one group in all its versions. Of a group with more none is known: an aggregated API
server names what it likes."""
_OBJECTS_MAX = 1_000_000
"""JSON objects of one document: what bounds the memory that its decoding takes."""

_LETTERS = 2

T = TypeVar("T")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
"""What is allowed in a URL path, a topic's name, a header and a metric's label. An aggregated API
server names what it likes: anything else is passed over, and so is as good as not served."""


class NotDiscovery(ValueError):
    """The body is no discovery document."""


SILENT: Final = "the server behind it does not answer now"
_TOO_MANY: Final = f"the group names more than {GROUP_RESOURCES_MAX:,} resources, the most followed"


@dataclass(frozen=True, slots=True)
class Version:
    """One version of a group. `fresh` False: what it serves is unknown; `why`, for operators."""

    name: str
    fresh: bool
    served: tuple[ServedResource, ...] = ()
    why: str = field(default=SILENT, compare=False)


@dataclass(frozen=True, slots=True)
class ApiGroup:
    """One group; "" is the core group. Versions in the server's order, the preferred one first."""

    name: str
    versions: tuple[Version, ...]
    _called: dict[str, list[ServedResource]] = field(init=False, repr=False, compare=False)
    _alike: dict[str, list[ServedResource]] = field(init=False, repr=False, compare=False)
    """By the first letters of the plural."""

    def __post_init__(self) -> None:
        called: dict[str, list[ServedResource]] = {}
        alike: dict[str, list[ServedResource]] = {}
        for version in self.versions:
            for each in version.served if version.fresh else ():
                plural = each.resource.plural
                alike.setdefault(plural[:_LETTERS], []).append(each)
                names = plural, each.singular, each.resource.kind.lower(), *each.short_names
                for name in dict.fromkeys(names):
                    called.setdefault(name, []).append(each)
        object.__setattr__(self, "_called", called)
        object.__setattr__(self, "_alike", alike)

    def called(self, name: str) -> list[ServedResource]:
        """What has that plural, singular, Kind or short name (in lower case) in a version that
        answers, in the order of versions."""
        return self._called.get(name, [])

    def alike(self, name: str) -> list[ServedResource]:
        """What has a plural that begins as `name` does, in a version that answers."""
        return self._alike.get(name[:_LETTERS], [])

    def versions_of(self, plural: str) -> list[str]:
        """The versions in which it serves the resource, whatever its scope."""
        found = (each.resource for each in self.called(plural))
        return list(dict.fromkeys(each.version for each in found if each.plural == plural))


@dataclass(frozen=True, slots=True)
class ApiCatalog:
    """Everything served, in the server's order, the core group first."""

    groups: tuple[ApiGroup, ...] = ()
    _by_name: dict[str, ApiGroup] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        by_name = {group.name: group for group in reversed(self.groups)}
        object.__setattr__(self, "_by_name", by_name)

    def group(self, name: str) -> ApiGroup | None:
        return self._by_name.get(name)

    @property
    def is_known(self) -> bool:
        """Whether it is known of each version what it serves."""
        return all(version.fresh for group in self.groups for version in group.versions)

    def availability(self, resource: Resource, *, any_scope: bool = False) -> Availability:
        """Whether the resource is served, in this very version or in another one of its group.
        A resource of Kubernetes itself is never gone: another release does not serve it, and its
        objects are stored all the same. `any_scope`: that of `resource` is not known."""
        group = self.group(resource.group)
        versions = {
            each.resource.version
            for each in (group.called(resource.plural) if group else ())
            if each.resource.plural == resource.plural
            and (any_scope or each.resource.namespaced == resource.namespaced)
        }
        unknown = {each.name for each in (group.versions if group else ()) if not each.fresh}
        if resource.version in versions:
            return SERVED
        if resource.version in unknown or (unknown and not versions):
            return UNKNOWN
        if versions:
            return Availability("hidden", self.served_otherwise(resource, str(resource)))
        if is_own_group(resource.group):
            return Availability(
                "hidden",
                f"{resource.qualified} is served in no version: this release of Kubernetes has "
                "dropped it, and its objects are kept",
            )
        return GONE

    def served_otherwise(self, resource: Resource, wanted: str) -> str:
        """Which versions are served in place of `wanted`, for operators."""
        group = self.group(resource.group)
        versions = ", ".join(group.versions_of(resource.plural) if group else ())
        return f"{resource.qualified} is served in {versions}, not as {wanted}"


def is_aggregated(content_type: str) -> bool:
    return "as=apigroupdiscoverylist" in content_type.lower().replace(" ", "")


# ---- the aggregated form -------------------------------------------------------------------------

_NOTHING = msgspec.Raw(b"null")


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
    resources: msgspec.Raw = _NOTHING


class _ApiGroup(msgspec.Struct):
    metadata: _Name | None = None
    versions: msgspec.Raw = _NOTHING


class _GroupList(msgspec.Struct):
    items: list[_ApiGroup] | None = None


class _Counted(msgspec.Struct):
    """Any object, of which only the number matters."""


_GROUPS: _Decoder[_GroupList] = _Decoder(_GroupList)
_VERSIONS: _Decoder[list[_Version] | None] = _Decoder(list[_Version] | None)
_RESOURCES: _Decoder[list[_Resource] | None] = _Decoder(list[_Resource] | None)
_COUNTED: _Decoder[list[_Counted] | None] = _Decoder(list[_Counted] | None)


def parse_aggregated(
    body: bytes, known: Mapping[bytes, ApiGroup] = MappingProxyType({})
) -> Iterator[tuple[bytes, ApiGroup]]:
    """The groups of an APIGroupDiscoveryList, v2 or v2beta1, one by one so that a caller can yield
    to other tasks in between, each with a digest of what it was decoded from.

    Args:
        known: by digest, groups that need no decoding.

    Raises: NotDiscovery."""
    for item in _document(body, _GROUPS).items or ():
        name = (item.metadata or _Name()).name or ""
        if not name or _usable(name):
            digest = hashlib.blake2b(item.versions, digest_size=16, key=name.encode()[:64]).digest()
            group = known.get(digest)
            if group is None or group.name != name:
                group = ApiGroup(name, _versions(name, item.versions))
            yield digest, group


def _versions(group: str, encoded: msgspec.Raw) -> tuple[Version, ...]:
    versions, total = list[Version](), 0
    for each in _decode(encoded, _VERSIONS) or ():
        if not _usable(each.version):
            continue
        total += _count(each.resources)
        if total > GROUP_RESOURCES_MAX:
            versions.append(Version(each.version, fresh=False, why=_TOO_MANY))
        else:
            versions.append(_version(group, each))
    return tuple(versions)


def _version(group: str, version: _Version) -> Version:
    served = []
    for each in _decode(version.resources, _RESOURCES) or ():
        kind = each.response_kind.kind if each.response_kind else ""
        if _usable(each.resource, kind):
            namespaced = each.scope == "Namespaced"
            resource = Resource(group, version.version, each.resource, kind, namespaced)
            served.append(_entry(resource, each.singular_resource, each.short_names, each.verbs))
    return Version(version.version, version.freshness != "Stale", tuple(served))


def _count(resources: msgspec.Raw) -> int:
    return len(_decode(resources, _COUNTED) or ())


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
    resources: msgspec.Raw = _NOTHING


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


_LEGACY: _Decoder[list[_Legacy] | None] = _Decoder(list[_Legacy] | None)
_LEGACY_RESOURCES: _Decoder[_LegacyResources] = _Decoder(_LegacyResources)
_LEGACY_GROUPS: _Decoder[_LegacyGroups] = _Decoder(_LegacyGroups)
_CORE_VERSIONS: _Decoder[_CoreVersions] = _Decoder(_CoreVersions)


def parse_core_versions(body: bytes) -> list[tuple[str, list[str]]]:
    """Of the legacy `/api`: the core group's name and versions. Raises: NotDiscovery."""
    return [("", [name for name in _document(body, _CORE_VERSIONS).versions if _usable(name)])]


def parse_group_versions(body: bytes) -> list[tuple[str, list[str]]]:
    """Of the legacy `/apis`: each group with its versions, the preferred first. Raises:
    NotDiscovery."""
    found = _document(body, _LEGACY_GROUPS)
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
    resources = _document(body, _LEGACY_RESOURCES).resources
    if _count(resources) > GROUP_RESOURCES_MAX:
        return Version(version, fresh=False, why=_TOO_MANY)
    served = [
        _entry(
            Resource(group, version, r.name, r.kind, r.namespaced),
            r.singular_name,
            r.short_names,
            r.verbs,
        )
        for r in _decode(resources, _LEGACY) or ()
        if _usable(r.name, r.kind)
    ]
    return Version(version, fresh=True, served=tuple(served))


def _document(body: bytes, decoder: _Decoder[T]) -> T:
    if body.count(b"{") > _OBJECTS_MAX:
        raise NotDiscovery(f"it has more than {_OBJECTS_MAX:,} objects")
    return _decode(body, decoder)


def _decode(encoded: bytes, decoder: _Decoder[T]) -> T:
    try:
        return decoder.decode(encoded)
    except BROKEN_JSON:
        raise NotDiscovery("it is no discovery document") from None
