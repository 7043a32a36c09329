"""Names and what is odd about them: PEM certificates and keys, and servers that use them."""

import datetime as dt
import ipaddress
import ssl
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from cryptography.x509.oid import NameOID

_SIGNS = x509.KeyUsage(
    digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False, key_encipherment=False,
    data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
)  # fmt: skip


class Files(NamedTuple):
    certificate: Path
    key: Path


@dataclass(frozen=True)
class Pair:
    certificate: bytes
    key: bytes

    def write(self, directory: Path, stem: str) -> Files:
        files = Files(directory / f"{stem}.crt", directory / f"{stem}.key")
        files.certificate.write_bytes(self.certificate)
        files.key.touch(mode=0o600)
        files.key.write_bytes(self.key)
        return files


def _pem(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey, passphrase: str = "") -> bytes:
    encryption = BestAvailableEncryption(passphrase.encode()) if passphrase else NoEncryption()
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)


class Ca:
    """An authority, self-signed or under `parent`; `plain` leaves out key usage and identifiers, as
    old clusters' authorities do."""

    def __init__(
        self, name: str = "ca", *, plain: bool = False, parent: "Ca | None" = None
    ) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._plain = plain
        signer = parent or self
        public = self._key.public_key()
        builder = signer._builder(self._name, public).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        )
        if not plain:
            identifier = x509.SubjectKeyIdentifier.from_public_key(public)
            builder = builder.add_extension(_SIGNS, critical=True)
            builder = builder.add_extension(identifier, critical=False)
        self.pem = builder.sign(signer._key, hashes.SHA256()).public_bytes(Encoding.PEM)

    def _builder(
        self, subject: x509.Name, public_key: ec.EllipticCurvePublicKey
    ) -> x509.CertificateBuilder:
        now = dt.datetime.now(dt.UTC)
        builder = x509.CertificateBuilder(
            self._name, subject, public_key, x509.random_serial_number()
        )
        builder = builder.not_valid_before(now - dt.timedelta(hours=1)).not_valid_after(
            now + dt.timedelta(days=1)
        )
        if self._plain:
            return builder
        identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        return builder.add_extension(identifier, critical=False)

    def write(self, directory: Path) -> Path:
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / "ca.crt"
        path.write_bytes(self.pem)
        return path

    def issue(
        self,
        name: str,
        *,
        dns: str = "localhost",
        ip: str = "127.0.0.1",
        passphrase: str = "",
        group: str = "",
    ) -> Pair:
        """For both sides of TLS; Kubernetes takes it for the user `name`, in `group`."""
        key = ec.generate_private_key(ec.SECP256R1())
        parts = [x509.NameAttribute(NameOID.COMMON_NAME, name)]
        if group:
            parts.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, group))
        subject = x509.Name(parts)
        names: list[x509.GeneralName] = [x509.DNSName(dns)]
        if ip:
            names.append(x509.IPAddress(ipaddress.ip_address(ip)))
        certificate = (
            self._builder(subject, key.public_key())
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return Pair(certificate.public_bytes(Encoding.PEM), _pem(key, passphrase))


def write_rsa_pair(directory: Path, stem: str) -> tuple[Path, Path]:
    """Files with a new RSA key and its public half: what the API server signs service account
    tokens with."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    private, public = directory / f"{stem}.key", directory / f"{stem}.pub"
    private.touch(mode=0o600)
    private.write_bytes(_pem(key))
    public.write_bytes(
        key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )
    return private, public


@asynccontextmanager
async def tls_server(pair: Pair, *, client_ca: Ca | None = None) -> AsyncIterator[int]:
    """The port of an HTTPS server that answers with the common name of the client's certificate."""
    context = ssl.create_default_context(
        ssl.Purpose.CLIENT_AUTH, cadata=client_ca.pem.decode() if client_ca else None
    )
    if client_ca:
        context.verify_mode = ssl.CERT_REQUIRED
    with tempfile.NamedTemporaryFile() as file:
        file.write(pair.certificate + pair.key)
        file.flush()
        context.load_cert_chain(file.name)

    async def answer(request: web.Request) -> web.Response:
        peer = request.transport.get_extra_info("peercert") if request.transport else None
        return web.Response(
            text=dict(part[0] for part in peer["subject"])["commonName"] if peer else ""
        )

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
        await site.start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()
