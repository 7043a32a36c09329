"""The set of dirty keys that replaces a full queue: which keys to publish, and what the log will
hold of each before that.

It is bounded by the number of objects: a key is kept while the log or the store holds it. One that
was created and deleted without a record leaves the set. See docs/record-contract.md.
"""

from __future__ import annotations

from collections import OrderedDict

import msgspec

STATES_MAX = 2
"""A key needs two records at most: a delete, and the object under its new uid."""


class DirtyKey(msgspec.Struct, gc=False):
    """One key of the set.

    `uid` and `hash` are what the log holds after all that is queued; `hash` None: nothing. `gone`
    is the version of the newest removal, "" for none. `must_publish`: a record is needed whatever
    the state. `states` wait for a record, `STATES_MAX` at most; the oldest of them was received at
    `received_s`.
    """

    uid: str
    hash: int | None
    gone: str
    must_publish: bool
    states: int
    received_s: float


class DirtyKeys(OrderedDict[bytes, DirtyKey]):
    """The dirty keys of one partition, oldest first. The states that came in are
    published, `skipped` or still waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.skipped = 0
        """States without a record; reset to 0 when they are counted."""

    def require(self, key: bytes, uid: str, published: int | None) -> None:
        """Have `key` published whatever its state: its last record on the log is stale."""
        known = self.get(key)
        if known is None:
            self[key] = DirtyKey(uid, published, "", True, 0, 0.0)
        else:
            known.must_publish = True

    def upserted(
        self, key: bytes, uid: str, published: int | None, *, must_publish: bool, received_s: float
    ) -> None:
        """Take a new state; `uid` and `published` are what the log holds of a new key."""
        known = self.get(key)
        if known is None:
            self[key] = DirtyKey(uid, published, "", must_publish, 1, received_s)
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
        must_publish: bool,
        received_s: float,
    ) -> None:
        """Take the removal of the object with this `uid`, as of `version`."""
        known = self.get(key)
        if known is None:
            self[key] = DirtyKey(uid, published, version, must_publish, 1, received_s)
            return
        if known.hash is None and not known.must_publish:
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
