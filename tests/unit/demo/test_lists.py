"""List requests over a real socket: claims about pages, versions, tokens, selectors and
representations."""

from typing import Any

import pytest

from tests.unit.demo.conftest import Api
from watchrelay.demo.storage import write_token

MAPS = "/api/v1/configmaps"
METADATA = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"


def names(page: dict[str, Any]) -> list[str]:
    return [item["metadata"]["name"] for item in page["items"]]


async def test_pages_hold_everything_once_in_key_order_at_one_version_whatever_is_written_meanwhile(
    api: Api,
) -> None:
    for number in (3, 1, 4, 0, 2):
        api.settings(f"m{number}")
    version = api.version
    first = await api.get(MAPS, limit=2)
    api.settings("m9")
    api.remove("m3")
    api.settings("m4", "changed")
    second = await api.get(MAPS, limit=2, **{"continue": first["metadata"]["continue"]})
    third = await api.get(MAPS, limit=2, **{"continue": second["metadata"]["continue"]})
    assert [names(page) for page in (first, second, third)] == [["m0", "m1"], ["m2", "m3"], ["m4"]]
    assert third["items"][0]["data"] == {"value": "0"}
    assert {page["metadata"]["resourceVersion"] for page in (first, second, third)} == {version}
    assert (first["metadata"]["remainingItemCount"], "continue" in third["metadata"]) == (3, False)
    assert names(await api.get(MAPS)) == ["m0", "m1", "m2", "m4", "m9"]


async def test_items_of_built_in_resources_lack_kind_and_those_of_custom_ones_have_it(
    api: Api,
) -> None:
    api.cluster.open_shop()
    pods = await api.get("/api/v1/namespaces/shop/pods")
    assert (pods["kind"], pods["apiVersion"]) == ("PodList", "v1")
    assert all("kind" not in item and "apiVersion" not in item for item in pods["items"])
    assert all(
        item["metadata"]["uid"] and item["metadata"]["resourceVersion"] for item in pods["items"]
    )
    orders = await api.get("/apis/shop.example.com/v1/orders")
    assert {(item["kind"], item["apiVersion"]) for item in orders["items"]} == {
        ("Order", "shop.example.com/v1")
    }


async def test_a_token_expires_with_the_history_and_then_comes_with_an_inconsistent_one(
    api: Api,
) -> None:
    for number in range(5):
        api.settings(f"m{number}")
    token = (await api.get(MAPS, limit=2))["metadata"]["continue"]
    api.settings("m9")
    api.registry.storage.compact()
    status = await api.get(MAPS, limit=2, expect=410, **{"continue": token})
    assert (status["kind"], status["reason"], status["code"]) == ("Status", "Expired", 410)
    rest = await api.get(MAPS, **{"continue": status["metadata"]["continue"]})
    assert names(rest) == ["m2", "m3", "m4", "m9"]


async def test_a_list_of_a_namespace_is_cut_to_it_and_an_unknown_one_is_empty(api: Api) -> None:
    for namespace in ("default", "kube-system"):
        for number in range(3):
            api.settings(f"m{number}", namespace=namespace)
    pages = await api.pages("/api/v1/namespaces/default/configmaps", limit=2)
    assert [names(page) for page in pages] == [["m0", "m1"], ["m2"]]
    assert (await api.get("/api/v1/namespaces/nowhere/configmaps"))["items"] == []


@pytest.mark.parametrize(
    ("selectors", "expected"),
    [
        ({"labelSelector": "app=a"}, ["m0", "m2"]),
        ({"labelSelector": "app!=a"}, ["m1", "m3"]),
        ({"labelSelector": "app in (a, b),tier"}, ["m0"]),
        ({"labelSelector": "app notin (a)"}, ["m1", "m3"]),
        ({"labelSelector": "!tier"}, ["m1", "m2", "m3"]),
        ({"fieldSelector": "metadata.name=m3"}, ["m3"]),
        ({"fieldSelector": "metadata.namespace!=default"}, ["m3"]),
        ({"fieldSelector": "metadata.name!=m0,metadata.namespace==default"}, ["m1", "m2"]),
    ],
)
async def test_selectors_select_also_across_pages(
    api: Api, selectors: dict[str, Any], expected: list[str]
) -> None:
    api.settings("m0", labels={"app": "a", "tier": "x"})
    api.settings("m1", labels={"app": "b"})
    api.settings("m2", labels={"app": "a"})
    api.settings("m3", namespace="kube-system")
    assert names(await api.get(MAPS, **selectors)) == expected
    pages = await api.pages(MAPS, limit=1, **selectors)
    assert [name for page in pages for name in names(page)] == expected
    assert all("remainingItemCount" not in page["metadata"] for page in pages)


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ({"labelSelector": "a b c"}, 400),
        ({"fieldSelector": "spec.colour=red"}, 400),
        ({"continue": "garbage"}, 400),
        ({"continue": write_token(1000, ("a", "b")), "resourceVersion": "5"}, 400),
        ({"continue": write_token(1000, ("a", "b")), "resourceVersionMatch": "NotOlderThan"}, 422),
        ({"resourceVersionMatch": "NotOlderThan"}, 422),
        ({"resourceVersion": "0", "resourceVersionMatch": "Exact"}, 422),
        ({"resourceVersion": "1", "resourceVersionMatch": "Newest"}, 422),
        ({"resourceVersion": "abc"}, 400),
        ({"resourceVersion": "abc", "watch": "1"}, 500),
        ({"sendInitialEvents": "true"}, 422),
    ],
)
async def test_what_cannot_be_asked_together_is_refused_as_a_real_server_does(
    api: Api, query: dict[str, Any], code: int
) -> None:
    status = await api.get(MAPS, expect=code, **query)
    assert (status["kind"], status["code"]) == ("Status", code)


