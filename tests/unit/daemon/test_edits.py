"""A running relay is given other settings, between real sockets: what changes, and above all what
does not."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from tests.support.extent import few
from tests.support.mount import Mount
from tests.unit.daemon.conftest import GROUP, Relay, World, define, running, until
from watchrelay.config import load
from watchrelay.core import clock
from watchrelay.daemon.context import DaemonContext
from watchrelay.daemon.daemon import Daemon
from watchrelay.daemon.reload import ConfigSource
from watchrelay.kube.client import KubeClient

PLURALS = ("pods", "configmaps", "nodes")


@pytest.fixture
def stage(world: World) -> World:
    """A world with the topics of all that these tests follow, and something to follow."""
    for plural in PLURALS:
        world.make_topic(f"core.{plural}")
    world.cluster.open_shop()
    return world


class OpenDaemon(Daemon):
    """Shows the context of its streams."""

    context: DaemonContext

    def _make_context(self, client: KubeClient) -> DaemonContext:
        self.context = super()._make_context(client)
        return self.context


async def live(relay: Relay, *streams: str) -> None:
    """Returns once these streams, and no others, are whole in Kafka and watched."""

    def true() -> bool:
        rows = relay.daemon.statuses.streams
        return set(rows) == set(streams) and all(
            row.complete and row.state == "watching" for row in rows.values()
        )

    await until(f"{', '.join(streams)} are live", true)


def owned(relay: Relay) -> set[str]:
    """The streams that metrics speak of."""
    families = relay.daemon.metrics.gauge("stream_owned").collect()
    return {sample.labels["stream"] for family in families for sample in family.samples}


async def test_streams_are_added_and_removed_and_the_others_do_not_notice(stage: World) -> None:
    async with running(stage.settings("pods", "configmaps")) as relay:
        await live(relay, "pods", "configmaps")
        asked, epoch, watches = (
            stage.asked("pods"),
            relay.row("pods").epoch,
            stage.cluster.server.watches,
        )
        relay.daemon.adopt(stage.settings("nodes", "pods"))
        await live(relay, "pods", "nodes")
        assert (stage.asked("pods"), relay.row("pods").epoch) == (asked, epoch), (
            "its watch stays open"
        )
        assert stage.cluster.server.watches == watches
        assert owned(relay) == {"pods", "nodes"}
        text = relay.daemon.metrics.text()
        assert (b"k8s.test.core.configmaps" in text, b"k8s.test.core.pods" in text) == (False, True)
        relay.daemon.adopt(stage.settings("configmaps", "pods"))
        await live(relay, "pods", "configmaps")
        labels = {"topic": "k8s.test.core.configmaps", "kind": "marker"}
        acked = relay.daemon.metrics.registry.get_sample_value
        assert acked("watchrelay_records_acked_total", labels), "counted again where it comes back"
        relay.daemon.stop()
        assert await relay.ended() == 0


async def test_a_changed_stream_claims_again_and_the_others_keep_watch_and_epoch(
    stage: World,
) -> None:
    async with running(stage.settings("pods", "configmaps")) as relay:
        await live(relay, "pods", "configmaps")
        asked, epoch, held = (
            stage.asked("configmaps"),
            relay.row("configmaps").epoch,
            relay.row("pods"),
        )
        before, objects = held.epoch, held.objects
        relay.daemon.adopt(
            stage.settings({"resource": "pods", "labelSelector": "app=none"}, "configmaps")
        )
        await until("the selection is empty", lambda: relay.row("pods").objects == 0)
        await live(relay, "pods", "configmaps")
        assert objects > 0
        assert relay.row("pods").epoch > before
        assert (stage.asked("configmaps"), relay.row("configmaps").epoch) == (asked, epoch)


@pytest.mark.parametrize(
    "keys",
    few(
        [
            {"snapshotInterval": "15m"},
            {"suppressUnchanged": False},
            {"pageSize": 7},
            {"bookmarks": False},
        ],
        2,
    ),
    ids=lambda keys: next(iter(keys)),
)
async def test_a_change_that_leaves_the_content_alone_lists_nothing(
    stage: World, keys: dict[str, Any]
) -> None:
    async with running(stage.settings("pods")) as relay:
        await live(relay, "pods")
        asked, epoch = stage.asked("pods"), relay.row("pods").epoch
        relay.daemon.adopt(stage.settings({"resource": "pods", **keys}))
        await until("the stream claimed again", lambda: relay.row("pods").epoch > epoch)
        await live(relay, "pods")
        assert stage.asked("pods") == [*asked, "watch"]


async def test_settings_that_mean_the_same_change_nothing(stage: World) -> None:
    async with running(stage.settings("pods", {"resource": "cm"})) as relay:
        await live(relay, "pods", "configmaps")

        def state() -> dict[str, Any]:
            return {
                name: (row.epoch, stage.asked(name))
                for name, row in relay.daemon.statuses.streams.items()
            }

        before = state()
        relay.daemon.adopt(
            stage.settings(
                {"resource": "configmaps"}, {"resource": "po"}, shutdown={"drainTimeout": "3s"}
            )
        )
        await live(relay, "pods", "configmaps")
        assert state() == before


async def test_a_namespace_taken_out_of_an_entry_ends_its_stream_alone(stage: World) -> None:
    async with running(
        stage.settings({"resource": "pods", "namespaces": ["shop", "default"]})
    ) as relay:
        await live(relay, "pods@shop", "pods@default")
        epoch = relay.row("pods@shop").epoch
        relay.daemon.adopt(stage.settings({"resource": "pods", "namespaces": ["shop"]}))
        await live(relay, "pods@shop")
        assert relay.row("pods@shop").epoch == epoch


async def test_an_edit_while_discovery_of_the_group_is_stale_ends_no_stream_that_still_has_an_entry(
    stage: World,
) -> None:
    name = f"widgets.{GROUP}"
    define(stage.cluster, "widgets")
    stage.make_topic(f"{GROUP}.widgets")
    former = stage.settings("pods", {"resource": name, "namespaces": ["a", "b"]})
    async with running(former, make=OpenDaemon) as it:
        assert isinstance(it.daemon, OpenDaemon)
        await live(it, "pods", f"{name}@a", f"{name}@b")
        epoch, context = it.row(f"{name}@a").epoch, it.daemon.context
        stage.cluster.registry.catalog.stale.add((GROUP, "v1"))
        it.daemon.adopt(former)
        await until("discovery is stale", lambda: [*context.planned] == ["pods"])
        edited = {"resource": name, "namespaces": ["a"], "snapshotInterval": "2h"}
        it.daemon.adopt(stage.settings("nodes", edited))
        await live(it, "nodes", f"{name}@a", f"{name}@b")
        stage.cluster.registry.catalog.stale.clear()
        it.daemon.adopt(stage.settings("nodes", edited))
        await live(it, "nodes", f"{name}@a")
        assert it.row(f"{name}@a").epoch > epoch, "the edit counts once discovery answers"


async def test_what_one_stream_notices_of_the_served_resources_wakes_those_that_wait_for_it(
    stage: World,
) -> None:
    granted = asyncio.Event()

    async def forbid(request: web.Request) -> web.StreamResponse | None:
        if request.path.endswith("/configmaps") and not granted.is_set():
            return web.json_response({"kind": "Status", "code": 403}, status=403)
        return None

    stage.behaviour.intercept = forbid
    async with running(stage.settings("pods", "configmaps"), make=OpenDaemon) as relay:
        await until("pods is live", lambda: relay.row("pods").complete)
        row = relay.row("configmaps")
        await until("it waits long", lambda: (row.next_attempt_ms or 0) > clock.wall_ms() + 5_000)
        next_attempt_ms = row.next_attempt_ms or 0
        define(stage.cluster, "widgets")
        granted.set()
        assert isinstance(relay.daemon, OpenDaemon)
        context = relay.daemon.context
        pods = context.planned["pods"].plan.selection.resource
        assert (await context.server.availability(pods)).state == "served", (
            "asked by a stream whose request was answered 404"
        )
        await live(relay, "pods", "configmaps")
        assert clock.wall_ms() < next_attempt_ms


async def test_a_stream_taken_out_and_put_back_before_it_has_drained_is_one_stream(
    stage: World,
) -> None:
    async with running(stage.settings("pods", "configmaps")) as relay:
        await live(relay, "pods", "configmaps")
        epoch = relay.row("configmaps").epoch
        for settings in (
            stage.settings("pods"),
            stage.settings("pods", "configmaps"),
            stage.settings("pods"),
            stage.settings("configmaps"),
        ):
            relay.daemon.adopt(settings)
        await live(relay, "configmaps")
        assert relay.row("configmaps").epoch > epoch
        assert owned(relay) == {"configmaps"}
        relay.daemon.stop()
        assert await relay.ended() == 0


async def test_the_heartbeat_interval_changes_without_a_claim(stage: World) -> None:
    async with running(stage.settings("pods", heartbeatInterval="1h")) as relay:
        await live(relay, "pods")
        epoch, row = relay.row("pods").epoch, relay.row("pods")

        def marks() -> float:
            labels = {"topic": "k8s.test.core.pods", "kind": "marker"}
            return (
                relay.daemon.metrics.registry.get_sample_value(
                    "watchrelay_records_acked_total", labels
                )
                or 0.0
            )

        before = marks()
        relay.daemon.adopt(stage.settings("pods", heartbeatInterval="1s"))
        await until("heartbeats come", lambda: marks() >= before + 2)
        assert (relay.row("pods").epoch, relay.row("pods")) == (epoch, row)


async def test_an_entry_for_what_is_not_served_waits_and_leaves_with_its_row(stage: World) -> None:
    widgets = f"widgets.{GROUP}"
    async with running(stage.settings("pods")) as relay:
        await live(relay, "pods")
        relay.daemon.adopt(stage.settings("pods", widgets))
        await until(
            "it waits", lambda: relay.row(widgets) is not None and relay.row(widgets).waits_for
        )
        relay.daemon.adopt(stage.settings("pods"))
        await live(relay, "pods")


async def test_an_edit_that_gives_a_running_stream_another_shape_is_objected_to(
    stage: World,
) -> None:
    async with running(stage.settings("pods")) as relay:
        await live(relay, "pods")
        ((index, message, _),) = relay.daemon.objections(
            stage.settings("configmaps", {"resource": "pods", "partitions": 3})
        )
        assert index == 1
        assert (
            "has partitions 1, the config asks for 3: keep `partitions: 1`, or give the "
            "stream another topic"
        ) in message
        shared = stage.settings("pods", {"resource": "configmaps", "topic": "k8s.test.core.pods"})
        ((index, message, _),) = relay.daemon.objections(shared)
        assert (index, "key format 'plain'" in message) == (0, True)
        unserved = stage.settings(
            "pods", {"resource": f"widgets.{GROUP}", "topic": "k8s.test.core.pods"}
        )
        ((index, message, _),) = relay.daemon.objections(unserved)
        assert (index, "key format 'plain'" in message) == (0, True), (
            "though it would make a difference only later"
        )
        assert (
            relay.daemon.objections(
                stage.settings("pods", {"resource": "configmaps", "partitions": 3})
            )
            == []
        )


async def test_a_relay_stopped_in_the_middle_of_an_edit_drains_what_left_too(
    stage: World,
) -> None:
    async with running(stage.settings("pods", "configmaps")) as relay:
        await live(relay, "pods", "configmaps")
        relay.daemon.adopt(stage.settings({"resource": "pods", "labelSelector": "a=b"}, "nodes"))
        relay.daemon.stop()
        assert await relay.ended() == 0


async def test_a_stream_that_left_and_is_claimed_by_another_relay_does_not_end_this_one(
    stage: World,
) -> None:
    async with running(stage.settings("pods", "configmaps", heartbeatInterval="1s")) as one:
        await live(one, "pods", "configmaps")
        one.daemon.adopt(stage.settings("pods", heartbeatInterval="1s"))
        async with running(stage.settings("configmaps", heartbeatInterval="1s")) as other:
            await live(other, "configmaps")
            await live(one, "pods")
            assert not one.task.done()
            other.daemon.stop()
            assert await other.ended() == 0
        one.daemon.stop()
        assert await one.ended() == 0


# ---- from the file -------------------------------------------------------------------------------


def written(file: Path, stage: World, *resources: str, **more: Any) -> Path:
    kafka = {
        "bootstrapServers": [stage.kafka.bootstrap],
        "createTopics": False,
        "partitions": 1,
        "replicationFactor": 1,
    }
    raw = {
        "cluster": "test",
        "kubernetes": {"kubeconfig": str(stage.kubeconfig)},
        "kafka": {**kafka, "minInsyncReplicas": 1},
        "observe": {"listen": "127.0.0.1:0"},
        "resources": [{"resource": each} for each in resources],
    }
    text = yaml.safe_dump({**raw, **more})
    other = file.with_suffix(".new")
    other.write_text(text)
    other.rename(file)
    return file


@pytest.fixture
def source(tmp_path: Path) -> Callable[[Path], ConfigSource]:
    return lambda file: ConfigSource(str(file), (), environ={})


async def test_a_wrong_edit_shows_in_readyz_and_metrics_and_changes_nothing(
    stage: World, tmp_path: Path, source: Callable[[Path], ConfigSource]
) -> None:
    file = written(tmp_path / "watchrelay.yaml", stage, "pods")
    async with running(load(str(file), environ={}).settings, source=source(file)) as relay:
        await live(relay, "pods")
        asked = stage.asked("pods")
        written(file, stage, "pods", "secrets/all")
        body = await relay.get_until("/readyz", lambda body: "problems" in body)
        assert f"{file}:" in body["problems"]["reload"]
        assert "resources[1].resource" in body["problems"]["reload"]
        assert (
            'watchrelay_config_last_reload_successful{cluster="test"} 0.0'
            in (await relay.get("/metrics"))[1]
        )
        written(file, stage, "pods", "nodes")
        await live(relay, "pods", "nodes")
        assert relay.daemon.statuses.problems == {}
        assert stage.asked("pods") == asked


async def test_a_hangup_has_the_file_read_at_once(
    stage: World, tmp_path: Path, source: Callable[[Path], ConfigSource]
) -> None:
    file = written(tmp_path / "watchrelay.yaml", stage, "pods")
    async with running(load(str(file), environ={}).settings, source=source(file)) as relay:
        await live(relay, "pods")
        written(file, stage, "nodes")
        os.kill(os.getpid(), signal.SIGHUP)
        await live(relay, "nodes")


async def test_an_edit_while_the_relay_drains_is_left_to_the_next_one(
    stage: World,
    tmp_path: Path,
    source: Callable[[Path], ConfigSource],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    drain = {"shutdown": {"drainTimeout": "2s"}}
    file = written(tmp_path / "watchrelay.yaml", stage, "pods", **drain)
    async with running(load(str(file), environ={}).settings, source=source(file)) as relay:
        await live(relay, "pods")
        stage.kafka.broker_down()
        relay.daemon.stop()
        await until("it drains", lambda: not stage.cluster.server.watches)
        written(file, stage, "pods", "nodes", **drain)
        os.kill(os.getpid(), signal.SIGHUP)
        assert await relay.ended() == 1, "the deadline of the drain has passed"
        assert relay.row("nodes") is None
        assert "config reloaded" not in caplog.messages


async def test_while_there_is_no_way_into_the_cluster_the_way_itself_can_be_edited(
    stage: World, tmp_path: Path, source: Callable[[Path], ConfigSource]
) -> None:
    file = written(
        tmp_path / "watchrelay.yaml",
        stage,
        "pods",
        kubernetes={"kubeconfig": str(tmp_path / "none")},
    )
    async with running(load(str(file), environ={}).settings, source=source(file)) as relay:
        await until("there is no way in", lambda: "kubernetes" in relay.daemon.statuses.problems)
        written(file, stage, "nodes")
        await live(relay, "nodes")


async def test_an_edit_while_the_api_server_is_silent_counts_when_it_answers(stage: World) -> None:
    silent = True

    async def hold(_request: web.Request) -> web.StreamResponse | None:
        return web.Response(status=503) if silent else None

    stage.behaviour.intercept = hold
    async with running(stage.settings("pods")) as relay:
        await until("the trouble is known", lambda: "kubernetes" in relay.daemon.statuses.problems)
        relay.daemon.adopt(stage.settings("nodes"))
        assert list(relay.daemon.statuses.streams) == ["nodes"]
        assert not relay.daemon.readiness.check()[0]
        silent = False
        await live(relay, "nodes")


# ---- what is no part of the config ---------------------------------------------------------------


async def test_a_token_that_is_replaced_under_load_is_used_at_once_and_nothing_is_listed(
    world: World, tmp_path: Path
) -> None:
    def watched(times: int) -> bool:
        return world.asked("pods").count("watch") >= times

    world.make_topic("core.pods")
    mount = Mount(tmp_path / "account" / "token", "one")
    world.behaviour.token = "one"
    config = yaml.safe_load(world.kubeconfig.read_text())
    config["users"][0]["user"] = {"tokenFile": str(mount.file)}
    world.kubeconfig.write_text(yaml.safe_dump(config))
    async with asyncio.TaskGroup() as tasks, running(world.settings("pods")) as relay:
        shop = tasks.create_task(
            world.cluster.run_shop(events_per_s=200.0, shop=world.cluster.open_shop()), name="shop"
        )
        await live(relay, "pods")
        epoch, lists = relay.row("pods").epoch, world.asked("pods").count("streaming list")
        for count, token in enumerate(("two", "three"), world.asked("pods").count("watch") + 1):
            mount.swap(token)
            world.behaviour.token = token
            world.cluster.server.end_watches("cut")
            await until("it watches again", partial(watched, count))
            await live(relay, "pods")
        shop.cancel()
        await asyncio.wait((shop,))
        pods = world.cluster.registry.storage.collection("pods")
        await until("all is held", lambda: relay.row("pods").objects == len(pods.objects))
        assert (relay.row("pods").epoch, world.asked("pods").count("streaming list")) == (
            epoch,
            lists,
        )
        relay.daemon.stop()
        assert await relay.ended() == 0
