"""A proxy between a synthetic API server and its clients, and answers in its place, oddly, as a
seed says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from aiohttp import web

from tests.fuzz.oddjson import odd_value, text
from tests.fuzz.oddlines import LINES, LISTS, Source, status
from watchrelay.demo.catalog import AGGREGATED_TYPE

STATUSES = (
    200,
    201,
    204,
    206,
    301,
    302,
    304,
    307,
    400,
    402,
    403,
    404,
    405,
    406,
    408,
    409,
    410,
    415,
    418,
    422,
    451,
    501,
    599,
    999,
)
"""What is the trouble of one resource, or nonsense."""
SERVER_STATUSES = (401, 407, 429, 431, 500, 502, 503, 504)
"""What keeps all streams away."""
RETRY_AFTER = (
    "",
    "-1",
    "0",
    "1",
    "abc",
    "1e9",
    "9" * 30,
    "Wed, 21 Oct 2015 07:28:00 GMT",
    "Fri, 31 Dec 9999 23:59:59 GMT",
    "5, 6",
    "²",
)

KINDS = (*LINES, *LISTS, "statuses", "endings")

Tell = Callable[[str], None]


@dataclass(slots=True)
class OddSource:
    """One resource whose answers are odd while it is `active`. `kinds`: what its oddness is;
    `share` of its answers are odd."""

    source: Source
    kinds: tuple[str, ...]
    share: float
    tell: Tell
    active: bool = False
    answers: int = 0
    open: set[asyncio.Event] = field(default_factory=set)

    @property
    def plural(self) -> str:
        """As in paths."""
        return self.source.resource.plural

    def sane(self) -> None:
        """Answer as the server does from now on; what is open ends."""
        self.active = False
        for each in self.open:
            each.set()

    async def answer(self, request: web.Request) -> web.StreamResponse | None:
        """An odd answer; None to have the server itself answer."""
        rng = self.source.rng
        if not self.active or rng.random() > self.share:
            return None
        self.answers += 1
        watching = request.query.get("watch", "") in {"1", "true"}
        lines = [kind for kind in self.kinds if kind in LINES]
        lists = [kind for kind in self.kinds if kind in LISTS]
        if "statuses" in self.kinds and rng.random() < (0.3 if lines or lists else 0.9):
            return self._status(rng.choice(STATUSES))
        if watching and (lines or "endings" in self.kinds):
            return await self._watch(request, lines)
        if not watching and lists:
            kind = rng.choice(lists)
            body = LISTS[kind](self.source, request.query.get("continue", ""))
            self.tell(f"{self.plural}: {kind}: {shown(body)}")
            return _body(body)
        return None

    def _status(self, code: int) -> web.Response:
        response = odd_status(self.source.rng, code)
        self.tell(f"{self.plural}: status {code} {dict(response.headers)} {shown(response.body)}")
        return response

    async def _watch(self, request: web.Request, kinds: list[str]) -> web.StreamResponse:
        """True events, and odd lines between them, to an end of some kind."""
        rng, ended = self.source.rng, asyncio.Event()
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        self.open.add(ended)
        try:
            for _ in range(rng.choice([0, 1, 1, 2, 3, 6])):
                if not self.active:
                    # an object that does not exist, at a version behind the compacted one, would
                    # never be found
                    break
                kind = rng.choice(kinds) if kinds else "known again"
                line = LINES[kind](self.source)
                self.tell(f"{self.plural}: {kind}: {shown(line)}")
                await response.write(
                    line.encode("utf-8", "surrogatepass")
                    + rng.choice([b"\n", b"\n", b"\n", b"\n\n", b"\r\n"])
                )
                await _until(ended, rng.choice([0, 0, 0.01, 0.3, 3.0]))
            how = rng.choice(["eof", "cut", "half a line", "silence", "silence"])
            self.tell(f"{self.plural}: watch ends by {how}")
            if how == "silence":
                await _until(ended, rng.choice([1.0, 20.0, 200.0]))
            elif how == "half a line":
                await response.write(LINES["ghosts"](self.source).encode()[: rng.randrange(1, 200)])
            if how == "cut" and request.transport is not None:
                request.transport.abort()
            else:
                await response.write_eof()
        except ConnectionError:
            self.tell(f"{self.plural}: the client left")
        finally:
            self.open.discard(ended)
        return response


async def _until(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return


def shown(body: Any) -> str:
    """As much as a log can bear."""
    shown_text = body if isinstance(body, str) else repr(body)
    return ascii(
        shown_text if len(shown_text) <= 300 else f"{shown_text[:150]}...{shown_text[-100:]}"
    )


def _body(body: str, content_type: str = "application/json") -> web.Response:
    return web.Response(
        body=body.encode("utf-8", "surrogatepass"), headers={"Content-Type": content_type}
    )


def odd_status(rng: Random, code: int) -> web.Response:
    """An answer with this code, and a body that may fit it."""
    headers = {
        "Content-Type": rng.choice(
            [
                "application/json",
                "text/html",
                "text/plain",
                "application/vnd.kubernetes.protobuf",
                "odd",
            ]
        )
    }
    if rng.random() < 0.4:
        headers["Retry-After"] = rng.choice(RETRY_AFTER)
    if 300 <= code < 400:
        headers["Location"] = rng.choice(["/", "http://127.0.0.1:1/", "", "file:///etc"])
    body = rng.choice(
        [
            text(status(rng, code)),
            text(status(rng, rng.choice([0, 200, 410, 504]))),
            text(odd_value(rng)),
            "",
            "<html>odd",
        ]
    )
    return web.Response(body=body.encode("utf-8", "surrogatepass"), status=code, headers=headers)


# ---- the whole server ----------------------------------------------------------------------------


def _prune(rng: Random, value: Any, odd: set[str]) -> Any:
    """Documents of discovery with odd values; what names a resource that is not of `odd` stays as
    it is."""
    if isinstance(value, dict):
        if {"resource", "verbs"} <= value.keys() or {"name", "verbs"} <= value.keys():
            if value.get("resource", value.get("name")) not in odd:
                return value
            return rng.choice(
                [{**value, rng.choice(list(value)): odd_value(rng)}, value, odd_value(rng)]
            )
        return {key: _prune(rng, item, odd) for key, item in value.items()}
    if isinstance(value, list):
        pruned = [_prune(rng, item, odd) for item in value]
        if rng.random() < 0.1:
            pruned.insert(rng.randint(0, len(pruned)), odd_value(rng))
        return pruned
    return odd_value(rng) if rng.random() < 0.01 else value


class OddServer:
    """Answers in the place of a server, for the resources that are odd, for discovery, and for all
    while it is `troubled`."""

    def __init__(self, rng: Random, sources: dict[str, OddSource], tell: Tell) -> None:
        self.sources = sources
        self.discovery = self.troubled = False
        self.answers = 0
        self._rng, self._tell = rng, tell
        self._document: Callable[[str], Any] = lambda _path: None

    def documents(self, find: Callable[[str], Any]) -> None:
        """Where true documents of discovery come from."""
        self._document = find

    async def intercept(self, request: web.Request) -> web.StreamResponse | None:
        """As `Behaviour.intercept` wants it."""
        rng = self._rng
        if self.troubled and rng.random() < 0.7:
            code = rng.choice(SERVER_STATUSES)
            self._tell(f"server: {code} to {request.path}")
            return odd_status(rng, code)
        parts = request.path.strip("/").split("/")
        source = next((self.sources[part] for part in parts if part in self.sources), None)
        if source is not None:
            return await source.answer(request)
        if (
            self.discovery
            and rng.random() < 0.6
            and (parts[0] == "version" or len(parts) <= (2 if parts[0] == "api" else 3))
        ):
            return self._discover(request, parts)
        return None

    def _discover(self, request: web.Request, parts: list[str]) -> web.Response | None:
        rng = self._rng
        self.answers += 1
        if parts == ["version"]:
            body = rng.choice(
                [
                    odd_value(rng),
                    {"major": odd_value(rng), "minor": "34+"},
                    {"gitVersion": odd_value(rng)},
                ]
            )
            self._tell(f"server: /version {shown(text(body))}")
            return _body(text(body))
        if rng.random() < 0.2:
            code = rng.choice([*STATUSES, 500, 503])
            self._tell(f"server: {code} to {request.path}")
            return odd_status(rng, code)
        document = (
            self._document(request.path)
            if AGGREGATED_TYPE in request.headers.get("Accept", "")
            else None
        )
        if document is None:
            return None
        body = text(_prune(rng, json.loads(json.dumps(document)), set(self.sources)))
        self._tell(f"server: discovery at {request.path}: {len(body)} characters")
        return _body(body, AGGREGATED_TYPE)
