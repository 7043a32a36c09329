"""IMAGE=1, or IMAGE=auto where it can be had; buildah, umoci, runc: what the image holds, and how
it runs as restricted as in a cluster."""

import base64
import hashlib
import hmac
import json
import os
import shutil
import signal
import stat
import subprocess
import tempfile
import urllib.parse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.charttools import ROOT
from tests.support.demos import end_well
from tests.support.embedded import EmbeddedCluster
from tests.support.loopthread import LoopThread
from tests.support.process import wait_until
from tests.support.socks import SocksProxy
from watchrelay import __version__

USER = 65532
_NEEDED = ("buildah", "umoci", "runc", *(() if os.environ.get("PYTHON_IMAGE") else ("mmdebstrap",)))
_BUILDAH = ("buildah", "--storage-driver", os.environ.get("STORAGE_DRIVER", "overlay"))
_TAG = "localhost/watchrelay:test"
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
    environment = {**os.environ, "IMAGE_DIR": str(directory)}
    argv = [str(ROOT / "tools" / "image.sh"), _TAG]
    done = subprocess.run(
        argv, cwd=ROOT, capture_output=True, text=True, check=False, env=environment, timeout=580
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return str(json.loads((directory / "index.json").read_text())["manifests"][0]["digest"])


def _obstacle() -> str:
    """Why images can be neither built nor run here; "" when they can."""
    missing = [name for name in _NEEDED if shutil.which(name) is None]
    if missing or os.geteuid() != 0:
        return f"needs root and {', '.join(_NEEDED)}; missing: {', '.join(missing) or 'root'}"
    script = (
        'c=$(buildah --storage-driver "${STORAGE_DRIVER:-overlay}" from scratch) && buildah '
        'mount "$c"; end=$?; buildah rm "$c"; exit $end'
    )
    tried = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, check=False, timeout=60
    )
    return (
        f"buildah cannot make containers here: {tried.stderr.strip()[-300:]}"
        if tried.returncode
        else ""
    )


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    asked = os.environ.get("IMAGE", "")
    if asked not in {"1", "auto"}:
        pytest.skip(
            "IMAGE=1 is not set: builds the image, which takes a minute; `make image-check` sets it"
        )
    if obstacle := _obstacle():
        if asked == "auto":
            pytest.skip(f"the image is not built: {obstacle}")
        pytest.fail(f"IMAGE=1 {obstacle}", pytrace=False)
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        digest = _build(directory / "oci")
        unpack = [
            "umoci",
            "unpack",
            "--image",
            f"{directory / 'oci'}:{__version__}",
            str(directory / "bundle"),
        ]
        subprocess.run(unpack, check=True, capture_output=True)
        yield Image(directory / "oci", directory / "bundle", digest)
        subprocess.run([*_BUILDAH, "rmi", "--force", _TAG], check=False, capture_output=True)


def _restrict(
    spec: dict[str, Any], argv: list[str], mounts: list[dict[str, Any]]
) -> dict[str, Any]:
    process = spec["process"]
    process |= {
        "args": argv,
        "terminal": False,
        "noNewPrivileges": True,
        "user": {"uid": USER, "gid": USER},
    }
    process["capabilities"] = {
        name: [] for name in ("bounding", "effective", "inheritable", "permitted", "ambient")
    }
    spec["root"]["readonly"] = True
    spec["mounts"] = [mount for mount in spec["mounts"] if mount["destination"] != "/tmp"] + mounts
    spec["mounts"].append(
        {
            "destination": "/tmp",
            "type": "tmpfs",
            "source": "tmpfs",
            "options": ["nosuid", "nodev", "mode=1777"],
        }
    )
    return spec


