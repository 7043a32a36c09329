"""Which answers of the API server keep a replica fit."""

from __future__ import annotations

import pytest

from tests.support.scripted import Reply, Request, ScriptedServer
from tests.unit.kube.served import KnownCredentials, client_of
from watchrelay.core.errors import Misconfigured
from watchrelay.daemon.relaying import api_answers


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
