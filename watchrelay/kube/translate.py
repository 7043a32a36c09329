"""Translates exceptions of aiohttp, ssl and the system into errors of `core/errors.py`."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable

import aiohttp
from aiohttp import client_exceptions as raised

from watchrelay.core.errors import KubeError, Misconfigured, Unavailable, Unreachable

EXPECTED = (aiohttp.ClientError, TimeoutError, OSError, ssl.SSLError, ssl.CertificateError)
"""All that a request may raise because of the server or the way to it; anything else is a bug of
ours."""


class SocksFailed(aiohttp.ClientConnectionError):
    """A connection through a SOCKS proxy failed."""


def translate(error: BaseException, *, what: str) -> KubeError:
    """The error to raise `from error`. `what` names the request and the server ("list pods at
    host:6443")."""
    certificate = certificate_error(error)
    if certificate is not None:
        return Misconfigured(f"{what}: {_untrusted(certificate)}")
    for kinds, kind, words in _MEANINGS:
        if isinstance(error, kinds):
            return kind(f"{what}: {words(error)}")
    return Unavailable(f"{what}: the connection broke ({type(error).__name__})")


def _chain(error: BaseException) -> list[BaseException]:
    found: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in found:
        found.append(current)
        current = (
            getattr(current, "os_error", None)
            or getattr(current, "certificate_error", None)
            or current.__cause__
        )
    return found


def certificate_error(error: BaseException | None) -> ssl.SSLCertVerificationError | None:
    """The failure to verify the server's certificate that `error` comes from, if it does.

    The system's own error: aiohttp's is of the same class, without details.
    """
    if error is None:
        return None
    return next(
        (
            e
            for e in reversed(_chain(error))
            if isinstance(e, ssl.SSLCertVerificationError) and hasattr(e, "verify_code")
        ),
        None,
    )


_HOSTNAME_MISMATCH = {62, 64}  # X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH


def _untrusted(error: ssl.SSLCertVerificationError) -> str:
    reason = error.verify_message or "verification failed"
    if error.verify_code in _HOSTNAME_MISMATCH:
        return (
            f"the server's certificate is for another name ({reason}); name the right one in "
            "tls-server-name"
        )
    if error.verify_code == 10:  # X509_V_ERR_CERT_HAS_EXPIRED
        return f"the server's certificate is not valid ({reason}); it must be renewed on the server"
    return (
        f"the server's certificate is not trusted ({reason}); name its authority in "
        "certificate-authority or certificate-authority-data"
    )


def _tls(error: BaseException) -> str:
    found = next(
        (
            e
            for e in reversed(_chain(error))
            if isinstance(e, ssl.SSLError) and not isinstance(e, aiohttp.ClientError)
        ),
        None,
    )
    reason = (found.reason or "").replace("_", " ").lower() if found else ""
    if "wrong version number" in reason or "http request" in reason:
        return "the server does not speak TLS on this port; is the URL http instead of https?"
    if "certificate required" in reason or "unknown ca" in reason or "bad certificate" in reason:
        return f"the server refused our client certificate ({reason})"
    return reason or "the connection broke in the handshake"


def _system(error: BaseException) -> str:
    found = next(
        (
            each
            for each in reversed(_chain(error))
            if isinstance(each, OSError) and getattr(each, "strerror", None)
        ),
        None,
    )
    if found is None:
        return "the connection broke"
    if isinstance(found, socket.gaierror):
        return str(found.strerror).lower()
    return {
        111: "connection refused: nothing listens there (does it run, and is the address right?)",
        104: "connection reset by the server",
        110: "connection timed out",
    }.get(found.errno or 0, str(found.strerror).lower())


def _proxy(error: BaseException) -> str:
    code = getattr(error, "status", 0)
    return (
        "the proxy wants a user and password (407); put them into proxy-url"
        if code == 407
        else f"the proxy answered {code}"
    )


_MEANINGS: tuple[
    tuple[
        type[BaseException] | tuple[type[BaseException], ...],
        type[KubeError],
        Callable[[BaseException], str],
    ],
    ...,
] = (
    (
        raised.InvalidURL,
        Misconfigured,
        lambda _: "the server's URL cannot be used; it must be https://HOST[:PORT]",
    ),
    (raised.ClientHttpProxyError, Unavailable, _proxy),
    (
        raised.ClientProxyConnectionError,
        Unreachable,
        lambda e: f"the proxy cannot be reached: {_system(e)}",
    ),
    (SocksFailed, Unreachable, str),
    (
        raised.ClientConnectorDNSError,
        Unreachable,
        lambda e: f"the host's name cannot be resolved: {_system(e)}",
    ),
    ((raised.ClientSSLError, ssl.SSLError), Unavailable, lambda e: f"TLS failed: {_tls(e)}"),
    (
        raised.ServerDisconnectedError,
        Unavailable,
        lambda _: "the server closed the connection before it answered",
    ),
    (
        raised.ClientPayloadError,
        Unavailable,
        lambda _: "the connection broke before the answer's end",
    ),
    (
        raised.ClientResponseError,
        Unavailable,
        lambda _: "the answer is not HTTP; is this URL the API server's?",
    ),
    (raised.ConnectionTimeoutError, Unreachable, lambda _: "no answer in time"),
    (TimeoutError, Unavailable, lambda _: "no answer in time"),
    (raised.ClientConnectorError, Unreachable, _system),
    (OSError, Unavailable, _system),
    (
        ValueError,
        Misconfigured,
        lambda _: "the name of a host cannot be used; correct server, proxy-url or tls-server-name",
    ),
)
"""Most special first: many of these are OSErrors too."""
