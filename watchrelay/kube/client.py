"""HTTP requests to the API server: lists, watches, documents."""

from __future__ import annotations

import asyncio
import re
import ssl
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Self

import aiohttp
import msgspec
from multidict import CIMultiDict
from yarl import URL

from watchrelay.core import clock
from watchrelay.core.clock_offset import TimeAnswers
from watchrelay.core.errors import (
    Forbidden,
    KubeError,
    Misconfigured,
    NotFound,
    Unanswered,
    Unavailable,
    Undecodable,
)
from watchrelay.core.text import BROKEN_JSON
from watchrelay.core.turns import Turns
from watchrelay.kube import status
from watchrelay.kube.auth.transport import (
    JSON,
    Credentials,
    connector_for,
    is_socks,
    says_json,
    tls_without_endpoint,
    user_agent,
)
from watchrelay.kube.page import NotAList, PageReader, TooLong
from watchrelay.kube.part_filter import CountForeign, uncounted
from watchrelay.kube.stream import FrameReader
from watchrelay.kube.translate import EXPECTED, certificate_error, translate
from watchrelay.kube.watch_frames import Align, Take, WatchFrames, leave, refuse
from watchrelay.model.builtin import is_own_group
from watchrelay.model.frames import Frame, ListQuery, Page, WatchQuery
from watchrelay.model.resources import Selection
from watchrelay.observe.metrics import Metrics

ANSWER_TIMEOUT_S = 75.0
"""Longest wait for a whole page, and for the head of any answer: the server gives up at 60 s.
Source: docs/watch-facts.md 1.11."""
CONNECT_TIMEOUT_S = 15.0
DOCUMENT_BYTES_MAX = 64 << 20
"""Of a discovery document, unpacked. With ten thousand CRDs it has a few MiB."""
READ_BUFFER_BYTES = 128 << 10
"""Per open response, filled only while events come faster than they are taken: then 50 of 5 KB come
at once instead of 17, and each round handles more of them."""
_ERROR_BODY_MAX = 256 << 10
_HELD_BACK = (
    " (a proxy before the API server must pass on a watch as it comes: turn its buffering off, in "
    "nginx by proxy_buffering off; else the server is frozen or overloaded)"
)
_ERROR_BODY_TIMEOUT_S = 5.0

# Singular for a watch: with the list form the server would send whole objects. Source:
# docs/watch-facts.md 9.1.
_METADATA_LIST = f"{JSON};as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,{JSON}"
_METADATA_WATCH = f"{JSON};as=PartialObjectMetadata;g=meta.k8s.io;v=v1,{JSON}"


@dataclass(frozen=True, slots=True)
class Document:
    """An answer to `get_json`. `unchanged` (304): what was fetched with this ETag before still
    holds."""

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
class _ApiRequest:
    """One request; `what` names it in errors, parameters that are "" are not sent."""

    verb: str
    path: str
    params: Mapping[str, str]
    headers: Mapping[str, str]
    stream: str
    what: str
    resource: str = ""


