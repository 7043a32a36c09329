"""Guesses what a value of the wrong form means: the line to write instead, or ""."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from watchrelay.config.tree import Path, scalar
from watchrelay.model.builtin import resolve
from watchrelay.model.names import parse_name

_CHOICES: Final = {
    "warn": "warning", "err": "error", "fatal": "error", "critical": "error", "trace": "debug",
    "text": "console", "namespaced": "namespace", "tls": "SSL", "sasltls": "SASL_SSL",
}  # fmt: skip
_KEYS: Final = {
    "kind": "resource", "type": "resource", "plural": "resource", "resources": "resource",
    "selector": "labelSelector", "selectors": "labelSelector", "labels": "labelSelector",
    "matchlabels": "labelSelector", "brokers": "bootstrapServers", "servers": "bootstrapServers",
    "hosts": "bootstrapServers", "username": "security.username", "address": "listen",
    "level": "logLevel", "format": "logFormat", "port": "listen",
}  # fmt: skip
"""Names of keys in other tools, and the keys they mean here."""
_LONGEST: Final = 60
"""Longer texts, in characters, are not guessed at."""
_FLAGS: Final = dict.fromkeys(("true", "yes", "on", "1"), "true") | dict.fromkeys(
    ("false", "no", "off", "0"), "false"
)


def choice(value: object, choices: Sequence[str]) -> str:
    """The one of `choices` that `value` means."""
    if not isinstance(value, str) or len(value) > _LONGEST:
        return ""
    plain = {_plain(each): each for each in choices}
    meant = _CHOICES.get(_plain(value), "")
    if meant in choices:
        return meant
    return plain.get(_plain(value)) or plain.get(
        next(iter(difflib.get_close_matches(_plain(value), plain, n=1, cutoff=0.7)), ""), ""
    )


def other_name(key: str, siblings: Sequence[str]) -> str:
    """The key of `siblings` that other tools call `key`."""
    meant = _KEYS.get(_plain(key[:_LONGEST]), "")
    return meant if meant in siblings else ""


def flag(value: object) -> str:
    """`true` or `false`, where one of them is meant."""
    return _FLAGS.get(str(value).strip().lower(), "")


def number(value: object) -> str:
    """The whole number that is meant."""
    try:
        meant = (
            float(value)
            if isinstance(value, float) or (isinstance(value, str) and value.isascii())
            else 0.5
        )
        return str(int(meant)) if meant.is_integer() and abs(meant) < 1e9 else ""
    except (ValueError, OverflowError):
        return ""


def as_list(value: object) -> str:
    """A list of the texts in `value`, which has commas between them; not where it can hold a
    password, as URLs do."""
    if not isinstance(value, str) or "@" in value:
        return ""
    return f"[{', '.join(_quoted(part.strip()) for part in value.split(','))}]"


def selector(value: object) -> str:
    """A label or field selector, of what Kubernetes objects have as one, of plain pairs, or of a
    list of terms."""
    if isinstance(value, list):
        terms = [each for each in value if isinstance(each, str)]
        return _quoted(",".join(terms)) if len(terms) == len(value) else ""
    if not isinstance(value, Mapping) or not value:
        return ""
    nested = value.keys() <= {"matchLabels", "matchExpressions"}
    pairs: Any = (value.get("matchLabels") or {}) if nested else value
    expressions: Any = (value.get("matchExpressions") or []) if nested else []
    if not isinstance(pairs, Mapping) or not isinstance(expressions, list):
        return ""
    terms = [
        f"{key}={_word(each)}" if _word(each) is not None else "" for key, each in pairs.items()
    ]
    terms += [_expression(each) for each in expressions]
    return _quoted(",".join(terms)) if all(terms) else ""


def entries(value: object) -> str:
    """The list of `resources`, where its names alone were written, or one entry without a list."""
    if isinstance(value, str):
        names = [part.strip() for part in value.split(",")]
        return (
            f"[{', '.join(f'{{resource: {_quoted(name)}}}' for name in names)}]"
            if all(names)
            else ""
        )
    if isinstance(value, Mapping):
        if isinstance(value.get("resource"), str):
            return f"- before it, as in - resource: {_quoted(value['resource'])}"
        named = [name for name in value if builtin(str(name))]
        within = [
            each["resource"]
            for each in value.values()
            if isinstance(each, Mapping) and isinstance(each.get("resource"), str)
        ]
        if named or within:
            return f"- resource: {_quoted([*named, *within][0])}"
    return ""


def builtin(name: str) -> bool:
    """Whether `name` names a built-in resource."""
    try:
        return bool(resolve(parse_name(name)))
    except ValueError:
        return False


def section(path: Path, value: object) -> str:
    """A section, where its one most important value was written in its place."""
    if path != ("kafka",):
        return ""
    joined = (
        ",".join(value)
        if isinstance(value, list) and all(isinstance(each, str) for each in value)
        else value
    )
    listed = as_list(joined)
    return f"kafka: {{bootstrapServers: {listed}}}" if listed else ""


def _expression(value: Any) -> str:
    """A term of matchExpressions. Source: Kubernetes docs, "Labels and selectors: resources that
    support set-based requirements"."""
    if not isinstance(value, Mapping) or not isinstance(key := value.get("key"), str):
        return ""
    words = [_word(each) for each in value.get("values") or []]
    if None in words:
        return ""
    listed = f"({','.join(word or '' for word in words)})"
    return {
        "In": f"{key} in {listed}",
        "NotIn": f"{key} notin {listed}",
        "Exists": key,
        "DoesNotExist": f"!{key}",
    }.get(str(value.get("operator")), "")


def _word(value: object) -> str | None:
    """A value of a label as text; None for true and false too, for YAML reads several words as
    them."""
    return str(value) if isinstance(value, (str, int)) and not isinstance(value, bool) else None


def _quoted(text: str) -> str:
    """`text` as YAML takes it for text."""
    plain = (
        isinstance(scalar(text), str)
        and text[:1] not in "!&*[]{},|>@`'\"%#-?: "
        and ": " not in text
        and " #" not in text
    )
    return text if text and plain else f'"{text}"'


def _plain(text: str) -> str:
    return text.strip().replace("_", "").replace("-", "").lower()
