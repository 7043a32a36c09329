"""The watch over real sockets, virtual time: cases of docs/watch-facts.md 13 about streaming lists
(T34-T39)."""

import json

import pytest

from tests.support.following import following
from tests.support.scripted_apiserver import (
    EXPIRED,
    TOO_LARGE,
    Answer,
    Api,
    bookmark,
    failure,
    line,
    pod,
    repeated,
    says,
    status,
    stream,
    text,
)
from tests.support.virtualtime import virtual

# tests are named for the cases of the conformance list

NEW = (1, 36)


def streamed(api: Api) -> list[bool]:
    """For each request, whether it asked for a streaming list."""
    return [r.query.get("sendInitialEvents") == "true" for r in api.asked]


def error(obj: object) -> bytes:
    return b'{"type":"ERROR","object":' + json.dumps(obj).encode() + b"}\n"


@virtual
async def test_a_streaming_list_is_one_request_that_goes_on_as_the_watch() -> None:
    api = Api(pod("a", 1), pod("b", 2))
    async with following(api, server_version=NEW, settled=True) as s:
        api.put(pod("c", 0))
        await s.until(lambda: s.mirror.names == ["a", "b", "c"])
        assert len(api.asked) == 1
        query = api.asked[0].query
        assert (
            query["resourceVersionMatch"],
            query["allowWatchBookmarks"],
            "resourceVersion" in query,
        ) == (
            "NotOlderThan",
            "true",
            False,
        )
        assert s.count("watch_starts_total", mode="watchlist") == 1
        assert s.count("list_total", result="success") == 1


@pytest.mark.parametrize(
    ("mode", "version", "streams"),
    [
        ("auto", (1, 33), False),
        ("auto", (1, 34), True),
        ("auto", None, False),
        ("paged", (1, 36), False),
        ("streaming", (1, 32), True),
        ("streaming", None, True),
    ],
)
@virtual
async def test_which_servers_are_asked_for_a_streaming_list(
    mode: str, version: tuple[int, int] | None, *, streams: bool
) -> None:
    api = Api(pod("a", 1))
    async with following(api, server_version=version, initial_list=mode, settled=True):
        assert streamed(api)[0] == streams


@virtual
async def test_a_relist_streams_too_and_names_the_version_it_must_not_be_older_than() -> None:
    api = Api(pod("a", 1))
    async with following(api, server_version=NEW, settled=True) as s:
        api.watches.append(says(EXPIRED, 410))
        await s.until(lambda: s.mirror.synced == 2, 700)
        assert [r.query.get("sendInitialEvents") for r in api.watch_requests] == [
            "true",
            None,
            "true",
        ]
        assert api.watch_requests[2].query["resourceVersion"] == "100"


@virtual
async def test_T29_a_streaming_list_whose_first_bookmark_waits_for_the_servers_cache_goes_on_as_the_watch() -> (
    None
):
    """As kube-apiserver 1.36 does it where etcd tells of its progress every 10 minutes."""

    api = Api(pod("a", 1))
    api.bookmark_every_s = 0
    async with following(api, server_version=NEW, settled=True) as s:
        await s.run_for(280)
        assert len(api.watch_requests) == 1
        assert all(r.query["limit"] == "1" for r in api.list_requests)
        assert s.mirror.troubles == []


@virtual
async def test_T28_a_streaming_list_that_freezes_behind_its_end_mark_is_left_within_75_seconds() -> (
    None
):
    api = Api(pod("a", 1))
    api.watches.append(stream(line("ADDED", pod("a", 1)), bookmark(100, end=True), then="hang"))
    async with following(api, server_version=NEW) as s:
        await s.until(lambda: s.mirror.synced == 1)
        api.put(pod("b", 0))
        await s.until(lambda: len(api.watch_requests) == 2, 76)
        await s.until(lambda: s.mirror.names == ["a", "b"])


@virtual
async def test_a_relist_that_streams_in_many_pieces_ended_one_watch_as_gone_and_none_more() -> None:
    api = Api(pod("a", 1))
    async with following(api, server_version=NEW, settled=True) as s:
        pieces = [
            part
            for number in range(5)
            for part in (line("ADDED", pod(f"n{number}", 90 + number)), 1.0)
        ]
        api.watches.append(stream(error(EXPIRED)))
        api.watches.append(stream(*pieces, bookmark(100, end=True), then="hang"))
        await s.until(lambda: s.mirror.synced == 2, 700)
        assert s.count("watch_ends_total", reason="gone") == 1
        assert s.count("watch_ends_total", reason="error") == 0
        assert s.count("list_total", result="expired") == 0


@pytest.mark.parametrize(
    "never_ends",
    [
        stream(line("ADDED", pod("x", 1)), then="hang"),
        stream(line("ADDED", pod("x", 1))),
        stream(60.0, then="fin"),
    ],
    ids=["silent", "ended", "aborted after 60 s"],
)
@virtual
async def test_T34_without_an_end_mark_it_is_tried_once_more_and_then_listed_by_pages(
    never_ends: Answer,
) -> None:
    api = Api(pod("a", 1))
    api.watches.extend([never_ends, never_ends])
    async with following(api, server_version=NEW) as s:
        await s.until(lambda: s.mirror.synced == 1, 80)
        assert streamed(api)[:3] == [True, True, False]
        assert s.mirror.names == ["a"]
        assert s.count("list_total", result="error") == 2
        await s.until(lambda: s.count("list_total", result="success") == 1)
        await s.until(lambda: s.status.state == "watching")
        api.watches.append(says(EXPIRED, 410))
        await s.until(lambda: s.mirror.synced == 2, 700)
        assert streamed(api).count(True) == 2


