"""Validation errors -> what an operator reads: what is wrong and what to write instead, never the library's own words.

Room: config. In: one error of pydantic, where it stands, and the text as written. Out: message and hint.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from watchrelay.config.fields import REFUSED
from watchrelay.config.keys import find, keys_of, nearest_key
from watchrelay.config.tree import Path

Said = tuple[str, str]

_NEEDS: Final[dict[Path, str]] = {
    ("cluster",): "name the source, such as cluster: prod-eu-1",
    ("kafka",): "it needs at least bootstrapServers",
    ("kafka", "bootstrapServers"): "write a list of brokers, such as [kafka-0:9092]",
    ("resources",): "write a list, such as - resource: pods",
}


def explain(detail: Any, path: Path, written: str | None) -> Said:
    """Message and hint for one error. `written`: the text in the file, where YAML read a plain scalar as something else than text."""
    value = detail.get("input")
    kind = str(detail["type"])
    if kind == REFUSED:
        return str(detail["ctx"]["message"]), ""
    if kind == "missing":
        return "is required", _NEEDS.get(path, "write the resource, such as resource: pods" if path[-1] == "resource" else "")
    if kind == "extra_forbidden":
        return _unknown(path)
    if value is None:
        return "has no value", "write one, or remove the key"
    if (key := find(path)) and key.secret:
        return f"must be text, not {_kind(value)}", "put it in quotes"  # never shown, not even where it is wrong
    if path == ("observe", "listen") and kind == "string_type" and isinstance(value, int):
        return f"must be HOST:PORT, not {value}", f"write 0.0.0.0:{value}"
    known = _EXPLAINED.get(kind)
    return known(detail, value, written) if known else ("is not a legal value", "")


def _unknown(path: Path) -> Said:
    if path[0] == "defaults" and path[1:] in {("resource",), ("id",), ("name",)}:
        return f"{path[1]} belongs to one entry of resources, not to defaults", ""
    name = re.match(r"[^:\s]*(?=[:\s])", str(path[-1]))
    if name:
        return "unknown key", f"write a colon and a space: {name[0]}: VALUE"
    near = nearest_key(path)
    if near:
        return "unknown key", f"did you mean {near}?"
    parent = find(path[:-1])
    keys = ", ".join(keys_of(parent.section)) if parent and parent.section else ""
    return "unknown key", f"there are {keys}" if keys else ""


def _text(_detail: Any, value: Any, written: str | None) -> Said:
    if isinstance(value, (list, dict)):
        return f"must be text, not {_kind(value)}", ""
    shown = written if written is not None else str(value)
    return f"must be text, and YAML reads {shown} as {_kind(value)}", f'write "{shown}"'


def _number(_detail: Any, value: Any, _written: str | None) -> Said:
    hint = (
        f"write {value.strip()} without quotes" if isinstance(value, str) and value.strip().isascii() and value.strip().isdecimal() else ""
    )
    return f"must be a whole number, not {_shown(value)}", hint


def _flag(_detail: Any, value: Any, _written: str | None) -> Said:
    hint = f"write {value.strip().lower()} without quotes" if isinstance(value, str) and value.strip().lower() in ("true", "false") else ""
    return f"must be true or false, not {_shown(value)}", hint


def _list(_detail: Any, value: Any, _written: str | None) -> Said:
    if isinstance(value, str):
        return "must be a list", f"write [{', '.join(part.strip() for part in value.split(','))}]"
    return f"must be a list, not {_kind(value)}", ""


def _section(detail: Any, value: Any, _written: str | None) -> Said:
    if isinstance(value, str) and len(detail["loc"]) == 2 and detail["loc"][0] == "resources":
        return "must be a mapping of keys", f"write - resource: {value}"
    return f"must be a mapping of keys, not {_kind(value)}", ""


def _choice(detail: Any, value: Any, _written: str | None) -> Said:
    choices = str(detail["ctx"]["expected"]).replace("'", "").replace(" or ", ", ")
    return f"must be one of: {choices}; not {_shown(value)}", ""


def _least(detail: Any, value: Any, _written: str | None) -> Said:
    return f"must be at least {detail['ctx']['ge']}, not {value}", ""


def _most(detail: Any, value: Any, _written: str | None) -> Said:
    return f"must be at most {detail['ctx']['le']}, not {value}", ""


def _empty(_detail: Any, _value: Any, _written: str | None) -> Said:
    return "must not be empty", "write at least one item"


_EXPLAINED: Final[dict[str, Callable[[Any, Any, str | None], Said]]] = {
    "string_type": _text,
    "int_type": _number,
    "int_from_float": _number,
    "int_parsing_size": _number,
    "bool_type": _flag,
    "tuple_type": _list,
    "model_type": _section,
    "model_attributes_type": _section,
    "literal_error": _choice,
    "greater_than_equal": _least,
    "less_than_equal": _most,
    "too_short": _empty,
}


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "true or false"
    for kind, name in ((dict, "a mapping"), (list, "a list"), (int, "a number"), (float, "a number")):
        if isinstance(value, kind):
            return name
    return "text"


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value if len(value) <= 40 else value[:37] + "..."}"'
    return _kind(value) if isinstance(value, (dict, list)) else str(value)
