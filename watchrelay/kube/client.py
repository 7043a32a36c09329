"""HTTP requests to the API server: lists, watches, documents."""

from __future__ import annotations

import asyncio
import re
import ssl
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import aiohttp
import msgspec
from multidict import CIMultiDict
from yarl import URL

from watchrelay.core import clock
from watchrelay.core.errors import (
    Interrupted,
    KubeError,
    Misconfigured,
    NotFound,
    Unavailable,
    Undecodable,
)
from watchrelay.core.text import BROKEN_JSON
from watchrelay.kube import status
from watchrelay.kube.auth.transport import (
    JSON,
    Credentials,
    Endpoint,
    connector_for,
    is_socks,
    says_json,
    tls_without_endpoint,
    user_agent,
)
from watchrelay.kube.page import NotAList, PageReader, TooLong
from watchrelay.kube.stream import FrameStream
from watchrelay.kube.translate import EXPECTED, certificate_error, translate
from watchrelay.model.frames import Frame, ListQuery, Page, WatchQuery
from watchrelay.model.resources import Selection
from watchrelay.observe.metrics import Metrics

__all__ = ["Credentials", "Document", "Endpoint", "KubeClient", "ServerVersion"]

ANSWER_TIMEOUT_S = 75.0
"""Longest wait for a whole page, and for the head of any answer: the server gives up at 60 s.
Source: docs/watch-facts.md 1.11."""

CONNECT_TIMEOUT_S = 15.0
DOCUMENT_BYTES_MAX = 64 << 20
"""Of a discovery document, unpacked. With ten thousand CRDs it has a few MiB."""
_ERROR_BODY_MAX = 256 << 10
_ERROR_BODY_TIMEOUT_S = 5.0

_METADATA_LIST = f"{JSON};as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,{JSON}"
_METADATA_WATCH = f"{JSON};as=PartialObjectMetadata;g=meta.k8s.io;v=v1,{JSON}"
"""Singular: with the list form the server would fall back to whole objects. Source:
docs/watch-facts.md 9.1."""


READ_BUFFER_BYTES = 128 << 10
"""Per open response, filled only while events come faster than they are taken: then 50 of 5 KB come
at once instead of 17, and each round handles more of them."""

Opening = Callable[[], Awaitable[aiohttp.ClientResponse]]

WATCH_GRACE_S = 15.0
"""How long past its timeoutSeconds a watch may stay open until we close it. Source:
docs/watch-facts.md 2.14."""


@dataclass(frozen=True, slots=True)
class Document:
    """An answer to `get_json`. `unchanged` (304): the body is empty, and what was fetched with this
    ETag before still holds."""

    body: bytes
    content_type: str
    etag: str
    unchanged: bool = False


@dataclass(frozen=True, slots=True, order=True)
class ServerVersion:
    """The answer to `/version`. 0 for a part that is no number; `git` is "v1.34.2"."""

    major: int
    minor: int
    git: str


@dataclass(frozen=True, slots=True)
class _Proof:
    """The headers and the TLS context of one request."""

    headers: list[tuple[str, str]] = field(repr=False)
    context: ssl.SSLContext | None


