"""What the group has assigned to this replica, and what of it may be claimed."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final

from watchrelay.replicas.assignor import MemberAssignment

REGATHER_S: Final = 3.0
"""For this time a replica that the group has forgotten claims nothing: the others, which write on,
may be forgotten too, and join again within it."""


@dataclass(slots=True)
class Right:
    """Of one assigned stream. `former`: the replica that writes it and hands it over, "" for none;
    `generation`: the first that has it; `given_s`: since when the right is as it is; `valid`: the
    stream was not lost since, nor was the membership."""

    former: str
    generation: int
    given_s: float
    valid: bool


class Rights:
    """`own`: by stream of `assignment`, the right to it."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self.assignment = MemberAssignment()
        self.own: dict[str, Right] = {}
        self._now_s = now_s
        self._lost: set[str] = set()
        """What others have claimed since the newest `forget_losses`."""
        self._regathered_s = -math.inf
        """When claims may begin again after the group has forgotten this replica."""

    @property
    def valid(self) -> set[str]:
        """The streams that may be claimed."""
        return {stream for stream, right in self.own.items() if right.valid}

    def forget_losses(self) -> None:
        """This replica joins: what the group assigns from here on is assigned after every loss."""
        self._lost.clear()

    def take(self, generation: int, assignment: MemberAssignment) -> None:
        """The group has assigned this."""
        before, now_s = self.own, self._now_s()
        self.own, self.assignment = {}, assignment
        for stream, former in assignment.own.items():
            known = before.get(stream, Right(former, generation, now_s, valid=False))
            is_same = known.valid and known.former == former
            self.own[stream] = Right(
                former,
                known.generation,
                known.given_s if is_same else now_s,
                valid=stream not in self._lost,
            )

    def lose(self, streams: Collection[str]) -> bool:
        """Other writers have claimed these. Returns: whether the right to one of them was valid."""
        self._lost.update(streams)
        return self._invalidate(each for each in streams if each in self.own)

    def lose_all_but(self, streams: Collection[str]) -> bool:
        """Others may have claimed all but these. Returns: as `lose`."""
        return self._invalidate(self.own.keys() - streams)

    def _invalidate(self, streams: Iterable[str]) -> bool:
        rights = [self.own[each] for each in streams if self.own[each].valid]
        for right in rights:
            right.valid = False
        return bool(rights)

    def regather(self) -> None:
        """The group has forgotten this replica."""
        self._regathered_s = self._now_s() + REGATHER_S

    def may_claim(self, stream: str, *, answered_s: float) -> bool:
        """Whether the right to the stream is valid. What a live writer hands over is claimed only
        once the API server has answered this replica since, last at `answered_s`."""
        right = self.own.get(stream)
        return (
            right is not None
            and right.valid
            and self._now_s() >= self._regathered_s
            and (not right.former or answered_s >= right.given_s)
        )
