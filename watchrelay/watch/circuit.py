"""The circuit breaker of one API server: may a stream send a request now? Pure."""

from __future__ import annotations

import math
from random import Random

import msgspec

from watchrelay.core.backoff import Backoff, clamp_retry_after

SPREAD_PER_STREAM_S = 0.02
"""50 watches a second: each costs a TLS handshake, and a seat of the server's API priority and
fairness. Source: `make bench ARGS=returning`."""
SPREAD_MAX_S = 30.0
OPEN_RETRY_AFTER_MAX_S = 32.0
"""How much of a Retry-After delays all streams; the stream that received it obeys more of it
(`RETRY_AFTER_MAX_S`).
kube-apiserver asks for less: a longer one probably comes from an aggregated API server, and
concerns one resource. Source: docs/watch-facts.md 6.4, class B."""
OPEN_LEAST_S = 1.0
"""After a failure the circuit stays open for at least this long."""


def spread_s(streams: int, rng: Random) -> float:
    """A random delay that keeps this many streams from sending requests at the same moment."""
    return rng.random() * min(SPREAD_MAX_S, SPREAD_PER_STREAM_S * streams)


class Permit(msgspec.Struct, frozen=True):
    """The request may be sent now; `failed` takes this permit."""

    generation: int


class Denied(msgspec.Struct, frozen=True):
    """Wait until `until_s` (monotonic), or, where that is infinity, until the probe has ended."""

    until_s: float


class Closed(msgspec.Struct, frozen=True):
    """Requests pass. Streams that waited while the circuit was open pass at the moments of
    `turns`."""

    turns: dict[int, float] = msgspec.field(default_factory=dict)


class Open(msgspec.Struct, frozen=True):
    """No request passes before `until_s`; the first one after it is the probe."""

    until_s: float


class HalfOpen(msgspec.Struct, frozen=True):
    """One request passes, the probe of stream `prober`; the others wait for its result. None: no
    stream has asked yet, and the next one to ask is the prober."""

    prober: int | None = None


