"""Connection settings as keyword arguments for aiokafka's clients."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from watchrelay.core.errors import SinkMisconfigured
from watchrelay.core.files import is_special
from watchrelay.kafka.client.client_log import hide
from watchrelay.kafka.client.secrets import Rotation
from watchrelay.kafka.client.tokens import (
    CommandTokens,
    FileTokens,
    MskTokens,
    TokenProvider,
    TokenSource,
    read_secret,
)

Protocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
Mechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "AWS_MSK_IAM"]

_WHERE = "kafka.security"


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaConnection:
    """Where Kafka is, and the credentials for it.

    Of `username`/`username_file` and `password`/`password_file` the file wins; files are
    read at each `arguments()`, so that the next client uses a rotated secret; `rotation` tells
    clients when to reconnect. What is not set is None or empty.
    `token_command` is an argument vector. `aws_region` is for AWS_MSK_IAM alone.
    """

    bootstrap_servers: tuple[str, ...]
    protocol: Protocol = "PLAINTEXT"
    mechanism: Mechanism | None = None
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    username_file: str | None = None
    password_file: str | None = None
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    key_password_file: str | None = None
    check_hostname: bool = True
    token_file: str | None = None
    token_command: tuple[str, ...] = field(default=(), repr=False)
    aws_region: str | None = None
    client_id: str = "watchrelay"
    rotation: Rotation = field(default_factory=Rotation, repr=False, compare=False)

    @property
    def secret_files(self) -> list[str]:
        """The files whose content a client keeps. A token file is not one: it is read at each
        connection."""
        tls = (
            (self.ca_file, self.cert_file, self.key_file, self.key_password_file)
            if self.protocol in ("SSL", "SASL_SSL")
            else ()
        )
        sasl = (
            (self.username_file, self.password_file)
            if self.protocol in ("SASL_PLAINTEXT", "SASL_SSL")
            else ()
        )
        return [file for file in (*tls, *sasl) if file]

    @property
    def servers(self) -> str:
        """The brokers, separated by commas."""
        return ",".join(self.bootstrap_servers)

    def arguments(self) -> dict[str, Any]:
        """Keyword arguments common to aiokafka's producer, consumer and admin client. Call it
        inside the event loop.

        Raises: SinkMisconfigured when a file cannot be read or has the wrong content; retry, it may
        have been corrected.
        """
        arguments: dict[str, Any] = {
            "bootstrap_servers": list(self.bootstrap_servers),
            "client_id": self.client_id,
            "security_protocol": self.protocol,
        }
        if self.protocol in ("SSL", "SASL_SSL"):
            arguments["ssl_context"] = self._tls()
        if self.protocol in ("SASL_PLAINTEXT", "SASL_SSL"):
            arguments |= self._sasl()
        return arguments

    def _tls(self) -> ssl.SSLContext:
        for name, file in (
            ("caFile", self.ca_file),
            ("certFile", self.cert_file),
            ("keyFile", self.key_file),
        ):
            # OpenSSL would never stop reading a pipe or /dev/zero
            if file and is_special(Path(file)):
                raise SinkMisconfigured(
                    f"{_WHERE}.{name} {file} cannot be used: it is no regular file; name one "
                    "that holds PEM"
                )
        try:
            context = ssl.create_default_context(cafile=self.ca_file or None)
        except (OSError, ValueError) as error:
            raise SinkMisconfigured(
                f"{_WHERE}.caFile {self.ca_file} cannot be used: {error_text(error)}; it must hold "
                "PEM certificates"
            ) from error
        # Python 3.13 made the strict rules of RFC 5280 its default; authorities made for Kafka as
        # its documentation does it fail them, and other clients accept those.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if self.ca_file:  # what an operator names is trusted, also if it is no root
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.check_hostname = self.check_hostname
        if self.cert_file:
            password = (
                self._secret("keyPasswordFile", self.key_password_file)
                if self.key_password_file
                else ""
            )
            try:
                # Given as a function: for an encrypted key without password OpenSSL would otherwise
                # ask on the terminal.
                context.load_cert_chain(self.cert_file, self.key_file, password=lambda: password)
            except (OSError, ValueError) as error:
                files = (
                    f"{self.cert_file} with keyFile {self.key_file}"
                    if self.key_file
                    else self.cert_file
                )
                cure = (
                    "they must be PEM, belong together, and keyPasswordFile must be right if "
                    "the key is encrypted"
                )
                raise SinkMisconfigured(
                    f"{_WHERE}.certFile {files} cannot be used: {error_text(error)}; {cure}"
                ) from error
        return context

    def _sasl(self) -> dict[str, Any]:
        if self.mechanism in ("OAUTHBEARER", "AWS_MSK_IAM"):
            return {
                "sasl_mechanism": "OAUTHBEARER",
                "sasl_oauth_token_provider": TokenProvider(self._tokens()),
            }
        username = (
            self._secret("usernameFile", self.username_file)
            if self.username_file
            else self.username
        )
        password = (
            self._secret("passwordFile", self.password_file)
            if self.password_file
            else self.password
        )
        if not self.mechanism or not username or not password:
            raise SinkMisconfigured(
                f"{_WHERE}.protocol {self.protocol} needs a mechanism, a user and a password"
            )
        hide(password)
        return {
            "sasl_mechanism": self.mechanism,
            "sasl_plain_username": username,
            "sasl_plain_password": password,
        }

    def _tokens(self) -> TokenSource:
        if self.mechanism == "AWS_MSK_IAM":
            if not self.aws_region:
                raise SinkMisconfigured(f"{_WHERE}.mechanism AWS_MSK_IAM needs {_WHERE}.awsRegion")
            return MskTokens(self.aws_region)
        if self.token_command:
            return CommandTokens(self.token_command)
        if self.token_file:
            return FileTokens(self.token_file)
        raise SinkMisconfigured(f"{_WHERE}.mechanism OAUTHBEARER needs tokenFile or tokenCommand")

    @staticmethod
    def _secret(name: str, path: str) -> str:
        try:
            return read_secret(path).rstrip("\r\n")
        except (OSError, ValueError) as error:
            # its error holds the content
            raise SinkMisconfigured(
                f"{_WHERE}.{name} {path} cannot be read: {error_text(error)}"
            ) from None


BROKER: Final = "watchrelay_broker"
"""The attribute of an error that names the broker to which a connection failed."""


def name_broker(error: BaseException, host: str, port: int) -> None:
    """Note in `error` the broker to which a connection failed."""
    setattr(error, BROKER, f"{host}:{port}")


def error_text(error: BaseException) -> str:
    """The error as one line, without class names."""
    if isinstance(error, TimeoutError) and not str(error):
        return "no answer in time"
    if isinstance(error, ConnectionError) and not str(error):
        return "connection closed"  # in the middle of a TLS handshake
    if isinstance(error, OSError) and not isinstance(error, ssl.SSLError) and error.strerror:
        return error.strerror
    return " ".join(str(error).split()) or type(error).__name__
