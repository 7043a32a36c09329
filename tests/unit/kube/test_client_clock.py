"""What the client learns of the time from the API server's answers, over a real socket."""

from __future__ import annotations

from email.utils import formatdate

import pytest

from tests.support.scripted import Reply, Request, ScriptedServer
from tests.unit.kube.served import KnownCredentials
from watchrelay.core import clock
from watchrelay.core.clock_offset import TimeAnswers
from watchrelay.core.errors import KubeError
from watchrelay.kube.client import KubeClient
from watchrelay.kube.status import date_ms, from_response
from watchrelay.observe.metrics import Metrics

DAY_S = 86_400.0
VERSION = {"major": "1", "minor": "34", "gitVersion": "v1.34.2"}


async def ahead_s(status: int, headers: dict[str, str]) -> float | None:
    """By how much our clock is ahead, by one answer."""

    async def handler(_request: Request, reply: Reply) -> None:
        await reply.json(status, VERSION, headers)

    times = TimeAnswers()
    async with (
        ScriptedServer(handler) as server,
        KubeClient(KnownCredentials(server.url), Metrics(), times=times) as client,
    ):
        if status == 200:
            await client.version()
        else:
            with pytest.raises(KubeError):
                await client.version()
    if not times.each_ms:
        return None
    return (clock.wall_ms() - times.each_ms[-1]) / 1000 - clock.boot_s()


def dated(offset_s: float) -> dict[str, str]:
    return {"Date": formatdate(clock.wall_ms() / 1000 + offset_s, usegmt=True)}


@pytest.mark.parametrize("status", [200, 401, 403])
async def test_the_date_of_an_answer_tells_the_offset(status: int) -> None:
    assert await ahead_s(status, dated(20 * DAY_S)) == pytest.approx(-20 * DAY_S, abs=3.0)


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (200, {}),
        (200, {"Date": "yesterday"}),
        (200, {"Date": "Thu, 99 Jan 99999999999 00:00:00 GMT"}),
        (200, {"Date": "Thu, 01 Jan 1970 00:00:00 GMT"}),
        (200, dated(20 * DAY_S) | {"Age": "7"}),
        (503, dated(20 * DAY_S)),
    ],
    ids=["none", "no date", "no year", "a stand-in", "from a cache", "perhaps of a proxy"],
)
async def test_other_answers_tell_nothing(status: int, headers: dict[str, str]) -> None:
    assert await ahead_s(status, headers) is None


def test_a_date_is_in_utc_whatever_it_says() -> None:
    assert date_ms("Fri, 27 Nov 2026 18:04:29 GMT") == 1_795_802_669_000
    assert date_ms("Fri, 27 Nov 2026 18:04:29") == 1_795_802_669_000
    assert date_ms("Fri, 27 Nov 2026 18:04:29 -0000") == 1_795_802_669_000


def test_a_date_to_come_again_is_seen_from_the_date_of_the_answer() -> None:
    headers = {
        "Retry-After": "Fri, 27 Nov 2026 18:04:39 GMT",
        "Date": "Fri, 27 Nov 2026 18:04:29 GMT",
    }
    error = from_response(429, headers, b"slower", what="list pods", wall_ms=0)
    assert error.retry_after_s == 10.0