async def test_versions_asked_for_mean_what_they_mean_to_a_real_server(api: Api) -> None:
    for number in range(3):
        api.settings(f"m{number}")
    before = api.version
    api.settings("m3")
    assert names(await api.get(MAPS, resourceVersion=before, limit=500)) == ["m0", "m1", "m2"], (
        "legacy exact"
    )
    assert names(await api.get(MAPS, resourceVersion=before, resourceVersionMatch="Exact")) == [
        "m0",
        "m1",
        "m2",
    ]
    assert (
        len(
            names(
                await api.get(
                    MAPS, resourceVersion=before, resourceVersionMatch="NotOlderThan", limit=500
                )
            )
        )
        == 4
    )
    assert len(names(await api.get(MAPS, resourceVersion=before))) == 4
    assert len(names(await api.get(MAPS, limit="-1"))) == 4
    assert len(names(await api.get(MAPS, resourceVersion="0", limit=2))) == 4, (
        "a list from the cache has no pages"
    )
    future = await api.get(
        MAPS, expect=504, resourceVersion=10_000_000, resourceVersionMatch="NotOlderThan"
    )
    assert future["details"]["causes"][0]["reason"] == "ResourceVersionTooLarge"
    api.registry.storage.compact()
    assert (await api.get(MAPS, expect=410, resourceVersion=before, resourceVersionMatch="Exact"))[
        "reason"
    ] == "Expired"


async def test_metadata_only_lists_hold_metadata_only(api: Api) -> None:
    api.settings("m0", labels={"app": "a"})
    page = await api.get(MAPS, headers={"Accept": METADATA})
    assert (page["kind"], page["apiVersion"]) == ("PartialObjectMetadataList", "meta.k8s.io/v1")
    assert [set(item) for item in page["items"]] == [{"kind", "apiVersion", "metadata"}]
    assert page["items"][0]["metadata"]["labels"] == {"app": "a"}
    api.cluster.server.behaviour.metadata_only = False
    assert set((await api.get(MAPS, headers={"Accept": METADATA}))["items"][0]) == {
        "metadata",
        "data",
    }, "a server that cannot"
    await api.get(
        MAPS, headers={"Accept": "application/json;as=Table;g=meta.k8s.io;v=v1"}, expect=406
    )


async def test_a_large_page_is_compressed_for_who_wants_it_and_an_unbounded_list_is_whole(
    api: Api,
) -> None:
    api.cluster.add_pods(1200)
    url = api.cluster.url + "/api/v1/pods"
    for accepted, expected in (("gzip", "gzip"), ("identity", None)):
        async with api.session.get(
            url, params={"limit": "100"}, headers={"Accept-Encoding": accepted}
        ) as response:
            assert response.headers.get("Content-Encoding") == expected
            assert len((await response.json())["items"]) == 100
    assert len(set(names(await api.get("/api/v1/pods")))) == 1200


async def test_unknown_paths_are_404_in_plain_text(api: Api) -> None:
    for path in (
        "/apis/nope.example.com/v1/things",
        "/api/v2/pods",
        "/nope",
        "/apis/apps/v7/deployments",
        "/",
    ):
        async with api.session.get(api.cluster.url + path) as response:
            assert (response.status, await response.text()) == (404, "404 page not found\n")


async def test_unknown_resources_of_a_known_version_are_404_in_a_status(api: Api) -> None:
    for path in (
        "/api/v1/things",
        "/api/v1/namespaces/a/nodes",
        "/apis/apps/v1/things",
        "/api/v1/pods/a/b/c/d",
    ):
        assert (await api.get(path, expect=404))[
            "message"
        ] == "the server could not find the requested resource"


async def test_rights_tokens_and_interception_are_levers(api: Api) -> None:
    behaviour = api.cluster.server.behaviour
    behaviour.forbidden.add(("list", "secrets"))
    status = await api.get("/api/v1/secrets", expect=403)
    assert "cannot list resource" in status["message"]
    behaviour.token = "t"
    await api.get(MAPS, expect=401)
    await api.get(MAPS, headers={"Authorization": "Bearer t"})
    assert api.cluster.server.requests["list", "configmaps"] == 1
