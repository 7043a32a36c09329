"""`watchrelay schema`."""

from __future__ import annotations

import argparse

from watchrelay.cli.options import Command


def schema() -> int:
    """Print the JSON Schema of the config file, the same at every call."""
    import json

    from watchrelay.config.schema import json_schema

    print(json.dumps(json_schema(), indent=2, ensure_ascii=False))
    return 0


def _run(_: argparse.Namespace) -> int:
    return schema()


COMMAND = Command(
    "print the JSON Schema of the config file",
    "For editors and charts: JSON Schema, draft 2020-12.",
    _run,
)
