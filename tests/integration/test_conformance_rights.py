"""403 and 401 over real sockets, in virtual time: what is retried quickly, what asks for a person,
and what people read about it."""

import logging
import re

import pytest

from tests.support import virtualtime
from tests.support.following import Scene, following
from tests.support.scripted_apiserver import Answer, Api, drop, failure, line, pod, status, stream
from tests.support.troubles import cause_of, message_of, trouble
from tests.support.virtualtime import virtual
from watchrelay.core.trouble import Cause
from watchrelay.observe.advice import ADVICE
from watchrelay.observe.overview import judge
from watchrelay.observe.status import Readiness, StatusRegistry, StreamStatus

FORBIDDEN = status(403, "Forbidden", 'pods is forbidden: User "x" cannot watch resource "pods"')
UNAUTHORIZED = status(401, "Unauthorized")
GRACE_S = 30.0


def seen(scene: Scene) -> list[str]:
    """The states of the first stream, in order."""
    return [moment.state for moment in scene.status.history]


def answered(shown: StreamStatus, code: int) -> bool:
    """The last error is an answer with this code; a port may have its digits too."""
    return re.search(rf"\b{code}\b", shown.last_error or "") is not None


def reason(shown: StreamStatus) -> str:
    """What `/readyz` says of the stream."""
    _, body = Readiness(StatusRegistry({shown.stream: shown}), started=True).check()
    streams = body["streams"]
    assert isinstance(streams, dict)
    return str(streams[shown.stream].get("reason", ""))


