"""An admin server over a status registry filled by hand, an HTTP client: what `/` and its addresses
answer."""

import html
import http.client
import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.admin_server import RunningAdminServer, live, shared
from tests.support.process import wait_until
from tests.support.troubles import trouble
from watchrelay.core.trouble import Cause
from watchrelay.observe import page
from watchrelay.observe.live import VIEWERS_MAX

BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
HOSTILE = "</pre></noscript><script>alert(1)</script>\x1b[2J\u202e"


@pytest.fixture
def window() -> Iterator[RunningAdminServer]:
    with RunningAdminServer() as window:
        window.do(lambda: live(window.statuses, "pods"))
        yield window


def get(
    window: RunningAdminServer, path: str, headers: dict[str, str] | None = None
) -> tuple[int, http.client.HTTPMessage, str]:
    connection = http.client.HTTPConnection("127.0.0.1", window.port, timeout=10.0)
    try:
        connection.request("GET", path, headers=headers or {})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read().decode()
    finally:
        connection.close()


def viewer(window: RunningAdminServer) -> socket.socket:
    """A connection that asked for the events."""
    connection = socket.create_connection(("127.0.0.1", window.port), timeout=10.0)
    connection.sendall(b"GET /api/events HTTP/1.1\r\nHost: relay\r\n\r\n")
    return connection


def test_a_terminal_is_given_a_table_worst_first(window: RunningAdminServer) -> None:
    def fill() -> None:
        status = live(window.statuses, "secrets")
        message = "watch secrets at 10.0.0.1:6443: 403 secrets is forbidden"
        status.failed("watch", trouble(message, Cause.MISSING_RIGHT, operator=True))

    window.do(fill)
    status, headers, text = get(window, "/")
    assert (status, headers.get_content_type()) == (200, "text/plain")
    for words in (
        "1 thing needs you",
        "!! A permission is missing",
        "do: Grant list and watch",
        "WatchRelayForbidden",
        "/metrics",
    ):
        assert words in text
    table = [
        line.split()[0] for line in text.splitlines() if re.match(r"(STREAM|pods|secrets) ", line)
    ]
    assert table == ["STREAM", "secrets", "pods"]


def test_replicas_and_the_owners_of_all_streams_are_shown(window: RunningAdminServer) -> None:
    code, _, body = get(window, "/api/group")
    assert code == 404
    assert "sharding.enabled" in json.loads(body)["error"]
    assert "OWNER" not in get(window, "/")[2]
    window.do(lambda: shared(window.statuses))
    group = json.loads(get(window, "/api/group")[2])
    assert {**group, "members": [each["holder"] for each in group["members"]]} == {
        "holder": "relay-1",
        "revision": 3,
        "generation": 12,
        "leader": "relay-1",
        "even": True,
        "members": ["relay-1", "relay-2"],
    }
    assert group["members"][1] == {
        "holder": "relay-2",
        "revision": 3,
        "configAdopted": "1970-01-01T00:00:02.000Z",
        "configHash": "bbbb",
        "fit": False,
        "leaving": True,
        "assigned": 1,
        "streams": ["nodes"],
    }
    rows = {row["stream"]: row for row in json.loads(get(window, "/api/streams")[2])}
    assert [(row["role"], row["owner"], row["objects"]) for row in rows.values()] == [
        ("owner", "relay-1", 12),
        ("standby", "relay-2", 5),
    ]
    text = get(window, "/")[2]
    assert "replicas: 2" in text
    assert "relay-1: 1 stream, leader, this one, config aaaa" in text
    assert "relay-2: 1 stream, unfit, leaving, config bbbb" in text
    assert re.search(r"^nodes .* relay-2$", text, re.MULTILINE)


