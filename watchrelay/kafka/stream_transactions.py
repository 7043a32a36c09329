"""When a stream may be written within transactions: after its claim, while that is the newest."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from functools import partial
from typing import Final

from watchrelay.core.errors import SinkUnavailable, TopicLost
from watchrelay.kafka.control_topic import ControlTopic
from watchrelay.kafka.sink import KafkaSink

log = logging.getLogger(__name__)

_AGAIN_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class StreamTransactions:
    """Those of one stream of `topic`. Implements the writer's `Transactions`."""

    id: str
    topic: str
    stream: str
    sink: KafkaSink
    control: ControlTopic

    async def begin(self, epoch: int) -> None:
        """See `Transactions`."""
        await self.sink.begin_transactions(
            self.topic,
            self.stream,
            transactional_id=self.id,
            former_ids=self.control.former_ids(self.stream, self.id),
            is_ours=partial(self.is_ours, epoch),
        )

    async def is_ours(self, epoch: int) -> bool:
        """Whether the claim of `epoch` is the newest."""
        await self._read_claims()
        return not self.control.superseded(self.stream, epoch)

    async def _read_claims(self) -> None:
        """Return once the control topic was read to the end that it has now."""
        while True:
            try:
                end = await self.sink.end_offset(self.control.topic, 0)
                await self.control.read_up_to(end - 1)
            except (SinkUnavailable, TopicLost) as error:
                log.debug("cannot read the claims", extra={"error": str(error)})
                await asyncio.sleep(_AGAIN_S)
            else:
                return
