"""One replica in a scripted group, with a control topic in memory."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from tests.support.memorycontrol import DESCRIBED, MemoryControl
from tests.support.relays import until
from watchrelay.contract.control import claim_value, control_key, control_value
from watchrelay.contract.wire import Batch, WireRecord
from watchrelay.core.clock import Clocks
from watchrelay.core.errors import SinkUnavailable
from watchrelay.observe.metrics import Metrics
from watchrelay.observe.status import StatusRegistry
from watchrelay.replicas import group
from watchrelay.replicas.assignor import (
    MemberAssignment,
    MemberMetadata,
    decode_metadata,
    encode,
)
from watchrelay.replicas.sharing import SharedTenure, Sharing

BALANCE_AFTER_S = 60.0


class ScriptedGroup:
    """A group that does what the test says."""

    def __init__(self, replica: group.Replica) -> None:
        self.generation, self.leads = -1, False
        self.doubtful = self.silent = self.forgotten = False
        self.answered_s = -math.inf
        self.rejoins = self.left = 0
        self.assign, self.lose, self._replica = replica.assign, replica.lost, replica

    def rejoin(self) -> None:
        self.rejoins += 1

    async def rejoined(self) -> None:
        """Returns once the replica asks to join again."""
        known = self.rejoins
        await until(lambda: self.rejoins > known, steps=100_000)

    async def run(self) -> None:
        await asyncio.Event().wait()

    async def leave(self, *, within_s: float) -> None:
        self.left += 1

    def reported(self) -> MemberMetadata:
        """What the replica reports as it joins."""
        metadata = decode_metadata(self._replica.metadata())
        assert metadata is not None
        return metadata

    def give(
        self, own: dict[str, str], *others: str, joining: bool = True, warm: tuple[str, ...] = ()
    ) -> None:
        """The next generation. `others`: holders of the other members; `joining` False: the replica
        joined before what happened last."""
        if joining:
            self._replica.metadata()
        self.generation += 1
        owners: dict[str, tuple[str, ...]] = {"h": tuple(own), **dict.fromkeys(others, ())}
        self._replica.assigned(self.generation, encode(MemberAssignment(own, warm, owners)))

    def lead(self, *others: MemberMetadata) -> None:
        """The next generation, as this replica decides it for itself and these members."""
        self.leads = True
        members = {each.holder: encode(each) for each in others}
        given = self.assign({"h": self._replica.metadata(), **members})
        self.generation += 1
        self._replica.assigned(self.generation, given["h"])


class HeldSink:
    """Knows the end of the control topic, unless it is away."""

    def __init__(self, control: MemoryControl) -> None:
        self._control = control
        self.away = False
        self.resets = self.resumes = 0
        self.held: Callable[[], bool] = lambda: False

    def hold_while(self, held: Callable[[], bool]) -> None:
        self.held = held

    def resume(self) -> None:
        self.resumes += 1

    def reset(self) -> None:
        self.resets += 1

    async def end_offset(self, topic: str, partition: int) -> int:
        await asyncio.sleep(0.01)
        if self.away:
            raise SinkUnavailable("no broker answers")
        return len(self._control.records)


class KnownCopy:
    """A copy that is as the test sets it."""

    def __init__(self, *, may_be_claimed: bool = True) -> None:
        self.may_be_claimed = may_be_claimed
        self.wanted: list[bool] = []

    def want(self, wanted: bool) -> None:
        if self.wanted[-1:] != [wanted]:
            self.wanted.append(wanted)


class Replica:
    """`Sharing` with everything around it."""

    def __init__(self, wall_ahead_s: float = 0.0) -> None:
        self.topic, self.statuses, self.metrics = MemoryControl(), StatusRegistry(), Metrics()
        self.sink = HeldSink(self.topic)
        self.api_answers = True
        self.ended: list[str] = []
        self.suspended_s = 0.0
        loop = asyncio.get_running_loop()
        self.sharing = Sharing(
            make_group=self._make_group,
            control=self.topic.control,
            sink=self.sink,
            metrics=self.metrics,
            statuses=self.statuses,
            api_answers=self._answers,
            balance_after_s=BALANCE_AFTER_S,
            standbys=1,
            rng=random.Random(1),
            clocks=Clocks(
                loop.time,
                lambda: loop.time() + self.suspended_s,
                lambda: int((loop.time() + wall_ahead_s) * 1000),
            ),
        )
        self._tenures: dict[str, SharedTenure] = {}
        self.plan("pods", "jobs")

    def _make_group(self, replica: group.Replica) -> Any:
        self.group = ScriptedGroup(replica)
        return self.group

    async def _answers(self) -> bool:
        await asyncio.sleep(0.1)
        return self.api_answers

    def answer(self) -> None:
        """The group answers a heartbeat that was sent now."""
        self.group.doubtful = False
        self.group.answered_s = asyncio.get_running_loop().time() + self.suspended_s

    def plan(
        self, *streams: str, revision: int = 1, config_hash: str = "c", plan: str = "plan"
    ) -> None:
        plans = dict.fromkeys(streams, plan)
        self.sharing.offer_plans(plans, revision=revision, config_hash=config_hash)

    def tenure(self, stream: str = "pods") -> SharedTenure:
        """As the stream's runner has it."""
        progress = self.statuses.open(stream).progress
        made = self.sharing.tenure(stream, progress, lambda: self.ended.append(stream))
        return self._tenures.setdefault(stream, made)

    async def write(self, stream: str = "pods") -> int:
        """Claim and write a stream."""
        tenure = self.tenure(stream)
        tenure.begin()
        tenure.epoch = await self.topic.claim(stream)
        tenure.claimed()
        return tenure.epoch

    async def claimed_by(self, holder: str, stream: str = "pods", *partitions: int) -> None:
        """Another relay claims a stream, or a part, which has these partitions."""
        instance = f"instance {len(self.topic.records)}"
        value = claim_value(holder, instance, "1", 0, None, partitions=partitions or None)
        record = WireRecord(control_key("claim", stream), control_value(value), [])
        await self.topic.deliver(Batch("control", 0, [record], stream))

    async def counted(self, objects: int, stream: str = "pods") -> None:
        """The stream's newest snapshot has so many objects."""
        value = {
            "snapshot": "1-1", "epoch": self.topic.control.newest_claims(stream)[stream],
            "rv": "5", "time": "2026-01-01T00:00:00Z", "count": objects,
            "partitions": [{"partition": 0, "begin": 1, "end": 2, "count": objects, "digest": "0" * 16}],
        }  # fmt: skip
        record = WireRecord(control_key("snapshot", stream), control_value(value), [])
        await self.topic.deliver(Batch("control", 0, [record], stream))

    async def described(self, stream: str = "pods", topic: str = "t", partitions: int = 1) -> None:
        value = {**DESCRIBED, "topic": topic, "partitions": partitions, "epochBase": 1}
        record = WireRecord(control_key("stream", stream), control_value(value), [])
        await self.topic.deliver(Batch("control", 0, [record], stream))


@asynccontextmanager
async def running(*, wall_ahead_s: float = 0.0) -> AsyncIterator[Replica]:
    replica = Replica(wall_ahead_s)
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(replica.sharing.run(), name="sharing")
        await asyncio.sleep(0.2)
        yield replica
        task.cancel()


# ---- what may be claimed -------------------------------------------------------------------------
