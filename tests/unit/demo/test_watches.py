"""Watch requests over a real socket: claims about events, bookmarks, expiry, streaming lists,
selectors."""

import asyncio
import json
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.unit.demo.conftest import Api, short
from watchrelay.demo.queries import WatchRequest
from watchrelay.demo.views import View
from watchrelay.demo.watching import WatchStream

MAPS = "/api/v1/configmaps"
STREAMING: dict[str, Any] = {
    "sendInitialEvents": "true",
    "resourceVersionMatch": "NotOlderThan",
    "allowWatchBookmarks": "true",
}


async def test_events_come_in_order_with_versions_that_grow_and_a_deletion_has_its_own(
    api: Api,
) -> None:
    async with api.watch(MAPS, resourceVersion=api.version) as watch:
        api.settings("a", "1")
        api.settings("a", "2")
        api.settings("a", "2")
        api.settings("b", "1")
        api.remove("a")
        lines = await watch.take(4)
    assert short(lines) == [("ADDED", "a"), ("MODIFIED", "a"), ("ADDED", "b"), ("DELETED", "a")]
    versions = [int(line["object"]["metadata"]["resourceVersion"]) for line in lines]
    assert versions == sorted(set(versions))
    assert lines[3]["object"]["data"] == {"value": "2"}, (
        "the last state, at the version of its deletion"
    )
    assert {(line["object"]["kind"], line["object"]["apiVersion"]) for line in lines} == {
        ("ConfigMap", "v1")
    }


async def test_a_watch_from_any_kept_version_shows_what_came_after_it(api: Api) -> None:
    versions = []
    for number in range(5):
        versions.append(api.version)
        api.settings(f"m{number}")
    for number, version in enumerate(versions):
        async with api.watch(MAPS, resourceVersion=version) as watch:
            assert short(await watch.take(5 - number)) == [
                ("ADDED", f"m{n}") for n in range(number, 5)
            ]


async def test_bookmarks_come_while_nothing_happens_and_carry_the_newest_version(api: Api) -> None:
    api.cluster.server.behaviour.bookmark_interval_s = 0.05
    async with api.watch(
        "/api/v1/pods", resourceVersion=api.version, allowWatchBookmarks="true"
    ) as watch:
        api.settings("elsewhere")
        bookmark = (await watch.take(1))[0]
        while bookmark["object"]["metadata"]["resourceVersion"] != api.version:
            bookmark = (await watch.take(1))[0]
    assert bookmark["type"] == "BOOKMARK"
    assert bookmark["object"]["metadata"] == {"resourceVersion": api.version}
    assert bookmark["object"]["spec"] == {"containers": None}


async def test_a_watch_ends_cleanly_at_its_timeout_after_a_last_bookmark(api: Api) -> None:
    async with api.watch(
        MAPS, resourceVersion=api.version, allowWatchBookmarks="true", timeoutSeconds=1
    ) as watch:
        assert [line["type"] for line in await watch.rest()] == ["BOOKMARK"]
    async with api.watch(MAPS, resourceVersion=api.version, timeoutSeconds=1) as watch:
        assert await watch.rest() == []


