"""Resolves a resource name of the config against an `ApiCatalog`.

`pod`, `po` and `Pod` mean `pods`, as in kubectl; the forms are those of model/names.py.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass, replace

from watchrelay.kube.discovery.catalog import ApiCatalog, ApiGroup
from watchrelay.model.builtin import GROUPS
from watchrelay.model.names import ResourceName, parse_name
from watchrelay.model.resources import Resource, ServedResource


@dataclass(frozen=True, slots=True)
class Found:
    """What the name means."""

    resources: tuple[Resource, ...]
    warnings: tuple[str, ...] = ()


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

_LEVELS: tuple[Callable[[ServedResource, str], bool], ...] = (
    lambda served, name: served.resource.plural == name,
    lambda served, name: served.singular == name,
    lambda served, name: served.resource.kind.lower() == name,
    lambda served, name: name in served.short_names,
)
"""The order over all groups. Source: docs/watch-facts.md 8.3."""


def resolve(written: str, catalog: ApiCatalog) -> Resolution:
    """What `written` means to this server, as for kubectl. Source: docs/watch-facts.md 8.3."""
    try:
        wanted = parse_name(written)
    except ValueError as error:
        return Impossible(str(error))
    if wanted.wildcard:
        return _wildcard(wanted, catalog)
    wanted = replace(wanted, name=wanted.name.lower())
    # `pods/v1` means the core group's before any other's
    core = _matches(replace(wanted, group=""), catalog) if wanted.version else []
    matches = core if core and wanted.group is None else _matches(wanted, catalog)
    return _choose(wanted, matches) if matches else _absent(wanted, catalog)


def _matches(wanted: ResourceName, catalog: ApiCatalog) -> list[ServedResource]:
    """A match per group, in the first fresh version that has it; those in a preferred version
    first."""
    for fits in _LEVELS:
        ranked: list[tuple[bool, ServedResource]] = []
        for group in catalog.groups:
            if wanted.group is not None and group.name != wanted.group:
                continue
            fresh = [version for version in group.versions if version.fresh]
            for version in fresh:
                if wanted.version and version.name != wanted.version:
                    continue
                served = next((each for each in version.served if fits(each, wanted.name)), None)
                if served is not None:
                    ranked.append((version is not fresh[0], served))
                    break
        if ranked:
            return [served for _, served in sorted(ranked, key=lambda item: item[0])]
    return []


def _choose(wanted: ResourceName, matches: list[ServedResource]) -> Resolution:
    chosen = matches[0]
    others = ", ".join(each.resource.qualified for each in matches[1:] if each.watchable)
    if not chosen.watchable:
        hint = f"; {others} can" if others else ""
        return Impossible(
            f"{chosen.resource.qualified} cannot be watched: the server does not offer the verbs "
            f"list and watch for it{hint}"
        )
    warning = (
        f"{wanted} is served by several groups; {chosen.resource} is taken, as kubectl does "
        f"(others: {others})"
    )
    return Found((chosen.resource,), (warning,) if others else ())


def _wildcard(wanted: ResourceName, catalog: ApiCatalog) -> Resolution:
    """Every watchable resource of a group, each in the most preferred version that has it."""
    group = catalog.group(wanted.group or "")
    if group is None:
        return Missing(f"no group {wanted.group} is served now")
    versions = [v for v in group.versions if wanted.version in {"", v.name}]
    if not versions:
        listed = ", ".join(v.name for v in group.versions)
        return Missing(f"{wanted.group} is served in {listed}, not in {wanted.version}")
    chosen: dict[str, ServedResource] = {}
    for served in (each for version in versions if version.fresh for each in version.served):
        chosen.setdefault(served.resource.plural, served)
    resources = tuple(served.resource for served in chosen.values() if served.watchable)
    stale = ", ".join(version.name for version in versions if not version.fresh)
    unknown = (
        f"what {group.name} serves in {stale} is unknown: the server behind it does not answer now"
    )
    if resources:
        return Found(resources, (unknown,) if stale else ())
    nothing = f"the group {wanted.group} serves nothing that can be watched"
    return Unknown(unknown) if stale else Missing(nothing)


def _absent(wanted: ResourceName, catalog: ApiCatalog) -> Resolution:
    """Why nothing was found, and whether waiting can help."""
    groups = [group for group in catalog.groups if wanted.group in {None, group.name}]
    stale = ", ".join(
        group.name
        for group in groups
        if any(not v.fresh and wanted.version in {"", v.name} for v in group.versions)
    )
    if stale:
        return Unknown(f"{wanted} may be served by {stale}, whose server does not answer now")
    # A bare name with a version that the core group serves otherwise will not become another thing.
    any_version = ResourceName(wanted.name, wanted.group or "")
    elsewhere = _matches(any_version, catalog) if wanted.version else []
    near = _near(wanted.name, groups)
    hint = f"; did you mean {near}?" if near else ""
    reason = f"{wanted.group} does not serve {wanted.name}{hint}"
    if elsewhere:
        reason = f"{_served_in(elsewhere[0], catalog)}, not as {wanted}"
    if wanted.group is None:
        return Impossible(reason) if elsewhere else Missing(f"no group serves {wanted} now{hint}")
    if not groups:
        return Missing(f"no group {wanted.group} is served now")
    # a group without a dot is the server's own too: that of a CRD has one
    own = "." not in wanted.group or wanted.group in GROUPS
    return Impossible(reason) if own else Missing(reason)


def _served_in(served: ServedResource, catalog: ApiCatalog) -> str:
    """Every version in which the group of `served` has a resource of that name."""
    resource = served.resource
    group = catalog.group(resource.group)
    versions = [
        version.name
        for version in (group.versions if group else ())
        if any(each.resource.plural == resource.plural for each in version.served)
    ]
    return f"{resource.qualified} is served in {', '.join(versions)}"


def _near(name: str, groups: list[ApiGroup]) -> str:
    known = {
        each.resource.plural: each
        for group in groups
        for version in group.versions
        for each in version.served
        if each.watchable
    }
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.7)
    return known[close[0]].resource.qualified if close else ""
