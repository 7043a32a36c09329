"""A config in a working directory of its own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

GOOD = (
    "cluster: c\nkafka: {bootstrapServers: [k:9092]}\nresources:\n  - {resource: pods, "
    "namespaces: [shop]}\n  - {resource: ev}\n"
)


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("WATCHRELAY_")]:
        monkeypatch.delenv(name)
    file = tmp_path / "w.yaml"
    file.write_text(GOOD)
    return file
