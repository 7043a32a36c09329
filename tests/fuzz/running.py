"""A daemon of the fuzz while it runs, and a reader of its topics: whether all is right yet, and how it
ends."""

from __future__ import annotations

import asyncio
import json
import traceback
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import aiohttp

from tests.fuzz.fasttime import elapsed_s
from tests.support.finds import flat
from watchrelay.consumer import TopicReader
from watchrelay.core.errors import Died
from watchrelay.daemon.daemon import Daemon

if TYPE_CHECKING:
    from tests.fuzz.play import Game

STOP_S = 60.0
_POLL_S = 2.0
PAGES = ("/", "/livez", "/readyz", "/metrics", "/api/streams", "/api/overview")


class Broken(Exception):
    """A promise was broken."""


@dataclass(slots=True)
class RunningDaemon:
    """A daemon that runs, and a reader of its topics."""

    game: Game
    daemon: Daemon
    relay: asyncio.Task[int]
    reader: TopicReader
    reading: asyncio.Task[None]

    async def until(self, claim: str, streams: list[str], bound_s: float) -> None:
        """Return when these streams are proven and right. Raises: Broken when the time is up or
        something ended."""
        deadline_s, began_s = elapsed_s() + bound_s, elapsed_s()
        missing = self._not_yet(streams)
        while missing and elapsed_s() < deadline_s:
            await asyncio.sleep(_POLL_S)
            missing = self._not_yet(streams)
        self.game.verdict.events.append(
            f"{elapsed_s():.1f} {claim}: {missing or 'yes'}, after {elapsed_s() - began_s:.0f} s"
        )
        if missing:
            rows = {
                name: (row.state, row.last_error, row.waits_for)
                for name, row in self.daemon.statuses.streams.items()
            }
            unproven = [
                partition
                for partition in self.reader.partitions()
                if partition.stream in streams and not partition.proven
            ]
            problems = [
                f"{each.kind} {each.topic}/{each.partition}@{each.offset} {each.detail:.200}"
                for each in self.reader.problems
            ]
            raise Broken(
                f"not within {bound_s:.0f} s: {claim}: {missing}\n    statuses {rows}, problems "
                f"{self.daemon.statuses.problems}\n"
                f"    reader: unproven {unproven}, problems {problems}"
            )

    def _not_yet(self, streams: list[str]) -> str:
        for name, task in (("daemon", self.relay), ("reader", self.reading)):
            if task.done():
                error = None if task.cancelled() else task.exception()
                raise Broken(
                    f"the {name} ended: "
                    f"{why(error) if error else 'cancelled' if task.cancelled() else task.result()}"
                )
        wanted = {each.id: each.partitions for each in self.game.plan.followed}
        proven = Counter(
            partition.stream for partition in self.reader.partitions() if partition.proven
        )
        for stream in streams:
            if (
                not (row := self.daemon.statuses.streams.get(stream))
                or not row.complete
                or row.state != "watching"
            ):
                return f"{stream}: {row.state if row else 'not there'}"
            if proven[stream] < wanted[stream]:
                return f"{stream}: proven in {proven[stream]} of {wanted[stream]} partitions"
            if wrong := self.game.wrong(stream, self.reader.objects(stream)):
                return wrong
        return ""

    async def pages(self) -> None:
        """The admin server answers."""
        async with aiohttp.ClientSession() as session:
            for page in PAGES:
                async with session.get(f"http://127.0.0.1:{self.daemon.port}{page}") as answer:
                    body = await answer.read()
                    if answer.status != 200:
                        raise Broken(f"{page} is {answer.status}: {body[:300]!r}")
                    if page.startswith("/api/"):
                        json.loads(body)

    async def stop(self) -> None:
        """The daemon drains and ends with 0."""
        self.daemon.stop()
        _, late = await asyncio.wait((self.relay,), timeout=STOP_S)
        if late:
            raise Broken(f"the daemon did not end within {STOP_S:.0f} s")
        if self.relay.exception() or self.relay.result():
            raise Broken(f"the daemon ended with {self.relay.exception() or self.relay.result()!r}")


async def end(daemon: Daemon, relay: asyncio.Task[int]) -> None:
    """Whatever became of it: it runs no longer."""
    daemon.stop()
    daemon.stop()
    _, late = await asyncio.wait((relay,), timeout=STOP_S)
    for task in late:
        task.cancel()


def why(error: BaseException) -> str:
    """The tracebacks of what failed first, without those of what was ended by it."""
    found = flat(error)
    first = [each for each in found if not isinstance(each, Died | asyncio.CancelledError)]
    return "\n".join("".join(traceback.format_exception(each)) for each in first or found)
