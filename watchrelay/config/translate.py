"""Turns the validation errors of pydantic into messages: what is wrong and what to write."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from watchrelay.config import slips
from watchrelay.config.fields import REFUSED
from watchrelay.config.keys import find, keys_of, nearest_key
from watchrelay.config.tree import Path

MessageHint = tuple[str, str]

_NEEDS: Final[dict[Path, str]] = {
    ("cluster",): "name the source, such as cluster: prod-eu-1",
    ("kafka",): "it needs at least bootstrapServers",
    ("kafka", "bootstrapServers"): "write a list of brokers, such as [kafka-0:9092]",
    ("resources",): "write a list, such as - resource: pods",
}


def explain(detail: Any, path: Path, written: str | None) -> MessageHint:
    """Message and hint for one error. `written`: the text in the file, where YAML read a plain
    scalar as something else than text."""
    value = detail.get("input")
    kind = str(detail["type"])
    if kind == REFUSED:
        return str(detail["ctx"]["message"]), ""
    if kind == "missing":
        return "is required", _NEEDS.get(
            path, "write the resource, such as resource: pods" if path[-1] == "resource" else ""
        )
    if kind == "extra_forbidden":
        return _unknown(path, value)
    if value is None:
        return "has no value", "write one, or remove the key"
    if (key := find(path)) and key.secret:
        # never shown, not even where it is wrong
        return f"must be text, not {_kind(value)}", "put it in quotes"
    if path == ("observe", "listen") and kind == "string_type" and isinstance(value, int):
        return f"must be HOST:PORT, not {value}", f"write 0.0.0.0:{value}"
    known = _EXPLAINED.get(kind)
    return known(detail, value, written) if known else ("is not a legal value", "")


def _unknown(path: Path, value: Any) -> MessageHint:
    if path[0] == "defaults" and path[1:] in {("resource",), ("id",), ("name",)}:
        return f"{path[1]} belongs to one entry of resources, not to defaults", ""
    name = re.match(r"[^:\s]*(?=[:\s])", str(path[-1]))
    if name:
        return "unknown key", f"write a colon and a space: {name[0]}: VALUE"
    parent = find(path[:-1])
    keys = list(keys_of(parent.section)) if parent and parent.section else []
    near = slips.other_name(str(path[-1]), keys) or nearest_key(path)
    if near in keys and (meant := _line(path, near, value)):
        return "unknown key", f"did you mean {meant}?"
    if near:
        return "unknown key", f"did you mean {near}?"
    if path[-1] in ("apiVersion", "group", "version") and "resource" in keys:
        return (
            "unknown key",
            (
                "group and version are parts of the resource: write resource: deployments.apps or "
                "deployments.apps/v1"
            ),
        )
    if "resource" in keys and slips.builtin(str(path[-1])):
        return "unknown key", f"write resource: {path[-1]}"
    return "unknown key", f"there are {', '.join(keys)}" if keys else ""


def _line(path: Path, near: str, value: Any) -> str:
    """`near` with the value that was given to another key, where that value is of another form than
    `near` takes."""
    key = find((*path[:-1], near))
    if (
        key is not None
        and key.kind == "list"
        and isinstance(value, str)
        and (listed := slips.as_list(value))
    ):
        return f"{near}: {listed}"
    if near == "resource" and isinstance(value, str):
        return f"resource: {value}"
    return f"{near}: {meant}" if near in _SELECTORS and (meant := slips.selector(value)) else ""


_SELECTORS: Final = ("labelSelector", "fieldSelector")


def _text(detail: Any, value: Any, written: str | None) -> MessageHint:
    if isinstance(value, (list, dict)):
        last = detail["loc"][-1]
        meant = slips.selector(value) if last in _SELECTORS else ""
        if last == "resource" and isinstance(value, list):
            line = (
                f"resource: {value[0]}"
                if len(value) == 1
                else f"resources: {slips.entries(','.join(map(str, value)))}"
            )
            return (
                f"must be text, not {_kind(value)}",
                f"one entry names one resource: write {line}" if value else "",
            )
        if last == "cluster" and isinstance(value, dict) and isinstance(value.get("name"), str):
            meant = value["name"]
        return f"must be text, not {_kind(value)}", f"write {last}: {meant}" if meant else ""
    shown = written if written is not None else str(value)
    return f"must be text, and YAML reads {shown} as {_kind(value)}", f'write "{shown}"'


def _number(_detail: Any, value: Any, _written: str | None) -> MessageHint:
    if isinstance(value, str) and value.strip().isascii() and value.strip().isdecimal():
        hint = f"write {value.strip()} without quotes"
    else:
        hint = f"write {meant}" if (meant := slips.number(value)) else ""
    return f"must be a whole number, not {_shown(value)}", hint


def _flag(_detail: Any, value: Any, _written: str | None) -> MessageHint:
    if isinstance(value, str) and value.strip().lower() in ("true", "false"):
        hint = f"write {value.strip().lower()} without quotes"
    else:
        hint = f"write {meant}" if (meant := slips.flag(value)) else ""
    return f"must be true or false, not {_shown(value)}", hint


def _list(detail: Any, value: Any, _written: str | None) -> MessageHint:
    if tuple(detail["loc"]) == ("resources",):
        message = (
            "must be a list" if isinstance(value, str) else f"must be a list, not {_kind(value)}"
        )
        meant = slips.entries(value)
        return (
            message,
            f"write {'resources: ' if isinstance(value, str) else ''}{meant}" if meant else "",
        )
    if value == "*" and detail["loc"][-1] == "namespaces":
        return "must be a list", "leave the key out for all namespaces"
    if isinstance(value, str):
        return "must be a list", f"write {meant}" if (meant := slips.as_list(value)) else ""
    return f"must be a list, not {_kind(value)}", ""


def _section(detail: Any, value: Any, written: str | None) -> MessageHint:
    if len(detail["loc"]) == 2 and detail["loc"][0] == "resources":
        if isinstance(value, str):
            return "must be a mapping of keys", f"write {{resource: {value}}}"
        if written is not None and slips.builtin(written):
            return (
                f"must be a mapping of keys, not {_kind(value)}",
                f'write {{resource: "{written}"}}',
            )
    meant = slips.section(tuple(detail["loc"]), value)
    return f"must be a mapping of keys, not {_kind(value)}", f"write {meant}" if meant else ""


def _choice(detail: Any, value: Any, _written: str | None) -> MessageHint:
    choices = str(detail["ctx"]["expected"]).replace("'", "").replace(" or ", ", ")
    meant = slips.choice(value, choices.split(", "))
    return (
        f"must be one of: {choices}; not {_shown(value)}",
        f"write {detail['loc'][-1]}: {meant}" if meant else "",
    )


def _least(detail: Any, value: Any, _written: str | None) -> MessageHint:
    return f"must be at least {detail['ctx']['ge']}, not {value}", ""


def _most(detail: Any, value: Any, _written: str | None) -> MessageHint:
    return f"must be at most {detail['ctx']['le']}, not {value}", ""


def _empty(_detail: Any, _value: Any, _written: str | None) -> MessageHint:
    return "must not be empty", "write at least one item"


_EXPLAINED: Final[dict[str, Callable[[Any, Any, str | None], MessageHint]]] = {
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
    for kind, name in (
        (dict, "a mapping"),
        (list, "a list"),
        (int, "a number"),
        (float, "a number"),
    ):
        if isinstance(value, kind):
            return name
    return "text"


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value if len(value) <= 40 else value[:37] + "..."}"'
    return _kind(value) if isinstance(value, (dict, list)) else str(value)
