"""Rules of ownership that are broken in a replica each, to see that the simulation finds it: the
faults in which it does, and the sign of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tests.simulation.replica_runner import Runner
from tests.simulation.replicas import MOVES, PAUSES, SUSPENSIONS, Faults, Rules
from watchrelay.daemon.recovery import LogFold
from watchrelay.model.progress import StreamProgress
from watchrelay.model.streams import StreamSpec
from watchrelay.replicas.doubt import Doubt
from watchrelay.replicas.sharing import SharedTenure, Sharing
from watchrelay.replicas.standby import Standby
from watchrelay.store.objects import Store


@dataclass(frozen=True, slots=True)
class Plant:
    """A broken rule, the faults in which it is seen, and the sign of it."""

    faults: Faults
    rules: Rules
    sign: str


class ClaimsWhatWasAssigned(Sharing):
    """Claims by an assignment from before the loss."""

    def may_claim(self, stream: str) -> bool:
        return stream in self.rights.own and not self.leaving


class NeverDoubts(Doubt):
    """Writes on after it was suspended, and finishes as if nothing had been."""

    def check(self) -> bool:
        return False


class NoticesNoPause(Doubt):
    """Writes on after it was suspended for less than a session."""

    def check(self) -> bool:
        self._ran_s = self._boot_s()
        return super().check()


class NoRelease(SharedTenure):
    """Writes its claim markers at once."""

    @property
    def awaits_release(self) -> bool:
        return False


class AwaitsNoRelease(Sharing):
    """Is not released to."""

    def tenure(
        self, stream: str, progress: StreamProgress, end: Callable[[], None]
    ) -> SharedTenure:
        return NoRelease(self, stream, progress, end)


class NoRest(Standby[LogFold]):
    """Takes over with what was read before the claim."""

    async def read_rest(
        self, spec: StreamSpec, store: Store, stops: Mapping[int, int]
    ) -> LogFold | None:
        copy = self.copy
        self.end()
        return None if copy is None else copy.fold


class ReadsNoRest(Runner):
    """Continues from a copy that ends before its claim."""

    def _new_standby(self) -> Standby[LogFold]:
        standby = super()._new_standby()
        standby.__class__ = NoRest
        return standby


PLANTS = {
    "stale assignment": Plant(SUSPENSIONS, Rules(sharing=ClaimsWhatWasAssigned), "claims again"),
    "no doubt": Plant(SUSPENSIONS, Rules(doubt=NeverDoubts), "stale records"),
    "no pause": Plant(PAUSES, Rules(doubt=NoticesNoPause), "stale records"),
    "rest not read": Plant(MOVES, Rules(runner=ReadsNoRest), "published again"),
    "no release": Plant(MOVES, Rules(sharing=AwaitsNoRelease), "stale records"),
}
