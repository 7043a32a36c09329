"""Resource names as the config writes them: `pods`, `po`, `Pod`, `deployments.apps`,
`widgets.example.com/v1`, `*.example.com`. Discovery, or offline `model/builtin.py`, resolves them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?\Z")
_NAME = re.compile(r"[A-Za-z]([-A-Za-z0-9]*[A-Za-z0-9])?\Z")
_VERSION = re.compile(r"v[1-9][0-9]*((alpha|beta)[1-9][0-9]*)?\Z")

DOTLESS_GROUPS = frozenset({"apps", "autoscaling", "batch", "extensions", "policy"})

_DNS_LABEL_MAX = 63
_DNS_SUBDOMAIN_MAX = 253


@dataclass(frozen=True, slots=True)
class ResourceName:
    """A resource as it was named. `group` None: not given; `version` "": the server's choice."""

    name: str
    group: str | None = None
    version: str = ""

    @property
    def wildcard(self) -> bool:
        """True for `*.group`: every resource of the group that can be listed and watched."""
        return self.name == "*"

    def __str__(self) -> str:
        group = f".{self.group}" if self.group else ""
        return f"{self.name}{group}" + (f"/{self.version}" if self.version else "")


def parse_name(text: str) -> ResourceName:
    """The parts of a resource's name; kubectl's `deployments.v1.apps` is read too.

    Raises: ValueError with one line for the operator, cure included."""
    if not text:
        raise ValueError("must not be empty: write a resource, such as pods or deployments.apps")
    if text != text.strip() or any(c.isspace() for c in text):
        raise ValueError(f'"{text}" has a space in it: one entry names one resource')
    if "," in text:
        raise ValueError(f'"{text}" has a comma in it: one entry names one resource')
    whole, slash, version = text.partition("/")
    if slash and not _VERSION.match(version) and (meant := _meant_by_path(text)):
        raise ValueError(f'"{text}" is not a resource name: write {meant}')
    if slash and not _VERSION.match(version):
        raise ValueError(
            f'"{text}" is not a resource name: a version follows the slash, as in '
            "widgets.example.com/v1"
        )
    name, dot, group = whole.partition(".")
    first, _, rest = group.partition(".")
    if _VERSION.match(first):
        if slash:
            raise ValueError(f'"{text}" names the version twice')
        version, group = first, rest
    if name == "*":
        return _wildcard(text, group, version)
    if not _NAME.match(name) or len(name) > _DNS_LABEL_MAX:
        raise ValueError(
            f'"{text}" is not a resource name: write pods, deployments.apps, '
            'widgets.example.com/v1 or "*.example.com"'
        )
    if dot and not group and not version:
        raise ValueError(f'"{text}" ends in a dot: leave it out for the core group')
    if group:
        _check_group(text, group)
    return ResourceName(name, group or None, version)


def _meant_by_path(text: str) -> str:
    """The name of what is written as in a URL or in `apiVersion` (`apps/v1/deployments`); else
    ""."""
    parts = [
        part
        for part in text.removeprefix("/apis/").removeprefix("/api/").split("/")
        if part not in ("", "core")
    ]
    version = next((part for part in parts[:2] if _VERSION.match(part)), "")
    group, _, plural = "/".join(part for part in parts if part != version).rpartition("/")
    if group.partition(".")[2] in DOTLESS_GROUPS:
        return ""  # a resource, and a subresource after it
    dotless = group in DOTLESS_GROUPS or not group
    if (
        not _NAME.match(plural)
        or "/" in group
        or not (version or text.startswith("core/") or (group and (dotless or "." in group)))
    ):
        return ""
    if parts[-1] != plural or (group and not all(_LABEL.match(part) for part in group.split("."))):
        return ""
    return f"{plural}.{group}" + (f"/{version}" if version else "") if group else plural


def _wildcard(text: str, group: str, version: str) -> ResourceName:
    if not group:
        raise ValueError(
            '"*" needs a group, as in "*.example.com"; resources of the core group are named one '
            "by one"
        )
    _check_group(text, group)
    return ResourceName("*", group, version)


def _check_group(text: str, group: str) -> None:
    if group == "core":
        raise ValueError(f'"{text}": the core group has no name: write pods, not pods.core')
    if len(group) > _DNS_SUBDOMAIN_MAX or not all(
        len(part) <= _DNS_LABEL_MAX and _LABEL.match(part) for part in group.split(".")
    ):
        raise ValueError(
            f'"{text}": "{group}" is not an API group: it is a lower-case domain name, such as '
            "apps or example.com"
        )
