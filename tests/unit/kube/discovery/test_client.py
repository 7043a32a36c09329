"""Discovery over real sockets."""

from __future__ import annotations

import re

import pytest

from tests.support.scripted import Reply, Request, ScriptedServer
from tests.unit.kube.served import client_of
from watchrelay.core.errors import Forbidden, KubeError, Throttled, Unavailable
from watchrelay.kube.client import ServerVersion
from watchrelay.kube.discovery.client import Discovery
from watchrelay.kube.discovery.resolve import Found, Missing, Unknown

VERBS = ["get", "list", "watch", "create"]


def aggregated_resource(plural: str, kind: str, *short: str) -> dict[str, object]:
    return {
        "resource": plural,
        "singularResource": kind.lower(),
        "responseKind": {"group": "", "version": "", "kind": kind},
        "scope": "Namespaced",
        "verbs": VERBS,
        "shortNames": list(short),
        "subresources": [{"subresource": "status", "verbs": ["get"]}],
    }


def aggregated(
    name: str, *resources: dict[str, object], freshness: str = "Current", version: str = "v1"
) -> dict[str, object]:
    return {
        "metadata": {"name": name},
        "versions": [{"version": version, "freshness": freshness, "resources": list(resources)}],
    }


PODS = aggregated_resource("pods", "Pod", "po")
WIDGETS = aggregated_resource("widgets", "Widget", "wd")


class Api:
    """An API server's discovery, of the kind that `form` names."""

    def __init__(self, form: str) -> None:
        self.form = form
        self.apis: list[dict[str, object]] = [aggregated("example.com", WIDGETS)]
        self.broken: dict[str, int] = {}

    async def __call__(self, request: Request, reply: Reply) -> None:
        if (code := self.broken.get(request.path)) is not None:
            await reply.text(code, "service unavailable\n")
        elif self.form == "legacy":
            await self._legacy(request, reply)
        else:
            await self._aggregated(request, reply)

    async def _aggregated(self, request: Request, reply: Reply) -> None:
        assert request.headers["accept"].startswith(
            "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,"
        )
        items = [aggregated("", PODS)] if request.path == "/api" else self.apis
        etag = f'"{len(str(items))}"'
        if request.headers.get("if-none-match") == etag:
            await reply.start(304, {"ETag": etag}, length=0)
            await reply.end()
            return
        kind = f"application/json;g=apidiscovery.k8s.io;v={self.form};as=APIGroupDiscoveryList"
        await reply.json(
            200,
            {"kind": "APIGroupDiscoveryList", "items": items},
            {"Content-Type": kind, "ETag": etag},
        )

    async def _legacy(self, request: Request, reply: Reply) -> None:
        pods = {
            "name": "pods",
            "singularName": "",
            "namespaced": True,
            "kind": "Pod",
            "verbs": VERBS,
            "shortNames": ["po"],
        }
        log = {
            "name": "pods/log",
            "singularName": "",
            "namespaced": True,
            "kind": "Pod",
            "verbs": ["get"],
        }
        widgets = {**pods, "name": "widgets", "kind": "Widget", "shortNames": None}
        versions = [{"groupVersion": f"example.com/{v}", "version": v} for v in ("v1beta1", "v1")]
        answers: dict[str, object] = {
            "/api": {"kind": "APIVersions", "versions": ["v1"]},
            "/api/v1": {"kind": "APIResourceList", "groupVersion": "v1", "resources": [pods, log]},
            "/apis": {
                "groups": [
                    {"name": "example.com", "versions": versions, "preferredVersion": versions[1]}
                ]
            },
            "/apis/example.com/v1": {"groupVersion": "example.com/v1", "resources": [widgets]},
            "/apis/example.com/v1beta1": {
                "groupVersion": "example.com/v1beta1",
                "resources": [widgets],
            },
        }
        await reply.json(200, answers[request.path])


def names(found: object) -> list[str]:
    assert isinstance(found, Found), found
    return [str(resource) for resource in found.resources]


@pytest.mark.parametrize("form", ["v2", "v2beta1", "legacy"])
async def test_T79_every_form_of_discovery_is_understood(form: str) -> None:
    async with ScriptedServer(Api(form)) as server, client_of(server.url) as client:
        discovery = Discovery(client)
        assert isinstance(discovery.resolve("pods"), Unknown)
        assert await discovery.refresh()
        assert names(discovery.resolve("po")) == ["pods/v1"]
        assert names(discovery.resolve("Widget")) == ["widgets.example.com/v1"]
        assert isinstance(discovery.resolve("gizmos.example.com"), Missing)
        assert not await discovery.refresh()


