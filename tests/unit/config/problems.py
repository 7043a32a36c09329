"""What is wrong with a config file."""

from __future__ import annotations

from pathlib import Path

import pytest

from watchrelay.config import load_settings
from watchrelay.core.errors import ConfigError


def problems(
    tmp_path: Path, text: str | bytes, *sets: str, environ: dict[str, str] | None = None
) -> list[str]:
    """Each problem of a file with this text, as it is reported."""
    file = tmp_path / "w.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError) as caught:
        load_settings(str(file), sets, environ=environ or {})
    return [str(problem).replace(f"{tmp_path}/", "") for problem in caught.value.problems]
