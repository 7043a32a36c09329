"""`tools/go.sh`: where the machine's own Go is new enough, nothing changes."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

_SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "go.sh"


@pytest.mark.parametrize("version", ["go1.26.0", "go1.27.3", "go1.100.0"])
def test_a_go_that_is_new_enough_is_used_as_it_is(tmp_path: Path, version: str) -> None:
    go = tmp_path / "go"
    go.write_text(f"#!/bin/sh\necho {version}\n")
    go.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "WATCHRELAY_TOOLS": str(tmp_path / "cache"),
    }
    done = subprocess.run(
        [str(_SCRIPT)], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not (tmp_path / "cache").exists()
