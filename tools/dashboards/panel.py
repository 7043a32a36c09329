"""What a panel of a dashboard is, and the matchers that all of them share: see `panels.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

RATE: Final = "[$__rate_interval]"
PLACE: Final = 'job="watchrelay",namespace=~"$namespace"'
ALL: Final = PLACE + ',cluster=~"$cluster"'
STREAMS: Final = ALL + ',stream=~"$stream"'
CLUSTER: Final = PLACE + ',cluster="$cluster"'
ONE: Final = CLUSTER + ',stream="$stream"'
TOPICS: Final = ALL + ',topic=~"$topic"'
BOUND: Final = "bound"
"""How a line looks that others should stay below."""
STATES: Final = {
    "watching": "green",
    "listing": "blue",
    "resuming": "light-blue",
    "waiting": "purple",
    "backoff": "orange",
    "standby": "semi-dark-green",
    "stopped": "text",
}


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel. `queries` are pairs of an expression and its legend; `bad` is the value from which
    on it is red, `most` the end of its axis; `empty` is shown when there is no data, which is how
    it should be where `may_be_empty`; `looks` are colours and lines by legend: a colour of
    Grafana's, or BOUND."""

    title: str
    says: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    kind: str = "timeseries"
    width: int = 8
    height: int = 7
    bad: float | None = None
    below: bool = False
    stacked: bool = False
    timeline: bool = False
    steps: bool = False
    counts: bool = False
    most: float | None = None
    empty: str = "none"
    may_be_empty: bool = False
    looks: Mapping[str, str] = field(default_factory=dict)


Rows = tuple[tuple[str, tuple[Panel, ...]], ...]


def stat(
    title: str,
    says: str,
    unit: str,
    query: str,
    *,
    bad: float | None = None,
    below: bool = False,
    width: int = 4,
    counts: bool = False,
) -> Panel:
    """A figure, with what it was as a line behind it."""
    return Panel(
        title,
        says,
        unit,
        ((query, ""),),
        kind="stat",
        width=width,
        height=4,
        bad=bad,
        below=below,
        counts=counts,
    )


def quantiles(metric: str, matchers: str, by: str = "") -> tuple[tuple[str, str], ...]:
    """Median and 99th percentile of a histogram."""
    labels, legend = (f"{by}, le", f"{{{{{by}}}}} ") if by else ("le", "")
    rate = f"sum by ({labels}) (rate({metric}_bucket{{{matchers}}}{RATE}))"
    return tuple(
        (f"histogram_quantile({q}, {rate})", f"{legend}p{round(q * 100)}") for q in (0.5, 0.99)
    )
