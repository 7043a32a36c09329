"""Whether this replica may write: after a suspension, or a session with no answer of the group, it
sends nothing until it has read what others have claimed. In: the group, the clock, the claims. Out:
the answer before each produce request, the end of claims and of writers, the sink held and resumed.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from watchrelay.core.clock import Clocks
from watchrelay.core.errors import SinkUnavailable, TopicLost
from watchrelay.kafka.control_topic import ControlTopic
from watchrelay.publish.writer import RELEASE_WAIT_S
from watchrelay.replicas.group import GroupMember

log = logging.getLogger(__name__)

LOOK_TIMEOUT_S: Final = 2.0
"""If the control topic was not read to its end within this time, the producer's connections are
reset."""
SURE_S: Final = 2.0
"""How long a replica writes on after such a look, if no heartbeat is answered meanwhile."""
_CHECK_S: Final = 0.5
"""Between two checks beside those before requests: a replica that sends nothing, because nothing
is answered, must cut in time what it has sent."""


class HoldableSink(Protocol):
    """The part of the sink that a doubt stops. Implemented and described by kafka/sink.py."""

    def hold_while(self, held: Callable[[], bool]) -> None: ...
    def resume(self) -> None: ...
    def reset(self) -> None: ...
    async def end_offset(self, topic: str, partition: int) -> int: ...


class Doubt:
    """Use: `run()` as a task.

    Args:
        writes: whether this replica writes or claims any stream.
        assigned: whether all of these are assigned to it.
        end_claims: ends claims that are being made: what is not written is claimed by a newer
            assignment only.
        end_superseded: ends the writers of streams that others have claimed; returns once all
            writers and claims that are to end have ended.
    """

    def __init__(
        self,
        group: GroupMember,
        *,
        control: ControlTopic,
        sink: HoldableSink,
        writes: Callable[[], bool],
        assigned: Callable[[], bool],
        end_claims: Callable[[], None],
        end_superseded: Callable[[], Awaitable[None]],
        clocks: Clocks,
    ) -> None:
        self._group, self._control, self._sink = group, control, sink
        self._writes, self._assigned = writes, assigned
        self._end_claims, self._end_superseded = end_claims, end_superseded
        self._now_s, self._boot_s = clocks.now_s, clocks.boot_s
        self._in_doubt = asyncio.Event()
        self._generation: int | None = None
        """That in which the doubt began, for an answer in a newer one proves nothing; None: the
        membership was lost."""
        self._sure_until_s = -math.inf
        self._ran_s = clocks.boot_s()
        """When this process surely ran last."""
        self._stood_still = False
        """This process stood still, and the claims were not read since."""
        sink.hold_while(self.check)

    async def run(self) -> None:
        """End each doubt as soon as the claims were read, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch_clock(), name="group clock")
            tasks.create_task(self._resolve(), name="group doubts")

    def check(self) -> bool:
        """Begin a doubt where this replica may have been suspended, and others may own its streams;
        asked before each produce request is written. Returns: whether none may leave."""
        now_s, is_new = self._boot_s(), not self._in_doubt.is_set()
        is_silent = self._group.doubtful and now_s >= self._sure_until_s
        stood_still = now_s - self._ran_s > RELEASE_WAIT_S  # a successor may write by now
        self._stood_still = self._stood_still or stood_still
        if self._writes() and (stood_still or (is_silent and is_new)):
            if is_new:
                self._generation = self._group.generation
                self._in_doubt.set()
            if is_silent:
                self._end_claims()
        return self._in_doubt.is_set()

    def unsure(self) -> bool:
        """Whether this replica may no longer be a member. It may write then, once it has read the
        claims, but nothing after a newer one, whose writer does not wait for it."""
        return self.check() or self._group.doubtful

    def membership_lost(self) -> None:
        """The group no longer knows this replica: a doubt ends by the claims alone."""
        self._generation = None
        if self._writes():
            self._in_doubt.set()

    async def _watch_clock(self) -> None:
        while True:
            await asyncio.sleep(_CHECK_S)
            self.check()
            self._ran_s = self._boot_s()

    async def _resolve(self) -> None:
        while True:
            await self._in_doubt.wait()
            began_s = self._now_s()
            await self._make_sure()
            while self._stood_still:  # suspended again after the end of the claims that were read
                await self._make_sure()
            self._sure_until_s = self._boot_s() + SURE_S
            self._in_doubt.clear()
            self._sink.resume()
            took_s = round(self._now_s() - began_s, 3)
            log.debug("replica is sure of its streams again", extra={"took_s": took_s})

    async def _make_sure(self) -> None:
        """Learn what others have claimed, and end what they own now."""
        self._ran_s = asked_s = self._boot_s()
        self._stood_still = False
        while not (await self._look() or self._is_confirmed(asked_s)):
            self._sink.reset()
        await self._end_superseded()  # before the doubt ends: nothing of it is sent
        self.check()

    def _is_confirmed(self, since_s: float) -> bool:
        """Whether a heartbeat sent since then was answered in the generation in which the doubt
        began, and no other replica was assigned what this one writes."""
        group = self._group
        is_answered = group.answered_s >= since_s and not group.doubtful
        return is_answered and group.generation == self._generation and self._assigned()

    async def _look(self) -> bool:
        """Read the control topic to the end that it has now. Whether that succeeded in time."""
        try:
            async with asyncio.timeout(LOOK_TIMEOUT_S) as within:
                end = await self._sink.end_offset(self._control.topic, 0)
                await self._control.read_up_to(end - 1)
        except TimeoutError:
            return False
        except (SinkUnavailable, TopicLost) as error:
            log.debug("cannot read the claims", extra={"error": str(error)})
            if (until_s := within.when()) is not None:  # the next look is at its usual time
                await asyncio.sleep(until_s - asyncio.get_running_loop().time())
            return False
        return True
