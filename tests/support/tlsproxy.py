"""A real API server: a way to it that understands what it carries, counts it, and hurts it with
aim.

It ends TLS (its certificate is of an authority of its own, which the kubeconfig names), so unlike
`FaultProxy` it knows a watch from a list and a line from its half. Clients come by token: a client
certificate would end here. Commands may come from any thread.
"""

import asyncio
import json
import ssl
import time
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import aiohttp
from yarl import URL

from tests.support.controlplane import ControlPlane
from tests.support.loopthread import LoopThread
from tests.support.pki import Ca
from tests.support.scripted import Reply, Request, ScriptedServer

WatchEnd = Literal["head, reset", "half a line, reset", "head, end", "line, end"]
"""What a watch brings before it is over, and whether it ends as a healthy one does."""

_BY_HOP = {"connection", "content-length", "host", "keep-alive", "transfer-encoding"}
_INITIAL_END = b'"k8s.io/initial-events-end":"true"'


@dataclass
class Passed:
    """One request. `kind` is "list" for a streaming list, too, which ends with its end mark; `look`:
    a list of one object. Units: monotonic seconds."""

    kind: Literal["list", "watch", "get"]
    path: str
    token: str
    look: bool = False
    began_s: float = field(default_factory=time.monotonic)
    ended_s: float | None = None
    status: int = 0