async def test_a_client_that_goes_while_an_event_is_written_is_no_error_in_the_log(
    api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    server = api.cluster.server
    async with api.watch(MAPS, resourceVersion=api.version) as watch:
        api.settings("a")
        await watch.take(1)
        (served,) = server._watches
        assert served._transport is not None
        api.settings("a", "2")  # the watch writes it before it is given the end of its connection
        served._transport.close()
        with pytest.raises(aiohttp.ClientError):
            await watch.rest()
        async with asyncio.timeout(60.0):
            await server.read_up("configmaps")
    assert not [record for record in caplog.records if record.exc_info]


async def test_an_expired_version_is_an_error_line_or_an_http_410(api: Api) -> None:
    old = api.version
    api.settings("a")
    api.registry.storage.compact()
    async with api.watch(MAPS, resourceVersion=old) as watch:
        lines = await watch.rest()
    assert [line["type"] for line in lines] == ["ERROR"]
    assert lines[0]["object"] | {"message": ""} == {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": "",
        "reason": "Expired",
        "code": 410,
    }
    api.cluster.server.behaviour.expired_as_http = True
    assert (await api.get(MAPS, watch=1, resourceVersion=old, expect=410))["reason"] == "Expired"
    async with api.watch(MAPS, resourceVersion=api.version) as watch:
        api.settings("b")
        assert short(await watch.take(1)) == [("ADDED", "b")]


async def test_history_is_bounded_and_what_fell_out_is_expired(api: Api) -> None:
    collection = api.registry.storage.collection("configmaps")
    old = api.version
    for number in range(20_001):
        api.settings("a", str(number))
    assert len(collection.history) < 20_000
    async with api.watch(MAPS, resourceVersion=old) as watch:
        assert (await watch.rest())[0]["object"]["code"] == 410


async def test_a_streaming_list_shows_everything_then_its_end_bookmark_then_goes_on(
    api: Api,
) -> None:
    for number in range(300):
        api.settings(f"m{number:03}")
    version = api.version
    async with api.watch(MAPS, **STREAMING) as watch:
        lines = await watch.take(301)
        api.settings("later")
        later = await watch.take(1)
    assert short(lines[:-1]) == [("ADDED", f"m{number:03}") for number in range(300)]
    assert lines[-1]["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
    assert lines[-1]["object"]["metadata"]["resourceVersion"] == version
    assert short(later) == [("ADDED", "later")]


async def test_without_bookmarks_a_streaming_list_has_no_end_mark(api: Api) -> None:
    api.settings("a")
    async with api.watch(
        MAPS, **{**STREAMING, "allowWatchBookmarks": "false", "timeoutSeconds": "1"}
    ) as watch:
        assert short(await watch.rest()) == [("ADDED", "a")]


async def test_streaming_lists_can_be_off_and_ask_for_too_much(api: Api) -> None:
    async with api.watch(MAPS, **{**STREAMING, "resourceVersion": "99999999"}) as watch:
        error = (await watch.rest())[0]["object"]
    assert (error["code"], error["details"]["causes"][0]["reason"]) == (
        504,
        "ResourceVersionTooLarge",
    )
    await api.get(MAPS, watch=1, sendInitialEvents="true", expect=422)
    await api.get(MAPS, watch=1, resourceVersion=1, resourceVersionMatch="NotOlderThan", expect=422)
    api.cluster.server.behaviour.streaming_lists = False
    status = await api.get(MAPS, watch=1, expect=422, **STREAMING)
    assert "WatchList feature gate" in status["message"]


async def test_what_leaves_a_selector_is_deleted_in_its_old_state_and_what_enters_is_added(
    api: Api,
) -> None:
    api.settings("a", "1", labels={"app": "x"})
    async with api.watch(MAPS, resourceVersion=api.version, labelSelector="app=x") as watch:
        api.settings("b", "1", labels={"app": "y"})
        api.settings("a", "2", labels={"app": "y"})
        version = api.version
        api.settings("a", "3", labels={"app": "y"})
        api.settings("a", "4", labels={"app": "x"})
        api.settings("a", "5", labels={"app": "x"})
        api.remove("a")
        api.remove("b")
        api.settings("c", "1", labels={"app": "x"})
        lines = await watch.take(5)
    assert short(lines) == [
        ("DELETED", "a"),
        ("ADDED", "a"),
        ("MODIFIED", "a"),
        ("DELETED", "a"),
        ("ADDED", "c"),
    ]
    assert lines[0]["object"]["data"] == {"value": "1"}
    assert lines[0]["object"]["metadata"]["resourceVersion"] == version


async def test_a_namespaced_watch_sees_its_namespace_and_a_field_selector_one_object(
    api: Api,
) -> None:
    path = "/api/v1/namespaces/default/configmaps"
    async with (
        api.watch(path, resourceVersion=api.version) as one,
        api.watch(
            MAPS,
            resourceVersion=api.version,
            fieldSelector="metadata.name=b,metadata.namespace=kube-system",
        ) as two,
    ):
        api.settings("a", namespace="kube-system")
        api.settings("b", namespace="kube-system")
        api.settings("b")
        assert short(await one.take(1)) == [("ADDED", "b")]
        assert (await two.take(1))[0]["object"]["metadata"]["namespace"] == "kube-system"


async def test_metadata_only_watches_need_the_singular_form(api: Api) -> None:
    singular = {
        "Accept": "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
    }
    plural = {
        "Accept": "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
    }
    version = api.version
    api.settings("a")
    async with api.watch(MAPS, headers=singular, resourceVersion=version) as watch:
        assert set((await watch.take(1))[0]["object"]) == {"kind", "apiVersion", "metadata"}
    async with api.watch(MAPS, headers=plural, resourceVersion=version) as watch:
        assert "data" in (await watch.take(1))[0]["object"]


async def test_a_version_of_the_future_is_waited_for_in_silence(api: Api) -> None:
    future = int(api.version) + 2
    async with api.watch(MAPS, resourceVersion=future) as watch:
        for name in ("a", "b", "c"):
            api.settings(name)
        assert short(await watch.take(1)) == [("ADDED", "c")]


async def test_a_watch_of_a_future_version_with_a_bookmark_due_does_not_keep_the_server_busy(
    api: Api,
) -> None:
    storage = api.registry.storage
    served = api.registry.catalog.named("configmaps")
    view = View(
        served, "v1", namespace="", label_selector="", field_selector="", metadata_only=False
    )
    turns: list[int] = []
    watch = WatchStream(
        storage,
        storage.collection("configmaps"),
        view,
        WatchRequest(start=int(api.version) + 2, timeout_s=5.0, bookmarks=True),
        bookmark_interval_s=0.5,
        on_caught_up=lambda: turns.append(1),
    )
    app = web.Application()
    app.router.add_get("/", watch.run)
    async with TestServer(app) as server, api.session.get(server.make_url("/")) as answer:
        assert await answer.read() == b""
    assert 2 <= len(turns) <= 12, "once for each interval, and at the end"


async def test_watches_can_be_ended_cleanly_and_cut(api: Api) -> None:
    async with api.watch(MAPS, resourceVersion=api.version) as watch:
        api.cluster.server.end_watches("clean")
        assert await watch.rest() == []
    async with api.watch(MAPS, resourceVersion=api.version) as watch:
        api.cluster.server.end_watches("cut")
        with pytest.raises(aiohttp.ClientError):
            await watch.rest()


async def test_a_stopped_server_starts_again_with_its_state(api: Api) -> None:
    api.settings("a")
    version = api.version
    await api.cluster.stop()
    api.settings("b")
    await api.cluster.start()
    async with api.watch(MAPS, resourceVersion=version) as watch:
        assert short(await watch.take(1)) == [("ADDED", "b")]


async def test_a_client_that_leaves_frees_its_watch(api: Api) -> None:
    async with api.watch(MAPS, resourceVersion=api.version):
        assert api.cluster.server.watches == 1
    await api.cluster.server.read_up("configmaps")
    await api.cluster.stop()
    assert api.cluster.server.watches == 0


async def test_a_flood_reaches_its_reader_whole_and_in_order(api: Api) -> None:
    api.cluster.add_pods(50)
    version = int(api.version)
    async with (
        api.watch("/api/v1/pods", resourceVersion=version) as watch,
        asyncio.TaskGroup() as tasks,
    ):
        tasks.create_task(api.cluster.flood(3000), name="flood")
        lines = await watch.take(3000)
    assert [int(line["object"]["metadata"]["resourceVersion"]) for line in lines] == list(
        range(version + 1, version + 3001)
    )
    assert {line["type"] for line in lines} == {"MODIFIED"}
    held = json.loads(api.registry.storage.collection("pods").history[-1].now.body())
    assert lines[-1]["object"] == held
