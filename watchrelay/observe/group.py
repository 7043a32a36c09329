"""The group by which replicas share the streams, as one replica knows it."""

from __future__ import annotations

from dataclasses import dataclass

from watchrelay.core.timestamps import rfc3339


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """A replica, as it reported itself when it joined the group last.

    `assigned`: how many streams it is to write; `streams`: which, None where the table of all is
    too large to be sent."""

    holder: str
    revision: int
    adopted_ms: int
    config_hash: str
    fit: bool
    leaving: bool
    assigned: int
    streams: tuple[str, ...] | None

    def as_json(self) -> dict[str, object]:
        return {
            "holder": self.holder,
            "revision": self.revision,
            "configAdopted": rfc3339(self.adopted_ms),
            "configHash": self.config_hash,
            "fit": self.fit,
            "leaving": self.leaving,
            "assigned": self.assigned,
            "streams": self.streams,
        }


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """The group since the newest assignment of this replica, `holder`. `generation` is None before
    the first one; `revision` is that of the config of this replica."""

    holder: str
    revision: int = 0
    generation: int | None = None
    leader: str = ""
    even: bool = True
    members: tuple[MemberStatus, ...] = ()

    def as_json(self) -> dict[str, object]:
        """The public form. Source: the operations reference, `/api/group`."""
        return {
            "holder": self.holder,
            "revision": self.revision,
            "generation": self.generation,
            "leader": self.leader or None,
            "even": self.even,
            "members": [member.as_json() for member in self.members],
        }
