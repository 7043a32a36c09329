"""Connections through a SOCKS proxy.

Room: kube. In: the proxy's URL. Out: aiohttp's connector whose failures are of aiohttp's own
family, as those of every other one. Imported only where such a proxy is named: the package is an
extra.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp_socks import ProxyConnectionError, ProxyConnector, ProxyError, ProxyTimeoutError

from watchrelay.kube.translate import SocksFailed

if TYPE_CHECKING:
    from aiohttp import ClientRequest, ClientTimeout
    from aiohttp.connector import Connection
    from aiohttp.tracing import Trace


class SocksConnector(ProxyConnector):
    """Raises: SocksFailed where the library has errors of its own, which know no common base
    (aiohttp-socks 0.12)."""

    async def connect(
        self, req: ClientRequest, traces: list[Trace], timeout: ClientTimeout
    ) -> Connection:
        try:
            return await super().connect(req, traces, timeout)
        except ProxyConnectionError as error:
            raise SocksFailed("the proxy cannot be reached") from error
        except ProxyTimeoutError as error:
            raise SocksFailed("the proxy did not answer in time") from error
        except ProxyError as error:
            raise SocksFailed(f"the proxy refused: {error}") from error
