"""A stream between real sockets: how it lists, what its topic and its claim do to it."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web

from tests.unit.daemon.conftest import GROUP, World, running, until
from watchrelay.admin.preflight import check_everything
from watchrelay.config.streams import control_topic
from watchrelay.kafka.log_scan import descriptions
from watchrelay.plan.kafka import kafka_connection


async def test_streaming_lists_are_used_from_the_first_list_on_though_the_version_comes_late(
    world: World,
) -> None:
    world.make_topic("core.pods")
    asked, answer = asyncio.Event(), asyncio.Event()

    async def slow(request: web.Request) -> web.StreamResponse | None:
        if request.path == "/version":
            asked.set()
            await answer.wait()
        return None

    world.behaviour.intercept = slow
    async with running(world.settings("pods")) as relay:
        await asked.wait()
        assert world.asked("pods") == []
        answer.set()
        await relay.ready()
        assert world.asked("pods") == ["streaming list"]


async def test_a_server_without_streaming_lists_is_never_asked_for_one(world: World) -> None:
    world.make_topic("core.pods")
    world.behaviour.version = "v1.31.0"
    async with running(world.settings("pods")) as relay:
        await relay.ready()
        await until("it watches", lambda: world.cluster.server.watches)
        assert world.asked("pods") == ["list", "watch"]


async def test_a_server_that_does_not_say_its_version_is_listed_by_pages(world: World) -> None:
    world.make_topic("core.pods")

    async def refuse(request: web.Request) -> web.StreamResponse | None:
        return (
            web.json_response({"kind": "Status", "code": 500}, status=500)
            if request.path == "/version"
            else None
        )

    world.behaviour.intercept = refuse
    async with running(world.settings("pods")) as relay:
        await relay.ready()
        assert world.asked("pods")[0] == "list"


async def test_a_refused_topic_stops_its_stream_alone(world: World) -> None:
    world.make_topic("core.pods")
    async with running(world.settings("pods", "configmaps")) as relay:
        await relay.ready()
        await until("pods are whole", lambda: relay.row("pods").complete)
        refused = relay.row("configmaps")
        assert (refused.state, refused.complete) == ("waiting", False)
        assert "k8s.test.core.configmaps" in refused.waits_for
        assert "kafka.createTopics is false" in refused.waits_for
        status, body = await relay.get("/readyz")
        assert (status, body["streams"]["configmaps"]["reason"]) == (200, refused.waits_for)


async def test_a_newer_relay_takes_the_streams_over_and_the_older_ends_with_75(
    world: World,
) -> None:
    world.make_topic("core.pods")
    settings = world.settings("pods", heartbeatInterval="1s")
    async with running(settings) as older:
        await older.ready()
        async with running(settings) as newer:
            await newer.ready()
            assert await older.ended() == 75
            assert not newer.task.done()
            assert newer.row("pods").epoch > older.row("pods").epoch
            newer.daemon.stop()
            assert await newer.ended() == 0


async def test_a_stream_whose_topic_changed_shape_is_refused_with_what_to_do(world: World) -> None:
    world.make_topic("core.pods")
    world.kafka.create_topic("wide", 3)
    async with running(world.settings("pods")) as relay:
        await relay.ready()
        relay.daemon.stop()
        assert await relay.ended() == 0
    async with running(world.settings({"resource": "pods", "partitions": 2})) as relay:
        await until("it is refused", lambda: relay.row("pods").waits_for)
        assert relay.row("pods").waits_for == (
            "stream pods on topic k8s.test.core.pods has partitions 1, the config asks for 2: "
            "keep `partitions: 1`, or give the stream another topic"
        )
        facts = await check_everything(world.settings({"resource": "pods", "partitions": 2}))
        errors = [fact.message for fact in facts if fact.level == "error"]
        assert errors == [relay.row("pods").waits_for], (
            "`topics` and `validate --connect` say what `run` says"
        )
    async with running(
        world.settings({"resource": "pods", "partitions": 3, "topic": "wide"})
    ) as relay:
        await relay.ready()
        assert relay.row("pods").complete


@pytest.mark.parametrize("namespaces", [["shop"], ["shop", "default"]])
async def test_a_stream_per_namespace_is_whole_by_itself(
    world: World, namespaces: list[str]
) -> None:
    world.make_topic("core.pods")
    world.cluster.open_shop()
    async with running(world.settings({"resource": "pods", "namespaces": namespaces})) as relay:
        await relay.ready()
        assert list(relay.daemon.statuses.streams) == [
            f"pods@{namespace}" for namespace in namespaces
        ]
        assert all(row.complete for row in relay.daemon.statuses.streams.values())


async def test_a_start_with_streams_that_swapped_their_namespaces_says_what_a_reload_says(
    world: World,
) -> None:
    world.kafka.create_topic("t", 1)
    one, two = (
        {"resource": "configmaps", "topic": "t", "id": name, "scope": "cluster"}
        for name in ("one", "two")
    )
    swapped = world.settings({**one, "namespaces": ["default"]}, {**two, "namespaces": ["shop"]})
    async with running(
        world.settings({**one, "namespaces": ["shop"]}, {**two, "namespaces": ["default"]})
    ) as relay:
        await relay.ready()
        (objection, *_) = relay.daemon.objections(swapped)
        assert "neither can let go before the other does" in objection[1]
        relay.daemon.stop()
        assert await relay.ended() == 0
    async with running(swapped) as relay:
        await until("both wait", lambda: relay.row("one").waits_for and relay.row("two").waits_for)
        for stream in ("one", "two"):
            reason = relay.row(stream).waits_for
            assert "neither can let go before the other does" in reason
            assert (
                f"take {stream} out of the config, retire it (`watchrelay retire {stream}`) "
                "and put it back as it is to be"
            ) in reason


async def test_a_stream_goes_on_with_the_keys_that_its_topic_was_started_with_and_what_cannot_join_it_is_refused(
    world: World,
) -> None:
    world.kafka.create_topic("t", 1)
    pods, widgets, nodes = (
        {"resource": name, "topic": "t"} for name in ("pods", f"widgets.{GROUP}", "nodes")
    )
    async with running(world.settings(pods)) as relay:
        await relay.ready()
        relay.daemon.stop()
        assert await relay.ended() == 0
    # As an older release left it, which let the keys depend on what was served.
    async with running(world.settings(pods, widgets, nodes)) as relay:
        await until("pods are whole", lambda: relay.row("pods").complete)
        await until(
            "nodes are refused", lambda: relay.row("nodes") and relay.row("nodes").waits_for
        )
        assert relay.row("nodes").waits_for == (
            "stream nodes writes prefixed keys for nodes, stream pods on the same topic t "
            "plain ones for pods: "
            "take all of topic t out of the config, retire pods (`watchrelay retire pods`) "
            "and put all of it back; or name another topic"
        )
        assert (relay.row("pods").waits_for, relay.row("pods").last_error) == ("", None)
        facts = await check_everything(world.settings(pods, widgets, nodes))
        assert [fact.message for fact in facts if fact.level == "error"] == [
            relay.row("nodes").waits_for
        ]
        assert not [
            fact
            for fact in await check_everything(world.settings(pods, widgets))
            if fact.level == "error"
        ]


async def test_a_stream_keeps_prefixed_keys_when_it_is_alone_on_its_topic_and_others_join_it(
    world: World,
) -> None:
    world.kafka.create_topic("t", 1)
    world.cluster.open_shop()
    pods = {"resource": "pods", "topic": "t", "excludeNamespaces": ["elsewhere"]}
    nodes, more = (
        {"resource": "nodes", "topic": "t"},
        {"resource": "pods", "topic": "t", "id": "more", "namespaces": ["elsewhere"]},
    )
    async with running(world.settings(pods, nodes)) as relay:
        await until(
            "both are whole", lambda: relay.row("pods").complete and relay.row("nodes").complete
        )
        assert relay.daemon.objections(world.settings(pods)) == []
        relay.daemon.stop()
        assert await relay.ended() == 0
    async with running(world.settings(pods)) as relay:
        await until("pods are whole", lambda: relay.row("pods").complete)
        epoch = relay.row("pods").epoch
        relay.daemon.adopt(world.settings(pods, more))
        await until(
            "more pods are whole",
            lambda: relay.row("more@elsewhere") and relay.row("more@elsewhere").complete,
        )
        assert relay.row("pods").epoch == epoch
    connection = kafka_connection(world.settings(pods), client_id="test")
    described = await descriptions(connection, control_topic(world.settings(pods)))
    assert {stream: held["keyFormat"] for stream, held in described.items()} == dict.fromkeys(
        ["pods", "nodes", "more@elsewhere"], "prefixed"
    )