@contextmanager
def _container(
    image: Image,
    *arguments: str,
    entrypoint: bool,
    files: Path | None = None,
    our_network: bool = False,
    environment: Mapping[str, str] | None = None,
) -> Iterator[list[str]]:
    """The command that runs a restricted container. `our_network`: its loopback is ours, so
    that we can ask it."""
    spec = json.loads((image.bundle / "config.json").read_text())
    argv = [*(image.config()["config"]["Entrypoint"] if entrypoint else ()), *arguments]
    mounts = (
        [
            {
                "destination": "/etc/watchrelay",
                "type": "bind",
                "source": str(files),
                "options": ["bind", "ro"],
            }
        ]
        if files
        else []
    )
    with tempfile.TemporaryDirectory() as name:
        bundle = Path(name)
        spec = _restrict(spec, argv, mounts)
        spec["process"]["env"] += [f"{name}={value}" for name, value in (environment or {}).items()]
        spec["root"]["path"] = str(image.bundle / "rootfs")
        if our_network:
            spec["linux"]["namespaces"] = [
                each for each in spec["linux"]["namespaces"] if each["type"] != "network"
            ]
        (bundle / "config.json").write_text(json.dumps(spec))
        container = f"watchrelay-{os.getpid()}-{bundle.name}"
        try:
            yield ["runc", "run", "--bundle", name, container]
        finally:  # one that ended is gone already
            subprocess.run(
                ["runc", "delete", "--force", container], check=False, capture_output=True
            )


def _run(
    image: Image, *arguments: str, entrypoint: bool = True, **more: Any
) -> subprocess.CompletedProcess[str]:
    with _container(image, *arguments, entrypoint=entrypoint, **more) as argv:
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
    assert not [
        name for name in config["Env"] if "PIP" in name or "INDEX" in name or "CERT" in name
    ]


