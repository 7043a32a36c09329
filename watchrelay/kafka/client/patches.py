"""What aiokafka's clients need so that they start, ask and end without harm: for every room that
has one.

Room: none, below them all. In: a consumer, producer or admin client of aiokafka 0.14 (pinned),
before its start or at its end.
Out: the same client; it makes no topics, pauses between metadata requests, and leaves no connection
when its start is given up or its end goes wrong.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from types import FunctionType, MethodType
from typing import Any, Final

from aiokafka.errors import KafkaConnectionError, KafkaError
from aiokafka.protocol.metadata import MetadataRequest

_log = logging.getLogger(__name__)

_UNCLEAN = (KafkaError, OSError, TimeoutError, RuntimeError, KeyError, AssertionError)
"""What clients raise that are ended in whatever state they are."""
PAUSE_S: Final = 0.1
"""Source: `retry.backoff.ms` of the Java client, which spaces metadata requests just so."""


def tame(client: Any, *, pause_s: float = PAUSE_S) -> None:
    """Have it make no topics, space its metadata requests, and its start clean up. `client` is the
    AIOKafkaClient, not started yet."""
    make_no_topics(client)
    space_metadata_requests(client, pause_s=pause_s)
    close_what_bootstrap_leaves(client)
    close_what_it_forgets(client)


def make_no_topics(client: Any) -> None:
    """Ask about topics without making them.

    Source: aiokafka 0.14 leaves `allow_auto_topic_creation` at true, and so do brokers
    `auto.create.topics.enable`: whoever goes on asking about a topic that was deleted would make it
    anew, with the cluster's defaults for partitions, retention and compaction. There is no setting,
    so the method runs with a request of another default in place of the global one.
    """
    plain = type(client)._metadata_update
    quiet = partial(MetadataRequest, allow_auto_topic_creation=False)
    changed = FunctionType(
        plain.__code__, {**plain.__globals__, "MetadataRequest": quiet}, plain.__name__
    )
    client._metadata_update = MethodType(changed, client)


def space_metadata_requests(client: Any, *, pause_s: float = PAUSE_S) -> None:
    """At least `pause_s` between the end of one metadata request and the next.

    Source: aiokafka 0.14: while a partition has no leader, or its topic was deleted, producer and
    fetcher ask for metadata again the moment they have it: more than a thousand requests a second,
    half a core here and a burden on a cluster that is in trouble already.
    """
    ask = client._metadata_update
    loop = asyncio.get_running_loop()
    asked_s = loop.time() - pause_s

    async def spaced(cluster: Any, topics: Any) -> Any:
        nonlocal asked_s
        await asyncio.sleep(max(0.0, asked_s + pause_s - loop.time()))
        try:
            return await ask(cluster, topics)
        finally:
            asked_s = loop.time()

    client._metadata_update = spaced


def close_what_bootstrap_leaves(client: Any) -> None:
    """A start that is cancelled, or runs out of time, leaves no connection open.

    Source: aiokafka 0.14, `AIOKafkaClient.bootstrap()`: the connection that it asks for the first
    metadata is a local variable until the answer is there; a cancellation while it waits goes past
    the `except` that would close it, and nothing else can. So it is taken from where it is: the
    frame that the cancellation came through.
    """
    bootstrap = client.bootstrap

    async def bootstrapped() -> None:
        try:
            await bootstrap()
        except asyncio.CancelledError as cancelled:
            for frame, _ in traceback.walk_tb(cancelled.__traceback__):
                connection = frame.f_locals.get("bootstrap_conn")
                if connection is not None:
                    connection.close()
            await asyncio.sleep(0)  # a transport lets go of its socket in the loop's next turn
            raise

    client.bootstrap = bootstrapped


def close_what_it_forgets(client: Any) -> None:
    """No connection goes out of the client's hands open: neither one that the broker has ended, nor
    one made while the client closes.

    Source: aiokafka 0.14, `AIOKafkaClient._get_conn()`: it drops a connection that has read its end
    and makes another. If the task that reads the old one had no turn yet, that task finds its
    connection gone, and the socket stays open. `close()` goes through the connections there are;
    one that is being made then comes later, and if the metadata task has failed it goes through
    none.
    """
    take, close = client._get_conn, client.close
    closed = False

    async def held(node_id: Any, **how: Any) -> Any:
        for known in [
            known
            for place, known in client._conns.items()
            if place[0] == node_id and not known.connected()
        ]:
            known.close()
        connection = await take(node_id, **how)
        if closed:
            end_all()
            raise KafkaConnectionError("the client is closed")
        return connection

    def end_all() -> None:
        for connection in client._conns.values():
            connection.close()

    async def end() -> None:
        nonlocal closed
        closed = True
        writers = [getattr(connection, "_writer", None) for connection in client._conns.values()]
        try:
            await _end_metadata_task(client)
            await close()
        finally:
            end_all()
            for writer in writers:
                # a broker that is frozen takes nothing any more, and what waits for it keeps the
                # socket open
                if writer is not None:
                    writer.transport.abort()

    client._get_conn = held
    client.close = end


async def _end_metadata_task(client: Any) -> None:
    """What `AIOKafkaClient.close()` begins with, and open to a cancellation.

    Source: aiokafka 0.14 awaits the task that it has just cancelled and suppresses CancelledError:
    also the one meant for the caller, who then goes on as if nobody had told it to end. Seen as a
    relay that a signal in that moment did not stop. An error of that task comes out of `close()`
    there, with every connection open.
    """
    task, client._sync_task = client._sync_task, None
    if task is None:
        return
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.debug("kafka client's metadata task had failed", extra={"error": repr(error)})


async def end_apart(
    step: Callable[[], Coroutine[Any, Any, None]], *, within_s: float, what: str
) -> None:
    """Run one step of a client's end as a task of its own, so that what it does to cancellations
    stays there.

    Source: aiokafka 0.14 awaits tasks that it has just cancelled, in `Fetcher.close()` and
    `Sender.close()`. One that ends cancelled makes a CancelledError come out that nobody asked for;
    one that ends well swallows the one meant for the caller.
    """
    try:
        async with asyncio.timeout(within_s), asyncio.TaskGroup() as group:
            group.create_task(step(), name=f"end {what}")
    except* _UNCLEAN as errors:
        _log.debug(
            "kafka client did not end cleanly",
            extra={"client": what, "error": repr(errors.exceptions[0])},
        )


async def stop_consumer(consumer: Any, *, within_s: float) -> None:
    """Give back all that the consumer holds; each of the two steps may take `within_s`.

    Source: aiokafka 0.14, as in `end_apart`: where `stop()` ends with a stray CancelledError, as
    each time while the broker is away, the client's connections and its metadata task live on. So
    the client is closed again.
    """
    for step in (consumer.stop, consumer._client.close):
        await end_apart(step, within_s=within_s, what="consumer")


def servers_text(arguments: Mapping[str, Any]) -> str:
    """The bootstrap servers of a client's arguments, for people."""
    servers = arguments.get("bootstrap_servers", "")
    return servers if isinstance(servers, str) else ",".join(servers)


SILENCE: Final = (
    "most likely the broker is frozen, overloaded or still starting, or a firewall or proxy "
    "swallows what is sent; "
    "else check kafka.bootstrapServers and kafka.security.protocol"
)
"""What may be behind a silence, the likely first. A port of TLS that is not spoken to so, and the
reverse, hangs up in most cases."""


def what_to_check(error: BaseException) -> str:
    """What to do about a bootstrap that failed."""
    return SILENCE if isinstance(error, TimeoutError) else "check kafka.bootstrapServers"


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
    said = error.args[0] if isinstance(error, KafkaError) else error
    return " ".join(str(said).split()) or type(error).__name__
