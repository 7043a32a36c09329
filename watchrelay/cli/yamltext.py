"""YAML that every parser reads alike: text is quoted where one would read another type."""

from __future__ import annotations

import re
from typing import Any

_OTHER_TYPES = re.compile(
    r"[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9]*)?)([eE][-+]?[0-9]+)?|0[bo][0-7_]+|[yYnN]"
)
"""What PyYAML reads as text, and YAML 1.2 or the Go parser of kubectl and Helm as a number or a
boolean: `1e3`, `0o17`, `y`."""


def quote_other_types(dumper: Any) -> None:
    """Make the class `dumper` quote such text."""
    dumper.add_implicit_resolver(
        "tag:yaml.org,2002:float",
        re.compile(rf"({_OTHER_TYPES.pattern})\Z"),
        list("-+.0123456789yYnN"),
    )
