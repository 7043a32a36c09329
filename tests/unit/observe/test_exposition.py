"""`/metrics` of many streams: each turn of the event loop makes a part of it."""

from __future__ import annotations

import asyncio
import gzip
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.admin_server import live
from tests.support.turns import TurnLoop, held_by, slowness
from watchrelay.model.resources import Resource
from watchrelay.observe.exposition import Family, Rows, pieces
from watchrelay.observe.metrics import Metrics
from watchrelay.observe.server import AdminServer
from watchrelay.observe.status import Readiness, StatusRegistry

PODS = Resource("", "v1", "pods", "Pod", namespaced=True)
MANY = 400
ODD = 'a"b\\c\nd{e}%'

Series = Counter[tuple[str, str, frozenset[tuple[str, str]], float]]


def filled(count: int) -> Metrics:
    metrics = Metrics("c")
    for number in range(count):
        metrics.stream(f"pods@namespace-{number:05}", PODS)
    return metrics


def series(text: bytes) -> Series:
    return Counter(
        (family.type, sample.name, frozenset(sample.labels.items()), sample.value)
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    )


def test_the_series_are_those_of_the_library_with_the_label_cluster() -> None:
    metrics = Metrics("c{0}")
    metrics.topic(ODD).produce_failed("Odd", retriable=True)
    stream = metrics.stream(ODD, PODS)
    stream.list_duration_seconds.observe(0.3)
    stream.relay_lag.observe_batch([1.0], 3.0)
    stream.show_age(lambda: 5.0)
    stream.queue_bytes.set(12345678.0)
    metrics.set_states({ODD: "watching"}, ("waiting", "watching"))
    metrics.topic(ODD).last_ack_age_seconds.restart(ago_s=float("inf"))
    cluster = ("cluster", "c{0}")
    expected = Counter(
        (kind, name, labels | {cluster}, value)
        for kind, name, labels, value in series(generate_latest(metrics.registry))
    )
    assert series(metrics.text()) == expected
    assert len(expected) > 100


def test_a_family_is_whole_in_however_many_pieces() -> None:
    rows: Rows = [((str(number),), (("", {}, 1.0),)) for number in range(1000)]
    made = [*pieces([Family("n", "gauge", ("stream",), "Help.", lambda: rows)], "c")]
    assert len(made) > 3
    text = b"".join(made)
    assert text.count(b"# TYPE") == 1
    assert len(series(text)) == 1000


def test_to_forget_a_stream_costs_no_more_by_how_many_there_are() -> None:
    metrics = filled(MANY)
    began_s = time.thread_time()
    for number in range(MANY):
        metrics.forget_gauges(f"pods@namespace-{number:05}")
    for number in range(MANY):
        metrics.forget(f"pods@namespace-{number:05}")
    took_s = time.thread_time() - began_s
    assert b"pods@" not in metrics.text()
    assert took_s < 0.003 * MANY * slowness()


async def scrape(port: int, *headers: str) -> tuple[bytes, bytes]:
    """Head and body of the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    lines = ("GET /metrics HTTP/1.1", "Host: relay", "Connection: close", *headers, "", "")
    writer.write("\r\n".join(lines).encode())
    answer = await reader.read()
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert b"Content-Length: %d" % len(body) in head
    return head, body


async def scrapes(port: int, count: int, *headers: str) -> list[bytes]:
    """The bodies of scrapes that come at the same time."""
    async with asyncio.TaskGroup() as tasks:
        asking = [
            tasks.create_task(scrape(port, *headers), name=f"scrape {number}")
            for number in range(count)
        ]
    return [each.result()[1] for each in asking]


def served(metrics: Metrics, streams: Iterable[str], ask: Callable[[int], Awaitable[None]]) -> str:
    """What is wrong with the longest turn of the event loop while `ask` ran with the port."""
    statuses = StatusRegistry()
    for stream in streams:
        live(statuses, stream)

    async def main(loop: TurnLoop) -> None:
        server = AdminServer(
            statuses=statuses, readiness=Readiness(statuses, started=True), metrics=metrics
        )
        port = await server.start("127.0.0.1", 0)
        try:
            await scrape(port)
            loop.begin()
            await ask(port)
            loop.end()
        finally:
            await server.close()

    return held_by(main)


@pytest.mark.parametrize("headers", [(), ("Accept-Encoding: gzip",)])
def test_a_scrape_of_many_streams_holds_the_event_loop_for_no_long_turn(
    headers: tuple[str, ...],
) -> None:
    async def ask(port: int) -> None:
        await scrapes(port, 3, *headers)

    streams = [f"pods@namespace-{number:05}" for number in range(MANY)]
    assert not served(filled(MANY), streams, ask)


def test_scrapes_at_one_time_share_a_reading() -> None:
    metrics, readings = filled(300), list[float]()  # a reading takes longer than a request

    def age_s() -> float:
        readings.append(float(len(readings)))
        return readings[-1]

    metrics.stream("pods@namespace-00000", PODS).show_age(age_s)

    async def ask(port: int) -> None:
        readings.clear()
        answers = await scrapes(port, 8)
        assert len(set(answers)) == len(readings)
        assert 1 <= len(readings) <= 3

    served(metrics, [], ask)


def test_it_is_compressed_for_clients_that_accept_gzip() -> None:
    async def ask(port: int) -> None:
        for accepted in ("gzip", "br, GZIP;q=0.5", "*"):
            head, body = await scrape(port, f"Accept-Encoding: {accepted}")
            assert b"Content-Encoding: gzip" in head
            assert b"Vary: Accept-Encoding" in head
            assert len(series(gzip.decompress(body))) > 100
        for accepted in ("br", "gzip;q=0", "gzip; q=0.0, identity"):
            head, body = await scrape(port, f"Accept-Encoding: {accepted}")
            assert b"Content-Encoding" not in head
            assert len(series(body)) > 100

    served(filled(2), ["pods"], ask)
