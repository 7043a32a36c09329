"""Discovery of a server that names very many resources: how long the event loop is held."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, cast

import pytest

from tests.support.turns import TurnLoop, held_by
from tests.unit.kube.discovery.test_client import aggregated, aggregated_resource
from tests.unit.kube.served import dumps
from watchrelay.kube.client import Document, KubeClient
from watchrelay.kube.discovery.catalog import GROUP_RESOURCES_MAX, NotDiscovery, parse_aggregated
from watchrelay.kube.discovery.client import Discovery
from watchrelay.kube.discovery.resolve import Found, Missing, Unknown

HUGE = 100_000


class Server:
    """Documents by path, with an ETag that changes with each `change`."""

    def __init__(self, documents: Mapping[str, object], kind: str) -> None:
        self.bodies = {path: dumps(document) for path, document in documents.items()}
        self.kind, self.version = kind, 1

    async def get_json(self, path: str, headers: Mapping[str, str] | None = None) -> Document:
        await asyncio.sleep(0)
        etag = str(self.version)
        unchanged = (headers or {}).get("If-None-Match") == etag
        return Document(b"" if unchanged else self.bodies[path], self.kind, etag, unchanged)

    def change(self, path: str, old: bytes, new: bytes) -> None:
        assert old in self.bodies[path]
        self.bodies[path] = self.bodies[path].replace(old, new)
        self.version += 1


def resources(count: int, prefix: str = "thing") -> list[dict[str, object]]:
    return [
        aggregated_resource(f"{prefix}{number:06}s", f"{prefix.capitalize()}{number:06}")
        for number in range(count)
    ]


def aggregated_server() -> Server:
    kind = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
    groups = [
        aggregated("apps", *resources(10, "deployment")),
        aggregated("huge.example.com", *resources(HUGE)),
        aggregated("full.example.com", *resources(GROUP_RESOURCES_MAX, "filler")),
        *(aggregated(f"g{number}.example.com", *resources(100, "part")) for number in range(200)),
    ]
    core = [aggregated("", aggregated_resource("pods", "Pod"))]
    return Server({"/api": {"items": core}, "/apis": {"items": groups}}, kind)


def legacy_server() -> Server:
    def version(count: int, prefix: str) -> dict[str, Any]:
        return {
            "resources": [
                {"name": f"{prefix}{number:06}s", "kind": "Thing", "verbs": ["list", "watch"]}
                for number in range(count)
            ]
        }

    def group(name: str) -> dict[str, Any]:
        return {"name": name, "versions": [{"version": "v1"}]}

    documents = {
        "/api": {"versions": ["v1"]},
        "/api/v1": {"resources": [{"name": "pods", "kind": "Pod", "verbs": ["list", "watch"]}]},
        "/apis": {"groups": [group("apps"), group("huge.example.com"), group("full.example.com")]},
        "/apis/apps/v1": version(10, "deployment"),
        "/apis/huge.example.com/v1": version(HUGE, "thing"),
        "/apis/full.example.com/v1": version(GROUP_RESOURCES_MAX, "filler"),
    }
    return Server(documents, "application/json")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("server", [aggregated_server, legacy_server])
def test_a_hundred_thousand_resources_and_entries_that_wait_hold_the_loop_for_a_moment_only(
    server: Any,
) -> None:
    waiting = [f"thing{number}x" for number in range(20)] + ["thing000000.huge.example.com"]

    async def looks(loop: TurnLoop) -> None:
        served = server()
        loop.begin()
        await asyncio.sleep(0)
        discovery = Discovery(cast("KubeClient", served))
        for _ in range(3):
            await discovery.refresh()
            await asyncio.sleep(0)
            for each in waiting:
                found = discovery.resolve(each)
                assert isinstance(found, Unknown)
                assert f"more than {GROUP_RESOURCES_MAX:,} resources" in found.reason
            for each in ("pods", "deployment000001s.apps", "filler000007s.full.example.com"):
                assert isinstance(discovery.resolve(each), Found)
            await asyncio.sleep(0)
        served.change(
            "/apis" if "/apis/apps/v1" not in served.bodies else "/apis/apps/v1",
            b"deployment000001s",
            b"deployment000999s",
        )
        assert await discovery.refresh()
        assert isinstance(discovery.resolve("deployment000999s"), Found)

    assert not (wrong := held_by(looks)), wrong


def test_twenty_names_that_nothing_serves_are_looked_for_among_many_in_a_moment() -> None:
    kind = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
    groups = [aggregated(f"g{n}.example.com", *resources(3000, f"part{n}x")) for n in range(10)]
    served = Server({"/api": {"items": []}, "/apis": {"items": groups}}, kind)

    async def looks(_loop: TurnLoop) -> None:
        discovery = Discovery(cast("KubeClient", served))
        await discovery.refresh()
        await asyncio.sleep(0)
        for number in range(20):
            found = discovery.resolve(f"part0x000{number:02}z")
            assert isinstance(found, Missing)
            assert "did you mean" in found.reason
        await asyncio.sleep(0)

    assert not (wrong := held_by(looks)), wrong


def test_a_document_of_a_million_objects_is_refused_before_they_are_made() -> None:
    body = b'{"items":[' + b",".join([b"{}"] * 1_000_001) + b"]}"
    with pytest.raises(NotDiscovery, match="more than 1,000,000 objects"):
        list(parse_aggregated(body))
