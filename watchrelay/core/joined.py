"""Work that many ask for at once, done once for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Result = TypeVar("Result")


@dataclass(slots=True)
class _Place(Generic[Result]):
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    asking: int = 0
    begun: int = 0
    """How often the work was begun."""
    found: list[Result] = field(default_factory=list)
    error: Exception | None = None
    """What came of it last; neither: it was cancelled."""


class Joined(Generic[Key, Result]):
    """One piece of work for each key at a time. Its outcome is that of all who asked before it
    began; who asks later waits for the next one, as what it found may have changed since. `work`
    gets the key, and what it gave last where somebody has asked since then; None after an error."""

    def __init__(self, work: Callable[[Key, Result | None], Awaitable[Result]]) -> None:
        self._work = work
        self._places: dict[Key, _Place[Result]] = {}

    async def result(self, key: Key) -> Result:
        """Raises: what the work raises."""
        place = self._places.setdefault(key, _Place())
        asked = place.begun
        place.asking += 1
        try:
            async with place.turn:
                if place.begun == asked or not (place.found or place.error):
                    await self._begin(key, place)
        finally:
            place.asking -= 1
            if not place.asking:
                del self._places[key]
        if place.error is not None:
            raise place.error
        return place.found[0]

    async def _begin(self, key: Key, place: _Place[Result]) -> None:
        place.begun += 1
        former, place.found, place.error = place.found, [], None
        try:
            place.found.append(await self._work(key, former[0] if former else None))
        except Exception as error:  # noqa: BLE001 - raised again to all who asked
            place.error = error
