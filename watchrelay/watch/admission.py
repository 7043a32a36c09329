"""What all streams of one API server pass before they send a request: the gate, and the few seats
for lists.

Room: watch. In: streams that want to ask. Out: permission, one at a time where the server is in
trouble; lists at most three at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random

from watchrelay.core.errors import KubeError, Misconfigured, Unavailable, Unreachable
from watchrelay.observe.metrics import Metrics
from watchrelay.watch.circuit import Gate, Go, Hold, spread_s

LISTS_AT_ONCE = 3
LARGE_LIST_OBJECTS = 10_000

log = logging.getLogger(__name__)


class Turnstile:
    """Shared by every stream of one endpoint.

    Units: `lists` counts lists at once; of those known to hold over 10,000 objects one at a time
    passes. Source: WATCH 6.5, 6.6.
    """

    def __init__(
        self,
        *,
        lists: int = LISTS_AT_ONCE,
        rng: Random | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self._rng = rng or Random()
        self.gate = Gate(self._rng)
        self._seats = asyncio.Semaphore(lists)
        self._large = asyncio.Semaphore(1)
        self._changed = asyncio.Event()
        self._closed_gauge = metrics.gauge("endpoint_gate_closed") if metrics else None
        self._numbers = 0
        self.members = 0
        self.closed = False
        """The streams were told to stay away, and not yet that the server answers again."""

    @contextmanager
    def membership(self) -> Iterator[Passage]:
        """A stream's place at the turnstile for as long as it lives."""
        self._numbers += 1
        passage = Passage(self, self._numbers, first_wait_s=spread_s(self.members, self._rng))
        self.members += 1
        try:
            yield passage
        finally:
            self.members -= 1
            passage.close()

    def changed(self) -> None:
        """Wake everyone who waits at the gate."""
        closed = self.gate.closed_until_s is not None
        if self._closed_gauge is not None:
            self._closed_gauge.set(1 if closed else 0)
        self._changed.set()
        self._changed = asyncio.Event()

    def opened_again(self) -> None:
        """The probe was answered."""
        if self.closed:
            log.info("api server answers again")
            self.closed = False
        self.changed()

    async def wait_at_gate(self, until_s: float) -> None:
        """Return at `until_s`, or when the gate changed."""
        changed = self._changed
        try:
            async with asyncio.timeout_at(None if until_s == float("inf") else until_s):
                await changed.wait()
        except TimeoutError:
            return

    async def opened(self, *, within_s: float) -> None:
        """Return once the gate lets requests pass, or when the time is up: for one who neither
        probes nor closes it."""
        until_s = asyncio.get_running_loop().time() + within_s
        while self.gate.closed_until_s is not None and asyncio.get_running_loop().time() < until_s:
            await self.wait_at_gate(until_s)

    async def take_seat(self, *, large: bool) -> list[asyncio.Semaphore]:
        """Wait for a list's seat; the semaphores held are the caller's to release."""
        held: list[asyncio.Semaphore] = []
        try:
            for semaphore in (self._large, self._seats) if large else (self._seats,):
                await semaphore.acquire()
                held.append(semaphore)
        except asyncio.CancelledError:
            release(held)
            raise
        return held


def release(held: list[asyncio.Semaphore]) -> None:
    """Give seats back."""
    while held:
        held.pop().release()


class Passage:
    """One stream at the turnstile. Units: `first_wait_s` is what it should wait before its first
    request."""

    def __init__(self, turnstile: Turnstile, number: int, *, first_wait_s: float) -> None:
        self._turnstile = turnstile
        self._number = number
        self._seats: list[asyncio.Semaphore] = []
        self._go: Go | None = None
        self.first_wait_s = first_wait_s

    @property
    def seated(self) -> bool:
        """True while a list's seat is held."""
        return bool(self._seats)

    async def sit(self, *, large: bool) -> None:
        """Take a list's seat, once per list: before the gate, so that a prober never waits for
        those who wait for it."""
        if not self._seats:
            self._seats = await self._turnstile.take_seat(large=large)

    def stand(self) -> None:
        """Give the seat back; nothing to do without one."""
        release(self._seats)

    async def enter(self, on_hold: Callable[[float], None]) -> None:
        """Return when a request may be sent. `on_hold` is told until when (infinity: unknown) each
        time it must wait.

        Shape: end each entered request with `answered` or `failed`; `close` ends one that was given
        up.
        """
        gate = self._turnstile.gate
        loop = asyncio.get_running_loop()
        while isinstance(answer := gate.ask(self._number, loop.time()), Hold):
            on_hold(answer.until_s)
            await self._turnstile.wait_at_gate(answer.until_s)
        self._go = answer

    def answered(self) -> None:
        """The server lives: it answered the request, whatever it said."""
        if self._go is not None and self._turnstile.gate.answered(
            self._number, asyncio.get_running_loop().time()
        ):
            self._turnstile.opened_again()

    def failed(self, error: KubeError) -> None:
        """The request failed: the server's own failures close the gate, what it answered shows that
        it lives, and what kept us from asking (no credential, no trust) shows nothing."""
        if isinstance(error, Misconfigured) and not error.status:
            if self._turnstile.gate.unanswered(self._number, asyncio.get_running_loop().time()):
                self._turnstile.changed()
            return
        if not isinstance(error, Unavailable):
            self.answered()
            return
        gate, now_s, reached = (
            self._turnstile.gate,
            asyncio.get_running_loop().time(),
            not isinstance(error, Unreachable),
        )
        if self._go is not None and gate.failed(
            self._number, self._go, now_s, retry_after_s=error.retry_after_s, reached=reached
        ):
            until_s = gate.closed_until_s
            waits_s = None if until_s is None else round(until_s - now_s, 3)
            log.log(
                logging.WARNING if gate.news else logging.DEBUG,
                "api server in trouble, all streams stay away",
                extra={
                    "error": str(error),
                    "reason": error.reason,
                    "wait_s": waits_s,
                    "level": gate.level,
                },
            )
            self._turnstile.closed = True
            self._turnstile.changed()

    def broke(self, error: KubeError) -> None:
        """The watch that was opened has ended by `error`: where that may be the server's own end,
        the next request is a probe."""
        if isinstance(error, Unavailable):
            self._turnstile.gate.broke(asyncio.get_running_loop().time())

    def close(self) -> None:
        """Leave for good: seat and probe are free for others."""
        self.stand()
        self._go = None
        if self._turnstile.gate.left(self._number, asyncio.get_running_loop().time()):
            self._turnstile.changed()
