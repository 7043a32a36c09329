"""Warnings about a valid config."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from watchrelay.config.settings import Settings
from watchrelay.config.streams import Planned, called, plan
from watchrelay.config.tree import Path
from watchrelay.model.builtin import GROUPS, known_names, resolve, served_in

Warned = tuple[Path, str, str]


def warnings(settings: Settings) -> Iterator[Warned]:
    """Path, message and hint of each."""
    yield from _kafka(settings)
    planned = plan(settings)
    seen: set[int] = set()
    for stream in planned:
        if stream.index not in seen:
            seen.add(stream.index)
            yield from _entry(stream)
    yield from _same_stream(planned)


def _kafka(settings: Settings) -> Iterator[Warned]:
    security = settings.kafka.security
    if security.protocol == "SASL_PLAINTEXT":
        yield (
            ("kafka", "security", "protocol"),
            "credentials and records cross the network unencrypted",
            "SASL_SSL encrypts them",
        )
    if not security.check_hostname and security.protocol in ("SSL", "SASL_SSL"):
        yield (
            ("kafka", "security", "checkHostname"),
            "any host with a certificate of that authority can pose as a broker",
            "",
        )
    if security.password is not None:
        yield (
            ("kafka", "security", "password"),
            "the password is written in the config",
            "passwordFile keeps it out",
        )
    if settings.kafka.replication_factor == 1:
        yield (
            ("kafka", "replicationFactor"),
            "one copy: records are lost with their broker",
            "fine for a test; 3 elsewhere",
        )


def _entry(stream: Planned) -> Iterator[Warned]:
    at: Path = ("resources", stream.index)
    found = resolve(stream.name)
    if not stream.name.wildcard and len(found) > 1:
        others = ", ".join(builtin.resource.qualified for builtin in found[1:])
        yield (
            (*at, "resource"),
            f"{stream.entry.resource} means {found[0].resource.qualified} here, as for kubectl",
            f"not {others}",
        )
    if found and not stream.name.wildcard and not found[0].resource.namespaced:
        cluster_scoped = f"{found[0].resource.qualified} is cluster-scoped"
        if stream.entry.namespaces:
            message = f"{cluster_scoped}: the stream would never start"
            yield (*at, "namespaces"), message, "remove namespaces"
        if stream.entry.exclude_namespaces:
            message = f"{cluster_scoped}: the server refuses that selector"
            yield (*at, "excludeNamespaces"), message, "remove it"
    if not found and stream.name.group in GROUPS and not stream.name.wildcard:
        yield (*at, "resource"), f"Kubernetes 1.36 has no {stream.what}", _near(stream)
    elif not found and stream.name.group is None:
        if served := _versions(stream):
            yield (
                (*at, "resource"),
                f"Kubernetes 1.36 does not serve {stream.what} in {stream.name.version}",
                f"it does in {served}",
            )
        else:
            yield (
                (*at, "resource"),
                f"{stream.what} is not built into Kubernetes: only a cluster can resolve it",
                _near(stream),
            )
    if stream.entry.include_secret_data:
        yield (
            (*at, "includeSecretData"),
            "the payload of Secrets will be on the topic in clear text",
            "",
        )


def _versions(stream: Planned) -> str:
    name = stream.name
    return ", ".join(
        each.resource.version
        for each in served_in(name.name)
        if name.group in (None, each.resource.group)
    )


def _near(stream: Planned) -> str:
    close = difflib.get_close_matches(stream.name.name.lower(), known_names(), n=1, cutoff=0.75)
    return f"did you mean {close[0]}?" if close else ""


def _same_stream(planned: list[Planned]) -> Iterator[Warned]:
    """Entries that may be one stream: one names a resource by its plural, another one perhaps by
    kind or singular."""
    by_name: dict[tuple[str, str | None, str | None], Planned] = {}
    for stream in planned:
        if stream.certain and stream.builtin is None and not stream.entry.id:
            for name in called(stream.name.name):
                by_name.setdefault((name, stream.name.group, stream.namespace), stream)
                by_name.setdefault((name, None, stream.namespace), stream)
    warned: set[int] = set()
    for stream in planned:
        other = by_name.get((stream.name.name.lower(), stream.name.group, stream.namespace))
        if other is not None and not stream.certain and stream.index not in warned:
            warned.add(stream.index)
            message = (
                f"{stream.entry.resource} may mean stream {other.id} of "
                f"resources[{other.index}]: of the two the later is left out"
            )
            yield (
                ("resources", stream.index, "resource"),
                message,
                "give one of the two an id, or remove it",
            )
