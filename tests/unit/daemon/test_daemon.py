"""The process: what it says while an end is missing, how it starts once it is there, how it
ends."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from tests.support.daemon import command
from tests.unit.daemon.conftest import GROUP, NOBODY, World, running, settings_of, until
from watchrelay.config import Settings
from watchrelay.daemon.daemon import split_address
from watchrelay.daemon.reload import describe
from watchrelay.observe.metrics import Metrics


async def assert_waits(relay: Any, stream: str, *, problem: str, error: str) -> None:
    """The stream's row is there and waiting; the probes say so."""
    await until(
        "the trouble is known",
        lambda: (
            problem in relay.daemon.statuses.problems
            and error in (relay.row(stream).last_error or "")
        ),
    )
    await until("the next attempt is known", lambda: relay.row(stream).next_attempt_ms)
    assert relay.row(stream).state == "waiting"
    status, body = await relay.get("/readyz")
    assert (status, body["ready"]) == (503, False)
    assert error in body["problems"][problem]
    assert error in body["streams"][stream]["reason"]
    assert (await relay.get("/livez"))[0] == 200
    # null while an attempt is out
    rows = await relay.get_until("/api/streams", lambda rows: rows[0]["nextAttempt"] is not None)
    assert [(row["stream"], row["state"]) for row in rows] == [(stream, "waiting")]
    assert error in rows[0]["lastError"]["message"]


# ---- what is missing at start --------------------------------------------------------------------


async def test_with_kafka_away_at_start_the_stream_waits_and_begins_when_it_comes(
    world: World,
) -> None:
    world.make_topic("core.pods")
    world.kafka.broker_down()
    async with running(world.settings("pods")) as relay:
        await assert_waits(relay, "pods", problem="kafka", error=world.kafka.bootstrap)
        world.kafka.broker_up()
        await relay.ready()
        assert relay.daemon.statuses.problems == {}
        assert relay.row("pods").last_error is None
        assert (await relay.get("/readyz"))[0] == 200


async def test_with_the_api_server_away_at_start_the_stream_waits_and_begins_when_it_comes(
    world: World,
) -> None:
    world.make_topic("core.pods")
    await world.cluster.stop()
    async with running(world.settings("pods")) as relay:
        await assert_waits(relay, "pods", problem="kubernetes", error=f"127.0.0.1:{world.port}")
        await world.cluster.start(port=world.port)
        await relay.ready()
        assert relay.daemon.statuses.problems == {}
        assert relay.row("pods").last_error is None


async def test_with_both_ends_away_both_are_named(world: World) -> None:
    await world.cluster.stop()
    async with running(world.settings("pods", kafka={"bootstrapServers": [NOBODY]})) as relay:
        await until("both are known to be away", lambda: len(relay.daemon.statuses.problems) == 2)
        body = (await relay.get("/readyz"))[1]
        assert NOBODY in body["problems"]["kafka"]
        assert str(world.port) in body["problems"]["kubernetes"]


async def test_a_kubeconfig_that_is_missing_at_start_is_waited_for_with_a_row_per_stream(
    world: World, tmp_path: Path
) -> None:
    world.make_topic("core.pods")
    later = tmp_path / "later"
    settings = world.settings(
        "pods",
        {"resource": "po", "id": "two", "namespaces": ["a", "b"]},
        kubernetes={"kubeconfig": str(later)},
    )
    async with running(settings) as relay:
        await until(
            "it is known to be missing", lambda: "kubernetes" in relay.daemon.statuses.problems
        )
        assert list(relay.daemon.statuses.streams) == ["pods", "two@a", "two@b"]
        status, body = await relay.get("/readyz")
        assert status == 503
        assert all(str(later) in row["reason"] for row in body["streams"].values())
        later.write_text(world.kubeconfig.read_text())
        await relay.ready()
        assert "kubernetes" not in relay.daemon.statuses.problems


# ---- how it ends ---------------------------------------------------------------------------------


async def _hang(_request: web.Request) -> web.StreamResponse | None:
    await asyncio.Event().wait()
    return None


async def _hang_at_lists(request: web.Request) -> web.StreamResponse | None:
    return await _hang(request) if request.path.endswith("/pods") else None


@asynccontextmanager
async def silent_broker() -> AsyncIterator[tuple[str, asyncio.Event]]:
    """Something that takes connections and never answers; its address, and an event for when it was
    asked."""
    asked = asyncio.Event()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            while await reader.read(1024):
                asked.set()

    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}", asked
    finally:
        server.close()