class KubeClient:
    """The API server of one cluster. Enter it as a context; requests may run side by side without
    bound. `align` as of WatchFrames; `times` is given the times of the server's answers."""

    def __init__(
        self,
        credentials: Credentials,
        metrics: Metrics,
        align: Align | None = None,
        times: TimeAnswers | None = None,
    ) -> None:
        self._credentials, self._align, self._times = credentials, align, times
        self._metrics = metrics
        self._requests = metrics.counter("kube_requests")
        self._durations = metrics.histogram("kube_request_duration_seconds")
        self._session: aiohttp.ClientSession | None = None
        self._encoding = "gzip" if credentials.endpoint.compress else "identity"

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

    async def __aexit__(self, *_: object) -> None:
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

    async def list_page(self, selection: Selection, query: ListQuery, *, stream: str) -> Page:
        """One response of a list.

        Raises: KubeError; nothing of a page that failed half-way is kept.
        """
        partial = selection.metadata_only and not query.whole_objects
        request = self._select(
            "list",
            selection,
            {
                "limit": str(query.limit or ""),
                "continue": query.continue_token,
                "resourceVersion": query.resource_version,
                "resourceVersionMatch": query.version_match,
            },
            {"Accept": _METADATA_LIST if partial else JSON, "Accept-Encoding": self._encoding},
            stream,
        )
        count_foreign = self._foreign_counter(selection, stream)
        what, reader, first = request.what, PageReader(selection, count_foreign=count_foreign), b""
        async with self._answer(request) as response:
            while chunk := await response.content.readany():
                if len(first) < _ERROR_BODY_MAX:
                    first += chunk
                try:
                    reader.feed(chunk)
                except TooLong as error:
                    raise Undecodable(f"{what}: {error}") from None
                await asyncio.sleep(0)  # a chunk that lay ready is no turn of the loop
        pieces = Turns()
        try:
            for _ in reader.pieces():
                await pieces.pause()
            return reader.finish()
        except NotAList as error:
            if status.read_status(first) is not None or not says_json(response):
                raise _unusable(response, first, what) from error
            if error.whole:
                raise Undecodable(f"{what}: the list cannot be decoded: {error}") from error
            raise Unavailable(
                f"{what}: the answer is not a whole list: {error}", status=response.status
            ) from error

    @asynccontextmanager
    async def watch(
        self, selection: Selection, query: WatchQuery, *, stream: str, take: Take = refuse
    ) -> AsyncIterator[AsyncIterator[list[Frame]]]:
        """A watch, opened on entering: the frames of what was received at once, never none; it ends
        where the server ended it cleanly.

        Args:
            take: Offered the frames first, while the iterator is waited for, in the step of the
                event loop that received them. False: it did nothing, and the iterator has them.

        Raises: KubeError on entering and from the iterator; a watch that raised is over.
        """
        initial = query.send_initial_events
        partial = selection.metadata_only and not query.whole_objects
        request = self._select(
            "watch",
            selection,
            {
                "watch": "1",
                "timeoutSeconds": str(query.timeout_s),
                "resourceVersion": query.resource_version,
                "allowWatchBookmarks": "true" if query.bookmarks else "",
                "sendInitialEvents": "true" if initial else "",
                "resourceVersionMatch": "NotOlderThan" if initial else "",
            },
            # Servers from 1.37 gzip a streaming list in one member per flush, which decoders cut
            # short (docs/watch-facts.md 0, D1).
            {"Accept": _METADATA_WATCH if partial else JSON, "Accept-Encoding": "identity"},
            stream,
        )
        try:
            response = await self._send(request)
        except Unanswered as error:
            late = Unanswered(error.what, cure=_HELD_BACK)
            late.subject = error.subject
            raise late from error
        try:
            if not says_json(response):
                raise await self._refused(response, request)
            frames = FrameReader(selection, count_foreign=self._foreign_counter(selection, stream))
            yield WatchFrames(response, frames, query, request.what, take, self._align)
        finally:
            leave(response)

    async def get_json(self, path: str, headers: Mapping[str, str] | None = None) -> Document:
        """The discovery document at `path`, undecoded. Raises: KubeError."""
        try:
            return await self._document(path, headers or {})
        except Forbidden as error:
            cure = status.DISCOVERY_CURE
            raise Forbidden(error.what, status=error.status, cure=cure) from error

    async def _document(self, path: str, headers: Mapping[str, str]) -> Document:
        what = f"get {path} at {self.where}"
        sent = {"Accept": JSON, "Accept-Encoding": self._encoding, **headers}
        body = bytearray()
        async with self._answer(_ApiRequest("get", path, {}, sent, "discovery", what)) as response:
            while chunk := await response.content.readany():
                body += chunk
                if len(body) > DOCUMENT_BYTES_MAX:
                    raise Unavailable(
                        f"{what}: the answer is longer than {DOCUMENT_BYTES_MAX >> 20} MiB; "
                        f"{status.NOT_AN_API_SERVER}"
                    )
        unchanged = response.status == 304
        if not unchanged and not says_json(response):
            raise _unusable(response, bytes(body), what)
        kind, etag = (response.headers.get(name, "") for name in ("Content-Type", "ETag"))
        return Document(bytes(body), kind, etag, unchanged)

    async def version(self, *, within_s: float | None = None) -> ServerVersion:
        """The server's version. Raises: KubeError; TimeoutError without an answer in time."""
        try:
            await self._proof()  # an exec plugin has a timeout of its own, and its run is kept
        except EXPECTED as error:
            raise translate(error, what="get /version") from error
        try:
            async with asyncio.timeout(within_s):
                document = await self.get_json("/version")
        except NotFound as error:  # every API server has one
            raise NotFound(f"{error}; {status.NOT_AN_API_SERVER}", status=error.status) from error
        try:
            version = msgspec.json.decode(document.body, type=dict[str, object])
        except BROKEN_JSON as error:
            raise Unavailable(
                f"get /version at {self.where}: the answer is not JSON; {status.NOT_AN_API_SERVER}"
            ) from error
        major, minor = _number(version.get("major")), _number(version.get("minor"))
        return ServerVersion(major, minor, str(version.get("gitVersion", "")))

    def _foreign_counter(self, selection: Selection, stream: str) -> CountForeign:
        if selection.part is None:
            return uncounted
        return self._metrics.stream(stream, selection.resource).events_filtered_total["part"].inc

    # ---- one request -----------------------------------------------------------------------------

    def _select(
        self,
        verb: str,
        selection: Selection,
        params: dict[str, str],
        headers: Mapping[str, str],
        stream: str,
    ) -> _ApiRequest:
        resource = selection.resource.qualified
        within = f" in namespace {selection.namespace}" if selection.namespace else ""
        params["labelSelector"] = selection.label_selector
        params["fieldSelector"] = selection.field_selector
        what = f"{verb} {resource}{within} at {self.where}"
        return _ApiRequest(verb, selection.path, params, headers, stream, what, resource)

    @asynccontextmanager
    async def _answer(self, request: _ApiRequest) -> AsyncIterator[aiohttp.ClientResponse]:
        """The answer, of which the whole body is to be read in time."""
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                response = await self._send(request)
                try:
                    yield response
                finally:
                    leave(response)
        except TimeoutError as error:
            raise Unavailable(
                f"{request.what}: no whole answer within {ANSWER_TIMEOUT_S:.0f} s"
            ) from error
        except EXPECTED as error:
            raise translate(error, what=request.what) from error

    async def _send(self, request: _ApiRequest) -> aiohttp.ClientResponse:
        """The response with its head read, of status 200 (or 304). The caller leaves it.

        Raises: KubeError. A 401 is tried again once, at once, with fresh credentials; a certificate
        that does not verify likewise, with the CA read again (it may just have been replaced).
        """
        try:
            response = await self._authenticated(request)
            if response.status == 200 or (
                response.status == 304 and "If-None-Match" in request.headers
            ):
                return response
            raise await self._refused(response, request)
        except KubeError as error:
            if request.resource:
                error.subject = request.resource
            raise

    async def _authenticated(self, request: _ApiRequest) -> aiohttp.ClientResponse:
        proof = await self._proof()
        asked_s = clock.now_s()
        try:
            response = await self._attempt(request, *proof)
        except Misconfigured as error:
            if certificate_error(error.__cause__) is None:
                raise
            self._credentials.distrusted(asked_s)
            response = await self._attempt(request, *await self._proof())
        if response.status != 401:
            return response
        leave(response)
        await self._credentials.rejected(asked_s)
        try:
            return await self._attempt(request, *await self._proof())
        except Misconfigured as error:
            # there is no other credential, but the server is up
            raise Misconfigured(str(error), status=401) from error

    async def _proof(self) -> tuple[list[tuple[str, str]], ssl.SSLContext | None]:
        return await self._credentials.headers(), await self._credentials.tls()

    async def _attempt(
        self, request: _ApiRequest, proof: list[tuple[str, str]], context: ssl.SSLContext | None
    ) -> aiohttp.ClientResponse:
        assert self._session is not None, "enter the client first"
        sent: CIMultiDict[str] = CIMultiDict(request.headers)
        sent["User-Agent"] = user_agent(request.stream)
        for name, value in proof:
            if not value.isprintable():
                raise Misconfigured(
                    f"{request.what}: the {name} header that the credentials give contains control "
                    "characters"
                )
            sent.add(name, value)
        endpoint = self._credentials.endpoint
        code, began_s, asked_s = "0", clock.now_s(), clock.boot_s()
        try:
            url = URL(endpoint.url.rstrip("/") + request.path)
            # it goes before a user in the URL, as in Go's client; aiohttp takes no request with
            # both
            if "Authorization" in sent:
                url = url.with_user(None)
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                response = await self._session.get(
                    url,
                    params={name: value for name, value in request.params.items() if value},
                    headers=sent,
                    allow_redirects=False,
                    ssl=tls_without_endpoint(endpoint.proxy) if context is None else context,
                    server_hostname=endpoint.server_hostname,
                    proxy=None if is_socks(endpoint) else endpoint.proxy,
                )
            code = str(response.status)
            self._note_time(response, asked_s)
        except (*EXPECTED, ValueError) as error:
            # a ValueError is of an invalid host name: yarl, socket and ssl have no class for it
            raise translate(error, what=request.what) from error
        finally:
            self._requests.labels(request.verb, code).inc()
            self._durations.labels(request.verb).observe(clock.now_s() - began_s)
        return response

    def _note_time(self, response: aiohttp.ClientResponse, asked_s: float) -> None:
        """Pass on the time of an answer that the server made for this request: a cache adds `Age`,
        and with 502 to 504 a proxy may have answered itself."""
        now_s = clock.boot_s()
        if self._times is None or not self._times.due(now_s):
            return
        if response.status < 500 and "Age" not in response.headers:
            at_ms = status.date_ms(response.headers.get("Date", ""))
            if at_ms is not None:
                self._times.note(at_ms, within_ms=1000, asked_s=asked_s, answered_s=now_s)

    async def _refused(self, response: aiohttp.ClientResponse, request: _ApiRequest) -> KubeError:
        """The error of an answer that is not 200; its body is read as far as it is useful."""
        body = b""
        try:
            async with asyncio.timeout(_ERROR_BODY_TIMEOUT_S):
                while len(body) < _ERROR_BODY_MAX and (chunk := await response.content.readany()):
                    body += chunk
        except EXPECTED:
            body = body or b" "  # the code is enough
        finally:
            leave(response)
        for credential in _credentials_of(response, self._credentials.endpoint.proxy):
            body = body.replace(credential, b"<redacted>")
        return _unusable(response, body, request.what, service=_api_service(request.path))


