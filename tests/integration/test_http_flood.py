"""Clients that open connections to the HTTP port and send or read nothing: they are few, and probes
are served all the same."""

import asyncio
import http.client
import logging
import resource
import select
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.support.admin_server import RunningAdminServer, live
from tests.support.embedded import EmbeddedBroker, EmbeddedCluster
from tests.support.listed import await_equal
from tests.support.process import wait_until
from tests.support.testbed import Testbed
from watchrelay.core import clock
from watchrelay.observe.metrics import Metrics
from watchrelay.observe.overview import About
from watchrelay.observe.server import AdminServer
from watchrelay.observe.status import Readiness, StatusRegistry

FLOOD = 400
OPEN_MAX = 100
"""What the port may have open at once: file descriptors that Kafka and the watches cannot have."""
AT_ONCE_S = 10.0
"""A scrape's deadline, and half of what a silent client is given: a machine that tests keep busy is
no flood."""
SLOW = {
    "nothing is sent": b"",
    "a part of the request line": b"GET /livez HT",
    "headers that do not end": b"GET /livez HTTP/1.1\r\nHost: relay\r\nX-A: ",
    "a body that does not end": b"POST /livez HTTP/1.1\r\nHost: relay\r\nContent-Length: 100000\r\n\r\nab",
    "a request whose connection is kept": b"GET /livez HTTP/1.1\r\nHost: relay\r\n\r\n",
    "events that are not read": b"GET /api/events HTTP/1.1\r\nHost: relay\r\n\r\n",
    "many answers that are not read": b"GET /api/overview HTTP/1.1\r\nHost: relay\r\n\r\n" * 50,
    "an upgrade": (
        b"GET /livez HTTP/1.1\r\nHost: relay\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"
    ),
}


@pytest.fixture
def window() -> Iterator[RunningAdminServer]:
    with RunningAdminServer() as window:
        for number in range(100):
            window.do(partial(live, window.statuses, f"pods-{number}", topic="t" * 200))
        yield window


def connect(port: int, sent: bytes) -> socket.socket:
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(10.0)
    connection.connect(("127.0.0.1", port))
    connection.sendall(sent)
    return connection


@contextmanager
def flood(port: int, sent: bytes, count: int = FLOOD) -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        yield [stack.enter_context(connect(port, sent)) for _ in range(count)]


def served_at_once(port: int) -> None:
    for path in ("/livez", "/readyz", "/metrics", "/api/overview"):
        began_s = time.monotonic()
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=AT_ONCE_S)
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()
        connection.close()
        assert (path, answer.status) == (path, 200)
        assert time.monotonic() - began_s < AT_ONCE_S