async def test_stopped_without_a_way_into_the_cluster_it_ends_well(tmp_path: Path) -> None:
    async with running(
        settings_of(["pods"], kubernetes={"kubeconfig": str(tmp_path / "none")})
    ) as relay:
        await until("it waits", lambda: "kubernetes" in relay.daemon.statuses.problems)
        relay.daemon.stop()
        assert await relay.ended() == 0


async def test_stopped_before_the_api_server_answered_it_ends_well(world: World) -> None:
    await world.cluster.stop()
    async with running(world.settings("pods")) as relay:
        await until("it waits", lambda: "kubernetes" in relay.daemon.statuses.problems)
        relay.daemon.stop()
        assert await relay.ended() == 0


async def test_stopped_while_the_api_server_is_silent_it_ends_well(world: World) -> None:
    world.behaviour.intercept = _hang
    async with running(world.settings("pods")) as relay:
        await until("the control topic is read", lambda: not relay.daemon.statuses.problems)
        relay.daemon.stop()
        assert await relay.ended() == 0


async def test_stopped_while_kafka_is_away_it_ends_well(world: World) -> None:
    async with running(world.settings("pods", kafka={"bootstrapServers": [NOBODY]})) as relay:
        await until("it waits for Kafka", lambda: "kafka" in relay.daemon.statuses.problems)
        await until("the resource is known", lambda: relay.row("pods").topic)
        relay.daemon.stop()
        assert await relay.ended() == 0


async def test_stopped_while_kafka_is_silent_it_ends_well(world: World) -> None:
    async with (
        silent_broker() as (address, asked),
        running(world.settings("pods", kafka={"bootstrapServers": [address]})) as relay,
    ):
        await asked.wait()
        await until("the resource is known", lambda: relay.row("pods").topic)
        relay.daemon.stop()
        assert await relay.ended() == 0


async def test_stopped_while_a_topic_is_refused_it_ends_well(world: World) -> None:
    async with running(world.settings("pods")) as relay:
        await until("the topic is refused", lambda: relay.row("pods").waits_for)
        assert "k8s.test.core.pods" in relay.row("pods").waits_for
        assert (await relay.get("/readyz"))[0] == 200, (
            "a topic is for a person to mend, a restart would not"
        )
        relay.daemon.stop()
        assert await relay.ended() == 0


async def test_a_control_topic_that_is_refused_at_the_first_start_is_for_a_person_to_mend(
    world: World,
) -> None:
    async with running(world.settings("pods", kafka={"topicPrefix": "other"})) as relay:
        body = await relay.get_until("/readyz", lambda body: body["ready"])
        assert set(body["problems"]) == {"control"}
        assert body["streams"]["pods"]["reason"] == body["problems"]["control"]
        assert "other.test.control does not exist" in body["problems"]["control"]
        (card,) = (await relay.get("/api/overview"))[1]["cards"]
        assert (card["cause"], card["level"], card["streams"]) == ("control", "person", ["pods"])
        for name in ("signal", "core.pods", "control"):
            world.kafka.create_topic(f"other.test.{name}", 1)
        await until("the stream is whole", lambda: relay.row("pods").complete)
        assert not relay.row("pods").troubles
        assert not relay.daemon.statuses.problems


async def test_a_replica_that_cannot_use_the_control_topic_ends_no_roll_out(world: World) -> None:
    other: dict[str, Any] = {"kafka": {"topicPrefix": "other"}, "sharding": {"enabled": True}}
    async with running(world.settings("pods", **other)) as relay:
        body = await relay.get_until("/readyz", lambda body: "control" in body.get("problems", {}))
        await until("the stream waits", lambda: relay.row("pods").troubles)
        code, body = await relay.get("/readyz")
        assert (code, "control" in body["problems"]) == (503, True)
        relay.daemon.stop()
        assert await relay.ended() == 0


