"""The patches that every client of aiokafka 0.14 gets before its start, each with its defect.

None of them has a setting in aiokafka. Each has a test in `test_patches.py`, `test_ends.py` or
`test_batches.py` that fails when aiokafka no longer has the defect: then delete the patch. Where
Python has the defect, it is `test_tls_ends.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Coroutine
from functools import partial
from types import FunctionType, MethodType
from typing import Any, Final

from aiohappyeyeballs import start_connection
from aiokafka.conn import AIOKafkaConnection
from aiokafka.consumer.fetcher import Fetcher
from aiokafka.errors import KafkaConnectionError, KafkaError
from aiokafka.protocol.metadata import MetadataRequest

from watchrelay.kafka.client.batches import FetchedBatches
from watchrelay.kafka.client.connection import name_broker
from watchrelay.kafka.client.fetched import (
    FetchedPart,
    FetchedRecords,
    Limits,
    Share,
    in_pieces,
)
from watchrelay.kafka.client.leader_epochs import LeaderEpochs
from watchrelay.kafka.client.metadata import ANSWER_S

_log = logging.getLogger(__name__)

_CLOSE_S: Final = 10.0
PAUSE_S: Final = 0.1
"""Source: `retry.backoff.ms` of the Java client, which spaces metadata requests the same way."""
NEXT_ADDRESS_S: Final = 0.25
"""Source: RFC 8305, section 5."""


def patch_client(client: Any, *, pause_s: float = PAUSE_S) -> None:
    """Apply all patches for the network client.

    Args:
        client: an AIOKafkaClient that is not started.
        pause_s: seconds between two metadata requests.
    """
    never_create_topics(client)
    space_metadata_requests(client, pause_s=pause_s)
    keep_connection_failures(client)
    pass_over_silent_servers(client)
    close_connection_of_cancelled_bootstrap(client)
    close_dropped_connections(client)


def patch_consumer(consumer: Any, limits: Limits) -> None:
    """Apply all patches for an AIOKafkaConsumer that is not started."""
    patch_client(consumer._client)
    read_batches_within_bounds(consumer, limits)


def never_create_topics(client: Any) -> None:
    """Metadata requests do not create the topics they ask about.

    Defect: aiokafka 0.14 leaves `allow_auto_topic_creation` at true, as brokers do with
    `auto.create.topics.enable`. A client that asks about a deleted topic recreates it with the
    cluster's defaults for partitions, retention and compaction.
    """
    request = partial(MetadataRequest, allow_auto_topic_creation=False)
    client._metadata_update = _rebuilt(client, "_metadata_update", MetadataRequest=request)


def space_metadata_requests(client: Any, *, pause_s: float = PAUSE_S) -> None:
    """At least `pause_s` pass between the end of one metadata request and the next.

    Defect: while a partition has no leader, or its topic was deleted, producer and fetcher of
    aiokafka 0.14 request metadata again as soon as they have it: more than a thousand requests a
    second. https://github.com/aio-libs/aiokafka/issues/1155
    """
    update = client._metadata_update
    loop = asyncio.get_running_loop()
    ended_s = loop.time() - pause_s

    async def spaced(cluster: Any, topics: Any) -> Any:
        nonlocal ended_s
        await asyncio.sleep(max(0.0, ended_s + pause_s - loop.time()))
        try:
            return await update(cluster, topics)
        finally:
            ended_s = loop.time()

    client._metadata_update = spaced


def make_connection(host: str, port: int, **arguments: Any) -> AIOKafkaConnection:
    """A connection, not connected yet, that tries the next address of `host` too when one has not
    answered for `NEXT_ADDRESS_S`. Its `transport` is that which is connected, its `session_s` how
    long after its SASL login the broker accepts requests; 0: without end.

    Defects: aiokafka 0.14 waits its whole timeout for the first address, each time, though another
    would answer. (asyncio has a setting for this, uvloop, which users of the reader may run, none.)
    It drops the lifetime of a session (`connections.max.reauth.ms`), and never logs in again
    within it (KIP-368).
    """
    connection = AIOKafkaConnection.__new__(AIOKafkaConnection)
    _rebuilt(connection, "__init__", get_running_loop=_AddressesInTurn)(host, port, **arguments)
    connect, send = connection.connect, connection.send
    connection.session_s, connection.transport = 0.0, None

    async def connected() -> Any:
        connection.send = sent
        try:
            opened = await connect()
        except (OSError, KafkaError) as error:
            name_broker(error, host, port)
            raise
        finally:
            connection.send = send
        connection.transport = opened[1].transport
        return opened

    async def sent(*request: Any, **named: Any) -> Any:
        answer = await send(*request, **named)
        connection.session_s = max(0, getattr(answer, "session_lifetime_ms", 0)) / 1000
        return answer

    connection.connect = connected
    return connection


class _AddressesInTurn:
    """The running loop, for a connection of `make_connection`."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    async def create_connection(self, factory: Any, host: str, port: int, *, ssl: Any) -> Any:
        addresses = await self._loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        plain = await start_connection(addresses, happy_eyeballs_delay=NEXT_ADDRESS_S)
        name = host if ssl else None
        return await self._loop.create_connection(
            factory, sock=plain, ssl=ssl, server_hostname=name
        )


