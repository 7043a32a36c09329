"""What is counted without the library: in batches, without locks, or when somebody asks."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, groupby
from typing import Final

from prometheus_client import Gauge
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from watchrelay.core import clock
from watchrelay.observe.exposition import Family, Rows, Sample

# fmt: off
LAG_BUCKETS_S = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
    1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0,
)
# fmt: on
_LAG_BOUNDS: Final = [*({"le": str(bound)} for bound in LAG_BUCKETS_S), {"le": "+Inf"}]


class Age:
    """A gauge of the time since something happened, by a clock that is not set: nothing that
    compares it with another clock is wrong with ours. Before it happened: +Inf."""

    def __init__(self, gauge: Gauge) -> None:
        self._at_s = -math.inf
        gauge.set_function(lambda: clock.boot_s() - self._at_s)

    def restart(self, *, ago_s: float = 0.0) -> None:
        """It happened `ago_s` ago."""
        self._at_s = clock.boot_s() - ago_s


class Lag:
    """A histogram that takes a batch of observations in one call, without locks."""

    def __init__(self) -> None:
        self.counts = [0] * (len(LAG_BUCKETS_S) + 1)
        self.total_s = 0.0

    def samples(self) -> list[Sample]:
        """As the library has those of a histogram."""
        counts = [*accumulate(self.counts)]
        buckets = zip(_LAG_BOUNDS, counts, strict=True)
        return [
            *(("_bucket", bound, float(count)) for bound, count in buckets),
            ("_count", {}, float(counts[-1])),
            ("_sum", {}, self.total_s),
        ]

    def observe_batch(self, received_at_s: Iterable[float], now_s: float) -> float | None:
        """Count `now_s - t` for each t but 0; the longest of them. Units: seconds, monotonic."""
        slowest_s: float | None = None
        # events of one chunk were received at one moment
        for at_s, together in groupby(received_at_s):
            if at_s:
                lag_s, count = now_s - at_s, len(list(together))
                self.counts[bisect_left(LAG_BUCKETS_S, lag_s)] += count
                self.total_s += lag_s * count
                slowest_s = lag_s if slowest_s is None or lag_s > slowest_s else slowest_s
        return slowest_s


class Collected(Collector):
    """Metrics that are counted outside the library. `gc_seconds`, by generation, are added to from
    where no lock may be taken (`interpreter.py`)."""

    def __init__(self, family: Callable[[str, Callable[[], Rows]], Family]) -> None:
        """`family`: that of a name in the catalogue, with the rows that are given."""
        self._family = family
        self.lags: dict[str, Lag] = {}
        self.ages: dict[str, Callable[[], float | None]] = {}
        self.states: Mapping[str, str] = {}
        self.all_states: Sequence[str] = ()
        self.gc_seconds = [0.0, 0.0, 0.0]

    def collect(self) -> Iterable[Metric]:
        return (family.metric() for family in self.families())

    def families(self) -> Iterator[Family]:
        yield self._family("relay_lag_seconds", self._lag_rows)
        yield self._family("state_age_seconds", self._age_rows)
        yield self._family("stream_state", self._state_rows)
        yield self._family("gc_pause_seconds", self._pause_rows)

    def _lag_rows(self) -> Rows:
        for stream, lag in list(self.lags.items()):
            yield (stream,), lag.samples()

    def _age_rows(self) -> Rows:
        for stream, age_s in list(self.ages.items()):
            if (known_s := age_s()) is not None:
                yield (stream,), (("", {}, known_s),)

    def _state_rows(self) -> Rows:
        for stream, state in self.states.items():
            for each in self.all_states:
                yield (stream, each), (("", {}, float(each == state)),)

    def _pause_rows(self) -> Rows:
        for generation, seconds in enumerate(self.gc_seconds):
            yield (str(generation),), (("_total", {}, seconds),)