def _unusable(
    response: aiohttp.ClientResponse, body: bytes, what: str, *, service: str = ""
) -> KubeError:
    return status.from_response(
        response.status,
        response.headers,
        body,
        what=what,
        wall_ms=clock.wall_ms(),
        service=service,
    )


def _api_service(path: str) -> str:
    """The name of the APIService whose server may have answered in place of the API server, "" for
    a path of Kubernetes itself."""
    match path.split("/"):
        case ["", "apis", group, version, *_] if not is_own_group(group):
            return f"{version}.{group}"
    return ""


def _credentials_of(response: aiohttp.ClientResponse, proxy: str | None) -> Iterator[bytes]:
    """What a request carried that its answer may repeat: some servers and proxies quote the request
    in their complaint."""
    if sent := response.request_info.headers.get("Authorization", "").rpartition(" ")[2]:
        yield sent.encode()
    if proxy is not None and (password := URL(proxy).password):
        yield b64encode(f"{URL(proxy).user or ''}:{password}".encode())
        yield password.encode()


def _number(value: object) -> int:
    """The leading digits: managed clusters send "34+". More than nine are no version, and Python
    makes no int of more than 4300."""
    digits = re.match(r"[0-9]{0,9}(?![0-9])", str(value))
    return int(digits[0] or "0") if digits else 0
