"""Configuration: file, environment and `--set` become frozen settings, or every reason why not.

The names are imported at their first use: the daemon has its settings read by another process
(`apart`) and never loads what reads them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from watchrelay.config.loading import Loaded, find_file, load, load_settings
    from watchrelay.config.overrides import parse_set
    from watchrelay.config.settings import (
        Defaults,
        KafkaSecurity,
        KafkaSettings,
        KubernetesSettings,
        ObserveSettings,
        ResourceEntry,
        Settings,
        ShardingSettings,
        ShutdownSettings,
    )

__all__ = [
    "Defaults",
    "KafkaSecurity",
    "KafkaSettings",
    "KubernetesSettings",
    "Loaded",
    "ObserveSettings",
    "ResourceEntry",
    "Settings",
    "ShardingSettings",
    "ShutdownSettings",
    "find_file",
    "load",
    "load_settings",
    "parse_set",
]

_ELSEWHERE = {
    "Loaded": "loading",
    "find_file": "loading",
    "load": "loading",
    "load_settings": "loading",
    "parse_set": "overrides",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(f"{__name__}.{_ELSEWHERE.get(name, 'settings')}"), name)
    globals()[name] = found
    return found
