"""The Grafana dashboards as plain dictionaries: the fleet, one stream in depth, the Kafka side.

`python -m tools.chart.generate` writes them to helm/watchrelay/files/dashboards. What they show
is in `fleet.py`, `stream.py` and `kafka.py`; sizes, colours and links are the same everywhere.
"""

from __future__ import annotations

from typing import Any, Final

from tools.dashboards.panel import ALL, BOUND, CLUSTER, ONE, PLACE, STREAMS, Panel, Rows
from tools.dashboards.panels import FLEET, KAFKA, STREAM

SCHEMA_VERSION: Final = 42
"""Source: @grafana/schema 13, the default of the classic model."""
WIDTH: Final = 24
SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}


def dashboards() -> dict[str, dict[str, Any]]:
    """Each dashboard by the name of its file."""
    clusters = _variable(
        "cluster", "Cluster", f"label_values(watchrelay_build_info{{{PLACE}}}, cluster)"
    )
    cluster = _variable(
        "cluster",
        "Cluster",
        f"label_values(watchrelay_build_info{{{PLACE}}}, cluster)",
        several=False,
    )
    streams = _variable(
        "stream", "Stream", f"label_values(watchrelay_stream_owned{{{ALL}}}, stream)"
    )
    stream = _variable(
        "stream",
        "Stream",
        f"label_values(watchrelay_stream_owned{{{CLUSTER}}}, stream)",
        several=False,
    )
    topic = _variable(
        "topic", "Topic", f"label_values(watchrelay_last_ack_timestamp_seconds{{{ALL}}}, topic)"
    )
    fleet = "All streams: who relays them, how far behind they are, what is wrong."
    return {
        "fleet": _dashboard(
            "watchrelay-fleet", "watchrelay: fleet", fleet, FLEET, [clusters, streams], STREAMS
        ),
        "stream": _dashboard(
            "watchrelay-stream",
            "watchrelay: one stream",
            "One stream in depth.",
            STREAM,
            [cluster, stream],
            ONE,
        ),
        "kafka": _dashboard(
            "watchrelay-kafka",
            "watchrelay: Kafka",
            "Topics, acknowledgements, errors.",
            KAFKA,
            [clusters, topic],
            ALL,
        ),
    }


def _variable(name: str, label: str, query: str, *, several: bool = True) -> dict[str, Any]:
    return {
        "type": "query",
        "name": name,
        "label": label,
        "datasource": SOURCE,
        "query": {"query": query, "refId": "variable"},
        "definition": query,
        "refresh": 2,
        "sort": 1,
        "multi": several,
        "includeAll": several,
        **({"allValue": ".*", "current": {"text": "All", "value": "$__all"}} if several else {}),
    }


