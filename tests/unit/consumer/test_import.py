"""Importing the consumer library loads nothing of the daemon."""

from __future__ import annotations

import subprocess
import sys

import watchrelay.consumer

_DAEMON = ("aiohttp", "pydantic", "prometheus_client", "yaml", "zstandard")
_PACKAGES = (
    "app",
    "cli",
    "commands",
    "config",
    "demo",
    "kube",
    "observe",
    "relay",
    "sink",
    "store",
    "watch",
)


def _loaded(statement: str) -> set[str]:
    code = f"{statement}\nimport sys\nprint('\\n'.join(sys.modules))"
    return set(
        subprocess.run(
            [sys.executable, "-c", code], check=True, capture_output=True, text=True
        ).stdout.split()
    )


def test_importing_the_consumer_pulls_in_nothing_of_the_daemon() -> None:
    loaded = _loaded("from watchrelay.consumer import TopicReader, Replica, Change, decode")
    assert not {name for name in _DAEMON if name in loaded}
    assert not {
        name
        for name in loaded
        for package in _PACKAGES
        if name == f"watchrelay.{package}" or name.startswith(f"watchrelay.{package}.")
    }
    assert "watchrelay.consumer.topic" in loaded


def test_every_public_name_is_there() -> None:
    for name in watchrelay.consumer.__all__:
        assert getattr(watchrelay.consumer, name) is not None
