"""An unexpected error in any task of a stream restarts that stream alone; records that no claim
explains stop that stream alone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from aiohttp import web
from aiokafka import AIOKafkaProducer

from tests.support.extent import few
from tests.support.troubles import cause_of, problem_of
from tests.unit.daemon.conftest import Relay, World, running, until
from watchrelay.core.errors import EpochAhead, EpochSpoiled
from watchrelay.daemon.context import DaemonContext
from watchrelay.daemon.daemon import Daemon
from watchrelay.kafka.control_topic import ControlTopic
from watchrelay.kube.client import KubeClient
from watchrelay.kube.discovery.client import Discovery
from watchrelay.kube.discovery.resolve import Found, Resolution
from watchrelay.model.resources import Resource
from watchrelay.observe.overview import cards, judge
from watchrelay.replicas.ownership import Sole, Tenure

TOPIC = "k8s.test.core.pods"
PODS = Resource("", "v1", "pods", "Pod", namespaced=True)


class Broken:
    """Whether the next call for stream pods raises, and how often one did."""

    def __init__(self, error: Exception | None = None) -> None:
        self.on, self.times, self.error = False, 0, error or IndexError("odd input")

    def fail(self) -> None:
        if self.on:
            self.times += 1
            raise self.error


class Faulty:
    """Passes everything on to `real`; `method` raises where `concerns` is true of its arguments
    while `broken.on`."""

    def __init__(
        self, real: Any, method: str, broken: Broken, concerns: Callable[..., bool]
    ) -> None:
        self._real, self._method, self._broken, self._concerns = real, method, broken, concerns

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._real, name)
        if name != self._method:
            return attribute

        def call(*args: Any, **kwargs: Any) -> Any:
            if self._concerns(*args, **kwargs):
                self._broken.fail()
            return attribute(*args, **kwargs)

        return call


def of_pods(*args: Any, **kwargs: Any) -> bool:
    """A call that concerns the stream pods, or its topic."""
    flat = [*args, *kwargs.values()]
    return any(
        getattr(each, "stream", each) == "pods" or getattr(each, "name", each) == TOPIC
        for each in flat
    )


def part(name: str, method: str) -> Callable[[DaemonContext, Broken], DaemonContext]:
    def fit(context: DaemonContext, broken: Broken) -> DaemonContext:
        faulty: Any = {name: Faulty(getattr(context, name), method, broken, of_pods)}
        return replace(context, **faulty)

    return fit


def client(method: str) -> Callable[[DaemonContext, Broken], DaemonContext]:
    def fit(context: DaemonContext, broken: Broken) -> DaemonContext:
        faulty: Any = Faulty(context.server.client, method, broken, of_pods)
        return replace(context, server=replace(context.server, client=faulty))

    return fit


def tenure(method: str) -> Callable[[DaemonContext, Broken], DaemonContext]:
    """Of the stream pods."""

    class FaultySole(Sole):
        def __init__(self, control: ControlTopic, broken: Broken) -> None:
            super().__init__(control)
            self._broken = broken

        def tenure(self, stream: str, *args: Any) -> Tenure:
            held = super().tenure(stream, *args)
            if stream == "pods":
                faulty = Faulty(held, method, self._broken, lambda *_: True)
                setattr(held, method, getattr(faulty, method))
            return held

    def fit(context: DaemonContext, broken: Broken) -> DaemonContext:
        return replace(context, ownership=FaultySole(context.control, broken))

    return fit


def metric(name: str, method: str) -> Callable[[DaemonContext, Broken], DaemonContext]:
    """A metric of the stream pods that raises in this method: the stream's own steps call it, and
    nobody else."""

    def fit(context: DaemonContext, broken: Broken) -> DaemonContext:
        metrics = context.metrics.stream("pods", PODS)
        setattr(metrics, name, Faulty(getattr(metrics, name), method, broken, lambda *_: True))
        return context

    return fit


TASKS = {
    "begin: read back": metric("store_objects", "set"),
    "watch: watch": client("watch"),
    "receipt": metric("relay_lag", "observe_batch"),
    "send": part("sink", "send"),
    "begin: topic": part("topics", "ensure_topic"),
    "begin: claim": part("control", "claim"),
    "watch: list": client("list_page"),
    "heartbeat": tenure("must_stop"),
    "snapshot's conclusion": part("control", "write"),
    "stale records": part("sink", "unacknowledged_ranges"),
}


async def whole(relay: Relay, stream: str) -> None:
    await until(
        f"{stream} is whole",
        lambda: (
            relay.row(stream)
            and relay.row(stream).complete
            and relay.row(stream).state == "watching"
        ),
    )


async def foreign(world: World, headers: list[tuple[str, bytes]]) -> None:
    """A record that is none of the relay's, on the topic of pods."""
    async with AIOKafkaProducer(bootstrap_servers=world.kafka.bootstrap) as producer:
        await producer.send_and_wait(
            TOPIC, key=b"%wr/heartbeat/pods/0", value=None, headers=headers
        )


