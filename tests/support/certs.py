"""Names: certificates of a throw-away authority and keys, as PEM files."""

import datetime as dt
import ipaddress
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_LIFETIME = dt.timedelta(days=2)
_SKEW = dt.timedelta(hours=1)


def _name(common_name: str, organizations: Sequence[str] = ()) -> x509.Name:
    groups = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in organizations]
    return x509.Name([*groups, x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _pem(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


class Issued:
    """A certificate and its key: `certificate` and `key` are files, `keystore` holds key then
    certificate."""

    def __init__(self, stem: Path, certificate: bytes, key: bytes) -> None:
        self.certificate = stem.with_suffix(".crt")
        self.key = stem.with_suffix(".key")
        self.keystore = stem.with_suffix(".pem")
        self.certificate.write_bytes(certificate)
        for path, content in ((self.key, key), (self.keystore, key + certificate)):
            path.touch(mode=0o600)
            path.write_bytes(content)


class Authority:
    """A certificate authority for one test run; its own certificate is the file `certificate`."""

    def __init__(self, directory: Path, *, name: str = "watchrelay test authority") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._subject = _name(name)
        usage = x509.KeyUsage(
            digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False, key_encipherment=False,
            data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
        )  # fmt: skip
        own = (
            self._builder(self._subject, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.certificate = directory / "ca.crt"
        self.certificate.write_bytes(own.public_bytes(Encoding.PEM))

    def _builder(
        self, subject: x509.Name, public_key: ec.EllipticCurvePublicKey
    ) -> x509.CertificateBuilder:
        now = dt.datetime.now(dt.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._subject)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _SKEW)
            .not_valid_after(now + _LIFETIME)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
            )
        )  # fmt: skip

    def issue(self, common_name: str, *, organizations: Sequence[str] = ()) -> Issued:
        """A certificate for both sides of TLS, valid for localhost and 127.0.0.1."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        certificate = (
            self._builder(_name(common_name, organizations), key.public_key())
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        stem = self._directory / common_name.replace(":", "-")
        return Issued(stem, certificate.public_bytes(Encoding.PEM), _pem(key))


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
