"""What the client needs to know of where and who: the port that credentials.py fills.

Room: kube. In: nothing. Out: `Endpoint` and the `Credentials` protocol, which `client.py` hands on.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where the API server is and how it is reached. Shape: `url` has no trailing slash; `proxy` is
    a URL.

    `server_hostname`: the name that its certificate must carry, where that is not the URL's host
    (tls-server-name). `compress`: False where the kubeconfig says `disable-compression`.
    """

    url: str = field(repr=False)  # this and the proxy's may hold a user and a password
    server_hostname: str | None = None
    proxy: str | None = field(default=None, repr=False)
    compress: bool = True


class Credentials(Protocol):
    """Who we are to the API server, kept fresh by its owner."""

    @property
    def endpoint(self) -> Endpoint:
        """Where to go."""
        ...

    async def headers(self) -> list[tuple[str, str]]:
        """Authorization and Impersonate-* headers of the next request; names may repeat. Raises:
        Misconfigured."""
        ...

    async def tls(self) -> ssl.SSLContext | None:
        """The context of the next connection: a new object when CA or client certificate changed,
        None for plain http."""
        ...

    async def rejected(self, asked_s: float) -> None:
        """The server answered 401: read the files again, or run the plugin again, once for all
        whose requests were sent before that.

        Units: `asked_s` is when the request got its credentials, monotonic.
        """
        ...

    def distrusted(self, asked_s: float) -> None:
        """The server's certificate did not verify: read the CA again before the next connection;
        `asked_s` as above."""
        ...
