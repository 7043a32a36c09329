"""Secrets that others replace while we run.

Room: sink. In: the files of a connection's secrets. Out: word that they changed, once they stand
still; and, to whoever holds a client, that others were proven to work.
"""

from __future__ import annotations

from collections.abc import Sequence

from watchrelay.core.files import Mark, mark_of


class Rotation:
    """Shared by all clients of one connection. Shape: `proven` counts the secrets that let a
    producer in after others had."""

    def __init__(self) -> None:
        self.proven = 0


class Secrets:
    """The files of one connection's secrets, as they were when a client was built from them."""

    def __init__(self, files: Sequence[str]) -> None:
        self._files = tuple(files)
        self._used: tuple[Mark, ...] = ()
        self._seen: tuple[Mark, ...] = ()
        self._proven: tuple[Mark, ...] | None = None

    def __bool__(self) -> bool:
        return bool(self._files)

    def using(self) -> None:
        """A client is about to be built from what the files hold now."""
        self._used = self._seen = self._marks()

    def took(self) -> None:
        """A client was built after `changed` said so."""
        self._used = self._seen

    def let_in(self) -> bool:
        """The newest client got in. True: one built from other files did before."""
        former, self._proven = self._proven, self._used
        return former is not None and former != self._used

    @property
    def in_use(self) -> bool:
        """What was last seen is what the newest client was built from, or is being built from."""
        return self._seen == self._used

    def changed(self) -> bool:
        """They hold something else than is used, and did so at the call before: whoever replaces
        them may do it one by one."""
        marks, before = self._marks(), self._seen
        self._seen = marks
        return marks != self._used and marks == before

    def _marks(self) -> tuple[Mark, ...]:
        return tuple(map(mark_of, self._files))
