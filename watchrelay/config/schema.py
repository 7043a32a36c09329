"""The JSON Schema of the config file (draft 2020-12), for editors, the chart's values and the
reference page."""

from __future__ import annotations

from typing import Any

from watchrelay.config.settings import Settings

DRAFT = "https://json-schema.org/draft/2020-12/schema"


def json_schema() -> dict[str, Any]:
    """The schema of a whole config file. A default that cannot be written in a file is not in
    it."""
    raw = Settings.model_json_schema(by_alias=True, mode="validation")
    return {
        "$schema": DRAFT,
        "title": "watchrelay",
        **{key: value for key, value in _tidy(raw).items() if key != "title"},
    }


def _tidy(node: Any, *, names: bool = False) -> Any:
    """Without generated titles and null or empty defaults; descriptions on one line. `names`: the
    keys of `node` are keys of the config."""
    if isinstance(node, list):
        return [_tidy(item) for item in node]
    if not isinstance(node, dict):
        return node
    tidy: dict[str, Any] = {}
    for key, value in node.items():
        if names:
            tidy[key] = _tidy(value)
        elif key == "title" or (
            key == "default" and (value in (None, "") or isinstance(value, dict))
        ):
            continue
        elif key == "description":
            tidy[key] = " ".join(value.split())
        elif key == "anyOf" and {"type": "null"} in value:
            # optional in the code; in a file the key is left out instead
            tidy |= _tidy(next(kind for kind in value if kind != {"type": "null"}))
        else:
            tidy[key] = _tidy(value, names=key in ("properties", "$defs"))
    return tidy
