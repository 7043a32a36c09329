"""The watch over sockets, virtual time: cases of docs/watch-facts.md 13 about versions and limits
(T46,
T81-T86)."""

import asyncio

from tests.support.following import following
from tests.support.scripted_apiserver import (
    EXPIRED,
    Api,
    bookmark,
    failure,
    line,
    page,
    pod,
    says,
    status,
    stream,
)
from tests.support.virtualtime import virtual

# tests are named for the cases of the conformance list


@virtual
async def test_T46_leaving_and_entering_a_selector_is_a_delete_and_an_add_of_the_same_uid() -> None:
    api = Api(pod("a", 1))
    api.watches.append(
        stream(line("DELETED", pod("a", 101)), line("ADDED", pod("a", 102)), then="hang")
    )
    async with following(api, labels="app=web") as s:
        await s.until(lambda: len(s.mirror.changes) == 3)
        assert s.mirror.changes == [("ADDED", "a"), ("DELETED", "a"), ("ADDED", "a")]
        assert s.mirror.held == {("shop", "a"): ("uid-a", "102")}
        assert all(r.query["labelSelector"] == "app=web" for r in api.asked)


@virtual
async def test_T47_an_outlet_that_takes_nothing_holds_the_watch_back_and_nothing_is_skipped() -> (
    None
):
    """The watch's part: the sink's own retries are the relay's to test."""

    api = Api(pod("a", 1))
    async with following(api, settled=True) as s:
        s.mirror.full = asyncio.Event()
        for index in range(200):
            api.put(pod(f"n{index:03}", 0))
        await s.run_for(200)
        assert (s.watcher.cursor, s.mirror.names) == ("100", ["a"])
        s.mirror.full.set()
        await s.until(lambda: len(s.mirror.held) == 201)
        assert [name for _, name in s.mirror.changes] == [
            "a",
            *(f"n{index:03}" for index in range(200)),
        ]
        assert (len(api.list_requests), s.mirror.troubles) == (1, [])


@virtual
async def test_T81_versions_that_are_no_numbers_work_by_equality() -> None:
    api = Api()
    api.lists.extend([says(page("abc", [pod("a", "x1")])), says(page("aaa", [pod("a", "x0")]))])
    api.watches.append(stream(2.0, line("MODIFIED", pod("a", "zz")), bookmark("0042")))
    api.watches.extend([says(failure(410, "Expired"), 410), stream(then="hang")])
    async with following(api) as s:
        await s.until(lambda: s.mirror.synced == 2)
        assert [r.query["resourceVersion"] for r in api.watch_requests[:2]] == ["abc", "0042"]
        assert s.mirror.held == {("shop", "a"): ("uid-a", "x0")}


@virtual
async def test_T81_a_version_beyond_64_bits_is_used_as_it_is() -> None:
    huge = str(2**100)
    api = Api()
    api.lists.append(says(page(huge, [pod("a", 1)])))
    api.watches.append(stream(2.0, bookmark(str(2**100 + 1))))
    api.watches.append(stream(then="hang"))
    async with following(api) as s:
        await s.until(lambda: len(api.watch_requests) == 2)
        assert api.watch_requests[1].query["resourceVersion"] == str(2**100 + 1)


@virtual
async def test_a_version_the_server_cannot_parse_is_dropped_for_a_list() -> None:
    api = Api(pod("a", 1))
    api.watches.append(
        status(422, "Invalid", 'resourceVersion: Invalid value: "abc": strconv.ParseUint')
    )
    async with following(api) as s:
        await s.until(lambda: s.mirror.synced == 2)
        assert "resourceVersion" not in api.list_requests[1].query


@virtual
async def test_T85_an_uncached_resource_is_relisted_quietly_when_its_history_ran_out() -> None:
    api = Api(pod("e1", 1), pod("e2", 2))
    api.bookmark_every_s = 0
    async with following(api, settled=True) as s:
        for round_ in range(4):
            again = s.synced_again()
            api.version += 50  # other resources move on, this one's history is compacted
            api.expire()
            await s.until(again, 700)
            assert len(api.list_requests) <= 3 * (round_ + 1) + 1
        assert s.mirror.changes == [("ADDED", "e1"), ("ADDED", "e2")]
        assert s.status.last_error is None
        assert s.count("endpoint_gate_closed") == 0


@virtual
async def test_T86_a_namespace_that_does_not_exist_is_an_empty_list_and_its_first_objects_flow() -> (
    None
):
    api = Api()
    async with following(api, namespace="nowhere", settled=True) as s:
        await s.run_for(1000)
        assert s.mirror.troubles == []
        assert all(r.path == "/api/v1/namespaces/nowhere/pods" for r in api.asked)
        api.put(pod("a", 0, namespace="nowhere"))
        await s.until(lambda: s.mirror.names == ["a"], 1)


@virtual
async def test_an_event_older_than_the_cursor_does_not_move_it_back() -> None:
    api = Api(pod("a", 1))
    api.watches.append(
        stream(
            2.0,
            line("MODIFIED", pod("a", 105)),
            1.0,
            line("MODIFIED", pod("a", 90)),
            1.0,
            bookmark(95),
        )
    )
    async with following(api) as s:
        await s.until(lambda: len(api.watch_requests) == 2)
        assert api.watch_requests[1].query["resourceVersion"] == "105"


@virtual
async def test_410_while_the_server_is_asked_again_and_again_never_ends_the_watcher() -> None:
    api = Api(pod("a", 1))
    api.watches.extend([says(EXPIRED, 410)] * 200)
    async with following(api) as s:
        await s.run_for(3600)
        assert len(api.asked) < 300
        assert s.mirror.names == ["a"]