class CircuitBreaker:
    """Closed, open or half-open, for all streams of one API server; streams are numbers chosen by
    the caller.

    A failure of the *server* opens the circuit for all streams, and counts once however many of
    them see it. When the time is up, exactly one stream probes; any answer of a running server to
    it closes the circuit, and the waiting streams follow spread out. A stream that fails again
    although another one was answered in between has a failure of its own (an aggregated API that is
    down answers 503 for its resources). Such a failure opens the circuit only where the stream was
    the probe, and only for `OPEN_LEAST_S`. The stream's failures are its own until it is answered,
    or a failure of the server opens the circuit. Source: docs/watch-facts.md 6.5.
    """

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._backoff = Backoff()
        self._answered = False
        """The server has answered a request since it failed last."""
        self._waiting: set[int] = set()
        self._answered_since: dict[int, bool] = {}
        """Of the streams whose newest request failed with `Unavailable`: whether another was
        answered since then, so that the stream's next failure is its own. A failure of the server
        that opens the circuit sets all to False."""
        self.state: Closed | Open | HalfOpen = Closed()
        self.generation = 0
        """The generation of permits: a new one begins when the server fails, and when a watch
        breaks. Of the failure of a request with an older permit only the Retry-After counts."""

    @property
    def failures_in_row(self) -> int:
        """The failures in a row, plus the attempts that reached no server since the last of them
        (`Backoff`). A watch that broke counts only where it is the first of the row."""
        return self._backoff.failures + self._backoff.unreachable_attempts

    @property
    def open_until_s(self) -> float | None:
        """When the next probe is due; infinity while one is in flight; None in `Closed`, and in
        `HalfOpen` before a stream has asked."""
        match self.state:
            case Open(until_s=until_s):
                return until_s
            case HalfOpen(prober=int()):
                return math.inf
            case _:
                return None

    def admit(self, stream: int, now_s: float) -> Permit | Denied:
        """May `stream` send a request now? Call again at the moment that `Denied` names, or when
        the state has changed."""
        match self.state:
            case Closed(turns=turns):
                if turns.get(stream, now_s) > now_s:
                    return Denied(turns[stream])
                turns.pop(stream, None)
            case Open(until_s=until_s):
                if now_s < until_s:
                    self._waiting.add(stream)
                    return Denied(until_s)
                self.state = HalfOpen(stream)
            case HalfOpen(prober=None):
                self.state = HalfOpen(stream)
            case HalfOpen(prober=prober):
                if prober != stream:
                    self._waiting.add(stream)
                    return Denied(math.inf)
        self._waiting.discard(stream)
        return Permit(self.generation)

    def answered(self, stream: int, now_s: float) -> bool:
        """A running server answered `stream`, with success or an error of the request. True when
        that closed the circuit."""
        self._answered_since.pop(stream, None)
        self._answered_since = dict.fromkeys(self._answered_since, True)
        if self.state == HalfOpen(stream):
            waiting, self._waiting = sorted(self._waiting), set()
            self.state = Closed(
                {each: now_s + spread_s(len(waiting), self._rng) for each in waiting}
            )
            self._answered = True
            return True
        if isinstance(self.state, Closed):  # else the request was sent before the failure
            self._answered = True
        return False

    def failed(
        self,
        stream: int,
        permit: Permit,
        now_s: float,
        *,
        retry_after_s: float = 0.0,
        reached: bool = True,
    ) -> bool:
        """The server failed the request of `stream`, which had `permit`. `reached`: False when no
        connection could be made.

        A request that was admitted before the newest failure is no new information; only a longer
        Retry-After of it counts. After a probe whose failure concerns its own stream only, the
        circuit is open for `OPEN_LEAST_S` only, which is shorter than that stream's own backoff:
        another stream, if one waits, probes next.

        Returns:
            True when that opened the circuit, or moved the moment of the next probe.
        """
        asked_s = min(clamp_retry_after(retry_after_s), OPEN_RETRY_AFTER_MAX_S)
        is_probe = self.state == HalfOpen(stream)
        if reached and self._answered_since.get(stream, False):  # a failure of its own
            if is_probe:
                self.state = Open(now_s + OPEN_LEAST_S)
            return is_probe
        self._answered_since[stream] = False
        prober = self.state.prober if isinstance(self.state, HalfOpen) else None
        another_probes = prober is not None and not is_probe
        if another_probes or permit.generation < self.generation:  # no new information
            longer = isinstance(self.state, Open) and now_s + asked_s > self.state.until_s
            if longer:
                self.state = Open(now_s + asked_s)
            return longer
        self._keep_waiting(now_s)
        after = self._backoff.after_failure if reached else self._backoff.after_unreachable
        self._backoff, delay_s = after(now_s, healthy=self._answered, rng=self._rng)
        self._answered = False
        self.generation += 1
        self._answered_since = dict.fromkeys(self._answered_since, False)
        self.state = Open(now_s + max(delay_s, asked_s, OPEN_LEAST_S))
        return True

    def not_sent(self, stream: int, now_s: float) -> bool:
        """The request of `stream` ended before it was sent, by an error on this side, which shows
        nothing about the server. After a probe that ended so, the next one follows at the pace of
        probes that reach no server. True when that moved the moment of the next probe."""
        if self.state != HalfOpen(stream):
            return False
        _, delay_s = self._backoff.after_unreachable(now_s, healthy=False, rng=self._rng)
        self.state = Open(now_s + max(delay_s, OPEN_LEAST_S))
        return True

    def watch_broke(self, now_s: float) -> None:
        """An open watch broke: the server may have stopped, or a proxy's idle timeout ended it. The
        circuit becomes half-open. This may begin a row of failures but adds no delay, so that
        streams whose watches a proxy closes one by one do not delay each other."""
        if not isinstance(self.state, Closed):
            return
        self._keep_waiting(now_s)
        self._backoff = self._backoff.begun(now_s, healthy=self._answered)
        self.generation += 1
        self.state = HalfOpen()

    def _keep_waiting(self, now_s: float) -> None:
        """Streams whose turn after the former outage has not come yet wait for the end of the new
        one."""
        if isinstance(self.state, Closed):
            turns = self.state.turns.items()
            self._waiting.update(each for each, turn_at_s in turns if turn_at_s > now_s)

    def remove(self, stream: int, now_s: float) -> bool:
        """`stream` has stopped, or gave up its request. True when that lets another stream
        probe."""
        self._waiting.discard(stream)
        self._answered_since.pop(stream, None)
        if isinstance(self.state, Closed):
            self.state.turns.pop(stream, None)
        if self.state == HalfOpen(stream):
            self.state = Open(now_s)
            return True
        return False
