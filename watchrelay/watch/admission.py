"""What every stream of one API server passes before it sends a request: the circuit breaker, and a
bounded number of slots for lists."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random

from watchrelay.core.errors import KubeError, Misconfigured, Unavailable, Unreachable
from watchrelay.observe.metrics import Metrics
from watchrelay.watch.circuit import CircuitBreaker, Denied, Permit, spread_s
from watchrelay.watch.failing import LISTS_A_MINUTE

LIST_SLOTS = 3
LARGE_LIST_OBJECTS = 10_000
SMALL_LISTS_A_SECOND = 50
"""Small lists that ask for the current resourceVersion, of all streams together: as many as watches
are opened where many streams start (`circuit.SPREAD_PER_STREAM_S`). So 3,000 quiet streams without
bookmarks are each checked once a minute."""
WARN_AGAIN_AFTER_S = 120.0
"""An outage that begins within this time after the last warning is logged as a warning only if it
still lasts when this time is over: a server that comes and goes is not logged each time."""

log = logging.getLogger(__name__)


class PerMinute:
    """At most `most` in any 60 s; moments are of the monotonic clock."""

    def __init__(self, most: int) -> None:
        self._taken_s = deque([-math.inf] * most, maxlen=most)

    def allows(self, now_s: float) -> bool:
        return now_s - self._taken_s[0] >= 60.0

    def take(self, now_s: float) -> bool:
        """Whether it is allowed; then it counts."""
        allowed = self.allows(now_s)
        if allowed:
            self._taken_s.append(now_s)
        return allowed


class Admission:
    """Shared by every stream of one API server. At most `list_slots` streams list at the same
    time, and of the streams whose last complete list had more than `LARGE_LIST_OBJECTS` objects at
    most one. Source: docs/watch-facts.md 6.5, 6.6."""

    def __init__(
        self,
        *,
        list_slots: int = LIST_SLOTS,
        rng: Random | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self._rng = rng or Random()
        self.breaker = CircuitBreaker(self._rng)
        self.slots = asyncio.Semaphore(list_slots)
        self.large_slots = asyncio.Semaphore(1)
        self.failing_lists = PerMinute(LISTS_A_MINUTE)
        """Lists of streams whose watch fails from its cursor, beside their slots."""
        self._next_small_list_at_s = -math.inf
        self._changed = asyncio.Event()
        self._gauge = metrics.gauge("endpoint_gate_closed") if metrics else None
        self._last_number = 0
        self.starting: set[int] = set()
        """The streams whose first request has not ended."""
        self.logged_open = False
        """The warning was logged, and "API server available again" has not followed yet."""
        self.warn_again_at_s = -math.inf

    @contextmanager
    def register(self) -> Iterator[StreamAdmission]:
        """The admission of one stream for as long as it runs."""
        self._last_number += 1
        wait_s = spread_s(len(self.starting), self._rng)
        stream = StreamAdmission(self, self._last_number, first_wait_s=wait_s)
        self.starting.add(self._last_number)
        try:
            yield stream
        finally:
            stream.close()

    def take_small_list_turn(self, now_s: float) -> float:
        """The moment of the next free turn for a small list, of `SMALL_LISTS_A_SECOND`, which is
        taken then."""
        at_s = max(now_s, self._next_small_list_at_s)
        self._next_small_list_at_s = at_s + 1 / SMALL_LISTS_A_SECOND
        return at_s

    def log_open(self, error: KubeError, now_s: float, *, outage: bool) -> None:
        """Log that `error` opened the circuit: an `outage` as a warning, unless there was one."""
        until_s = self.breaker.open_until_s
        extra = {
            "error": str(error),
            "reason": error.reason,
            "wait_s": None if until_s is None else round(until_s - now_s, 3),
            "failures": self.breaker.failures_in_row,
        }
        warn = outage and not self.logged_open and now_s >= self.warn_again_at_s
        level = logging.WARNING if warn else logging.DEBUG
        log.log(level, "API server unavailable; requests of all streams are paused", extra=extra)
        if warn:
            self.logged_open = True
            self.warn_again_at_s = now_s + WARN_AGAIN_AFTER_S

    def notify(self) -> None:
        """Wake every stream that waits for the circuit breaker."""
        if self._gauge is not None:  # it calls an open circuit a closed gate
            self._gauge.set(0 if self.breaker.open_until_s is None else 1)
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait_for_change(self, until_s: float) -> None:
        """Return at `until_s`, or when the circuit breaker has changed."""
        changed = self._changed
        try:
            async with asyncio.timeout_at(None if until_s == math.inf else until_s):
                await changed.wait()
        except TimeoutError:
            return

    async def wait_while_open(self, *, within_s: float) -> None:
        """Return once the circuit lets requests pass, or after `within_s`: for requests that are
        neither probes nor reported to the circuit breaker."""
        now_s = asyncio.get_running_loop().time
        until_s = now_s() + within_s
        while self.breaker.open_until_s is not None and now_s() < until_s:
            await self.wait_for_change(until_s)


class StreamAdmission:
    """The admission of one stream. `first_wait_s` is how long to wait before the first request, so
    that streams that start together do not send at the same moment."""

    def __init__(self, admission: Admission, number: int, *, first_wait_s: float) -> None:
        self._admission = admission
        self._number = number
        self._slots: list[asyncio.Semaphore] = []
        self._permit: Permit | None = None
        self._small_list_at_s = -math.inf
        self.first_wait_s = first_wait_s

    def small_list_at_s(self, now_s: float) -> float:
        """When the stream may make its next small list: the turn that it has, or another."""
        if self._small_list_at_s <= now_s:
            self._small_list_at_s = self._admission.take_small_list_turn(now_s)
        return self._small_list_at_s

    async def acquire_list_slot(self, *, large: bool) -> None:
        """Take a slot, unless the list has one. Before `enter`, so that the stream that probes
        never waits for a slot held by a stream that waits for the probe."""
        if self._slots:
            return
        admission = self._admission
        try:
            for slots in (admission.large_slots, admission.slots) if large else (admission.slots,):
                await slots.acquire()
                self._slots.append(slots)
        except asyncio.CancelledError:
            self.release_list_slot()
            raise

    def release_list_slot(self) -> None:
        while self._slots:
            self._slots.pop().release()

    async def enter(self, on_wait: Callable[[float], None]) -> None:
        """Return when a request may be sent. End it with `answered` or `failed`; `close` ends one
        that was given up. `on_wait` is called each time the stream must wait, with the moment until
        when (infinity: unknown)."""
        breaker, now_s = self._admission.breaker, asyncio.get_running_loop().time
        while isinstance(answer := breaker.admit(self._number, now_s()), Denied):
            on_wait(answer.until_s)
            await self._admission.wait_for_change(answer.until_s)
        self._permit = answer

    def answered(self) -> None:
        """The server answered the request, with success or an error of the request."""
        admission = self._admission
        admission.starting.discard(self._number)
        if self._permit is not None and admission.breaker.answered(
            self._number, asyncio.get_running_loop().time()
        ):
            if admission.logged_open:
                log.info("API server available again")
                admission.logged_open = False
            admission.notify()

    def failed(self, error: KubeError) -> None:
        """The request failed: failures of the server open the circuit, other answers show that it
        is running, and an error before the request was sent (no credential, no trusted
        certificate) shows nothing."""
        admission, now_s = self._admission, asyncio.get_running_loop().time()
        breaker, permit = admission.breaker, self._permit
        admission.starting.discard(self._number)
        if isinstance(error, Misconfigured) and not error.status:
            if breaker.not_sent(self._number, now_s):
                admission.notify()
            return
        if not isinstance(error, Unavailable):
            self.answered()
            return
        reached = not isinstance(error, Unreachable)
        if permit is not None and breaker.failed(
            self._number, permit, now_s, retry_after_s=error.retry_after_s, reached=reached
        ):
            # with a new generation of permits the server failed; else the probe alone did, for a
            # reason of its own stream
            admission.log_open(error, now_s, outage=breaker.generation > permit.generation)
            admission.notify()

    def watch_broke(self, error: KubeError) -> None:
        """A watch that had been opened has ended with `error`: where the server may be down, the
        next request is a probe."""
        if isinstance(error, Unavailable):
            self._admission.breaker.watch_broke(asyncio.get_running_loop().time())

    def close(self) -> None:
        """The stream has stopped: its slot and its probe are free for others."""
        self.release_list_slot()
        self._permit = None
        self._admission.starting.discard(self._number)
        if self._admission.breaker.remove(self._number, asyncio.get_running_loop().time()):
            self._admission.notify()