def test_it_runs_restricted_as_the_cluster_runs_it(image: Image) -> None:
    done = _run(image, "version", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["version"] == __version__
    seen = _run(
        image,
        "/opt/app/bin/python",
        "-c",
        "print(open('/proc/self/status').read())",
        entrypoint=False,
    ).stdout
    status = dict(line.split(":\t", 1) for line in seen.splitlines() if ":\t" in line)
    assert status["Uid"].split() == [str(USER)] * 4
    assert int(status["CapEff"], 16) == 0
    assert status["NoNewPrivs"] == "1"
    refused = _run(image, "/opt/app/bin/python", "-c", "open('/opt/app/x', 'w')", entrypoint=False)
    assert "Read-only file system" in refused.stderr or "Permission denied" in refused.stderr


def test_it_reads_the_config_where_the_chart_mounts_it(image: Image, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "config.yaml").write_text(
        "cluster: c\nkafka: {bootstrapServers: ['127.0.0.1:1']}\nresources: [{resource: pods}]\n"
    )
    done = _run(image, "validate", files=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "pods -> k8s.c.core.pods" in done.stdout


_PLUGIN = """#!/bin/sh
(sleep 0.1 &)
echo x >> /tmp/calls
echo '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential",'\\
'"status":{"token":"t","expirationTimestamp":"2001-01-01T00:00:00Z"}}'
"""
_KUBECONFIG = """
current-context: c
contexts: [{name: c, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: 'https://127.0.0.1:1'}}]
users: [{name: u, user: {exec: {apiVersion: client.authentication.k8s.io/v1,
  command: /etc/watchrelay/plugin, interactiveMode: Never}}}]
"""


def _runc_exec(container: str, *argv: str) -> str:
    done = subprocess.run(
        ["runc", "exec", container, *argv], capture_output=True, text=True, check=False, timeout=30
    )
    return done.stdout


@pytest.mark.parametrize("shared", [False, True], ids=["as PID 1", "shareProcessNamespace"])
def test_what_a_plugin_leaves_running_becomes_no_zombie(
    image: Image, tmp_path: Path, shared: bool
) -> None:
    """In a shared namespace another process is PID 1, here a shell that waits for no orphan."""
    tmp_path.chmod(0o755)
    (tmp_path / "config.yaml").write_text(
        "cluster: c\nkafka: {bootstrapServers: ['127.0.0.1:1']}\nresources: [{resource: pods}]\n"
        "kubernetes: {kubeconfig: /etc/watchrelay/kubeconfig}\n"
    )
    (tmp_path / "kubeconfig").write_text(_KUBECONFIG)
    (tmp_path / "plugin").write_text(_PLUGIN)
    (tmp_path / "plugin").chmod(0o755)
    entrypoint = image.config()["config"]["Entrypoint"]
    pause = ("/opt/app/bin/python", "-c", _PAUSE)
    argv = (*(pause if shared else ()), *entrypoint, "run")
    with (
        _container(image, *argv, entrypoint=False, files=tmp_path) as command,
        subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as running,
    ):
        container = command[-1]
        try:
            wait_until(
                "the plugin has run three times",
                lambda: _runc_exec(container, "cat", "/tmp/calls").count("x") >= 3,
                deadline_s=120.0,
            )
            wait_until(
                "what the plugins left has ended, and is no zombie",
                lambda: _states(container) and not set(_states(container)) & {"Z", "sleep"},
            )
        finally:
            running.send_signal(signal.SIGTERM)
        assert running.wait(60) == 0


_PAUSE = """
import signal, subprocess, sys
child = subprocess.Popen(sys.argv[1:])
signal.signal(signal.SIGTERM, lambda *_: child.terminate())
sys.exit(child.wait())
"""


def _states(container: str) -> list[str]:
    """The state of each process in the container; "sleep" for one of that name."""
    script = "cat /proc/[0-9]*/stat"
    lines = _runc_exec(container, "sh", "-c", script).splitlines()
    return ["sleep" if "(sleep)" in line else line.rpartition(")")[2].split()[0] for line in lines]


def test_every_package_of_the_pins_can_be_imported(image: Image) -> None:
    needed = "aiohttp, aiokafka, cramjam, msgspec, prometheus_client, pydantic, yaml, zstandard"
    names = f"{needed}, confluent_kafka, aws_msk_iam_sasl_signer, aiohttp_socks"
    done = _run(image, "/opt/app/bin/python", "-c", f"import {names}", entrypoint=False)
    assert done.returncode == 0, done.stderr


_KEY = {
    "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE",
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG",
    "AWS_EC2_METADATA_DISABLED": "true",
}
_SIGN = """
import asyncio
from watchrelay.observe import logs
from watchrelay.kafka.client.tokens import MskTokens
logs.configure("json", "debug")
print(asyncio.run(MskTokens("eu-west-1").fetch())[0])
"""


def _signature(url: str, secret: str) -> str:
    """What AWS computes of a presigned URL with this key. Source: AWS Signature Version 4, query
    parameters, an empty body."""
    parts = urllib.parse.urlsplit(url)
    query_fields = {name: values[0] for name, values in urllib.parse.parse_qs(parts.query).items()}
    signed = [
        f"{name}={urllib.parse.quote(query_fields[name], safe='-_.~')}"
        for name in sorted(query_fields)
        if name.startswith(("Action", "X-Amz"))
    ]
    query = "&".join(each for each in signed if not each.startswith("X-Amz-Signature"))
    empty = hashlib.sha256(b"").hexdigest()
    request = hashlib.sha256(
        f"GET\n/\n{query}\nhost:{parts.hostname}\n\nhost\n{empty}".encode()
    ).hexdigest()
    scope = query_fields["X-Amz-Credential"].partition("/")[2]
    key = f"AWS4{secret}".encode()
    for word in scope.split("/"):
        key = hmac.digest(key, word.encode(), "sha256")
    return hmac.digest(
        key,
        f"AWS4-HMAC-SHA256\n{query_fields['X-Amz-Date']}\n{scope}\n{request}".encode(),
        "sha256",
    ).hex()


def test_it_signs_for_msk_with_the_identity_of_its_pod(image: Image) -> None:
    done = _run(image, "/opt/app/bin/python", "-c", _SIGN, entrypoint=False, environment=_KEY)
    assert (done.returncode, done.stderr) == (0, ""), (
        "nothing is logged of what is signed, at debug either"
    )
    token = done.stdout.strip()
    url = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode()
    query_fields = urllib.parse.parse_qs(urllib.parse.urlsplit(url).query)
    assert url.startswith("https://kafka.eu-west-1.amazonaws.com/?Action=kafka-cluster%3AConnect&")
    assert query_fields["X-Amz-Credential"][0].startswith("AKIDEXAMPLE/")
    assert query_fields["X-Amz-Signature"] == [_signature(url, _KEY["AWS_SECRET_ACCESS_KEY"])]


def test_without_an_identity_it_says_how_to_give_its_pod_one(image: Image) -> None:
    done = _run(
        image,
        "/opt/app/bin/python",
        "-c",
        _SIGN,
        entrypoint=False,
        environment={"AWS_EC2_METADATA_DISABLED": "true"},
    )
    assert done.stderr.splitlines()[-1].startswith(
        "ValueError: AWS gave no identity to sign with: neither environment, web identity"
    )


def test_it_reaches_an_api_server_through_a_socks_proxy(image: Image, tmp_path: Path) -> None:
    thread = LoopThread("socks proxy")
    thread.start()
    with EmbeddedCluster() as cluster:
        proxy = thread.run(SocksProxy(cluster.port).__aenter__())
        kubeconfig = json.loads(cluster.kubeconfig.read_text())
        kubeconfig["clusters"][0]["cluster"] = {
            "server": "http://kubernetes.invalid",
            "proxy-url": f"socks5h://127.0.0.1:{proxy.port}",
        }
        tmp_path.chmod(0o755)
        (tmp_path / "kubeconfig").write_text(json.dumps(kubeconfig))
        config = {
            "cluster": "c",
            "kubernetes": {"kubeconfig": "/etc/watchrelay/kubeconfig"},
            "resources": [{"resource": "pods"}],
        }
        (tmp_path / "config.yaml").write_text(
            json.dumps({**config, "kafka": {"bootstrapServers": ["127.0.0.1:1"]}})
        )
        done = _run(image, "validate", "--connect", files=tmp_path, our_network=True)
        thread.call(proxy.close)
    thread.stop()
    assert "ok: kubernetes" in done.stdout, done.stdout + done.stderr
    assert set(proxy.asked) == {("kubernetes.invalid", 80)}


def test_the_demo_runs_in_it_and_ends_with_0_on_ctrl_c(image: Image, tmp_path: Path) -> None:
    out, err = tmp_path / "out", tmp_path / "err"
    with (
        _container(image, "demo", entrypoint=True, our_network=True) as argv,
        out.open("wb") as stdout,
        err.open("wb") as stderr,
        subprocess.Popen(argv, stdout=stdout, stderr=stderr) as demo,
    ):
        try:
            end_well(demo, out.read_text, err.read_text)
        finally:
            demo.kill()
    assert "drained; goodbye" in err.read_text()


def test_it_holds_neither_compiler_nor_pip_nor_a_way_to_more_rights(image: Image) -> None:
    root = image.bundle / "rootfs"
    places = [root / place for place in ("opt/app/bin", "usr/bin", "usr/local/bin")]
    found = [
        str(place / name) for place in places for name in _COMPILERS if (place / name).exists()
    ]
    assert found == []
    assert list((root / "opt/app").glob("lib/python3*/site-packages/pip*")) == []
    ours = [path for path in (root / "opt/app").rglob("*") if not path.is_symlink()]
    assert [path for path in ours if path.stat().st_mode & (stat.S_ISUID | stat.S_ISGID)] == []
    assert not (root / "src").exists()
