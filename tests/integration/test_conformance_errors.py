"""The watch over real sockets, virtual time: cases of docs/watch-facts.md 13 that need a person
(T60-T63,
T65)."""

import itertools
import logging

import pytest

from tests.support import virtualtime
from tests.support.following import following
from tests.support.scripted import Reply, Request
from tests.support.scripted_apiserver import Api, pod, says, status
from tests.support.virtualtime import virtual
from watchrelay.model.watch_output import ListBegun

# tests are named for the cases of the conformance list

FORBIDDEN = status(403, "Forbidden", 'pods is forbidden: User "x" cannot list resource "pods"')


def gaps(times: list[float]) -> list[float]:
    return [later - earlier for earlier, later in itertools.pairwise(times)]


@virtual
async def test_T60_403_on_the_list_is_tried_every_half_minute_to_five_minutes_and_recovers() -> (
    None
):
    api = Api(pod("a", 1))
    api.always = FORBIDDEN
    async with following(api) as s:
        await s.run_for(2000)
        waits = gaps(api.times())
        assert all(30 <= wait <= 301 for wait in waits)
        assert waits == sorted(waits) or max(waits) > 250
        assert s.status.state == "waiting"
        assert "grant list and watch" in s.status.waits_for
        api.always = None
        await s.until(lambda: s.mirror.synced, 301)
        assert (s.status.waits_for, s.status.last_error, s.status.next_attempt_ms) == (
            "",
            None,
            None,
        )


@pytest.mark.parametrize("mid_life", [False, True])
@virtual
async def test_T60_403_on_the_watch_keeps_what_is_held_and_lists_nothing(*, mid_life: bool) -> None:
    api = Api(pod("a", 1))
    async with following(api, settled=mid_life) as s:
        # what was allowed before is retried quickly at first
        api.watches.extend([FORBIDDEN] * (12 if mid_life else 4))
        await s.until(lambda: s.status.state == "waiting", 700)
        await s.run_for(200)
        assert s.mirror.names == ["a"]
        assert len(api.list_requests) == 1
        api.put(pod("b", 0))
        await s.until(lambda: s.mirror.names == ["a", "b"], 400)
        assert len([e for e in s.mirror.events if isinstance(e, ListBegun)]) == 1


@virtual
async def test_T60_a_recheck_tries_at_once() -> None:
    api = Api(pod("a", 1))
    api.always = FORBIDDEN
    async with following(api) as s:
        await s.until(lambda: len(api.asked) == 3, 300)
        api.always = None
        s.watcher.recheck()
        await s.until(lambda: s.mirror.synced, 1)


@virtual
async def test_T61_a_resource_that_cannot_be_watched_says_so_and_is_asked_once_in_five_minutes() -> (
    None
):
    api = Api(pod("a", 1))
    api.always = status(
        405,
        "MethodNotAllowed",
        "the server does not allow this method on the requested resource",
    )
    async with following(api) as s:
        await s.run_for(1500)
        assert all(wait >= 300 for wait in gaps(api.times()))
        assert s.status.state == "waiting"
        assert s.status.waits_for
        assert s.mirror.held == {}


@virtual
async def test_T62_a_server_that_refuses_metadata_only_gets_plain_requests_from_then_on() -> None:
    async def picky(request: Request, reply: Reply) -> None:
        if "as=PartialObjectMetadata" in request.headers["accept"]:
            await reply.json(406, {"kind": "Status", "code": 406, "reason": "NotAcceptable"})
        else:
            await (api.watch if request.query.get("watch") else api.list)(request, reply)

    api = Api(pod("a", 1))
    api.always = picky
    async with following(api, metadata_only=True, settled=True) as s:
        assert s.mirror.names == ["a"]
        await s.run_for(1300)
        assert [("as=" in r.headers["accept"]) for r in api.asked] == [True] + [False] * (
            len(api.asked) - 1
        )
        assert len(api.list_requests) == 2


def test_T63_a_bad_selector_is_reported_once_and_requested_once_in_five_minutes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scene() -> None:
        api = Api(pod("a", 1))
        api.always = status(
            422, "Invalid", 'unable to parse requirement: found "=", expected: identifier'
        )
        async with following(api, labels="=x") as s:
            await s.run_for(2000)
            assert all(wait >= 300 for wait in gaps(api.times()))
            assert s.status.state == "waiting"
            assert "unable to parse" in (s.status.last_error or "")

    with caplog.at_level(logging.WARNING, "watchrelay"):
        virtualtime.run(scene())
        assert len([r for r in caplog.records if r.levelno >= logging.WARNING]) == 1


@virtual
async def test_T63_a_streaming_list_with_a_bad_selector_ends_in_the_same_words() -> None:
    api = Api(pod("a", 1))
    api.always = status(422, "Invalid", "unable to parse requirement")
    async with following(api, server_version=(1, 36), labels="=x") as s:
        await s.run_for(1000)
        assert len(api.asked) <= 5
        assert s.status.state == "waiting"


@virtual
async def test_401_refreshes_the_credentials_once_and_is_then_tried_every_five_to_sixty_seconds() -> (
    None
):
    api = Api(pod("a", 1))
    api.always = status(401, "Unauthorized")
    async with following(api) as s:
        await s.run_for(600)
        # each attempt asks twice: with what it had, and with what it read again
        rounds = api.times()[::2]
        assert all(5 <= wait <= 61 for wait in gaps(rounds))
        assert gaps(rounds)[-1] >= 50
        assert s.status.state == "backoff"
        assert s.admission.breaker.generation == 0
        api.always = None
        await s.until(lambda: s.mirror.synced, 61)


@virtual
async def test_a_redirect_is_an_answer_of_something_that_is_not_the_api_server() -> None:
    api = Api(pod("a", 1))
    api.lists.append(says({}, 302))
    async with following(api) as s:
        await s.until(lambda: s.mirror.synced)
        assert len(api.list_requests) == 2
        assert s.admission.breaker.generation == 1
