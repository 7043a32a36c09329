"""Discovery requests and definitions that come, change and go: claims about what the cluster says
it serves."""

import copy
from typing import Any

from tests.unit.demo.conftest import Api, short
from watchrelay.demo.shop import ORDER_DEFINITION

AGGREGATED = (
    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,"
    "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json"
)
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
ORDERS = "/apis/shop.example.com/v1/namespaces/default/orders"
ORDER: dict[str, Any] = {"metadata": {"name": "a"}, "spec": {"items": []}}


async def aggregated(api: Api, path: str) -> dict[str, dict[str, Any]]:
    document = await api.get(path, headers={"Accept": AGGREGATED})
    assert document["kind"] == "APIGroupDiscoveryList"
    return {item["metadata"]["name"]: item for item in document["items"]}


async def test_aggregated_discovery_names_every_resource_with_scope_verbs_and_short_names(
    api: Api,
) -> None:
    core = (await aggregated(api, "/api"))[""]
    pods = next(entry for entry in core["versions"][0]["resources"] if entry["resource"] == "pods")
    assert pods == {
        "resource": "pods",
        "responseKind": {"group": "", "version": "v1", "kind": "Pod"},
        "scope": "Namespaced",
        "singularResource": "pod",
        "verbs": ["create", "delete", "get", "list", "update", "watch"],
        "shortNames": ["po"],
    }
    groups = await aggregated(api, "/apis")
    assert "" not in groups
    assert groups["apps"]["versions"][0]["freshness"] == "Current"
    async with api.session.get(
        api.cluster.url + "/apis", headers={"Accept": AGGREGATED}
    ) as response:
        assert (
            response.headers["Content-Type"]
            == "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
        )


async def test_legacy_discovery_says_the_same(api: Api) -> None:
    api.cluster.server.behaviour.aggregated_discovery = False
    accept = {"Accept": AGGREGATED}
    assert (await api.get("/api", headers=accept))["versions"] == ["v1"]
    groups = {group["name"]: group for group in (await api.get("/apis", headers=accept))["groups"]}
    assert groups["apps"]["preferredVersion"] == {"groupVersion": "apps/v1", "version": "v1"}
    core = await api.get("/api/v1", headers=accept)
    assert core["groupVersion"] == "v1"
    assert {
        "name": "pods",
        "singularName": "pod",
        "namespaced": True,
        "kind": "Pod",
    }.items() <= core["resources"][0].items() or any(
        entry["name"] == "pods" and entry["namespaced"] for entry in core["resources"]
    )
    assert (await api.get("/apis/apps"))["kind"] == "APIGroup"
    assert any(
        entry["shortNames"] == ["deploy"]
        for entry in (await api.get("/apis/apps/v1"))["resources"]
        if "shortNames" in entry
    )


async def test_an_unchanged_document_is_304_and_a_new_definition_changes_it(api: Api) -> None:
    async with api.session.get(
        api.cluster.url + "/apis", headers={"Accept": AGGREGATED}
    ) as response:
        tag = response.headers["ETag"]
    for expected in (304, 200):
        async with api.session.get(
            api.cluster.url + "/apis", headers={"Accept": AGGREGATED, "If-None-Match": tag}
        ) as response:
            assert response.status == expected
        if expected == 304:
            await api.send("POST", CRDS, ORDER_DEFINITION, expect=201)


async def test_a_stale_group_is_shown_as_stale_and_is_503_in_the_legacy_form(api: Api) -> None:
    api.registry.catalog.stale.add(("batch", "v1"))
    assert (await aggregated(api, "/apis"))["batch"]["versions"] == [
        {"version": "v1", "freshness": "Stale"}
    ]
    assert (await api.get("/apis/batch/v1", expect=503))["code"] == 503


async def test_a_definition_serves_its_resource_until_it_is_deleted_with_its_objects(
    api: Api,
) -> None:
    async with api.session.get(api.cluster.url + ORDERS) as response:
        assert response.status == 404
    made = await api.send("POST", CRDS, ORDER_DEFINITION, expect=201)
    assert {condition["type"] for condition in made["status"]["conditions"]} == {
        "Established",
        "NamesAccepted",
    }
    order = await api.send("POST", ORDERS, ORDER, expect=201)
    async with api.watch(ORDERS, resourceVersion=order["metadata"]["resourceVersion"]) as watch:
        await api.send("DELETE", f"{CRDS}/orders.shop.example.com")
        assert short(await watch.rest()) == [("DELETED", "a")]
    async with api.session.get(api.cluster.url + ORDERS) as response:
        assert response.status == 404
    await api.send("POST", CRDS, ORDER_DEFINITION, expect=201)
    again = await api.send("POST", ORDERS, ORDER, expect=201)
    assert again["metadata"]["uid"] != order["metadata"]["uid"]
    async with api.watch(ORDERS, resourceVersion=order["metadata"]["resourceVersion"]) as watch:
        assert (await watch.rest())[0]["object"]["code"] == 410, (
            "the history went with the definition"
        )


async def test_a_changed_definition_ends_the_watches_and_may_serve_other_versions(api: Api) -> None:
    await api.send("POST", CRDS, ORDER_DEFINITION, expect=201)
    await api.send("POST", ORDERS, ORDER, expect=201)
    definition = copy.deepcopy(ORDER_DEFINITION)
    definition["spec"]["versions"].insert(0, {"name": "v2", "served": True, "storage": False})
    async with api.watch(ORDERS, resourceVersion=api.version) as watch:
        await api.send("PUT", f"{CRDS}/orders.shop.example.com", definition)
        assert await watch.rest() == []
    second = "/apis/shop.example.com/v2/orders"
    assert (await api.get(second))["items"][0]["apiVersion"] == "shop.example.com/v2"
    definition["spec"]["versions"][1]["served"] = False
    await api.send("PUT", f"{CRDS}/orders.shop.example.com", definition)
    async with api.session.get(api.cluster.url + ORDERS) as response:
        assert response.status == 404
    assert len((await api.get(second))["items"]) == 1
    status = await api.send("POST", CRDS, {"metadata": {"name": "x"}, "spec": {}}, expect=422)
    assert status["reason"] == "Invalid"


async def test_version_and_health_are_answered(api: Api) -> None:
    assert (await api.get("/version")).items() >= {
        "major": "1",
        "minor": "36",
        "gitVersion": "v1.36.0",
    }.items()
    for ready, status in ((True, 200), (False, 500)):
        api.cluster.server.behaviour.ready = ready
        async with api.session.get(api.cluster.url + "/readyz") as response:
            assert response.status == status
    async with api.session.get(api.cluster.url + "/livez") as response:
        assert response.status == 200
