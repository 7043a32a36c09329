"""Turns the validation errors of pydantic into messages: what is wrong and what to write."""

from __future__ import annotations

import re
from typing import Any, Final

from pydantic import SecretStr

from watchrelay.config.keys import keys_of, nearest_key, type_at
from watchrelay.config.tree import Path, scalar
from watchrelay.config.values import shown

_EXAMPLES: Final = {
    "cluster": "name the source, such as cluster: prod-eu-1",
    "kafka": "it needs at least bootstrapServers",
    "bootstrapServers": "write a list of brokers, such as [kafka-0:9092]",
    "resources": "write a list, such as - resource: pods",
    "resource": "write one resource, such as resource: pods",
    "listen": "write host:port, such as :8080",
    "labelSelector": "write it as for kubectl, such as app=web,tier in (a,b)",
    "fieldSelector": "write it as for kubectl, such as status.phase=Running",
}
"""What to write for a key that is missing or has a value of a wrong type."""

_EXPECTED: Final = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing_size": "a whole number",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "model_type": "a mapping of keys",
    "model_attributes_type": "a mapping of keys",
    "literal_error": "{expected}",
    "greater_than_equal": "at least {ge}",
    "less_than_equal": "at most {le}",
}
"""By pydantic's type of error: what a value must be."""


def explain(detail: Any) -> tuple[str, str]:
    """Message and hint for one error of pydantic."""
    path, value, kind = tuple(detail["loc"]), detail["input"], detail["type"]
    context = detail.get("ctx", {})
    if kind == "value_error":
        return str(context["error"]), ""
    if kind == "missing":
        return "is required", _EXAMPLES.get(path[-1], "")
    if kind == "extra_forbidden":
        return "unknown key", _known_keys(path)
    if value is None:
        return "has no value", "write one, or remove the key"
    if kind == "too_short":
        return "must not be empty", "write at least one item"
    expected = _EXPECTED.get(kind, "a legal value").format_map(context).replace("'", "")
    if type_at(path) is SecretStr:  # never shown, not even where it is wrong
        return f"must be {expected}", "put it in quotes"
    return f"must be {expected}, not {_described(value, kind)}", _cure(path, kind, value)


def _cure(path: Path, kind: str, value: Any) -> str:
    example = _EXAMPLES.get("resource" if path[:-1] == ("resources",) else str(path[-1]), "")
    if example or isinstance(value, (dict, list)):
        return example
    if kind == "string_type":
        return "put it in quotes"
    if isinstance(value, str) and kind == "tuple_type" and re.fullmatch(r"[\w., /-]+", value):
        return f"write [{value}]"
    plain = {"bool_type": bool, "int_type": int}.get(kind)
    return "write it without quotes" if type(scalar(str(value))) is plain else ""


def _known_keys(path: Path) -> str:
    if merged := re.match(r"[^:\s]*(?=[:\s])", str(path[-1])):
        return f"write a colon and a space: {merged[0]}: VALUE"
    if near := nearest_key(path):
        return f"did you mean {near}?"
    return f"there are {', '.join(keys_of(type_at(path[:-1])))}"


def _described(value: Any, kind: str) -> str:
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, (dict, list)):
        return "a mapping" if isinstance(value, dict) else "a list"
    if kind in ("tuple_type", "model_type", "model_attributes_type"):
        return "a single value"  # not repeated: servers in one text may have passwords in them
    return shown(value) if isinstance(value, str) else str(value)
