"""Lists over real sockets."""

from __future__ import annotations

import asyncio
import gzip

import pytest

from tests.support.scripted import Reply, Request, ScriptedServer
from tests.unit.kube.served import (
    PODS,
    STREAM,
    KnownCredentials,
    client_of,
    dumps,
    failure_status,
    list_from,
    listed,
    pod,
)
from watchrelay.core.errors import (
    Expired,
    KubeError,
    Misconfigured,
    NotAcceptable,
    Throttled,
    Unauthorized,
    Unavailable,
    VersionTooLarge,
)
from watchrelay.model.frames import ListQuery
from watchrelay.model.resources import Resource, Selection
from watchrelay.observe.metrics import Metrics


async def test_T03_a_page_is_asked_for_by_the_token_of_the_one_before() -> None:
    async def handler(request: Request, reply: Reply) -> None:
        last = request.query.get("continue") == "n+/=&x"
        await reply.json(200, listed(pod("b" if last else "a"), token="" if last else "n+/=&x"))

    async with ScriptedServer(handler) as server, client_of(server.url) as client:
        first = await client.list_page(PODS, ListQuery(limit=500), stream=STREAM)
        assert first.continue_token == "n+/=&x"
        second = await client.list_page(
            PODS, ListQuery(limit=500, continue_token=first.continue_token), stream=STREAM
        )
        assert second.continue_token is None
        assert [frame.name for frame in (*first.objects, *second.objects)] == ["a", "b"]
        assert [request.query for request in server.requests] == [
            {"limit": "500"},
            {"limit": "500", "continue": "n+/=&x"},
        ]
        assert server.connections == 1


async def test_a_list_asks_for_exactly_what_the_query_says() -> None:
    async def handler(request: Request, reply: Reply) -> None:
        await reply.json(200, listed())

    chosen = Selection(
        PODS.resource,
        "shop",
        label_selector="app=web,tier in (a, b)",
        field_selector="spec.nodeName=n+1",
    )
    async with ScriptedServer(handler) as server:
        await list_from(
            server, ListQuery(resource_version="7", version_match="NotOlderThan"), chosen
        )
        (request,) = server.requests
    assert request.path == "/api/v1/namespaces/shop/pods"
    assert request.query == {
        "labelSelector": "app=web,tier in (a, b)",
        "fieldSelector": "spec.nodeName=n+1",
        "resourceVersion": "7",
        "resourceVersionMatch": "NotOlderThan",
    }
    assert request.headers["accept"] == "application/json"
    assert request.headers["authorization"] == "Bearer first"
    agent = request.headers["user-agent"]
    assert agent.startswith("watchrelay/")
    assert "(linux/" in agent
    assert agent.endswith(f" {STREAM}")


async def test_T73_impersonation_headers_are_sent_as_given() -> None:
    async def handler(request: Request, reply: Reply) -> None:
        await reply.json(200, listed())

    async with ScriptedServer(handler) as server:
        credentials = KnownCredentials(server.url)
        credentials.given = [
            ("Impersonate-User", "jane"),
            ("Impersonate-Group", "a"),
            ("Impersonate-Group", "b"),
        ]
        async with client_of(server.url, credentials=credentials) as client:
            await client.list_page(PODS, ListQuery(), stream=STREAM)
        sent = [
            (name, value)
            for name, value in server.requests[0].raw_headers
            if name.startswith("impersonate")
        ]
    assert sent == [
        ("impersonate-user", "jane"),
        ("impersonate-group", "a"),
        ("impersonate-group", "b"),
    ]


async def test_a_token_with_control_characters_is_refused_without_being_repeated() -> None:
    async def handler(request: Request, reply: Reply) -> None:
        await reply.json(200, listed())

    async with ScriptedServer(handler) as server:
        credentials = KnownCredentials(server.url)
        credentials.given = [("Authorization", "Bearer sec\nret")]
        async with client_of(server.url, credentials=credentials) as client:
            with pytest.raises(Misconfigured, match="Authorization") as caught:
                await client.list_page(PODS, ListQuery(), stream=STREAM)
        assert "ret" not in str(caught.value)
        assert server.requests == []


async def test_a_user_in_the_servers_url_counts_where_there_is_no_other_credential() -> None:
    """As in Go's client. Source: net/http, Client.send."""

    async def handler(request: Request, reply: Reply) -> None:
        await reply.json(200, listed())

    async with ScriptedServer(handler) as server:
        credentials = KnownCredentials(server.url.replace("http://", "http://u:p@"))
        async with client_of(server.url, credentials=credentials) as client:
            await client.list_page(PODS, ListQuery(), stream=STREAM)
            credentials.given = []
            await client.list_page(PODS, ListQuery(), stream=STREAM)
        assert [request.headers["authorization"] for request in server.requests] == [
            "Bearer first",
            "Basic dTpw",
        ]


