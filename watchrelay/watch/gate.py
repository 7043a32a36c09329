"""The gate of one endpoint: may a stream send a request now? Pure.

Room: watch. In: who asks, and how requests ended. Out: go, or wait until when.

Streams share permission, not a counter: a failure of the *server* closes the gate for all, once per closure however many streams see
it; when the time is up exactly one stream probes; any answer of a living server opens the gate, and whoever waited follows spread out.
A stream that is failed again while another was answered in between has a trouble of its own (an aggregated API server that is away
answers 503 for its resources), which closes the gate for nobody.
A probe that nobody could answer, because we had no credential for it, leaves the gate shut until another probes.
A watch that breaks after it was opened may be the end of the server, or a proxy's idle timeout: it only makes the next request a probe.
Source: WATCH 6.5 (client-go warns that a shared delay function advances once per caller).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from random import Random

from watchrelay.backoff import Backoff, clamp_retry_after

SPREAD_PER_STREAM_S = 0.02
"""50 watches a second: each is a TLS handshake and one seat of a server that has just come back. Source: `make bench ARGS=returning`."""
SPREAD_MAX_S = 30.0
CLOSED_RETRY_AFTER_MAX_S = 32.0
"""Of a Retry-After, how much holds all streams; the one that it was said to obeys the whole. Above what kube-apiserver asks for: it may
be said by what serves one resource alone. Source: WATCH 6.4, class B.
"""
CLOSED_LEAST_S = 1.0
"""From a probe that failed to the next one: a server that is away hears of all streams together once a second at most."""


def spread_s(streams: int, rng: Random) -> float:
    """A random wait that keeps `streams` of them from knocking together."""
    return rng.random() * min(SPREAD_MAX_S, SPREAD_PER_STREAM_S * streams)


@dataclass(frozen=True, slots=True)
class Go:
    """Send the request now, and say how it ended under this closure number."""

    closure: int


@dataclass(frozen=True, slots=True)
class Hold:
    """Wait: until the moment given, or, with infinity, until the probe has ended."""

    until_s: float


@dataclass(frozen=True, slots=True)
class Open:
    """Requests pass; those who waited at the last closure pass at a moment of their own."""

    turns: dict[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Doubtful:
    """A watch broke: the first who asks probes, at once, and until that has ended nobody else passes."""


@dataclass(frozen=True, slots=True)
class Closed:
    """Nobody passes before `until_s`; then the first who asks probes."""

    until_s: float


@dataclass(frozen=True, slots=True)
class Probing:
    """One stream tries; the others wait for how it ends."""

    prober: int


GateState = Open | Doubtful | Closed | Probing


class Gate:
    """The gate of one endpoint; streams are numbers that the caller gives out."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._backoff = Backoff()
        self._answered = False
        self._broken = False
        self._waiting: set[int] = set()
        self._failing: dict[int, bool] = {}
        """Streams whose newest request the server failed, and whether it has answered another since."""
        self.state: GateState = Open()
        self.closures = 0
        self.news = False
        """The newest closure is the first of a row."""

    @property
    def level(self) -> int:
        """Closures in a row."""
        return self._backoff.failures + self._backoff.absences

    @property
    def closed_until_s(self) -> float | None:
        """When it will be tried again; infinity while the probe is out, None while it is open."""
        match self.state:
            case Closed(until_s=until_s):
                return until_s
            case Probing():
                return math.inf
            case _:
                return None

    def ask(self, stream: int, now_s: float) -> Go | Hold:
        """May `stream` send a request now? Ask again at the moment that `Hold` names, or when the gate has changed."""
        match self.state:
            case Open(turns=turns):
                if turns.get(stream, now_s) > now_s:
                    return Hold(turns[stream])
                turns.pop(stream, None)
            case Closed(until_s=until_s):
                if now_s < until_s:
                    self._waiting.add(stream)
                    return Hold(until_s)
                self.state = Probing(stream)
            case Doubtful():
                self.state = Probing(stream)
            case Probing(prober=prober):
                if prober != stream:
                    self._waiting.add(stream)
                    return Hold(math.inf)
        self._waiting.discard(stream)
        return Go(self.closures)

    def answered(self, stream: int, now_s: float) -> bool:
        """A living server answered `stream`, whatever it said. True when that opened the gate."""
        self._failing.pop(stream, None)
        for each in self._failing:
            self._failing[each] = True
        if isinstance(self.state, Probing) and self.state.prober == stream:
            count = len(self._waiting)
            self.state = Open({each: now_s + spread_s(count, self._rng) for each in sorted(self._waiting)})
            self._waiting.clear()
            self._answered = True
            return True
        if isinstance(self.state, Open):
            self._answered = True
        return False

    def failed(self, stream: int, go: Go, now_s: float, *, retry_after_s: float = 0.0, reached: bool = True) -> bool:
        """The server failed `stream`, or was not even `reached`. True when that closed the gate or moved its end.

        Shape: a request that was let through before the newest closure tells nothing new; only a longer Retry-After of it counts. A probe
        that fails by a trouble of the stream's own leaves the next one to another.
        """
        asked_s = min(clamp_retry_after(retry_after_s), CLOSED_RETRY_AFTER_MAX_S)
        its_own = reached and self._failing.get(stream, False)
        self._failing[stream] = False
        if its_own:
            if self.state != Probing(stream):
                return False
            self.state, self.news = Closed(now_s + CLOSED_LEAST_S), False
            return True
        probing = isinstance(self.state, Probing)
        if go.closure < self.closures or (probing and self.state != Probing(stream)):
            if isinstance(self.state, Closed) and now_s + asked_s > self.state.until_s:
                self.state = Closed(now_s + asked_s)
                return True
            return False
        self._turned_away(now_s)
        after = self._backoff.after_failure if reached else self._backoff.after_absence
        self._backoff, delay_s = after(now_s, healthy=self._answered, rng=self._rng)
        self.news = self.level == 1 + self._broken
        self._answered = self._broken = False
        self.closures += 1
        self._failing = dict.fromkeys(self._failing, False)
        self.state = Closed(now_s + max(delay_s, asked_s, CLOSED_LEAST_S))
        return True

    def unanswered(self, stream: int, now_s: float) -> bool:
        """The request of `stream` ended before anybody could answer it, by a fault of ours. True when that moved the end of the closure.

        Shape: it says nothing of the server. A probe that ended so is made up for at the pace of one that reached nobody, and counts
        neither as a failure nor as an answer; any other request changes nothing.
        """
        if self.state != Probing(stream):
            return False
        _, delay_s = self._backoff.after_absence(now_s, healthy=False, rng=self._rng)
        self.state = Closed(now_s + max(delay_s, CLOSED_LEAST_S))
        return True

    def broke(self, now_s: float) -> None:
        """A watch that was opened, whenever that was, has broken. It is a failure of the row, but of itself closes the gate for no time.

        Law: streams whose watches a proxy cuts one by one, each in its time, do not hold up each other.
        """
        if not isinstance(self.state, Open):
            return
        self._turned_away(now_s)
        self._backoff, begun = self._backoff.begun(now_s, healthy=self._answered)
        self._broken = self._broken or begun
        self.closures += 1
        self.state = Doubtful()

    def _turned_away(self, now_s: float) -> None:
        """Who waits for a turn behind the last closure waits for the end of the next."""
        if isinstance(self.state, Open):
            self._waiting.update(each for each, turn_s in self.state.turns.items() if turn_s > now_s)

    def left(self, stream: int, now_s: float) -> bool:
        """`stream` asks no more, or gave up its request. True when that set the probe free for another."""
        self._waiting.discard(stream)
        self._failing.pop(stream, None)
        if isinstance(self.state, Open):
            self.state.turns.pop(stream, None)
        if isinstance(self.state, Probing) and self.state.prober == stream:
            self.state = Closed(now_s)
            return True
        return False