async def test_T79_what_did_not_change_is_not_sent_again() -> None:
    api = Api("v2")
    async with ScriptedServer(api) as server, client_of(server.url) as client:
        discovery = Discovery(client)
        assert await discovery.refresh()
        assert not await discovery.refresh()
        assert all("if-none-match" in request.headers for request in server.requests[2:])
        api.apis.append(aggregated("new.example.net", aggregated_resource("gizmos", "Gizmo")))
        assert await discovery.refresh()
        assert names(discovery.resolve("gizmos")) == ["gizmos.new.example.net/v1"]
        assert len(server.requests) == 6


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (503, "does not answer now"),
        (404, "does not answer now"),
        (400, "/apis/example.com/v1 at .*: 400"),
        (401, "/apis/example.com/v1 at .*: 401 .*by the server behind APIService v1.example.com"),
        (403, "/apis/example.com/v1 at .*: 403 .*system:discovery"),
        (406, "/apis/example.com/v1 at .*: 406"),
    ],
)
async def test_T78_one_bad_api_server_does_not_take_the_others_along(code: int, why: str) -> None:
    api = Api("legacy")
    api.broken = {"/apis/example.com/v1": code, "/apis/example.com/v1beta1": code}
    async with ScriptedServer(api) as server, client_of(server.url) as client:
        discovery = Discovery(client)
        await discovery.refresh()
        assert names(discovery.resolve("pods")) == ["pods/v1"]
        unknown = discovery.resolve("widgets.example.com")
        assert isinstance(unknown, Unknown)
        assert re.search(why, unknown.reason)


async def test_T78_why_a_group_is_unknown_is_shown_as_it_is_now() -> None:
    api = Api("legacy")
    async with ScriptedServer(api) as server, client_of(server.url) as client:
        discovery = Discovery(client)
        for code, why in ((503, "does not answer now"), (403, "403"), (503, "does not answer now")):
            api.broken = {f"/apis/example.com/{each}": code for each in ("v1", "v1beta1")}
            changed = await discovery.refresh()
            assert changed == (len(server.requests) == 5), "what is served is the same"
            unknown = discovery.resolve("widgets.example.com")
            assert isinstance(unknown, Unknown)
            assert why in unknown.reason


async def test_T78_a_stale_group_is_unknown() -> None:
    api = Api("v2")
    api.apis = [aggregated("example.com", freshness="Stale")]
    async with ScriptedServer(api) as server, client_of(server.url) as client:
        discovery = Discovery(client)
        await discovery.refresh()
        assert isinstance(discovery.resolve("widgets.example.com"), Unknown)


@pytest.mark.parametrize(("code", "kind"), [(503, Throttled), (403, Forbidden), (502, Unavailable)])
async def test_a_refresh_that_fails_leaves_what_was_known(code: int, kind: type[KubeError]) -> None:
    api = Api("v2")
    async with ScriptedServer(api) as server, client_of(server.url) as client:
        discovery = Discovery(client)
        await discovery.refresh()
        api.broken = {"/apis": code}
        with pytest.raises(kind):
            await discovery.refresh()
        assert names(discovery.resolve("widgets")) == ["widgets.example.com/v1"]


@pytest.mark.parametrize("path", ["/api", "/apis", "/version"])
async def test_discovery_that_is_refused_names_the_role_and_the_command_that_grants_it(
    path: str,
) -> None:
    api = Api("v2")
    api.broken = {path: 403}
    async with ScriptedServer(api) as server, client_of(server.url) as client:
        with pytest.raises(Forbidden) as refused:
            await (client.version() if path == "/version" else Discovery(client).refresh())
    assert f"get {path} at" in str(refused.value)
    assert "system:discovery" in str(refused.value)
    assert "watchrelay rbac --discovery" in str(refused.value)
    assert "list and watch" not in str(refused.value)


async def test_an_answer_that_is_no_discovery_is_unavailable() -> None:
    async def handler(request: Request, reply: Reply) -> None:
        await reply.json(200, {"hello": "world"})

    async with ScriptedServer(handler) as server, client_of(server.url) as client:
        with pytest.raises(Unavailable, match="discovery"):
            await Discovery(client).refresh()


@pytest.mark.parametrize(
    ("answer", "version"),
    [
        ({"major": "1", "minor": "34", "gitVersion": "v1.34.2"}, ServerVersion(1, 34, "v1.34.2")),
        (
            {"major": "1", "minor": "27+", "gitVersion": "v1.27.3-eks-a5565ad"},
            ServerVersion(1, 27, "v1.27.3-eks-a5565ad"),
        ),
        ({"major": "1", "minor": "9" * 5000}, ServerVersion(1, 0, "")),
        ({}, ServerVersion(0, 0, "")),
    ],
)
async def test_the_servers_version_is_read(answer: object, version: ServerVersion) -> None:
    async def handler(request: Request, reply: Reply) -> None:
        await reply.json(200, answer)

    async with ScriptedServer(handler) as server, client_of(server.url) as client:
        assert await client.version() == version