@pytest.mark.parametrize("compress", [True, False])
async def test_a_list_is_compressed_unless_that_is_disabled(compress: bool) -> None:
    async def handler(request: Request, reply: Reply) -> None:
        body = dumps(listed(*(pod(f"p{n}") for n in range(1000))))
        if "gzip" in request.headers["accept-encoding"]:
            await reply.text(
                200,
                gzip.compress(body),
                {"Content-Type": "application/json", "Content-Encoding": "gzip"},
            )
        else:
            await reply.text(200, body, {"Content-Type": "application/json"})

    async with ScriptedServer(handler) as server:
        async with client_of(
            server.url, credentials=KnownCredentials(server.url, compress=compress)
        ) as client:
            page = await client.list_page(PODS, ListQuery(), stream=STREAM)
        assert len(page.objects) == 1000
        assert server.requests[0].headers["accept-encoding"] == ("gzip" if compress else "identity")


@pytest.mark.parametrize("end", ["fin", "reset", "end"])
@pytest.mark.parametrize("cut", [0, 1, 300, -1])
async def test_T09_a_list_that_is_cut_is_unavailable_and_leaves_nothing(end: str, cut: int) -> None:
    async def handler(request: Request, reply: Reply) -> None:
        await reply.start()
        await reply.chunk(dumps(listed(*(pod(f"p{n}") for n in range(20))))[:cut])
        await getattr(reply, end)()

    async with ScriptedServer(handler) as server:
        with pytest.raises(Unavailable):
            await list_from(server)


@pytest.mark.parametrize(
    ("body", "content_type", "kind"),
    [
        (b"<html>please log in</html>", "text/html", Unavailable),
        (b"<html>please log in</html>", "application/json", Unavailable),
        (b"{}", "application/json", Unavailable),
        (dumps(failure_status(410, "Expired")), "application/json", Expired),
    ],
)
async def test_T10_a_200_that_is_no_list_is_an_error(
    body: bytes, content_type: str, kind: type[KubeError]
) -> None:
    async def handler(request: Request, reply: Reply) -> None:
        await reply.text(200, body, {"Content-Type": content_type})

    async with ScriptedServer(handler) as server:
        with pytest.raises(KubeError) as caught:
            await list_from(server)
    assert type(caught.value) is kind
    assert "please log in" not in str(caught.value)
    assert f"127.0.0.1:{server.port}" in str(caught.value)


async def test_T13_a_throttled_list_says_how_long_to_stay_away() -> None:
    async def handler(request: Request, reply: Reply) -> None:
        if len(server.requests) == 1:
            await reply.text(
                429, "Too many requests, please try again later.\n", {"Retry-After": "7"}
            )
        else:
            await reply.text(503, "service unavailable\n")

    async with ScriptedServer(handler) as server:
        for seconds in (7.0, 0.0):
            with pytest.raises(Throttled) as caught:
                await list_from(server)
            assert caught.value.retry_after_s == seconds


async def test_a_server_behind_the_version_asked_for_says_so() -> None:
    status = failure_status(
        504,
        "Timeout",
        details={"causes": [{"reason": "ResourceVersionTooLarge"}], "retryAfterSeconds": 1},
    )

    async def handler(request: Request, reply: Reply) -> None:
        await reply.json(504, status)

    async with ScriptedServer(handler) as server:
        with pytest.raises(VersionTooLarge) as caught:
            await list_from(server)
    assert caught.value.retry_after_s == 1.0


async def test_a_401_is_tried_once_more_with_fresh_credentials() -> None:
    async def handler(request: Request, reply: Reply) -> None:
        if request.headers["authorization"] == "Bearer second":
            await reply.json(200, listed(pod("a")))
        else:
            await reply.json(401, failure_status(401, "Unauthorized"))

    async with ScriptedServer(handler) as server:
        credentials = KnownCredentials(server.url)
        async with client_of(server.url, credentials=credentials) as client:
            page = await client.list_page(PODS, ListQuery(), stream=STREAM)
            assert (len(page.objects), credentials.refusals) == (1, 1)
            credentials.given = credentials.after_refusal = [("Authorization", "Bearer third")]
            with pytest.raises(Unauthorized):
                await client.list_page(PODS, ListQuery(), stream=STREAM)
        assert (credentials.refusals, len(server.requests)) == (2, 4)


