"""Work over input from outside, in pieces: the event loop has its turn between two of them."""

from __future__ import annotations

import asyncio
from typing import Final

TURN_S: Final = 0.01
"""A tenth of what a probe or a group member notices, for some loops may work in the same turn."""


class Turns:
    """Use: one for each loop; `await turns.pause()` after each piece of work."""

    def __init__(self) -> None:
        self._now_s = asyncio.get_running_loop().time
        self._since_s = self._now_s()

    def begin(self) -> None:
        """Count from here on: the event loop has just had its turn."""
        self._since_s = self._now_s()

    @property
    def over(self) -> bool:
        """Whether the time of this turn is used up."""
        return self._now_s() - self._since_s > TURN_S

    async def pause(self) -> None:
        """Let the event loop have its turn where this one is over."""
        if self.over:
            await asyncio.sleep(0)
            self.begin()


class OneByOne:
    """Tasks that wake together go on one after another: between two of them the event loop has its
    turn."""

    def __init__(self) -> None:
        self._free = asyncio.Lock()

    async def turn(self) -> None:
        """Return when it is this task's turn. What it does next without a pause is its turn."""
        async with self._free:
            await asyncio.sleep(0)
