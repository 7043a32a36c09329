"""One connection to one broker, for produce requests.

aiokafka opens it (TLS, SASL); then its transport is ours, and its connection is kept for its end
alone: it reads nothing more.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

from aiokafka.conn import AIOKafkaConnection
from aiokafka.errors import IncompatibleBrokerVersion, KafkaConnectionError
from aiokafka.protocol.admin import ApiVersionRequest

from watchrelay.kafka.client.patches import make_connection

VERSION: Final = 7
"""Of Produce: the first that takes zstd (Kafka 2.1), known to every broker since."""
IN_FLIGHT_MAX: Final = 5
_ANSWER_BYTES_MAX = 16 << 20
_WRITE_BUFFER_BYTES = 4 << 20
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
_TIMED_EVERY_S = 1.0
_ACKED_AT = 120
"""Where Linux has tcpi_bytes_acked (4.1, 64 bits) in the state of a connection (TCP_INFO)."""

_SIZE = struct.Struct(">i")
_NAME_LENGTH = struct.Struct(">h")
_HEAD = struct.Struct(">iHHi")
"""Size, API key, version, correlation id; the client id follows."""
_PARTITION = struct.Struct(">ii")
"""Partition, bytes of its batch."""
_ANSWER = struct.Struct(">ihqqq")
"""Partition, error, base offset, append time, log start."""


@contextlib.contextmanager
def no_surprises() -> Iterator[None]:
    """What aiokafka 0.14 raises on answers that no broker gives is raised as KafkaConnectionError,
    and as IncompatibleBrokerVersion where the broker has no version of a request that it has."""
    try:
        yield
    except NotImplementedError as error:
        raise IncompatibleBrokerVersion(str(error)) from error
    except (
        AssertionError,
        AttributeError,
        LookupError,
        TypeError,
        ValueError,
        struct.error,
    ) as error:
        if isinstance(error, OSError):
            raise  # SSLCertVerificationError, which is a ValueError too
        raise KafkaConnectionError(f"this is no answer of a kafka broker: {error!r}") from error


def _check_version(answer: Any) -> None:
    """Raises: IncompatibleBrokerVersion when a broker with that answer does not take our
    requests."""
    least, most = next((span for key, *span in answer.api_versions if key == 0), (0, 0))
    if not least <= VERSION <= most:
        raise IncompatibleBrokerVersion(
            f"the broker takes produce requests of versions {least} to {most}, not {VERSION}"
        )


class Outgoing(Protocol):
    """A partition with a batch to send. `log_start`: the first offset of its log, as its newest
    acknowledgement tells it."""

    topic: bytes
    index: int
    log_start: int


class _Request(NamedTuple):
    """A request on its way: what it carries, by topic and partition."""

    correlation: int
    sent_s: float
    carried: dict[tuple[bytes, int], Any]


@dataclass(slots=True)
class _Silence:
    """Since when a broker has neither sent nor taken anything. Pure.

    `received_s`: when it sent, or took, something last; `muted_until_s`: by its throttle it reads
    nothing until then; `taken`: the number of bytes that it had taken at the last look."""

    received_s: float = 0.0
    muted_until_s: float = 0.0
    taken: int = 0

    def lasts_s(self, sent_s: float, taken: int, now_s: float) -> float:
        """How long a request of `sent_s` has waited since then, seen at `now_s` with `taken`."""
        if taken != self.taken:
            self.taken, self.received_s = taken, now_s
        return now_s - max(sent_s, self.received_s, self.muted_until_s)


class Link(asyncio.Protocol):
    """At most `IN_FLIGHT_MAX` requests wait for their answers, which come in order; anything else
    aborts the connection.

    Args:
        take: Gives the bytes of a partition when they leave; b"" if there is nothing left to send.
        answered: Called with each partition, its error code and base offset.
        lost: Called once with the link, the partitions without an answer, and those that were not
            sent.
        timed: Called before `answered` with a partition, the time at which its batch was appended
            by the broker's clock, in milliseconds, and when the request was sent (loop time), at
            most once a second; only where brokers give the time of records.
        transactional_id: That of every batch; "" for none.
    """

    def __init__(
        self,
        *,
        client_id: str,
        timeout_s: float,
        request_bytes: int,
        take: Callable[[Any], bytes],
        answered: Callable[[Any, int, int], None],
        lost: Callable[[Link, list[Any], list[Any]], None],
        timed: Callable[[Any, int, float], None] = lambda *_: None,
        transactional_id: str = "",
    ) -> None:
        self.is_lost = False
        self.session_s = 0.0
        """How long the broker accepts requests; 0: until the connection ends."""
        self.held: Callable[[], bool] | None = None
        """Asked before each request; while it is true none is written."""
        self._take, self._answered, self._lost, self._timed = take, answered, lost, timed
        self._request_bytes = request_bytes
        name, writer = client_id.encode(), transactional_id.encode()
        self._fixed = _NAME_LENGTH.pack(len(name)) + name
        self._fixed += _NAME_LENGTH.pack(len(writer) or -1) + writer
        # acks of all in-sync replicas, timeout
        self._fixed += struct.pack(">hi", -1, int(timeout_s * 1000))
        self._now_s = asyncio.get_running_loop().time
        self._transport: asyncio.Transport | None = None
        self._connection: AIOKafkaConnection | None = None
        self._requests: deque[_Request] = deque()
        self._waiting: list[Outgoing] = []
        self._buffer = b""
        self._correlation = 0
        self._is_full = False
        self._timed_from_s = 0.0
        self._silence = _Silence()

    async def open(self, host: str, port: int, arguments: dict[str, Any]) -> None:
        """Connect. Args: `arguments` of AIOKafkaConnection. Raises: KafkaError, OSError."""
        connection = make_connection(host, port, **arguments)
        with no_surprises():
            _, writer = await connection.connect()
            try:
                _check_version(await connection.send(ApiVersionRequest()))
            except BaseException:
                connection.close()
                raise
        self._connection, self.session_s = connection, connection.session_s
        self.adopt(writer.transport)

    def adopt(self, transport: asyncio.Transport) -> None:
        """Send by an open transport, and read what it receives."""
        self._transport = transport
        transport.set_protocol(self)
        transport.set_write_buffer_limits(high=_WRITE_BUFFER_BYTES)

    # ---- out -------------------------------------------------------------------------------------

    def send(self, partitions: Sequence[Outgoing]) -> None:
        """Send a batch of each partition, in as few requests as their sizes allow, as soon as
        fewer than `IN_FLIGHT_MAX` wait for an answer."""
        self._waiting += partitions
        self._pump()

    def resume(self) -> None:
        """Send what waits because it was held."""
        self._pump()

    def _pump(self) -> None:
        while (
            self._waiting
            and len(self._requests) < IN_FLIGHT_MAX
            and not self._is_full
            and not self.is_lost
            and not (self.held is not None and self.held())
        ):
            self._send_request()

    def _send_request(self) -> None:
        self._correlation = correlation = (self._correlation + 1) & 0x7FFFFFFF
        request = _Request(correlation, self._now_s(), {})
        topics: dict[bytes, list[bytes]] = {}
        size = taken = 0
        for partition in self._waiting:
            if size >= self._request_bytes:
                break
            taken += 1
            if not (data := self._take(partition)):
                continue
            topic, index = partition.topic, partition.index
            size += len(data)
            request.carried[topic, index] = partition
            topics.setdefault(topic, []).extend((_PARTITION.pack(index, len(data)), data))
        del self._waiting[:taken]
        if not topics:
            return
        out = [b"", self._fixed, _SIZE.pack(len(topics))]
        for topic, parts in topics.items():
            out += (_NAME_LENGTH.pack(len(topic)), topic, _SIZE.pack(len(parts) // 2), *parts)
        out[0] = _HEAD.pack(8 + sum(map(len, out)), 0, VERSION, correlation)
        self._requests.append(request)
        assert self._transport is not None, "a link is used after it was opened"
        self._transport.write(b"".join(out))

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        self._pump()

    # ---- in --------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        self._silence.received_s = self._now_s()
        if self._buffer:
            data = self._buffer + data
        at, end = 0, len(data)
        while end - at >= 4 and not self.is_lost:
            (size,) = _SIZE.unpack_from(data, at)
            if end - at - 4 < size <= _ANSWER_BYTES_MAX:
                break
            try:
                answers = self._understood(data[at + 4 : at + 4 + size])
            except (ValueError, IndexError, KeyError, struct.error):
                self.abort()
                return
            at += 4 + size
            for partition, code, offset in answers:
                self._answered(partition, code, offset)
        self._buffer = data[at:]
        if self._waiting:
            self._pump()

    def _understood(self, data: bytes) -> list[tuple[Any, int, int]]:
        """Partition, error code and offset of each batch of the oldest request, which is off the
        list then.

        Raises: ValueError, IndexError, KeyError, struct.error for what is no answer to it.
        """
        correlation, topics = _PARTITION.unpack_from(data)
        if not self._requests or correlation != self._requests[0].correlation:
            raise ValueError("an answer without a request")
        unanswered, sent_s = self._requests[0].carried.copy(), self._requests[0].sent_s
        answers = []
        at = 8
        for _ in range(topics):
            (length,) = _NAME_LENGTH.unpack_from(data, at)
            topic = data[at + 2 : at + 2 + length]
            (count,) = _SIZE.unpack_from(data, at + 2 + length)
            at += 6 + length
            for _ in range(count):
                index, code, offset, appended_ms, log_start = _ANSWER.unpack_from(data, at)
                at += _ANSWER.size
                partition = unanswered.pop((topic, index))
                if not code:
                    partition.log_start = log_start
                answers.append((partition, code, offset))
                if appended_ms >= 0 and sent_s >= self._timed_from_s and not code:
                    self._timed_from_s = sent_s + _TIMED_EVERY_S
                    self._timed(partition, appended_ms, sent_s)
        if unanswered:
            raise ValueError("an answer without some of the partitions")
        (throttle_ms,) = _SIZE.unpack_from(data, at)
        self._requests.popleft()
        if throttle_ms > 0:
            # the broker reads nothing for this time
            self._silence.muted_until_s = self._now_s() + throttle_ms / 1000
        return answers

    # ---- its end ---------------------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        """Nothing waits for an answer or to be sent."""
        return not self._requests and not self._waiting

    def silent_s(self, now_s: float) -> float:
        """How long (of loop time) requests have waited since the broker last sent or took
        something."""
        if not self._requests:
            return 0.0
        return self._silence.lasts_s(self._requests[0].sent_s, self._bytes_taken(), now_s)

    def _bytes_taken(self) -> int:
        """How much the broker's kernel has taken; 0 where ours does not tell. (With TLS the buffer
        of the transport is empty while all of it waits below.)"""
        assert self._transport is not None, "a link is used after it was opened"
        plain = self._transport.get_extra_info("socket")
        try:
            state = plain.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ACKED_AT + 8)
            return int.from_bytes(state[_ACKED_AT:], sys.byteorder)
        except (AttributeError, OSError):
            return 0

    def carries(self, topic: bytes) -> bool:
        """Whether a batch of the topic is without an answer."""
        return any(name == topic for each in self._requests for name, _ in each.carried)

    def abort(self) -> None:
        """End it at once: nothing is sent, not even what the kernel holds."""
        if self._transport is None or self.is_lost:
            return
        plain = self._transport.get_extra_info("socket")
        if plain is not None:
            with contextlib.suppress(OSError):
                plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self._transport.abort()
        self.connection_lost(None)

    def connection_lost(self, _error: Exception | None) -> None:
        if self.is_lost:
            return
        self.is_lost = True
        unanswered = [each for request in self._requests for each in request.carried.values()]
        waiting, self._waiting = self._waiting, []
        self._requests.clear()
        if self._connection is not None:
            self._connection.close()
        self._lost(self, unanswered, waiting)
