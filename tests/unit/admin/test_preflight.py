"""What `topics` and `validate --connect` print of each fact."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.relays import run_virtually
from tests.support.scripted import Reply, Request, ScriptedServer
from tests.unit.daemon.conftest import GROUP, define, settings_of
from tests.unit.kube.auth.kubeconfigs import write_kubeconfig
from watchrelay.admin.preflight import (
    CheckResult,
    check_everything,
    check_rights,
    connected,
    missing_rights,
    resolve_streams,
)
from watchrelay.core.exit_codes import BAD_CONFIG, OK, UNAVAILABLE
from watchrelay.demo.cluster import SyntheticCluster
from watchrelay.model.frames import Page
from watchrelay.model.resources import Resource, Selection


@pytest.mark.parametrize(
    ("what", "fact", "line"),
    [
        ("topic a", "topic a is refused: x", "error: topic a is refused: x"),
        ("kafka", "kafka at b:1 is not usable", "error: kafka at b:1 is not usable"),
        ("kubernetes", "kubernetes: no way in", "error: kubernetes: no way in"),
        ("topic a", "does not exist yet", "error: topic a: does not exist yet"),
        ("topic a", "topic ab is refused", "error: topic a: topic ab is refused"),
    ],
)
def test_a_fact_names_what_it_is_about_once(what: str, fact: str, line: str) -> None:
    assert str(CheckResult(what, fact, "error", BAD_CONFIG)) == line


ALL = frozenset({"READ", "WRITE", "CREATE", "DESCRIBE_CONFIGS"})


def test_each_right_that_is_lacking_is_one_line_and_fewer_rights_are_wanted_of_topics_that_are_there() -> (
    None
):
    there = {f"t{number}": ALL - {"WRITE", "CREATE"} for number in range(7)}
    granted = {**there, "new": ALL - {"CREATE", "DESCRIBE_CONFIGS"}}
    facts = missing_rights(granted, [*there, "new"], ["new"])
    assert [str(fact) for fact in facts] == [
        (
            "error: rights in kafka: this user has no right WRITE on t0, t1, t2, t3, t4 and 2 "
            "other topics: grant it on the topic prefix"
        ),
        (
            "error: rights in kafka: this user has no right CREATE on new: grant it on the topic "
            "prefix"
        ),
        (
            "warning: rights in kafka: this user has no right DESCRIBE_CONFIGS on new: grant it "
            "on the topic prefix"
        ),
    ]
    assert [fact.code for fact in facts] == [BAD_CONFIG, BAD_CONFIG, OK]


def test_all_rights_are_one_line_and_brokers_that_report_none_have_no_line() -> None:
    assert [str(fact) for fact in missing_rights({"a": ALL, "b": ALL}, ["a", "b"], ["b"])] == [
        "ok: rights in kafka: this user has the rights of a relay on 2 topics"
    ]
    assert missing_rights({}, ["a"], []) == []


def test_an_api_server_that_never_answers_is_given_up_after_15_s_with_what_may_be_behind_it(
    tmp_path: Path,
) -> None:
    async def silent(request: Request, reply: Reply) -> None:
        await reply.gone()

    async def asked() -> tuple[list[CheckResult], float]:
        async with ScriptedServer(silent) as server, AsyncExitStack() as stack:
            file = write_kubeconfig(tmp_path / "config", cluster={"server": server.url})
            began_s = asyncio.get_running_loop().time()
            client, _, facts = await connected(
                settings_of(["pods"], kubernetes={"kubeconfig": str(file)}), stack
            )
            assert client is None
            return facts, asyncio.get_running_loop().time() - began_s

    (fact,), took_s = run_virtually(asked())
    assert "no answer within 15 s (most likely it is frozen" in str(fact)
    assert fact.code == UNAVAILABLE
    assert took_s == pytest.approx(15.0, abs=0.5)


async def test_a_password_in_the_servers_url_and_what_it_says_of_itself_are_not_printed_as_they_are(
    tmp_path: Path,
) -> None:
    async def handler(request: Request, reply: Reply) -> None:
        await (
            reply.json(200, {"major": "1", "minor": "34", "gitVersion": "v1.34\x1b[2J"})
            if request.path == "/version"
            else reply.text(403, "no")
        )

    async with ScriptedServer(handler) as server:
        file = write_kubeconfig(
            tmp_path / "config",
            cluster={"server": server.url.replace("http://", "http://u:hunter2@")},
        )
        facts = await check_everything(settings_of(["pods"], kubernetes={"kubeconfig": str(file)}))
    printed = "\n".join(map(str, facts))
    assert "is v1.34\\u001b[2J" in printed
    assert "hunter2" not in printed


async def test_two_entries_with_the_same_objects_on_a_topic_are_one_error_and_the_other_streams_are_checked(
    tmp_path: Path,
) -> None:
    async with SyntheticCluster() as cluster:
        define(cluster, "gadgets")
        (tmp_path / "config").write_text(cluster.kubeconfig())
        entries: list[str | dict[str, Any]] = [
            {"resource": "gadget", "id": "web", "labelSelector": "app=web"},
            f"gadgets.{GROUP}",
            f"*.{GROUP}",
            "pods",
        ]
        streams, facts = await resolve_streams(
            settings_of(entries, kubernetes={"kubeconfig": str(tmp_path / "config")})
        )
    assert [each.spec.id for each in streams] == ["web", "pods"]
    (fact,) = facts
    assert fact.code == BAD_CONFIG
    assert str(fact).startswith(
        f"error: stream gadgets.{GROUP} (resources[1]) can have the same objects as stream "
        "web (resources[0]) "
        f"on the same topic k8s.test.{GROUP}.gadgets: give one of the two another `topic`, "
        "or both disjoint `namespaces`"
    )


ACCOUNT = "system:serviceaccount:relays:eu"
CANNOT = (
    'serviceaccounts "eu" is forbidden: User "jane" cannot impersonate resource '
    '"serviceaccounts" in API group "" in the namespace "relays"'
)


@pytest.mark.parametrize("may", [True, False])
async def test_with_an_account_every_request_is_made_as_it_and_a_missing_right_to_do_so_is_reported(
    tmp_path: Path, *, may: bool
) -> None:
    seen: list[str] = []

    async def handler(request: Request, reply: Reply) -> None:
        seen.append(request.headers.get("impersonate-user", ""))
        if not may:
            await reply.json(
                403,
                {
                    "kind": "Status",
                    "apiVersion": "v1",
                    "status": "Failure",
                    "message": CANNOT,
                    "code": 403,
                },
            )
        elif request.path == "/version":
            await reply.json(200, {"major": "1", "minor": "34", "gitVersion": "v1.34.0"})
        else:
            await reply.text(404, "")

    async with ScriptedServer(handler) as server:
        file = write_kubeconfig(
            tmp_path / "config",
            cluster={"server": server.url},
            user={"token": "a-token-of-jane", "as": "somebody"},
        )
        facts = await check_everything(
            settings_of(["pods"], kubernetes={"kubeconfig": str(file)}), ACCOUNT
        )
    assert set(seen) == {ACCOUNT}
    (first, *_) = [str(fact) for fact in facts]
    if may:
        assert first == (
            f"ok: kubernetes: {server.url.removeprefix('http://')} is v1.34.0, checked as {ACCOUNT}"
        )
    else:
        assert first.startswith(
            f"error: as {ACCOUNT}: the user of this kubeconfig may not act as it: "
        )
        assert (
            "grant that user the verb impersonate on serviceaccounts eu in namespace relays"
            in first
        )
        assert "`kubectl create token eu --namespace relays`" in first
        assert facts[0].code == BAD_CONFIG


class Granting:
    """A client whose watches end in their time, for 1 s asked for."""

    async def list_page(self, *_: object, **__: object) -> Page:
        return Page("1", None, [])

    @asynccontextmanager
    async def watch(self, _: object, query: Any, **__: object) -> AsyncIterator[AsyncIterator[Any]]:
        async def frames() -> AsyncIterator[Any]:
            await asyncio.sleep(query.timeout_s)
            for nothing in list[Any]():
                yield nothing

        yield frames()


def test_the_rights_of_a_thousand_streams_are_checked_within_half_a_minute() -> None:
    selection = Selection(Resource("", "v1", "pods", "Pod", namespaced=True))
    planned: list[Any] = [
        SimpleNamespace(spec=SimpleNamespace(id=f"s{n}", plan=SimpleNamespace(selection=selection)))
        for n in range(1000)
    ]

    async def took_s() -> float:
        client: Any = Granting()
        began_s = asyncio.get_running_loop().time()
        facts = await check_rights(client, planned)
        assert [str(fact) for fact in facts[:1]] == ["ok: stream s0: may list and watch pods"]
        return asyncio.get_running_loop().time() - began_s

    assert run_virtually(took_s()) <= 30.0
