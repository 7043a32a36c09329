"""The set that a full queue becomes: which keys are to be said, and what the log will hold of each
before that.

Room: relay (pure). In: what was queued, or would have been, in the store's order. Out: per key,
enough to tell what leads from the published state to the present one. Source:
docs/record-contract-reasons.md, F6.

Why it is bounded by the objects there are: a key is kept while the log holds it or the store does.
One that came and went while nobody could be told leaves the set.
"""

from __future__ import annotations

from collections import OrderedDict

import msgspec

STATES_MAX = 2
"""A key is said by two records at most: a delete, and the object under its new uid."""


class Dirty(msgspec.Struct, gc=False):
    """One key of the set.

    Shape: `uid` and `hash` are what the log holds behind all that is queued; `hash` None: nothing.
    `gone` is the version of its newest removal, "" for none. `owed`: something is said of it in any
    case. `states` wait to be said, `STATES_MAX` at most. `received_s` is when the oldest of them
    was received.
    """

    uid: str
    hash: int | None
    gone: str
    owed: bool
    states: int
    received_s: float


class DirtyKeys(OrderedDict[bytes, Dirty]):
    """The keys of one partition, oldest first. Law: states that came in = states said + `skipped` +
    states still waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.skipped = 0
        """States that no record will say; whoever counts them sets it back to 0."""

    def owe(self, key: bytes, uid: str, published: int | None) -> None:
        """`key` must be said, whatever its state: a stale record stands on it."""
        known = self.get(key)
        if known is None:
            self[key] = Dirty(uid, published, "", True, 0, 0.0)
        else:
            known.owed = True

    def upserted(
        self, key: bytes, uid: str, published: int | None, *, owed: bool, received_s: float
    ) -> None:
        """The object has another state. Shape: `uid` and `published` are what the log holds of it;
        looked at for a new key alone."""
        known = self.get(key)
        if known is None:
            self[key] = Dirty(uid, published, "", owed, 1, received_s)
        elif known.states < STATES_MAX:
            known.states += 1
        else:
            self.skipped += 1

    def removed(
        self,
        key: bytes,
        uid: str,
        published: int | None,
        version: str,
        *,
        owed: bool,
        received_s: float,
    ) -> None:
        """The object with this `uid` is gone, as of `version`."""
        known = self.get(key)
        if known is None:
            self[key] = Dirty(uid, published, version, owed, 1, received_s)
            return
        if known.hash is None and not known.owed:
            del self[key]
            self.skipped += known.states + 1
            return
        known.gone = version
        if known.hash is None:
            known.uid = uid
        if known.states < STATES_MAX:
            known.states += 1
        else:
            self.skipped += 1
