"""A way to a broker that knows produce requests and their answers, and loses, tears, withholds or
rewrites them on command.

Input: the port of a broker, and an outcome for each produce request. Output: a port. It runs in the
loop of the test; `tests/support/faultproxy.py` knows bytes only.
"""

import asyncio
import struct
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Literal

from tests.support.process import free_port

Fate = Literal["pass", "unsent", "torn", "unanswered", "silent"] | tuple[int, int]
"""What happens to a produce request: `unsent` is cut before it, `torn` in its middle, `unanswered`
after the broker has answered; `silent` withholds the answer and leaves the connection open. (code,
offset) is what its answer says for each partition in place of the broker's."""

_PRODUCE = 0


class ProduceProxy:
    """`fate` is called for each produce request; `seen` counts its answers."""

    def __init__(self) -> None:
        self.port = free_port()
        self.target = 0
        self.fate: Callable[[], Fate] = lambda: "pass"
        self.keys = {_PRODUCE}
        """Of the requests that have a fate; only a produce answer is rewritten."""
        self.seen: Counter[str] = Counter()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            from_broker, to_broker = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.transport.abort()
            return
        asked: deque[Fate] = deque()

        async def there() -> None:
            while True:
                frame = await _frame(reader)
                fate: Fate = "pass"
                if struct.unpack_from(">h", frame, 4)[0] in self.keys:
                    fate = self.fate()
                    self.seen[fate if isinstance(fate, str) else "rewritten"] += 1
                if fate == "unsent":
                    raise ConnectionResetError
                if fate == "torn":
                    to_broker.write(frame[: len(frame) // 2])
                    await to_broker.drain()
                    raise ConnectionResetError
                asked.append(fate)
                to_broker.write(frame)
                await to_broker.drain()

        async def back() -> None:
            while True:
                frame = await _frame(from_broker)
                fate = asked.popleft()
                if fate == "unanswered":
                    raise ConnectionResetError
                if fate == "silent":
                    await asyncio.Event().wait()
                writer.write(_rewritten(frame, *fate) if isinstance(fate, tuple) else frame)
                await writer.drain()

        try:
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(there(), name="there")
                pumps.create_task(back(), name="back")
        except* (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.transport.abort()
            to_broker.transport.abort()


@asynccontextmanager
async def produce_proxy(proxy: ProduceProxy, target: int) -> AsyncIterator[ProduceProxy]:
    """The proxy at work, in front of a broker that advertises `proxy.port`."""
    proxy.target = target
    serving: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        serving.add(task)
        try:
            await proxy.serve(reader, writer)
        finally:
            serving.discard(task)

    server = await asyncio.start_server(serve, "127.0.0.1", proxy.port)
    try:
        yield proxy
    finally:
        server.close()
        for task in list(serving):
            task.cancel()
        if serving:
            await asyncio.wait(list(serving))
        await asyncio.sleep(0)


async def _frame(reader: asyncio.StreamReader) -> bytes:
    size = await reader.readexactly(4)
    return size + await reader.readexactly(struct.unpack(">i", size)[0])


def _rewritten(frame: bytes, code: int, offset: int) -> bytes:
    """A produce answer, version 7, that says this of each partition."""
    data = bytearray(frame)
    (topics,) = struct.unpack_from(">i", data, 8)
    at = 12
    for _ in range(topics):
        at += 2 + struct.unpack_from(">h", data, at)[0]
        (partitions,) = struct.unpack_from(">i", data, at)
        at += 4
        for _ in range(partitions):
            struct.pack_into(">hq", data, at + 4, code, offset)
            at += 30
    return bytes(data)
