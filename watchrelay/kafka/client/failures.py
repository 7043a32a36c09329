"""Why Kafka cannot be used, as one line for an operator: the reason, and what to change."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from aiokafka.conn import collect_hosts
from aiokafka.errors import (
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    NodeNotReadyError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)

from watchrelay.core import clock
from watchrelay.core.errors import SinkForbidden, SinkMisconfigured, SinkUnavailable
from watchrelay.core.timestamps import rfc3339
from watchrelay.kafka.client.client_log import without_secrets
from watchrelay.kafka.client.connection import BROKER, KafkaConnection, error_text
from watchrelay.kafka.client.error_codes import CURES, cure_of

_UNCONNECTED = (
    KafkaConnectionError,
    KafkaTimeoutError,
    NodeNotReadyError,
    OSError,
    UnknownTopicOrPartitionError,
)
"""Errors that a failed connection explains; without one, no broker can be asked for the topic."""

_UNTRUSTED = (
    "the broker's certificate is not trusted: set kafka.security.caFile to the CA that signed it"
)
_REFUSED = "the broker's certificate is refused: renew it, or correct kafka.security.caFile"
_OTHER_NAMES = (
    "the certificate is for other names: correct kafka.bootstrapServers or set "
    "kafka.security.checkHostname"
)
_NO_CERTIFICATE = "the broker wants a client certificate: set kafka.security.certFile and keyFile"
_UNKNOWN_AUTHORITY = (
    "the broker does not know the authority of the client certificate in kafka.security.certFile"
)
_SIGNED = (
    "the broker refused the token: check it under kafka.security, and this machine's clock, which "
    "shows {now}: by it tokens are signed, and their time is judged"
)
_OUTDATED = (
    "the broker's certificate is not valid at {now}: renew it, unless that time is wrong: then "
    "set this machine's clock"
)
_CURES = (
    ("self-signed certificate", _UNTRUSTED),
    ("unable to get local issuer", _UNTRUSTED),
    ("certificate is not valid for", _OTHER_NAMES),
    ("hostname mismatch", _OTHER_NAMES),
    ("certificate has expired", _OUTDATED),
    ("certificate is not yet valid", _OUTDATED),
    ("certificate verify failed", _REFUSED),
    ("wrong version number", "the port does not speak TLS: check kafka.security.protocol"),
    ("saslhandshakerequest cannot be used", CURES[34]),
    (
        "cannot be used if the api version is unknown",
        "the brokers do not offer this request: update them, or use brokers that do",
    ),
    ("certificate required", _NO_CERTIFICATE),
    ("alert bad certificate", _NO_CERTIFICATE),
    ("alert certificate unknown", _UNKNOWN_AUTHORITY),
    ("alert unknown ca", _UNKNOWN_AUTHORITY),
)
"""Parts of reasons that only a change of the configuration cures."""
_CREDENTIALS_REFUSED: Final = 58
_MISCONFIGURED: Final = frozenset((33, 34, _CREDENTIALS_REFUSED))
"""Likewise error codes."""
_CODE: Final = re.compile(r"\[error (-?\d+)\]")
_BY_TOKEN: Final = ("OAUTHBEARER", "AWS_MSK_IAM")
_RIGHTS = (
    # of a producer without any right to write, though it names the cluster (KIP-679)
    ("clusterauthorizationfailed", CURES[31]),
    ("not authorized to read from topic", "grant READ on it or its prefix"),
)
"""Parts of reasons that only a granted right cures."""
_FORBIDDEN: Final = frozenset((29, 30, 31, 53))
"""Likewise error codes."""
_AWAY = (
    ("nodename nor servname", "no such host: check kafka.bootstrapServers"),
    ("name or service not known", "no such host: check kafka.bootstrapServers"),
)
"""Parts of reasons that may cure themselves: names appear in DNS with their pods."""


_ADVERTISED = (
    "does it run? If it does, correct advertised.listeners of the brokers, which must name "
    "addresses that can be resolved and reached from here, or use the port of another listener"
)


def servers_text(arguments: Mapping[str, Any]) -> str:
    """The bootstrap servers of a client's arguments, for people."""
    servers = arguments.get("bootstrap_servers", "")
    return servers if isinstance(servers, str) else ",".join(servers)


SILENCE: Final = (
    "most likely the broker is frozen, overloaded or still starting, or a firewall or proxy "
    "swallows what is sent; "
    "else check kafka.bootstrapServers and kafka.security.protocol"
)
"""Possible causes of a silence, the likely first. A port of TLS that is not spoken to so, and the
reverse, hangs up in most cases."""


