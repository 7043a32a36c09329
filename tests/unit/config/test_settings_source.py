"""pydantic-settings loads the settings from one source: nothing else of it decides over a value, and
it shows none."""

from __future__ import annotations

import io
import logging
from pathlib import Path

import pytest
from pydantic_settings import BaseSettings

from watchrelay.config import load_settings
from watchrelay.core.errors import ConfigError
from watchrelay.observe import logs

_CONFIG = "cluster: c\nkafka: {bootstrapServers: ['k:1']}\nresources: [{resource: pods}]\n"


def test_its_own_sources_are_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("CLUSTER", "cluster", "OVERLOAD", "REVISION"):
        monkeypatch.setenv(name, "3")
    (tmp_path / ".env").write_text("CLUSTER=env\nWATCHRELAY_CLUSTER=env\nREVISION=4\n")
    (tmp_path / "w.yaml").write_text(_CONFIG)
    settings = load_settings("w.yaml", environ={"WATCHRELAY_OVERLOAD": "block"})
    assert isinstance(settings, BaseSettings)
    assert (settings.cluster, settings.overload, settings.revision) == ("c", "block", 0)


@pytest.mark.parametrize(
    "key",
    [
        "_cli_parse_args",
        "_env_file",
        "_secrets_dir",
        "_build_sources",
        "values",
        "self",
        "__class__",
    ],
)
def test_a_key_of_a_config_is_no_parameter_of_it(tmp_path: Path, key: str) -> None:
    (tmp_path / "w.yaml").write_text(f"{_CONFIG}{key}: true\n")
    with pytest.raises(ConfigError, match=key):
        load_settings(str(tmp_path / "w.yaml"), environ={})


def test_its_debug_output_shows_no_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYDANTIC_SETTINGS_DEBUG", "1")
    before, out = logging.root.handlers[:], io.StringIO()
    logs.configure("json", "debug", stream=out)
    try:
        (tmp_path / "w.yaml").write_text(_CONFIG)
        sets = ("observe.listen=127.0.0.1:54321",)
        load_settings(str(tmp_path / "w.yaml"), sets, environ={})
    finally:
        logging.root.handlers[:] = before
    assert "54321" not in out.getvalue()
