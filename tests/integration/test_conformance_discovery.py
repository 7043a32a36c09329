"""The watch over sockets, virtual time: cases of docs/watch-facts.md 13 of resources that come and
go
(T74-T78)."""

import pytest

from tests.support.following import following
from tests.support.scripted_apiserver import EXPIRED, WIDGETS, Api, pod, says, text
from tests.support.virtualtime import virtual
from watchrelay.model.resources import GONE, SERVED, UNKNOWN, Availability

# tests are named for the cases of the conformance list

HIDDEN = Availability(
    "hidden", "widgets.example.com is served in v2, not as widgets.example.com/v1"
)
NOT_THERE = text(404, "404 page not found\n")


@virtual
async def test_T74_a_deleted_crd_is_waited_for_and_its_return_is_listed_with_new_uids() -> None:
    present = SERVED
    api = Api(pod("a", 1), pod("b", 2))
    async with following(api, availability=lambda: present, resource=WIDGETS, settled=True) as s:
        # the finalizer deletes instances first; b's delete is lost with the storage
        api.delete("a")
        await s.until(lambda: s.mirror.names == ["b"])
        await s.run_for(700)
        await s.server.stop()
        present, api.always = GONE, NOT_THERE
        await s.server.serve_again()
        hurt = len(api.asked)
        await s.until(lambda: s.status.state == "waiting", 30)
        assert s.mirror.names == ["b"]
        await s.until(lambda: s.mirror.gone == 1, 90)
        assert s.mirror.changes[-1] == ("DELETED*", "b")
        await s.run_for(1800)
        assert s.mirror.gone == 1
        assert len(api.asked) - hurt <= 15
        present, api.always = SERVED, None
        api.objects = {("shop", "b"): pod("b", 200, uid="new")}
        api.version = 200
        await s.until(lambda: s.mirror.held == {("shop", "b"): ("new", "200")}, 60)
        assert s.status.waits_for == ""


@virtual
async def test_T74_one_absence_is_not_believed() -> None:
    answers = iter([GONE, UNKNOWN, UNKNOWN, SERVED])
    api = Api(pod("a", 1))
    async with following(
        api, availability=lambda: next(answers, SERVED), resource=WIDGETS, settled=True
    ) as s:
        api.watches.append(says(EXPIRED, 410))
        api.lists.append(NOT_THERE)
        await s.until(lambda: s.mirror.synced == 2, 900)
        assert (s.mirror.gone, s.mirror.changes) == (0, [("ADDED", "a")])


@pytest.mark.parametrize("woken", [True, False])
@virtual
async def test_T75_a_crd_that_is_absent_at_start_is_followed_once_it_is_there(woken: bool) -> None:
    present = GONE
    api = Api(pod("a", 1))
    api.always = NOT_THERE
    async with following(api, availability=lambda: present, resource=WIDGETS) as s:
        await s.run_for(1200)
        assert s.status.state == "waiting"
        assert s.mirror.gone == 0 or s.mirror.held == {}
        present, api.always = SERVED, None
        if woken:
            s.watcher.recheck()
        await s.until(lambda: s.mirror.names == ["a"], 1 if woken else 60)


@virtual
async def test_a_changed_crd_ends_the_watch_and_is_resumed_or_listed_without_deletes() -> None:
    api = Api(pod("a", 1))
    async with following(api, resource=WIDGETS, settled=True) as s:
        busy = text(429, "storage is (re)initializing", {"Retry-After": "1"})
        await s.server.stop()
        api.watches.extend([busy, says(EXPIRED, 410)])
        await s.server.serve_again()
        await s.until(lambda: s.mirror.synced == 2, 60)
        assert s.mirror.changes == [("ADDED", "a")]


@virtual
async def test_T77_a_version_that_ends_while_another_is_served_removes_nothing() -> None:
    """Versions are representations of one set of stored objects."""

    present, api = SERVED, Api(pod("a", 1))
    async with following(api, availability=lambda: present, resource=WIDGETS, settled=True) as s:
        present, api.always = HIDDEN, NOT_THERE
        await s.server.restart()
        hurt = len(api.asked)
        await s.until(lambda: s.status.waits_for == HIDDEN.reason, 60)
        for each in (GONE, HIDDEN) * 2:  # of servers that answer differently for a while
            present = each
            await s.run_for(29)
        await s.run_for(1800)
        assert (s.mirror.gone, s.mirror.names) == (0, ["a"])
        assert s.status.waits_for == HIDDEN.reason
        assert len(api.asked) - hurt <= 15
        api.put(pod("a", 2))
        present, api.always = SERVED, None
        s.watcher.recheck()
        await s.until(lambda: s.status.state == "watching", 10)
        assert s.status.waits_for == ""
        assert [kind for kind, _ in s.mirror.changes] == ["ADDED", "MODIFIED"]


@virtual
async def test_T77_a_version_that_ended_and_then_went_with_all_others_is_removed_after_the_grace() -> (
    None
):
    present, api = SERVED, Api(pod("a", 1))
    async with following(api, availability=lambda: present, resource=WIDGETS, settled=True) as s:
        present, api.always = HIDDEN, NOT_THERE
        await s.server.restart()
        await s.run_for(600)
        present = GONE
        await s.run_for(29)
        assert s.mirror.gone == 0
        await s.until(lambda: s.mirror.gone == 1, 90)
        assert s.status.state == "waiting"


@virtual
async def test_T78_a_discovery_that_cannot_say_removes_nothing() -> None:
    api = Api(pod("a", 1))
    async with following(api, availability=lambda: UNKNOWN, resource=WIDGETS, settled=True) as s:
        api.always = NOT_THERE
        await s.server.restart()
        await s.run_for(1800)
        assert (s.mirror.gone, s.mirror.names) == (0, ["a"])
        api.always = None
        await s.until(lambda: s.status.state == "watching", 301)
        assert s.mirror.changes == [("ADDED", "a")]


@virtual
async def test_T78_503_of_an_aggregated_group_leaves_its_objects_and_ends() -> None:
    api = Api(pod("a", 1))
    async with following(api, resource=WIDGETS, settled=True) as s:
        api.always = text(503, "service unavailable")
        await s.run_for(3600)
        assert (s.mirror.gone, s.mirror.names) == (0, ["a"])
        api.always = None
        await s.until(lambda: s.status.state == "watching", 90)
