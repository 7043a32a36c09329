"""Which streams run, as config and API server change their minds.

Virtual time, real HTTP; Kafka never comes, so no stream gets past waiting.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.support.scripted import Reply, Request, ScriptedServer
from tests.support.sharingreplica import Replica
from tests.unit.daemon.conftest import GROUP, define, definition, settings_of, until
from tests.unit.daemon.supervising import supervised, virtually
from watchrelay.core import clock
from watchrelay.daemon.supervisor import DISCOVERY_INTERVAL_S
from watchrelay.model.resources import Resource
from watchrelay.observe.overview import cards, judge
from watchrelay.replicas.sharing import SharedTenure


def test_a_resource_that_comes_later_is_picked_up(tmp_path: Path) -> None:
    async def body() -> None:
        async with supervised(tmp_path, "pods", f"widgets.{GROUP}", "gadget") as rig:
            await until("pods are found", lambda: rig.topics)
            assert rig.topics == {"pods": "k8s.test.core.pods"}
            assert {name: row.state for name, row in rig.rows.items()} == dict.fromkeys(
                ["pods", f"widgets.{GROUP}", "gadget"], "waiting"
            )
            assert rig.rows[f"widgets.{GROUP}"].waits_for == f"no group {GROUP} is served now"
            define(rig.cluster, "widgets")
            await until("widgets are found", lambda: len(rig.topics) == 2)
            assert rig.rows[f"widgets.{GROUP}"].waits_for == ""
            assert rig.rows[f"widgets.{GROUP}"].last_error is None
            define(rig.cluster, "gadgets")
            await until("gadgets are found", lambda: len(rig.topics) == 3)
            assert list(rig.rows) == ["pods", f"widgets.{GROUP}", f"gadgets.{GROUP}"], (
                "the row is called by the resource now"
            )

    virtually(body)


def test_the_group_hears_of_no_plan_that_was_made_before_the_control_topic_was_read(
    tmp_path: Path,
) -> None:
    async def body() -> None:
        async with supervised(tmp_path, "pods") as rig:
            replica = Replica()
            rig.context.ownership = replica.sharing
            await until("pods are found", lambda: rig.topics)
            await asyncio.sleep(1_000.0)
            assert set(replica.group.reported().plans) == {"jobs", "pods"}, "as it was made"
            rig.supervisor.described()
            await until("the plan is made", lambda: len(replica.group.reported().plans) == 1)
            assert set(replica.group.reported().plans) == {"pods"}

    virtually(body)


@pytest.mark.parametrize("stale", [False, True])
def test_the_group_still_hears_of_a_stream_that_runs_while_its_resource_is_not_served(
    tmp_path: Path, *, stale: bool
) -> None:
    async def body() -> None:
        async with supervised(tmp_path, f"widgets.{GROUP}") as rig:
            replica = Replica()
            rig.context.ownership = replica.sharing
            rig.supervisor.described()
            define(rig.cluster, "widgets")
            await until("widgets are found", lambda: rig.topics)
            plans = replica.group.reported().plans
            assert set(plans) == {f"widgets.{GROUP}"}
            if stale:
                rig.cluster.registry.catalog.stale.add((GROUP, "v1"))
            else:
                rig.cluster.registry.delete(
                    "customresourcedefinitions.apiextensions.k8s.io", "", f"widgets.{GROUP}"
                )
            await until("they are not served", lambda: not rig.context.planned)
            assert replica.group.reported().plans == plans

    virtually(body)


def test_streams_that_ask_discovery_at_the_same_time_share_its_answers(tmp_path: Path) -> None:
    async def body() -> None:
        async with supervised(tmp_path, "pods") as rig:
            await until("pods are found", lambda: rig.topics)
            pods = rig.context.planned["pods"].plan.selection.resource

            def requests() -> float:
                sample = rig.daemon.metrics.registry.get_sample_value
                codes = ({"verb": "get", "code": code} for code in ("200", "304"))
                return sum(sample("watchrelay_kube_requests_total", each) or 0 for each in codes)

            before = requests()
            async with asyncio.TaskGroup() as tasks:
                asking = [tasks.create_task(rig.supervisor.availability(pods)) for _ in range(200)]
            assert {each.result().state for each in asking} == {"served"}
            assert 2 <= requests() - before <= 7, "/api and /apis, and those of the next look"

    virtually(body)


def runners() -> list[str]:
    return sorted(
        task.get_name().removeprefix("stream ")
        for task in asyncio.all_tasks()
        if task.get_name().startswith("stream ")
    )


@pytest.mark.parametrize("waits", [False, True], ids=["writes", "waits for its predecessor"])
def test_a_part_of_a_former_layout_ends_with_its_claims_or_with_the_entry(
    tmp_path: Path, *, waits: bool
) -> None:
    async def body() -> None:
        options: dict[str, Any] = {
            "kubernetes": {"kubeconfig": str(tmp_path / "kubeconfig")},
            "kafka": {"partitions": 4},
        }

        def config(split: int, **more: Any) -> Any:
            return settings_of([{"resource": "pods", "split": split, **more}, "nodes"], **options)

        async with supervised(
            tmp_path, {"resource": "pods", "split": 2}, "nodes", kafka=options["kafka"]
        ) as rig:
            replica = Replica()
            rig.context.ownership = replica.sharing
            await until("the parts run", lambda: runners() == ["nodes", "pods%0/2", "pods%1/2"])
            writing = rig.supervisor._running["pods%0/2"]._tenure
            assert isinstance(writing, SharedTenure)
            writing.begin()
            if waits:
                rig.supervisor.adopt(config(2, suppressUnchanged=False))
            rig.supervisor.adopt(config(1))
            left = ["nodes", "pods"] if waits else ["nodes", "pods", "pods%0/2"]
            await until("what is not written has ended", lambda: runners() == left)
            rig.supervisor.adopt(settings_of(["nodes"], **options))
            await until("nobody writes it", lambda: runners() == ["nodes"])
            assert list(rig.rows) == ["nodes"]

    virtually(body)


@pytest.mark.parametrize("entry", [f"widgets.{GROUP}", f"*.{GROUP}"])
@pytest.mark.parametrize("aggregated", [True, False])
def test_servers_that_prefer_another_version_in_turn_start_no_stream_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, entry: str, *, aggregated: bool
) -> None:
    """During an upgrade the answers to discovery come from servers of two kinds."""

    async def body() -> None:
        async with supervised(tmp_path, entry) as rig:
            rig.cluster.server.behaviour.aggregated_discovery = aggregated
            define(rig.cluster, "widgets")
            await until("widgets are found", lambda: rig.topics)

            def resource() -> Resource:
                (planned,) = rig.context.planned.values()
                return planned.plan.selection.resource

            async def answers(*versions: str) -> None:
                rig.cluster.registry.catalog.define(definition("widgets", *versions))
                await rig.supervisor.availability(resource())
                await asyncio.sleep(DISCOVERY_INTERVAL_S[1])

            runner = [each for each in asyncio.all_tasks() if each.get_name().startswith("stream ")]
            for versions in (["v2", "v1"], ["v1"], ["v1", "v2"]) * 3:
                await answers(*versions)
                assert resource().version == "v1"
            assert not any(each.done() for each in runner)
            assert "restarts" not in caplog.text
            await answers("v2", "v3")
            assert resource().version == "v2", "it is served in v1 no longer"
            assert "restarts" in caplog.text

    caplog.set_level("INFO")
    virtually(body)


def test_a_wildcard_takes_in_what_comes_later_and_leaves_what_has_an_entry_of_its_own(
    tmp_path: Path,
) -> None:
    async def body() -> None:
        async with supervised(
            tmp_path, f"*.{GROUP}", {"resource": f"widgets.{GROUP}", "topic": "own"}
        ) as rig:
            define(rig.cluster, "widgets")
            await until("widgets are found", lambda: rig.topics)
            define(rig.cluster, "gadgets")
            await until("gadgets are found", lambda: len(rig.topics) == 2)
            assert rig.topics == {
                f"widgets.{GROUP}": "own",
                f"gadgets.{GROUP}": f"k8s.test.{GROUP}.gadgets",
            }
            assert rig.daemon.statuses.problems == {}

    virtually(body)


@pytest.mark.parametrize("other", [f"widgets.{GROUP}", f"*.{GROUP}"])
def test_the_keys_of_a_stream_do_not_depend_on_what_else_is_served_for_its_topic(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, other: str
) -> None:
    async def body() -> None:
        async with supervised(
            tmp_path, {"resource": "pods", "topic": "t"}, {"resource": other, "topic": "t"}
        ) as rig:

            def keys() -> dict[str, bytes]:
                return {each.id: each.key_prefix for each in rig.context.planned.values()}

            pods, widgets = {"pods": b"pods/"}, {f"widgets.{GROUP}": f"widgets.{GROUP}/".encode()}
            await until("pods are found", keys)
            assert keys() == pods, "before the definition of widgets is there"
            define(rig.cluster, "widgets")
            await until("widgets are found", lambda: keys() == {**pods, **widgets})
            rig.cluster.registry.catalog.stale.add((GROUP, "v1"))
            await until("the server behind widgets is away", lambda: keys() == pods)
            rig.cluster.registry.catalog.stale.clear()
            await until("it is back", lambda: keys() == {**pods, **widgets})
            rig.cluster.registry.delete(
                "customresourcedefinitions.apiextensions.k8s.io", "", f"widgets.{GROUP}"
            )
            await until("their definition is gone", lambda: keys() == pods)
        assert "stream restarts with a changed definition" not in [
            record.message for record in caplog.records
        ]

    caplog.set_level("INFO")
    virtually(body)


@pytest.mark.parametrize("plurals", [["widgets"], ["widgets", "gadgets"]], ids=len)
def test_a_wildcard_on_one_topic_has_prefixed_keys_from_its_first_resource_on(
    tmp_path: Path, plurals: list[str]
) -> None:
    async def body() -> None:
        async with supervised(tmp_path, {"resource": f"*.{GROUP}", "topic": "t"}) as rig:
            for plural in plurals:
                define(rig.cluster, plural)
            await until("all are found", lambda: len(rig.context.planned) == len(plurals))
            assert {each.key_prefix for each in rig.context.planned.values()} == {
                f"{plural}.{GROUP}/".encode() for plural in plurals
            }

    virtually(body)


def test_what_cannot_exist_waits_for_a_person_and_keeps_nothing_from_being_ready(
    tmp_path: Path,
) -> None:
    async def body() -> None:
        impossible = {
            "pods.apps": "apps does not serve pods",
            "deployments.apps/v9": "not as deployments.apps/v9",
        }
        async with supervised(
            tmp_path, *impossible, {"resource": "nodes", "namespaces": ["shop"]}
        ) as rig:
            await until("discovery answered", lambda: rig.daemon.readiness.started)
            for entry, reason in {**impossible, "nodes@shop": "cluster-scoped"}.items():
                assert rig.rows[entry].state == "waiting"
                assert reason in rig.rows[entry].waits_for
                assert rig.rows[entry].as_json()["nextAttempt"], "when discovery is asked next"
            assert rig.daemon.readiness.check()[0]

    virtually(body)


@pytest.mark.parametrize("enabled", [False, True])
def test_of_replicas_none_owns_a_stream_that_cannot_exist(tmp_path: Path, *, enabled: bool) -> None:
    async def body() -> None:
        async with supervised(tmp_path, "pods.apps", sharding={"enabled": enabled}) as rig:
            await until("discovery answered", lambda: rig.daemon.readiness.started)
            row = rig.rows["pods.apps"]
            assert (row.state, row.role) == ("waiting", "standby" if enabled else "owner")

    virtually(body)


def test_the_rows_say_that_the_api_server_is_away_until_it_is_there(tmp_path: Path) -> None:
    async def body() -> None:
        async with supervised(
            tmp_path, "pods", {"resource": "configmaps", "namespaces": ["a", "b"]}, away=True
        ) as rig:
            await until("the outage is known", lambda: "kubernetes" in rig.daemon.statuses.problems)
            assert list(rig.rows) == ["pods", "configmaps@a", "configmaps@b"]
            assert all(
                row.last_error and row.next_attempt_ms and row.state == "waiting"
                for row in rig.rows.values()
            )
            assert not rig.daemon.readiness.check()[0]
            await rig.cluster.start(port=int(rig.cluster.url.rpartition(":")[2]))
            await until("all are found", lambda: len(rig.topics) == 3)
            assert rig.daemon.statuses.problems == {}

    virtually(body)


def test_discovery_that_is_answered_401_is_a_matter_of_credentials(tmp_path: Path) -> None:
    async def body() -> None:
        async with supervised(tmp_path, "pods", away=True) as rig:
            await until("the outage is known", lambda: "kubernetes" in rig.daemon.statuses.problems)

            async def refuse(_request: Request, reply: Reply) -> None:
                await reply.json(401, {"kind": "Status", "code": 401, "reason": "Unauthorized"})

            server = ScriptedServer(refuse)
            server.port = int(rig.cluster.url.rpartition(":")[2])
            async with server:
                await until(
                    "it is known",
                    lambda: "401" in rig.daemon.statuses.problems["kubernetes"].message,
                )
                verdicts = {
                    name: judge(status, clock.wall_ms()) for name, status in rig.rows.items()
                }
                (card,) = (
                    each for each in cards(rig.daemon.statuses, verdicts) if each.cause != "kafka"
                )
                assert (card.level, card.cause, card.streams) == ("person", "credentials", ["pods"])

    virtually(body)


@pytest.mark.parametrize(("version", "known"), [("v1.33.4", (1, 33)), ("v1.36.0", (1, 36))])
def test_the_version_is_known_before_the_first_stream(
    tmp_path: Path, version: str, known: tuple[int, int]
) -> None:
    async def body() -> None:
        async with supervised(tmp_path, "pods", version=version) as rig:
            asked, answer = asyncio.Event(), asyncio.Event()

            async def slow(request: web.Request) -> web.StreamResponse | None:
                if request.path == "/version":
                    asked.set()
                    await answer.wait()
                return None

            rig.cluster.server.behaviour.intercept = slow
            await asked.wait()
            assert rig.topics == {}
            answer.set()
            await until("pods are found", lambda: rig.topics)
            assert rig.context.server.version == known

    virtually(body)


def test_a_version_that_does_not_come_keeps_no_stream_waiting(tmp_path: Path) -> None:
    async def body() -> None:
        async with supervised(tmp_path, "pods") as rig:
            silent = asyncio.Event()

            async def never(request: web.Request) -> web.StreamResponse | None:
                if request.path == "/version":
                    await silent.wait()
                return None

            rig.cluster.server.behaviour.intercept = never
            await until("pods are found", lambda: rig.topics)
            assert rig.context.server.version is None
            silent.set()
            await until("it is asked for again", lambda: rig.context.server.version)

    virtually(body)


def test_a_server_that_was_upgraded_is_noticed(tmp_path: Path) -> None:
    async def body() -> None:
        async with supervised(tmp_path, "pods", version="v1.33.0") as rig:
            await until("the version is known", lambda: rig.context.server.version == (1, 33))
            rig.cluster.server.behaviour.version = "v1.34.0"
            await asyncio.sleep(700)
            assert rig.context.server.version == (1, 34)

    virtually(body)


@pytest.mark.parametrize("abandoned", [False, True], ids=["stopped", "abandoned"])
def test_once_all_streams_are_stopped_neither_an_edit_nor_a_new_resource_starts_one(
    tmp_path: Path, *, abandoned: bool
) -> None:
    """Nobody would stop it, and the process would wait for it forever."""

    async def body() -> None:
        async with supervised(tmp_path, "pods", f"widgets.{GROUP}") as rig:
            await until("pods are found", lambda: rig.topics)
            if abandoned:
                rig.supervisor.abandon()
            else:
                assert await rig.supervisor.stop(deadline_s=clock.now_s())
            rig.supervisor.adopt(
                settings_of(
                    ["pods", "configmaps"], kubernetes={"kubeconfig": str(tmp_path / "kubeconfig")}
                )
            )
            define(rig.cluster, "widgets")
            await asyncio.sleep(600)
            assert rig.topics == {"pods": "k8s.test.core.pods"}
            assert [
                task.get_name()
                for task in asyncio.all_tasks()
                if task.get_name().startswith("stream ")
            ] == []

    virtually(body)
