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
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from msgspec.structs import replace

from watchrelay.core import clock
from watchrelay.core.backoff import Backoff
from watchrelay.core.tasks import first_of
from watchrelay.core.text import short
from watchrelay.core.trouble import Cause, Trouble
from watchrelay.kafka.control_topic import ControlTopic
from watchrelay.model.progress import StreamProgress
from watchrelay.observe.group import GroupStatus
from watchrelay.observe.metrics import Metrics
from watchrelay.observe.status import StatusRegistry
from watchrelay.replicas.assignor import (
    MemberAssignment,
    MemberMetadata,
    assign_streams,
    by_clock_of_leader,
    decode_assignment,
    decode_metadata,
    encode,
    summarize,
)
from watchrelay.replicas.doubt import Doubt, HoldableSink
from watchrelay.replicas.group_view import group_status, rebalance_reason
from watchrelay.replicas.ownership import is_retirement, objects_of, show_owner

log = logging.getLogger(__name__)

UNFIT_AFTER_S: Final = 30.0
"""Seconds without an answer of the API server after which a replica is unfit."""
API_CHECK_S: Final = 10.0
API_CHECK_AGAIN_S: Final = 2.0
AWAIT_ASSIGNMENT_S: Final = 0.5
"""How long a writer that reads a claim of another member waits for the assignment after it; that
member waits for the release for 1 s."""
REGATHER_S: Final = 3.0
"""How long a replica that the group has forgotten claims nothing after: the others are forgotten
too, perhaps, and write on; within this time they join again."""
LEAVE_TIMEOUT_S: Final = 2.0
_UNREADABLE: Final = "assignment"
_UNREADABLE_TROUBLE: Final = Trouble(
    "",
    Cause.GROUP,
    "what the leader of the group assigns cannot be read, so this replica writes no other streams: "
    "another program, or a release that does not fit, leads the group: end it, or choose another "
    "kafka.topicPrefix or cluster",
)
_BALANCE_CHECK_S: Final = 1.0
_DECIDE_AGAIN_S: Final = 10.0
"""How often the leader looks whether it would decide otherwise now, by loads or by time."""
_BALANCE_AGAIN_MAX: Final = 32
"""Where balancing moves nothing, since all that could move is on its way or waits for an operator,
it is tried again after twice the time, at most this many times `balance_after_s`."""
_SILENCE_CHECK_S: Final = 1.0
_OFFER_AGAIN: Final = Backoff(base_s=1.0, cap_s=60.0, jitter=0.1)
_HEALTHY_S: Final = 60.0


class Group(Protocol):
    """The group as a member sees it. Implemented and described by group.py."""

    generation: int
    leads: bool
    answered_s: float

    @property
    def doubtful(self) -> bool: ...
    @property
    def silent(self) -> bool: ...
    @property
    def forgotten(self) -> bool: ...
    def rejoin(self) -> None: ...
    async def run(self) -> None: ...
    async def leave(self, *, within_s: float) -> None: ...


class MakeGroup(Protocol):
    def __call__(
        self,
        *,
        metadata: Callable[[], bytes],
        assign: Callable[[Mapping[str, bytes]], Mapping[str, bytes]],
        assigned: Callable[[int, bytes], None],
        lost: Callable[[], None],
    ) -> Group: ...


class Copy(Protocol):
    """What this replica has read of a stream. Implemented and described by standby.py."""

    @property
    def may_be_claimed(self) -> bool: ...
    def want(self, wanted: bool) -> None: ...


@dataclass(slots=True)
class _Tenure:
    """A stream from the decision to claim it until its writer has ended. `takeover`: "handover" or
    "failover" where another replica wrote it before, else ""; `assigned_s`: since when the stream
    was assigned; `epoch` None: the claim is not acknowledged; `end`: ends the writer; `ending`: it
    was called."""

    end: Callable[[], None]
    since_s: float
    takeover: str
    assigned_s: float
    progress: StreamProgress
    epoch: int | None = None
    ending: bool = False
    superseded_s: float | None = None
    """When a newer claim was noticed."""


