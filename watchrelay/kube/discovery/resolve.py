"""Resolves a resource name of the config against an `ApiCatalog`.

Forms: `pods`, `pod`, `po`, `Pod`, `deployments.apps`, `deployments.v1.apps`,
`widgets.example.com/v1`, `*.example.com`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from watchrelay.kube.discovery.catalog import ApiCatalog, Group, ServedResource, Version
from watchrelay.model.resources import Resource


@dataclass(frozen=True, slots=True)
class Found:
    """What the name means. `complete` False: a part of the group is unknown now, so what is not
    here may yet exist."""

    resources: tuple[Resource, ...]
    warnings: tuple[str, ...] = ()
    complete: bool = True


@dataclass(frozen=True, slots=True)
class Missing:
    """Nothing of that name is served now; a CRD or an API server to come may serve it: wait."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """Unknown for now (a stale group): change nothing, ask again."""

    reason: str


@dataclass(frozen=True, slots=True)
class Impossible:
    """Waiting will not help: a person must change the config."""

    reason: str


Resolution = Found | Missing | Unknown | Impossible

_LABEL = r"[a-z0-9]([a-z0-9-]*[a-z0-9])?"
_NAME = re.compile(
    rf"(?P<name>[A-Za-z]([A-Za-z0-9-]*[A-Za-z0-9])?|\*)(\.(?P<group>{_LABEL}(\.{_LABEL})*))?(/(?P<version>{_LABEL}))?"
)
_VERSION = re.compile(r"v[1-9][0-9]*((alpha|beta)[1-9][0-9]*)?")

_BUILT_IN = frozenset(
    f"{name}.k8s.io"
    for name in (
        "admissionregistration", "apiextensions", "apiregistration", "authentication",
        "authorization", "certificates", "coordination", "discovery", "events",
        "flowcontrol.apiserver", "internal.apiserver", "networking", "node", "rbac.authorization",
        "resource", "scheduling", "storage", "storagemigration",
    )
)  # fmt: skip
"""Groups that kube-apiserver serves itself. A CRD's group has a dot, so those without one are the
server's own too."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    written: str
    name: str
    group: str | None
    version: str | None


@dataclass(frozen=True, slots=True)
class _Match:
    group: Group
    version: Version
    served: ServedResource


def resolve(written: str, catalog: ApiCatalog) -> Resolution:
    """What `written` means to this server. Source: docs/watch-facts.md 8.3; order and preference as
    kubectl's."""
    parsed = _NAME.fullmatch(written.strip())
    if parsed is None:
        return Impossible(
            f"{written!r} is no resource name; write pods, deployments.apps, "
            "widgets.example.com/v1 or *.example.com"
        )
    wanted = _Wanted(written.strip(), parsed["name"].lower(), parsed["group"], parsed["version"])
    if wanted.name == "*":
        return _wildcard(wanted, catalog)
    for reading in _readings(wanted, catalog):
        found = _named(reading, catalog)
        if found is not None:
            return found
    return _absent(wanted, catalog)


def _readings(wanted: _Wanted, catalog: ApiCatalog) -> Iterator[_Wanted]:
    """`a.v1.b` may mean version v1 of group b, or group v1.b; `pods.v1` the core group. The fuller
    reading first, as kubectl does."""
    if wanted.group is not None and wanted.version is None:
        version, _, group = wanted.group.partition(".")
        if _VERSION.fullmatch(version):
            yield _Wanted(wanted.written, wanted.name, group, version)
    bare = wanted.group is None and wanted.version is not None
    if bare or (wanted.group == "core" and catalog.group("core") is None):
        yield _Wanted(wanted.written, wanted.name, "", wanted.version)
    yield wanted


_LEVELS: tuple[Callable[[ServedResource, str], bool], ...] = (
    lambda served, name: served.resource.plural == name,
    lambda served, name: served.singular == name,
    lambda served, name: served.resource.kind.lower() == name,
    lambda served, name: name in served.short_names,
)
"""Plural before singular before kind before short name, over all groups. Source:
docs/watch-facts.md 8.3."""


def _named(wanted: _Wanted, catalog: ApiCatalog) -> Resolution | None:
    for fits in _LEVELS:
        matches = _matches(wanted, catalog, fits)
        if matches:
            return _choose(wanted, matches)
    return None


def _matches(
    wanted: _Wanted, catalog: ApiCatalog, fits: Callable[[ServedResource, str], bool]
) -> list[_Match]:
    """One match per group: in the first fresh version that has it. Those in their group's preferred
    version come first, as in kubectl."""
    ranked: list[tuple[bool, _Match]] = []
    for group in catalog.groups:
        if wanted.group is not None and group.name != wanted.group:
            continue
        fresh = [version for version in group.versions if version.fresh]
        for version in fresh:
            if wanted.version is not None and version.name != wanted.version:
                continue
            served = next((each for each in version.served if fits(each, wanted.name)), None)
            if served is not None:
                ranked.append((version is not fresh[0], _Match(group, version, served)))
                break
    return [match for _, match in sorted(ranked, key=lambda item: item[0])]


