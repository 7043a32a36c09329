"""Which lists ask for one object only: they show the present of a server beside a watch."""

from __future__ import annotations

import re

_ONE = re.compile(r"[?&]limit=1(&|$)")


def is_look(uri: str) -> bool:
    """Whether the URI of a list has `limit=1`."""
    return bool(_ONE.search(uri))
