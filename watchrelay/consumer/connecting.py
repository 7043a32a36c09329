"""Starts consumers, and explains why one could not be started."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Mapping
from types import FunctionType, MethodType
from typing import Any

from aiokafka import AIOKafkaConsumer
from aiokafka.conn import collect_hosts
from aiokafka.errors import (
    AuthenticationFailedError,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    SaslAuthenticationFailed,
    TopicAuthorizationFailedError,
    UnsupportedSaslMechanismError,
)

from watchrelay.core.errors import SinkUnavailable
from watchrelay.core.text import short
from watchrelay.kafka.client.batches import guard
from watchrelay.kafka.client.patches import SILENCE, plain_words, servers_text, stop_consumer, tame

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 3.0
SILENT_AFTER_S = 60.0
"""Longer than a broker of a healthy cluster is away, or than the client takes to find the next one.
"""
_FETCH_BYTES = 4 * 1024 * 1024
_REFUSED = (AuthenticationFailedError, SaslAuthenticationFailed, UnsupportedSaslMechanismError)

# What aiokafka says of a broker or topic that is away goes to stderr where the program has no
# handlers: dozens of lines a second, while we report the same once. A program that does
# configure logging gets its lines as before. Source: logging HOWTO, "for a library".
logging.getLogger("aiokafka").addHandler(logging.NullHandler())


def make_consumer(arguments: Mapping[str, Any]) -> Any:
    """A consumer of aiokafka's that is not started: without a group, without commits, blind to what
    was aborted."""
    ours = {
        "group_id": None,
        "enable_auto_commit": False,
        "auto_offset_reset": "earliest",
        "isolation_level": "read_committed",
        "key_deserializer": None,
        "value_deserializer": None,
    }
    consumer = AIOKafkaConsumer(**{"max_partition_fetch_bytes": _FETCH_BYTES, **arguments, **ours})
    _keep_failures(consumer._client)
    tame(consumer._client)
    guard(consumer)
    return consumer


def _keep_failures(client: Any) -> None:
    """Keep in `client.failure` why the newest connection was not made, None where it was.

    Source: aiokafka 0.14 logs the reason and drops it; wrong credentials end as "Unable to
    bootstrap", like a broker that is away. There is no setting, so both methods that connect run
    with a `create_conn` that remembers, in place of the global one.
    """
    client.failure = None
    create = type(client).bootstrap.__globals__["create_conn"]

    async def remembered(*where: Any, **how: Any) -> Any:
        try:
            connection = await create(*where, **how)
        except (OSError, KafkaError) as error:  # a timeout is an OSError
            client.failure = error
            raise
        client.failure = None
        return connection

    for name in ("bootstrap", "_get_conn"):
        plain = getattr(type(client), name)
        changed = FunctionType(
            plain.__code__, {**plain.__globals__, "create_conn": remembered}, name
        )
        changed.__kwdefaults__ = plain.__kwdefaults__
        setattr(client, name, MethodType(changed, client))


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
            if isinstance(consumer._client.failure, _REFUSED)
            else check(error)
        )
        why = away(consumer, error)
        # which a broker may repeat in its complaint
        if password := arguments.get("sasl_plain_password"):
            why = why.replace(password, "<redacted>")
        raise SinkUnavailable(
            f"kafka at {servers_text(arguments)} is not usable: {why} ({what})"
        ) from error


def away(consumer: Any, error: BaseException) -> str:
    """Why no broker could be used, for people: what the newest connection failed of, where that is
    more precise than `error`."""
    cause = consumer._client.failure
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


class SilenceTimeout:
    """How long nothing may come where something is still to come: aiokafka retries without end, and
    hardly logs it.

    Create it inside the event loop, where reading begins.
    """

    def __init__(
        self, arguments: Mapping[str, Any], *, silent_after_s: float = SILENT_AFTER_S
    ) -> None:
        self._servers, self._silent_after_s = servers_text(arguments), silent_after_s
        self._now_s = asyncio.get_running_loop().time
        self._newest_s = self._now_s()

    def received(self, something: object, topic: str) -> None:
        """After each look at `topic` and the others. Raises: SinkUnavailable when nothing came for
        too long."""
        if something:
            self._newest_s = self._now_s()
        elif self._now_s() - self._newest_s > self._silent_after_s:
            detail = (
                f"no records of {topic} for {self._silent_after_s:g} s, and its end is not reached"
            )
            raise SinkUnavailable(
                f"kafka at {self._servers} stopped answering: {detail} ({SILENCE})"
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
        try:
            good = isinstance(server, str) and all(
                host and 0 < port < 65536 for host, port, _ in collect_hosts(server)
            )
        except ValueError:
            good = False
        if not good:
            raise ValueError(f"bootstrap server {short(repr(server))} is not HOST:PORT")