def failures(relay: Relay, stream: str) -> float:
    return (
        relay.daemon.metrics.registry.get_sample_value(
            "watchrelay_stream_failures_total", {"stream": stream}
        )
        or 0.0
    )


def failed_at_least(relay: Relay, times: int) -> bool:
    return failures(relay, "pods") >= times


@pytest.mark.parametrize("task", few(TASKS, 4))
async def test_an_error_in_a_task_restarts_its_stream_alone(
    task: str, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("core.pods", "core.configmaps"):
        world.make_topic(name)
    world.cluster.open_shop()
    broken = Broken()
    broken.on = task.startswith(("begin", "watch"))

    class FaultyDaemon(Daemon):
        def _make_context(self, client: KubeClient) -> DaemonContext:
            return TASKS[task](super()._make_context(client), broken)

    world.behaviour.version = "v1.31.0"  # so that it lists, then watches
    settings = world.settings(
        "pods", "configmaps", heartbeatInterval="1s", defaults={"snapshotInterval": "5s"}
    )
    async with running(settings, make=FaultyDaemon) as relay:
        await whole(relay, "configmaps")
        epoch = relay.row("configmaps").epoch
        if not broken.on:
            await whole(relay, "pods")
            broken.on = True
        for times in (1, 2):
            if task == "stale records":
                await whole(relay, "pods")
                await foreign(world, [])
            await until("it failed", partial(failed_at_least, relay, times))
        row = relay.row("pods")
        assert not relay.task.done()
        assert row.state in {"backoff", "waiting", "resuming", "listing", "stopped"}
        assert "internal error: IndexError: odd input" in row.last_error
        assert cause_of(judge(row, 0)) == "internal"
        broken.on = False
        await whole(relay, "pods")
        assert (relay.row("configmaps").epoch, relay.row("configmaps").last_error) == (epoch, None)
        assert failures(relay, "configmaps") == 0
        logged = [
            each
            for each in caplog.records
            if each.message == "stream restarts after an unexpected error"
        ]
        assert len(logged) == failures(relay, "pods")
        assert [each.levelno for each in logged] == [logging.ERROR] * len(logged)
        tracebacks = [each for each in logged if each.exc_info]
        assert 1 <= len(tracebacks) < len(logged), (
            "a traceback once for each place in the code, one line for each failure"
        )
        relay.daemon.stop()
        assert await relay.ended() == 0


async def test_delays_between_restarts_grow_and_reach_the_status(world: World) -> None:
    world.make_topic("core.pods")
    broken = Broken()
    broken.on = True

    class FaultyDaemon(Daemon):
        def _make_context(self, client: KubeClient) -> DaemonContext:
            return part("topics", "ensure_topic")(super()._make_context(client), broken)

    async with running(world.settings("pods"), make=FaultyDaemon) as relay:
        waits = list[float]()
        while len(waits) < 3:
            await until("it fails again", lambda: failures(relay, "pods") > len(waits))
            waits.append(relay.row("pods").next_attempt_ms - relay.row("pods").trouble.at_ms)
        assert [round(wait / 1000) for wait in waits] == [1, 2, 4]


@pytest.mark.parametrize(
    "error",
    [EpochSpoiled("pods", 0, 2, 9), EpochAhead("pods", 9, 2), IndexError("odd input")],
    ids=type,
)
async def test_a_drain_that_an_error_ends_is_not_called_complete(
    error: Exception, world: World
) -> None:
    world.make_topic("core.pods")
    broken = Broken(error)

    class FaultyDaemon(Daemon):
        def _make_context(self, client: KubeClient) -> DaemonContext:
            return part("sink", "send")(super()._make_context(client), broken)

    async with running(world.settings("pods"), make=FaultyDaemon) as relay:
        await whole(relay, "pods")
        broken.on = True
        relay.daemon.stop()
        assert await relay.ended() == 1
    assert broken.times == 1


HEADERS = [
    ("ce_specversion", b"1.0"),
    ("ce_type", b"dev.watchrelay.heartbeat.v1"),
    ("ce_wrstream", b"pods"),
    ("ce_wrrv", b"1"),
    ("ce_wrcount", b"0"),
    ("ce_wrdigest", b"0000000000000000"),
    ("ce_wrconfig", b"c0ffee"),
    ("ce_wrpartitions", b"1"),
    ("ce_time", b"2026-01-01T00:00:00.000Z"),
]


def heartbeat(*, cluster: str, epoch: int) -> list[tuple[str, bytes]]:
    """The headers of a heartbeat of the stream pods, as another relay would write it."""
    return [
        *HEADERS,
        ("ce_source", f"/clusters/{cluster}/api/v1/pods".encode()),
        ("ce_id", f"pods.{epoch}.0.7".encode()),
        ("ce_wrepoch", str(epoch).encode()),
        ("ce_sequence", b"00000000000000000007"),
    ]


@pytest.mark.parametrize("restarted", few([False, True], 1), ids=["while it runs", "at a start"])
@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        (heartbeat(cluster="test", epoch=1 << 40), f"its topic holds a record of epoch {1 << 40}, its newest claim has epoch"),
        (heartbeat(cluster="other", epoch=1 << 40), f"topic {TOPIC} holds records of cluster other, this is cluster test"),
    ],
    ids=["a higher epoch", "another cluster"],
)  # fmt: skip
async def test_records_that_no_claim_explains_stop_their_stream_alone(
    headers: list[tuple[str, bytes]],
    reason: str,
    restarted: bool,
    world: World,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for name in ("core.pods", "core.configmaps"):
        world.make_topic(name)
    settings = world.settings("pods", "configmaps", heartbeatInterval="1s")
    async with running(settings) as relay:
        await whole(relay, "pods")
        if not restarted:
            await foreign(world, headers)
            await until("pods wait", lambda: relay.row("pods").waits_for)
            assert reason in relay.row("pods").waits_for
        else:
            await foreign(world, headers)
            relay.daemon.stop()
            assert await relay.ended() == 0
    async with running(settings) as relay:
        await until("pods wait", lambda: relay.row("pods") and relay.row("pods").waits_for)
        await whole(relay, "configmaps")
        assert reason in relay.row("pods").waits_for
        assert relay.row("pods").state == "waiting"
        status, body = await relay.get("/readyz")
        assert (status, body["streams"]["pods"]["reason"]) == (200, relay.row("pods").waits_for)
        assert not relay.task.done()
    refused = {record.message for record in caplog.records if record.message.endswith(" refused")}
    assert refused == {"topic refused" if "cluster other" in reason else "stream refused"}


async def test_an_odd_answer_to_discovery_leaves_running_streams_alone(world: World) -> None:
    world.make_topic("core.pods")
    odd = asyncio.Event()

    class OddDiscovery(Discovery):
        async def refresh(self) -> bool:
            if odd.is_set():
                raise RecursionError("odd input")
            return await super().refresh()

    class OddDaemon(Daemon):
        def _make_discovery(self, client: KubeClient) -> Discovery:
            return OddDiscovery(client)

    async with running(world.settings("pods", "widgets.example.com"), make=OddDaemon) as relay:
        await whole(relay, "pods")
        odd.set()
        await until(
            "it is shown",
            lambda: "RecursionError: odd input" in problem_of(relay.daemon.statuses, "kubernetes"),
        )
        odd.clear()
        await until("it is over", lambda: "kubernetes" not in relay.daemon.statuses.problems)
        assert relay.row("pods").state == "watching"
        assert not relay.task.done()


class OddResource(Resource):
    """One that no stream can be planned of."""

    @property
    def namespaced(self) -> bool:
        raise IndexError("odd input")

    @namespaced.setter
    def namespaced(self, value: bool) -> None:
        pass


async def test_an_entry_that_cannot_be_planned_leaves_its_running_stream_as_it_is(
    world: World,
) -> None:
    world.make_topic("core.pods")
    odd = asyncio.Event()

    class OddDiscovery(Discovery):
        def resolve(self, written: str) -> Resolution:
            return (
                Found((OddResource("", "v1", "pods", "Pod", True),))
                if odd.is_set()
                else super().resolve(written)
            )

    class OddDaemon(Daemon):
        def _make_discovery(self, client: KubeClient) -> Discovery:
            return OddDiscovery(client)

    settings = world.settings({"resource": "pods", "namespaces": ["shop"]})
    async with running(settings, make=OddDaemon) as relay:
        await whole(relay, "pods@shop")
        row = relay.row("pods@shop")
        odd.set()
        relay.daemon.adopt(settings)
        assert (row.last_error, row.state) == ("internal error: IndexError: odd input", "watching")
        assert cause_of(judge(row, 0)) == "internal"
        odd.clear()
        relay.daemon.adopt(settings)
        assert (row.last_error, row.state) == (None, "watching")


async def test_an_unexpected_error_while_an_edit_is_put_in_force_ends_nothing_and_is_tried_again(
    world: World,
) -> None:
    world.make_topic("core.pods")
    world.make_topic("core.configmaps")
    odd = asyncio.Event()

    class OddDiscovery(Discovery):
        def resolve(self, written: str) -> Resolution:
            if odd.is_set():
                raise IndexError("odd input")
            return super().resolve(written)

    class OddDaemon(Daemon):
        def _make_discovery(self, client: KubeClient) -> Discovery:
            return OddDiscovery(client)

    async with running(world.settings("pods"), make=OddDaemon) as relay:
        await whole(relay, "pods")
        odd.set()
        relay.daemon.adopt(world.settings("pods", "configmaps"))
        assert (
            problem_of(relay.daemon.statuses, "kubernetes")
            == "internal error: IndexError: odd input"
        )
        (card,) = cards(relay.daemon.statuses, {})
        assert card.cause == "internal"
        odd.clear()
        await whole(relay, "configmaps")
        assert "kubernetes" not in relay.daemon.statuses.problems
        assert relay.row("pods").state == "watching"


async def test_series_of_a_row_that_is_gone_are_gone(world: World) -> None:
    """A provisional row gives way to the stream that its entry turns out to be."""
    world.make_topic("core.pods")

    async def refuse(request: web.Request) -> web.StreamResponse | None:
        return (
            web.json_response({"kind": "Status", "code": 503}, status=503)
            if request.path.startswith("/api")
            else None
        )

    world.behaviour.intercept = refuse
    async with running(world.settings("po")) as relay:
        await until("the row is there", lambda: relay.row("po"))
        assert (
            'watchrelay_stream_state{cluster="test",state="waiting",stream="po"} 1.0'
            in (await relay.get("/metrics"))[1]
        )
        world.behaviour.intercept = None
        await whole(relay, "pods")
        text = (await relay.get("/metrics"))[1]
        assert 'stream="po"' not in text
        assert 'watchrelay_stream_state{cluster="test",state="watching",stream="pods"} 1.0' in text