class Sharing:
    """Use: `offer_plans` with each config, `run()` as a task; at the end `hand_over()`, `leave()`.

    Args:
        make_group: makes the member of the group from the callbacks of this class.
        api_answers: whether the API server answers a request now.
        balance_after_s: how long the group must be quiet before streams move to even out loads.
        standbys: how many replicas beside the owner are to follow each stream.
        make_doubt: makes what decides whether this replica may write.
    """

    def __init__(
        self,
        holder: str,
        *,
        make_group: MakeGroup,
        control: ControlTopic,
        sink: HoldableSink,
        metrics: Metrics,
        statuses: StatusRegistry,
        api_answers: Callable[[], Awaitable[bool]],
        balance_after_s: float,
        standbys: int,
        rng: random.Random | None = None,
        now_s: Callable[[], float] = clock.now_s,
        boot_s: Callable[[], float] = clock.boot_s,
        wall_ms: Callable[[], int] = clock.wall_ms,
        make_doubt: type[Doubt] = Doubt,
    ) -> None:
        self._holder, self._control = holder, control
        self._metrics, self._statuses, self._api_answers = metrics, statuses, api_answers
        self._balance_after_s, self._standbys = balance_after_s, standbys
        self._rng = rng or random.Random()
        self._now_s, self._boot_s, self._wall_ms = now_s, boot_s, wall_ms
        self._plan_hashes: dict[str, str] = {}
        self._config: tuple[tuple[int, int], str] = ((0, 0), "")
        self._adopted_s = boot_s()
        self._planned, self._joined = asyncio.Event(), asyncio.Event()
        self._assignment = MemberAssignment()
        self._assigned_in: dict[str, int] = {}
        """By stream of the assignment, the generation since which it is in it."""
        self._given_s: dict[str, float] = {}
        """The same, since when."""
        self._claimable: set[str] = set()
        """Streams of the assignment that were not lost since, nor was the membership."""
        self._lost_since_join: set[str] = set()
        self._regathered_s = -math.inf
        """When claims may begin again after the group has forgotten this replica."""
        self._not_offered: dict[str, float] = {}
        """Streams that were lost to a writer outside the group, until when they are not offered to
        the group; infinity: until the config changes."""
        self._retired: set[str] = set()
        """Streams that were retired before the config was as it is, or are not offered since."""
        self._offers: dict[str, Backoff] = {}
        self._tenures: dict[str, _Tenure] = {}
        self._warm: set[str] = set()
        self._counter = 0
        self._changed = asyncio.Event()
        self._leaving = False
        self._leaving_reported = self._leaving_assigned = False
        """That this replica leaves was reported in the newest join; its assignment is known."""
        self._fit = True
        self._api_answered_s, self._api_failed_s = now_s(), boot_s()
        self._check_api = asyncio.Event()
        self._members: frozenset[tuple[str, bool, bool]] = frozenset()
        self._unreadable = frozenset[str]()
        self._even, self._disturbed_s = True, now_s()
        self._patience = 1
        """How many times `balance_after_s` the group must be quiet."""
        self._known: Mapping[str, MemberMetadata] = {}
        """What the members reported when this replica last decided as their leader."""
        self._weights: Mapping[str, float] = {}
        self._owners: Mapping[str, frozenset[str]] = {}
        """What was decided of it, without balancing."""
        self._group = make_group(
            metadata=self._metadata, assign=self._assign, assigned=self._assigned, lost=self._lost
        )
        self._doubt = make_doubt(
            self._group,
            control=control,
            sink=sink,
            writes=lambda: bool(self._tenures),
            assigned=lambda: self._tenures.keys() <= self._claimable,
            end_claims=self._end_claims,
            superseded_ended=self._superseded_ended,
            now_s=now_s,
            boot_s=boot_s,
        )
        statuses.group = GroupStatus(holder)
        self._rebalances = metrics.counter("group_rebalances")
        self._takeovers = metrics.histogram("takeover_duration_seconds")

    async def run(self) -> None:
        """Be a member of the group until cancelled."""
        await self._planned.wait()
        await self._control.caught_up()
        self._retired = self._retirements()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._group.run(), name="group member")
            tasks.create_task(self._watch_claims(), name="group claims")
            tasks.create_task(self._watch_api(), name="group fitness")
            tasks.create_task(self._doubt.run(), name="group doubts")
            tasks.create_task(self._balance(), name="group balance")

    # ---- what this replica can run ---------------------------------------------------------------

    def offer_plans(self, plans: Mapping[str, str], *, revision: int, config_hash: str) -> None:
        """This replica can run these streams.

        Args:
            plans: by stream, the hash of how it would run it.
        """
        (known_revision, adopted_ms), known_hash = self._config
        edited = (revision, config_hash) != (known_revision, known_hash)
        if edited:
            if config_hash != known_hash:
                self._adopted_s, adopted_ms = self._boot_s(), self._wall_ms()
            self._config = (revision, adopted_ms), config_hash
        if edited or plans != self._plan_hashes:
            self._group.rejoin()
        if plans != self._plan_hashes:
            self._plan_hashes = dict(plans)
            self._retired = self._retirements()
        self._not_offered = {
            stream: until_s
            for stream, until_s in self._not_offered.items()
            if stream in plans and (until_s < math.inf or config_hash == known_hash)
        }
        self._planned.set()

    def _offered(self) -> dict[str, str]:
        now_s = self._now_s()
        return {
            stream: plan
            for stream, plan in self._plan_hashes.items()
            if self._not_offered.get(stream, now_s) <= now_s
        }

    # ---- one stream: called by its runner --------------------------------------------------------

    async def joined(self) -> None:
        """Return once the group has assigned streams to this replica, or none."""
        await self._joined.wait()

    async def assigned(self, stream: str, copy: Copy) -> str:
        """Return once this replica may claim `stream`: the holder that writes it now and hands it
        over, "" if none does. While a live writer goes on, the copy is read to the end first."""
        while True:
            own, warm = self._assignment.own, self._assignment.warm
            copy.want(stream in own or stream in warm)
            if self.may_claim(stream) and (not own[stream] or copy.may_be_claimed):
                return own[stream]
            await self._changed.wait()

    def warmed(self, stream: str, is_warm: bool) -> None:
        """The copy of `stream` was read to the end, or was dropped."""
        if is_warm:
            self._warm.add(stream)
        else:
            self._warm.discard(stream)
        self._wake()

    def may_claim(self, stream: str) -> bool:
        """Whether the stream is assigned to this replica and was not lost since. What a live
        writer hands over is claimed only once the API server has answered this replica since."""
        return (
            stream in self._claimable
            and not self._leaving
            and self._now_s() >= self._regathered_s
            and (not self._assignment.own[stream] or self._api_answered_s >= self._given_s[stream])
        )

    def writes(self, stream: str) -> bool:
        """Whether this replica writes the stream, or is about to claim it."""
        return stream in self._tenures

    def claiming(self, stream: str, progress: StreamProgress, end: Callable[[], None]) -> None:
        """The claim begins. `end` is called when the stream is no longer to be claimed, and,
        once it was claimed, when a newer claim is read."""
        former, takeover = self._control.holder_of(stream), ""
        if former is not None and former != self._holder:
            takeover = "handover" if self._assignment.own.get(stream) else "failover"
        now_s = self._now_s()
        assigned_s = self._given_s.get(stream, now_s)
        self._tenures[stream] = _Tenure(end, now_s, takeover, assigned_s, progress)

    def claimed(self, stream: str, epoch: int) -> None:
        """The claim is acknowledged."""
        tenure = self._tenures[stream]
        tenure.epoch = epoch
        if (own := self._assignment.own).get(stream):
            # it is no longer handed over: it may be claimed again without a copy
            self._assignment = replace(self._assignment, own={**own, stream: ""})
        if tenure.takeover:
            tenure.progress.next_acked = partial(self._took_over, tenure)
        self._end_superseded()

    def _took_over(self, tenure: _Tenure) -> None:
        self._takeovers.labels(tenure.takeover).observe(self._now_s() - tenure.assigned_s)

    def ended(self, stream: str) -> None:
        """The writer has ended: nothing of what is queued is sent."""
        tenure, own = self._tenures.pop(stream, None), self._assignment.own
        handed_over = tenure is not None and tenure.ending and tenure.epoch is not None
        if not (tenure is None or handed_over or self._leaving) and own.get(stream) != "":
            self._group.rejoin()  # who is to write it waits for a writer that hands it over
        self._wake()

    def may_finish(self, stream: str) -> bool:
        """Whether a writer that reads a newer claim may send what is queued: another replica was
        assigned the stream, or claimed it a moment ago, or this is a part that the config has no
        more; and this replica cannot have been suspended."""
        if self._doubt.unsure():
            return False
        if self._given_up(stream):
            return True
        tenure = self._tenures.get(stream)
        return tenure is not None and self._awaits_assignment(stream, tenure) > 0

    def _given_up(self, stream: str) -> bool:
        return stream not in self._assignment.own or stream not in self._plan_hashes

    def _awaits_assignment(self, stream: str, tenure: _Tenure) -> float:
        """For how many seconds more the assignment after a newer claim may come."""
        if tenure.superseded_s is None:
            tenure.superseded_s = self._now_s()
        owners = self._assignment.owners
        if owners and self._control.holder_of(stream) not in owners:
            return 0.0  # the claim is of a writer outside the group
        return tenure.superseded_s + AWAIT_ASSIGNMENT_S - self._now_s()

    async def handed_over(self, stream: str) -> bool:
        """Whether another replica was assigned the stream that it has claimed: an owner may read
        the claim before its own assignment, and waits a moment for that."""
        tenure = self._tenures[stream]
        try:
            async with asyncio.timeout(max(0.0, self._awaits_assignment(stream, tenure))):
                while not (self._given_up(stream) or self._doubt.unsure()):
                    await self._changed.wait()
        except TimeoutError:
            return False
        return not self._doubt.unsure()

    def lost(self, stream: str) -> bool:
        """A newer claim than ours was read, or a record of its writer. Whether that is a writer
        outside the group: `stream` is offered to the group again later."""
        self._lost_since_join.add(stream)
        if stream not in self._claimable:
            return False
        self._claimable.discard(stream)
        holder = self._control.holder_of(stream) or ""
        outsider = holder not in self._assignment.owners
        if is_retirement(holder):
            self._not_offered[stream] = math.inf
        elif outsider:
            now_s, tenure = self._now_s(), self._tenures.get(stream)
            healthy = tenure is not None and now_s - tenure.since_s > _HEALTHY_S
            backoff, wait_s = self._offers.get(stream, _OFFER_AGAIN).after_failure(
                now_s, healthy=healthy, rng=self._rng
            )
            self._offers[stream] = backoff
            self._not_offered[stream] = now_s + wait_s
            asyncio.get_running_loop().call_later(wait_s, self._group.rejoin)
        self._group.rejoin()
        return outsider

    # ---- the group's callbacks -------------------------------------------------------------------

    def _metadata(self) -> bytes:
        self._counter += 1
        self._lost_since_join.clear()
        self._leaving_reported = self._leaving
        order, config_hash = self._config
        offered, now_s = self._offered(), self._boot_s()
        adopted_ago_ms = int((now_s - self._adopted_s) * 1000)
        api_failed_ago_ms = int((now_s - self._api_failed_s) * 1000)
        return encode(
            MemberMetadata(
                holder=self._holder,
                config_order=order,
                plans=offered,
                assigned={each: at for each, at in self._assigned_in.items() if each in offered},
                writing={
                    stream: tenure.epoch
                    for stream, tenure in self._tenures.items()
                    if tenure.epoch is not None and not tenure.ending
                },
                warm=tuple(sorted(self._warm)),
                fit=self._fit,
                leaving=self._leaving,
                counter=self._counter,
                config_hash=config_hash,
                beginning=tuple(sorted(filter(self._is_beginning, self._tenures))),
                api_failed_ms=self._wall_ms() - api_failed_ago_ms,
                ages_ms=(adopted_ago_ms, api_failed_ago_ms),
            )
        )

    def _is_beginning(self, stream: str) -> bool:
        """Whether the stream is being claimed, or what was published before is not known yet."""
        tenure = self._tenures[stream]
        return tenure.epoch is None or tenure.progress.state == "resuming"

    def _assign(self, members: Mapping[str, bytes]) -> Mapping[str, bytes]:
        known = {
            member: metadata
            for member, data in members.items()
            if (metadata := decode_metadata(data)) is not None
        }
        self._show_unreadable(members.keys() - known.keys())
        now_s = self._now_s()
        present = frozenset((each, m.leaving, m.fit) for each, m in known.items())
        if present != self._members:
            self._members, self._disturbed_s = present, now_s
            self._patience = 1
        balance = not self._even and self._is_quiet()
        now_ms = self._wall_ms()
        self._known = {each: by_clock_of_leader(m, now_ms=now_ms) for each, m in known.items()}
        self._weights = self._loads(known)
        assignments, self._even = self._decide(balance=False)
        self._owners = _owners(assignments)
        if balance:
            assignments, self._even = self._decide(balance=True)
            self._disturbed_s = now_s
            moved = _owners(assignments) != self._owners
            self._patience = 1 if moved else min(2 * self._patience, _BALANCE_AGAIN_MAX)
        group = summarize(known, assignments, leader=self._holder, even=self._even)
        return {member: encode(replace(each, group=group)) for member, each in assignments.items()}

    def _loads(self, members: Mapping[str, MemberMetadata]) -> dict[str, float]:
        return {
            stream: 1.0 + objects_of(stream, self._control) / 1000
            for metadata in members.values()
            for stream in metadata.plans
        }

    def _decide(self, *, balance: bool) -> tuple[dict[str, MemberAssignment], bool]:
        return assign_streams(
            self._known,
            weights=self._weights,
            standbys=self._standbys,
            now_ms=self._wall_ms(),
            balance=balance,
        )

    def _is_quiet(self) -> bool:
        return self._now_s() - self._disturbed_s >= self._patience * self._balance_after_s

    def _show_unreadable(self, members: Collection[str]) -> None:
        if members and members != self._unreadable:
            log.warning(
                "members of the group cannot be read and are assigned nothing: end what is no "
                "replica of this relay",
                extra={"members": short(", ".join(sorted(members)))},
            )
        self._unreadable = frozenset(members)

    def _assigned(self, generation: int, data: bytes) -> None:
        assignment = decode_assignment(data)
        if assignment is None:
            log.warning("assignment of the group cannot be read", extra={"generation": generation})
            self._statuses.problems.put(_UNREADABLE, _UNREADABLE_TROUBLE)
            assignment = MemberAssignment()
        else:
            self._statuses.problems.pop(_UNREADABLE, None)
        now_s, own = self._now_s(), assignment.own
        self._given_s = {
            stream: self._given_s[stream]
            if stream in self._claimable and self._assignment.own.get(stream) == own[stream]
            else now_s
            for stream in own
        }
        self._assigned_in = {each: self._assigned_in.get(each, generation) for each in own}
        self._show_group(generation, assignment)
        self._assignment = assignment
        self._claimable = own.keys() - self._lost_since_join
        self._leaving_assigned = self._leaving_reported
        if len(self._claimable) < len(own):
            self._group.rejoin()
        if any(own.values()):
            self._check_api.set()
        log.info("streams assigned", extra={"generation": generation, "streams": len(own)})
        self._joined.set()
        self._reassigned()

    def _show_group(self, generation: int, assignment: MemberAssignment) -> None:
        """Show the group of this generation; its leader counts why there is a new one."""
        former = self._statuses.group
        if self._group.leads and former is not None and former.generation != generation:
            reason = rebalance_reason(self._assignment.group, assignment.group)
            self._rebalances.labels(reason).inc()
        (revision, _), _ = self._config
        self._statuses.group = group_status(self._holder, revision, generation, assignment)

    def _lost(self) -> None:
        """The group no longer knows this member: others may own what was assigned to it."""
        self._claimable.clear()
        if self._group.forgotten:
            self._regathered_s = self._now_s() + REGATHER_S
            asyncio.get_running_loop().call_later(REGATHER_S, self._wake)
        self._doubt.membership_lost()
        self._reassigned()

    def _end_claims(self) -> None:
        """What others may have claimed, for it is not written yet, is claimed by a newer assignment
        only."""
        written = {each for each, its in self._tenures.items() if its.epoch is not None}
        if self._claimable - written:
            self._group.rejoin()
        self._claimable &= written
        self._reassigned()

    def _reassigned(self) -> None:
        for stream, tenure in self._tenures.items():
            if tenure.epoch is None and stream not in self._claimable and not tenure.ending:
                tenure.ending = True
                tenure.end()
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    # ---- claims of others ------------------------------------------------------------------------

    async def _watch_claims(self) -> None:
        while True:
            await self._control.until(self._read)
            self._end_superseded()

    def _read(self) -> bool:
        """Show the streams that others write; whether one that this replica writes was claimed by
        another."""
        for stream in self._statuses.standing_by:
            show_owner(stream, self._statuses, self._control, self._metrics)
        self._stop_offering_retired()
        return any(
            not self._tenures[stream].ending for stream in self._superseded(self._tenures.keys())
        )

    def _stop_offering_retired(self) -> None:
        """A stream that is retired while others have it in their configs is not to be taken over:
        it is not offered until the config changes."""
        retired = self._retirements()
        new, self._retired = retired - self._retired, retired
        self._not_offered.update(dict.fromkeys(new, math.inf))
        self._claimable -= new - self._tenures.keys()
        self._lost_since_join |= new - self._tenures.keys()
        if new:
            self._group.rejoin()

    def _retirements(self) -> set[str]:
        """Streams of the config whose newest claim is that of a retirement."""
        holder_of = self._control.holder_of
        return {stream for stream in self._plan_hashes if is_retirement(holder_of(stream) or "")}

    def _superseded(self, streams: Collection[str]) -> list[str]:
        return [
            stream
            for stream in streams
            if (epoch := self._tenures[stream].epoch) is not None
            and self._control.superseded(stream, epoch)
        ]

    def _end_superseded(self) -> None:
        for stream in self._superseded(self._tenures.keys()):
            tenure = self._tenures[stream]
            if not tenure.ending:
                tenure.ending = True
                tenure.end()

    async def _superseded_ended(self) -> None:
        """End what others have claimed; return once all that is to end has."""
        self._end_superseded()
        while any(each.ending for each in self._tenures.values()):
            await self._changed.wait()
            self._end_superseded()

    # ---- the API server --------------------------------------------------------------------------

    async def _watch_api(self) -> None:
        """A replica that the API server does not answer for long is unfit: its streams move."""
        while True:
            self._check_api.clear()
            asked_s = self._now_s()
            answered = await self._api_answers()
            if answered:
                self._api_answered_s = asked_s
                self._wake()
            else:
                self._api_failed_s = self._boot_s()
            fit = self._now_s() - self._api_answered_s < UNFIT_AFTER_S
            if fit != self._fit:
                self._fit = fit
                log.warning("fitness of this replica has changed", extra={"fit": fit})
                self._group.rejoin()
            wait_s = API_CHECK_S if answered else API_CHECK_AGAIN_S
            await first_of(self._check_api, timeout_s=wait_s)

    # ---- balance ---------------------------------------------------------------------------------

    async def _balance(self) -> None:
        """The leader has streams move once the group was uneven and quiet for long enough. Loads
        change with each snapshot, and time ends the patience with older configs: what would be
        decided otherwise for either is decided in a new generation."""
        decided_s = self._now_s()
        while True:
            await asyncio.sleep(_BALANCE_CHECK_S)
            if not self._group.leads:
                continue
            if self._known and self._now_s() - decided_s >= _DECIDE_AGAIN_S:
                decided_s = self._now_s()
                changed = (weights := self._loads(self._known)) != self._weights
                self._weights = weights
                assignments, even = self._decide(balance=False)
                if changed:  # else what balancing has found stays: `_known` is older than that
                    self._even = even
                if (owners := _owners(assignments)) != self._owners:
                    self._owners = owners
                    self._group.rejoin()
            if not self._even and self._is_quiet():
                self._group.rejoin()

    # ---- the end ---------------------------------------------------------------------------------

    async def hand_over(self, *, within_s: float) -> None:
        """Let the other replicas take the streams of this one, which writes each until its
        successor has claimed it. Returns when none is left that another will take, when the group
        cannot be reached, or after `within_s`."""
        self._leaving = True
        self._group.rejoin()
        self._reassigned()
        log.info("handing over streams", extra={"streams": len(self._tenures)})
        try:
            async with asyncio.timeout(within_s):
                was_silent = False
                while self._tenures.keys() - (
                    self._assignment.own.keys() if self._leaving_assigned else ()
                ):
                    if was_silent and self._group.silent:
                        log.warning("group cannot be reached, handing nothing over")
                        break
                    was_silent = self._group.silent
                    await first_of(self._changed, timeout_s=_SILENCE_CHECK_S)
        except TimeoutError:
            log.warning("streams were not taken over", extra={"streams": len(self._tenures)})

    async def leave(self) -> None:
        """Leave the group: what is still assigned to this replica is assigned to others."""
        await self._group.leave(within_s=LEAVE_TIMEOUT_S)


def _owners(assignments: Mapping[str, MemberAssignment]) -> dict[str, frozenset[str]]:
    return {member: frozenset(each.own) for member, each in assignments.items()}
