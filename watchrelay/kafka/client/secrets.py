"""Secrets on disk: whether they changed, and whether the new ones were accepted."""

from __future__ import annotations

from collections.abc import Sequence

from watchrelay.core.files import Mark, mark_of


class Rotation:
    """Shared by all clients of one connection. `proven` counts the new secrets that brokers
    accepted."""

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

    def use_files(self) -> None:
        """A client is about to be built from what the files hold now."""
        self._used = self._seen = self._marks()

    def use_seen(self) -> None:
        """A client was built after `changed` returned true."""
        self._used = self._seen

    def accepted(self) -> bool:
        """The newest client was accepted. True: the one before used other secrets."""
        former, self._proven = self._proven, self._used
        return former is not None and former != self._used

    @property
    def in_use(self) -> bool:
        """What was last seen is what the newest client was built from, or is being built from."""
        return self._seen == self._used

    def changed(self) -> bool:
        """They differ from what is in use and did not change since the call before: files may be
        replaced one by one."""
        marks, before = self._marks(), self._seen
        self._seen = marks
        return marks != self._used and marks == before

    def _marks(self) -> tuple[Mark, ...]:
        return tuple(map(mark_of, self._files))
