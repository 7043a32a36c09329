"""What goes wrong in one run, and how often.

Input: a seed. Output: rates of faults; most runs have some kinds and not others, so that no fault
hides another.
"""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(slots=True)
class Weather:
    """Units: probabilities per request (or per chunk, of a watch), seconds.

    `api_*` are of the API server: `refused` an answer that is an error; `cut` a connection
    that breaks, in mid-line as often as not; `silent` a watch that says no more; `stale` an answer
    from a cache that lags. `lost` never reaches the broker, `lost_ack` is in the log unknown to
    its sender, `late` lands after its sender gave it up. `renewed`: a producer that worked is
    thrown away. `deaf_s` is how late the control topic is read. `misread`, per record: a writer
    that reads its log back never gets it.
    """

    api_refused: float = 0.0
    api_cut: float = 0.0
    api_silent: float = 0.0
    api_stale: float = 0.0
    api_delay_s: float = 0.0
    lost: float = 0.0
    lost_ack: float = 0.0
    late: float = 0.0
    renewed: float = 0.0
    delay_s: float = 0.0
    deaf_s: float = 0.0
    misread: float = 0.0

    @classmethod
    def drawn(cls, rng: random.Random) -> Weather:
        """By seed: each kind of trouble comes in about half of the runs."""

        def maybe(*rates: float) -> float:
            return rng.choice(rates) if rng.random() < 0.5 else 0.0

        return cls(
            api_refused=maybe(0.1, 0.3),
            api_cut=maybe(0.05, 0.2),
            api_silent=maybe(0.0, 0.01),
            api_stale=maybe(0.2),
            api_delay_s=maybe(0.05, 0.5),
            lost=maybe(0.05, 0.2),
            lost_ack=maybe(0.05, 0.2),
            late=maybe(0.05, 0.2),
            renewed=maybe(0.02),
            delay_s=maybe(0.02, 0.2, 1.0),
            deaf_s=maybe(0.5, 3.0),
            misread=rng.choice([0.2] + [0.0] * 9),
        )

    def clear(self) -> None:
        """The storm is over: from here on all goes well."""
        for name in self.__slots__:
            setattr(self, name, 0.0)