async def test_a_401_for_a_group_that_another_server_may_serve_names_its_api_service() -> None:
    async def handler(request: Request, reply: Reply) -> None:
        await reply.json(401, failure_status(401, "Unauthorized"))

    widgets = Selection(Resource("example.com", "v1", "widgets", "Widget", namespaced=True))
    async with ScriptedServer(handler) as server, client_of(server.url) as client:
        for selection, named in ((widgets, True), (PODS, False)):
            with pytest.raises(Unauthorized, match="certificate was refused") as caught:
                await client.list_page(selection, ListQuery(), stream=STREAM)
            assert ("APIService v1.example.com" in str(caught.value)) is named
            assert ("APIService" in caught.value.cure) is named


async def test_a_401_after_which_there_is_no_other_credential_is_still_an_answer() -> None:
    class Exhausted(KnownCredentials):
        async def headers(self) -> list[tuple[str, str]]:
            if self.refusals:
                raise Misconfigured("the plugin failed with exit code 1")
            return self.given

    async def handler(request: Request, reply: Reply) -> None:
        await reply.json(401, failure_status(401, "Unauthorized"))

    async with ScriptedServer(handler) as server:
        credentials = Exhausted(server.url)
        async with client_of(server.url, credentials=credentials) as client:
            for status in (401, 0):
                with pytest.raises(Misconfigured, match="exit code 1") as caught:
                    await client.list_page(PODS, ListQuery(), stream=STREAM)
                assert caught.value.status == status
        assert len(server.requests) == 1


async def test_T84_metadata_is_requested_in_the_list_form_and_plainly_when_configured() -> None:
    async def handler(request: Request, reply: Reply) -> None:
        if "as=" in request.headers["accept"]:
            await reply.json(406, failure_status(406, "NotAcceptable"))
        else:
            await reply.json(200, listed(pod("a")))

    partial = Selection(PODS.resource, metadata_only=True)
    async with ScriptedServer(handler) as server:
        with pytest.raises(NotAcceptable):
            await list_from(server, ListQuery(), partial)
        page = await list_from(server, ListQuery(whole_objects=True), partial)
        accepted = [request.headers["accept"] for request in server.requests]
    assert list(page.objects[0].fields) == ["apiVersion", "kind", "metadata"]
    assert accepted == [
        "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json",
        "application/json",
    ]


@pytest.mark.parametrize("begun", [False, True])
async def test_T58_a_list_that_is_cancelled_closes_its_connection(begun: bool) -> None:
    asked, left = asyncio.Event(), asyncio.Event()

    async def handler(request: Request, reply: Reply) -> None:
        if begun:
            await reply.start()
            await reply.chunk(b'{"kind":"PodList","items":[')
        asked.set()
        await reply.gone()
        left.set()

    async with (
        ScriptedServer(handler) as server,
        client_of(server.url) as client,
        asyncio.TaskGroup() as tasks,
    ):
        listing = tasks.create_task(client.list_page(PODS, ListQuery(), stream=STREAM), name="list")
        await asked.wait()
        listing.cancel()
        await left.wait()


async def test_a_large_page_leaves_the_loop_its_turns() -> None:
    body = dumps(listed(*(pod(f"p{n}", note="x" * 3000) for n in range(5000))))

    async def handler(request: Request, reply: Reply) -> None:
        await reply.text(200, body, {"Content-Type": "application/json"})

    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with ScriptedServer(handler) as server, asyncio.TaskGroup() as tasks:
        counting = tasks.create_task(count(), name="count")
        page = await list_from(server)
        counting.cancel()
    assert len(page.objects) == 5000
    # at least one for each MiB: parsing goes in chunks, not in one piece
    assert turns > len(body) / (1 << 20)


async def test_requests_are_counted_by_verb_and_code() -> None:
    async def handler(request: Request, reply: Reply) -> None:
        if request.path.startswith("/api/v1/pods"):
            await reply.json(200, listed())
        else:
            await reply.fin()

    metrics = Metrics()
    async with ScriptedServer(handler) as server, client_of(server.url, metrics=metrics) as client:
        await client.list_page(PODS, ListQuery(), stream=STREAM)
        with pytest.raises(Unavailable):
            await client.get_json("/gone")
    counted = metrics.registry.get_sample_value
    assert counted("watchrelay_kube_requests_total", {"verb": "list", "code": "200"}) == 1
    assert counted("watchrelay_kube_requests_total", {"verb": "get", "code": "0"}) == 1
    assert counted("watchrelay_kube_request_duration_seconds_count", {"verb": "list"}) == 1
