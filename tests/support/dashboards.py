"""The committed dashboards: their panels and expressions, variables replaced by values."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tests.support.charttools import CHART

FILES = sorted((CHART / "files" / "dashboards").glob("*.json"))
_ALWAYS = {"$__rate_interval": "1m", "$__range": "5m"}
_SAMPLE = {"$namespace": "ns", "$cluster": "c", "$stream": "pods", "$topic": ".*"}


@dataclass(frozen=True, slots=True)
class Query:
    """One expression of a dashboard, ready to ask; `where` names dashboard and panel."""

    where: str
    panel: str
    expression: str


def dashboard(name: str) -> dict[str, Any]:
    """The committed dashboard of that name."""
    found: dict[str, Any] = json.loads(
        (CHART / "files" / "dashboards" / f"{name}.json").read_text()
    )
    return found


def panels(board: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The panels of a dashboard that show something."""
    yield from (panel for panel in board["panels"] if panel["type"] != "row")


def queries(values: Mapping[str, str] = _SAMPLE) -> list[Query]:
    """Every expression of every dashboard: of panels, annotations and variables."""
    found: list[Query] = []
    for path in FILES:
        board = dashboard(path.stem)
        for panel in panels(board):
            found += [
                Query(f"{path.stem}: {panel['title']}", panel["title"], _with(t["expr"], values))
                for t in panel["targets"]
            ]
        for each in board["annotations"]["list"]:
            found.append(
                Query(
                    f"{path.stem}: annotation {each['name']}",
                    each["name"],
                    _with(each["expr"], values),
                )
            )
        for each in board["templating"]["list"]:
            if each["type"] == "query":
                series = each["query"]["query"].removeprefix("label_values(").rpartition(",")[0]
                found.append(
                    Query(
                        f"{path.stem}: variable {each['name']}", each["name"], _with(series, values)
                    )
                )
    return found


def _with(expression: str, values: Mapping[str, str]) -> str:
    for name, value in {**_ALWAYS, **values}.items():
        expression = expression.replace(name, value)
    return expression
