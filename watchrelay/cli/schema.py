"""`watchrelay schema`.

Room: commands. In: parsed arguments. Out: the JSON Schema of the config file on stdout.
"""

from __future__ import annotations

import argparse
import json

from watchrelay.config.schema import json_schema


def run(args: argparse.Namespace) -> int:  # noqa: ARG001 (every command takes them)
    """Print the schema, the same at every call."""
    print(json.dumps(json_schema(), indent=2, ensure_ascii=False))
    return 0
