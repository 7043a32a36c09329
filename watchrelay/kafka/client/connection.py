"""The way to Kafka: settings into the client library's arguments, secrets read anew each time.

Room: sink. In: plain settings, certificate, password and token files. Out: keyword arguments for
aiokafka's clients, and plain words for why a broker did not let us in.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from aiokafka import AIOKafkaConsumer
from aiokafka.errors import KafkaConnectionError, TopicAuthorizationFailedError

from watchrelay.core.errors import SinkForbidden, SinkMisconfigured, SinkUnavailable
from watchrelay.kafka.client.batches import guard
from watchrelay.kafka.client.client_log import hide, listening, without_secrets
from watchrelay.kafka.client.patches import SILENCE, tame
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
_CLASS = re.compile(r"<class '(?:\w+\.)*(\w+)'>")

_NO_WRITE = "this user may write no topic at all: grant WRITE on the topic prefix"
"""What a producer without any right to write is refused with, though it names the cluster. Source:
KIP-679."""
_CURES = (
    (
        "self-signed certificate",
        (
            "the broker's certificate is not trusted: set kafka.security.caFile to the CA that "
            "signed it"
        ),
    ),
    (
        "unable to get local issuer",
        (
            "the broker's certificate is not trusted: set kafka.security.caFile to the CA that "
            "signed it"
        ),
    ),
    (
        "certificate is not valid for",
        (
            "the certificate is for other names: correct kafka.bootstrapServers or set "
            "kafka.security.checkHostname"
        ),
    ),
    (
        "hostname mismatch",
        (
            "the certificate is for other names: correct kafka.bootstrapServers or set "
            "kafka.security.checkHostname"
        ),
    ),
    ("wrong version number", "the port does not speak TLS: check kafka.security.protocol"),
    ("[error 34]", "this port wants no user: check kafka.security.protocol"),
    (
        "saslhandshakerequest cannot be used",
        "this port wants no user: check kafka.security.protocol",
    ),
    (
        "certificate required",
        "the broker wants a client certificate: set kafka.security.certFile and keyFile",
    ),
    (
        "[error 58]",
        (
            "the broker refused the credentials: check the user and the password or token under "
            "kafka.security"
        ),
    ),
    ("[error 33]", "the broker does not offer this mechanism: check kafka.security.mechanism"),
)
"""Signs of what only a person can mend."""
_RIGHTS = (
    ("[error 31]", _NO_WRITE),
    ("clusterauthorizationfailed", _NO_WRITE),
    ("[error 29]", "this user may not: grant READ and WRITE on it or its prefix"),
    ("not authorized to read from topic", "grant READ on it or its prefix"),
)
"""Signs of a right that only a person can grant."""
_AWAY = (
    ("nodename nor servname", "no such host: check kafka.bootstrapServers"),
    ("name or service not known", "no such host: check kafka.bootstrapServers"),
)
"""Signs of what may come back by itself: names appear in DNS with their pods."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaConnection:
    """Where Kafka is and who we are to it.

    Shape: of `username`/`username_file` and `password`/`password_file` the file wins; files are
    read at each `arguments()`, so that a rotated secret is used by the next client; `rotation`
    tells when it is time for one. What is not set is None or empty, as settings hold it.
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
        """The files that a client holds the content of for as long as it lives. A token file is not
        one: it is read at each connection."""
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
        """The brokers as one writes them on a command line."""
        return ",".join(self.bootstrap_servers)

    def arguments(self) -> dict[str, Any]:
        """Keyword arguments common to aiokafka's producer, consumer and admin client. Call it
        inside the event loop.

        Raises: SinkMisconfigured when a file cannot be read or does not hold what it should; the
        files may be mended meanwhile.
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
            # OpenSSL would read a pipe, or /dev/zero, for ever
            if file and Path(file).exists() and not Path(file).is_file():
                raise SinkMisconfigured(
                    f"{_WHERE}.{name} {file} cannot be used: it is no regular file; name one "
                    "that holds PEM"
                )
        try:
            context = ssl.create_default_context(cafile=self.ca_file or None)
        except (OSError, ssl.SSLError) as error:
            raise SinkMisconfigured(
                f"{_WHERE}.caFile {self.ca_file} cannot be used: {_plain(error)}; it must hold "
                "PEM certificates"
            ) from error
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
            except (OSError, ssl.SSLError) as error:
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
                    f"{_WHERE}.certFile {files} cannot be used: {_plain(error)}; {cure}"
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
                f"{_WHERE}.{name} {path} cannot be read: {_plain(error)}"
            ) from None


