"""Draws the packages of watchrelay in their layers. Pure: the import contracts of pyproject.toml in,
an SVG out."""

from __future__ import annotations

import tomllib
from html import escape

ROOMS = {
    "__main__": "python -m watchrelay",
    "cli": "one module per command",
    "demo": "synthetic cluster, embedded Kafka",
    "admin": "operator commands that run once",
    "daemon": "supervisor, one runner per stream",
    "replicas": "group, claims of others, warm copies",
    "plan": "streams, keys, topics of a config",
    "kube": "HTTP, auth, discovery",
    "watch": "state machine, list and watch",
    "store": "latest state, differences",
    "publish": "order, epochs, snapshots",
    "consumer": "TopicReader, replica, audit",
    "kafka": "topics, producer, log reader, control and signal topic",
    "observe": "metrics, logs, status, admin HTTP server",
    "config": "settings, validation, rights",
    "contract": "records, headers, hashes, partitioning",
    "model": "values: resources, streams, changes",
    "core": "errors, clock, backoff, files, text",
}
"""What each package holds, in the few words that fit its box."""

_WIDTH, _LEFT, _RIGHT, _ROW, _BOX, _GAP, _TOP = 960, 70, 20, 62, 46, 10, 50


def layers(pyproject: str) -> list[list[str]]:
    """The packages from the top layer to the bottom one; those of one layer do not import each
    other."""
    contracts = tomllib.loads(pyproject)["tool"]["importlinter"]["contracts"]
    (found,) = (each["layers"] for each in contracts if each["id"] == "layers")
    return [[name.strip() for name in layer.split(":")] for layer in found]


def pure(pyproject: str) -> set[str]:
    """The packages that as a whole may not import asyncio, sockets, settings, logging or a clock."""
    contracts = tomllib.loads(pyproject)["tool"]["importlinter"]["contracts"]
    (found,) = (each["source_modules"] for each in contracts if each["id"] == "pure")
    return {name.split(".")[1] for name in found if name.count(".") == 1}


def drawing(pyproject: str) -> str:
    """The picture, the same for the same contracts.

    Raises:
        KeyError: a package of the contracts has no description in `ROOMS`.
    """
    rows, without_io = layers(pyproject), pure(pyproject)
    height = _TOP + _ROW * len(rows) + 10
    label = "Packages in layers, from top to bottom: " + "; ".join(", ".join(row) for row in rows)
    lines = [
        "<!-- Made by `make generate-docs` from the import contracts in pyproject.toml. -->",
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}"'
            f' font-family="sans-serif" role="img" aria-label="{escape(label)}">'
        ),
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
        (
            f'<text x="{_LEFT}" y="26" fill="#163b59" font-size="14">A package imports packages of lower'
            " layers only. Yellow: no I/O, no clock, no settings.</text>"
        ),
        (
            f'<path d="M40 {_TOP}V{height - 18}m-6 -10l6 10l6 -10" stroke="#163b59" stroke-width="1.5"'
            ' fill="none"/>'
        ),
        (
            f'<text transform="translate(28 {height // 2}) rotate(-90)" fill="#163b59" font-size="12"'
            ' text-anchor="middle">imports</text>'
        ),
    ]
    for number, row in enumerate(rows):
        width = (_WIDTH - _LEFT - _RIGHT - _GAP * (len(row) - 1)) / len(row)
        for place, name in enumerate(row):
            lines += _box(
                name,
                _LEFT + place * (width + _GAP),
                _TOP + number * _ROW,
                width,
                "#fdeecb" if name in without_io else "#eef3f8",
            )
    return "\n".join([*lines, "</svg>", ""])


def _box(name: str, left: float, top: float, width: float, fill: str) -> list[str]:
    middle = left + width / 2
    caption = ROOMS[name]
    size = min(12.0, width * 1.75 / len(caption))
    return [
        (
            f'<rect x="{left:.0f}" y="{top:.0f}" width="{width:.0f}" height="{_BOX}" rx="6"'
            f' fill="{fill}" stroke="#163b59" stroke-width="1.5"/>'
        ),
        (
            f'<g fill="#163b59" text-anchor="middle"><text x="{middle:.0f}" y="{top + 19:.0f}"'
            f' font-size="14" font-weight="bold">{escape(name)}</text>'
            f'<text x="{middle:.0f}" y="{top + 37:.0f}" font-size="{size:.1f}">{escape(caption)}</text></g>'
        ),
    ]
