"""`watchrelay schema`: the JSON Schema of the config file."""

from __future__ import annotations

from watchrelay.cli.options import Command


def schema() -> int:
    """Print the schema, the same at every call."""
    import json

    from watchrelay.config.settings import json_schema

    print(json.dumps(json_schema(), indent=2, ensure_ascii=False))
    return 0


COMMAND = Command(
    "print the JSON Schema of the config file",
    "For editors and charts: JSON Schema, draft 2020-12.",
    schema,
)