@pytest.mark.parametrize("version", [(1, 33), (1, 36)])
def test_a_403_of_an_api_server_that_starts_is_over_within_seconds_and_asks_for_nobody(
    version: tuple[int, int], caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        api = Api(pod("a", 1))
        async with following(api, watchers=5, settled=True, server_version=version) as s:
            await s.server.stop()
            await s.run_for(3)
            api.always = FORBIDDEN
            await s.server.serve_again()
            await s.until(lambda: all(answered(each.status, 403) for each in s.followers), 30)
            await s.run_for(2)
            for each in s.followers:
                assert (each.status.state, each.status.waits_for) == ("backoff", "")
                assert "grant" not in (each.status.last_error or "")
                assert judge(each.status, 0).level == "retrying"
            api.always = None
            api.put(pod("b", 0))
            await s.until(lambda: all(each.mirror.names == ["a", "b"] for each in s.followers), 6)
            assert all(each.mirror.synced == 1 for each in s.followers), "nothing was listed again"
            assert all(
                "waiting" not in [moment.state for moment in each.status.history[1:]]
                for each in s.followers
            )

    with caplog.at_level(logging.INFO, "watchrelay"):
        virtualtime.run(scene())
        assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@virtual
async def test_a_403_that_lasts_half_a_minute_is_believed_then_and_named_with_its_cure() -> None:
    api = Api(pod("a", 1))
    async with following(api, settled=True) as s:
        began_s, before = api.times()[-1], len(api.asked)
        api.always = FORBIDDEN
        api.watches.append(FORBIDDEN)
        await s.until(lambda: len(api.asked) > before, 700)
        began_s = api.times()[before]
        await s.until(lambda: s.status.state == "waiting", 60)
        waited_s = api.times()[-1] - began_s
        assert GRACE_S <= waited_s <= GRACE_S + 5
        assert len(api.asked) - before >= 8, "it is tried quickly before that"
        assert "grant list and watch" in s.status.waits_for
        assert cause_of(judge(s.status, 0)) == "right"
        count = len(api.asked)
        await s.run_for(29)
        assert len(api.asked) == count, "from then on slowly"
        api.always = None
        await s.until(lambda: s.status.state == "watching", 40)
        await s.run_for(31)
        api.always = FORBIDDEN
        await s.server.restart()
        await s.until(lambda: answered(s.status, 403), 10)
        assert s.status.state == "backoff", "what was granted again is a right that it had"


@pytest.mark.parametrize("listed", [False, True])
@virtual
async def test_a_stream_that_never_had_the_right_asks_for_a_person_at_once(*, listed: bool) -> None:
    api = Api(pod("a", 1))
    if listed:
        api.watches.extend([FORBIDDEN] * 3)
    else:
        api.always = FORBIDDEN
    async with following(api) as s:
        await s.until(lambda: s.status.waits_for, 1)
        assert s.status.state == "waiting"
        count = len(api.asked)
        await s.run_for(29)
        assert len(api.asked) == count


@virtual
async def test_a_403_after_the_200_of_each_watch_is_believed_too() -> None:
    api = Api(pod("a", 1))
    refused = failure(403, "Forbidden", "pods is forbidden")
    api.watches.extend([stream(line("ERROR", refused))] * 100)
    async with following(api) as s:
        await s.until(lambda: s.status.waits_for, 60)
        assert len(api.watch_requests) <= 40
        count = len(api.watch_requests)
        await s.run_for(29)
        assert len(api.watch_requests) == count


@virtual
async def test_a_403_between_two_pages_and_one_within_a_watch_are_tried_quickly_too() -> None:
    api = Api(*(pod(name, 1) for name in "abc"))
    first: list[Answer] = [api.list, FORBIDDEN]
    api.lists.extend(first)
    async with following(api, page_size=2) as s:
        await s.until(lambda: s.mirror.synced, 5)
        refused = failure(403, "Forbidden", "pods is forbidden")
        api.watches.append(stream(line("ERROR", refused)))
        await s.server.restart()
        await s.until(lambda: answered(s.status, 403), 10)
        await s.until(lambda: s.status.state == "watching", 5)
        assert "waiting" not in seen(s)[1:]


@pytest.mark.parametrize("how", ["cursor", "list"])
@virtual
async def test_a_relay_that_goes_on_from_its_log_while_the_api_server_starts_tries_quickly(
    how: str,
) -> None:
    api = Api(pod("a", 1))
    api.always = FORBIDDEN
    async with following(
        api, cursor="100" if how == "cursor" else "", recovered=how == "list"
    ) as s:
        await s.run_for(2)
        assert s.status.state == "backoff"
        api.always = None
        await s.until(lambda: s.status.state == "watching", 5)


@virtual
async def test_an_outage_between_two_403_costs_nothing_of_the_half_minute() -> None:
    api = Api(pod("a", 1))
    async with following(api, settled=True) as s:
        api.always = FORBIDDEN
        await s.server.restart()
        await s.until(lambda: answered(s.status, 403), 10)
        api.always = drop
        await s.run_for(100)
        api.always = FORBIDDEN
        await s.until(lambda: answered(s.status, 403), 40)
        assert s.status.state == "backoff"
        await s.until(lambda: s.status.state == "waiting", 35)


@virtual
async def test_a_list_that_compares_and_is_refused_keeps_the_watch_away_for_seconds_only() -> None:
    api = Api(pod("a", 1))
    async with following(api, settled=True, relist_interval_s=100.0) as s:
        api.lists.append(FORBIDDEN)
        count = len(api.watch_requests)
        await s.until(lambda: len(api.list_requests) == 2, 130)
        await s.until(lambda: len(api.watch_requests) > count, 3)


def test_a_401_after_a_403_is_named_by_its_own_cause_and_cure(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scene() -> None:
        api = Api(pod("a", 1))
        api.always = FORBIDDEN
        async with following(api) as s:
            await s.until(lambda: s.status.waits_for, 5)
            api.always = UNAUTHORIZED
            await s.until(lambda: ": 401" in (s.status.last_error or ""), 60)  # no part of a port
            verdict = judge(s.status, 0)
            assert (verdict.level, cause_of(verdict)) == ("person", "credentials")
            assert "credentials" in ADVICE[Cause.CREDENTIALS].title
            assert s.status.state == "backoff"
            for words in (
                s.status.waits_for,
                reason(s.status),
                message_of(verdict),
                str(s.status.as_json()),
            ):
                assert "grant" not in words
                assert ": 403" not in words
            assert "the token or client certificate was refused" in reason(s.status)
            api.always = FORBIDDEN
            await s.until(lambda: s.status.state == "waiting", 70)
            assert s.status.wait is not None
            waits = s.status.wait
            assert (waits.cause, waits.subject) == (Cause.MISSING_RIGHT, "pods")
            assert waits.cure.startswith("grant list and watch")
            assert cause_of(judge(s.status, 0)) == "right"
            api.always = None
            await s.until(lambda: s.mirror.synced, 70)
            assert (reason(s.status), s.status.waits_for, cause_of(judge(s.status, 0))) == (
                "the first snapshot is not acknowledged yet",
                "",
                None,
            )

    with caplog.at_level(logging.INFO, "watchrelay"):
        virtualtime.run(scene())
        errors = [
            str(vars(record).get("error"))
            for record in caplog.records
            if record.levelno == logging.ERROR
        ]
        assert [bool(re.search(r"\b401\b", each)) for each in errors] == [False, True, False]


@virtual
async def test_a_401_of_a_watch_that_was_open_is_a_matter_of_credentials_not_of_a_restart() -> None:
    api = Api(pod("a", 1))
    async with following(api, settled=True) as s:
        api.always = UNAUTHORIZED
        await s.server.restart()
        await s.until(lambda: answered(s.status, 401), 10)
        assert cause_of(judge(s.status, 0)) == "credentials"
        await s.server.stop()
        await s.until(lambda: not answered(s.status, 401), 70)
        assert cause_of(judge(s.status, 0)) == "kubernetes", "now the server is away"


@virtual
async def test_a_server_that_is_away_clears_the_403_before_it() -> None:
    api = Api(pod("a", 1))
    api.always = FORBIDDEN
    async with following(api) as s:
        await s.until(lambda: s.status.waits_for, 5)
        await s.server.stop()
        await s.until(lambda: not answered(s.status, 403), 60)
        assert (s.status.waits_for, cause_of(judge(s.status, 0))) == ("", "kubernetes")


@virtual
async def test_what_kafka_refuses_stays_beside_what_the_api_server_grants_again() -> None:
    api = Api(pod("a", 1))
    async with following(api, settled=True) as s:
        s.status.failed("records", trouble("grant WRITE on the topic", operator=True))
        api.watches.append(drop)
        await s.server.restart()
        await s.until(lambda: s.status.last_error, 10)
        await s.until(lambda: s.status.last_error is None, 30)
        assert s.status.waits_for == "grant WRITE on the topic"
