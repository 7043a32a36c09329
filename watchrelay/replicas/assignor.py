"""Which replica runs which stream, as the leader of the group decides it. Pure."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

import msgspec
from msgspec.structs import replace

from watchrelay.model.parts import Part, stream_and_part

OLD_PLAN_MS: Final = 300_000
"""A stream keeps an owner whose plan others have replaced for at most this long: the kubelet
updates the mounted config of all replicas within about two minutes."""
API_STEADY_MS: Final = 15_000
"""Unfit members hand over to fit ones once no check of these failed for this time: within
less all members see the end of an outage, and at its begin the fit ones still fail."""
CLOCKS_DIFFER_MS: Final = 10_000
"""Where a member's clock differs from the leader's by more, its config is dated by the age that it
reports. By then that is some seconds too small (the coordinator waits for members for up to 5 s),
so the config seems newer, never older. With a smaller difference its clock counts: else two configs
that were adopted at nearly the same time would change their order with each generation."""
UNEVEN: Final = 0.2
"""Balance moves streams when the heaviest and the lightest load differ by more than this part of
the mean load."""
WORTHWHILE: Final = 0.9
"""Balance moves a stream that is lighter than this part of the difference: past it the loads would
differ nearly as much as before."""
OWNERS_BYTES_MAX: Final = 8192
"""Of the table of owners in each assignment: the coordinator keeps a group in one record."""
_DECODED_BYTES_MAX: Final = 16 << 20
_NAME_MAX: Final = 1000
"""Characters of a name that a member reports."""
_STREAMS_MAX: Final = 10_000
"""That a member may report: the leader looks at each of them in one step."""


class MemberMetadata(msgspec.Struct, frozen=True, array_like=True):
    """What a replica reports when it joins the group.

    Args:
        holder: the replica's name, as in its claims.
        config_order: the revision of its config, and when it was adopted, in milliseconds since the
            epoch. The greater is the newer.
        plans: by stream that it can run, the hash of how it would run it.
        assigned: by stream that it is assigned, the generation of the group since which it is.
        writing: by stream that it writes, its epoch.
        warm: streams that it follows without writing.
        fit: the API server answers it.
        leaving: it is shutting down.
        counter: differs from that of its former metadata. A coordinator answers a follower that
            joins with the same bytes from memory.
        config_hash: of its config.
        beginning: streams that it is claiming, and those of `writing` whose logs it still reads
            back.
        api_failed_ms: when it started, or got no answer of the API server last, in milliseconds
            since the epoch.
        ages_ms: how long ago its config was adopted, and `api_failed_ms` was, by a clock that
            no member sets; None from a release that does not report them.
    """

    holder: str
    config_order: tuple[int, int] = (0, 0)
    plans: dict[str, str] = {}
    assigned: dict[str, int] = {}
    writing: dict[str, int] = {}
    warm: tuple[str, ...] = ()
    fit: bool = True
    leaving: bool = False
    counter: int = 0
    config_hash: str = ""
    beginning: tuple[str, ...] = ()
    api_failed_ms: int = 0
    ages_ms: tuple[int, int] | None = None


class MemberSummary(msgspec.Struct, frozen=True, array_like=True):
    """What operators are shown of a member: of its metadata, and how many streams it is given."""

    holder: str
    config_order: tuple[int, int] = (0, 0)
    config_hash: str = ""
    fit: bool = True
    leaving: bool = False
    assigned: int = 0


class GroupSummary(msgspec.Struct, frozen=True, array_like=True):
    """What operators are shown of the group.

    Args:
        leader: its holder.
        even: no stream is to move to even out loads.
    """

    leader: str = ""
    even: bool = True
    members: tuple[MemberSummary, ...] = ()


class MemberAssignment(msgspec.Struct, frozen=True, array_like=True):
    """What a replica is given.

    Args:
        own: by stream that it is to write, the holder that writes it now and hands it over; "" if
            none does, or the replica itself.
        warm: streams that it is to follow without writing.
        owners: by holder, the streams that it is to write, for all holders; without the streams
            where that is more than `OWNERS_BYTES_MAX`.
        group: for operators.
    """

    own: dict[str, str] = {}
    warm: tuple[str, ...] = ()
    owners: dict[str, tuple[str, ...]] = {}
    group: GroupSummary = GroupSummary()


def assign_streams(
    members: Mapping[str, MemberMetadata],
    *,
    weights: Mapping[str, float],
    standbys: int,
    now_ms: int,
    balance: bool,
) -> tuple[dict[str, MemberAssignment], bool]:
    """The assignment of each member, and whether the loads are even. The order of `members` does
    not matter.

    Args:
        members: by member id, as `by_clock_of_leader` gives them.
        weights: by stream, its load; at least 1, also where it is missing.
        standbys: how many members besides the owner follow each stream.
        now_ms: wall time, milliseconds since the epoch.
        balance: streams may move away from members that could keep them.
    """
    group = _Group(members, weights, now_ms)
    unassigned = []
    for stream in sorted(group.weights):
        owner = group.keeper(stream, now_ms)
        if owner is None:
            unassigned.append(stream)
        else:
            group.give(stream, owner)
    for stream in sorted(unassigned, key=group.heaviest_first):
        group.give(stream, min(group.heirs(stream), key=group.lightest_first))
    even = group.even_out(may_move=balance)
    group.add_standbys(standbys)
    return group.assignments(), even


def by_clock_of_leader(member: MemberMetadata, *, now_ms: int) -> MemberMetadata:
    """The member with its times by the clock of the leader, which receives its metadata at
    `now_ms`. Without ages its clock counts as that of the leader."""
    if member.ages_ms is None:
        return member
    revision, adopted_ms = member.config_order
    adopted_ago_ms, api_failed_ago_ms = member.ages_ms
    if abs(now_ms - adopted_ago_ms - adopted_ms) > CLOCKS_DIFFER_MS:
        adopted_ms = now_ms - adopted_ago_ms
    api_failed_ms = now_ms - api_failed_ago_ms
    return replace(member, config_order=(revision, adopted_ms), api_failed_ms=api_failed_ms)


def summarize(
    members: Mapping[str, MemberMetadata],
    assignments: Mapping[str, MemberAssignment],
    *,
    leader: str,
    even: bool,
) -> GroupSummary:
    """The group with these assignments, its members ordered by holder."""
    rows = [
        MemberSummary(
            holder=each.holder,
            config_order=each.config_order,
            config_hash=each.config_hash,
            fit=each.fit,
            leaving=each.leaving,
            assigned=len(assignments[member].own),
        )
        for member, each in members.items()
    ]
    return GroupSummary(leader, even, tuple(sorted(rows, key=lambda row: row.holder)))


@dataclass(slots=True)
class _Load:
    """What one member is given so far, and the sum of the weights."""

    own: set[str] = field(default_factory=set)
    warm: set[str] = field(default_factory=set)
    own_weight: float = 0.0
    warm_weight: float = 0.0


class _Group:
    """The members, and what each of them is given so far."""

    def __init__(
        self, members: Mapping[str, MemberMetadata], weights: Mapping[str, float], now_ms: int
    ) -> None:
        self.members = {name: members[name] for name in sorted(members)}
        self.fit = [name for name, each in self.members.items() if each.fit and not each.leaving]
        staying = [name for name, each in self.members.items() if not each.leaving]
        steady = any(now_ms - members[name].api_failed_ms >= API_STEADY_MS for name in self.fit)
        self.able = self.fit if steady else staying or [*self.members]
        """Who is to run streams: fit members alone while one of them is steady; else also unfit
        ones, and those that leave where no other is there."""
        self.loads = {name: _Load() for name in self.members}
        self.weights = {
            stream: max(1.0, weights.get(stream, 1.0))
            for each in self.members.values()
            for stream in each.plans
        }
        self.plan_order = _plan_order(members.values())
        """By hash of a plan, the order of the newest config that has it."""
        by_epoch = sorted(
            (epoch, name, stream)
            for name, each in self.members.items()
            for stream, epoch in each.writing.items()
        )
        self.writers = {stream: name for _, name, stream in by_epoch}
        """By stream, the member that writes it with the highest epoch."""
        self.may_write = {stream: [name] for stream, name in self.writers.items()}
        """The same, and the members that are claiming it: by the time of the assignment each of
        them may write it."""
        for name, each in self.members.items():
            for stream in each.beginning:
                self.may_write.setdefault(stream, []).append(name)
        for stream in self.other_layouts(now_ms):
            del self.weights[stream]

    # ---- orders ----------------------------------------------------------------------------------

    def heaviest_first(self, stream: str) -> tuple[float, str]:
        return -self.weights[stream], stream

    def lightest_first(self, member: str) -> tuple[float, str]:
        return self.loads[member].own_weight, member

    # ---- who may run a stream --------------------------------------------------------------------

    def order(self, member: str, stream: str) -> tuple[int, int]:
        """How new the plan is by which the member would run the stream."""
        return self.plan_order[self.members[member].plans[stream]]

    def with_plan(self, stream: str, members: Iterable[str]) -> list[str]:
        """Those of `members` whose config has the stream."""
        return [member for member in members if stream in self.members[member].plans]

    def candidates(self, stream: str) -> list[str]:
        """Members whose config has the stream: the able ones, else all."""
        return self.with_plan(stream, self.able) or self.with_plan(stream, self.members)

    def newest_of(self, candidates: list[str], stream: str) -> tuple[int, int]:
        """The order of the newest plan by which one of them would run the stream."""
        return max(self.order(member, stream) for member in candidates)

    def keeper(self, stream: str, now_ms: int) -> str | None:
        """Its writer, else the one that it was assigned to last, unless others have had a newer
        plan for long."""
        candidates = self.candidates(stream)
        newest = self.newest_of(candidates, stream)
        assigned = [member for member in candidates if stream in self.members[member].assigned]
        last = max(
            assigned,
            key=lambda member: (self.members[member].assigned[stream], member),
            default=None,
        )
        for member in (self.writers.get(stream), last):
            if member in candidates and (
                self.order(member, stream) == newest or now_ms - newest[1] < OLD_PLAN_MS
            ):
                return member
        return None

    def heirs(self, stream: str) -> list[str]:
        """Members with the newest plan that may take a stream which no member keeps: fit first,
        and those that have it warm, where it has no writer."""
        candidates = self.candidates(stream)
        newest = self.newest_of(candidates, stream)
        heirs = [member for member in candidates if self.order(member, stream) == newest]
        heirs = [member for member in heirs if member in self.fit] or heirs
        if stream in self.writers:
            return heirs
        return [member for member in heirs if stream in self.members[member].warm] or heirs

    # ---- layouts of split streams --------------------------------------------------------------

    def other_layouts(self, now_ms: int) -> list[str]:
        """The parts that are not assigned, since their stream is split otherwise: all parts of a
        stream belong to one layout, the newest that all able members know; after long the newest
        of all. None is older than the newest that is written."""
        layouts: dict[str, dict[int, list[str]]] = {}
        for each in self.weights:
            stream, part = stream_and_part(each)
            layouts.setdefault(stream, {}).setdefault(part.of, []).append(each)
        return [
            part
            for by_count in layouts.values()
            if len(by_count) > 1
            for count in by_count.keys() - {self.layout(by_count, now_ms)}
            for part in by_count[count]
        ]

    def layout(self, by_count: Mapping[int, list[str]], now_ms: int) -> int:
        """Into how many parts a stream is split now, by the parts of each layout."""
        able_by_count = {
            count: {
                member for member in self.able if set(parts) <= self.members[member].plans.keys()
            }
            for count, parts in by_count.items()
        }

        def order(count: int) -> tuple[tuple[int, int], int]:
            first = by_count[count][0]
            return self.newest_of(self.with_plan(first, self.members), first), count

        known = [count for count, members in able_by_count.items() if members] or [*by_count]
        *older, newest = sorted(known, key=order)
        written = [each for each in known if not self.may_write.keys().isdisjoint(by_count[each])]
        (_, adopted_ms), _ = order(newest)
        is_known_to_all = able_by_count[newest] >= set[str]().union(*able_by_count.values())
        if newest in written or is_known_to_all or now_ms - adopted_ms >= OLD_PLAN_MS:
            return newest
        return max([older[-1], *written], key=order)

    # ---- giving ----------------------------------------------------------------------------------

    def give(self, stream: str, member: str) -> None:
        self.loads[member].own.add(stream)
        self.loads[member].own_weight += self.weights[stream]

    def take(self, stream: str, member: str) -> None:
        self.loads[member].own.remove(stream)
        self.loads[member].own_weight -= self.weights[stream]

    def even_out(self, *, may_move: bool) -> bool:
        """Move streams from the heaviest to the lightest member while that helps, once the loads
        are uneven. False when they stay so: streams may not move, or are on the way."""
        mean = sum(self.loads[member].own_weight for member in self.able) / max(1, len(self.able))
        began = False
        while len(self.able) > 1:
            lightest = min(self.fit or self.able, key=self.lightest_first)
            heaviest = max(self.able, key=self.lightest_first)
            gap = self.loads[heaviest].own_weight - self.loads[lightest].own_weight
            helpful = [
                stream
                for stream in self.loads[heaviest].own
                if self.weights[stream] < WORTHWHILE * gap
                and stream in self.members[lightest].plans
                and self.order(lightest, stream) >= self.order(heaviest, stream)
            ]
            is_even = gap <= UNEVEN * mean
            if not helpful or (is_even and not began):
                break
            movable = [stream for stream in helpful if not self.is_on_the_way(stream, heaviest)]
            if not may_move or not movable:
                return is_even
            began = True
            warm = self.members[lightest].warm
            best = min(movable, key=lambda s: (abs(gap - 2 * self.weights[s]), s not in warm, s))
            self.take(best, heaviest)
            self.give(best, lightest)
        return True

    def is_on_the_way(self, stream: str, owner: str) -> bool:
        """Whether its owner does not write it yet: another member hands it over, or its owner
        is claiming it or reading its log back."""
        is_written_by_another = self.writers.get(stream, owner) != owner
        return is_written_by_another or stream in self.members[owner].beginning

    def add_standbys(self, standbys: int) -> None:
        """As many as can be: members that have the state already, then the lightest."""
        for stream in sorted(self.weights, key=self.heaviest_first):

            def first(member: str, stream: str = stream) -> tuple[bool, float, str]:
                metadata, load = self.members[member], self.loads[member]
                has_state = stream in metadata.warm or stream in metadata.writing
                return not has_state, load.own_weight + load.warm_weight, member

            able = self.with_plan(stream, self.able)
            others = [member for member in able if stream not in self.loads[member].own]
            for member in sorted(others, key=first)[:standbys]:
                self.loads[member].warm.add(stream)
                self.loads[member].warm_weight += self.weights[stream]

    def assignments(self) -> dict[str, MemberAssignment]:
        owners: dict[str, tuple[str, ...]] = {}
        for member, load in self.loads.items():
            # a process that joined again has its former member beside it for a session
            holder = self.members[member].holder
            owners[holder] = tuple(sorted({*owners.get(holder, ()), *load.own}))
        if len(msgspec.json.encode(owners)) > OWNERS_BYTES_MAX:
            owners = dict.fromkeys(owners, ())
        return {
            member: MemberAssignment(
                own={stream: self._former(stream, member) for stream in sorted(load.own)},
                warm=tuple(sorted(load.warm)),
                owners=owners,
            )
            for member, load in self.loads.items()
        }

    def _former(self, stream: str, member: str) -> str:
        """The holder beside `member` that may write the stream; where there is no writer of it, one
        of another layout that may write some of its partitions; "" for none."""
        if (writers := self.may_write.get(stream)) is not None:
            return next((self.members[each].holder for each in writers if each != member), "")
        overlapping = (each for each in sorted(self.may_write) if _share_partitions(each, stream))
        return next((self.members[self.may_write[each][0]].holder for each in overlapping), "")


def _plan_order(members: Collection[MemberMetadata]) -> dict[str, tuple[int, int]]:
    """By hash of a plan, the order of the newest config that has it. Plans of one config may differ
    by discovery: neither is newer."""
    orders: dict[str, tuple[int, int]] = {}
    for each in members:
        orders[each.config_hash] = max(orders.get(each.config_hash, (-1, -1)), each.config_order)
    by_plan: dict[str, tuple[int, int]] = {}
    for each in members:
        for plan in each.plans.values():
            by_plan[plan] = max(by_plan.get(plan, (-1, -1)), orders[each.config_hash])
    return by_plan


def _share_partitions(one: str, other: str) -> bool:
    """Whether two parts of a stream may have a partition in common, however many there are."""
    (stream, a), (other_stream, b) = stream_and_part(one), stream_and_part(other)
    return stream == other_stream and _begins_in(a, b) and _begins_in(b, a)


def _begins_in(part: Part, other: Part) -> bool:
    """Whether `part` begins before `other` ends: by its share of all partitions, a part is from
    `place / of` to `(place + 1) / of`."""
    return part.place * other.of < (other.place + 1) * part.of


# ---- bytes ---------------------------------------------------------------------------------------

_Message = TypeVar("_Message", MemberMetadata, MemberAssignment)


def encode(message: MemberMetadata | MemberAssignment) -> bytes:
    """The message as the group carries it: a JSON array, compressed with zlib."""
    return zlib.compress(msgspec.json.encode(message))


def decode_metadata(data: bytes) -> MemberMetadata | None:
    """The metadata of a member, or None if these bytes are none: another program may have joined
    the group."""
    metadata = _decode(data, MemberMetadata)
    return metadata if metadata is not None and _is_legal(metadata) else None


def _is_legal(metadata: MemberMetadata) -> bool:
    """Whether its names can be names of streams, parts and holders, and not too many."""
    names = {
        *metadata.plans,
        *metadata.assigned,
        *metadata.writing,
        *metadata.warm,
        *metadata.beginning,
    }
    if len(names) > _STREAMS_MAX:
        return False
    try:
        for name in names:
            stream_and_part(name)
    except ValueError:
        return False
    names |= {metadata.holder, metadata.config_hash, *metadata.plans.values()}
    return max(map(len, names)) <= _NAME_MAX


def decode_assignment(data: bytes) -> MemberAssignment | None:
    """The assignment of a member, or None if these bytes are none: another program may lead the
    group."""
    return _decode(data, MemberAssignment)


def _decode(data: bytes, kind: type[_Message]) -> _Message | None:
    unpacker = zlib.decompressobj()
    try:
        text = unpacker.decompress(data, _DECODED_BYTES_MAX)
        return msgspec.json.decode(text, type=kind) if unpacker.eof else None
    except (zlib.error, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
