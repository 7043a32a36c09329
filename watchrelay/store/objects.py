"""The latest known state of one stream, and what changed in it.

The state is what was *published*: a suppressed change leaves no trace here, or digests would cover
what no record has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from watchrelay.contract.partitioning import partition_of
from watchrelay.contract.records import content_hash
from watchrelay.model.changes import Entry, ObjectChange, Removed, Upserted, length_prefixed
from watchrelay.model.frames import ObjectFrame
from watchrelay.model.resources import compare
from watchrelay.store.counting import HASH_BYTES, IN_PART, UNKNOWN, Counting
from watchrelay.store.pack import TRAIN_AT_OBJECTS, ObjectCompressor
from watchrelay.store.transform import Transform

GUARD_OBJECTS: Final = 100
"""From this many held objects on, a list that has lost more than half of them is confirmed by a
second list. See docs/watch-facts.md 5.8."""

PIECE_KEYS: Final = 2000
"""How many keys of what is held, or of a list, are compared in one step."""
Pieces = Iterator[list[ObjectChange]]
"""Changes, each made as its piece is taken: what is taken must be published in the same step."""

_PLACE_BYTES: Final = 4
_COUNTED_PLACE_BYTES: Final = HASH_BYTES + _PLACE_BYTES
_NOWHERE: Final = 0xFFFFFFFF
_VERSION_KEY: Final = b'"resourceVersion":"'


@dataclass(slots=True)
class ApplyResult:
    """The effect of a batch of watch frames: `changes` in the server's order. Counted:
    `suppressed`, no published field changed; `repeated`, the held state or an older one;
    `elsewhere`, a namespace outside of the stream."""

    changes: list[ObjectChange] = field(default_factory=list)
    suppressed: int = 0
    repeated: int = 0
    elsewhere: int = 0


@dataclass(slots=True)
class ReplaceResult:
    """The effect of a complete list: the changes in `pieces` are removals, then upserts in list
    order. In those taken so far, `missed` keys differ; of `unsure` keys only the versions could be
    compared, so they may be equal in what counts. `kept` keys are missing in the list but stay,
    because some of its objects could not be decoded."""

    pieces: Pieces = field(default_factory=lambda: iter(()))
    missed: int = 0
    unsure: set[bytes] = field(default_factory=set)
    kept: set[bytes] = field(default_factory=set)


class Store:
    """Entries by record key; a new state of an object is a new `Entry`, so a queued one never
    changes.

    A list of the held state, and a frame applied twice, make no change. With `counting`, nor does a
    state that is equal in what counts, and packed values begin with the hash of that.
    """

    def __init__(
        self,
        transform: Transform,
        *,
        partitions: int,
        key_prefix: bytes = b"",
        suppress_unchanged: bool = True,
        counting: Counting | None = None,
        namespaces: frozenset[str] = frozenset(),
        train_at: int = TRAIN_AT_OBJECTS,
        piece: int = PIECE_KEYS,
    ) -> None:
        self.has_state = False
        """Whether a list was completed or a state recovered: from then on a list's differences are
        changes."""
        self.in_difference = False
        """Some `Pieces` are made, and not yet all."""
        self._transform = transform.apply
        self._partitions = partitions
        self._prefix = key_prefix.decode()
        self._suppress = suppress_unchanged and not transform.redacts
        self._counting = counting
        self._in_full = False
        """Compare the next list by all that is published, not by what counts."""
        self._namespaces = namespaces
        self._train_at, self._piece = train_at, piece
        self._packer = ObjectCompressor()
        self._entries: dict[bytes, Entry] = {}
        self._staged: dict[bytes, Entry] | None = None
        """The running list, until all its `Pieces` are taken."""
        self._unreadable = 0
        self._damaged: set[bytes] = set()
        self._loading: Sequence[Mapping[bytes, Entry]] = ()
        self._skip: dict[bytes, str] = {}
        self._frontiers: Mapping[int, str] = {}
        """By partition, up to which resourceVersion its changes are on the log; empty where a
        replay begins at or after all of them."""
        self._skip_until = ""
        self._by_content = False
        """Compare the next list by content, not by resourceVersion: the state comes from a log, or
        the API server was restored."""

    # ---- what is held ----

    @property
    def counts(self) -> bool:
        """Whether states are compared by what counts."""
        return self._counting is not None

    def __len__(self) -> int:
        return len(self._entries)

    def keys(self) -> list[bytes]:
        """All keys, oldest first."""
        return list(self._entries)

    def get(self, key: bytes) -> Entry | None:
        return self._entries.get(key)

    def lacks(self, frame: ObjectFrame) -> bool:
        """Whether an object that a list shows is not held, as another incarnation, or in a newer
        state. Never for namespaces outside of the stream."""
        if self._namespaces and frame.namespace not in self._namespaces:
            return False
        held = self._entries.get(self.key_of(frame.namespace, frame.name))
        return (
            held is None
            or held.uid != frame.uid
            or _older(frame.resource_version, held.resource_version)
        )

    def holds_up_to(self, version: str) -> bool:
        """Whether an object is held whose state is not newer than `version`."""
        return any(
            compare(each.resource_version, version) in {-1, 0} for each in self._entries.values()
        )

    def key_of(self, namespace: str, name: str) -> bytes:
        return f"{self._prefix}{namespace}/{name}".encode()

    def unpack(self, entry: Entry) -> bytes:
        """The published bytes of `entry`, a present or former one."""
        packed, counting = entry.packed, self._counting
        body_at = _PLACE_BYTES if counting is None else _COUNTED_PLACE_BYTES
        at = int.from_bytes(packed[body_at - _PLACE_BYTES : body_at], "little")
        body = self._packer.unpack(memoryview(packed)[body_at:])
        if at == _NOWHERE:
            return body
        return b"%b%b%b" % (body[:at], entry.resource_version.encode(), body[at:])

    def pack(self, value: bytes, version: str) -> bytes:
        """The packed value of an entry, but for what counts: the published bytes without their
        resourceVersion, compressed, after the position of that.

        The entry holds the version, so two states differ only in their versions exactly when their
        packed bytes are equal: `suppress_unchanged` compares them without a second hash. Should the
        pattern occur earlier in the object and be cut there, the true version stays in: unpacking
        is exact, and nothing is suppressed wrongly.
        """
        text = version.encode()
        at = value.find(b'%b%b"' % (_VERSION_KEY, text)) if text else -1
        if at < 0:
            return _NOWHERE.to_bytes(_PLACE_BYTES, "little") + self._packer.pack(value)
        at += len(_VERSION_KEY)
        body = b"".join((value[:at], value[at + len(text) :]))
        return at.to_bytes(_PLACE_BYTES, "little") + self._packer.pack(body)

    def pack_logged(self, value: bytes, version: str) -> bytes:
        """The packed value of an entry that was read from the log."""
        counting, packed = self._counting, self.pack(value, version)
        if counting is None:
            return packed
        return (UNKNOWN if counting.redacts else counting.of_value(value)) + packed

    def settle(self, key: bytes, published: Entry) -> bool:
        """Whether the held state is equal in what counts to `published`, the newest published state
        of its key; that is then held again."""
        held = self._entries.get(key) if self.counts else None
        if held is None or not (held.has_uid_of(published) and _counts_as(held, published)):
            return False
        self._entries[key] = published
        if self._staged is not None and self._staged.get(key) is held:
            self._staged[key] = published
        return True

    def published_in_part(self, entry: Entry) -> None:
        """Note that the topic has not all of `entry`, a present or former one: the state after it
        is a change whatever differs."""
        if self.counts:
            entry.packed = IN_PART + entry.packed[HASH_BYTES:]

    def _upsert(
        self, key: bytes, frame: ObjectFrame, held: Entry | None, uid: bytes
    ) -> tuple[Entry, bytes, int]:
        """The entry of `frame`, whose uid is `uid`, `length_prefixed`; with its published bytes and
        their hash. `held` itself, and 0 for the hash, where the content is equal."""
        if self._counting is not None:
            return self._upsert_counting(self._counting, key, frame, held, uid)
        value, version = self._transform(frame), frame.resource_version
        tail = uid + self.pack(value, version)
        if held is None:
            partition = partition_of(key, self._partitions)
        elif held.has_tail(tail) and (self._suppress or version == held.resource_version):
            return held, value, 0
        else:
            partition = held.partition
        value_hash = content_hash(key, value)
        return Entry.of_tail(version, partition, value_hash, tail), value, value_hash

    def _upsert_counting(
        self, counting: Counting, key: bytes, frame: ObjectFrame, held: Entry | None, uid: bytes
    ) -> tuple[Entry, bytes, int]:
        """As `_upsert`: `held` also where it is equal in what counts. Where that of `held` is not
        known, equal versions of equal content tell it from here on."""
        value, version = counting.before.apply(frame), frame.resource_version
        counted = counting.of_value(value)
        before = None if held is None or not held.has_uid(uid) else held
        known = UNKNOWN if before is None else before.packed[:HASH_BYTES]
        if before is not None and counted == known != UNKNOWN and not self._in_full:
            return before, b"", 0
        if counting.redacts:
            value = self._transform(frame)
        packed = self.pack(value, version)
        if (
            before is not None
            and (self._suppress or version == before.resource_version)
            and before.packed[HASH_BYTES:] == packed
        ):
            if known == UNKNOWN:
                before.packed = counted + packed
            return before, value, 0
        partition = partition_of(key, self._partitions) if held is None else held.partition
        value_hash, tail = content_hash(key, value), uid + counted + packed
        return Entry.of_tail(version, partition, value_hash, tail), value, value_hash

    # ---- the log ----

    def loading(self, states: Sequence[Mapping[bytes, Entry]]) -> None:
        """Note the entries being rebuilt in `states`; a dictionary is trained once there are
        enough."""
        self._loading = states
        if not self._packer.trained and sum(map(len, states)) >= self._train_at:
            self._train({key: entry for state in states for key, entry in state.items()})

    def resume(
        self,
        entries: Iterable[tuple[bytes, Entry]],
        *,
        skip: Mapping[bytes, str],
        newest: str,
        frontiers: Mapping[int, str] | None = None,
        in_full: bool = False,
    ) -> None:
        """Take the state recovered from the log; the next list is a difference from it, by content.

        Args:
            skip: Deleted keys with the version of their last record. Older frames of such a key
                are replays, until the watch has passed `newest`.
            newest: The highest version on the log.
            frontiers: By partition, where they differ and the watch begins at the lowest: frames of
                keys that are not held are replays up to there.
            in_full: The next list is compared by all that is published, not by what counts.
        """
        assert not self._entries, "only an empty store resumes from the log"
        self._entries = dict(entries)
        self._loading = ()
        self.has_state = True
        self._by_content, self._in_full = True, in_full
        self._skip, self._frontiers = dict(skip), frontiers or {}
        known = [newest, *self._frontiers.values()]
        self._skip_until = max(known, key=lambda version: (len(version), version))

    def passed(self, version: str) -> None:
        """Note that the watch has passed `version`."""
        if self._skip_until and compare(version, self._skip_until) != -1:
            self._forget_log()

    def _forget_log(self) -> None:
        self._skip, self._frontiers = {}, {}
        self._skip_until, self._by_content = "", False

    # ---- the watch ----

    def apply(self, frames: Iterable[ObjectFrame]) -> ApplyResult:
        """The changes that `frames` of a watch make, in order. Discards an unfinished list.

        A frame older than the held state is a replay; a deletion of another incarnation is late
        unless newer. See docs/watch-facts.md 5.5.
        """
        self._staged = None
        applied = ApplyResult()
        entries, changes = self._entries, applied.changes
        resuming = bool(self._skip or self._frontiers)
        namespaces, prefix = self._namespaces, self._prefix
        for frame in frames:
            if namespaces and frame.namespace not in namespaces:
                applied.elsewhere += 1
                continue
            key = f"{prefix}{frame.namespace}/{frame.name}".encode()
            held = entries.get(key)
            if resuming and held is None and self._is_replay(key, frame.resource_version):
                applied.repeated += 1
                continue
            if frame.type == "DELETED":
                if held is None or not _ends(frame, held):
                    applied.repeated += 1
                else:
                    del entries[key]
                    changes.append(Removed(key, held, frame.resource_version))
                continue
            if held is not None and _repeats(frame, held):
                applied.repeated += 1
                continue
            uid = length_prefixed(frame.uid)
            entry, value, value_hash = self._upsert(key, frame, held, uid)
            if entry is held:
                applied.suppressed += 1
                continue
            if held is not None and not held.has_uid(uid):
                changes.append(Removed(key, held, entry.resource_version))
                held = None
            entries[key] = entry
            changes.append(Upserted(key, entry, frame.uid, value_hash, held, value))
        if len(entries) >= self._train_at and not self._packer.trained:
            self._train(entries)
        return applied

    def _is_replay(self, key: bytes, version: str) -> bool:
        """Whether the state of a key that is not held was on the log, and was deleted since.

        Where partitions are of different age, the log of the younger has forgotten what is replayed
        from the frontier of the oldest."""
        if key in self._skip and _older(version, self._skip[key]):
            return True
        if not self._frontiers:
            return False
        frontier = self._frontiers.get(partition_of(key, self._partitions), "")
        return version == frontier or _older(version, frontier)

    def clear(self, resource_version: str) -> Pieces:
        """Remove every object, as of `resource_version`; one removal each."""
        self._staged = None
        return self._difference({}, resource_version, ReplaceResult())

    # ---- lists ----

    @property
    def staged(self) -> int:
        return len(self._staged) if self._staged is not None else 0

    def begin_list(self, *, by_content: bool = False) -> None:
        """Begin a list and discard an unfinished one. `by_content`: equal uid and version do not
        prove equal content."""
        self._staged = {}
        self._by_content = self._by_content or by_content
        self._unreadable = 0
        self._damaged.clear()

    def stage(
        self,
        frames: Sequence[ObjectFrame],
        *,
        unreadable: int = 0,
        damaged: Iterable[tuple[str, str]] = (),
    ) -> int:
        """Take objects of the running list.

        They are packed at once, so that a list costs its entries and one page; an object held with
        the same uid and resourceVersion is not decoded. A frame of type DELETED (streaming list)
        removes its object.

        Args:
            unreadable: Number of objects that could not be identified. Each could be any object
                missing in this list: those are kept.
            damaged: Namespace and name of objects that could not be decoded; their state is kept.

        Returns: The number of objects in namespaces outside of the stream.
        """
        staged = self._staged
        assert staged is not None, "objects of a list before begin_list"
        self._unreadable += unreadable
        self._damaged.update(self.key_of(*named) for named in damaged)
        entries, namespaces, prefix = self._entries, self._namespaces, self._prefix
        elsewhere = 0
        for frame in frames:
            if namespaces and frame.namespace not in namespaces:
                elsewhere += 1
                continue
            if len(staged) >= self._train_at and not self._packer.trained:
                self._train(staged)
            key = f"{prefix}{frame.namespace}/{frame.name}".encode()
            held, version = entries.get(key), frame.resource_version
            if frame.type == "DELETED":
                if (listed := staged.get(key)) is not None and _ends(frame, listed):
                    del staged[key]
                continue
            known = None if held is None else held.resource_version
            if held is not None and not self._by_content and version == known:
                if _repeats(frame, held):
                    staged[key] = held
                    continue
            elif known is not None and _older(version, known):
                # The API server was restored. Never `held` itself, even where only the version
                # differs: with its version, all changes up to there would be taken for replays.
                held = None
            staged[key], _, _ = self._upsert(key, frame, held, length_prefixed(frame.uid))
        return elsewhere

    def suspicious(self) -> bool:
        """Whether the running list lost more than half of the held objects, so that a second list
        must confirm it. See docs/watch-facts.md 5.8."""
        held = len(self._entries)
        return held >= GUARD_OBJECTS and self.staged * 2 < held

    def void_list(self) -> None:
        self._staged = None

    def replace(self, resource_version: str) -> ReplaceResult:
        """Make the running list, complete as of `resource_version`, the state; returns the
        differences, none for the first list.

        An object missing in a complete list was deleted while no watch was open (client-go,
        DeltaFIFO Replace).
        """
        assert self._staged is not None, "replace before begin_list"
        listed, held = self._staged, self._entries
        replaced = ReplaceResult()
        self._forget_log()
        self._in_full = False
        for key in held if self._unreadable or self._damaged else ():
            if key not in listed and (self._unreadable or key in self._damaged):
                listed[key] = held[key]
                replaced.kept.add(key)
        if self.has_state:
            replaced.pieces = self._difference(listed, resource_version, replaced)
        else:
            self._entries, self._staged, self.has_state = listed, None, True
        return replaced

    def _difference(
        self, listed: dict[bytes, Entry], resource_version: str, replaced: ReplaceResult
    ) -> Pieces:
        """The changes that lead from what is held to `listed`."""
        self.in_difference, held = True, self._entries
        size, piece = self._piece, list[ObjectChange]()
        for number, key in enumerate(list(held), 1):
            entry, new = held[key], listed.get(key)
            if new is None or (new is not entry and not new.has_uid_of(entry)):
                del held[key]
                replaced.missed += new is None
                # The version of the list that misses it, or of the object that replaced it: that
                # of the list would be newer than its successor.
                version = resource_version if new is None else new.resource_version
                piece.append(Removed(key, entry, version))
            if number % size == 0:
                yield piece
                piece = []
        for number, (key, new) in enumerate(listed.items(), 1):
            old = held.get(key)
            if new is not old:
                held[key] = new
                if old is not None and self._is_unsure(old):
                    replaced.unsure.add(key)
                else:
                    replaced.missed += 1
                piece.append(Upserted(key, new, new.uid, new.hash, old, None))
            if number % size == 0:
                yield piece
                piece = []
        self._entries, self._staged, self.in_difference = listed, None, False
        yield piece

    def _is_unsure(self, entry: Entry) -> bool:
        """Whether only its version tells a later state from this one."""
        return self._counting is not None and entry.packed[:HASH_BYTES] == UNKNOWN

    # ---- the dictionary ----

    def _train(self, entries: dict[bytes, Entry]) -> None:
        """Train a dictionary on the first of `entries`, then pack all held values with it, so that
        equal contents have equal packed bytes."""
        samples = [entry for entry, _ in zip(entries.values(), range(self._train_at), strict=False)]
        unpack, counting = self._packer.unpack, self._counting
        body_at = _PLACE_BYTES if counting is None else _COUNTED_PLACE_BYTES
        if self._packer.train(unpack(memoryview(entry.packed)[body_at:]) for entry in samples):
            for entry in self._distinct():
                body = unpack(memoryview(entry.packed)[body_at:])
                entry.packed = entry.packed[:body_at] + self._packer.pack(body)

    def _distinct(self) -> Iterator[Entry]:
        yield from self._entries.values()
        for state in self._loading:
            yield from state.values()
        for key, entry in (self._staged or {}).items():
            if self._entries.get(key) is not entry:
                yield entry


def _counts_as(entry: Entry, other: Entry) -> bool:
    """Whether both, of a store with `counting`, are known to be equal in what counts."""
    counted = entry.packed[:HASH_BYTES]
    return counted not in {UNKNOWN, IN_PART} and counted == other.packed[:HASH_BYTES]


def _older(version: str, than: str) -> bool:
    """True only where the two are comparable; the first test decides for nearly every event."""
    return (len(version), version) < (len(than), than) and compare(version, than) == -1


def _repeats(frame: ObjectFrame, held: Entry) -> bool:
    """Whether the frame shows the held state, or an earlier one."""
    version, known = frame.resource_version, held.resource_version
    if (len(version), version) > (len(known), known):
        return False  # nearly every event; `_older` would be asked for the same
    if version == known:
        return version != "" and frame.uid == held.uid
    return _older(version, known)


def _ends(frame: ObjectFrame, held: Entry) -> bool:
    """Whether the deletion is of `held`, or of a later incarnation.

    Its version may equal the held one: old servers sent that of the last update. See
    docs/watch-facts.md 4.3 and 5.5.
    """
    if frame.uid == held.uid:
        return not _older(frame.resource_version, held.resource_version)
    return compare(frame.resource_version, held.resource_version) == 1
