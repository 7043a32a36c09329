"""How long to wait after a failure. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from random import Random

RETRY_AFTER_MAX_S = 300.0
"""Longest wait that a server's Retry-After is obeyed for. Source: docs/watch-facts.md 6.3."""
UNREACHABLE_STEP_S = 2.0
UNREACHABLE_SHARE = 60.0
"""An attempt that reaches no server is cheap, and waiting past the end of an outage is staleness:
so it is retried after 2 to 4 s, or after a sixtieth to a thirtieth of the outage where that is
longer."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """A growing delay: `base_s * 2^n`, at most `cap_s`, plus up to `jitter` of itself, at most
    `ceiling_s`. Units: seconds. State is one value, each user's own.

    A row of failures ends when the server was healthy and `reset_after_s` have passed since the
    last one. Attempts that reached no server are counted apart, as `unreachable_attempts`: they say
    nothing about a server that answers again. Source: client-go up to 1.35 (800 ms, doubled, cap
    30 s, jitter 1); a row does not end by time alone, or the delay would saw-tooth through an
    outage.
    """

    base_s: float = 0.8
    cap_s: float = 30.0
    jitter: float = 1.0
    ceiling_s: float = math.inf
    reset_after_s: float = 120.0
    failures: int = 0
    last_failure_at_s: float = -math.inf
    unreachable_attempts: int = 0
    unreachable_since_s: float = -math.inf

    def after_failure(self, now_s: float, *, healthy: bool, rng: Random) -> tuple[Backoff, float]:
        """The next state, and the delay before the next attempt.

        `healthy`: the failed attempt got at least one valid answer, or lasted at least 60 s.
        """
        failures = self._failures_in_row(now_s, healthy=healthy)
        delay_s = self._jittered(self.base_s * 2.0 ** min(failures, 60), rng)
        return replace(
            self, failures=failures + 1, last_failure_at_s=now_s, unreachable_attempts=0
        ), delay_s

    def after_unreachable(
        self, now_s: float, *, healthy: bool, rng: Random
    ) -> tuple[Backoff, float]:
        """The same for an attempt that reached no server (`Unreachable`); never a longer delay."""
        failures = self._failures_in_row(now_s, healthy=healthy)
        unreachable_attempts = 0 if healthy else self.unreachable_attempts
        since_s = self.unreachable_since_s if unreachable_attempts else now_s
        longest_s = max(UNREACHABLE_STEP_S, (now_s - since_s) / UNREACHABLE_SHARE)
        delay_s = self._jittered(
            min(longest_s, self.base_s * 2.0 ** min(unreachable_attempts, 60)), rng
        )
        return replace(
            self,
            failures=failures,
            last_failure_at_s=now_s,
            unreachable_attempts=unreachable_attempts + 1,
            unreachable_since_s=since_s,
        ), delay_s

    def begun(self, now_s: float, *, healthy: bool) -> Backoff:
        """The same with at least one failure in the row."""
        if self._failures_in_row(now_s, healthy=healthy):
            return self
        return replace(self, failures=1, last_failure_at_s=now_s, unreachable_attempts=0)

    def _failures_in_row(self, now_s: float, *, healthy: bool) -> int:
        is_over = healthy and now_s - self.last_failure_at_s > self.reset_after_s
        return 0 if is_over else self.failures

    def _jittered(self, step_s: float, rng: Random) -> float:
        return min(self.ceiling_s, min(self.cap_s, step_s) * (1.0 + self.jitter * rng.random()))


def clamp_retry_after(seconds: float) -> float:
    """A server's Retry-After as far as it is obeyed: 0 for what is no number or lies in the past,
    never above five minutes."""
    return min(RETRY_AFTER_MAX_S, seconds) if seconds > 0 else 0.0
