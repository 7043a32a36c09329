"""The watch over real sockets, virtual time: cases of docs/watch-facts.md 13 about lists (T01-T13,
T41)."""

import asyncio
import itertools
import json

import pytest

from tests.support.following import following
from tests.support.scripted import Reply, Request
from tests.support.scripted_apiserver import (
    EXPIRED,
    TOO_LARGE,
    Answer,
    Api,
    page,
    pod,
    says,
    status,
    stream,
    text,
)
from tests.support.virtualtime import virtual
from watchrelay.model.watch_output import ListBegun, ListDone

# tests are named for the cases of the conformance list


def cut(how: str) -> Answer:
    async def answer(request: Request, reply: Reply) -> None:
        await reply.start(200)
        await reply.chunk(
            b'{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"900"},"items":['
        )
        await {"fin": reply.fin, "reset": reply.reset, "end": reply.end}[how]()

    return answer


@virtual
async def test_T01_three_pages_become_one_list_and_the_watch_starts_at_its_version() -> None:
    api = Api(pod("a", 1), pod("b", 2), pod("c", 3), pod("d", 4), pod("e", 5))
    async with following(api, page_size=2, settled=True) as s:
        assert s.mirror.names == ["a", "b", "c", "d", "e"]
        assert len(api.list_requests) == 3
        assert [e for e in s.mirror.events if isinstance(e, ListBegun | ListDone)] == [
            ListBegun(),
            ListDone("100"),
        ]
        assert api.watch_requests[0].query["resourceVersion"] == "100"
        assert s.count("list_total", result="success") == 1
        assert s.count("list_objects") == 5


@virtual
async def test_an_expired_token_starts_over_once_without_a_limit() -> None:
    api = Api(pod("a", 1), pod("b", 2), pod("c", 3))
    token = status(
        410,
        "Expired",
        "The provided continue parameter is too old",
        metadata={"continue": "inconsistent"},
    )
    api.lists.extend([says(page(90, [pod("z", 9)], "x")), token])
    async with following(api, page_size=1, settled=True) as s:
        assert s.mirror.names == ["a", "b", "c"]
        last = api.list_requests[-1].query
        assert "limit" not in last
        assert "continue" not in last
        assert len(api.list_requests) == 3
        assert s.mirror.changes == [("ADDED", "a"), ("ADDED", "b"), ("ADDED", "c")]


@virtual
async def test_a_token_the_server_refuses_starts_over_at_the_first_page() -> None:
    api = Api(pod("a", 1))
    api.lists.extend(
        [
            says(page(90, [pod("z", 9)], "x")),
            status(400, "BadRequest", "invalid continue token: bad"),
        ]
    )
    async with following(api, settled=True) as s:
        assert s.mirror.names == ["a"]
        assert "continue" not in api.list_requests[2].query


@virtual
async def test_a_repeated_continue_token_ends_the_list_in_failure_and_changes_nothing() -> None:
    api = Api(pod("a", 1))
    api.lists.extend([says(page(90, [pod("z", 9)], "x")), says(page(90, [pod("z", 9)], "x"))])
    async with following(api) as s:
        await s.until(lambda: s.mirror.troubles)
        assert s.mirror.held == {}
        await s.until(lambda: s.mirror.names == ["a"])


@pytest.mark.parametrize(("page_takes_s", "within_s"), [(0.0, 10.0), (70.0, 150.0)])
@virtual
async def test_lists_that_never_end_leave_their_slots_to_other_streams(
    page_takes_s: float, within_s: float
) -> None:
    """Three streams, as many as there are slots, whose pages have ever new tokens: the same object
    each time, or none."""

    api = Api(pod("a", 1))
    tokens = map(str, itertools.count())

    async def serve(request: Request, reply: Reply) -> None:
        if request.query.get("watch"):
            await api.watch(request, reply)
        elif request.headers["user-agent"].endswith(("pods-0", "pods-1", "pods-2")):
            await asyncio.sleep(page_takes_s)
            objects = [] if page_takes_s else [pod("a", 1)]
            await reply.json(200, page(100, objects, next(tokens)))
        else:
            await api.list(request, reply)

    api.always = serve
    async with following(api, watchers=6) as s:
        endless, well = s.followers[:3], s.followers[3:]
        await s.until(lambda: all(each.mirror.synced for each in well), within_s)
        await s.until(lambda: all(each.mirror.troubles for each in endless), 1000)
        for each in endless:
            (error, *_) = each.mirror.troubles
            assert str(error).startswith("the list of /api/v1/pods ")
            assert each.mirror.held == {}
        asked_before = len(api.list_requests)
        await s.run_for(600)
        assert len(api.list_requests) - asked_before < 600, "a backoff between the lists"