def plain_words(error: BaseException) -> str:
    """An error of client or network for people: no class names, no Python values."""
    if isinstance(error, KafkaConnectionError):
        return "no broker answers"  # what it says itself is a list of tuples
    if isinstance(error, TimeoutError) and not str(error):
        return "no answer in time"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, KafkaError) and not error.args:
        return " ".join(str(getattr(error, "description", "") or type(error).__name__).split())
    # its own text puts a number and a class name before it
    text = error.args[0] if isinstance(error, KafkaError) else error
    return " ".join(str(text).split()) or type(error).__name__


def unreadable(error: BaseException) -> str:
    """Why Kafka does not let us read, for people."""
    if isinstance(error, TopicAuthorizationFailedError):
        names = error.args[0] if error.args else ""
        topics = names if isinstance(names, str) else ", ".join(sorted(map(str, names)))
        return f"topic {topics} may not be read by this user: grant READ on it or its prefix"
    cure = cure_of(error)
    return plain_words(error) + (f" ({cure})" if cure else "")


def unreachable(
    connection: KafkaConnection, error: Exception, failure: BaseException | None = None
) -> SinkUnavailable:
    """The error for an operator: the brokers, the reason, and the cure.

    Args:
        failure: why the client's newest connection failed (`connection_failure`), which explains an
            error that says only that there is none.

    Returns: SinkMisconfigured where only a change of the configuration helps, SinkForbidden where a
    right is missing, else SinkUnavailable.
    """
    if isinstance(error, TimeoutError) and error.errno is None and str(error):
        # silence: an earlier failure of a connection does not explain it
        return SinkUnavailable(
            f"kafka at {connection.servers} stopped answering: {error} ({SILENCE})", cure=SILENCE
        )
    why: BaseException = error
    if failure is not None and isinstance(error, _UNCONNECTED):
        why = failure
    reason, advertised = _reason(why), advertised_only(connection, why)
    kind, cure = _judged(connection, reason.lower())
    if advertised and kind is SinkUnavailable:
        cure = _ADVERTISED
    elif not cure and "connect call failed" in reason.lower():
        reason = "no broker answers: Connect call failed"
        cure = "nothing listens there: does the broker run, and is kafka.bootstrapServers right?"
    where = f"kafka at {connection.servers} is not usable"
    if advertised:
        where = f"broker {advertised}, advertised by kafka at {connection.servers}, is not usable"
    return kind(f"{where}: {reason}" + (f" ({cure})" if cure else ""), cure=cure)


def advertised_only(connection: KafkaConnection, error: BaseException) -> str:
    """The broker whose connection failed, if the cluster gave its address; "" for a bootstrap
    server, and where it is not known."""
    broker = getattr(error, BROKER, "")
    bootstrap = {f"{host}:{port}" for host, port, _ in collect_hosts(connection.bootstrap_servers)}
    return "" if broker in bootstrap else broker


def _reason(error: BaseException) -> str:
    """The error as one line that shows no secret."""
    # a connection that is closed during a request has the reason as its cause
    why = error.__cause__ if isinstance(error.__cause__, OSError) else error
    return without_secrets(error_text(why))


def _judged(connection: KafkaConnection, reason: str) -> tuple[type[SinkUnavailable], str]:
    """The kind of the error, and the cure, "" if none is known."""
    found = _CODE.search(reason)
    code = int(found[1]) if found else 0
    known = CURES.get(code, "")
    if cure := _cure(_CURES, reason) or (known if code in _MISCONFIGURED else ""):
        if code == _CREDENTIALS_REFUSED and connection.mechanism in _BY_TOKEN:
            cure = _SIGNED
        return SinkMisconfigured, cure.replace("{now}", rfc3339(clock.wall_ms()))
    if cure := _cure(_RIGHTS, reason) or (known if code in _FORBIDDEN else ""):
        return SinkForbidden, cure
    return SinkUnavailable, known or _cure(_AWAY, reason) or _cure_of_hanging_up(connection, reason)


def _cure(cures: tuple[tuple[str, str], ...], reason: str) -> str:
    return next((cure for sign, cure in cures if sign in reason), "")


_OR_FULL: Final = "; or the broker is at its limit of connections, max.connections.per.ip"


def _cure_of_hanging_up(connection: KafkaConnection, reason: str) -> str:
    """A broker that is silent, or closes the connection, gives no reason; what is likely depends on
    the protocol."""
    if reason.endswith("no answer in time"):
        return SILENCE
    if not reason.endswith(("closed", "reset by peer")):
        return ""
    if connection.protocol in ("PLAINTEXT", "SASL_PLAINTEXT"):
        return f"does this port speak TLS, or want a user? check kafka.security.protocol{_OR_FULL}"
    if not connection.cert_file:
        return (
            "the broker hung up: the port may not speak TLS, or want a client certificate, "
            "kafka.security.certFile, "
            f"or a user, protocol SASL_SSL{_OR_FULL}"
        )
    return (
        "the broker hung up: it may not know the authority of the client certificate in "
        f"kafka.security.certFile{_OR_FULL}"
    )
