"""Replicas of one relay that share its streams, by name: to start, to hurt, and to count their
streams and claims."""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import starmap
from typing import Any

from tests.support.daemon import Daemon, Outcome, command
from tests.support.process import wait_until
from tests.support.testbed import Testbed

SESSION_S = 6.0
SETTLE_S = 5.0
"""What a rebalance, a claim and a read-back take at most, beside the session."""


class Replicas:
    """`running` are those that run, `all` those that ever did; `stack` ends them.

    Args:
        resources: entries of the config.
        streams: how many streams these are.
        more: further keys of the config, as for `Testbed.relay`.
    """

    def __init__(
        self,
        testbed: Testbed,
        resources: Sequence[Any],
        stack: ExitStack,
        *,
        streams: int,
        **more: Any,
    ) -> None:
        self.testbed, self.streams = testbed, streams
        self._resources, self._stack, self._more = resources, stack, more
        self.running: dict[str, Daemon] = {}
        self.all: list[Daemon] = []

    def start(self, name: str, **other: Any) -> Daemon:
        """A new replica. `other`: keys of the config that differ from those of the others."""
        more = {**self._more, **other}
        sharding = {"enabled": True, "balanceAfter": "2s", **more.pop("sharding", {})}
        relay = self.testbed.relay(*self._resources, name=name, sharding=sharding, **more)
        self.running[name] = self._stack.enter_context(relay)
        self.all.append(relay)
        return relay

    def start_shared(self, *names: str) -> None:
        """These are started, and return once each owns some of the streams."""
        for name in names:
            self.start(name)
        for name in names:
            self.running[name].await_ready()
        self.await_shared(deadline_s=60.0, even=True)

    def owned(self) -> dict[str, list[str]]:
        """By replica, the streams whose whole state it has published as their owner."""
        return {
            name: [
                stream
                for stream, row in relay.api_streams().items()
                if row["state"] == "watching" and row["complete"]
            ]
            for name, relay in self.running.items()
        }

    def _is_settled(self, name: str, owned: list[str]) -> bool:
        """The replica owns some streams, those that it was assigned, and none is to move."""
        group = self.running[name].get_json("/api/group")
        assigned = {each["holder"]: each["streams"] for each in group.get("members", ())}
        return bool(
            owned
            and group["even"]
            and len(assigned) == len(self.running)
            and set(assigned[group["holder"]]) == set(owned)
        )

    def await_shared(self, *, deadline_s: float, even: bool = False) -> dict[str, list[str]]:
        """Return once each stream has one owner, `even`: and each replica some, of which none is to
        move."""
        owned: dict[str, list[str]] = {}

        def shared() -> bool:
            nonlocal owned
            owned = self.owned()
            counts = Counter(stream for streams in owned.values() for stream in streams)
            each_once = len(counts) == self.streams and set(counts.values()) == {1}
            return each_once and (not even or all(starmap(self._is_settled, owned.items())))

        try:
            wait_until("each stream has one owner", shared, deadline_s=deadline_s)
        except TimeoutError as late:
            raise AssertionError(f"{late}: {owned}") from None
        return owned

    def await_warm(self, *, deadline_s: float = 60.0) -> None:
        """Return once each stream has one warm standby."""

        def warm() -> bool:
            warmed = [relay.metric("watchrelay_stream_warm") for relay in self.running.values()]
            return sum(warmed) == self.streams

        wait_until("each stream has a warm standby", warm, deadline_s=deadline_s)

    def epochs(self) -> dict[str, int]:
        return {
            stream: row["epoch"]
            for relay in self.running.values()
            for stream, row in relay.api_streams().items()
            if row["complete"]
        }

    def logged(self, message: str) -> list[dict[str, Any]]:
        """The log lines of all that hold this text."""
        return [line for relay in self.all for line in relay.logged(message)]

    def mark(self) -> Callable[[], list[dict[str, Any]]]:
        """A function that gives the log lines of all since this call."""
        since = {id(relay): relay.log_bytes for relay in self.all}

        def lines() -> list[dict[str, Any]]:
            return [
                line for relay in self.all for line in relay.lines(since=since.get(id(relay), 0))
            ]

        return lines

    def verified(self) -> Outcome:
        """What `verify --cluster` says."""
        relay = next(iter(self.running.values()))
        return command("verify", "-c", relay.file, "--cluster", timeout_s=120.0)

    def verify(self) -> None:
        outcome = self.verified()
        assert outcome.code == 0, outcome.stdout + outcome.stderr
