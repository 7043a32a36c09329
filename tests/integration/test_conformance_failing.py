"""The watch over real sockets, virtual time: watches that fail from their cursor each time."""

import pytest

from tests.support.following import following
from tests.support.scripted import Reply, Request
from tests.support.scripted_apiserver import (
    Answer,
    Api,
    bookmark,
    failure,
    line,
    pod,
    status,
    stream,
)
from tests.support.virtualtime import virtual

GAP = failure(500, "InternalError", "etcd event received with PrevKv=nil")
COMPACTED = failure(500, "", "etcdserver: mvcc: required revision has been compacted")
WITHOUT_CODE = {key: value for key, value in GAP.items() if key != "code"}
OLD = "too old resource version: 100 (120)"


def error(shown: dict[str, object]) -> Answer:
    return stream(line("ERROR", shown))


HOW: dict[str, Answer] = {
    "in the stream": error(GAP),
    "compacted": error(COMPACTED),
    "without a code": error(WITHOUT_CODE),
    "by HTTP": status(500, "InternalError", "conversion webhook failed: cannot convert v1"),
    "of a gateway": error(failure(502, "", "bad gateway")),
    "not found, though it is served": status(404, "NotFound", "the server could not find it"),
    "ended at once": stream(),
    "ended after 2 s": stream(2.0),
    "ended after 20 s": stream(20.0),
    "broken after 20 s": stream(20.0, then="reset"),
    "a bookmark at the cursor, ended at once": stream(bookmark(100)),
    "a bookmark at the cursor, ended after 2 s": stream(bookmark(100), 2.0),
    "an old object, in the stream": stream(line("MODIFIED", pod("a", 1)), line("ERROR", GAP)),
}


class FailsBefore:
    """Watches from before `version` fail, as the change there cannot be shown."""

    def __init__(self, api: Api, version: int, answer: Answer) -> None:
        self.api, self.version, self.answer = api, version, answer

    async def __call__(self, request: Request, reply: Reply) -> None:
        if not request.query.get("watch"):
            await self.api.list(request, reply)
        elif int(request.query["resourceVersion"]) < self.version:
            await self.answer(request, reply)
        else:
            await self.api.watch(request, reply)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("bookmarks", [True, False])
@virtual
async def test_a_watch_that_fails_from_its_cursor_is_left_by_one_list_that_shows_the_deletes(
    how: str, *, bookmarks: bool
) -> None:
    api = Api(pod("a", 1), pod("b", 2))
    api.put(pod("c", 0), tell=False)
    api.put(pod("c", 0), tell=False)
    api.delete("b", tell=False)
    api.always = FailsBefore(api, 102, HOW[how])
    async with following(api, cursor="100", recovered=True, bookmarks=bookmarks) as s:
        s.mirror.held = {("shop", name): (f"uid-{name}", "1") for name in "ab"}
        await s.until(lambda: s.mirror.synced == 1, 200)
        *first, look, relist = api.list_requests
        assert [each.query["limit"] for each in first] in ([], ["1"]), "of a watch that opened"
        failed = [each for each in api.watch_requests if each.at_s < look.at_s]
        assert len(failed) >= 5
        assert look.at_s - failed[0].at_s >= 60.0
        assert (look.query["limit"], look.query.get("resourceVersion")) == ("1", None)
        assert relist.query["resourceVersion"] == "100"
        assert relist.query["resourceVersionMatch"] == "NotOlderThan"
        assert s.mirror.names == ["a", "c"]
        await s.until(lambda: s.status.state == "watching")
        assert s.watcher.cursor == "103"
        api.put(pod("d", 104))
        await s.until(lambda: s.mirror.names == ["a", "c", "d"], 5)
        paused = s.admission.breaker.generation > 0
        assert paused is (how == "broken after 20 s"), "else it paused its own stream"


@virtual
async def test_lists_of_a_server_whose_watches_all_fail_come_at_three_a_minute_and_then_rarely() -> (
    None
):
    api = Api(pod("a", 1))
    api.always = FailsBefore(api, 10**9, HOW["in the stream"])
    api.put(pod("b", 0), tell=False)
    async with following(api, watchers=12, cursor="100", recovered=True) as s:
        await s.run_for(3600)
        lists = [e.at_s for e in api.list_requests if e.query.get("limit") != "1"]
        assert len(lists) >= 12, "each stream has listed"
        for at_s in lists:
            assert sum(1 for other in lists if at_s <= other < at_s + 59.0) <= 3
        assert len(lists) <= 12 * 5, "after 5, 10, 20 and 40 minutes"
        assert s.mirror.names == ["a", "b"]
        assert api.most_lists <= 3


@virtual
async def test_an_api_server_whose_lists_fail_too_gets_no_list() -> None:
    api = Api(pod("a", 1))
    api.always = status(500, "InternalError", "etcdserver: request timed out")
    async with following(api, cursor="100", recovered=True) as s:
        await s.run_for(1200)
        assert {each.query.get("limit") for each in api.list_requests} == {"1"}
        assert s.mirror.synced == 0


@pytest.mark.parametrize("code", [500, 502])
@virtual
async def test_a_500_of_one_watch_delays_no_other_stream_and_a_502_of_a_proxy_does(
    code: int,
) -> None:
    api = Api(pod("a", 1))
    async with following(api, watchers=2, settled=True) as s:
        generation = s.admission.breaker.generation
        api.watches.extend([status(code, "InternalError")] * 4)
        await s.until(lambda: len(api.watches) == 0, 700)
        assert (s.admission.breaker.generation == generation) is (code == 500)


@pytest.mark.parametrize("code", [200, 400, 410, 500, 504, None])
@pytest.mark.parametrize("where", ["in the stream", "by HTTP"])
@virtual
async def test_a_version_that_is_too_old_is_expired_whatever_the_code(
    code: int | None, where: str
) -> None:
    shown = failure(code or 0, "", OLD)
    if code is None:
        del shown["code"]

    async def by_http(request: Request, reply: Reply) -> None:
        await reply.json(code or 500, shown)

    api = Api(pod("a", 1))
    api.watches.append(by_http if where == "by HTTP" else error(shown))
    async with following(api) as s:
        await s.until(lambda: s.mirror.synced == 2, 1.0)
        assert [each.kind for each in api.asked[:3]] == ["list", "watch", "list"]
        assert s.count("list_total", result="success") == 2
