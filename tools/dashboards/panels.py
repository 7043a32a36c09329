"""What the dashboards show: rows of panels, each with its unit and what its expressions mean.

`build.py` makes Grafana's JSON of them.
"""

from __future__ import annotations

from typing import Final

from tools.dashboards.fleet import FLEET
from tools.dashboards.kafka import KAFKA
from tools.dashboards.stream import STREAM

MAY_BE_EMPTY: Final = frozenset(
    panel.title
    for rows in (FLEET, STREAM, KAFKA)
    for _, panels in rows
    for panel in panels
    if panel.may_be_empty
)
"""Panels that have no data on a healthy relay."""
