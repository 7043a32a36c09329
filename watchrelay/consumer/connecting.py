"""Starts consumers, and explains why one could not be started."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Mapping
from typing import Any

from watchrelay.core.errors import SinkUnavailable
from watchrelay.core.text import short
from watchrelay.kafka.client import (
    AuthenticationFailedError,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    SaslAuthenticationFailed,
    TopicAuthorizationFailedError,
    UnsupportedSaslMechanismError,
)
from watchrelay.kafka.client import consumer as kafka_consumer
from watchrelay.kafka.client.consumer import connection_failure, is_host_and_port, stop_consumer
from watchrelay.kafka.client.failures import SILENCE, plain_words, servers_text

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 3.0
_FETCH_BYTES = 4 * 1024 * 1024
_REFUSED = (AuthenticationFailedError, SaslAuthenticationFailed, UnsupportedSaslMechanismError)

# What aiokafka says of a broker or topic that is away goes to stderr where the program has no
# handlers: dozens of lines a second, while we report the same once. A program that does
# configure logging gets its lines as before. Source: logging HOWTO, "for a library".
logging.getLogger("aiokafka").addHandler(logging.NullHandler())


def make_consumer(arguments: Mapping[str, Any]) -> Any:
    """A consumer that is not started: without a group, without commits, blind to what was
    aborted."""
    return kafka_consumer.make_consumer(
        {"max_partition_fetch_bytes": _FETCH_BYTES, **arguments},
        isolation_level="read_committed",
        key_deserializer=None,
        value_deserializer=None,
    )


async def start_consumer(
    consumer: Any, arguments: Mapping[str, Any], *, check: Callable[[BaseException], str]
) -> None:
    """Connect; a consumer that did not start is stopped. Raises: SinkUnavailable with the reason
    and the advice of `check`."""
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            await consumer.start()
    except BaseException as error:
        await stop_consumer(consumer, within_s=STOP_TIMEOUT_S)
        if not isinstance(error, (KafkaError, OSError)):
            raise
        what = (
            "check user, password and mechanism"
            if isinstance(connection_failure(consumer), _REFUSED)
            else check(error)
        )
        why = away(consumer, error)
        # which a broker may repeat in its complaint
        if password := arguments.get("sasl_plain_password"):
            why = why.replace(password, "<redacted>")
        raise SinkUnavailable(
            f"kafka at {servers_text(arguments)} is not usable: {why} ({what})"
        ) from (connection_failure(consumer) or error)


def away(consumer: Any, error: BaseException) -> str:
    """Why no broker could be used, for people: what the newest connection failed of, where that
    says more than `error`."""
    cause = connection_failure(consumer)
    if isinstance(cause, UnsupportedSaslMechanismError):
        return "the broker does not have this SASL mechanism"
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"the broker's certificate is not trusted: {cause.verify_message}"
    if isinstance(cause, (*_REFUSED, socket.gaierror)):
        return plain_words(cause)
    return "no answer in time" if isinstance(error, KafkaTimeoutError) else plain_words(error)


def unreadable(error: BaseException) -> str:
    """Why Kafka does not let us read, for people."""
    if isinstance(error, TopicAuthorizationFailedError):
        names = error.args[0] if error.args else ""
        topics = names if isinstance(names, str) else ", ".join(sorted(map(str, names)))
        return f"topic {topics} may not be read: grant READ on it"
    return plain_words(error)


def silent(arguments: Mapping[str, Any], error: TimeoutError) -> SinkUnavailable:
    """The error for brokers that send nothing more. Raise it without a cause: an earlier failure of
    a connection does not explain it."""
    return SinkUnavailable(
        f"kafka at {servers_text(arguments)} stopped answering: {plain_words(error)} ({SILENCE})"
    )


def check_library(error: BaseException) -> str:
    """What to check after a failed start, for the author of the arguments."""
    if isinstance(error, KafkaConnectionError):
        return "check the address, and that security_protocol is that of the listener"
    return (
        "most likely the broker is frozen, overloaded or still starting, or a firewall "
        "swallows what is sent; else check the address"
    )


def checked_servers(arguments: Mapping[str, Any]) -> None:
    """Raises: ValueError for bootstrap servers that can never be right."""
    servers = arguments.get("bootstrap_servers")
    if not servers:
        raise ValueError(
            "name at least one bootstrap server: HOST:PORT, several, or bootstrap_servers among "
            "the arguments"
        )
    for server in [servers] if isinstance(servers, str) else servers:
        if not is_host_and_port(server):
            raise ValueError(f"bootstrap server {short(repr(server))} is not HOST:PORT")
