"""The runs with replicas by number: one stream that moves, and one that is split, in turn.

Input: a number. Output: the world as it was at the end of that run.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tests.simulation import parts, replicas
from tests.simulation.replicas import ReplicaWorld
from tests.simulation.world import Verdict

_RUNS: tuple[Callable[[int], ReplicaWorld], ...] = (
    *(
        partial(replicas.run, faults=faults)
        for faults in (replicas.MOVES, replicas.SUSPENSIONS, replicas.MIXED)
    ),
    *(
        partial(replicas.run, faults=faults, world=parts.PartWorld)
        for faults in (parts.RESIZES, parts.ONE_BY_ONE, parts.ALL)
    ),
    partial(replicas.run, faults=replicas.PAUSES),
)
KINDS = len(_RUNS)


def run(seed: int, *, tracing: bool = False) -> Verdict:
    """Play one seed."""
    return _RUNS[seed % KINDS](seed).verdict(tracing=tracing)
