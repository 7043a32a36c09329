"""The watch over real sockets, virtual time: cases of docs/watch-facts.md 13 about watch streams
(T14-T33)."""

import itertools
import json
import logging

import pytest

from tests.support import virtualtime
from tests.support.following import following
from tests.support.scripted import Reply, Request
from tests.support.scripted_apiserver import (
    EXPIRED,
    Answer,
    Api,
    bookmark,
    drop,
    failure,
    line,
    pod,
    repeated,
    says,
    stream,
)
from tests.support.virtualtime import virtual
from watchrelay.core.errors import Undecodable
from watchrelay.model.watch_output import ServerSeen, Watched, WatchOutput

# tests are named for the cases of the conformance list


def changes(outputs: list[WatchOutput]) -> list[WatchOutput]:
    return [
        each
        for each in outputs
        if not isinstance(each, ServerSeen) and not (isinstance(each, Watched) and not each.frames)
    ]


def error(status: object) -> bytes:
    return b'{"type":"ERROR","object":' + json.dumps(status).encode() + b"}\n"


@virtual
async def test_T14_events_come_in_order_and_each_moves_the_version_that_the_next_watch_starts_at() -> (
    None
):
    api = Api(pod("a", 1))
    api.watches.extend(
        [
            stream(2.0, line("ADDED", pod("b", 101)), line("MODIFIED", pod("b", 102))),
            stream(2.0, bookmark(110)),
            stream(2.0, line("DELETED", pod("b", 111))),
        ]
    )
    api.version = 100
    async with following(api) as s:
        await s.until(lambda: len(api.watch_requests) == 4)
        assert [r.query["resourceVersion"] for r in api.watch_requests] == [
            "100",
            "102",
            "110",
            "111",
        ]
        assert s.mirror.changes == [
            ("ADDED", "a"),
            ("ADDED", "b"),
            ("MODIFIED", "b"),
            ("DELETED", "b"),
        ]
        assert [e.cursor for e in s.mirror.events if isinstance(e, Watched)] == [
            "102",
            "110",
            "111",
        ]
        assert s.count("events_received_total", type="ADDED") == 1
        assert s.count("events_received_total", type="BOOKMARK") == 1