def _choose(wanted: _Wanted, matches: list[_Match]) -> Resolution:
    chosen = matches[0].served
    others = [match.served for match in matches[1:] if match.served.watchable]
    if not chosen.watchable:
        hint = f"; {_listed(others)} can" if others else ""
        return Impossible(
            f"{chosen.resource.qualified} cannot be watched: the server does not offer the verbs "
            f"list and watch for it{hint}"
        )
    warnings: tuple[str, ...] = ()
    if others:
        warnings = (
            (
                f"{wanted.written} is served by several groups; {chosen.resource} is taken, as "
                f"kubectl does (others: {_listed(others)})"
            ),
        )
    return Found((chosen.resource,), warnings)


def _listed(served: list[ServedResource]) -> str:
    return ", ".join(each.resource.qualified for each in served)


def _wildcard(wanted: _Wanted, catalog: ApiCatalog) -> Resolution:
    """Every watchable resource of a group, each in the most preferred version that has it; never
    Secrets."""
    if wanted.group is None:
        return Impossible(f"{wanted.written!r} names no group; write *.apps or *.example.com")
    name = "" if wanted.group == "core" and catalog.group("core") is None else wanted.group
    group = catalog.group(name)
    if group is None:
        return Missing(f"no group {wanted.group} is served now")
    versions = [v for v in group.versions if wanted.version is None or v.name == wanted.version]
    if not versions:
        return Missing(f"{wanted.group} is served in {_versions(group)}, not in {wanted.version}")
    if not any(version.fresh for version in versions):
        return Unknown(f"the server behind the group {wanted.group} does not answer now")
    chosen: dict[str, ServedResource] = {}
    for version in versions:
        for served in version.served if version.fresh else ():
            chosen.setdefault(served.resource.plural, served)
    resources = tuple(
        s.resource
        for s in chosen.values()
        if s.watchable and not (name == "" and s.resource.plural == "secrets")
    )
    complete = all(version.fresh for version in versions)
    if not resources:
        return (
            Missing(f"the group {wanted.group} serves nothing that can be watched")
            if complete
            else Unknown(_stale(group))
        )
    return Found(resources, () if complete else (_stale(group),), complete)


def _stale(group: Group) -> str:
    stale = ", ".join(version.name for version in group.versions if not version.fresh)
    return (
        f"what {group.name} serves in {stale} is unknown: the server behind it does not answer now"
    )


def _absent(wanted: _Wanted, catalog: ApiCatalog) -> Resolution:
    """Why nothing was found, and whether waiting can help."""
    readings = list(_readings(wanted, catalog))
    named = (
        {reading.group for reading in readings if reading.group is not None}
        if wanted.group is not None
        else set()
    )
    groups = (
        [group for group in catalog.groups if group.name in named]
        if named
        else list(catalog.groups)
    )
    stale = [
        group
        for group in groups
        if any(not v.fresh and wanted.version in {None, v.name} for v in group.versions)
    ]
    if stale:
        return Unknown(
            f"{wanted.written} may be served by {', '.join(group.name for group in stale)}, "
            "whose server does not answer now"
        )
    near = _near(wanted.name, groups)
    hint = f"; did you mean {near}?" if near else ""
    elsewhere = _elsewhere(readings, catalog)
    if not named:
        # A bare name with a version that the core group serves otherwise will not become another
        # thing.
        return (
            Impossible(f"{elsewhere}, not as {wanted.written}")
            if elsewhere
            else Missing(f"no group serves {wanted.written} now{hint}")
        )
    if not groups:
        return Missing(f"no group {wanted.group} is served now")
    group = groups[0]
    label = group.name or "the core group"
    reason = (
        f"{elsewhere}, not as {wanted.written}"
        if elsewhere
        else f"{label} does not serve {wanted.name}{hint}"
    )
    own = "." not in group.name or group.name in _BUILT_IN
    return Impossible(reason) if own else Missing(reason)


def _elsewhere(readings: list[_Wanted], catalog: ApiCatalog) -> str:
    """Where the same name is served when another version was asked for, "" if nowhere."""
    for reading in readings:
        if reading.version is None or reading.group is None:
            continue
        any_version = _Wanted(reading.written, reading.name, reading.group, None)
        for fits in _LEVELS:
            matches = _matches(any_version, catalog, fits)
            if matches:
                return (
                    f"{matches[0].served.resource.qualified} is served in "
                    f"{_versions(matches[0].group, reading.name)}"
                )
    return ""


def _versions(group: Group, plural: str | None = None) -> str:
    names = [
        v.name
        for v in group.versions
        if plural is None or any(fits(s, plural) for s in v.served for fits in _LEVELS)
    ]
    return ", ".join(names)


def _near(name: str, groups: list[Group]) -> str:
    known = {
        each.resource.plural: each
        for group in groups
        for version in group.versions
        for each in version.served
        if each.watchable
    }
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.7)
    return known[close[0]].resource.qualified if close else ""
