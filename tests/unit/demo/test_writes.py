"""Writes over a real socket, and a shop: what writes do, and that a seed makes one sequence of
them."""

import json
import sys
from asyncio import subprocess

import aiohttp

from tests.unit.demo.conftest import Api
from watchrelay.demo.objects import numbered_pod, pod_tree
from watchrelay.demo.registry import Registry, make_registry
from watchrelay.demo.shop import DEPLOYMENTS, Shop
from watchrelay.demo.storage import Collection

MAPS = "/api/v1/namespaces/default/configmaps"


async def test_create_replace_and_delete_do_what_an_api_server_does(api: Api) -> None:
    made = await api.send("POST", MAPS, {"metadata": {"name": "a"}, "data": {"x": "1"}}, expect=201)
    assert (made["kind"], made["apiVersion"], made["metadata"]["namespace"]) == (
        "ConfigMap",
        "v1",
        "default",
    )
    assert (await api.send("POST", MAPS, {"metadata": {"name": "a"}}, expect=409))[
        "reason"
    ] == "AlreadyExists"
    changed = await api.send("PUT", f"{MAPS}/a", made | {"data": {"x": "2"}})
    assert changed["metadata"]["uid"] == made["metadata"]["uid"]
    assert int(changed["metadata"]["resourceVersion"]) > int(made["metadata"]["resourceVersion"])
    assert (await api.send("PUT", f"{MAPS}/a", made, expect=409))["reason"] == "Conflict"
    assert await api.send("PUT", f"{MAPS}/a", changed) == changed, (
        "a write that changes nothing is none"
    )
    assert await api.get(f"{MAPS}/a") == changed
    assert (await api.send("DELETE", f"{MAPS}/a"))["status"] == "Success"
    assert (await api.send("DELETE", f"{MAPS}/a", expect=404))["reason"] == "NotFound"
    assert (await api.get(f"{MAPS}/a", expect=404))["reason"] == "NotFound"
    assert (await api.send("PUT", f"{MAPS}/a", changed, expect=404))["reason"] == "NotFound"
    named = await api.send("POST", MAPS, {"metadata": {"generateName": "a-"}}, expect=201)
    assert len(named["metadata"]["name"]) == 7


async def test_bad_writes_are_refused(api: Api) -> None:
    assert (await api.send("POST", MAPS, [], expect=400))["reason"] == "BadRequest"
    assert (await api.send("POST", MAPS, {}, expect=422))["reason"] == "Invalid"
    assert (
        await api.send(
            "POST", MAPS.replace("default", "nowhere"), {"metadata": {"name": "a"}}, expect=404
        )
    )["reason"] == "NotFound"
    assert (await api.send("POST", "/api/v1/configmaps", {"metadata": {"name": "a"}}, expect=405))[
        "reason"
    ] == "MethodNotAllowed"
    assert (await api.send("PATCH", f"{MAPS}/a", {}, expect=405))["reason"] == "MethodNotAllowed"


async def test_a_namespace_takes_its_objects_along(api: Api) -> None:
    api.settings("a")
    api.settings("b", namespace="kube-system")
    await api.send("DELETE", "/api/v1/namespaces/default")
    assert [
        item["metadata"]["name"] for item in (await api.get("/api/v1/configmaps"))["items"]
    ] == ["b"]


def fixed_registry() -> Registry:
    return make_registry(seed=7, now=lambda: "2026-11-21T00:00:00Z")


def state(registry: Registry) -> dict[str, list[bytes]]:
    return {
        served.name: [
            stored.body() for stored in registry.storage.collection(served.name).objects.values()
        ]
        for served in registry.catalog
    }


def test_a_seed_makes_one_sequence_of_writes_and_another_seed_another() -> None:
    runs = []
    for seed in (1, 1, 2):
        registry = fixed_registry()
        shop = Shop(registry, seed=seed)
        shop.open()
        runs.append(([shop.step() for _ in range(500)], state(registry)))
    assert runs[0] == runs[1]
    assert runs[0][0] != runs[2][0]