def test_T15_a_clean_end_in_time_is_no_event_and_no_noise(caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        api = Api(pod("a", 1))
        async with following(api, settled=True) as s:
            events = changes(s.mirror.events)
            caplog.clear()
            await s.until(lambda: len(api.watch_requests) == 3, 1300)
            assert len(api.list_requests) == 1
            assert {r.query["resourceVersion"] for r in api.watch_requests} == {"100"}
            later = changes(s.mirror.events)
            assert later == events
            assert s.count("watch_ends_total", reason="timeout") == 2
            assert s.status.last_error is None

    with caplog.at_level(logging.INFO, "watchrelay"):
        virtualtime.run(scene())
        assert [
            r
            for r in caplog.records
            if r.message != "stream changed state" or "stopped" not in str(r.__dict__["state"])
        ] == []


def test_T16_broken_connections_resume_at_the_same_version_after_a_delay() -> None:
    async def scene(*broken: Answer) -> None:
        api = Api(pod("a", 1), version=100)
        api.watches.extend(broken)
        async with following(api) as s:
            await s.until(lambda: len(api.watch_requests) == len(broken) + 1)
            first, second = api.watch_requests[-2:]
            assert len(api.list_requests) == 1
            assert second.query["resourceVersion"] in {"100", "101"}
            assert second.at_s - first.at_s >= 0.8
            api.put(pod("c", 102))
            await s.until(lambda: "c" in s.mirror.names)
            assert len(s.mirror.changes) == len(set(s.mirror.changes))

    virtualtime.run(scene(stream(line("ADDED", pod("b", 101)), then="fin")))
    virtualtime.run(scene(stream(line("ADDED", pod("b", 101)), then="reset")))
    # the first closes a connection that was used before: the HTTP client tries that once by itself
    virtualtime.run(scene(drop, drop))


@virtual
async def test_T17_a_server_that_closes_at_once_is_asked_ever_more_rarely() -> None:
    api = Api(pod("a", 1))
    api.watches.extend([stream()] * 100)
    async with following(api) as s:
        await s.until(lambda: s.status.state == "backoff")
        assert s.status.next_attempt_ms is not None
        assert s.status.last_error is not None
        first_s = api.watch_requests[0].at_s
        await s.run_for(1800)
        assert len([t for t in api.times("watch") if t < first_s + 60]) <= 8
        assert len(api.times("watch")) < 1800 / 30 + 8
        first, *looks = [asked.query["limit"] for asked in api.list_requests]
        assert first == "500"
        assert set(looks) == {"1"}, "nothing is newer, so nothing is listed again"
        assert len(looks) <= len(api.times("watch"))


@virtual
async def test_T17_one_event_that_is_repeated_before_each_instant_end_does_not_make_a_hot_loop() -> (
    None
):
    api = Api(pod("a", 1))
    api.watches.extend([stream(bookmark(100))] * 100)
    async with following(api) as s:
        await s.run_for(60)
        assert len(api.watch_requests) <= 8


@virtual
async def test_T17_watches_that_end_at_once_though_each_brings_a_change_are_opened_once_a_second() -> (
    None
):
    api = Api(pod("a", 1), version=100)
    api.watches.extend([stream(line("MODIFIED", pod("a", version))) for version in range(101, 131)])
    async with following(api) as s:
        await s.until(
            lambda: (
                ("a", "130")
                in {(name, version) for (_, name), (_, version) in s.mirror.held.items()}
            ),
            60,
        )
        opened_s = [request.at_s for request in api.watch_requests]
        assert min(after_s - before_s for before_s, after_s in itertools.pairwise(opened_s)) >= 0.99
        assert len(api.list_requests) == 1
        assert s.status.state == "watching", "it brings changes, and nothing is wrong"
        assert s.status.last_error is None


@virtual
async def test_T21_a_line_without_measure_ends_in_a_list_of_its_stream_alone() -> None:
    async def endless(request: Request, reply: Reply) -> None:
        await reply.start(200)
        await reply.chunk(b'{"type":"ADDED","object":{"x":"')
        for _ in range(40):
            await reply.chunk(b"x" * (1 << 20))
        await reply.gone()

    api = Api(pod("a", 1), version=100)
    api.watches.extend([endless, endless])
    async with following(api) as s:
        await s.until(lambda: s.mirror.synced == 2)
        await s.until(lambda: s.status.state == "watching")
        assert [r.kind for r in api.asked] == ["list", "watch", "watch", "list", "watch"]
        assert [type(each) for each in s.mirror.troubles] == [Undecodable, Undecodable]
        assert s.admission.breaker.generation == 0, (
            "the server is well, and so are the streams beside this one"
        )
        api.put(pod("b", 0))
        await s.until(lambda: s.mirror.names == ["a", "b"])


def test_T23_410_as_an_event_makes_one_list_in_any_form() -> None:
    async def scene(reason: str, *, chunked: bool, code: int) -> None:
        async def answer(request: Request, reply: Reply) -> None:
            body = error(failure(code, reason, "too old resource version"))
            await reply.start(200, chunked=chunked, length=None if chunked else len(body))
            await reply.chunk(body)
            await reply.end()

        api = Api(pod("a", 1))
        api.watches.append(answer)
        async with following(api) as s:
            await s.until(lambda: s.mirror.synced == 2)
            await s.run_for(100)
            assert [r.kind for r in api.asked] == ["list", "watch", "list", "watch"]
            assert s.count("watch_ends_total", reason="gone") == 1

    for reason in ("Expired", "Gone"):
        for chunked in (True, False):
            virtualtime.run(scene(reason, chunked=chunked, code=410))
    virtualtime.run(scene("Expired", chunked=True, code=0))


@virtual
async def test_a_second_410_within_a_minute_of_the_list_backs_off_and_names_no_version() -> None:
    api = Api(pod("a", 1))
    api.watches.extend([says(EXPIRED, 410)] * 6)
    async with following(api) as s:
        await s.until(lambda: s.status.state == "watching" and len(api.watch_requests) == 7, 200)
        lists = api.list_requests
        assert [r.query.get("resourceVersion") for r in lists[:3]] == [None, "100", None]
        assert lists[1].at_s - lists[0].at_s < 0.5
        gaps = [later.at_s - earlier.at_s for earlier, later in itertools.pairwise(lists[1:])]
        assert all(gap >= 0.8 * 2**level for level, gap in enumerate(gaps))


@virtual
async def test_T25_errors_within_the_stream_resume_at_the_same_version_and_not_too_soon() -> None:
    api = Api(pod("a", 1))
    slow = failure(429, "TooManyRequests", details={"retryAfterSeconds": 3})
    for each in (failure(500, "InternalError"), failure(504, "Timeout", details=None), slow):
        api.watches.append(stream(error(each)))
    async with following(api) as s:
        await s.until(lambda: len(api.watch_requests) == 4)
        assert {r.query["resourceVersion"] for r in api.watch_requests} == {"100"}
        assert len(api.list_requests) == 1
        assert api.watch_requests[3].at_s - api.watch_requests[2].at_s >= 3
        assert s.admission.breaker.generation == 0


@virtual
async def test_a_watch_from_a_future_version_is_found_out_by_a_probe() -> None:
    api = Api(pod("a", 1), pod("b", 2), version=500)
    async with following(api, settled=True) as s:
        api.version = 300  # restored from a backup: watches from 500 stay silent
        api.bookmark_every_s = 0
        api.delete("b")
        await s.until(lambda: s.mirror.synced == 2, 1300)
        probe, relist = api.list_requests[1:3]
        assert (probe.query.get("limit"), "resourceVersion" in probe.query) == ("1", False)
        assert "resourceVersion" not in relist.query
        assert (s.mirror.names, s.watcher.cursor) == (["a"], "301")


@virtual
async def test_a_watch_that_starts_from_a_handed_in_version_asks_for_one_object_and_lists_only_after_that() -> (
    None
):
    api = Api(pod("a", 1), version=300)
    async with following(api, cursor="250") as s:
        await s.until(lambda: len(api.asked) == 2)
        assert [r.kind for r in api.asked] == ["watch", "list"]
        assert api.watch_requests[0].query["resourceVersion"] == "250"
        await s.until(lambda: len(api.watch_requests) == 2, 1300)
        assert s.mirror.synced == 0
        assert [r.query.get("limit") for r in api.list_requests] == ["1"]
    began = len(api.asked)
    api.bookmark_every_s = 0
    async with following(api, cursor="400") as s:
        await s.until(lambda: s.mirror.synced == 1, 100)
        assert s.watcher.cursor == "300"
        opened, probe, relist, *_ = api.asked[began:]
        assert [opened.kind, probe.kind, relist.kind] == ["watch", "list", "list"]
        assert probe.query["limit"] == "1"
        assert probe.at_s - opened.at_s < 1


@pytest.mark.parametrize(
    "bad",
    [
        b'{"type":"MODIFIED","object":{"kind":',
        b'{"type":"RENAMED","object":{"metadata":{}}}',
        b'{"type":"ADDED","object":{"kind":"Pod"}}',
    ],
    ids=["cut line", "unknown type", "no metadata"],
)
@virtual
async def test_T27_what_cannot_be_decoded_is_reconnected_then_listed_then_passed_over(
    bad: bytes,
) -> None:
    api = Api(pod("a", 1), version=100)
    poisoned = stream(
        line("ADDED", pod("b", 101)), bad + b"\n", line("ADDED", pod("c", 103)), then="hang"
    )
    again = stream(bad + b"\n", then="hang")
    api.watches.extend(
        [poisoned, again, stream(bad + b"\n", line("ADDED", pod("d", 104)), then="hang")]
    )
    async with following(api) as s:
        await s.until(lambda: len(api.watch_requests) == 2)
        assert api.watch_requests[1].query["resourceVersion"] == "101"
        assert len(api.list_requests) == 1
        assert s.mirror.names == ["a", "b"]
        api.put(pod("b", 102), tell=False)
        await s.until(lambda: len(api.list_requests) == 2)
        await s.until(lambda: "d" in s.mirror.names)
        assert len(api.watch_requests) == 3
        assert s.count("events_filtered_total", reason="quarantined") == 1
        assert [type(e) for e in s.mirror.troubles] == [Undecodable, Undecodable]


@virtual
async def test_T27_an_item_of_a_list_that_cannot_be_decoded_does_not_keep_the_others_out() -> None:
    api = Api()
    broken = {
        "metadata": {"resourceVersion": "100"},
        "items": [pod("a", 1), {"spec": {}}, pod("b", 2)],
    }
    api.lists.extend([says({"kind": "PodList", "apiVersion": "v1", **broken})] * 2)
    async with following(api, settled=True) as s:
        assert s.mirror.names == ["a", "b"]
        assert len(api.list_requests) == 2
        assert s.count("events_filtered_total", reason="quarantined") == 1


@virtual
async def test_T28_a_half_open_connection_is_left_within_75_seconds_and_nothing_is_lost() -> None:
    api = Api(pod("a", 1))
    api.watches.append(stream(60.0, bookmark(100), then="hang"))
    async with following(api) as s:
        await s.until(lambda: len(api.watch_requests) == 1)
        await s.run_for(61)
        api.put(pod("b", 0))
        await s.until(lambda: len(api.watch_requests) == 2, 75)
        await s.until(lambda: s.mirror.names == ["a", "b"])
        first, second = api.watch_requests
        assert second.at_s - first.at_s <= 60 + 75
        assert len(api.list_requests) == 1


@virtual
async def test_T29_an_idle_watch_with_bookmarks_is_opened_again_only_in_time() -> None:
    api = Api(pod("a", 1))
    async with following(api, settled=True) as s:
        await s.run_for(1800)
        for earlier, later in zip(api.watch_requests, api.watch_requests[1:], strict=False):
            assert later.at_s - earlier.at_s == pytest.approx(
                int(earlier.query["timeoutSeconds"]), abs=1
            )
        assert len(api.list_requests) == 1
        assert s.mirror.troubles == []


@virtual
async def test_T29_a_watch_whose_first_bookmark_waits_for_the_servers_cache_is_kept_open() -> None:
    """As kube-apiserver 1.36 does it: from the version that its cache is at, the first bookmark
    comes when that has moved on."""

    api = Api(pod("a", 1))
    late = stream(120.0, *repeated(2, bookmark(107), 60.0), bookmark(108), 45.0)
    async with following(api, settled=True) as s:
        await s.run_for(65)
        api.watches.append(late)
        api.version = 107
        await s.until(lambda: len(api.watch_requests) == 2, 600)
        await s.until(lambda: len(api.watch_requests) == 3, 600)
        second, third = api.watch_requests[1:]
        assert third.at_s - second.at_s == pytest.approx(285, abs=1)
        assert [r.query["limit"] for r in api.list_requests[1:]] == ["1"], (
            "the server was asked whether it lives, no more"
        )
        assert s.mirror.troubles == []


@virtual
async def test_T28_a_watch_that_is_silent_from_its_start_is_left_and_nothing_is_lost() -> None:
    api = Api(pod("a", 1))
    api.watches.append(stream(60.0, bookmark(100)))
    api.watches.append(stream(then="hang"))
    api.watches.append(stream(then="hang"))
    async with following(api) as s:
        await s.until(lambda: len(api.watch_requests) == 2, 200)
        api.put(pod("b", 0))
        await s.until(lambda: len(api.watch_requests) == 4, 600)
        _, second, third, fourth = api.watch_requests
        assert third.at_s - second.at_s <= 131, "once, until it is known how late its bookmarks are"
        assert fourth.at_s - third.at_s <= 75
        await s.until(lambda: s.mirror.names == ["a", "b"])


@virtual
async def test_T29_a_server_that_stops_sending_bookmarks_is_believed_longer_and_longer() -> None:
    api = Api(pod("a", 1))
    async with following(api, settled=True) as s:
        await s.run_for(65)
        api.bookmark_every_s = 0
        await s.run_for(7200)
        requests = api.watch_requests[-3:]
        for earlier, later in itertools.pairwise(requests):
            assert later.at_s - earlier.at_s == pytest.approx(
                int(earlier.query["timeoutSeconds"]), abs=2
            )
        assert len([t for t in s.mirror.troubles if "silent" in str(t)]) <= 12


@virtual
async def test_T29_a_server_that_never_sends_bookmarks_is_watched_again_only_in_time() -> None:
    api = Api(pod("a", 1))
    api.bookmark_every_s = 0
    async with following(api, settled=True) as s:
        await s.run_for(1800)
        for earlier, later in zip(api.watch_requests, api.watch_requests[1:], strict=False):
            assert later.at_s - earlier.at_s == pytest.approx(
                int(earlier.query["timeoutSeconds"]), abs=1
            )
        assert s.mirror.troubles == []


@virtual
async def test_T30_timeouts_vary_within_300_and_599_and_ours_is_longer_than_the_servers() -> None:
    api = Api(pod("a", 1))
    # a server that goes on for 20 minutes whatever it was asked
    api.watches.append(stream(*repeated(24, 50.0, bookmark(100))))
    async with following(api, settled=True) as s:
        await s.run_for(6000)
        timeouts = [int(r.query["timeoutSeconds"]) for r in api.watch_requests]
        assert all(300 <= t < 600 for t in timeouts)
        assert len(set(timeouts)) > 3
        assert all("timeout" not in r.query for r in api.watch_requests)
        assert s.mirror.troubles == []


@pytest.mark.parametrize("wanted", [True, False])
@virtual
async def test_bookmarks_are_asked_for_unless_turned_off(wanted: bool) -> None:
    api = Api(pod("a", 1))
    async with following(api, bookmarks=wanted, server_version=(1, 36), settled=True) as s:
        assert all(
            (r.query.get("allowWatchBookmarks") == "true") == wanted for r in api.watch_requests
        )
        # without bookmarks a streaming list would have no end
        assert bool(api.list_requests) != wanted
        assert s.mirror.names == ["a"]
