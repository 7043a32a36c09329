"""Resolves a resource name of the config against an `ApiCatalog`.

`pod`, `po` and `Pod` mean `pods`, as in kubectl; the forms are those of model/names.py.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice

from watchrelay.kube.discovery.catalog import ApiCatalog, ApiGroup, Version
from watchrelay.model.builtin import is_own_group
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

_COMPARED_MAX = 200
_REASONS_SHOWN = 3

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
    called = [(group, group.called(wanted.name)) for group in _groups(wanted, catalog)]
    for fits in _LEVELS:
        ranked: list[tuple[bool, ServedResource]] = []
        for group, candidates in called:
            for served in candidates:
                version = served.resource.version
                if wanted.version in {"", version} and fits(served, wanted.name):
                    preferred = next(each.name for each in group.versions if each.fresh)
                    ranked.append((version != preferred, served))
                    break
        if ranked:
            return [served for _, served in sorted(ranked, key=lambda item: item[0])]
    return []


def _groups(wanted: ResourceName, catalog: ApiCatalog) -> Sequence[ApiGroup]:
    if wanted.group is None:
        return catalog.groups
    group = catalog.group(wanted.group)
    return () if group is None else (group,)


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
    unknown = _unknown(group, versions)
    if resources:
        return Found(resources, (unknown,) if unknown else ())
    nothing = f"the group {wanted.group} serves nothing that can be watched"
    return Unknown(unknown) if unknown else Missing(nothing)


def _unknown(group: ApiGroup, versions: Sequence[Version]) -> str:
    """Of which of these versions it is not known what they serve, with why; "" for none."""
    reasons: dict[str, list[str]] = {}
    for version in versions:
        if not version.fresh:
            reasons.setdefault(version.why, []).append(version.name)
    return "; ".join(
        f"what {group.name} serves in {', '.join(names)} is unknown: {why}"
        for why, names in reasons.items()
    )


def _absent(wanted: ResourceName, catalog: ApiCatalog) -> Resolution:
    """Why nothing was found, and whether waiting can help."""
    groups = _groups(wanted, catalog)
    unknown = [
        reason
        for group in groups
        if (reason := _unknown(group, [v for v in group.versions if _asked(wanted, v)]))
    ]
    if unknown:
        return Unknown(f"{wanted} may be served: {'; '.join(unknown[:_REASONS_SHOWN])}")
    # A bare name with a version that the core group serves otherwise will not become another thing.
    any_version = ResourceName(wanted.name, wanted.group or "")
    elsewhere = _matches(any_version, catalog) if wanted.version else []
    near = _near(wanted.name, groups)
    hint = f"; did you mean {near}?" if near else ""
    reason = f"{wanted.group} does not serve {wanted.name}{hint}"
    if elsewhere:
        reason = catalog.served_otherwise(elsewhere[0].resource, str(wanted))
    if wanted.group is None:
        return Impossible(reason) if elsewhere else Missing(f"no group serves {wanted} now{hint}")
    if not groups:
        return Missing(f"no group {wanted.group} is served now")
    return Impossible(reason) if is_own_group(wanted.group) else Missing(reason)


def _asked(wanted: ResourceName, version: Version) -> bool:
    return wanted.version in {"", version.name}


def _near(name: str, groups: Sequence[ApiGroup]) -> str:
    """The watchable resource with the most similar plural, "" for none. Where there are many, only
    some that begin alike are compared: to compare 100,000 takes seconds."""
    served: list[Sequence[ServedResource]]
    served = [version.served for group in groups for version in group.versions]
    if sum(map(len, served)) > _COMPARED_MAX:
        served = [group.alike(name) for group in groups]
    watchable = (each.resource for each in chain.from_iterable(served) if each.watchable)
    known = {each.plural: each for each in islice(watchable, _COMPARED_MAX)}
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.7)
    return known[close[0]].qualified if close else ""
