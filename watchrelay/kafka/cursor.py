"""How far a partition is read. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Cursor:
    """A place in one partition, which a reading moves.

    `next`: the offset of the first record that is not read. `end`: that before which the past ends,
    or all that is to be read; None: unknown, or never."""

    next: int = 0
    end: int | None = None

    @property
    def is_behind(self) -> bool:
        """The end is not reached."""
        return self.end is None or self.next < self.end