def established(port: int) -> list[str]:
    """The inode of each established connection to that port, "0" before a process accepted it.
    Source: proc(5), `/proc/net/tcp`."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [row[9] for row in rows if row[1].endswith(f":{port:04X}") and row[3] == "01"]


def open_at(port: int) -> int:
    """Connections to that port that a process has accepted."""
    return sum(inode != "0" for inode in established(port))


@pytest.mark.parametrize("sent", SLOW.values(), ids=SLOW.keys())
def test_probes_are_served_while_a_flood_holds_its_connections(
    window: RunningAdminServer, sent: bytes
) -> None:
    with flood(window.port, sent):
        served_at_once(window.port)
        assert open_at(window.port) <= OPEN_MAX


def test_a_flood_of_silent_clients_does_not_cut_off_a_slow_scrape(
    window: RunningAdminServer,
) -> None:
    request = b"GET /api/overview HTTP/1.1\r\nHost: relay\r\nConnection: close\r\n\r\n"
    with connect(
        window.port, b"GET /api/overview HTTP/1.1\r\nHost: relay\r\n\r\n" * 60 + request
    ) as scrape:
        select.select([scrape], [], [], 10.0)  # its first answer is on the way
        with flood(window.port, b""):
            answers = b"".join(iter(lambda: scrape.recv(65536), b""))
    assert answers.count(b"HTTP/1.1 200 OK") == 61


def test_a_connection_that_sends_or_reads_nothing_is_closed(window: RunningAdminServer) -> None:
    """In half a minute: by a deadline of 20 s, of 10 s for events, of 1 s for bodies."""
    quiet = [connect(window.port, sent) for sent in SLOW.values()]
    try:
        wait_until(
            "none is open", lambda: not established(window.port), deadline_s=40.0, poll_s=0.5
        )
    finally:
        for each in quiet:
            each.close()


@pytest.mark.parametrize("turns", range(6))
async def test_a_client_that_connects_as_the_server_closes_is_let_go(turns: int) -> None:
    """`turns` of the event loop from its connecting on."""
    statuses = StatusRegistry()
    server = AdminServer(
        statuses=statuses,
        readiness=Readiness(statuses, started=True),
        metrics=Metrics(),
        about=About("test", "relay-1", "0.0.0", clock.wall_ms()),
    )
    port = await server.start("127.0.0.1", 0)
    with connect(port, b"") as client:
        client.setblocking(False)
        for _ in range(turns):
            await asyncio.sleep(0)
        await server.close()
        try:
            async with asyncio.timeout(AT_ONCE_S):
                end = await asyncio.get_running_loop().sock_recv(client, 1)
        except ConnectionResetError:
            end = b""  # it had not been accepted
        assert end == b""


def test_kafka_and_watches_have_file_descriptors_left_in_a_flood(
    cluster: EmbeddedCluster, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    testbed = Testbed(cluster, broker, tmp_path)
    testbed.make_topics("namespaces", signal=False)
    with (
        testbed.reader(*testbed.topics("namespaces")) as reader,
        testbed.relay("namespaces") as relay,
    ):
        relay.await_ready()
        resource.prlimit(relay.pid, resource.RLIMIT_NOFILE, (200, 200))
        with flood(relay.port, b""):
            cluster.kill()
            relay.wait("the watch ended", lambda: relay.stream("namespaces").get("lastError"))
            cluster.restart()
            broker.kafka.broker_down()
            testbed.namespaces(3)
            relay.wait("the queue waits", lambda: relay.metric("watchrelay_queue_records") > 0)
            broker.kafka.broker_up()
            await_equal(cluster, reader, {"namespaces": "/api/v1/namespaces"})
            served_at_once(relay.port)
            assert open_at(relay.port) <= OPEN_MAX
        assert relay.stop() == 0


ASKED = {
    "a page": (b"GET / HTTP/1.1\r\nHost: relay\r\n\r\n", b"HTTP/1.1 200 "),
    "metrics": (b"GET /metrics HTTP/1.1\r\nHost: relay\r\n\r\n", b"HTTP/1.1 200 "),
    "events": (b"GET /api/events HTTP/1.1\r\nHost: relay\r\n\r\n", b"HTTP/1.1 200 "),
    "no such page": (b"GET /none HTTP/1.1\r\nHost: relay\r\n\r\n", b"HTTP/1.1 404 "),
    "another method": (b"DELETE /livez HTTP/1.1\r\nHost: relay\r\n\r\n", b"HTTP/1.1 405 "),
    "an expectation": (
        b"GET /livez HTTP/1.1\r\nHost: relay\r\nExpect: more\r\n\r\n",
        b"HTTP/1.1 417 ",
    ),
    "no HTTP": (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", b"HTTP/1.1 400 "),
    "a header without an end": (
        b"GET / HTTP/1.1\r\nX: " + b"a" * 9000 + b"\r\n\r\n",
        b"HTTP/1.1 400 ",
    ),
}


@pytest.mark.parametrize(("sent", "status"), ASKED.values(), ids=ASKED.keys())
def test_no_answer_names_a_program_or_a_version(
    window: RunningAdminServer, sent: bytes, status: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO), connect(window.port, sent) as connection:
        answer = b""
        while b"\r\n\r\n" not in answer:
            received = connection.recv(65536)
            assert received, answer
            answer += received
    assert answer.startswith(status)
    assert [word for word in (b"server:", b"aiohttp", b"python") if word in answer.lower()] == []
    assert caplog.records == [], "who sends odd requests fills the log"


@pytest.mark.parametrize("coding", [b"gzip", b"deflate", b"br", b"zstd"])
def test_a_body_that_cannot_be_unpacked_is_no_line_of_the_log(
    window: RunningAdminServer, coding: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    head = (
        b"GET /livez HTTP/1.1\r\nHost: relay\r\nConnection: close\r\nContent-Encoding: "
        b"%s\r\nContent-Length: 4\r\n\r\n"
    ) % coding
    with (
        caplog.at_level(logging.INFO),
        connect(window.port, head + b"abcd") as connection,
        connection.makefile("rb") as answer,
    ):
        assert answer.read().startswith(b"HTTP/1.1 200 ")
    assert caplog.records == []
