"""TLS contexts from certificates in memory. `ssl` is given private keys in a file that is in memory
too, and that no other user can read."""

from __future__ import annotations

import os
import re
import ssl
from dataclasses import dataclass, field
from typing import NoReturn

_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----[A-Za-z0-9+/=\s]+-----END CERTIFICATE-----")


class _EncryptedKey(ValueError):
    """The private key needs a passphrase."""


@dataclass(frozen=True, slots=True)
class ClientCertificate:
    """A client certificate (with its intermediates) and its private key, both PEM."""

    certificate: bytes
    key: bytes = field(repr=False)


def check_authorities(pem: bytes) -> bytes:
    """`pem` itself, if it holds certificates and nothing broken. Raises: ValueError, without
    content."""
    _trust(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), pem)
    return pem


def check_client(pair: ClientCertificate) -> ClientCertificate:
    """`pair` itself, if the key belongs to the certificate. Raises: ValueError."""
    _present(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), pair)
    return pair


def build_context(
    *, authorities: bytes | None, insecure: bool, client: ClientCertificate | None
) -> ssl.SSLContext:
    """A context for connections to one API server. `authorities` None trusts what the system
    trusts; `insecure` trusts anyone. Raises: ValueError for unusable PEM."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif authorities is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    else:
        _trust(context, authorities)
        # Go neither wants an Authority Key Identifier nor a self-signed root of the CAs an operator
        # configures, and clusters are made for Go's rules; Python 3.13 made the strict ones its
        # default, and EKS fails them (kubernetes_asyncio#349).
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if client is not None:
        _present(context, client)
    return context


def _trust(context: ssl.SSLContext, pem: bytes) -> None:
    # Only the certificates themselves are handed on: bundles carry comments in any encoding, which
    # `cadata` would refuse.
    blocks = _CERTIFICATE.findall(pem)
    if not blocks:
        raise ValueError("holds no PEM certificate")
    try:
        context.load_verify_locations(cadata=b"\n".join(blocks).decode("ascii"))
    except ssl.SSLError:
        blocks = []
    if len(blocks) != pem.count(b"-----BEGIN CERTIFICATE-----"):
        raise ValueError("holds a broken PEM certificate")


def _present(context: ssl.SSLContext, pair: ClientCertificate) -> None:
    with os.fdopen(os.memfd_create("watchrelay", os.MFD_CLOEXEC), "wb") as file:
        file.write(pair.certificate + b"\n" + pair.key)
        file.flush()
        try:
            context.load_cert_chain(f"/proc/self/fd/{file.fileno()}", password=_no_passphrase)
        except _EncryptedKey:
            raise ValueError(
                "the private key is encrypted; only keys without a passphrase can be used"
            ) from None
        except ssl.SSLError as error:
            mismatch = error.reason == "KEY_VALUES_MISMATCH"
            raise ValueError(
                "the key does not belong to the certificate"
                if mismatch
                else "is not a PEM certificate and key"
            ) from None


def _no_passphrase() -> NoReturn:
    raise _EncryptedKey
