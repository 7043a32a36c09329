"""The odd parts of a kubeconfig: kubeconfig files, a clock to turn by hand, loaded credentials."""

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from watchrelay.core.errors import ConfigError
from watchrelay.kube.auth.credentials import ClusterCredentials, load_credentials


def b64(content: bytes) -> str:
    return base64.b64encode(content).decode()


class Clock:
    """Monotonic and wall time, moved only by `advance`."""

    def __init__(self) -> None:
        self.at_s = 1000.0

    def now_s(self) -> float:
        return self.at_s

    def wall_ms(self) -> int:
        return 1_800_000_000_000 + int(self.at_s * 1000)

    def advance(self, seconds: float) -> None:
        self.at_s += seconds


def write_kubeconfig(
    path: Path,
    *,
    cluster: Mapping[str, Any] | None = None,
    user: Mapping[str, Any] | None = None,
    name: str = "prod",
    current: str | None = None,
) -> Path:
    """A kubeconfig with one cluster, user and context, all called `name`. JSON is YAML."""
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name if current is None else current,
        "clusters": [
            {"name": name, "cluster": {"server": "https://127.0.0.1:6443", **(cluster or {})}}
        ],
        "users": [{"name": name, "user": dict(user or {})}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def load(
    path: Path,
    *,
    clock: Clock | None = None,
    environ: Mapping[str, str] | None = None,
    **options: Any,
) -> ClusterCredentials:
    clock = clock or Clock()
    given = {"PATH": "/usr/bin:/bin", **(environ or {})}
    return load_credentials(
        str(path), None, environ=given, now_s=clock.now_s, wall_ms=clock.wall_ms, **options
    )


def refusal(path: Path, **options: Any) -> str:
    """The one line by which the kubeconfig is refused."""
    with pytest.raises(ConfigError) as caught:
        load(path, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)
