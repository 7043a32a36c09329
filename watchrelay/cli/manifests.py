"""Objects as kubectl prints them: YAML with sorted keys, and names."""

from __future__ import annotations

from typing import Any

import msgspec
import yaml

from watchrelay.cli.yamltext import quote_other_types
from watchrelay.core.errors import RecordRefused
from watchrelay.core.text import BROKEN_JSON, printable, why_broken

_TEXT = "tag:yaml.org,2002:str"


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]  # libyaml may be missing
    """As kubectl writes YAML."""


def _text(dumper: Any, value: str) -> Any:
    """Several lines as a block; in double quotes what would be read as another type, and what a
    terminal may not show: it is escaped."""
    if not value.replace("\n", "").isprintable():
        style = '"'
    elif "\n" in value:
        style = "|"
    else:
        style = "" if dumper.resolve(yaml.ScalarNode, value, (True, False)) == _TEXT else '"'
    return dumper.represent_scalar(_TEXT, value, style or None)


_Dumper.add_representer(str, _text)
quote_other_types(_Dumper)


def yaml_of(value: bytes) -> str:
    """The object in `value` as a YAML document without its last line end. Raises: RecordRefused:
    the value is not JSON."""
    try:
        found = msgspec.json.decode(value)
    except BROKEN_JSON as error:
        raise RecordRefused(f"the value is not JSON: {why_broken(error, value)}") from error
    try:
        text = yaml.dump(
            found,
            Dumper=_Dumper,
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


def name_of(source: str, stream: str, key: str) -> str:
    """`pods/shop/web`, `deployments.apps/shop/web`, `nodes/n1`: the resource by `source`, else by
    the stream's id; then the object."""
    _, _, path = source.partition("/clusters/")
    match path.split("/")[1:]:
        case ["api", _, resource]:
            pass
        case ["apis", group, _, plural]:
            resource = f"{plural}.{group}"
        case _:
            resource = stream.partition("@")[0]
    namespace, _, name = key.rpartition("/")
    namespace = namespace.rpartition("/")[2]
    return printable("/".join(part for part in (resource, namespace, name) if part))
