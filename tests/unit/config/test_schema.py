"""The JSON Schema says what the loader accepts."""

from __future__ import annotations

import json
import re
from typing import Any

from watchrelay.config.keys import every_key
from watchrelay.config.settings import json_schema


def section(path: tuple[str | int, ...]) -> dict[str, Any]:
    schema = json_schema()
    here: dict[str, Any] = schema
    for part in path:
        here = here["items"] if isinstance(part, int) else here["properties"][part]
        if "$ref" in here:
            here = {**schema["$defs"][here["$ref"].rpartition("/")[2]], **here}
    return here


def test_every_key_is_described_in_camel_case_and_nothing_else_is_allowed() -> None:
    for path in every_key():
        assert section(path)["description"], path
        assert re.fullmatch(r"[a-z][A-Za-z]*", str(path[-1]))
    schema = json_schema()
    assert all(
        part["additionalProperties"] is False for part in (schema, *schema["$defs"].values())
    )
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["required"] == ["cluster", "kafka", "resources"]
    assert json.dumps(json_schema()) == json.dumps(schema)


def test_durations_are_text_with_a_pattern_and_a_default_as_written() -> None:
    heartbeat = section(("heartbeatInterval",))
    assert (heartbeat["type"], heartbeat["default"]) == ("string", "10s")
    assert re.search(heartbeat["pattern"], "1h30m")
    assert not re.search(heartbeat["pattern"], "10")
    snapshot = section(("defaults", "snapshotInterval"))
    assert (snapshot["type"], snapshot["maximum"], snapshot["default"]) == (
        ["string", "integer"],
        0,
        "1h",
    )
    assert re.search(snapshot["pattern"], "0")


def test_a_default_that_may_not_be_written_is_not_in_the_schema() -> None:
    for path in (
        ("defaults", "topic"),
        ("defaults", "partitions"),
        ("kafka", "security", "mechanism"),
        ("resources", 0, "name"),
    ):
        assert "default" not in section(path)
        assert section(path)["type"] in ("string", "integer")
