"""The streams of this replica's config, and which of them it offers to the group."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from typing import Final

from watchrelay.core.backoff import Backoff
from watchrelay.core.clock import Clocks
from watchrelay.kafka.control_topic import ControlTopic
from watchrelay.replicas.ownership import is_retirement

_AGAIN: Final = Backoff(base_s=1.0, cap_s=60.0, jitter=0.1)
"""Between the loss of a stream to a writer outside the group and its next offer."""
_HEALTHY_S: Final = 60.0


class Offers:
    """`plans`: by stream, the hash of how this replica would run it; `order` and `config_hash` tell
    which of two configs is newer."""

    def __init__(self, control: ControlTopic, clocks: Clocks, rng: random.Random) -> None:
        self.plans: dict[str, str] = {}
        self.order, self.config_hash = (0, 0), ""
        self._control, self._clocks, self._rng = control, clocks, rng
        self._adopted_s = clocks.boot_s()
        self._withheld: dict[str, float] = {}
        """Until when streams are not offered; infinity: until the config changes."""
        self._retired: set[str] = set()
        """Retirements that are known: only a later one counts as `newly_retired`."""
        self._backoffs: dict[str, Backoff] = {}

    @property
    def age_ms(self) -> int:
        """For how long the config has been in force."""
        return int((self._clocks.boot_s() - self._adopted_s) * 1000)

    def replace(self, plans: Mapping[str, str], *, revision: int, config_hash: str) -> bool:
        """The config or its streams are these now. Returns: whether the group is to know."""
        former_revision, adopted_ms = self.order
        same_config, same_plans = config_hash == self.config_hash, plans == self.plans
        if not same_config:
            self._adopted_s, adopted_ms = self._clocks.boot_s(), self._clocks.wall_ms()
        self.order, self.config_hash = (revision, adopted_ms), config_hash
        if not same_plans:
            self.plans = dict(plans)
            self.know_retired()
        self._withheld = {
            stream: until_s
            for stream, until_s in self._withheld.items()
            if stream in plans and (until_s < math.inf or same_config)
        }
        return not (same_config and same_plans and revision == former_revision)

    def now(self) -> dict[str, str]:
        """The plans of the streams that are offered."""
        now_s = self._clocks.now_s()
        return {
            stream: plan
            for stream, plan in self.plans.items()
            if self._withheld.get(stream, now_s) <= now_s
        }

    def outclaimed(self, stream: str, *, since_s: float) -> float:
        """A writer outside the group has claimed the stream, which this replica wrote from
        `since_s` on. In how many seconds it is offered again; infinity: with the next config."""
        now_s = self._clocks.now_s()
        if is_retirement(self._control.holder_of(stream) or ""):
            wait_s = math.inf
        else:
            self._backoffs[stream], wait_s = self._backoffs.get(stream, _AGAIN).after_failure(
                now_s, healthy=now_s - since_s > _HEALTHY_S, rng=self._rng
            )
        self._withheld[stream] = now_s + wait_s
        return wait_s

    def know_retired(self) -> None:
        """What is retired by now does not count as `newly_retired`."""
        holder_of = self._control.holder_of
        self._retired = {each for each in self.plans if is_retirement(holder_of(each) or "")}

    def newly_retired(self) -> set[str]:
        """The streams that were retired since the last call. One that others have in their configs
        is not to be taken over: it is not offered until the config changes."""
        former = self._retired
        self.know_retired()
        new = self._retired - former
        self._withheld.update(dict.fromkeys(new, math.inf))
        return new
