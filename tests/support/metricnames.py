"""PromQL, or text with metrics in it: the names in it that no relay exposes."""

import re
from collections.abc import Iterator

from watchrelay.observe.metrics import CATALOGUE

_NAME = re.compile(r"\bwatchrelay_[a-z0-9_]+")
_MATCHERS = re.compile(r"\b(watchrelay_[a-z0-9_]+)\{([^}]*)\}")
_FROM_PROMETHEUS = frozenset({"job", "namespace", "instance", "pod", "le"})


def exposed() -> dict[str, tuple[str, ...]]:
    """The name of every series of the catalogue, with its labels."""
    found: dict[str, tuple[str, ...]] = {}
    for described in CATALOGUE.values():
        suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}.get(
            described.kind, ("",)
        )
        found |= {f"watchrelay_{described.name}{suffix}": described.labels for suffix in suffixes}
    return found


def unknown_names(text: str) -> set[str]:
    """Metrics in `text` that are not in the catalogue, and labels that they do not have. A
    histogram may be named without its suffix."""
    known = exposed()
    whole = {name.removesuffix("_bucket") for name in known}
    unknown = {name for name in _NAME.findall(text) if name not in known and name not in whole}
    return unknown | set(_unknown_labels(text, known))


def _unknown_labels(text: str, known: dict[str, tuple[str, ...]]) -> Iterator[str]:
    for name, matchers in _MATCHERS.findall(text):
        for label in re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers):
            if name in known and label not in known[name] and label not in _FROM_PROMETHEUS:
                yield f"{name}{{{label}}}"