@virtual
async def test_T06_410_on_the_first_page_of_a_relist_asks_once_more_without_a_version() -> None:
    api = Api(pod("a", 1))
    async with following(api, settled=True) as s:
        api.watches.append(says(EXPIRED, 410))
        api.lists.append(says(EXPIRED, 410))
        await s.until(lambda: s.mirror.synced == 2, 700)
        assert [r.query.get("resourceVersion") for r in api.list_requests] == [
            None,
            "100",
            None,
        ]
        await s.run_for(120)
        assert len(api.list_requests) == 3


@virtual
async def test_T06_410_again_and_again_backs_off() -> None:
    api = Api()
    api.always = says(EXPIRED, 410)
    async with following(api) as s:
        await s.run_for(60)
        assert len(api.asked) <= 8


@pytest.mark.parametrize("server", [(1, 33), (1, 36)])
@virtual
async def test_T07_versions_limits_and_tokens_are_combined_only_as_the_server_allows(
    server: tuple[int, int],
) -> None:
    api = Api(*(pod(f"p{i}", i + 1) for i in range(5)))
    async with following(
        api, page_size=2, server_version=server, initial_list="paged", settled=True
    ) as s:
        api.watches.append(says(EXPIRED, 410))
        await s.until(lambda: s.mirror.synced == 2, 700)
        relist = api.list_requests[3].query
        assert (relist["resourceVersion"], relist["resourceVersionMatch"]) == (
            "100",
            "NotOlderThan",
        )
        for request in api.list_requests:
            query = request.query
            if "continue" in query:
                assert not query.keys() & {"resourceVersion", "resourceVersionMatch"}
            if query.get("resourceVersion", "0") != "0" and "limit" in query:
                assert query["resourceVersionMatch"] == "NotOlderThan"
        assert ("limit" in relist) == (server >= (1, 34))


@virtual
async def test_any_semantic_names_version_zero_in_the_first_list_only() -> None:
    api = Api(pod("a", 1))
    async with following(api, list_semantic="any", settled=True) as s:
        api.watches.append(says(EXPIRED, 410))
        await s.until(lambda: s.mirror.synced == 2, 700)
        first, again = api.list_requests
        assert (first.query["resourceVersion"], "resourceVersionMatch" in first.query) == (
            "0",
            False,
        )
        assert (again.query["resourceVersion"], again.query["resourceVersionMatch"]) == (
            "100",
            "NotOlderThan",
        )


@virtual
async def test_page_size_zero_is_one_unbounded_page() -> None:
    api = Api(*(pod(f"p{i}", i + 1) for i in range(700)))
    async with following(api, page_size=0, settled=True) as s:
        assert (len(api.list_requests), len(s.mirror.held)) == (1, 700)
        assert "limit" not in api.list_requests[0].query


@virtual
async def test_a_list_older_than_asked_changes_nothing_but_one_without_a_version_is_the_truth() -> (
    None
):
    api = Api(pod("a", 1), pod("b", 2), version=500)
    async with following(api, settled=True) as s:
        api.watches.append(says(EXPIRED, 410))
        api.lists.extend([says(page(300, [])), says(page(300, [pod("a", 1)]))])
        api.version = 300
        await s.until(lambda: len(api.list_requests) == 2, 700)
        assert s.mirror.names == ["a", "b"]
        await s.until(lambda: s.mirror.synced == 2)
        assert s.mirror.names == ["a"]
        assert "resourceVersion" not in api.list_requests[2].query
        assert s.watcher.cursor == "300"


@virtual
async def test_T09_a_list_cut_in_the_middle_is_void() -> None:
    api = Api(pod("a", 1), pod("b", 2))
    async with following(api, settled=True) as s:
        api.watches.append(says(EXPIRED, 410))
        api.lists.extend([cut("fin"), cut("reset"), cut("end")])
        await s.until(lambda: s.mirror.synced == 2, 700)
        assert len(api.list_requests) == 5
        assert s.mirror.changes == [("ADDED", "a"), ("ADDED", "b")]


@pytest.mark.parametrize("version", [None, ""])
@virtual
async def test_T12_a_list_without_a_version_cannot_be_watched_and_is_asked_once_in_five_minutes(
    version: str | None,
) -> None:
    api = Api()
    api.always = says(page(version, [pod("a", 1)]))
    async with following(api) as s:
        await s.run_for(1500)
        times = api.times()
        assert 2 <= len(times) <= 6
        assert all(later - earlier >= 300 for earlier, later in itertools.pairwise(times))
        assert s.status.state == "waiting"
        assert "resourceVersion" in s.status.waits_for


