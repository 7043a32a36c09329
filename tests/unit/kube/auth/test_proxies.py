"""The proxy to the API server: claim T71."""

import sys
from pathlib import Path

import pytest

from tests.unit.kube.auth.kubeconfigs import load, refusal, write_kubeconfig


@pytest.mark.parametrize(
    ("server", "cluster", "environ", "expected"),
    [
        ("https://api:6443", {"proxy-url": "http://proxy:3128"}, {"NO_PROXY": "*"}, "http://proxy:3128"),
        ("https://api:6443", {"proxy-url": "https://proxy"}, {"HTTPS_PROXY": "http://other"}, "https://proxy"),
        ("https://api:6443", {}, {"HTTPS_PROXY": "proxy:3128"}, "http://proxy:3128"),
        ("https://api:6443", {}, {"https_proxy": "http://proxy:3128"}, "http://proxy:3128"),
        ("https://api:6443", {}, {"HTTP_PROXY": "http://proxy:3128"}, None),
        ("http://api", {}, {"HTTP_PROXY": "http://proxy:3128"}, "http://proxy:3128"),
        ("https://localhost:6443", {}, {"HTTPS_PROXY": "http://proxy"}, None),
        ("https://[::1]:6443", {}, {"HTTPS_PROXY": "http://proxy"}, None),
    ],
)  # fmt: skip
def test_T71_the_proxy_is_the_kubeconfigs_or_else_the_environments(
    tmp_path: Path,
    server: str,
    cluster: dict[str, str],
    environ: dict[str, str],
    expected: str | None,
) -> None:
    config = write_kubeconfig(tmp_path / "config", cluster={"server": server, **cluster})
    assert load(config, environ=environ).endpoint.proxy == expected


@pytest.mark.parametrize(
    ("host", "no_proxy", "bypassed"),
    [
        ("api.corp.example", "corp.example", True),
        ("api.corp.example", ".corp.example", True),
        ("corp.example", ".corp.example", False),
        ("api.corp.example", "*.corp.example", True),
        ("apicorp.example", "corp.example", False),
        ("API.corp.example", "x, api.corp.example:6443", True),
        ("api.corp.example", "api.corp.example:443", False),
        ("10.1.2.3", "10.0.0.0/8", True),
        ("10.1.2.3", "11.0.0.0/8,garbage/99", False),
        ("api.corp.example", "corp.example:\u00b2", False),
        ("api.corp.example", "corp.example:" + "6" * 5000, False),
        ("[fd00::1]", "fd00::/8", True),
        ("[fd00::1]", "fd00::1", True),
        ("[fd00::1]", "[fd00::1]:6443", True),
        ("api", "*", True),
        ("api", "", False),
    ],
)
def test_T71_no_proxy_is_honoured_as_go_reads_it(
    tmp_path: Path, host: str, no_proxy: str, bypassed: bool
) -> None:
    config = write_kubeconfig(tmp_path / "config", cluster={"server": f"https://{host}:6443"})
    endpoint = load(
        config, environ={"HTTPS_PROXY": "http://proxy:3128", "no_proxy": no_proxy}
    ).endpoint
    assert (endpoint.proxy is None) is bypassed


def test_T71_socks5_needs_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = write_kubeconfig(
        tmp_path / "config", cluster={"proxy-url": "socks5h://me:hunter2@proxy:1080"}
    )
    assert load(config).endpoint.proxy == "socks5://me:hunter2@proxy:1080"
    monkeypatch.setitem(sys.modules, "aiohttp_socks", None)
    message = refusal(config)
    assert message.endswith(
        "proxy-url: a socks5 proxy needs an extra package (pip install 'watchrelay[socks]'; the "
        "image has it)"
    )
    assert "hunter2" not in message


def test_T71_another_name_of_the_server_cannot_be_checked_through_socks5(tmp_path: Path) -> None:
    cluster = {"proxy-url": "socks5://proxy:1080", "tls-server-name": "kubernetes.default"}
    message = refusal(write_kubeconfig(tmp_path / "config", cluster=cluster))
    assert (
        "tls-server-name: cannot be used through a socks5 proxy (give server the name that "
        "its certificate carries"
    ) in message


def test_T71_what_is_no_proxy_is_refused_without_showing_its_password(tmp_path: Path) -> None:
    for url in ("gopher://me:hunter2@x", "http://", "proxy:3128", "http://x:99999"):
        message = refusal(write_kubeconfig(tmp_path / "config", cluster={"proxy-url": url}))
        assert message.endswith(
            "proxy-url: is not the URL of a proxy (http://, https:// or socks5://host:port)"
        )
        assert "hunter2" not in message
