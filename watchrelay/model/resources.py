"""What is watched: a resource, the selection of it, and the order of resourceVersions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Resource:
    """One group/version/plural: what one list+watch follows. Group is "" for the core group."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool

    @property
    def api_version(self) -> str:
        """As objects carry it: `v1`, `apps/v1`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def qualified(self) -> str:
        """`pods`, `deployments.apps`: the version is no part of it."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def path(self, namespace: str | None = None) -> str:
        """The URL path of the collection. Source: docs/watch-facts.md 1.1."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        return (
            f"{root}/namespaces/{namespace}/{self.plural}" if namespace else f"{root}/{self.plural}"
        )

    def __str__(self) -> str:
        return f"{self.qualified}/{self.version}"


@dataclass(frozen=True, slots=True)
class ServedResource:
    """A resource as one version of its group serves it, its other names in lower case. `watchable`:
    its verbs include list and watch."""

    resource: Resource
    singular: str
    short_names: tuple[str, ...]
    watchable: bool

    def called(self, name: str) -> bool:
        """Whether `name` is its plural, singular, Kind or short name, whatever the case."""
        lowered = name.lower()
        return lowered in (self.resource.plural, self.singular) or lowered in self.short_names


@dataclass(frozen=True, slots=True)
class Availability:
    """What discovery tells about a resource. Versions are representations of one set of stored
    objects, so a version that ends removes none of them.

    Attributes:
        state: "served": in this very version. "hidden": not served in it, and its objects may
            exist. "gone": no version of the group serves it, so it has no objects. "unknown": what
            may serve it does not answer now.
        reason: of "hidden": why, for operators.
    """

    state: Literal["served", "hidden", "gone", "unknown"]
    reason: str = ""


SERVED, GONE, UNKNOWN = Availability("served"), Availability("gone"), Availability("unknown")


@dataclass(frozen=True, slots=True)
class PartKeys:
    """The keys of a part: those that fall into its `own` of all `partitions`. `prefix` precedes
    namespace and name."""

    prefix: bytes
    partitions: int
    own: frozenset[int]


@dataclass(frozen=True, slots=True)
class Selection:
    """Which objects of a resource are asked of the server, and in which representation."""

    resource: Resource
    namespace: str | None = None
    label_selector: str = ""
    field_selector: str = ""
    metadata_only: bool = False
    depth_checked: bool = True
    """False: a built-in type bounds the depth of its objects, and nothing decodes them again."""
    part: PartKeys | None = None
    """Not None: objects with other keys are dropped as they arrive."""

    @property
    def path(self) -> str:
        return self.resource.path(self.namespace)


_VERSION_MAX = 1024
"""Characters of a version that a request names: no server takes URLs of any length."""


def watchable(version: str) -> bool:
    """Whether a watch may start from `version`: "" and "0" mean any state (docs/watch-facts.md
    2.11)."""
    return version not in {"", "0"} and len(version) <= _VERSION_MAX


_COMPARABLE_MAX = str(2**64 - 1)


def comparable(version: str) -> bool:
    """True for a decimal without leading zero, at most 2^64-1. Source: KEP-5504,
    docs/watch-facts.md 4.1, 4.2."""
    return (
        version.isascii()
        and version.isdigit()
        and not version.startswith("0")
        and (
            len(version) < len(_COMPARABLE_MAX)
            or (len(version) == len(_COMPARABLE_MAX) and version <= _COMPARABLE_MAX)
        )
    )


def advances(version: str, cursor: str) -> bool:
    """Whether a cursor may move to `version`: from a number only to a higher one, from what is no
    number to any other version that is watchable."""
    # of two numbers the longer is higher, or where both are equally long the later in the alphabet
    if (len(version), version) > (len(cursor), cursor) and comparable(version):
        return True
    return version != cursor and not comparable(cursor) and watchable(version)


def compare(left: str, right: str) -> int | None:
    """-1, 0 or 1 as `left` is older than, equal to or newer than `right`; None when they cannot
    be ordered. compare(a, b) == -compare(b, a). Source: KEP-5504."""
    if left == right:
        return 0
    if not (comparable(left) and comparable(right)):
        return None
    return -1 if (len(left), left) < (len(right), right) else 1
