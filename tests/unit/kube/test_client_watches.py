"""Watches over real sockets."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import AsyncIterator

import pytest

from tests.support import virtualtime
from tests.support.scripted import Handler, Reply, Request, ScriptedServer
from tests.unit.kube.served import (
    PODS,
    STREAM,
    KnownCredentials,
    bookmark,
    client_of,
    failure_status,
    line,
    pod,
    watch_from,
)
from watchrelay.core.errors import (
    Expired,
    Interrupted,
    KubeError,
    NotAcceptable,
    Throttled,
    Unavailable,
)
from watchrelay.kube.auth.transport import open_socket
from watchrelay.kube.client import KubeClient
from watchrelay.model.frames import Bookmark, Failure, Frame, ObjectFrame, WatchQuery
from watchrelay.model.resources import Selection


async def watched(
    client: KubeClient, query: WatchQuery | None = None, *, selection: Selection = PODS
) -> list[Frame]:
    frames: list[Frame] = []
    async with client.watch(selection, query or watch_from(), stream=STREAM) as batches:
        async for batch in batches:
            assert batch
            frames += batch
    return frames


async def watched_from(server: ScriptedServer, query: WatchQuery | None = None) -> list[Frame]:
    async with client_of(server.url) as client:
        return await watched(client, query)


async def collect(
    batches: AsyncIterator[list[Frame]], frames: list[Frame], *, got: asyncio.Event | None = None
) -> None:
    """Everything into `frames`, so that it is seen though an error ends it."""
    async for batch in batches:
        frames += batch
        if got is not None:
            got.set()


def sends(*chunks: bytes, end: str = "end") -> ScriptedServer:
    """A server that answers every request with these chunks."""

    async def handler(request: Request, reply: Reply) -> None:
        await reply.start()
        for chunk in chunks:
            await reply.chunk(chunk)
        await getattr(reply, end)()

    return ScriptedServer(handler)


async def test_a_watch_asks_for_exactly_what_the_query_says() -> None:
    async with sends() as server, client_of(server.url) as client:
        await watched(client, WatchQuery("7", timeout_s=345, idle_timeout_s=9))
        await watched(
            client, WatchQuery("", timeout_s=300, idle_timeout_s=9, send_initial_events=True)
        )
        await watched(client, WatchQuery("7", timeout_s=300, idle_timeout_s=9, bookmarks=False))
        plain, initial, bare = (request.query for request in server.requests)
        assert {request.headers["accept-encoding"] for request in server.requests} == {"identity"}
        assert server.requests[0].headers["user-agent"].endswith(f" {STREAM}")
    assert plain == {
        "watch": "1",
        "timeoutSeconds": "345",
        "resourceVersion": "7",
        "allowWatchBookmarks": "true",
    }
    assert initial == {
        "watch": "1",
        "timeoutSeconds": "300",
        "allowWatchBookmarks": "true",
        "sendInitialEvents": "true",
        "resourceVersionMatch": "NotOlderThan",
    }
    assert bare == {"watch": "1", "timeoutSeconds": "300", "resourceVersion": "7"}


async def test_T15_a_clean_end_ends_the_iteration_and_keeps_the_connection() -> None:
    async with (
        sends(line("ADDED", pod("a", "1")), bookmark("2")) as server,
        client_of(server.url) as client,
    ):
        for _ in range(2):
            assert [type(frame) for frame in await watched(client)] == [ObjectFrame, Bookmark]
        assert server.connections == 1


@pytest.mark.parametrize("end", ["fin", "reset"])
async def test_T16_a_broken_connection_is_unavailable_after_what_it_brought(end: str) -> None:
    frames: list[Frame] = []
    got = asyncio.Event()

    async def handler(request: Request, reply: Reply) -> None:
        await reply.start()
        await reply.chunk(line("ADDED", pod("a", "1")) + b'{"type":"ADD')
        await got.wait()
        await getattr(reply, end)()

    async with (
        ScriptedServer(handler) as server,
        client_of(server.url) as client,
        client.watch(PODS, watch_from(), stream=STREAM) as batches,
    ):
        with pytest.raises(Unavailable):
            await collect(batches, frames, got=got)
        with pytest.raises(StopAsyncIteration):  # not the same error forever
            await anext(batches)
    assert [frame.name for frame in frames if isinstance(frame, ObjectFrame)] == ["a"]


async def test_T16_a_server_that_hangs_up_before_it_answers_is_unavailable() -> None:
    async def handler(request: Request, reply: Reply) -> None:
        await reply.fin()

    async with ScriptedServer(handler) as server:
        with pytest.raises(Unavailable, match="closed the connection"):
            await watched_from(server)


async def test_a_clean_end_in_mid_line_brings_the_rest_only_if_it_is_whole() -> None:
    half = line("ADDED", pod("b", "2"))
    async with sends(line("ADDED", pod("a", "1")) + half[:-1]) as server:
        assert len(await watched_from(server)) == 2
    async with sends(line("ADDED", pod("a", "1")) + half[:-9]) as server:
        assert len(await watched_from(server)) == 1


@pytest.mark.parametrize("mib", [1.5, 8])
async def test_T21_long_lines_are_delivered(mib: float) -> None:
    note = "x" * int(mib * (1 << 20))
    async with sends(
        line("ADDED", pod("long", "1", note=note)), line("ADDED", pod("next", "2"))
    ) as server:
        first, second = await watched_from(server)
    assert isinstance(first, ObjectFrame)
    assert isinstance(second, ObjectFrame)
    assert len(bytes(first.fields["note"])) == len(note) + 2


@pytest.mark.parametrize("length", [True, False])
async def test_T23_an_error_line_ends_the_watch_though_the_server_keeps_it_open(
    length: bool,
) -> None:
    data = line("ERROR", failure_status(410, "Gone", "too old resource version: 1 (2)"))

    async def handler(request: Request, reply: Reply) -> None:
        await reply.start(length=len(data) if length else None)
        await reply.chunk(data)
        await reply.gone()

    async with ScriptedServer(handler) as server:
        (failure,) = await watched_from(server)
    assert isinstance(failure, Failure)
    assert isinstance(failure.error, Expired)


@pytest.mark.parametrize(
    ("code", "kind"), [(410, Expired), (429, Throttled), (503, Throttled), (502, Unavailable)]
)
async def test_T22_an_http_error_at_the_start_is_raised_on_entering(
    code: int, kind: type[KubeError]
) -> None:
    async def handler(request: Request, reply: Reply) -> None:
        await reply.json(code, failure_status(code, "x"), {"Retry-After": "3"})

    async with ScriptedServer(handler) as server:
        with pytest.raises(KubeError) as caught:
            await watched_from(server)
    assert type(caught.value) is kind
    assert caught.value.retry_after_s == 3.0


async def test_a_login_page_in_place_of_a_watch_is_unavailable() -> None:
    async def handler(request: Request, reply: Reply) -> None:
        await reply.text(200, "<html>log in</html>", {"Content-Type": "text/html"})

    async with ScriptedServer(handler) as server:
        with pytest.raises(Unavailable, match="HTML"):
            await watched_from(server)


def silent_until_left(left: asyncio.Event) -> Handler:
    """One bookmark, then silence on an open connection; `left` is set when the client closed it."""

    async def handler(request: Request, reply: Reply) -> None:
        await reply.start()
        await reply.chunk(bookmark("5"))
        await reply.gone()
        left.set()

    return handler


@virtualtime.virtual
async def test_T28_a_silent_server_is_left_at_the_idle_deadline_and_its_connection_closed() -> None:
    left = asyncio.Event()
    async with ScriptedServer(silent_until_left(left)) as server, client_of(server.url) as client:
        frames: list[Frame] = []
        async with client.watch(PODS, watch_from(idle_timeout_s=70), stream=STREAM) as batches:
            with pytest.raises(Interrupted) as caught:
                await collect(batches, frames)
        assert frames == [Bookmark("5")]
        assert caught.value.reason == "inactive"
        await left.wait()


def test_a_server_that_never_ends_a_watch_is_left_a_little_after_its_time() -> None:
    async def handler(request: Request, reply: Reply) -> None:
        await reply.start()
        while True:
            await reply.chunk(b"\n")
            await asyncio.sleep(5)

    async def main() -> float:
        async with ScriptedServer(handler) as server, client_of(server.url) as client:
            began_s = asyncio.get_running_loop().time()
            with pytest.raises(Interrupted, match="timeoutSeconds"):
                await watched(client, watch_from(timeout_s=300, idle_timeout_s=70))
            return asyncio.get_running_loop().time() - began_s

    assert 300 < virtualtime.run(main()) < 330


@virtualtime.virtual
async def test_a_consumer_that_takes_its_time_is_not_an_idle_server() -> None:
    async def handler(request: Request, reply: Reply) -> None:
        await reply.start()
        for number in range(5):
            await reply.chunk(line("ADDED", pod(f"p{number}", str(number))))
            await asyncio.sleep(130)
        await reply.end()

    names: list[str] = []
    async with (
        ScriptedServer(handler) as server,
        client_of(server.url) as client,
        client.watch(PODS, watch_from(timeout_s=900, idle_timeout_s=70), stream=STREAM) as batches,
    ):
        async for batch in batches:
            names += [frame.name for frame in batch if isinstance(frame, ObjectFrame)]
            await asyncio.sleep(100)  # longer than the deadline of one receive
    assert names == [f"p{n}" for n in range(5)]


async def test_T58_leaving_a_watch_closes_its_connection() -> None:
    left = asyncio.Event()
    async with ScriptedServer(silent_until_left(left)) as server, client_of(server.url) as client:
        async with client.watch(PODS, watch_from(), stream=STREAM) as batches:
            await anext(batches)
        await left.wait()


async def test_a_hundred_and_fifty_watches_run_side_by_side() -> None:
    everyone = asyncio.Event()

    async def handler(request: Request, reply: Reply) -> None:
        if len(server.requests) == 150:
            everyone.set()
        await everyone.wait()
        await reply.start()
        await reply.chunk(bookmark("5"))
        await reply.end()

    async with (
        ScriptedServer(handler) as server,
        client_of(server.url) as client,
        asyncio.TaskGroup() as tasks,
    ):
        running = [tasks.create_task(watched(client), name=f"watch {n}") for n in range(150)]
    assert all(task.result() == [Bookmark("5")] for task in running)


async def test_T62_metadata_is_requested_in_the_singular_form_and_a_406_is_reported() -> None:
    async def handler(request: Request, reply: Reply) -> None:
        if "as=" in request.headers["accept"]:
            await reply.json(406, failure_status(406, "NotAcceptable"))
        else:
            await reply.start()
            await reply.chunk(line("ADDED", pod("a", "1")))
            await reply.end()

    partial = Selection(PODS.resource, metadata_only=True)
    async with ScriptedServer(handler) as server, client_of(server.url) as client:
        with pytest.raises(NotAcceptable):
            await watched(client, watch_from(), selection=partial)
        (frame,) = await watched(client, watch_from(whole_objects=True), selection=partial)
        accepted = [request.headers["accept"] for request in server.requests]
    assert accepted == [
        "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json",
        "application/json",
    ]
    assert isinstance(frame, ObjectFrame)
    assert list(frame.fields) == ["apiVersion", "kind", "metadata"]


async def test_a_401_at_the_start_of_a_watch_is_tried_again_with_fresh_credentials() -> None:
    async def handler(request: Request, reply: Reply) -> None:
        if request.headers["authorization"] == "Bearer first":
            await reply.text(401, "Unauthorized\n")
        else:
            await reply.start()
            await reply.end()

    async with ScriptedServer(handler) as server:
        credentials = KnownCredentials(server.url)
        async with client_of(server.url, credentials=credentials) as client:
            assert await watched(client) == []
    assert credentials.refusals == 1


async def test_connections_notice_a_dead_peer() -> None:
    with open_socket((socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", 0))) as made:
        assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 30
        assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 60_000


def test_a_system_without_the_options_of_linux_is_connected_from_too() -> None:
    missing = "import socket; del socket.TCP_USER_TIMEOUT, socket.TCP_KEEPIDLE"
    opened = (
        "from watchrelay.kube.auth.transport import open_socket; "
        "open_socket((socket.AF_INET, socket.SOCK_STREAM, 0, '', ()))"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", f"{missing}; {opened}"], check=True)