async def test_stopped_while_a_stream_asks_about_its_topic_it_ends_well(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """The control topic is in order, then the resource comes, and the broker is silent by then."""
    widgets = f"widgets.{GROUP}"
    async with running(world.settings(widgets)) as relay:
        await until(
            "the control topic was checked",
            lambda: "topic is not as configured" in caplog.messages,
        )
        world.kafka.set_rtt(60_000)
        world.define("widgets")
        await until("the resource is known", lambda: relay.row(widgets).topic)
        relay.daemon.stop()
        assert await relay.ended() == 0
        world.kafka.set_rtt(0)


async def test_stopped_during_the_first_list_it_ends_well(world: World) -> None:
    world.make_topic("core.pods")
    world.behaviour.intercept = _hang_at_lists
    async with running(world.settings("pods")) as relay:
        await until("it lists", lambda: relay.row("pods").state == "listing")
        relay.daemon.stop()
        assert await relay.ended() == 0


async def test_stopped_while_it_watches_it_drains_and_ends_well(world: World) -> None:
    world.make_topic("core.pods")
    world.cluster.open_shop()
    async with running(world.settings("pods")) as relay:
        await relay.ready()
        relay.daemon.stop()
        assert await relay.ended() == 0
        assert relay.row("pods").state == "stopped"


async def test_stopped_twice_it_ends_without_draining(world: World) -> None:
    world.make_topic("core.pods")
    world.cluster.open_shop()
    async with running(world.settings("pods", shutdown={"drainTimeout": "5m"})) as relay:
        await relay.ready()
        world.kafka.broker_down()
        relay.daemon.stop()
        await until("it drains", lambda: not world.cluster.server.watches)
        assert not relay.task.done()
        relay.daemon.stop()
        assert await relay.ended() == 1


async def test_past_the_deadline_of_the_drain_it_ends_badly(world: World) -> None:
    world.make_topic("core.pods")
    world.cluster.open_shop()
    async with running(world.settings("pods", shutdown={"drainTimeout": "100ms"})) as relay:
        await relay.ready()
        world.kafka.broker_down()
        relay.daemon.stop()
        assert await relay.ended() == 1


# ---- where it listens ----------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1", ""])
def test_an_address_in_use_is_one_line_and_exit_1(tmp_path: Path, host: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"{host}:{taken.getsockname()[1]}"
        file = tmp_path / "watchrelay.yaml"
        config = {
            "cluster": "test",
            "kafka": {"bootstrapServers": [NOBODY]},
            "resources": [{"resource": "pods"}],
            "observe": {"listen": listen},
        }
        file.write_text(yaml.safe_dump(config))
        done = command("run", "-c", file)
    assert done.code == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"watchrelay: observe.listen {listen}: ")
    assert "address already in use" in line.lower()
    assert line.endswith("; choose another address")


@pytest.mark.parametrize(
    ("listen", "address"),
    [
        ("127.0.0.1:8080", ("127.0.0.1", 8080)),
        (":0", ("", 0)),
        ("[::1]:80", ("::1", 80)),
        ("host:1", ("host", 1)),
    ],
)
def test_an_address_is_a_host_and_a_port(listen: str, address: tuple[str, int]) -> None:
    assert split_address(listen) == address


def _reached(port: int | None) -> list[str]:
    """The addresses of this machine's loopback at which `port` answers."""
    reached = []
    for host in ("127.0.0.1", "::1"):
        with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=10.0):
            reached.append(host)
    return reached


@pytest.mark.parametrize("without_ipv6", [False, True])
async def test_without_a_host_it_listens_on_all_interfaces_of_the_families_that_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without_ipv6: bool
) -> None:
    wanted = ["127.0.0.1"]
    if without_ipv6:
        monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    else:
        with contextlib.suppress(OSError), socket.create_server(("::1", 0), family=socket.AF_INET6):
            wanted.append("::1")
    kubernetes = {"kubeconfig": str(tmp_path / "none")}
    settings = settings_of(["pods"], observe={"listen": ":0"}, kubernetes=kubernetes)
    async with running(settings) as relay:
        assert await asyncio.to_thread(_reached, relay.daemon.port) == wanted


def test_the_config_in_force_can_be_seen_and_its_secrets_cannot() -> None:
    def described(settings: Settings) -> tuple[str, float | None]:
        metrics = Metrics(settings.cluster)
        describe(settings, metrics)
        (sample,) = [
            sample for metric in metrics.gauge("config_info").collect() for sample in metric.samples
        ]
        return sample.labels["hash"], metrics.registry.get_sample_value(
            "watchrelay_config_last_reload_successful"
        )

    first = described(settings_of(["pods"]))
    assert first == described(settings_of(["pods"]))
    assert first[1] == 1.0
    assert first[0] != described(settings_of(["nodes"]))[0]
    secrets = [
        {
            "security": {
                "protocol": "SASL_SSL",
                "mechanism": "PLAIN",
                "username": "u",
                "password": text,
            }
        }
        for text in ("a", "bcd")
    ]
    assert described(settings_of(["pods"], kafka=secrets[0])) == described(
        settings_of(["pods"], kafka=secrets[1])
    )
