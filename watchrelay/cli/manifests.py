"""Manifests as YAML, in the form of kubectl, that every parser reads alike."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import yaml

from watchrelay.core.errors import RecordRefused
from watchrelay.core.text import BROKEN_JSON, printable, why_broken

_TEXT = "tag:yaml.org,2002:str"
_OTHER_TYPES = re.compile(
    r"([-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9]*)?)([eE][-+]?[0-9]+)?|0[bo][0-7_]+|[yYnN])\Z"
)
"""Text for PyYAML; a number or boolean for YAML 1.2 or the Go parser: `1e3`, `0o17`, `y`."""


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]  # libyaml may be missing
    """YAML without anchors, with text in quotes where a reader would take another type."""

    def ignore_aliases(self, _data: Any) -> bool:
        return True


def _text(dumper: Any, value: str) -> Any:
    """Several lines as a block; double quotes where another type, or a control character, would
    be read."""
    if not value.replace("\n", "").isprintable():
        style = '"'
    elif "\n" in value:
        style = "|"
    else:
        style = "" if dumper.resolve(yaml.ScalarNode, value, (True, False)) == _TEXT else '"'
    return dumper.represent_scalar(_TEXT, value, style or None)


_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", _OTHER_TYPES, list("-+.0123456789yYnN"))


class _KubectlDumper(_Dumper):
    """The same with text in the styles of kubectl."""


_KubectlDumper.add_representer(str, _text)


def yaml_text(value: object, *, width: int, flow: bool | None = False) -> str:
    """`value` as a YAML document; `flow` as PyYAML's `default_flow_style`."""
    return yaml.dump(
        value,
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        width=width,
        default_flow_style=flow,
    )


def yaml_of(value: bytes) -> str:
    """The object in `value` as a YAML document with sorted keys. Raises: RecordRefused: it is
    not JSON."""
    try:
        found = msgspec.json.decode(value)
    except BROKEN_JSON as error:
        raise RecordRefused(f"the value is not JSON: {why_broken(error, value)}") from error
    try:
        text = yaml.dump(
            found,
            Dumper=_KubectlDumper,
            sort_keys=True,
            allow_unicode=True,
            width=1 << 30,
            default_flow_style=False,
        )
    except (RecursionError, yaml.YAMLError):  # too deep for the YAML writer; JSON is YAML too
        text = value.decode()
    return "\n".join(
        printable(line) for line in text.removesuffix("\n...\n").rstrip("\n").split("\n")
    )