def test_events_are_sent_where_the_system_has_no_timeout_for_unread_data(
    window: RunningAdminServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(socket, "TCP_USER_TIMEOUT")  # as on macOS
    with viewer(window) as connection:
        assert connection.recv(15) == b"HTTP/1.1 200 OK"


def test_a_browser_is_given_the_page_under_a_strict_policy(window: RunningAdminServer) -> None:
    _, headers, text = get(window, "/", BROWSER)
    assert headers.get_content_type() == "text/html"
    policy = dict(
        part.strip().partition(" ")[::2] for part in headers["Content-Security-Policy"].split(";")
    )
    assert (
        policy["default-src"],
        policy["script-src"],
        policy["style-src"],
        policy["connect-src"],
    ) == (
        "'none'",
        "'self'",
        "'self'",
        "'self'",
    )
    assert "unsafe" not in headers["Content-Security-Policy"]
    assert (headers["X-Content-Type-Options"], headers["Cache-Control"], headers["Vary"]) == (
        "nosniff",
        "no-store",
        "Accept",
    )
    asked = re.findall(r'(?:src|href)="([^"#]+)"', text)
    assert [
        address for address in asked if "//" in address and not address.startswith("data:")
    ] == []
    for address in [each for each in asked if each.startswith("page/")]:
        code, file_headers, body = get(window, f"/{address}")
        assert (code, file_headers["X-Content-Type-Options"]) == (200, "nosniff")
        assert body


def test_every_file_of_the_page_is_served_and_nothing_else(window: RunningAdminServer) -> None:
    there = {
        path.name for path in Path(page.__file__).parent.iterdir() if path.suffix in {".js", ".css"}
    }
    assert there == set(page.FILES)
    for name in ("__init__.py", "index.html", "..%2f__init__.py", "%2e%2e/server.py", "none.js"):
        assert get(window, f"/page/{name}")[0] == 404
    for name in there - {"page.css"}:
        text = page.read(name)
        assert (
            re.findall(
                r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|https?://(?!www\.w3\.org/2000/svg)",
                text,
            )
            == []
        )


def test_what_others_wrote_is_text_in_every_form(window: RunningAdminServer) -> None:
    window.do(lambda: live(window.statuses, "nodes").failed("watch", trouble(HOSTILE)))
    table = get(window, "/")[2]
    assert "\x1b" not in table
    assert "\u202e" not in table
    shown = get(window, "/", BROWSER)[2]
    assert "<script>alert" not in shown
    assert html.escape("</pre></noscript><script>alert(1)</script>") in shown


def test_the_page_holds_what_is_true_when_it_is_sent_as_text_and_as_data(
    window: RunningAdminServer,
) -> None:
    window.do(lambda: live(window.statuses, "nodes").failed("watch", trouble(HOSTILE)))
    window.do(lambda: window.statuses.endpoints.update(kafka="k:9092", kubernetes="api:6443"))
    shown = get(window, "/", BROWSER)[2]
    first = re.search(r'<script type="application/json" id="first">(.*?)</script>', shown)
    assert first is not None
    assert "<" not in first[1]
    whole = json.loads(first[1])
    assert {row["stream"] for row in whole["rows"]} == {"pods", "nodes"}
    assert [each["text"] for card in whole["cards"] for each in card["messages"]] == [HOSTILE]
    assert whole["relay"]["endpoints"] == {"kafka": "k:9092", "kubernetes": "api:6443"}
    text = re.search(r'<pre id="text">(.*?)</pre>', shown, re.DOTALL)
    assert text is not None
    assert "STREAM" in text[1]


def test_one_stream_is_served_by_its_name_whatever_characters_it_has(
    window: RunningAdminServer,
) -> None:
    window.do(
        lambda: live(window.statuses, "widgets.example.com/v1").failed("watch", trouble("refused"))
    )
    status, _, text = get(window, "/api/streams/widgets.example.com%2Fv1")
    assert (status, json.loads(text)["transitions"][0]["message"]) == (200, "refused")
    assert get(window, "/api/streams/none")[0] == 404
    assert [row["stream"] for row in json.loads(get(window, "/api/overview")[2])["rows"]] == [
        "pods",
        "widgets.example.com/v1",
    ]


def test_one_viewer_too_many_has_to_poll(window: RunningAdminServer) -> None:
    viewers = [viewer(window) for _ in range(VIEWERS_MAX)]
    try:
        for each in viewers:
            assert b"text/event-stream" in each.recv(4096)
        status, headers, text = get(window, "/api/events")
        assert (status, headers["Retry-After"]) == (503, "10")
        assert "/api/overview" in text
        assert get(window, "/api/overview")[0] == 200
    finally:
        for each in viewers:
            each.close()
    wait_until("there is room again", lambda: viewers_of(window) == 0)


def viewers_of(window: RunningAdminServer) -> int:
    return window.do(lambda: window.server.viewers)


def test_viewers_do_not_hold_up_the_end(window: RunningAdminServer) -> None:
    with viewer(window) as connection:
        assert b"text/event-stream" in connection.recv(4096)
        window.close()
        wait_until("the connection is closed", lambda: connection.recv(65536) == b"")


def test_a_viewer_that_reads_nothing_is_cut_off(window: RunningAdminServer) -> None:
    def fill() -> None:
        for number in range(300):
            live(window.statuses, f"s{number}", topic="t" * 2000)

    window.do(fill)
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", window.port))
        connection.sendall(b"GET /api/events HTTP/1.1\r\nHost: relay\r\n\r\n")
        wait_until("it looks", lambda: viewers_of(window) == 1)

        def change() -> None:
            for status in window.statuses.streams.values():
                status.objects += 1

        def cut() -> bool:
            window.do(change)
            return viewers_of(window) == 0

        wait_until("it is cut off", cut, deadline_s=60.0)
