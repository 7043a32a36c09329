"""Translates exceptions of aiohttp, ssl and the system into errors of `core/errors.py`."""

from __future__ import annotations

import errno
import socket
import ssl
from collections.abc import Callable
from typing import TypeVar

import aiohttp
from aiohttp import client_exceptions as raised

from watchrelay.core import clock
from watchrelay.core.errors import (
    KubeError,
    Misconfigured,
    NoFilesLeft,
    Unanswered,
    Unavailable,
    Unreachable,
)
from watchrelay.core.open_files import CURE, limit_text
from watchrelay.core.timestamps import rfc3339
from watchrelay.kube.status import NOT_AN_API_SERVER

T = TypeVar("T", bound=BaseException)

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
    system = _innermost(error, OSError, "strerror")
    if system is not None and system.errno == errno.EMFILE:
        return NoFilesLeft(f"{what}: {limit_text()}", cure=f" ({CURE})")
    for kinds, kind, words in _MEANINGS:
        if isinstance(error, kinds):
            return kind(f"{what}: {words if isinstance(words, str) else words(error)}")
    return Unavailable(f"{what}: the connection broke ({type(error).__name__})")


def certificate_error(error: BaseException | None) -> ssl.SSLCertVerificationError | None:
    """The system's failure to verify the server's certificate that `error` comes from, if it does:
    aiohttp's own is of the same class, without details."""
    return _innermost(error, ssl.SSLCertVerificationError, "verify_code")


def _innermost(error: BaseException | None, kind: type[T], having: str) -> T | None:
    """The last of what `error` comes from that is of `kind` and has a value in `having`."""
    found: T | None = None
    passed: list[BaseException] = []
    while error is not None and error not in passed:
        passed.append(error)
        if isinstance(error, kind) and getattr(error, having, None):
            found = error
        error = (
            getattr(error, "os_error", None)
            or getattr(error, "certificate_error", None)
            or error.__cause__
        )
    return found


def _untrusted(error: ssl.SSLCertVerificationError) -> str:
    reason = error.verify_message or "verification failed"
    if error.verify_code in {62, 64}:  # X509_V_ERR_HOSTNAME_MISMATCH, _IP_ADDRESS_MISMATCH
        return (
            f"the server's certificate is for another name ({reason}); name the right one in "
            "tls-server-name"
        )
    if error.verify_code in {9, 10}:  # X509_V_ERR_CERT_NOT_YET_VALID, X509_V_ERR_CERT_HAS_EXPIRED
        cure = "renew it on the server, unless that time is wrong: then set this machine's clock"
        return f"the server's certificate is not valid at {_now()} ({reason}); {cure}"
    return (
        f"the server's certificate is not trusted ({reason}); name its authority in "
        "certificate-authority or certificate-authority-data"
    )


def _now() -> str:
    """The time of this machine, by which certificates are judged."""
    return rfc3339(clock.wall_ms())


def _tls(error: BaseException) -> str:
    found = _innermost(error, ssl.SSLError, "reason")
    reason = found.reason.replace("_", " ").lower() if found else ""
    if "wrong version number" in reason or "http request" in reason:
        return "the server does not speak TLS on this port; is the URL http instead of https?"
    if "certificate required" in reason or "unknown ca" in reason or "bad certificate" in reason:
        return f"the server refused our client certificate ({reason})"
    return reason or "the connection broke in the handshake"


def _system(error: BaseException) -> str:
    found = _innermost(error, OSError, "strerror")
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
    if code == 407:
        return "the proxy wants a user and password (407); put them into proxy-url"
    return f"the proxy answered {code}"


def _no_proxy(error: BaseException) -> str:
    assert isinstance(error, raised.ClientProxyConnectionError)
    return f"the proxy {error.host}:{error.port} cannot be reached: {_system(error)}"


_Kinds = type[BaseException] | tuple[type[BaseException], ...]
_BAD_URL = "the server's URL cannot be used; it must be https://HOST[:PORT]"
_BAD_NAME = "the name of a host cannot be used; correct server, proxy-url or tls-server-name"
_NO_HOST = "the host's name cannot be resolved: "
_NO_ANSWER = "the server closed the connection before it answered"
_NO_END = "the connection broke before the answer's end"
_NOT_HTTP = f"the answer is not HTTP; {NOT_AN_API_SERVER}"
_MEANINGS: tuple[tuple[_Kinds, type[KubeError], str | Callable[[BaseException], str]], ...] = (
    (raised.InvalidURL, Misconfigured, _BAD_URL),
    (raised.ClientHttpProxyError, Unavailable, _proxy),
    (raised.ClientProxyConnectionError, Unreachable, _no_proxy),
    (SocksFailed, Unreachable, str),
    (raised.ClientConnectorDNSError, Unreachable, lambda e: _NO_HOST + _system(e)),
    ((raised.ClientSSLError, ssl.SSLError), Unavailable, lambda e: f"TLS failed: {_tls(e)}"),
    (raised.ServerDisconnectedError, Unavailable, _NO_ANSWER),
    (raised.ClientPayloadError, Unavailable, _NO_END),
    (raised.ClientResponseError, Unavailable, _NOT_HTTP),
    (raised.ConnectionTimeoutError, Unreachable, "no answer in time"),
    (TimeoutError, Unanswered, "no answer in time"),
    (raised.ClientConnectorError, Unreachable, _system),
    (OSError, Unavailable, _system),
    (ValueError, Misconfigured, _BAD_NAME),
)
"""Most special first: many of these are OSErrors too."""
