"""This replica's part in sharing the streams: what it reports to the group, what it is assigned,
and when it may claim. Whether it may still write is decided in doubt.py.

The group says who should write a stream, a claim decides who does: what an assignment takes away is
written until a newer claim is read.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final, Literal

from watchrelay.core.clock import Clocks
from watchrelay.core.tasks import first_of
from watchrelay.core.trouble import Cause, Trouble
from watchrelay.kafka.control_topic import ControlTopic
from watchrelay.model.progress import StreamProgress
from watchrelay.observe.group import GroupStatus
from watchrelay.observe.metrics import Metrics
from watchrelay.observe.status import StatusRegistry
from watchrelay.replicas.assignor import (
    MemberAssignment,
    MemberMetadata,
    decode_assignment,
    encode,
)
from watchrelay.replicas.doubt import Doubt, HoldableSink
from watchrelay.replicas.fitness import Fitness
from watchrelay.replicas.group import GroupMember, Replica
from watchrelay.replicas.leader import Leader, group_status, rebalance_reason
from watchrelay.replicas.offers import Offers
from watchrelay.replicas.ownership import Copy, Tenure, show_owner
from watchrelay.replicas.rights import REGATHER_S, Rights

log = logging.getLogger(__name__)

AWAIT_ASSIGNMENT_S: Final = 0.5
"""How long a writer that reads a claim of another member waits for the assignment after it; that
member waits for the release for 1 s."""
LEAVE_TIMEOUT_S: Final = 2.0
_UNREADABLE: Final = "assignment"
_UNREADABLE_TROUBLE: Final = Trouble(
    "",
    Cause.GROUP,
    "what the leader of the group assigns cannot be read, so this replica writes no other streams: "
    "another program, or a release that does not fit, leads the group: end it, or choose another "
    "kafka.topicPrefix or cluster",
)
_SILENCE_CHECK_S: Final = 1.0

Phase = Literal["standby", "claiming", "writing", "lost", "superseded"]
"""Of a stream that this replica may write.

