"""Room: image tests.  In: IMAGE=1, buildah, umoci, runc.  Out: what the image holds, and how it runs as restricted as in a cluster."""

import json
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.charttools import ROOT
from watchrelay import __version__

USER = 65532
_NEEDED = ("buildah", "umoci", "runc")
_COMPILERS = ("gcc", "cc", "g++", "clang", "make", "cargo", "rustc", "ld")


@dataclass(frozen=True, slots=True)
class Image:
    """The OCI layout of a build, and its bundle: a root file system with a config.json for runc."""

    layout: Path
    bundle: Path
    digest: str

    def blob(self, digest: str) -> Any:
        """The decoded JSON of a blob."""
        return json.loads((self.layout / "blobs" / digest.replace(":", "/")).read_text())

    def config(self) -> Any:
        """The image's own config."""
        return self.blob(self.blob(self.digest)["config"]["digest"])


def _build(directory: Path) -> str:
    environment = {**os.environ, "IMAGE_DIR": str(directory), "NO_CACHE": "1"}
    argv = [str(ROOT / "tools" / "image.sh"), "watchrelay:test"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, env=environment, timeout=580)
    assert done.returncode == 0, done.stdout + done.stderr
    return str(json.loads((directory / "index.json").read_text())["manifests"][0]["digest"])


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    if os.environ.get("IMAGE", "") != "1":
        pytest.skip("IMAGE=1 is not set: builds the image, which takes minutes; `make image-check` sets it")
    missing = [name for name in _NEEDED if shutil.which(name) is None]
    if missing or os.geteuid() != 0:
        pytest.fail(f"IMAGE=1 needs root and {', '.join(_NEEDED)}; missing: {', '.join(missing) or 'root'}", pytrace=False)
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        digest = _build(directory / "oci")
        unpack = ["umoci", "unpack", "--image", f"{directory / 'oci'}:{__version__}", str(directory / "bundle")]
        subprocess.run(unpack, check=True, capture_output=True)
        yield Image(directory / "oci", directory / "bundle", digest)


def _restrict(spec: dict[str, Any], argv: list[str], mounts: list[dict[str, Any]]) -> dict[str, Any]:
    process = spec["process"]
    process |= {"args": argv, "terminal": False, "noNewPrivileges": True, "user": {"uid": USER, "gid": USER}}
    process["capabilities"] = {name: [] for name in ("bounding", "effective", "inheritable", "permitted", "ambient")}
    spec["root"]["readonly"] = True
    spec["mounts"] = [mount for mount in spec["mounts"] if mount["destination"] != "/tmp"] + mounts
    spec["mounts"].append({"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "nodev", "mode=1777"]})
    return spec


def _run(image: Image, *arguments: str, entrypoint: bool = True, files: Path | None = None) -> subprocess.CompletedProcess[str]:
    spec = json.loads((image.bundle / "config.json").read_text())
    argv = [*(image.config()["config"]["Entrypoint"] if entrypoint else ()), *arguments]
    mounts = [{"destination": "/etc/watchrelay", "type": "bind", "source": str(files), "options": ["bind", "ro"]}] if files else []
    with tempfile.TemporaryDirectory() as name:
        bundle = Path(name)
        spec = _restrict(spec, argv, mounts)
        spec["root"]["path"] = str(image.bundle / "rootfs")
        (bundle / "config.json").write_text(json.dumps(spec))
        argv = ["runc", "run", "--bundle", name, f"watchrelay-{os.getpid()}-{bundle.name}"]
        return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)


def test_the_same_commit_gives_the_same_digest(image: Image, tmp_path: Path) -> None:
    assert _build(tmp_path / "again") == image.digest


def test_it_says_what_it_is(image: Image) -> None:
    config = image.config()["config"]
    labels = config["Labels"]
    assert labels["org.opencontainers.image.title"] == "watchrelay"
    assert labels["org.opencontainers.image.version"] == __version__
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"
    assert len(labels["org.opencontainers.image.revision"].partition("-")[0]) == 40
    assert labels["org.opencontainers.image.created"].endswith("Z")
    assert config["User"] == f"{USER}:{USER}"
    assert not [name for name in config["Env"] if "PIP" in name or "INDEX" in name or "CERT" in name]


def test_it_runs_restricted_as_the_cluster_runs_it(image: Image) -> None:
    done = _run(image, "version", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["version"] == __version__
    seen = _run(image, "/opt/app/bin/python", "-c", "print(open('/proc/self/status').read())", entrypoint=False).stdout
    status = dict(line.split(":\t", 1) for line in seen.splitlines() if ":\t" in line)
    assert status["Uid"].split() == [str(USER)] * 4
    assert int(status["CapEff"], 16) == 0
    assert status["NoNewPrivs"] == "1"
    refused = _run(image, "/opt/app/bin/python", "-c", "open('/opt/app/x', 'w')", entrypoint=False)
    assert "Read-only file system" in refused.stderr or "Permission denied" in refused.stderr


def test_it_reads_the_config_where_the_chart_mounts_it(image: Image, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "config.yaml").write_text("cluster: c\nkafka: {bootstrapServers: ['127.0.0.1:1']}\nresources: [{resource: pods}]\n")
    done = _run(image, "validate", files=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "pods -> k8s.c.core.pods" in done.stdout


def test_every_package_of_the_pins_can_be_imported(image: Image) -> None:
    names = "aiohttp, aiokafka, cramjam, msgspec, prometheus_client, pydantic, pydantic_settings, yaml, zstandard"
    done = _run(image, "/opt/app/bin/python", "-c", f"import {names}", entrypoint=False)
    assert done.returncode == 0, done.stderr


def test_it_holds_neither_compiler_nor_pip_nor_a_way_to_more_rights(image: Image) -> None:
    root = image.bundle / "rootfs"
    places = [root / place for place in ("opt/app/bin", "usr/bin", "usr/local/bin")]
    found = [str(place / name) for place in places for name in _COMPILERS if (place / name).exists()]
    assert found == []
    assert list((root / "opt/app").glob("lib/python3*/site-packages/pip*")) == []
    ours = [path for path in (root / "opt/app").rglob("*") if not path.is_symlink()]
    assert [path for path in ours if path.stat().st_mode & (stat.S_ISUID | stat.S_ISGID)] == []
    assert not (root / "src").exists()
