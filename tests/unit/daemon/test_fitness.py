"""Which answers of the API server keep a replica fit."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.relays import virtual
from tests.support.scripted import Reply, Request, ScriptedServer
from tests.unit.kube.served import KnownCredentials, client_of
from watchrelay.core.errors import Misconfigured
from watchrelay.daemon.relaying import api_answers
from watchrelay.replicas.fitness import API_CHECK_S, UNFIT_AFTER_S


class NoCredentials(KnownCredentials):
    async def headers(self) -> list[tuple[str, str]]:
        raise Misconfigured("the plugin failed with exit code 1")


@pytest.mark.parametrize(
    ("status", "answers"), [(200, True), (403, True), (404, True), (401, False), (503, False)]
)
async def test_an_error_is_an_answer_unless_it_refuses_the_credentials_or_the_server_is_unavailable(
    status: int, *, answers: bool
) -> None:
    async def handler(_request: Request, reply: Reply) -> None:
        await reply.json(status, {"kind": "Status", "code": status, "major": "1", "minor": "36"})

    async with ScriptedServer(handler) as server, client_of(server.url) as client:
        assert await api_answers(client) is answers


async def test_a_replica_without_credentials_is_not_answered() -> None:
    async with client_of("http://127.0.0.1:1", credentials=NoCredentials("")) as client:
        assert not await api_answers(client)


async def test_a_plugin_that_is_slow_has_its_own_time_and_the_server_that_of_the_check() -> None:
    answer, plugins = asyncio.Event(), 0

    class SlowCredentials(KnownCredentials):
        async def headers(self) -> list[tuple[str, str]]:
            nonlocal plugins
            if not plugins:
                plugins += 1
                await asyncio.sleep(0.3)
            return []

    async def handler(_request: Request, reply: Reply) -> None:
        await answer.wait()
        await reply.json(200, {"major": "1", "minor": "36"})

    async with (
        ScriptedServer(handler) as server,
        client_of(server.url, credentials=SlowCredentials(server.url)) as client,
    ):
        with pytest.raises(TimeoutError):
            await client.version(within_s=0.2)
        assert plugins == 1
        answer.set()
        plugins = 0
        assert (await client.version(within_s=0.2)).minor == 36


@virtual
async def test_a_plugin_that_hangs_leaves_time_to_be_found_unfit() -> None:
    class NeverCredentials(KnownCredentials):
        async def headers(self) -> list[tuple[str, str]]:
            await asyncio.Event().wait()
            raise AssertionError

    loop = asyncio.get_running_loop()
    async with client_of("http://127.0.0.1:1", credentials=NeverCredentials("")) as client:
        began_s = loop.time()
        assert not await api_answers(client)
        assert API_CHECK_S + loop.time() - began_s <= UNFIT_AFTER_S