class TlsProxy:
    """The proxy; a context manager. What passes is in `passed`, oldest first; what `swallow`
    took in `swallowed`."""

    def __init__(self, cluster: ControlPlane, directory: Path) -> None:
        self.passed: list[Passed] = []
        self.swallowed: list[bytes] = []
        self.ends: dict[str, WatchEnd] = {}
        """How each watch of a path ends that is opened from now on; without an entry as the server
        ends it."""
        self.list_s = 0.0
        """How long each list is on the way, at least. Units: seconds."""
        self._cluster = cluster
        self._directory = directory
        authority, files = Ca("the proxy's authority"), directory / "proxy"
        self.ca = authority.write(files)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*authority.issue("the proxy").write(files, "proxy"))
        self._server = ScriptedServer(self._serve, ssl_context=context)
        self._thread = LoopThread("TLS proxy")
        self._session: aiohttp.ClientSession | None = None
        self._unwanted: Callable[[dict[str, Any]], bool] | None = None
        self._refused = ""
        self._refusing = asyncio.Event()
        self._ending = asyncio.Event()

    def __enter__(self) -> Self:
        async def start() -> None:
            trusted = ssl.create_default_context(cafile=str(self._cluster.ca))
            connector = aiohttp.TCPConnector(ssl=trusted, limit=0)
            self._session = aiohttp.ClientSession(
                connector=connector,
                auto_decompress=False,
                timeout=aiohttp.ClientTimeout(total=None),
            )
            await self._server.__aenter__()

        self._thread.start()
        self._thread.run(start())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        async def stop() -> None:
            assert self._session is not None, "was not entered"
            async with self._session:
                await self._server.__aexit__(kind, error, trace)

        try:
            self._thread.run(stop())
        finally:
            self._thread.stop()

    # ---- commands --------------------------------------------------------------------------------

    def kubeconfig(self, name: str, **user: str) -> Path:
        """A kubeconfig that leads through here; `user` is the user's entry, such as `token` or
        `tokenFile`."""
        path = self._cluster.write_kubeconfig(name, server=self._server.url)
        config = json.loads(path.read_text())
        config["clusters"][0]["cluster"]["certificate-authority"] = str(self.ca)
        config["users"][0]["user"] = user
        path.write_text(json.dumps(config))
        return path

    def cut(self) -> None:
        """Ends every connection; new ones are taken."""
        self._thread.run(self._server.restart())

    def close(self) -> None:
        """Ends every connection, and refuses new ones until `open`."""
        self._thread.run(self._server.stop())

    def open(self) -> None:
        """Takes connections again."""
        self._thread.run(self._server.serve_again())

    def end_watches(self) -> None:
        """Ends every watch that is open as the server does when its time is up."""

        def end() -> None:
            ending, self._ending = self._ending, asyncio.Event()
            ending.set()

        self._thread.call(end)

    def swallow(self, unwanted: Callable[[dict[str, Any]], bool] | None) -> None:
        """Events of watches that are `unwanted`, by their decoded lines, are left out, until None
        is. Lists are whole."""
        self._unwanted = unwanted

    def hold_back(self, token: str) -> None:
        """Requests that come with this token are not answered until `refuse_held`."""
        self._thread.call(self._refusing.clear)
        self._refused = token

    def refuse_held(self) -> None:
        """They are now, and so are others with it: by the server, which never gave out what is put
        in the token's place."""
        self._thread.call(self._refusing.set)

    # ---- what passed -----------------------------------------------------------------------------

    def of(self, kind: str, *, since_s: float = 0.0) -> list[Passed]:
        """The requests of a kind that began since then."""
        return [each for each in self.passed if each.kind == kind and each.began_s >= since_s]

    # ---- connections -----------------------------------------------------------------------------

    async def _serve(self, request: Request, reply: Reply) -> None:
        assert self._session is not None, "was not entered"
        watching, streaming = (
            request.query.get("watch") == "1",
            "sendInitialEvents" in request.query,
        )
        kind: Any = (
            "list"
            if streaming
            else "watch"
            if watching
            else "list"
            if _is_collection(request.path)
            else "get"
        )
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        passed = Passed(kind, request.path, token, look=request.query.get("limit") == "1")
        self.passed.append(passed)
        url = URL(f"{self._cluster.url}{request.path}", encoded=True).with_query(request.query)
        headers = [(name, value) for name, value in request.raw_headers if name not in _BY_HOP]
        if self._refused and passed.token == self._refused:
            await self._refusing.wait()
            headers = [
                (name, "Bearer none" if name == "authorization" else value)
                for name, value in headers
            ]
        try:
            async with self._session.get(url, headers=headers, allow_redirects=False) as answer:
                passed.status = answer.status
                if kind == "list" and self.list_s:
                    await asyncio.sleep(self.list_s)
                await reply.start(
                    answer.status,
                    {
                        name: value
                        for name, value in answer.headers.items()
                        if name.lower() not in _BY_HOP
                    },
                    length=0 if answer.status == 304 else None,
                )
                if watching and answer.status == 200:
                    carried = await _first_of(
                        self._carry(answer, reply, passed), reply.gone(), self._ending.wait()
                    )
                    if carried is True:
                        await reply.end()
                else:
                    async for piece in answer.content.iter_any():
                        await reply.chunk(piece)
                    await reply.end()
        except* (aiohttp.ClientError, OSError):
            await reply.reset()
        finally:
            passed.ended_s = passed.ended_s or time.monotonic()

    async def _carry(self, answer: aiohttp.ClientResponse, reply: Reply, passed: Passed) -> None:
        """A watch, line by line."""
        end, live = (
            self.ends.get(passed.path) if passed.kind == "watch" else None,
            passed.kind == "watch",
        )
        if end == "head, reset":
            return await reply.reset()
        if end == "head, end":
            return await reply.end()
        held = b""
        async for piece in answer.content.iter_any():
            held += piece
            while b"\n" in held:
                line, _, held = held.partition(b"\n")
                if end == "half a line, reset":
                    await reply.chunk(line[: len(line) // 2])
                    return await reply.reset()
                if live and self._takes(line):
                    continue
                await reply.chunk(line + b"\n")
                if _INITIAL_END in line:
                    passed.ended_s, live = time.monotonic(), True
                if end == "line, end":
                    return await reply.end()
        return await reply.end()

    def _takes(self, line: bytes) -> bool:
        if self._unwanted is None or not self._unwanted(json.loads(line)):
            return False
        self.swallowed.append(line)
        return True


def most_at_once(spans: Iterable[Passed]) -> int:
    """How many of these were on the way at the same time, at most."""
    ended = [(each.began_s, each.ended_s or float("inf")) for each in spans]
    return max(
        (sum(began_s <= at_s < ended_s for began_s, ended_s in ended) for at_s, _ in ended),
        default=0,
    )


def _is_collection(path: str) -> bool:
    """Whether this is the path of objects, and not one of discovery: /api/v1/...,
    /apis/GROUP/VERSION/..."""
    parts = path.strip("/").split("/")
    return len(parts) > (2 if parts[0] == "api" else 3) and parts[0] in {"api", "apis"}


async def _first_of(*works: Coroutine[Any, Any, object]) -> object:
    """What the first of these returned that is done; the others are cancelled."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(work, name="carry") for work in works]
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        return next(iter(done)).result()
