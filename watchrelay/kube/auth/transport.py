"""How bytes travel: connections, and what every request says about itself.

Room: kube. In: an endpoint. Out: a connector whose dead connections are noticed, and the
User-Agent.
"""

from __future__ import annotations

import functools
import importlib.util
import platform
import socket
import ssl
from typing import Any

import aiohttp

from watchrelay import __version__
from watchrelay.core.errors import Misconfigured
from watchrelay.kube.port import Endpoint

JSON = "application/json"

_KEEPALIVE = {
    "TCP_KEEPIDLE": 30,
    "TCP_KEEPINTVL": 10,
    "TCP_KEEPCNT": 3,
    "TCP_USER_TIMEOUT": 60_000,
    "TCP_NODELAY": 1,
}
"""aiohttp leaves keepalive off; a NAT that dropped the flow would never be noticed. Source: WATCH
2.14."""


def user_agent(stream: str) -> str:
    """What audit logs show: operators look for a stream by it. Source: WATCH 10.4."""
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    name = "".join(c if c.isascii() and c.isprintable() else "_" for c in stream)
    return (
        f"watchrelay/{__version__} (linux/{machine}) python/{platform.python_version()} {name}"
    ).rstrip()


def says_json(content_type: str) -> bool:
    """True for JSON, and for a server that does not say what it sends."""
    kind = content_type.partition(";")[0].strip().lower()
    return kind in {"", JSON, "application/octet-stream"} or kind.endswith("+json")


def is_socks(endpoint: Endpoint) -> bool:
    return endpoint.proxy is not None and endpoint.proxy.startswith("socks")


@functools.cache
def tls_without_endpoint(proxy: str | None) -> ssl.SSLContext | bool:
    """What a plain http endpoint needs: nothing, unless the proxy before it is reached by TLS,
    which the system's authorities vouch for.

    aiohttp's own default is not asked: the daemon imports it without certificates.
    """
    return (
        ssl.create_default_context() if proxy is not None and proxy.startswith("https:") else True
    )


def connector_for(endpoint: Endpoint) -> aiohttp.BaseConnector:
    """No limit: every watch holds a connection, and a pool would park the next one silently for
    ever (WATCH 2.18)."""
    if not is_socks(endpoint):
        return aiohttp.TCPConnector(
            limit=0, ttl_dns_cache=10, socket_factory=open_socket, enable_cleanup_closed=False
        )
    if importlib.util.find_spec("aiohttp_socks") is None:
        raise Misconfigured(
            "proxy-url is a socks proxy, which needs the extra: pip install 'watchrelay[socks]'; "
            "the image has it"
        )
    from watchrelay.kube.auth.socks import SocksConnector  # stands on the extra

    assert endpoint.proxy is not None, "it is a socks proxy"
    made: aiohttp.BaseConnector = SocksConnector.from_url(endpoint.proxy, limit=0)
    return made


def open_socket(
    info: tuple[int | socket.AddressFamily, int | socket.SocketKind, int, str, tuple[Any, ...]],
) -> socket.socket:
    """A socket for one connection, with keepalive on."""
    family, kind, protocol, _, _ = info
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE.items():
        if hasattr(socket, option):  # Linux has them all
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    return made
