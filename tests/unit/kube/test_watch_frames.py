"""Frames that are taken in the step that received their bytes, whatever the body looks like."""

from __future__ import annotations

import asyncio
import gzip
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.support import virtualtime
from tests.support.pki import Ca
from tests.support.scripted import Reply, Request, ScriptedServer
from tests.support.turns import TurnLoop, held_by
from tests.unit.kube.served import (
    PODS,
    STREAM,
    KnownCredentials,
    bookmark,
    failure_status,
    line,
    pod,
    watch_from,
)
from watchrelay.core.errors import Unavailable
from watchrelay.kube import watch_frames
from watchrelay.kube.client import KubeClient
from watchrelay.kube.stream import FrameReader
from watchrelay.model.frames import Failure, Frame, WatchQuery
from watchrelay.observe.metrics import Metrics

LINES = [line("MODIFIED", pod(f"p{number}", str(number), note="é" * 40)) for number in range(7)]
DATA = b"".join(LINES) + bookmark("9")
HALF = len(DATA) // 2
OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


def chunked(*parts: bytes, extension: bytes = b"", trailers: bytes = b"") -> bytes:
    chunks = b"".join(b"%x%b\r\n%b\r\n" % (len(part), extension, part) for part in parts)
    return OK + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n" + trailers + b"\r\n"


ANSWERS = {
    "chunks": chunked(*LINES, bookmark("9")),
    "one-chunk": chunked(DATA),
    "chunks-across-lines": chunked(DATA[:HALF], DATA[HALF:]),
    "extensions-and-trailers": chunked(
        *LINES, bookmark("9"), extension=b";a=b", trailers=b"X-Trailer: yes\r\n"
    ),
    "content-length": OK + b"Content-Length: %d\r\n\r\n" % len(DATA) + DATA,
    "until-closed": OK + b"Connection: close\r\n\r\n" + DATA,
    "http-1.0": OK.replace(b"1.1", b"1.0") + b"\r\n" + DATA,
    "gzip": OK.replace(b"\r\n", b"\r\nContent-Encoding: gzip\r\n", 1)
    + b"Content-Length: %d\r\n\r\n" % len(gzip.compress(DATA))
    + gzip.compress(DATA),
    "gzip-in-chunks": chunked(gzip.compress(DATA)[:50], gzip.compress(DATA)[50:]).replace(
        b"\r\n", b"\r\nContent-Encoding: gzip\r\n", 1
    ),
}
CLOSES = {"until-closed", "http-1.0"}


@asynccontextmanager
async def client_at(
    server: ScriptedServer,
    *,
    tls: ssl.SSLContext | None = None,
    align: watch_frames.Align | None = None,
) -> AsyncIterator[KubeClient]:
    credentials = KnownCredentials(
        server.url, tls=tls, server_hostname="localhost" if tls else None
    )
    async with KubeClient(credentials, Metrics(), align) as client:
        yield client


