"""Label and field selectors, as the API server reads them.

The text of a selector becomes a predicate over labels and fields.
Source: kubernetes.io "Labels and Selectors"; apimachinery labels/selector.go, fields/selector.go.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

Labels = Mapping[str, str]
Predicate = Callable[[Labels], bool]

_SET = re.compile(r"^\s*(?P<key>[\w./-]+)\s+(?P<verb>in|notin)\s*\((?P<values>[^()]*)\)\s*$")
_EQUAL = re.compile(r"^\s*(?P<key>[\w./-]+)\s*(?P<verb>==|=|!=)\s*(?P<value>[\w.-]*)\s*$")
_EXISTS = re.compile(r"^\s*(?P<not>!?)\s*(?P<key>[\w./-]+)\s*$")
_COMMA = re.compile(r",(?![^(]*\))")

FIELDS = ("metadata.name", "metadata.namespace")
EXTRA_FIELDS = {"pods": ("spec.nodeName", "status.phase"), "secrets": ("type",)}


class SelectorError(ValueError):
    """The selector cannot be read, or names a field that nothing can be selected by."""


def label_predicate(selector: str) -> Predicate | None:
    """Whether labels fit `selector`; None selects everything. Raises: SelectorError."""
    if not selector.strip():
        return None
    terms = [_label_term(term) for term in _COMMA.split(selector)]
    return terms[0] if len(terms) == 1 else lambda labels: all(term(labels) for term in terms)


def _label_term(term: str) -> Predicate:
    if found := _SET.match(term):
        key, values = found["key"], frozenset(value.strip() for value in found["values"].split(","))
        if found["verb"] == "in":
            return lambda labels: labels.get(key) in values
        return lambda labels: labels.get(key) not in values
    if found := _EQUAL.match(term):
        key, value = found["key"], found["value"]
        if found["verb"] == "!=":
            return lambda labels: labels.get(key) != value
        return lambda labels: labels.get(key) == value
    if found := _EXISTS.match(term):
        key, absent = found["key"], bool(found["not"])
        return lambda labels: (key in labels) is not absent
    raise SelectorError(f'unable to parse requirement: "{term.strip()}"')


def field_requirements(selector: str, *, plural: str) -> list[tuple[str, bool, str]]:
    """The terms of a field selector: field, whether it must be equal, value. Raises:
    SelectorError."""
    requirements = []
    for term in filter(None, (part.strip() for part in selector.split(","))):
        found = re.match(r"^([\w.]+)(!=|==|=)(.*)$", term)
        if not found:
            raise SelectorError(f'invalid selector: "{term}"; can\'t understand')
        if found[1] not in (*FIELDS, *EXTRA_FIELDS.get(plural, ())):
            raise SelectorError(f"field label not supported: {found[1]}")
        requirements.append((found[1], found[2] != "!=", found[3]))
    return requirements