def unreachable(connection: KafkaConnection, error: Exception, said: str) -> SinkUnavailable:
    """The error for an operator: who did not answer, the reason that the client only logged, and
    what to do.

    Shape: `said` is the client's newest log line (`LogTail.reason`), "" when it said nothing.
    SinkMisconfigured when the sign is one of what only a person can mend, SinkForbidden when it is
    a right.
    """
    reason = _CLASS.sub(r"\1", without_secrets(said or _plain(error)))
    if reason.endswith(":"):
        reason += " no answer in time"
    message = f"kafka at {connection.servers} is not usable: {reason}"
    kind, cure = _judged(connection, reason.lower())
    if not cure and "connect call failed" in reason.lower():
        cure = "nothing listens there: does the broker run, and is kafka.bootstrapServers right?"
    return kind(message + (f" ({cure})" if cure else ""))


def _judged(connection: KafkaConnection, reason: str) -> tuple[type[SinkUnavailable], str]:
    """Whether a person must mend it, and how; "" where nothing is known."""
    if cure := _cure(_CURES, reason):
        return SinkMisconfigured, cure
    if cure := _cure(_RIGHTS, reason):
        return SinkForbidden, cure
    return SinkUnavailable, _cure(_AWAY, reason) or _cure_of_hanging_up(connection, reason)


@contextmanager
def reason_told(connection: KafkaConnection) -> Iterator[None]:
    """Around a client of the consumer: what keeps it out is told as of the relay's own clients,
    with the cure.

    The client says only in its log whether it was a password, a certificate or a port, and the
    consumer leaves that log to its users.
    Raises: SinkUnavailable, SinkMisconfigured, in place of a SinkUnavailable that no more is known
    of than that nobody answers.
    """
    with listening() as said:
        with suppress(SinkMisconfigured):
            connection.arguments()  # so that its secrets are known here
        try:
            yield
        except SinkUnavailable as error:
            cause = error.__cause__
            if isinstance(cause, TopicAuthorizationFailedError):
                topics = (
                    cause.args[0]
                    if cause.args and isinstance(cause.args[0], str)
                    else "of the streams"
                )
                raise SinkForbidden(
                    f"topic {topics} may not be read by this user: grant READ on it or its prefix"
                ) from error
            if (
                isinstance(cause, KafkaConnectionError | OSError)
                and said.reason
                and _judged(connection, said.reason.lower())[1]
            ):
                raise unreachable(connection, cause, said.reason) from error
            raise


def _cure(cures: tuple[tuple[str, str], ...], reason: str) -> str:
    return next((cure for sign, cure in cures if sign in reason), "")


def _cure_of_hanging_up(connection: KafkaConnection, reason: str) -> str:
    """A broker that says nothing, or closes the connection, gives no reason at all; what is likely
    depends on how we came."""
    if reason.endswith("no answer in time"):
        return SILENCE
    if not reason.endswith(("closed", "reset by peer")):
        return ""
    if connection.protocol in ("PLAINTEXT", "SASL_PLAINTEXT"):
        return "does this port speak TLS, or want a user? check kafka.security.protocol"
    if not connection.cert_file:
        return (
            "the broker hung up: the port may not speak TLS, or want a client certificate, "
            "kafka.security.certFile, "
            "or a user, protocol SASL_SSL"
        )
    return (
        "the broker hung up: it may not know the authority of the client certificate in "
        "kafka.security.certFile"
    )


def _plain(error: BaseException) -> str:
    if isinstance(error, TimeoutError) and not str(error):
        return "no answer in time"
    if isinstance(error, OSError) and not isinstance(error, ssl.SSLError) and error.strerror:
        return error.strerror
    return " ".join(str(error).split()) or type(error).__name__


def make_reader(connection: KafkaConnection, *, request_timeout_s: float, **more: object) -> Any:
    """A consumer of aiokafka's that is not started: without a group, without commits, and asking
    about a topic makes none.

    Shape: `more` as aiokafka takes it.
    """
    consumer = AIOKafkaConsumer(
        **connection.arguments(),
        group_id=None,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        request_timeout_ms=int(request_timeout_s * 1000),
        **more,
    )
    tame(consumer._client)
    guard(consumer)
    return consumer
