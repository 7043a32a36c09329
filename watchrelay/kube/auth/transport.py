"""The transport of requests: endpoint, connections with keepalive, User-Agent."""

from __future__ import annotations

import functools
import platform
import socket
import ssl
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import urlsplit

import aiohttp

from watchrelay import __version__
from watchrelay.core.open_files import refuse_reserved
from watchrelay.kube.translate import SocksFailed

JSON = "application/json"

_KEEPALIVE = {
    "TCP_KEEPIDLE": 30,
    "TCP_KEEPINTVL": 10,
    "TCP_KEEPCNT": 3,
    "TCP_USER_TIMEOUT": 60_000,
    "TCP_NODELAY": 1,
}
"""aiohttp leaves keepalive off; a NAT that dropped the flow would go unnoticed. docs/watch-facts.md
2.14."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where the API server is and how it is reached; `url` without trailing slash, `proxy` a URL.

    `server_hostname`: the name in its certificate, where not the URL's host (tls-server-name).
    `compress`: False for `disable-compression` of the kubeconfig."""

    url: str = field(repr=False)  # this and the proxy's may hold a user and a password
    server_hostname: str | None = None
    proxy: str | None = field(default=None, repr=False)
    compress: bool = True


class Credentials(Protocol):
    """The credentials for the API server: auth/credentials.py has what each does. Each may
    raise Misconfigured."""

    @property
    def endpoint(self) -> Endpoint: ...

    async def headers(self) -> list[tuple[str, str]]: ...

    async def tls(self) -> ssl.SSLContext | None: ...

    async def rejected(self, asked_s: float) -> None: ...

    def distrusted(self, asked_s: float) -> None: ...


def user_agent(stream: str) -> str:
    """The User-Agent, by which audit logs show the stream. Source: docs/watch-facts.md 10.4."""
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    name = "".join(c if c.isascii() and c.isprintable() else "_" for c in stream)
    return (
        f"watchrelay/{__version__} (linux/{machine}) python/{platform.python_version()} {name}"
    ).rstrip()


def says_json(response: aiohttp.ClientResponse) -> bool:
    """True for JSON, and for an answer without a content type."""
    kind = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    return kind in {"", JSON, "application/octet-stream"} or kind.endswith("+json")


def is_socks(endpoint: Endpoint) -> bool:
    return endpoint.proxy is not None and endpoint.proxy.startswith("socks")


@functools.cache
def tls_without_endpoint(proxy: str | None) -> ssl.SSLContext | bool:
    """What a plain http endpoint needs: nothing, unless the proxy before it is reached by TLS.
    aiohttp's own default is not used: the daemon imports it without certificates."""
    return (
        ssl.create_default_context() if proxy is not None and proxy.startswith("https:") else True
    )


def connector_for(endpoint: Endpoint) -> aiohttp.BaseConnector:
    """No limit: every watch holds a connection, and a pool would block the next
    (docs/watch-facts.md 2.18)."""
    if not is_socks(endpoint):
        return aiohttp.TCPConnector(
            limit=0, ttl_dns_cache=10, socket_factory=open_socket, enable_cleanup_closed=False
        )
    assert endpoint.proxy is not None, "it is a socks proxy"
    proxy = urlsplit(endpoint.proxy)
    connector = _socks_connector(f"the proxy {proxy.hostname}:{proxy.port}")
    made: aiohttp.BaseConnector = connector.from_url(endpoint.proxy, limit=0)
    return made


def _socks_connector(proxy: str) -> Any:
    """A connector through a SOCKS proxy, named in the `SocksFailed` that it raises: the errors of
    aiohttp-socks have no common base."""
    from aiohttp_socks import ProxyConnectionError, ProxyConnector, ProxyError, ProxyTimeoutError

    class SocksConnector(ProxyConnector):
        async def connect(self, *args: Any, **kwargs: Any) -> Any:
            try:
                return await super().connect(*args, **kwargs)
            except ProxyConnectionError as error:
                raise SocksFailed(f"{proxy} cannot be reached") from error
            except ProxyTimeoutError as error:
                raise SocksFailed(f"{proxy} did not answer in time") from error
            except ProxyError as error:
                raise SocksFailed(f"{proxy} refused: {error}") from error

    return SocksConnector


def open_socket(
    info: tuple[int | socket.AddressFamily, int | socket.SocketKind, int, str, tuple[Any, ...]],
) -> socket.socket:
    family, kind, protocol, _, _ = info
    made = socket.socket(family, kind, protocol)
    try:
        refuse_reserved(made.fileno())
    except OSError:
        made.close()
        raise
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE.items():
        if hasattr(socket, option):  # Linux has them all
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    return made
