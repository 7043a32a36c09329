"""Whether a topic is still the one that was opened, or another of the same name."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from watchrelay.core import clock
from watchrelay.kafka.client import KafkaError
from watchrelay.kafka.client.metadata import NO_ID

_log = logging.getLogger(__name__)

ABSENT_S: Final = 3.0
"""A topic unknown to brokers for this time was most likely deleted: a broker that starts knows
its topics sooner. (Where all brokers of a cluster with ZooKeeper have just started, it may not.)"""
_LOOK_DOUBTFUL_S: Final = 1.0
_LOOK_TIMEOUT_S: Final = 5.0

Ask = Callable[[list[str]], Awaitable[Mapping[str, bytes | None] | None]]
"""Asks brokers about topics; answers as `metadata.topic_ids`. Raises: KafkaError, OSError."""


@dataclass(slots=True)
class TopicIncarnation:
    """One topic as brokers knew it when it was opened. Pure."""

    id: bytes = NO_ID
    absent_since_s: float | None = None
    other_id: bytes = NO_ID
    """Another id, of an answer since which none had `id`: a broker that missed that the topic was
    recreated gives the former one."""

    def seen(self, found: bytes | None, now_s: float) -> str:
        """Take its id as a broker answers it, None where that does not know it, at `now_s`
        (monotonic). While `is_doubtful`, the next answer is to be that of another broker; the only
        one is asked again.

        Returns: why the topic is lost; "" for the same topic, or one that is in doubt."""
        if found is None:
            if self.absent_since_s is None:
                self.absent_since_s = now_s
            return "brokers do not know it" if now_s - self.absent_since_s >= ABSENT_S else ""
        self.absent_since_s = None
        self.id = self.id or found
        is_confirmed = found != NO_ID and found == self.other_id
        if found == self.id:
            self.other_id = NO_ID
        elif found != NO_ID:
            self.other_id = found
        return "it was deleted and recreated" if is_confirmed else ""

    @property
    def is_doubtful(self) -> bool:
        """It was missing in the newest answer, or has another id there."""
        return self.absent_since_s is not None or self.other_id != NO_ID


class TopicIncarnations:
    """The topics that are open. `lost` is called with a topic and the reason, once for each that
    `look` finds to be gone, or another."""

    def __init__(self, lost: Callable[[str, str], object]) -> None:
        self._lost = lost
        self._open: dict[str, TopicIncarnation] = {}
        self._absent: dict[str, TopicIncarnation] = {}
        """Those that were lost because brokers did not know them, and have an id."""
        self._due = asyncio.Event()

    @property
    def topics(self) -> list[str]:
        """The topics to ask about."""
        return list(self._open)

    def expect(self, topic: str, topic_id: bytes = NO_ID) -> None:
        """Ask about the topic from now on; what is known of it is kept, also the id of one that
        was absent. Args: `topic_id`: as brokers gave it just now."""
        absent = self._absent.pop(topic, None)
        known = self._open.setdefault(topic, TopicIncarnation(absent.id if absent else NO_ID))
        known.id = known.id or topic_id

    def forget(self, topic: str) -> None:
        """Ask about the topic no longer."""
        self._open.pop(topic, None)
        self._absent.pop(topic, None)

    def may_return(self, topic: str) -> bool:
        """The topic was lost because brokers did not know it, and it has an id: expected again, it
        is the same if it is there under that id, and lost once more if under another."""
        return topic in self._absent

    @property
    def doubtful(self) -> bool:
        """Some topic is in doubt: ask another broker."""
        return any(known.is_doubtful for known in self._open.values())

    def seen(self, answer: Mapping[str, bytes | None], now_s: float) -> None:
        """Take an answer of the brokers, at `now_s` (monotonic). A topic that is lost is not asked
        about until it is expected again."""
        for topic, found in answer.items():
            known = self._open.get(topic)
            if known is not None and (why := known.seen(found, now_s)):
                del self._open[topic]
                if known.id and known.absent_since_s is not None:
                    self._absent[topic] = known
                self._lost(topic, why)

    def hurry(self) -> None:
        """Look soon: a topic was added, or gave an error that says it is gone."""
        self._due.set()

    async def look(self, ask: Ask) -> None:
        """See whether the topics are there; without an answer, nothing is known."""
        try:
            async with asyncio.timeout(_LOOK_TIMEOUT_S):
                answer = await ask(self.topics) if self._open else None
        except (KafkaError, OSError, TimeoutError) as error:
            extra = {"topics": len(self._open), "error": repr(error)}
            _log.debug("cannot ask brokers whether topics exist", extra=extra)
        else:
            self.seen(answer or {}, clock.now_s())

    async def look_until_sure(self, ask: Ask) -> None:
        """Return once no topic is in doubt."""
        await self.look(ask)
        while self.doubtful:
            await asyncio.sleep(_LOOK_DOUBTFUL_S)
            await self.look(ask)

    async def keep_looking(self, ask: Ask, *, every_s: float = 10.0) -> None:
        """Look every `every_s`, often while a topic is in doubt. Run it beside reading or writing,
        which a broker that does not answer this must not delay."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_DOUBTFUL_S if self.doubtful else every_s):
                    await self._due.wait()
                    await asyncio.sleep(_LOOK_DOUBTFUL_S)  # other topics are due soon as well
            self._due.clear()
            await self.look(ask)
