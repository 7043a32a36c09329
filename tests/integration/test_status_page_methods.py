"""Every address of the admin server by every method, over one real connection each: the status and
the headers that HTTP gives them, an end, and the next answer on the same connection."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Self

import pytest

from tests.support.admin_server import RunningAdminServer, live, shared
from tests.support.process import wait_until
from watchrelay.observe.live import VIEWERS_MAX

ADDRESSES = {
    "/": 200,
    "/page/page.js": 200,
    "/page/none": 404,
    "/livez": 200,
    "/readyz": 200,
    "/metrics": 200,
    "/api/streams": 200,
    "/api/streams/pods": 200,
    "/api/streams/none": 404,
    "/api/group": 200,
    "/api/overview": 200,
    "/api/events": 200,
}
"""By path: the status that GET and HEAD get."""
UNKNOWN = ("/none", "/api", "/api/events/", "//livez")
OTHERS = ("POST", "PUT", "PATCH", "DELETE", "TRACE", "PROPFIND", "QUERY")
ALLOW = "GET, HEAD, OPTIONS"


@pytest.fixture(scope="module")
def window() -> Iterator[RunningAdminServer]:
    with RunningAdminServer() as window:
        window.do(lambda: live(window.statuses, "pods"))
        window.do(lambda: shared(window.statuses))
        yield window


class Client:
    """One connection that stays open."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=10.0)
        self._file = self._socket.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._socket.close()

    def send(self, request: str) -> None:
        self._socket.sendall(request.encode())

    def head(self) -> tuple[int, dict[str, str]]:
        """Status and headers of the next answer, names in lower case."""
        status = int(self._file.readline().split()[1])
        headers = {}
        while line := self._file.readline().strip():
            name, _, value = line.decode().partition(": ")
            headers[name.lower()] = value
        return status, headers

    def ask(self, method: str, path: str) -> tuple[int, dict[str, str]]:
        """The answer to a request without a body; its own body, if it has one, is read."""
        self.send(f"{method} {path} HTTP/1.1\r\nHost: relay\r\n\r\n")
        status, headers = self.head()
        if method != "HEAD" and status != 204:
            self._file.read(int(headers["content-length"]))
        return status, headers

    def still_answers(self) -> bool:
        return self.ask("GET", "/livez")[0] == 200


@pytest.mark.parametrize("path", ADDRESSES)
def test_head_gets_the_headers_of_get_and_ends(window: RunningAdminServer, path: str) -> None:
    with Client(window.port) as client, Client(window.port) as getting:
        status, headers = client.ask("HEAD", path)
        assert client.still_answers()
        getting.send(f"GET {path} HTTP/1.1\r\nHost: relay\r\n\r\n")
        got, expected = getting.head()
        assert status == got == ADDRESSES[path]
        for each in (headers, expected):
            each.pop("date")
            each.pop("transfer-encoding", None)  # of a body alone
            if path in ("/metrics", "/api/overview", "/"):  # what they show changes meanwhile
                each.pop("content-length")
        assert headers == expected


@pytest.mark.parametrize("path", [*ADDRESSES, "*"])
def test_options_names_the_methods(window: RunningAdminServer, path: str) -> None:
    with Client(window.port) as client:
        status, headers = client.ask("OPTIONS", path)
        assert (status, headers["allow"]) == (204, ALLOW)
        assert client.still_answers()


@pytest.mark.parametrize("method", OTHERS)
@pytest.mark.parametrize("path", ADDRESSES)
def test_another_method_is_405_with_the_methods_there_are(
    window: RunningAdminServer, path: str, method: str
) -> None:
    with Client(window.port) as client:
        status, headers = client.ask(method, path)
        assert (status, headers["allow"]) == (405, ALLOW)
        assert client.still_answers()


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", *OTHERS])
@pytest.mark.parametrize("path", UNKNOWN)
def test_an_unknown_address_is_404_by_every_method(
    window: RunningAdminServer, path: str, method: str
) -> None:
    with Client(window.port) as client:
        assert client.ask(method, path)[0] == 404
        assert client.still_answers()


def test_head_of_the_events_takes_no_viewers_place(window: RunningAdminServer) -> None:
    with Client(window.port) as client:
        for _ in range(VIEWERS_MAX + 1):
            assert client.ask("HEAD", "/api/events")[0] == 200
        wait_until("none looks on", lambda: window.do(lambda: window.server.viewers) == 0)


@pytest.mark.parametrize(
    "more", ["Content-Length: 1000000", "Expect: 100-continue\r\nContent-Length: 9"]
)
@pytest.mark.parametrize("path", ["/livez", "/api/events"])
def test_a_body_that_never_comes_is_not_waited_for(
    window: RunningAdminServer, path: str, more: str
) -> None:
    with Client(window.port) as client:
        client.send(f"POST {path} HTTP/1.1\r\nHost: relay\r\n{more}\r\n\r\n")
        statuses = [client.head()[0]]
        if statuses == [100]:
            statuses = [client.head()[0]]
        assert statuses == [405]


def test_connect_and_what_is_no_method_is_refused_at_once(window: RunningAdminServer) -> None:
    for request in ("CONNECT relay:443", "get /livez", "G@T /livez", "PRI *"):
        with Client(window.port) as client:
            client.send(f"{request} HTTP/1.1\r\nHost: relay\r\n\r\n")
            assert client.head()[0] in (400, 404, 405)
    with Client(window.port) as client:
        assert client.still_answers()