@virtual
async def test_T34_bookmarks_do_not_prolong_the_wait_for_the_end_mark() -> None:
    api = Api(pod("a", 1))
    api.watches.extend([stream(*repeated(20, 10.0, bookmark(50)))] * 2)
    async with following(api, server_version=NEW) as s:
        await s.until(lambda: s.mirror.synced == 1, 80)
        assert s.mirror.names == ["a"]


@pytest.mark.parametrize(
    "refusal",
    [
        status(422, "Invalid", "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled"),
        status(422, "Invalid", "resourceVersionMatch is forbidden for watch"),
        status(400, "BadRequest", "unknown parameters"),
        stream(
            error(
                failure(
                    500,
                    "InternalError",
                    "the server does not support: storage feature RequestWatchProgress is disabled",
                )
            )
        ),
    ],
    ids=["gate off", "1.26", "400", "feature disabled"],
)  # fmt: skip
@virtual
async def test_T35_refused_parameters_mean_pages_at_once_and_are_not_sent_again_for_six_hours(
    refusal: Answer,
) -> None:
    api = Api(pod("a", 1))
    api.watches.append(refusal)
    async with following(api, server_version=NEW) as s:
        await s.until(lambda: s.mirror.synced == 1, 2)
        assert streamed(api)[:2] == [True, False]
        for wait_s, streams in ((5 * 3600, False), (2 * 3600, True)):
            await s.run_for(wait_s)
            again = s.synced_again()
            api.watches.append(says(EXPIRED, 410))
            await s.until(again, 700)
            assert any(streamed(api)[2:]) == streams


@virtual
async def test_T35_a_throttled_streaming_list_is_tried_again_as_one() -> None:
    api = Api(pod("a", 1))
    api.watches.append(text(429, "Too many requests", {"Retry-After": "4"}))
    async with following(api, server_version=NEW) as s:
        await s.until(lambda: s.mirror.synced == 1, 30)
        assert streamed(api) == [True, True]
        assert api.asked[1].at_s - api.asked[0].at_s >= 4


@virtual
async def test_T35_a_cache_that_lags_without_end_is_listed_by_pages() -> None:
    api = Api(pod("a", 1))
    api.watches.extend([stream(error(TOO_LARGE))] * 2)
    async with following(api, server_version=NEW) as s:
        await s.until(lambda: s.mirror.synced == 1, 30)
        assert streamed(api)[:3] == [True, True, False]
        assert api.asked[1].at_s - api.asked[0].at_s >= 1


@virtual
async def test_T36_a_reconnect_after_the_list_is_a_plain_watch() -> None:
    api = Api(pod("a", 1))
    async with following(api, server_version=NEW, settled=True) as s:
        changes = list(s.mirror.changes)
        await s.until(lambda: len(api.asked) == 3, 1300)
        assert streamed(api) == [True, False, False]
        assert (s.mirror.changes, s.mirror.synced) == (changes, 1)


@virtual
async def test_changes_and_deletes_before_the_end_mark_belong_to_the_list() -> None:
    api = Api()
    lines = b"".join(
        line(kind, pod(name, version))
        for version, (kind, name) in enumerate(
            (("ADDED", "a"), ("ADDED", "b"), ("MODIFIED", "a"), ("DELETED", "b")), start=1
        )
    )
    api.watches.append(stream(lines, bookmark(5), bookmark(7, end=True), then="hang"))
    async with following(api, server_version=NEW) as s:
        await s.until(lambda: s.mirror.synced == 1)
        assert s.mirror.held == {("shop", "a"): ("uid-a", "3")}
        assert s.mirror.changes == [("ADDED", "a")]


@virtual
async def test_T39_the_version_of_the_end_mark_resumes_and_an_event_right_behind_it_is_not_lost() -> (
    None
):
    api = Api(version=7)
    together = line("ADDED", pod("a", 1)) + bookmark(7, end=True) + line("ADDED", pod("b", 8))
    api.watches.append(stream(line("ADDED", pod("c", 2)), together, 2.0))
    async with following(api, server_version=NEW) as s:
        await s.until(lambda: len(api.asked) == 2)
        assert s.mirror.names == ["a", "b", "c"]
        assert api.asked[1].query["resourceVersion"] == "8"
    api.watches.append(stream(bookmark(7, end=True), 2.0))
    async with following(api, server_version=NEW) as s:
        await s.until(lambda: len(api.asked) == 4)
        assert api.asked[3].query["resourceVersion"] == "7"


@virtual
async def test_an_implausible_streaming_list_is_asked_again_and_its_rest_is_dropped() -> None:
    api = Api(pod("a", 1))
    api.watches.append(stream(bookmark(7, end=True) + line("ADDED", pod("b", 8)), then="hang"))
    async with following(api, server_version=NEW) as s:
        s.mirror.disbelieve = 1
        await s.until(lambda: s.mirror.synced == 1)
        assert s.mirror.names == ["a"]
