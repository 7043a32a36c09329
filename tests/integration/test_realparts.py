"""Real parts: what the harness does that no test of the relay would miss. That parts are killed, forget
and refuse, each test that waits for the effect shows."""

from pathlib import Path

import pytest

from tests.support.parts import class_archive, is_usable
from tests.support.realparts import ControlPlane, PartError

pytestmark = pytest.mark.real


def test_a_part_that_does_not_start_says_why(real_parts: None) -> None:
    with pytest.raises(PartError, match="unknown flag: --no-such-flag"):
        ControlPlane(apiserver_flags=["--no-such-flag"]).start()


def test_a_paused_apiserver_keeps_silent_until_it_is_resumed(real_parts: None) -> None:
    with ControlPlane() as cluster:
        cluster.pause()
        with pytest.raises(TimeoutError):
            cluster.request("GET", "/version", timeout_s=0.3)
        cluster.resume()
        assert cluster.wait_for("it answers again", lambda: cluster.request("GET", "/version"))


def test_a_truncated_class_archive_is_not_used(real_parts: None, tmp_path: Path) -> None:
    archive, truncated = class_archive("4.1"), tmp_path / "truncated.jsa"
    if not archive.exists():
        pytest.skip(f"there is no class archive {archive}: `make real` makes it")
    assert is_usable(archive, "4.1")
    truncated.write_bytes(archive.read_bytes()[:20_000_000])
    assert not is_usable(truncated, "4.1")