@virtual
async def test_T13_retry_after_is_obeyed_and_without_it_delays_double() -> None:
    api = Api(pod("a", 1))
    busy = text(429, "Too many requests, please try again later.", {"Retry-After": "7"})
    api.lists.extend([busy, *[text(503, "service unavailable")] * 4])
    async with following(api) as s:
        await s.until(lambda: s.mirror.synced, 120)
        times = api.times("list")
        gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
        assert gaps[0] >= 7
        for level, gap in enumerate(gaps[1:], start=1):
            assert 0.8 * 2**level <= gap < 1.7 * 2**level + 0.2


@virtual
async def test_T41_what_was_deleted_while_history_expired_is_removed_once() -> None:
    api = Api(pod("a", 1), pod("b", 2))
    async with following(api, settled=True) as s:
        await s.server.stop()
        api.delete("b")
        api.expire()
        await s.run_for(5)
        await s.server.serve_again()
        await s.until(lambda: s.mirror.synced == 2, 120)
        assert s.mirror.changes.count(("DELETED*", "b")) == 1
        assert s.mirror.names == ["a"]


@virtual
async def test_an_implausible_list_is_asked_again_from_a_quorum_and_then_believed() -> None:
    api = Api(*(pod(f"p{i:03}", i + 1) for i in range(120)))
    async with following(api, settled=True) as s:
        s.mirror.disbelieve = 1
        api.watches.append(says(EXPIRED, 410))
        api.lists.append(says(page(100, [])))
        await s.until(lambda: s.mirror.synced == 2, 700)
        assert len(s.mirror.held) == 120
        done = [e for e in s.mirror.events if isinstance(e, ListDone)]
        assert [e.accept_any_size for e in done] == [False, False, True]
        assert "resourceVersion" not in api.list_requests[-1].query


@virtual
async def test_a_server_behind_our_version_is_given_time_and_then_asked_without_one() -> None:
    api = Api(pod("a", 1))
    async with following(api, settled=True) as s:
        api.watches.append(
            stream(b'{"type":"ERROR","object":' + json.dumps(TOO_LARGE).encode() + b"}\n")
        )
        await s.until(lambda: s.mirror.synced == 2, 700)
        assert "resourceVersion" not in api.list_requests[-1].query
        assert api.list_requests[-1].at_s - api.watch_requests[1].at_s >= 1


@virtual
async def test_the_periodic_relist_is_made_when_due_from_a_quorum_also_in_a_quiet_watch() -> None:
    api = Api(pod("a", 1), pod("b", 2))
    async with following(api, relist_interval_s=100.0, settled=True) as s:
        api.delete("b", tell=False)
        await s.until(lambda: s.mirror.names == ["a"], 125)
        assert "resourceVersion" not in api.list_requests[-1].query
        assert s.mirror.troubles == []


@virtual
async def test_the_periodic_relist_is_made_in_a_watch_that_never_rests_and_the_watch_goes_on_from_where_it_stood() -> (
    None
):
    api = Api(pod("a", 1))
    async with following(api, relist_interval_s=100.0, settled=True) as s:
        while len(api.list_requests) < 2:
            api.put(pod("a", 0))
            await s.run_for(0.5)
        assert 100 <= api.list_requests[1].at_s - api.list_requests[0].at_s <= 112
        await s.until(lambda: len(api.watch_requests) == 2, 5)
        stood = int(api.watch_requests[1].query["resourceVersion"])
        api.put(pod("b", 0))
        await s.until(lambda: "b" in s.mirror.names, 5)
        assert stood <= 100 + 2 * 112
        assert s.mirror.troubles == []


@pytest.mark.parametrize(
    "refusal", [status(403, "Forbidden"), status(429, "TooManyRequests"), says({"kind": "PodList"})]
)
@virtual
async def test_a_periodic_relist_that_fails_leaves_the_watch_at_work_and_is_made_later(
    refusal: Answer,
) -> None:
    api = Api(pod("a", 1))
    async with following(api, relist_interval_s=3600.0, settled=True) as s:
        api.lists.append(refusal)
        await s.until(lambda: len(api.list_requests) == 2, 4000)
        failed_s = api.list_requests[1].at_s
        await s.until(
            lambda: len(api.watch_requests) > 1 and api.watch_requests[-1].at_s > failed_s, 400
        )
        api.put(pod("b", 0))
        await s.until(lambda: "b" in s.mirror.names, 5)
        await s.until(lambda: len(api.list_requests) == 3, 1000)
        assert api.list_requests[2].at_s - failed_s >= 600


@virtual
async def test_the_cursor_does_not_move_until_what_came_was_taken() -> None:
    api = Api(pod("a", 1))
    async with following(api, settled=True) as s:
        s.mirror.full = asyncio.Event()
        api.put(pod("b", 0))
        await s.run_for(1)
        assert s.watcher.cursor == "100"
        s.mirror.full.set()
        await s.until(lambda: s.mirror.names == ["a", "b"])
        await s.until(lambda: s.watcher.cursor == "101", 1)
