"""YAML that readers of every version take alike.

Room: commands. In: a dumper of PyYAML. Out: the same, which puts text in quotes wherever some
reader would see another type in it.
"""

from __future__ import annotations

import re
from typing import Any

_OTHER_TYPES = re.compile(
    r"[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9]*)?)([eE][-+]?[0-9]+)?|0[bo][0-7_]+|[yYnN]"
)
"""What PyYAML takes for text and YAML 1.2 or Go's reader, which is kubectl's and Helm's, for a
number or a flag: `1e3`, `0o17`, `y`."""


def quote_other_types(dumper: Any) -> None:
    """Have the class `dumper` put such text in quotes."""
    dumper.add_implicit_resolver(
        "tag:yaml.org,2002:float",
        re.compile(rf"({_OTHER_TYPES.pattern})\Z"),
        list("-+.0123456789yYnN"),
    )