def _dashboard(
    uid: str, title: str, says: str, rows: Rows, variables: list[dict[str, Any]], matchers: str
) -> dict[str, Any]:
    source = {
        "type": "datasource",
        "name": "datasource",
        "label": "Data source",
        "query": "prometheus",
        "refresh": 1,
    }
    namespace = _variable(
        "namespace", "Namespace", 'label_values(watchrelay_build_info{job="watchrelay"}, namespace)'
    )
    epoch = f"watchrelay_stream_epoch{{{matchers}}}"
    # A counter of claims would not do: its process claims before it is scraped for the first time.
    claims = (
        f"max by (cluster, stream) ({epoch}) > max by (cluster, stream) "
        f"(last_over_time({epoch}[15m] offset 1m))"
    )
    claimed = {
        "name": "Claims",
        "expr": claims,
        "enable": True,
        "iconColor": "blue",
        "titleFormat": "claimed",
        "step": "60s",
    }
    ended = (
        "max by (cluster, stream) "
        f"(watchrelay_snapshot_last_success_timestamp_seconds{{{matchers}}} > 0) * 1000"
    )
    snapshots = {
        "name": "Snapshots",
        "expr": ended,
        "enable": False,
        "iconColor": "green",
        "titleFormat": "snapshot",
        "useValueForTime": True,
    }
    annotations = [
        {**each, "datasource": SOURCE, "textFormat": "{{cluster}}/{{stream}}"}
        for each in (claimed, snapshots)
    ]
    link: dict[str, Any] = {
        "type": "dashboards",
        "title": "watchrelay",
        "icon": "external link",
        "tooltip": "",
        "tags": ["watchrelay"],
    }
    link |= {"asDropdown": True, "targetBlank": False, "includeVars": True, "keepTime": True}
    return {
        "uid": uid,
        "title": title,
        "description": says,
        "tags": ["watchrelay"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": False,
        "timezone": "",
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "graphTooltip": 1,
        "links": [link],
        "templating": {"list": [source, namespace, *variables]},
        "annotations": {"list": annotations},
        "panels": _panels(rows),
    }


def _panels(rows: Rows) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    x = y = height = 0
    for title, panels in rows:
        y += height
        made.append(
            {
                "id": len(made) + 1,
                "type": "row",
                "title": title,
                "collapsed": False,
                "panels": [],
                "gridPos": _at(0, y, WIDTH, 1),
            }
        )
        x, y, height = 0, y + 1, 0
        for panel in panels:
            if x + panel.width > WIDTH:
                x, y, height = 0, y + height, 0
            made.append(
                {
                    "id": len(made) + 1,
                    **_panel(panel),
                    "gridPos": _at(x, y, panel.width, panel.height),
                }
            )
            x, height = x + panel.width, max(height, panel.height)
    return made


def _at(x: int, y: int, w: int, h: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": w, "h": h}


def _panel(panel: Panel) -> dict[str, Any]:
    defaults: dict[str, Any] = {
        "unit": panel.unit,
        "noValue": panel.empty,
        "thresholds": {"mode": "absolute", "steps": _steps(panel)},
    }
    if panel.counts:
        defaults["decimals"] = 0  # Prometheus extrapolates: one claim is 1.07 claims
    options: dict[str, Any]
    if panel.kind == "stat":
        defaults["color"] = {"mode": "thresholds"}
        options = {
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
            "colorMode": "value",
            "graphMode": "area",
        }
    else:
        defaults["color"] = {"mode": "palette-classic"}
        defaults |= {"custom": _custom(panel), "min": 0}
        if panel.most is not None:
            defaults["max"] = panel.most
        options = {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
    targets = [
        {
            "refId": chr(ord("A") + index),
            "datasource": SOURCE,
            "expr": expression,
            "legendFormat": legend or "__auto",
            "editorMode": "code",
            "range": True,
        }
        for index, (expression, legend) in enumerate(panel.queries)
    ]
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.says,
        "datasource": SOURCE,
        "targets": targets,
        "fieldConfig": {
            "defaults": defaults,
            "overrides": [_override(name, look) for name, look in panel.looks.items()],
        },
        "options": options,
    }


def _steps(panel: Panel) -> list[dict[str, Any]]:
    good, red = {"color": "green", "value": None}, {"color": "red", "value": panel.bad}
    if panel.below:
        return [{"color": "red", "value": None}, {"color": "green", "value": panel.bad}]
    return [good] if panel.bad is None else [good, red]


def _custom(panel: Panel) -> dict[str, Any]:
    """Of lines. Where everything may be zero, the axis still ends at 1: Grafana's own would end at
    100."""
    custom: dict[str, Any] = {"fillOpacity": 10, "showPoints": "never", "lineWidth": 1}
    if panel.counts:
        custom["axisSoftMax"] = 1
    if panel.bad is not None:
        custom["thresholdsStyle"] = {"mode": "dashed"}
    if panel.stacked:
        custom |= {"stacking": {"mode": "normal", "group": "A"}, "fillOpacity": 40}
    if panel.steps:
        custom["lineInterpolation"] = "stepAfter"
    if panel.timeline:
        custom |= {
            "fillOpacity": 70,
            "lineWidth": 0,
            "lineInterpolation": "stepAfter",
            "axisPlacement": "hidden",
        }
    return custom


def _override(name: str, look: str) -> dict[str, Any]:
    properties: list[dict[str, Any]] = [
        {"id": "color", "value": {"mode": "fixed", "fixedColor": "red" if look == BOUND else look}}
    ]
    if look == BOUND:
        dashed = {"fill": "dash", "dash": [10, 10]}
        properties += [
            {"id": "custom.lineStyle", "value": dashed},
            {"id": "custom.fillOpacity", "value": 0},
        ]
    return {"matcher": {"id": "byName", "options": name}, "properties": properties}
