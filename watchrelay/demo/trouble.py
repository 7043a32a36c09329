"""Two faults of the demo, and how each heals: a missing right, and a Kafka that is away."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from watchrelay.core import clock
from watchrelay.demo.cluster import SyntheticCluster
from watchrelay.demo.kafka import EmbeddedKafka
from watchrelay.observe.status import StatusRegistry

STREAM: Final = "secrets"
_REFUSED: Final = {("list", STREAM), ("watch", STREAM)}
REFUSED_S: Final = 10.0
"""How long the right is missing after the other streams are ready."""
AWAY_S: Final = 20.0
"""How long Kafka is away."""
_CALM_S: Final = 5.0
_POLL_S: Final = 0.2


class Trouble:
    """Use: `begin()` before the relay starts, `run()` as a task once the relay is ready.

    `say` is called with each message for the person who looks on."""

    def __init__(
        self,
        cluster: SyntheticCluster,
        broker: EmbeddedKafka,
        statuses: StatusRegistry,
        say: Callable[[str], None],
    ) -> None:
        self._cluster, self._broker = cluster, broker
        self._statuses, self._say = statuses, say

    def begin(self) -> None:
        """Take the right away."""
        self._cluster.server.behaviour.forbidden |= _REFUSED

    async def run(self, page: str) -> None:
        """Show both faults, one after the other. `page`: the address of the status page."""
        self._say(
            f"trouble 1 of 2: the relay may not list and watch {STREAM}: that stream waits, the "
            f"others go on. See {page} and {page}readyz"
        )
        await asyncio.sleep(REFUSED_S)
        self._cluster.server.behaviour.forbidden -= _REFUSED
        self._say(f"the right is granted: {STREAM} asks again within 36 s, nothing is to be done")
        await self._healed(lambda: self._statuses.streams[STREAM].complete)
        await asyncio.sleep(_CALM_S)
        self._broker.broker_down()
        self._say(
            f"trouble 2 of 2: Kafka is away for {AWAY_S:g} s: watches go on, and changes are "
            f"queued. See {page}"
        )
        await asyncio.sleep(AWAY_S)
        self._broker.broker_up()
        self._say("Kafka is back: what is queued is sent, each change once and in order")
        await self._healed(self._sent)
        self._say("no trouble any longer; `watchrelay verify` checks every digest on the topics")

    def _sent(self) -> bool:
        streams = self._statuses.streams.values()
        return not self._statuses.problems and not any(
            each.queues.queued_records for each in streams
        )

    async def _healed(self, condition: Callable[[], bool]) -> None:
        began_s = clock.now_s()
        while not condition():  # noqa: ASYNC110  # computed on demand, not announced
            await asyncio.sleep(_POLL_S)
        self._say(f"healed after {clock.now_s() - began_s:.0f} s")