def test_every_step_of_the_shop_is_one_write_and_it_never_comes_to_rest() -> None:
    registry = fixed_registry()
    shop = Shop(registry, seed=3)
    shop.open()
    quiet = 0
    for _ in range(3000):
        before = registry.storage.version
        assert shop.step()
        assert registry.storage.version - before <= 1
        quiet += registry.storage.version == before
    assert quiet < 300, (
        "only a setting drawn twice, or a deployment that is as it was, changes nothing"
    )


def phases(collection: Collection) -> dict[str, list[str]]:
    seen: dict[str, list[str]] = {}
    for event in collection.history:
        obj = json.loads(event.now.body())
        going = "deletionTimestamp" in obj["metadata"]
        phase = (
            "gone"
            if event.type == "DELETED"
            else "Terminating"
            if going
            else obj["status"]["phase"]
        )
        history = seen.setdefault(event.now.name, [])
        if not history or history[-1] != phase:
            history.append(phase)
    return seen


def test_pods_of_the_shop_live_as_pods_do_and_deployments_keep_their_number() -> None:
    registry = fixed_registry()
    shop = Shop(registry, seed=5)
    shop.open()
    for _ in range(4000):
        shop.step()
    full = ["Pending", "Running", "Terminating", "gone"]
    lives = phases(registry.storage.collection("pods"))
    assert all(life == full[: len(life)] for life in lives.values())
    assert sum(life == full for life in lives.values()) > 50
    pods = registry.storage.collection("pods").objects
    assert len(DEPLOYMENTS) <= len(pods) <= 9 * 2 * len(DEPLOYMENTS)
    assert {json.loads(stored.body())["kind"] for stored in pods.values()} == {"Pod"}
    for served in registry.catalog:
        for (namespace, name), stored in registry.storage.collection(served.name).objects.items():
            metadata = json.loads(stored.body())["metadata"]
            assert (metadata.get("namespace", ""), metadata["name"], metadata["uid"]) == (
                namespace,
                name,
                stored.uid,
            )


def test_numbered_pods_are_of_real_size_and_differ_where_real_ones_do() -> None:
    whole, bare = (
        [len(numbered_pod(n).body(90_000_000)) for n in range(200)],
        len(numbered_pod(1, managed_fields=False).body(90_000_000)),
    )
    assert 5_000 < min(whole) <= max(whole) < 5_300
    assert 3_650 < bare < 3_900
    assert numbered_pod(5) == numbered_pod(5)
    first, second = pod_tree(5), pod_tree(5, revision=3)
    assert first["spec"] == second["spec"]
    assert first["metadata"]["uid"] == second["metadata"]["uid"]
    assert first["status"] != second["status"]
    assert second["status"]["containerStatuses"][0]["restartCount"] == 1
    assert (
        len(
            {
                (tree["metadata"]["namespace"], tree["metadata"]["name"])
                for tree in map(pod_tree, range(500))
            }
        )
        == 500
    )


async def test_a_cluster_in_a_process_of_its_own_prints_its_address_and_stops_on_request() -> None:
    arguments = ("-m", "watchrelay.demo", "--pods", "20", "--shop", "50")
    process = await subprocess.create_subprocess_exec(
        sys.executable, *arguments, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        url = json.loads(await process.stdout.readline())["url"]
        async with aiohttp.ClientSession() as session:
            async with session.post(f"{url}/demo/pods?count=5") as response:
                assert response.status == 200
            async with session.post(f"{url}/demo/flood?events=100&rate=5000") as response:
                assert int((await response.json())["resourceVersion"]) > 1100
            async with session.get(f"{url}/api/v1/pods") as response:
                assert len((await response.json())["items"]) >= 25
    finally:
        process.terminate()
        assert await process.wait() == 0
