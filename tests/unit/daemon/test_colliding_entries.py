"""Entries of the config that turn out to mean one stream, or the same objects on a topic."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.unit.daemon.conftest import GROUP, define, settings_of, until
from tests.unit.daemon.supervising import supervised, virtually


def test_two_entries_that_turn_out_to_be_one_stream_run_once_and_are_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        async with supervised(
            tmp_path,
            {"resource": "gadget", "topic": "one"},
            {"resource": f"gadgets.{GROUP}", "topic": "two"},
        ) as rig:
            define(rig.cluster, "gadgets")
            await until("gadgets are found", lambda: rig.topics)
            await asyncio.sleep(600)
            assert rig.topics == {f"gadgets.{GROUP}": "one"}
            assert rig.daemon.statuses.problems["config"].message == (
                f"gadget and gadgets.{GROUP} are both stream gadgets.{GROUP}: give one "
                "of them an id"
            )
            name = f"gadgets.{GROUP}"
            rig.cluster.registry.delete("customresourcedefinitions.apiextensions.k8s.io", "", name)
            await until("they are none", lambda: "config" not in rig.daemon.statuses.problems)
        assert [record.message for record in caplog.records].count(
            "stream restarts with a changed definition"
        ) == 0

    virtually(body)


def test_two_entries_that_turn_out_to_have_the_same_objects_on_a_topic_are_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    every = {"resource": "gadget", "id": "every"}
    web = {"resource": f"gadgets.{GROUP}", "id": "web", "labelSelector": "app=web"}
    reason = (
        "stream web (resources[1]) can have the same objects as stream every (resources[0]) "
        f"on the same topic k8s.test.{GROUP}.gadgets"
    )

    async def body() -> None:
        async with supervised(tmp_path, every, web) as rig:

            def edited(*resources: dict[str, Any]) -> Any:
                return settings_of(
                    resources, kubernetes={"kubeconfig": str(tmp_path / "kubeconfig")}
                )

            define(rig.cluster, "gadgets")
            await until("gadgets are found", lambda: rig.topics)
            await asyncio.sleep(600)
            assert list(rig.topics) == ["every"]
            assert rig.rows["web"].state == "waiting"
            assert rig.rows["web"].waits_for.startswith(
                f"{reason}: give one of the two another `topic`, or both disjoint `namespaces`"
            )
            assert [record.message for record in caplog.records].count("stream waits") == 1
            (objection,) = rig.supervisor.objections(edited(every, web))
            assert objection[:2] == (1, reason)
            assert objection[2].startswith("give one of the two another `topic`")
            (turned,) = rig.supervisor.objections(edited(web, every))
            assert turned[0] == 0, "what runs stays, wherever its entry is"
            apart = edited(every, {**web, "topic": "another"})
            assert rig.supervisor.objections(apart) == []
            rig.supervisor.adopt(apart)
            await until(
                "both run",
                lambda: rig.topics == {"every": f"k8s.test.{GROUP}.gadgets", "web": "another"},
            )
            assert rig.rows["web"].waits_for == ""

    virtually(body)


def test_of_a_wildcard_only_the_stream_that_has_another_entrys_objects_is_refused(
    tmp_path: Path,
) -> None:
    async def body() -> None:
        topic = f"k8s.test.{GROUP}.widgets"
        async with supervised(
            tmp_path, f"*.{GROUP}", {"resource": "Widget", "id": "w", "topic": topic, "name": "one"}
        ) as rig:
            for plural in ("widgets", "gadgets"):
                define(rig.cluster, plural)
            await until("two run", lambda: len(rig.topics) == 2)
            await asyncio.sleep(600)
            assert rig.topics == {"w": topic, f"gadgets.{GROUP}": f"k8s.test.{GROUP}.gadgets"}
            assert (
                "(resources[0]) can have the same objects as stream w (resources[1])"
                in rig.rows[f"widgets.{GROUP}"].waits_for
            )
            rig.cluster.registry.delete(
                "customresourcedefinitions.apiextensions.k8s.io", "", f"gadgets.{GROUP}"
            )
            await asyncio.sleep(600)
            assert rig.rows[f"widgets.{GROUP}"].state == "waiting"

    virtually(body)