def keep_connection_failures(client: Any) -> None:
    """`client.failure` is why the newest connection attempt failed, None after a success;
    `client.newest` is the connection that was opened last; `client.create_conn` opens one, and
    `client.create_first` one to a bootstrap server, whose first request counts as well.

    Defect: aiokafka 0.14 logs the reason and drops it. Wrong credentials end as "Unable to
    bootstrap", as does a broker that is down.
    """
    client.failure = client.newest = None

    async def create_conn(*args: Any, **named: Any) -> Any:
        connection = make_connection(*args, **named)
        try:
            await connection.connect()
        except (OSError, KafkaError) as error:  # a TimeoutError is an OSError
            client.failure = error
            raise
        client.failure, client.newest = None, connection
        return connection

    async def create_first(*args: Any, **named: Any) -> Any:
        connection = await client.create_conn(*args, **named)
        _keep_failed_request(client, connection)
        return connection

    client.create_conn, client.create_first = create_conn, create_first
    client.bootstrap = _rebuilt(client, "bootstrap", create_conn=create_first)
    client._get_conn = _rebuilt(client, "_get_conn", create_conn=create_conn)


def _keep_failed_request(client: Any, connection: Any) -> None:
    """`client.failure` is why the first request on `connection` failed, if it does: the broker
    hangs up on a client without TLS, or without a user."""
    send = connection.send

    async def sent(*args: Any, **named: Any) -> Any:
        connection.send = send
        try:
            return await send(*args, **named)
        except (OSError, KafkaError) as error:
            client.failure = error
            raise

    connection.send = sent


def pass_over_silent_servers(client: Any) -> None:
    """A start tries the next bootstrap server when one leaves a request unanswered for `ANSWER_S`;
    where no server is quicker, it waits for the whole request timeout.

    Defect: aiokafka 0.14 always waits the whole request timeout at a server that accepts
    connections and answers nothing, though others would answer.
    """
    bootstrap = client.bootstrap

    async def create_conn(*args: Any, **named: Any) -> Any:
        named["request_timeout_ms"] = int(ANSWER_S * 1000)
        return await client.create_first(*args, **named)

    quickly = _rebuilt(client, "bootstrap", create_conn=create_conn)

    async def bootstrapped() -> None:
        try:
            await quickly()
        except KafkaConnectionError:
            if client.failure is not None and not isinstance(client.failure, TimeoutError):
                raise  # more time does not help
            await bootstrap()

    client.bootstrap = bootstrapped


def connection_failure(owner: Any) -> BaseException | None:
    """Why the newest connection attempt of a consumer or an admin client failed; None after a
    success."""
    failure: BaseException | None = owner._client.failure
    return failure


def close_connection_of_cancelled_bootstrap(client: Any) -> None:
    """A start that is cancelled, or times out, leaves no connection open.

    Defect: in `AIOKafkaClient.bootstrap()` of aiokafka 0.14 the connection is a local variable
    until the first metadata response; a cancellation passes the `except` that would close it.
    https://github.com/aio-libs/aiokafka/issues/715
    """
    bootstrap = client.bootstrap

    async def bootstrapped() -> None:
        try:
            await bootstrap()
        except asyncio.CancelledError:
            if client.newest is not None:
                client.newest.close()
            await asyncio.sleep(0)  # a transport closes its socket in the next turn of the loop
            raise

    client.bootstrap = bootstrapped


