"""The latest known state of one stream, and what changed in it.

Room: store (pure). In: frames of a watch, or of a list between `begin_list` and `replace`. Out:
changes in the order to publish them. The state is what was *published*: a change that is suppressed
touches nothing here, or digests would speak of what no record says.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from watchrelay.contract.partitioning import partition_of
from watchrelay.contract.records import content_hash
from watchrelay.model.changes import Entry, ObjectChange, Removed, Upserted
from watchrelay.model.frames import ObjectFrame
from watchrelay.model.resources import compare
from watchrelay.store.pack import TRAIN_AT_OBJECTS, Packer
from watchrelay.store.transform import Transform

GUARD_OBJECTS: Final = 100
"""From this many held objects on, a list that has lost more than half of them is not believed at
once. Source: WATCH 5.8."""

_STAGE_AT_ONCE: Final = 512
_PLACE_BYTES: Final = 4
_NOWHERE: Final = 0xFFFFFFFF
_VERSION_KEY: Final = b'"resourceVersion":"'


@dataclass(slots=True)
class Applied:
    """What a batch of watch frames did.

    Shape: `changes` in the server's order. `suppressed`: changed nothing that is published.
    `repeated`: said what is held already, or something older. `elsewhere`: in a namespace that the
    stream does not hold.
    """

    changes: list[ObjectChange] = field(default_factory=list)
    suppressed: int = 0
    repeated: int = 0
    elsewhere: int = 0


@dataclass(slots=True)
class Replaced:
    """What a complete list did.

    Shape: `changes` removals first, then upserts in list order; `missed` is the number of keys that
    differ; `kept` the number of keys that the list did not show and that stay, because some of its
    objects could not be read.
    """

    changes: list[ObjectChange] = field(default_factory=list)
    missed: int = 0
    kept: int = 0


class Store:
    """Entries by record key; a new state of an object is a new `Entry`, so that a queued one stays
    what it was.

    Law: replace() after a list of what is held returns no change; apply(f) a second time returns
    none.
    """

    def __init__(
        self,
        transform: Transform,
        *,
        partitions: int,
        key_prefix: bytes = b"",
        suppress_unchanged: bool = True,
        namespaces: frozenset[str] = frozenset(),
        train_at: int = TRAIN_AT_OBJECTS,
    ) -> None:
        self.listed = False
        """A list was completed: from the next one on, a difference is a change."""
        self._transform = transform.apply
        self._partitions = partitions
        self._prefix = key_prefix.decode()
        self._suppress = suppress_unchanged and not transform.redacts
        self._namespaces = namespaces
        self._train_at = train_at
        self._packer = Packer()
        self._entries: dict[bytes, Entry] = {}
        self._staged: dict[bytes, Entry] | None = None
        self._unreadable = 0
        self._damaged: set[bytes] = set()
        self._doubtful: dict[bytes, Entry] = {}
        """What the newest list did not show, kept because of objects in it that could be any: gone
        if the next list does not show it."""
        self._loading: Sequence[Mapping[bytes, Entry]] = ()
        self._skip: dict[bytes, str] = {}
        self._skip_until = ""
        self._by_content = False
        """The next list is compared by content, not by resourceVersion: what is held comes from a
        log, or the server went back."""

    # ---- what is held ----

    def __len__(self) -> int:
        return len(self._entries)

    def keys(self) -> list[bytes]:
        """All keys, oldest first."""
        return list(self._entries)

    def get(self, key: bytes) -> Entry | None:
        """The entry under `key`."""
        return self._entries.get(key)

    def key_of(self, frame: ObjectFrame) -> bytes:
        """The record key of the frame's object."""
        return f"{self._prefix}{frame.namespace}/{frame.name}".encode()

    def unpack(self, entry: Entry) -> bytes:
        """The published bytes of `entry`, held or held once."""
        packed = entry.packed
        at = int.from_bytes(packed[:_PLACE_BYTES], "little")
        body = self._packer.unpack(memoryview(packed)[_PLACE_BYTES:])
        return (
            body
            if at == _NOWHERE
            else b"%b%b%b" % (body[:at], entry.resource_version.encode(), body[at:])
        )

    def _pack(self, value: bytes, version: str) -> bytes:
        """`value` without its resourceVersion, compressed, behind the place where that was cut out.

        The entry holds the version anyway, and so two states are alike but for their versions
        exactly when their packed bytes are equal: that is what `suppress_unchanged` compares, and
        it costs no second hash. Should the pattern stand elsewhere in the object as well and be cut
        there, then the true version stays in: unpacking is exact, and nothing is suppressed
        wrongly.
        """
        text = version.encode()
        at = value.find(b'%b%b"' % (_VERSION_KEY, text)) if text else -1
        if at < 0:
            return _NOWHERE.to_bytes(_PLACE_BYTES, "little") + self._packer.pack(value)
        at += len(_VERSION_KEY)
        return at.to_bytes(_PLACE_BYTES, "little") + self._packer.pack(
            value[:at] + value[at + len(text) :]
        )

    def _upsert(
        self, key: bytes, frame: ObjectFrame, held: Entry | None
    ) -> tuple[Entry, bytes | None]:
        """The entry that `frame` makes, with its published bytes; `held` itself where that says the
        same (the uid is in the bytes)."""
        value = self._transform(frame)
        version = frame.resource_version
        packed = self._pack(value, version)
        if held is None:
            return Entry(
                frame.uid,
                version,
                content_hash(key, value),
                partition_of(key, self._partitions),
                packed,
            ), value
        if packed == held.packed and (self._suppress or version == held.resource_version):
            return held, None
        return Entry(
            frame.uid, version, content_hash(key, value), held.partition, packed, held.queued
        ), value

    # ---- the log ----

    def pack(self, value: bytes, version: str) -> bytes:
        """What an entry of `value` keeps, for whoever rebuilds entries from published bytes."""
        return self._pack(value, version)

    def loading(self, states: Sequence[Mapping[bytes, Entry]]) -> None:
        """Entries are being rebuilt in `states`: once there are enough of them, they are packed
        with a dictionary of their own."""
        self._loading = states
        if not self._packer.trained and sum(map(len, states)) >= self._train_at:
            self._train({key: entry for state in states for key, entry in state.items()})

    def resume(
        self, entries: Iterable[tuple[bytes, Entry]], *, skip: Mapping[bytes, str], newest: str
    ) -> None:
        """Hold what the log says; from now on a list is a difference from it, by content.

        Shape: `skip` maps dead keys to the version of their last record. Until the watch has passed
        `newest`, the highest version on the log, what it says of such a key up to that version is a
        replay.
        """
        assert not self._entries, "only an empty store is filled from the log"
        self._entries = dict(entries)
        self._loading = ()
        self.listed = True
        self._by_content = True
        self._skip, self._skip_until = dict(skip), newest

    def passed(self, version: str) -> None:
        """The watch has everything up to `version`."""
        if self._skip_until and compare(version, self._skip_until) != -1:
            self._forget_log()

    def _forget_log(self) -> None:
        self._skip, self._skip_until, self._by_content = {}, "", False

    # ---- the watch ----

    def apply(self, frames: Iterable[ObjectFrame]) -> Applied:
        """The changes that `frames` of a watch make, in order. An unfinished list is void.

        Source: WATCH 5.5. An event older than what is held is a replay; a deletion of another
        incarnation is late unless newer.
        """
        self._staged = None
        applied = Applied()
        entries, namespaces, prefix, changes, skip = (
            self._entries,
            self._namespaces,
            self._prefix,
            applied.changes,
            self._skip,
        )
        for frame in frames:
            if namespaces and frame.namespace not in namespaces:
                applied.elsewhere += 1
                continue
            key = f"{prefix}{frame.namespace}/{frame.name}".encode()
            held = entries.get(key)
            if skip and held is None and key in skip and _older(frame.resource_version, skip[key]):
                applied.repeated += 1
                continue
            if frame.type == "DELETED":
                if held is None or not _ends(frame, held):
                    applied.repeated += 1
                else:
                    del entries[key]
                    changes.append(
                        Removed(key, held, frame.resource_version, frame.uid == held.uid)
                    )
                continue
            if held is not None and _repeats(frame, held):
                applied.repeated += 1
                continue
            entry, value = self._upsert(key, frame, held)
            if entry is held:
                applied.suppressed += 1
                continue
            before = None
            if held is not None:
                if held.uid == entry.uid:
                    before = held.hash
                else:
                    changes.append(Removed(key, held, entry.resource_version, observed=False))
            entries[key] = entry
            changes.append(Upserted(key, entry, before, value))
        self._end_doubt(changes)
        if len(entries) >= self._train_at and not self._packer.trained:
            self._train(entries)
        return applied

    def _end_doubt(self, changes: Sequence[ObjectChange]) -> None:
        """The watch shows what became of these objects."""
        if self._doubtful:
            for change in changes:
                self._doubtful.pop(change.key, None)

    def clear(self, resource_version: str) -> list[ObjectChange]:
        """Everything is gone, as of `resource_version`: one removal per object."""
        self._staged = None
        changes: list[ObjectChange] = [
            Removed(key, entry, resource_version, observed=False)
            for key, entry in self._entries.items()
        ]
        self._entries, self._doubtful = {}, {}
        return changes

    # ---- lists ----

    @property
    def staged(self) -> int:
        """Objects that the running list brought so far."""
        return len(self._staged) if self._staged is not None else 0

    def begin_list(self, *, by_content: bool = False) -> None:
        """A list starts; what an unfinished one brought is void. `by_content`: equal uid and
        version do not prove equal content."""
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
        """Take objects of the running list; returns how many were in namespaces that the stream
        does not hold.

        Packed at once, so that a list costs its entries and one page; an object that is held with
        the same uid and resourceVersion is not even looked into. A frame of type DELETED (streaming
        list) takes its object out again. Of objects that cannot be decoded the state held is kept:
        of those that are `damaged`, by namespace and name. Each of the `unreadable` could be any
        object that this list does not show: all those are kept, until another list does not show
        them either.
        """
        assert self._staged is not None, "objects of a list came before its beginning"
        self._unreadable += unreadable
        self._damaged.update(
            f"{self._prefix}{namespace}/{name}".encode() for namespace, name in damaged
        )
        elsewhere = 0
        for start in range(0, len(frames), _STAGE_AT_ONCE):
            elsewhere += self._stage_some(frames[start : start + _STAGE_AT_ONCE], self._staged)
            if len(self._staged) >= self._train_at and not self._packer.trained:
                self._train(self._staged)
        return elsewhere

    def _stage_some(self, frames: Sequence[ObjectFrame], staged: dict[bytes, Entry]) -> int:
        entries, namespaces, prefix = self._entries, self._namespaces, self._prefix
        elsewhere = 0
        for frame in frames:
            if namespaces and frame.namespace not in namespaces:
                elsewhere += 1
                continue
            key = f"{prefix}{frame.namespace}/{frame.name}".encode()
            if frame.type == "DELETED":
                if (listed := staged.get(key)) is not None and _ends(frame, listed):
                    del staged[key]
                continue
            held = entries.get(key)
            if held is None:
                staged[key], _ = self._upsert(key, frame, None)
            elif (
                held.resource_version == frame.resource_version != ""
                and held.uid == frame.uid
                and not self._by_content
            ):
                staged[key] = held
            elif _older(frame.resource_version, held.resource_version):
                staged[key] = self._earlier(key, frame, held)
            else:
                staged[key], _ = self._upsert(key, frame, held)
        return elsewhere

    def _earlier(self, key: bytes, frame: ObjectFrame, held: Entry) -> Entry:
        """The entry of a listed object that is older than what is held: the server went back (a
        restored backup).

        Never `held` itself, also where only the version differs: with its version kept, all changes
        up to there would pass for replays.
        """
        entry, _ = self._upsert(key, frame, None)
        return Entry(
            entry.uid, entry.resource_version, entry.hash, held.partition, entry.packed, held.queued
        )

    def implausible(self) -> bool:
        """The running list has lost more than half of what is held: ask once more before believing
        it. Source: WATCH 5.8."""
        held = len(self._entries)
        return held >= GUARD_OBJECTS and self.staged * 2 < held

    def void_list(self) -> None:
        """Forget what the running list brought."""
        self._staged = None

    def replace(self, resource_version: str) -> Replaced:
        """Make the running list, complete and seen at `resource_version`, the state; returns the
        differences.

        Shape: none for the first list: what publishes it reads the store itself.
        Source: an object missing from a complete list was deleted while nobody watched (client-go,
        DeltaFIFO Replace).
        """
        assert self._staged is not None, "a list ended before its beginning"
        listed, held = self._staged, self._entries
        replaced = Replaced()
        self._forget_log()
        doubtful, self._doubtful = self._doubtful, {}
        if self._unreadable or self._damaged:
            absent = {key: entry for key, entry in held.items() if key not in listed}
            if self._unreadable:
                self._doubtful = {
                    key: entry
                    for key, entry in absent.items()
                    if key not in self._damaged and doubtful.get(key) is not entry
                }
            kept = {
                key: entry
                for key, entry in absent.items()
                if key in self._damaged or key in self._doubtful
            }
            listed.update(kept)
            replaced.kept = len(kept)
        self._entries, self._staged = listed, None
        if not self.listed:
            self.listed = True
            return replaced
        changes = replaced.changes
        for key, entry in held.items():
            new = listed.get(key)
            if new is None or new.uid != entry.uid:
                # Dated by the list that misses it, or by the object that took its place: dated by
                # the list, it would outdate its successor.
                version = resource_version if new is None else new.resource_version
                changes.append(Removed(key, entry, version, observed=False))
                replaced.missed += new is None
        for key, new in listed.items():
            old = held.get(key)
            if new is not old:
                changes.append(
                    Upserted(
                        key, new, old.hash if old is not None and old.uid == new.uid else None, None
                    )
                )
                replaced.missed += 1
        return replaced

    # ---- the dictionary ----

    def _train(self, entries: dict[bytes, Entry]) -> None:
        """Learn a dictionary from the first of `entries`, then pack anew what is held: with it all
        frames of one content are equal."""
        samples = [entry for entry, _ in zip(entries.values(), range(self._train_at), strict=False)]
        unpack = self._packer.unpack
        if self._packer.train(unpack(memoryview(entry.packed)[_PLACE_BYTES:]) for entry in samples):
            for entry in self._distinct():
                body = unpack(memoryview(entry.packed)[_PLACE_BYTES:])
                entry.packed = entry.packed[:_PLACE_BYTES] + self._packer.pack(body)

    def _distinct(self) -> Iterator[Entry]:
        yield from self._entries.values()
        for state in self._loading:
            yield from state.values()
        for key, entry in (self._staged or {}).items():
            if self._entries.get(key) is not entry:
                yield entry


def _older(version: str, than: str) -> bool:
    """True only where the two can be compared; the first test alone settles nearly every event."""
    return (len(version), version) < (len(than), than) and compare(version, than) == -1


def _repeats(frame: ObjectFrame, held: Entry) -> bool:
    """The frame shows what is held, or something before it."""
    version, known = frame.resource_version, held.resource_version
    if version == known:
        return version != "" and frame.uid == held.uid
    return _older(version, known)


def _ends(frame: ObjectFrame, held: Entry) -> bool:
    """The deletion is of `held`, or of an incarnation after it.

    Its version may equal the held one: old servers sent the last update's. Source: WATCH 4.3, 5.5.
    """
    if frame.uid == held.uid:
        return not _older(frame.resource_version, held.resource_version)
    return compare(frame.resource_version, held.resource_version) == 1
