"""Whether `ce_wrseen` of each marker is true at its place: what its writer had received by then is
before the marker. Source: record contract 3.

Input: the records of one partition as they are appended, and when each process received what.
Output: every marker that is wrong, as one line.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

from tests.simulation.apiserver import Obj, Server, selects
from tests.simulation.partition_log import Stored
from tests.simulation.process import EPOCH_MS, Config, Life
from tests.simulation.readers import counted
from watchrelay.contract.partitioning import partition_of
from watchrelay.contract.records import MarkerRecord, ObjectRecord
from watchrelay.core.timestamps import parse_timestamp

SAME_S = 0.003
"""Two moments of the wall that are this close are one: it shows whole milliseconds."""
Shown = tuple[str, int, int | None] | None
"""uid, body and noise of a published object; None: there is none."""


class Freshness:
    """One partition. `life_of` returns the process of an epoch, None for one that is not
    compared."""

    def __init__(
        self,
        partition: int,
        partitions: int,
        server: Server,
        life_of: Callable[[int], Life | None],
    ) -> None:
        self._partition, self._partitions = partition, partitions
        self._server, self._life_of = server, life_of
        self._rows: dict[bytes, bytes | None] = {}
        self.broken: list[str] = []

    def take(self, stored: Stored) -> None:
        """The next record as it landed."""
        record = stored.decoded
        if record is None or not stored.heeded:
            return
        if isinstance(record, ObjectRecord):
            self._rows[record.key] = record.value
        elif record.seen:
            self._judge(stored.offset, record)

    def _judge(self, offset: int, marker: MarkerRecord) -> None:
        life = self._life_of(marker.epoch)
        if life is None:
            return
        where = f"p{self._partition}@{offset} {marker.kind} is seen at {marker.seen}"
        if marker.seen > marker.time:
            self.broken.append(f"{where} and was queued before, at {marker.time}")
        # frontier 0 claims nothing: a first snapshot still has to publish what is missing there
        if marker.frontier == "0":
            return
        seen_s = (parse_timestamp(marker.seen.encode()) - EPOCH_MS) / 1000
        # a millisecond has more than one instant
        received: Iterator[int] = (
            each for at_s, each in reversed(life.api.received) if at_s < seen_s
        )
        # what is seen by a small list is all that it showed, if it was not by what came just then
        came = any(abs(at_s - seen_s) < SAME_S for at_s, _ in reversed(life.api.received))
        looks = [] if came else life.api.looks
        looked = (each for at_s, each in looks if abs(at_s - seen_s) < SAME_S)
        received = itertools.chain(looked, received)
        if (version := next(received, None)) is None:
            return
        for key, states in self._states_since(version, life.config).items():
            row = self._rows.get(key)
            shown = None if row is None else counted(row, life.config)
            if shown not in states:
                self.broken.append(
                    f"{where} and lacks what was received before: {key.decode()} is "
                    f"{shown}, and was {states} since version {version}"
                )

    def _states_since(self, version: int, config: Config) -> dict[bytes, list[Shown]]:
        """By key of this partition, every state that it had from `version` on."""
        states = {_key(name): [_shown(each, config)] for name, each in self._server.objects.items()}
        for event in self._server.since(version, len(self._server.history)):
            of_key = states.setdefault(_key(event.name), [])
            of_key += [_shown(event.before, config), _shown(event.after, config)]
        return {
            key: states.get(key, [None])
            for key in states.keys() | self._rows.keys()
            if partition_of(key, self._partitions) == self._partition
        }


def _key(name: str) -> bytes:
    return f"n/{name}".encode()


def _shown(each: Obj | None, config: Config) -> Shown:
    if each is None or not selects(config.selector, each):
        return None
    return each.uid, each.body, each.noise if config.shows_noise else None
