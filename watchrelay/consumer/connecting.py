"""Starts the consumer of a `TopicReader`, and explains why it could not be started."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Mapping
from typing import Any, Final

from watchrelay.core.errors import SinkUnavailable
from watchrelay.core.text import short
from watchrelay.kafka.client import (
    AuthenticationFailedError,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    SaslAuthenticationFailed,
    UnsupportedSaslMechanismError,
)
from watchrelay.kafka.client import consumer as kafka_consumer
from watchrelay.kafka.client.consumer import connection_failure, is_host_and_port, stop_consumer
from watchrelay.kafka.client.failures import plain_words, servers_text
from watchrelay.kafka.client.fetched import Limits
from watchrelay.kafka.reading import COMMITTED

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 3.0
PROOF_AWAITED: Final = 30
"""Seconds, about, that a reader waits for a heartbeat before that is a warning: three intervals."""
_WARNINGS_MAX: Final = 20
_REFUSED = (AuthenticationFailedError, SaslAuthenticationFailed, UnsupportedSaslMechanismError)

# What aiokafka says of a broker or topic that is away goes to stderr where the program has no
# handlers: dozens of lines a second, while we report the same once. A program that does
# configure logging gets its lines as before. Source: logging HOWTO, "for a library".
logging.getLogger("aiokafka").addHandler(logging.NullHandler())
_library_log = logging.getLogger("watchrelay.consumer")


class Waiting:
    """What a reader waits for, about once a second: given to `report`; without one, a warning for
    each thing, until `forget`."""

    def __init__(self, report: Callable[[str], None] | None) -> None:
        self._report = report
        self._warned = set[str]()
        self._unproven = 0

    def missing(self, problem: str) -> None:
        """Something that has to be there is not."""
        if self._report is not None:
            self._report(problem)
        elif problem not in self._warned and len(self._warned) < _WARNINGS_MAX:
            self._warned.add(problem)
            _library_log.warning("waiting: %s", problem)

    def unproven(self, problem: str) -> None:
        """All is read and waits for its proof, which takes up to a heartbeat interval."""
        self._unproven += 1
        if self._report is not None:
            self._report(problem)
        elif self._unproven == PROOF_AWAITED:
            _library_log.warning("waiting: %s", problem)

    def forget(self) -> None:
        """It waits for nothing."""
        self._warned.clear()
        self._unproven = 0


def make_consumer(arguments: Mapping[str, Any], limits: Limits) -> Any:
    """A consumer that is not started: without a group or commits, blind to what was aborted.

    Args:
        limits: of topics that are no state topics."""
    return kafka_consumer.make_consumer(
        {**COMMITTED, **arguments},
        limits,
        isolation_level="read_committed",
        key_deserializer=None,
        value_deserializer=None,
    )


async def start_consumer(consumer: Any, arguments: Mapping[str, Any]) -> None:
    """Connect; a consumer that did not start is stopped. Raises: SinkUnavailable with the reason
    and what to check, for the author of the arguments."""
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            await consumer.start()
    except BaseException as error:
        await stop_consumer(consumer, within_s=STOP_TIMEOUT_S)
        if not isinstance(error, (KafkaError, OSError)):
            raise
        if isinstance(connection_failure(consumer), _REFUSED):
            cure = "check user, password and mechanism"
        elif isinstance(error, KafkaConnectionError):
            cure = "check the address, and that security_protocol is that of the listener"
        else:
            cure = (
                "most likely the broker is frozen, overloaded or still starting, or a firewall "
                "swallows what is sent; else check the address"
            )
        why = away(consumer, error)
        # which a broker may repeat in its complaint
        if password := arguments.get("sasl_plain_password"):
            why = why.replace(password, "<redacted>")
        raise SinkUnavailable(
            f"kafka at {servers_text(arguments)} is not usable: {why} ({cure})"
        ) from error


def away(consumer: Any, error: BaseException) -> str:
    """Why no broker could be used: what the newest connection failed of, if that tells more."""
    cause = connection_failure(consumer)
    if isinstance(cause, UnsupportedSaslMechanismError):
        return "the broker does not have this SASL mechanism"
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"the broker's certificate is not trusted: {cause.verify_message}"
    if isinstance(cause, (*_REFUSED, socket.gaierror)):
        return plain_words(cause)
    return "no answer in time" if isinstance(error, KafkaTimeoutError) else plain_words(error)


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
