"""Whether the API server answers this replica: streams move away from one that it does not."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from watchrelay.core.clock import Clocks
from watchrelay.core.tasks import first_of

log = logging.getLogger(__name__)

UNFIT_AFTER_S: Final = 30.0
"""Seconds without an answer of the API server after which a replica is unfit."""
API_CHECK_S: Final = 10.0
API_CHECK_AGAIN_S: Final = 2.0


class Fitness:
    """Use: `run()` as a task.

    `answered_s`: when the newest request that was answered was sent, by `now_s`, as rights are
    dated. `failed_s`: when one was not, by `boot_s`: its age is reported, and grows while the
    machine is suspended. At the start both are now."""

    def __init__(self, api_answers: Callable[[], Awaitable[bool]], clocks: Clocks) -> None:
        self.is_fit = True
        self.answered_s, self.failed_s = clocks.now_s(), clocks.boot_s()
        self._api_answers, self._clocks = api_answers, clocks
        self._due = asyncio.Event()

    def check(self) -> None:
        """Ask the API server now."""
        self._due.set()

    async def run(self, *, answered: Callable[[], None], changed: Callable[[], None]) -> None:
        """Ask until cancelled.

        Args:
            answered: called after each answer.
            changed: called after each change of `is_fit`.
        """
        while True:
            self._due.clear()
            asked_s = self._clocks.now_s()
            if has_answered := await self._api_answers():
                self.answered_s = asked_s
                answered()
            else:
                self.failed_s = self._clocks.boot_s()
            fit = self._clocks.now_s() - self.answered_s < UNFIT_AFTER_S
            if fit != self.is_fit:
                self.is_fit = fit
                log.warning("fitness of this replica has changed", extra={"fit": fit})
                changed()
            await first_of(self._due, timeout_s=API_CHECK_S if has_answered else API_CHECK_AGAIN_S)
