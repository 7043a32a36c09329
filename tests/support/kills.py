"""A running relay, a seed, what to be in the middle of: its death there, counted by what it was at.

The instant is found by the relay's own log, read every millisecond: between "stream claimed" and
"log read back" it reads its log, between "snapshot started" and "snapshot complete" it writes a
snapshot. What it really was at is read off the log of the dead.
"""

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Literal

from tests.support.daemon import Daemon
from tests.support.pace import random_instant
from tests.support.process import wait_until

Aim = Literal["random", "resume", "snapshot"]

_POLL_S = 0.001
_DEADLINE_S = 60.0
_AIMS: tuple[Aim, ...] = ("random", "resume", "random", "snapshot", "random")


def aims(count: int) -> Iterator[Aim]:
    """So many instants: three of five random, the others in the middle of a resume and of a
    snapshot."""
    return (_AIMS[number % len(_AIMS)] for number in range(count))


class Victim:
    """A relay whose lives end by SIGKILL. `deaths` counts by what it was in the middle of;
    one death may count twice."""

    def __init__(self, relay: Daemon, rng: random.Random, ask_snapshot: Callable[[], None]) -> None:
        self.relay, self.deaths, self.lives = relay, Counter[str](), 0
        self._rng, self._ask_snapshot = rng, ask_snapshot
        self._since = relay.log_bytes

    def end(self, aim: Aim) -> None:
        """Kill it at an instant of this kind, and count what it was at."""
        match aim:
            case "random":
                random_instant(self._rng.choice((0.3, 0.6, 1.0, 2.5)) * self._rng.uniform(0.5, 1.5))
            case "resume":
                self._await("stream claimed")
                random_instant(self._rng.uniform(0, 0.1))  # how far into the read-back
            case "snapshot":
                self._await("log read back")
                self._ask_snapshot()
                self._await("snapshot started")
                random_instant(self._rng.choice((0, 0.01, 0.03, 0.06)))  # how far into the snapshot
        self.relay.kill()
        self.lives += 1
        self.deaths.update(self._was_at() or {"neither"})

    def start(self) -> None:
        """The next life."""
        self._since = self.relay.log_bytes
        self.relay.start()

    def _logged(self, message: str) -> list[dict[str, Any]]:
        return [line for line in self.relay.lines(since=self._since) if line["message"] == message]

    def _await(self, message: str) -> None:
        looked_at = -1

        def logged_or_ended() -> bool:
            nonlocal looked_at
            # decoded only when it grew: the relay shall find a free core
            before, looked_at = looked_at, self.relay.log_bytes
            return (looked_at > before and bool(self._logged(message))) or not self.relay.alive

        try:
            wait_until(
                f"the relay logs {message!r}",
                logged_or_ended,
                deadline_s=_DEADLINE_S,
                poll_s=_POLL_S,
            )
        except TimeoutError as late:
            raise AssertionError(f"{late}: {self.relay.api_streams()}") from None
        assert self._logged(message), (
            f"the relay ended by itself: {json.dumps(self.relay.lines(since=self._since)[-3:])}"
        )

    def _was_at(self) -> set[str]:
        claimed, read = (
            {line["stream"] for line in self._logged(message)}
            for message in ("stream claimed", "log read back")
        )
        begun, complete = (
            {(line["stream"], line["snapshot"]) for line in self._logged(message)}
            for message in ("snapshot started", "snapshot complete")
        )
        return {
            what
            for what, open_ in (("resume", claimed - read), ("snapshot", begun - complete))
            if open_
        }

    def decisions(self) -> Counter[str]:
        """How its lives went on from what they read."""
        return Counter(
            line["then"] for line in self.relay.lines() if line["message"] == "log read back"
        )