standby: another replica writes it, or will. claiming: its claim is on its way. writing: it is
claimed. lost: its runner is to end, as it may not be claimed, or another relay was faster.
superseded: its writer is to end, as a newer claim was read.
"""
Leaving = Literal["", "wanted", "reported", "assigned"]
"""How far a replica is that leaves. reported: by its newest join. assigned: the leader has decided
after that."""


class SharedTenure(Tenure):
    """That of a replica: it waits until the group assigns the stream."""

    def __init__(
        self, sharing: Sharing, stream: str, progress: StreamProgress, end: Callable[[], None]
    ) -> None:
        """Args: `end`: called when the stream is no longer to be claimed, and, once it was claimed,
        when a newer claim is read."""
        super().__init__(stream, sharing.control)
        self.progress = progress
        self.phase: Phase = "standby"
        self._sharing, self._end = sharing, end
        self._former = ""
        """The replica that writes the stream and hands it over."""
        self._since_s = math.inf
        """When it was decided to claim the stream."""
        self._takeover: Callable[[], None] | None = None
        """Counts a takeover, at the first acknowledgement; None: no other replica wrote before."""
        self._superseded_s: float | None = None
        """When a newer claim was noticed first."""

    @property
    def ends_by_claim(self) -> bool:
        return self.phase != "standby"

    @property
    def over(self) -> bool:
        return self.phase in ("lost", "superseded")

    @property
    def awaits_release(self) -> bool:
        # the writers of parts of another layout may be finishing, and then are no longer reported
        others = self._control.newest_claims(self.stream).keys() - {self.stream}
        return bool(self._former or others)

    @property
    def is_beginning(self) -> bool:
        """Whether the stream is being claimed, or what was published before is not known yet."""
        return self.phase in ("claiming", "lost") or self.progress.state == "resuming"

    async def assigned(self, copy: Copy, show_standby: Callable[[], None], /) -> bool:
        sharing, stream = self._sharing, self.stream
        await sharing.joined.wait()
        if not sharing.may_claim(stream):
            self.epoch = 0  # what others claim meanwhile supersedes nothing of this replica's
            show_standby()
        while True:
            own = sharing.rights.own.get(stream)
            copy.want(own is not None or stream in sharing.rights.assignment.warm)
            if own and sharing.may_claim(stream) and (not own.former or copy.may_be_claimed):
                break
            await sharing.changed.wait()
        self.begin()
        return True

    def warmed(self, is_warm: bool) -> None:
        warm = self._sharing.warm
        if is_warm:
            warm.add(self.stream)
        else:
            warm.discard(self.stream)
        self._sharing.wake()

    def begin(self) -> None:
        """The claim begins."""
        sharing, own = self._sharing, self._sharing.rights.own.get(self.stream)
        self._former = own.former if own else ""
        self.phase, self._since_s, self._superseded_s = "claiming", sharing.clocks.now_s(), None
        sharing.tenures[self.stream] = self
        holder, self._takeover = self._control.holder_of(self.stream), None
        if holder not in (None, self._control.holder):
            kind = "handover" if self._former else "failover"
            self._takeover = partial(self._took_over, kind, own.given_s if own else self._since_s)

    def claimed(self) -> None:
        if self.phase == "claiming":
            self.phase = "writing"
        if own := self._sharing.rights.own.get(self.stream):
            own.former = ""  # it may be claimed again without a copy
        if self._takeover:
            self.progress.next_acked = self._takeover
        self._sharing.end_superseded()

    def _took_over(self, kind: str, assigned_s: float) -> None:
        duration_s = self._sharing.clocks.now_s() - assigned_s
        self._sharing.takeovers.labels(kind).observe(duration_s)

    def end(self, phase: Literal["lost", "superseded"]) -> None:
        """Tell its runner to end the claim, or the writer."""
        self.phase = phase
        self._end()

    def may_finish(self) -> bool:
        """Whether another replica was assigned the stream, or claimed it a moment ago, or this is a
        part that left the config; and this replica cannot have been suspended."""
        if self._sharing.doubt.unsure():
            return False
        return self._given_up or (self.ends_by_claim and self._assignment_due_s() > 0)

    @property
    def _given_up(self) -> bool:
        """The stream is another's by the assignment, or left the config."""
        sharing = self._sharing
        return self.stream not in sharing.rights.own or self.stream not in sharing.offers.plans

    def _assignment_due_s(self) -> float:
        """Note that a newer claim was read. Returns: for how many seconds more to wait for the
        assignment of the stream to its claimant; none where that is a writer outside the group."""
        now_s, owners = self._sharing.clocks.now_s(), self._sharing.rights.assignment.owners
        if self._superseded_s is None:
            self._superseded_s = now_s
        if owners and self._control.holder_of(self.stream) not in owners:
            return 0.0
        return self._superseded_s + AWAIT_ASSIGNMENT_S - now_s

    async def handed_over(self) -> bool:
        """See `Tenure`. Waits a moment: an owner may read the claim before the assignment."""
        doubt = self._sharing.doubt
        try:
            async with asyncio.timeout(max(0.0, self._assignment_due_s())):
                while not (self._given_up or doubt.unsure()):
                    await self._sharing.changed.wait()
        except TimeoutError:
            return False
        return not doubt.unsure()

    def lose(self) -> bool:
        sharing, stream = self._sharing, self.stream
        if not self.over:
            self.phase = "lost"
        had_right = sharing.rights.lose([stream])
        if not had_right:
            return False
        outsider = self._control.holder_of(stream) not in sharing.rights.assignment.owners
        if outsider:
            wait_s = sharing.offers.outclaimed(stream, since_s=self._since_s)
            if wait_s < math.inf:
                asyncio.get_running_loop().call_later(wait_s, sharing.group.rejoin)
        sharing.group.rejoin()
        return outsider

    def ended(self) -> bool:
        sharing, own = self._sharing, self._sharing.rights.own.get(self.stream)
        was_begun = sharing.tenures.pop(self.stream, None) is not None
        is_owner = own is not None and not own.former
        if was_begun and not is_owner and self.phase != "superseded" and not sharing.leaving:
            sharing.group.rejoin()  # until then the owner waits for a hand-over by this replica
        if over := self.over:
            self.epoch = 0
        self.phase = "standby"
        sharing.wake()
        return over