class KubeClient:
    """The API server of one cluster. Enter it as a context; requests may run side by side without
    bound."""

    def __init__(self, credentials: Credentials, metrics: Metrics) -> None:
        self._credentials = credentials
        self._requests = metrics.counter("kube_requests")
        self._durations = metrics.histogram("kube_request_duration_seconds")
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=connector_for(self._credentials.endpoint),
            timeout=aiohttp.ClientTimeout(
                total=None, connect=2 * CONNECT_TIMEOUT_S, sock_connect=CONNECT_TIMEOUT_S
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers={"Accept", "Accept-Encoding", "User-Agent"},
            read_bufsize=READ_BUFFER_BYTES,
            max_line_size=64 << 10,
            max_field_size=64 << 10,
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection. TLS connections are aborted: a close handshake would wait for the
        server."""
        if self._session is not None:
            if self._session.connector is not None:
                await self._session.connector.close(abort_ssl=True)
            await self._session.close()

    @property
    def where(self) -> str:
        """The server's host and port, for people."""
        try:
            url = URL(self._credentials.endpoint.url)
        except ValueError:
            return "the API server"
        return f"{url.host}:{url.port}" if url.host else "the API server"

    # ---- the watch's Source port -----------------------------------------------------------------

    async def list_page(self, selection: Selection, query: ListQuery, *, stream: str) -> Page:
        """One response of a list.

        Raises: KubeError; nothing of a page that failed half-way is kept.
        """
        params = _selectors(selection)
        if query.limit:
            params["limit"] = str(query.limit)
        for name, value in (
            ("continue", query.continue_token),
            ("resourceVersion", query.resource_version),
            ("resourceVersionMatch", query.version_match),
        ):
            if value:
                params[name] = value
        headers = {
            "Accept": _METADATA_LIST if selection.metadata_only and not query.plain else JSON,
            "Accept-Encoding": "gzip" if self._credentials.endpoint.compress else "identity",
        }
        what = self._what("list", selection)
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                response = await self._select(
                    "list", selection, params, headers, stream=stream, what=what
                )
                try:
                    return await self._read_page(response, selection, what=what)
                finally:
                    response.release() if response.content.at_eof() else leave(response)
        except TimeoutError as error:
            raise Unavailable(f"{what}: no whole answer within {ANSWER_TIMEOUT_S:.0f} s") from error

    async def _read_page(
        self, response: aiohttp.ClientResponse, selection: Selection, *, what: str
    ) -> Page:
        reader = PageReader(selection)
        first = b""
        try:
            while chunk := await response.content.readany():
                if len(first) < _ERROR_BODY_MAX:
                    first += chunk
                reader.feed(chunk)
                await asyncio.sleep(0)  # a chunk that lay ready is no turn of the loop
        except TooLong as error:
            raise Undecodable(f"{what}: {error}") from None
        except EXPECTED as error:
            raise translate(error, what=what) from error
        try:
            return reader.finish()
        except NotAList as error:
            known = status.read_status(first)
            if known is not None or not says_json(response.headers.get("Content-Type", "")):
                raise status.from_response(
                    response.status, response.headers, first, what=what, wall_ms=clock.wall_ms()
                ) from error
            if error.whole:
                raise Undecodable(f"{what}: the list cannot be decoded: {error}") from error
            raise Unavailable(
                f"{what}: the answer is not a whole list: {error}", status=response.status
            ) from error

    def watch(
        self, selection: Selection, query: WatchQuery, *, stream: str
    ) -> AbstractAsyncContextManager[AsyncIterator[list[Frame]]]:
        """A watch, opened on entering: the frames of each received chunk, never none; it ends where
        the server ended it cleanly.

        Raises: KubeError on entering and from the iterator; a watch that raised is over.
        """
        what = self._what("watch", selection)
        return WatchResponse(
            lambda: self._open(selection, query, stream=stream, what=what),
            selection,
            query,
            what=what,
        )

    async def _open(
        self, selection: Selection, query: WatchQuery, *, stream: str, what: str
    ) -> aiohttp.ClientResponse:
        params = _selectors(selection) | {"watch": "1", "timeoutSeconds": str(query.timeout_s)}
        if query.resource_version:
            params["resourceVersion"] = query.resource_version
        if query.bookmarks:
            params["allowWatchBookmarks"] = "true"
        if query.send_initial_events:
            params |= {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
        partial = selection.metadata_only and not query.plain
        # Servers from 1.37 gzip a streaming list in one member per flush, which decoders cut short
        # (docs/watch-facts.md 0, D1).
        headers = {"Accept": _METADATA_WATCH if partial else JSON, "Accept-Encoding": "identity"}
        response = await self._select("watch", selection, params, headers, stream=stream, what=what)
        if not says_json(response.headers.get("Content-Type", "")):
            raise await self._refused(response, what=what)
        return response

    # ---- discovery -------------------------------------------------------------------------------

    async def get_json(self, path: str, headers: Mapping[str, str] | None = None) -> Document:
        """The document at `path`, undecoded. Raises: KubeError."""
        what = f"get {path} at {self.where}"
        sent = {
            "Accept": JSON,
            "Accept-Encoding": "gzip" if self._credentials.endpoint.compress else "identity",
            **(headers or {}),
        }
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                response = await self._send("get", path, {}, sent, stream="discovery", what=what)
                try:
                    body = b"" if response.status == 304 else await _whole(response, what=what)
                finally:
                    response.release() if response.content.at_eof() else leave(response)
        except TimeoutError as error:
            raise Unavailable(f"{what}: no whole answer within {ANSWER_TIMEOUT_S:.0f} s") from error
        except EXPECTED as error:
            raise translate(error, what=what) from error
        kind = response.headers.get("Content-Type", "")
        if response.status != 304 and not says_json(kind):
            raise status.from_response(
                response.status, response.headers, body, what=what, wall_ms=clock.wall_ms()
            )
        return Document(
            body, kind, response.headers.get("ETag", ""), unchanged=response.status == 304
        )

    async def version(self) -> ServerVersion:
        """The server's version. Raises: KubeError."""
        try:
            document = await self.get_json("/version")
        except NotFound as error:  # every API server has one
            raise NotFound(f"{error}; {status.NOT_AN_API_SERVER}", status=error.status) from error
        try:
            version = msgspec.json.decode(document.body, type=dict[str, object])
        except BROKEN_JSON as error:
            raise Unavailable(
                f"get /version at {self.where}: the answer is not JSON; {status.NOT_AN_API_SERVER}"
            ) from error
        return ServerVersion(
            _number(version.get("major")),
            _number(version.get("minor")),
            str(version.get("gitVersion", "")),
        )

    # ---- one request -----------------------------------------------------------------------------

    def _what(self, verb: str, selection: Selection) -> str:
        within = f" in namespace {selection.namespace}" if selection.namespace else ""
        return f"{verb} {selection.resource.qualified}{within} at {self.where}"

    async def _select(
        self,
        verb: str,
        selection: Selection,
        params: Mapping[str, str],
        headers: Mapping[str, str],
        *,
        stream: str,
        what: str,
    ) -> aiohttp.ClientResponse:
        try:
            return await self._send(verb, selection.path, params, headers, stream=stream, what=what)
        except KubeError as error:
            error.cause = error.cause.about(selection.resource.qualified, verb)
            raise

    async def _send(
        self,
        verb: str,
        path: str,
        params: Mapping[str, str],
        headers: Mapping[str, str],
        *,
        stream: str,
        what: str,
    ) -> aiohttp.ClientResponse:
        """The response with its head read, of status 200 (or 304). The caller closes or releases
        it.

        Raises: KubeError. A 401 is tried again once, at once, with fresh credentials; a certificate
        that does not verify likewise, with the CA read again (it may just have been replaced).
        """
        proof = await self._proof()
        asked_s = clock.now_s()
        try:
            response = await self._attempt(
                verb, path, params, headers, proof, stream=stream, what=what
            )
        except Misconfigured as error:
            if certificate_error(error.__cause__) is None:
                raise
            self._credentials.distrusted(asked_s)
            response = await self._attempt(
                verb, path, params, headers, await self._proof(), stream=stream, what=what
            )
        if response.status == 401:
            leave(response)
            await self._credentials.rejected(asked_s)
            try:
                response = await self._attempt(
                    verb, path, params, headers, await self._proof(), stream=stream, what=what
                )
            except Misconfigured as error:
                # there is no other credential, but the server is up
                raise Misconfigured(str(error), status=401) from error
        if response.status == 200 or (response.status == 304 and "If-None-Match" in headers):
            return response
        raise await self._refused(response, what=what)

    async def _proof(self) -> _Proof:
        return _Proof(await self._credentials.headers(), await self._credentials.tls())

    async def _attempt(
        self,
        verb: str,
        path: str,
        params: Mapping[str, str],
        headers: Mapping[str, str],
        proof: _Proof,
        *,
        stream: str,
        what: str,
    ) -> aiohttp.ClientResponse:
        assert self._session is not None, "enter the client first"
        sent: CIMultiDict[str] = CIMultiDict(headers)
        sent["User-Agent"] = user_agent(stream)
        for name, value in proof.headers:
            if not value.isprintable():
                raise Misconfigured(
                    f"{what}: the {name} header that the credentials give contains control "
                    "characters"
                )
            sent.add(name, value)
        endpoint = self._credentials.endpoint
        code, began_s = "0", clock.now_s()
        try:
            url = URL(endpoint.url.rstrip("/") + path)
            # it goes before a user in the URL, as in Go's client; aiohttp takes no request with
            # both
            if "Authorization" in sent:
                url = url.with_user(None)
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                response = await self._session.get(
                    url,
                    params=params,
                    headers=sent,
                    allow_redirects=False,
                    ssl=proof.context
                    if proof.context is not None
                    else tls_without_endpoint(endpoint.proxy),
                    server_hostname=endpoint.server_hostname,
                    proxy=None if is_socks(endpoint) else endpoint.proxy,
                )
            code = str(response.status)
        except (*EXPECTED, ValueError) as error:
            # a ValueError is of an invalid host name: yarl, socket and ssl have no class for it
            raise translate(error, what=what) from error
        finally:
            self._requests.labels(verb, code).inc()
            self._durations.labels(verb).observe(clock.now_s() - began_s)
        return response

    async def _refused(self, response: aiohttp.ClientResponse, *, what: str) -> KubeError:
        """The error of an answer that is not 200; its body is read as far as it is useful."""
        body = b""
        try:
            async with asyncio.timeout(_ERROR_BODY_TIMEOUT_S):
                while len(body) < _ERROR_BODY_MAX and (chunk := await response.content.readany()):
                    body += chunk
        except EXPECTED:
            body = body or b" "  # the code is enough
        finally:
            response.release() if response.content.at_eof() and response.status != 401 else leave(
                response
            )
        for credential in _credentials_of(response, self._credentials.endpoint.proxy):
            body = body.replace(credential, b"<redacted>")
        return status.from_response(
            response.status, response.headers, body, what=what, wall_ms=clock.wall_ms()
        )


class WatchResponse:
    """One watch: context manager and iterator in one.

    Entering opens it; it then yields the frames of each received chunk, never none, and ends where
    the server ended it cleanly.
    Raises: KubeError on entering and from the iterator; a watch that raised is over, and its
    connection closed: aiohttp would repeat the same error (docs/watch-facts.md 0, D3).
    """

    def __init__(
        self, opening: Opening, selection: Selection, query: WatchQuery, *, what: str
    ) -> None:
        self._opening = opening
        self._query = query
        self._what = what
        self._frames = FrameStream(selection)
        self._response: aiohttp.ClientResponse | None = None
        self._ends_s = 0.0
        self._over = False

    async def __aenter__(self) -> Self:
        self._response = await self._opening()
        self._ends_s = _loop_s() + self._query.timeout_s + WATCH_GRACE_S
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._response is not None:
            self._response.release() if self._response.content.at_eof() else leave(self._response)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[Frame]:
        while not self._over:
            chunk = await self._receive()
            if chunk:
                frames = self._frames.feed(chunk)
                self._over = self._frames.ended
            else:
                frames = self._frames.finish()
                self._over = True
            if frames:
                return frames
        raise StopAsyncIteration

    async def _receive(self) -> bytes:
        """The next bytes, b"" at a clean end. The deadline covers this one receive, never the
        consumer's work."""
        assert self._response is not None
        content = self._response.content
        try:
            if ready := content.read_nowait():
                return ready
            left_s = self._ends_s - _loop_s()
            async with asyncio.timeout(min(self._query.idle_timeout_s, max(0.0, left_s))):
                return await content.readany()
        except EXPECTED as error:
            self._over = True
            leave(self._response)
            if isinstance(error, TimeoutError) and not isinstance(error, aiohttp.ClientError):
                raise self._silent() from error
            raise translate(error, what=self._what) from error

    def _silent(self) -> KubeError:
        if _loop_s() >= self._ends_s:
            return Interrupted(
                f"{self._what}: the server kept the watch open past its timeoutSeconds"
            )
        error = Interrupted(f"{self._what}: nothing came for {self._query.idle_timeout_s:.0f} s")
        error.reason = "inactive"
        return error


def _loop_s() -> float:
    """The time that deadlines are measured in, which is virtual in simulations."""
    return asyncio.get_running_loop().time()


def leave(response: aiohttp.ClientResponse) -> None:
    """Abort a response and its connection: a TLS close handshake would wait for the server."""
    connection = response.connection
    if connection is not None and connection.transport is not None:
        connection.transport.abort()
    response.close()


def _credentials_of(response: aiohttp.ClientResponse, proxy: str | None) -> Iterator[bytes]:
    """What a request carried that its answer may repeat: some servers and proxies quote the request
    in their complaint."""
    if sent := response.request_info.headers.get("Authorization", "").rpartition(" ")[2]:
        yield sent.encode()
    if proxy is not None and (password := URL(proxy).password):
        yield b64encode(f"{URL(proxy).user or ''}:{password}".encode())
        yield password.encode()


async def _whole(response: aiohttp.ClientResponse, *, what: str) -> bytes:
    """The body of a document. Raises: Unavailable when it is longer than any such document; those
    of `EXPECTED`."""
    parts: list[bytes] = []
    left = DOCUMENT_BYTES_MAX
    while chunk := await response.content.readany():
        left -= len(chunk)
        if left < 0:
            raise Unavailable(
                f"{what}: the answer is longer than {DOCUMENT_BYTES_MAX >> 20} MiB; is this URL "
                "the API server's?"
            )
        parts.append(chunk)
    return b"".join(parts)


def _selectors(selection: Selection) -> dict[str, str]:
    pairs = (
        ("labelSelector", selection.label_selector),
        ("fieldSelector", selection.field_selector),
    )
    return {name: value for name, value in pairs if value}


def _number(value: object) -> int:
    """The leading digits: managed clusters send "34+". More than nine are no version, and Python
    makes no int of more than 4300."""
    digits = re.match(r"[0-9]{0,9}(?![0-9])", str(value))
    return int(digits[0] or "0") if digits else 0