def close_dropped_connections(client: Any) -> None:
    """The client drops no connection that is still open.

    Defects of aiokafka 0.14: `_get_conn()` drops a connection that has read its end and opens
    another; if the task that reads the old one had no turn yet, the socket stays open. `close()`
    closes the connections that exist: one that is being opened is left, and if the metadata task
    has failed, all are. A connection to a broker that accepts no data keeps its socket. It awaits
    the metadata task that it has cancelled, and suppresses CancelledError, also the caller's: a
    process that got SIGTERM goes on.
    """
    take, close = client._get_conn, client.close
    closed = False

    async def get_conn(node_id: Any, **named: Any) -> Any:
        for place, known in list(client._conns.items()):
            if place[0] == node_id and not known.connected():
                known.close()
        connection = await take(node_id, **named)
        if closed:
            close_all()
            raise KafkaConnectionError("the client is closed")
        return connection

    def close_all() -> None:
        for connection in client._conns.values():
            connection.close()

    async def close_client() -> None:
        nonlocal closed
        closed = True
        try:
            await end_in_own_task(close, within_s=_CLOSE_S, what="client")
        finally:
            close_all()
            for connection in client._conns.values():
                if (transport := getattr(connection, "transport", None)) is not None:
                    abort(transport)

    client._get_conn, client.close = get_conn, close_client


def abort(transport: asyncio.Transport) -> None:
    """End a connection of aiokafka's at once: TLS would wait for the broker to say good-bye.

    Defect: the TLS transport of Python 3.11.2 (Debian 12) raises AttributeError where the broker
    has ended the connection and aiokafka has closed it.
    """
    with contextlib.suppress(AttributeError):
        transport.abort()


def read_batches_within_bounds(consumer: Any, limits: Limits) -> None:
    """`consumer` reads fetched batches through `batches.FetchedBatches` and `fetched`;
    `consumer.share` is the share of what is handed on at once, `consumer.leader_epochs` those of
    what was unpacked.

    Defect: aiokafka 0.14 decompresses whatever it gets without a bound, and stops at a record that
    it cannot parse: it fetches the same record forever.
    """
    share, epochs = Share(), LeaderEpochs()
    consumer.share, consumer.leader_epochs = share, epochs

    def made(*arguments: Any, **named: Any) -> Fetcher:
        fetcher = Fetcher(*arguments, **named)
        fetcher._proc_fetch_request = _rebuilt(
            fetcher,
            "_proc_fetch_request",
            MemoryRecords=FetchedBatches,
            PartitionRecords=partial(FetchedRecords, limits=limits, epochs=epochs),
            FetchResult=partial(FetchedPart, share=share),
        )
        for name in ("next_record", "fetched_records"):
            setattr(fetcher, name, _rebuilt(fetcher, name, FetchResult=FetchedPart))
        fetcher.fetched_records = in_pieces(fetcher.fetched_records, share)
        return fetcher

    consumer.start = _rebuilt(consumer, "start", Fetcher=made)


async def end_in_own_task(
    step: Callable[[], Coroutine[Any, Any, None]], *, within_s: float, what: str
) -> None:
    """Run one step of closing a client in a task of its own.

    Defect: `Fetcher.close()` and `Sender.close()` of aiokafka 0.14 await tasks that they have just
    cancelled. If one ends cancelled, a CancelledError is raised without a request; if one ends
    normally, it swallows the caller's. https://github.com/aio-libs/aiokafka/issues/647
    """
    try:
        async with asyncio.timeout(within_s), asyncio.TaskGroup() as group:
            group.create_task(step(), name=f"end {what}")
    except* Exception as errors:  # noqa: BLE001 - the client was in an arbitrary state
        _log.debug(
            "kafka client did not close cleanly",
            extra={"client": what, "error": repr(errors.exceptions[0])},
        )


def _rebuilt(owner: Any, name: str, **replaced: object) -> MethodType:
    """The method `name` of `owner`'s class with some of its globals replaced."""
    plain = getattr(type(owner), name)
    function = FunctionType(
        plain.__code__,
        {**plain.__globals__, **replaced},
        name,
        plain.__defaults__,
        plain.__closure__,
    )
    function.__kwdefaults__ = plain.__kwdefaults__
    return MethodType(function, owner)