class Sharing:
    """Use: `offer_plans` with each config, `run()` as a task; at the end `hand_over()`, `leave()`.

    Args:
        make_group: makes the member of the group from the callbacks of this class.
        api_answers: whether the API server answers a request now.
        balance_after_s, standbys: see `Leader`.
        make_doubt: makes what decides whether this replica may write.
    """

    shares = True

    def __init__(
        self,
        *,
        make_group: Callable[[Replica], GroupMember],
        control: ControlTopic,
        sink: HoldableSink,
        metrics: Metrics,
        statuses: StatusRegistry,
        api_answers: Callable[[], Awaitable[bool]],
        balance_after_s: float,
        standbys: int,
        rng: random.Random | None = None,
        clocks: Clocks | None = None,
        make_doubt: type[Doubt] = Doubt,
    ) -> None:
        self.control, self._metrics, self._statuses = control, metrics, statuses
        self.clocks = clocks = clocks or Clocks()
        self.offers = Offers(control, clocks, rng or random.Random())
        self.rights = Rights(clocks.now_s)
        self.fitness = Fitness(api_answers, clocks)
        self._leader = Leader(control, clocks, balance_after_s=balance_after_s, standbys=standbys)
        self.tenures: dict[str, SharedTenure] = {}
        """By stream, what is claimed or written, until its writer has ended."""
        self.warm: set[str] = set()
        """The streams whose copies are read to the end."""
        self._counter = 0
        self._planned, self.joined = asyncio.Event(), asyncio.Event()
        self.changed = asyncio.Event()
        """Of what decides about claims; another one after each change."""
        self.leaving: Leaving = ""
        self.group = make_group(self)
        self.doubt = make_doubt(
            self.group,
            control=control,
            sink=sink,
            writes=lambda: bool(self.tenures),
            assigned=lambda: self.tenures.keys() <= self.rights.valid,
            end_claims=self._end_claims,
            end_superseded=self._end_superseded,
            clocks=clocks,
        )
        statuses.group = GroupStatus(control.holder)
        self.takeovers = metrics.histogram("takeover_duration_seconds")

    async def run(self) -> None:
        """Be a member of the group until cancelled."""
        await self._planned.wait()
        await self.control.caught_up()
        self.offers.know_retired()
        fitness = self.fitness.run(answered=self.wake, changed=self.group.rejoin)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.group.run(), name="group member")
            tasks.create_task(self._watch_claims(), name="group claims")
            tasks.create_task(fitness, name="group fitness")
            tasks.create_task(self.doubt.run(), name="group doubts")
            tasks.create_task(self._leader.run(self.group), name="group balance")

    def offer_plans(self, plans: Mapping[str, str], *, revision: int, config_hash: str) -> None:
        """This replica can run these streams.

        Args:
            plans: by stream, the hash of how it would run it.
        """
        if self.offers.replace(plans, revision=revision, config_hash=config_hash):
            self.group.rejoin()
        self._planned.set()

    def tenure(
        self, stream: str, progress: StreamProgress, end: Callable[[], None]
    ) -> SharedTenure:
        """That of a stream, or part; see there."""
        return SharedTenure(self, stream, progress, end)

    def may_claim(self, stream: str) -> bool:
        """Whether the stream is assigned to this replica and was not lost since."""
        answered_s = self.fitness.answered_s
        return not self.leaving and self.rights.may_claim(stream, answered_s=answered_s)

    def wake(self) -> None:
        """Something of what decides about claims has changed."""
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()

    # ---- the group's callbacks -------------------------------------------------------------------

    def metadata(self) -> bytes:
        """See `Replica`."""
        self._counter += 1
        self.rights.forget_losses()
        if self.leaving == "wanted":
            self.leaving = "reported"
        offered, own = self.offers.now(), self.rights.own
        api_failed_ago_ms = int((self.clocks.boot_s() - self.fitness.failed_s) * 1000)
        return encode(
            MemberMetadata(
                holder=self.control.holder,
                config_order=self.offers.order,
                plans=offered,
                assigned={each: own[each].generation for each in own if each in offered},
                writing={
                    stream: tenure.epoch
                    for stream, tenure in self.tenures.items()
                    if tenure.phase == "writing"
                },
                warm=tuple(sorted(self.warm)),
                fit=self.fitness.is_fit,
                leaving=bool(self.leaving),
                counter=self._counter,
                config_hash=self.offers.config_hash,
                beginning=tuple(sorted(k for k, its in self.tenures.items() if its.is_beginning)),
                api_failed_ms=self.clocks.wall_ms() - api_failed_ago_ms,
                ages_ms=(self.offers.age_ms, api_failed_ago_ms),
            )
        )

    def assign(self, members: Mapping[str, bytes]) -> Mapping[str, bytes]:
        """See `Replica`."""
        return self._leader.assign(members)

    def assigned(self, generation: int, data: bytes) -> None:
        """See `Replica`."""
        assignment = decode_assignment(data)
        if assignment is None:
            log.warning("assignment of the group cannot be read", extra={"generation": generation})
            self._statuses.problems.put(_UNREADABLE, _UNREADABLE_TROUBLE)
            assignment = MemberAssignment()
        else:
            self._statuses.problems.pop(_UNREADABLE, None)
        self._show_group(generation, assignment)
        self.rights.take(generation, assignment)
        if self.leaving == "reported":
            self.leaving = "assigned"
        own = assignment.own
        if len(self.rights.valid) < len(own):  # what was lost may be claimed after a newer join
            self.group.rejoin()
        if any(own.values()):
            self.fitness.check()
        log.info("streams assigned", extra={"generation": generation, "streams": len(own)})
        self.joined.set()
        self._end_invalid_claims()

    def _show_group(self, generation: int, assignment: MemberAssignment) -> None:
        """Show the group of this generation, which `rights` does not have yet; its leader counts
        why there is a new one."""
        former = self._statuses.group
        if self.group.leads and former is not None and former.generation != generation:
            reason = rebalance_reason(self.rights.assignment.group, assignment.group)
            self._metrics.counter("group_rebalances").labels(reason).inc()
        revision, _ = self.offers.order
        holder = self.control.holder
        self._statuses.group = group_status(holder, revision, generation, assignment)

    def lost(self) -> None:
        """See `Replica`."""
        self.rights.lose_all_but(())
        if self.group.forgotten:
            self.rights.regather()
            asyncio.get_running_loop().call_later(REGATHER_S, self.wake)
        self.doubt.membership_lost()
        self._end_invalid_claims()

    def _end_claims(self) -> None:
        """End claims on their way. Others may have claimed what is not written: this replica
        claims it by a newer assignment only."""
        written = [
            each for each, its in self.tenures.items() if its.phase in ("writing", "superseded")
        ]
        if self.rights.lose_all_but(written):
            self.group.rejoin()
        self._end_invalid_claims()

    def _end_invalid_claims(self) -> None:
        valid = self.rights.valid
        for each in self.tenures.values():
            if each.phase == "claiming" and each.stream not in valid:
                each.end("lost")
        self.wake()

    # ---- claims of others ------------------------------------------------------------------------

    async def _watch_claims(self) -> None:
        while True:
            await self.control.until(self._take_claims)
            self.end_superseded()

    def _take_claims(self) -> bool:
        """Show the streams that others write, and withhold what was retired. Returns: whether
        another replica has claimed a stream that this one writes."""
        for stream in self._statuses.standing_by:
            show_owner(stream, self._statuses, self.control, self._metrics)
        if retired := self.offers.newly_retired():
            self.rights.lose(retired - self.tenures.keys())
            self.group.rejoin()
        return bool(self._superseded())

    def _superseded(self) -> list[SharedTenure]:
        """What this replica writes and another has claimed."""
        return [
            each
            for each in self.tenures.values()
            if each.phase == "writing" and self.control.superseded(each.stream, each.epoch)
        ]

    def end_superseded(self) -> None:
        """End what others have claimed."""
        for each in self._superseded():
            each.end("superseded")

    async def _end_superseded(self) -> None:
        """End what others have claimed; return once all that is to end has."""
        self.end_superseded()
        while any(each.over for each in self.tenures.values()):
            await self.changed.wait()
            self.end_superseded()

    # ---- the end ---------------------------------------------------------------------------------

    async def hand_over(self, *, within_s: float) -> None:
        """Let the other replicas take the streams of this one, which writes each until its
        successor has claimed it. Returns when none is left that another will take, when the group
        cannot be reached, or after `within_s`."""
        self.leaving = "wanted"
        self.group.rejoin()
        self._end_invalid_claims()
        log.info("handing over streams", extra={"streams": len(self.tenures)})
        try:
            async with asyncio.timeout(within_s):
                was_silent = False
                while self._awaits_successors():
                    if was_silent and self.group.silent:
                        log.warning("group cannot be reached, handing nothing over")
                        break
                    was_silent = self.group.silent
                    await first_of(self.changed, timeout_s=_SILENCE_CHECK_S)
        except TimeoutError:
            log.warning("streams were not taken over", extra={"streams": len(self.tenures)})

    def _awaits_successors(self) -> bool:
        """Whether other replicas may take a stream of this one, which leaves."""
        kept = self.rights.own if self.leaving == "assigned" else {}
        return not self.tenures.keys() <= kept.keys()

    async def leave(self) -> None:
        """Leave the group: what is still assigned to this replica is assigned to others."""
        await self.group.leave(within_s=LEAVE_TIMEOUT_S)