def with_tls(directory: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """The contexts of a server, and of a client that trusts it."""
    authority = Ca()
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(*authority.issue("localhost").write(directory, "server"))
    return serving, ssl.create_default_context(cadata=authority.pem.decode())


class Taker:
    """Takes every batch that `takes` allows."""

    def __init__(self, takes: Callable[[int], bool]) -> None:
        self.takes, self.offered = takes, 0
        self.frames: list[Frame] = []
        self.taken = asyncio.Event()

    def take(self, frames: list[Frame]) -> bool:
        assert frames, "an empty batch is offered"
        self.offered += 1
        if not self.takes(self.offered):
            return False
        self.frames += frames
        self.taken.set()
        return True


async def follow(client: KubeClient, taker: Taker, query: WatchQuery | None = None) -> list[Frame]:
    """All frames in order, however they came."""
    opened = client.watch(PODS, query or watch_from(), stream=STREAM, take=taker.take)
    async with opened as batches:
        async for batch in batches:
            taker.frames += batch
            taker.taken.set()
    return taker.frames


def expected() -> list[Frame]:
    return FrameReader(PODS).feed(DATA)


@pytest.mark.parametrize("size", [1, 97, 1 << 20])
@pytest.mark.parametrize("kind", ANSWERS)
async def test_every_body_brings_the_same_frames_in_order(kind: str, size: int) -> None:
    answer = ANSWERS[kind]

    async def handler(request: Request, reply: Reply) -> None:
        reply.started = True
        for at in range(0, len(answer), size):
            await reply.raw(answer[at : at + size])
            await asyncio.sleep(0)
        if kind in CLOSES:
            await reply.fin()
        reply.reusable = kind not in CLOSES

    async with ScriptedServer(handler) as server, client_at(server) as client:
        for takes in (lambda _: True, lambda _: False, lambda offered: offered % 3 == 1):
            taker = Taker(takes)
            assert await follow(client, taker) == expected()
        # a clean end leaves the connection to the next request
        assert server.connections == (3 if kind in CLOSES else 1)


async def test_what_is_received_while_it_is_waited_for_is_taken_in_that_step() -> None:
    steps: list[str] = []

    async def handler(request: Request, reply: Reply) -> None:
        await reply.start()
        for number, each in enumerate(LINES):
            await reply.chunk(each)
            await taker.taken.wait()
            taker.taken.clear()
            steps.append(f"after {number}")
        await reply.end()

    taker = Taker(lambda _: True)
    async with ScriptedServer(handler) as server, client_at(server) as client:
        opened = client.watch(PODS, watch_from(), stream=STREAM, take=taker.take)
        async with opened as batches:
            first = await anext(batches)
            taker.taken.set()
            with pytest.raises(StopAsyncIteration):
                await anext(batches)  # it waited all the time, and was woken for the end alone
    assert first + taker.frames == expected()[:-1]
    assert len(steps) == len(LINES)


async def test_nothing_is_taken_while_nobody_waits_and_no_more_is_read_than_is_buffered() -> None:
    big = line("MODIFIED", pod("big", "1", note="x" * 200_000))
    stuck = asyncio.Event()

    async def handler(request: Request, reply: Reply) -> None:
        await reply.start()
        for _ in range(300):
            try:
                async with asyncio.timeout(0.5):
                    await reply.chunk(big)
            except TimeoutError:
                stuck.set()
                await reply.raw(b"")  # until what was written has left
        await reply.end()

    taker = Taker(lambda _: True)
    async with ScriptedServer(handler) as server, client_at(server) as client:
        opened = client.watch(PODS, watch_from(), stream=STREAM, take=taker.take)
        async with opened as batches:
            await stuck.wait()
            assert taker.offered == 0
            async for batch in batches:
                taker.frames += batch
    assert len(taker.frames) == 300


async def test_an_error_of_the_taker_ends_the_watch_and_is_raised_to_who_waits() -> None:
    def take(_frames: list[Frame]) -> bool:
        raise RuntimeError("the store broke")

    async def handler(request: Request, reply: Reply) -> None:
        await reply.start()
        await reply.chunk(LINES[0])
        await waits.wait()
        await reply.chunk(LINES[1])
        await reply.gone()

    waits = asyncio.Event()
    async with (
        ScriptedServer(handler) as server,
        client_at(server) as client,
        client.watch(PODS, watch_from(), stream=STREAM, take=take) as batches,
    ):
        waits.set()
        with pytest.raises(RuntimeError, match="the store broke"):
            async for _ in batches:
                pass
        with pytest.raises(StopAsyncIteration):
            await anext(batches)


@pytest.mark.parametrize("end", ["fin", "reset"])
async def test_a_broken_connection_is_an_error_after_what_was_taken(end: str) -> None:
    async def handler(request: Request, reply: Reply) -> None:
        await reply.start()
        await waits.wait()
        await reply.chunk(LINES[0] + LINES[1][:20])
        await taker.taken.wait()
        await getattr(reply, end)()

    taker, waits = Taker(lambda _: True), asyncio.Event()
    async with ScriptedServer(handler) as server, client_at(server) as client:
        opened = client.watch(PODS, watch_from(), stream=STREAM, take=taker.take)
        async with opened as batches:
            waits.set()
            with pytest.raises(Unavailable):
                await anext(batches)
    assert taker.frames == expected()[:1]


async def test_an_error_line_is_offered_too_and_ends_the_watch() -> None:
    async def handler(request: Request, reply: Reply) -> None:
        await reply.start()
        await waits.wait()
        await reply.chunk(LINES[0])
        await taker.taken.wait()
        await reply.chunk(LINES[1] + line("ERROR", failure_status(410, "Gone")))
        await reply.gone()

    taker, waits = Taker(lambda offered: offered == 1), asyncio.Event()
    async with ScriptedServer(handler) as server, client_at(server) as client:
        opened = client.watch(PODS, watch_from(), stream=STREAM, take=taker.take)
        async with opened as batches:
            waits.set()
            (rest,) = [batch async for batch in batches]
    assert taker.frames + rest[:1] == expected()[:2]
    assert isinstance(rest[1], Failure)


@virtualtime.virtual
async def test_a_taken_frame_moves_the_deadline_of_a_silent_watch() -> None:
    async def handler(request: Request, reply: Reply) -> None:
        await reply.start()
        for each in LINES:
            await asyncio.sleep(15)
            await reply.chunk(each)
        await reply.end()

    taker = Taker(lambda _: True)
    async with ScriptedServer(handler) as server, client_at(server) as client:
        frames = await follow(client, taker, watch_from(idle_timeout_s=40))
    assert len(frames) == len(LINES)


@pytest.mark.parametrize("encrypted", [False, True])
async def test_few_bytes_at_a_time_are_read_on_when_the_alignment_says_so(
    encrypted: bool, tmp_path: Path
) -> None:
    reads: list[Callable[[], None]] = []

    async def handler(request: Request, reply: Reply) -> None:
        await reply.start()
        while not reads:  # until two came within some milliseconds
            await reply.chunk(LINES[0])
            await taker.taken.wait()
            taker.taken.clear()
        before = len(taker.frames)
        for each in LINES[1:]:
            await reply.chunk(each)
        await asyncio.sleep(0.05)
        assert len(taker.frames) == before, "what comes meanwhile is not read"
        await reply.end()
        while len(taker.frames) < before + len(LINES) - 1:
            await asyncio.sleep(0)
            while reads:
                reads.pop()()

    taker = Taker(lambda _: True)
    serving, trusted = with_tls(tmp_path) if encrypted else (None, None)
    async with (
        ScriptedServer(handler, ssl_context=serving) as server,
        client_at(server, tls=trusted, align=reads.append) as client,
    ):
        frames = await follow(client, taker)
    assert frames[-len(LINES) :] == expected()[:-1]


async def test_an_encrypted_watch_that_is_left_while_it_is_not_read_is_not_read_on(
    tmp_path: Path,
) -> None:
    reads: list[Callable[[], None]] = []

    async def handler(request: Request, reply: Reply) -> None:
        await reply.start()
        while not reads:
            await reply.chunk(LINES[0])
            await taker.taken.wait()
            taker.taken.clear()
        paused.set()
        await reply.gone()

    taker, paused = Taker(lambda _: True), asyncio.Event()
    serving, trusted = with_tls(tmp_path)
    async with (
        ScriptedServer(handler, ssl_context=serving) as server,
        client_at(server, tls=trusted, align=reads.append) as client,
    ):
        async with asyncio.TaskGroup() as tasks:
            following = tasks.create_task(follow(client, taker), name="follow")
            await paused.wait()
            following.cancel()
        (read_on,) = reads
        read_on()
        assert taker.frames == expected()[:1] * len(taker.frames)


@virtualtime.virtual
async def test_what_comes_as_a_deadline_is_moved_is_not_overtaken_by_what_comes_next(
    tmp_path: Path,
) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, virtualtime.VirtualLoop)
    reads: list[Callable[[], None]] = []
    idle_s = 50.0
    halfway, more = asyncio.Event(), asyncio.Event()

    async def handler(request: Request, reply: Reply) -> None:
        await reply.start()
        await halfway.wait()
        while not reads:
            await reply.chunk(LINES[0])
            await taker.taken.wait()
            taker.taken.clear()
        await reply.chunk(LINES[1])
        await more.wait()
        for each in LINES[2:]:
            await reply.chunk(each)
        await reply.end()

    def busy() -> None:
        """Both the end of the wait, and the time to read on, are due behind it."""
        loop.busy_until(began_s + idle_s + 3)

    def read_on() -> None:
        align.clear()
        while reads:
            reads.pop()()

    align: list[None] = [None]
    taker = Taker(lambda _: True)
    serving, trusted = with_tls(tmp_path)
    async with (
        ScriptedServer(handler, ssl_context=serving) as server,
        client_at(
            server, tls=trusted, align=lambda each: reads.append(each) if align else each()
        ) as client,
    ):
        began_s = loop.time()
        loop.call_at(began_s + idle_s / 2, halfway.set)
        loop.call_at(began_s + idle_s - 2, busy)
        loop.call_at(began_s + idle_s - 1, read_on)
        loop.call_at(began_s + idle_s + 6, more.set)
        frames = await follow(client, taker, watch_from(idle_timeout_s=idle_s))
    assert frames[-len(LINES) + 1 :] == expected()[1:-1]


@pytest.mark.parametrize("taken", [True, False])
@pytest.mark.parametrize(
    "unpacked",
    [b"\n" * (24 << 20), b"".join(LINES) * ((16 << 20) // len(b"".join(LINES)))],
    ids=["newlines", "events"],
)
def test_what_a_proxy_packed_into_little_is_taken_in_many_turns_of_the_loop(
    unpacked: bytes, *, taken: bool
) -> None:
    packed = gzip.compress(unpacked)

    async def answer(_: Request, reply: Reply) -> None:
        await reply.text(
            200, packed, {"Content-Type": "application/json", "Content-Encoding": "gzip"}
        )

    async def body(loop: TurnLoop) -> None:
        async with ScriptedServer(answer) as server, client_at(server) as client:
            loop.begin()
            frames = await follow(client, Taker(lambda _: taken))
        assert len(frames) == unpacked.count(b"MODIFIED")

    assert not (wrong := held_by(body)), wrong
