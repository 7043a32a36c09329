"""The watch over sockets, virtual time: cases of docs/watch-facts.md 13 about delays, gate,
stopping
(T50-T58)."""

import asyncio
import gc
import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

from tests.support import virtualtime
from tests.support.following import Follower, Scene, following
from tests.support.scripted import Reply, Request
from tests.support.scripted_apiserver import (
    EXPIRED,
    Answer,
    Api,
    line,
    pod,
    says,
    status,
    stream,
    text,
)
from tests.support.virtualtime import virtual
from watchrelay.watch.states import ListingPages

# tests are named for the cases of the conformance list

BROKEN = text(503, "service unavailable")


def gaps(times: list[float]) -> list[float]:
    return [later - earlier for earlier, later in itertools.pairwise(times)]


@virtual
async def test_T50_failing_lists_are_delayed_by_doubling_up_to_the_cap_and_our_own_markers_reset_nothing() -> (
    None
):
    api = Api()
    api.always = BROKEN
    async with following(api) as s:
        await s.until(lambda: len(api.asked) == 21, 2000)
        for level, gap in enumerate(gaps(api.times())):
            step = min(30.0, 0.8 * 2**level)
            assert step <= gap < 2 * step + 0.2, level


def test_T51_health_of_two_minutes_resets_the_delays_and_of_five_seconds_does_not() -> None:
    async def scene(healthy_s: float) -> list[float]:
        api = Api(pod("a", 1))
        api.lists.extend([BROKEN] * 5)
        api.watches.extend(
            [
                stream(healthy_s / 2, line("ADDED", pod("b", 101)), healthy_s / 2, then="reset"),
                BROKEN,
            ]
        )
        async with following(api) as s:
            await s.until(lambda: len(api.watch_requests) == 3, 500)
            return gaps(api.times("watch"))

    after_long = virtualtime.run(scene(121))
    assert 0.8 <= after_long[0] - 121 < 1.8
    after_short = virtualtime.run(scene(5))
    assert 0.8 * 2**5 <= after_short[0] - 5 < 0.8 * 2**6 + 0.2


@virtual
async def test_T52_an_outage_of_a_day_is_waited_out_at_a_bounded_rate_and_size() -> None:
    api = Api(pod("a", 1))
    async with following(api, settled=True) as s:
        s.mirror.events.clear()
        await s.server.stop()
        await s.run_for(3600)
        s.mirror.troubles.clear()
        s.mirror.events.clear()
        gc.collect()
        held = len(gc.get_objects())
        attempts = s.count("kube_requests_total", code="0")
        for _ in range(23):
            await s.run_for(3600)
            s.mirror.troubles.clear()
            s.mirror.events.clear()
        gc.collect()
        grown = len(gc.get_objects()) - held
        attempts = s.count("kube_requests_total", code="0") - attempts
        assert 23 * 60 <= attempts <= 23 * 120
        assert grown < 300
        await s.server.serve_again()
        api.put(pod("b", 0))
        await s.until(lambda: s.mirror.names == ["a", "b"], 90)


@virtual
async def test_T53_no_two_streams_that_fail_together_keep_the_same_delays() -> None:
    api = Api()
    api.always = stream()
    api.lists.extend(
        [says({"kind": "PodList", "metadata": {"resourceVersion": "5"}, "items": []})] * 100
    )
    async with following(api, watchers=100) as s:
        await s.until(lambda: len(api.list_requests) == 100, 60)
        times: dict[str, list[float]] = {}
        await s.run_for(60)
        for asked in api.watch_requests:
            times.setdefault(asked.headers["user-agent"], []).append(asked.at_s)
        steps = {tuple(round(gap, 6) for gap in gaps(each)[:5]) for each in times.values()}
        assert len(steps) == 100


@virtual
async def test_one_stream_probes_for_all_and_the_others_follow_spread_out() -> None:
    api = Api(pod("a", 1))
    async with following(api, watchers=20, settled=True) as s:
        hurt_s = asyncio.get_running_loop().time()
        api.always = status(503, "ServiceUnavailable")
        await s.server.restart()
        await s.run_for(120)
        during = [t - hurt_s for t in api.times() if t > hurt_s]
        assert len(during) <= 2 + 10, "one probe per closure, not one attempt per stream"
        assert s.count("endpoint_gate_closed") == 1
        assert all(f.status.state == "backoff" for f in s.followers)
        api.always = None
        healed_s = asyncio.get_running_loop().time()
        await s.until(lambda: all(f.status.state == "watching" for f in s.followers), 120)
        after = sorted(t for t in api.times() if t > healed_s)
        assert len(after) == 20
        assert after[1] - after[0] >= 0
        assert 0.1 <= after[-1] - after[0] <= 0.6
        assert s.count("endpoint_gate_closed") == 0


@pytest.mark.parametrize(
    "answer",
    [
        status(404, "NotFound"),
        status(401, "Unauthorized"),
        status(403, "Forbidden"),
        says(EXPIRED, 410),
    ],
)
@virtual
async def test_any_answer_of_a_live_server_to_the_probe_opens_the_gate(answer: Answer) -> None:
    api = Api(pod("a", 1))
    async with following(api, watchers=3, settled=True) as s:
        api.watches.append(BROKEN)
        await s.server.restart()
        api.watches.append(answer)
        await s.until(lambda: sum(f.status.state == "watching" for f in s.followers) >= 2, 30)
        assert s.count("endpoint_gate_closed") == 0


@virtual
async def test_T56_after_a_restart_of_the_server_everyone_resumes_without_a_list() -> None:
    api = Api(pod("a", 1))
    async with following(api, watchers=50, settled=True) as s:
        lists, watches = len(api.list_requests), len(api.watch_requests)
        await s.server.stop()
        await s.run_for(20)
        api.put(pod("b", 0))
        await s.server.serve_again()
        await s.until(lambda: all(f.mirror.names == ["a", "b"] for f in s.followers), 10)
        looks = api.list_requests[lists:]
        assert {each.query.get("limit") for each in looks} <= {"1"}
        assert len(looks) <= 50, "of those that could not connect"
        assert len(api.watch_requests) == watches + 50


@virtual
async def test_T56_where_history_is_gone_at_most_three_list_at_once() -> None:
    api = Api(pod("a", 1))
    async with following(api, watchers=50, settled=True) as s:
        await s.server.stop()
        api.put(pod("b", 0))
        api.expire()
        api.most_lists = 0
        api.list_takes_s = 0.3
        await s.server.serve_again()
        await s.until(lambda: all(f.mirror.names == ["a", "b"] for f in s.followers), 120)
        assert 1 <= api.most_lists <= 3


class TroubledForOne(Api):
    """Answers every watch of the first follower with `answer`, those of the others truly."""

    def __init__(self, answer: Answer, *objects: dict[str, Any]) -> None:
        super().__init__(*objects)
        self._answer = answer

    async def watch(self, request: Request, reply: Reply) -> None:
        if request.headers["user-agent"].endswith("pods-0"):
            await self._answer(request, reply)
        else:
            await super().watch(request, reply)


@pytest.mark.parametrize(
    "answer",
    [
        status(403, "Forbidden"),
        status(404, "NotFound"),
        says(EXPIRED, 410),
        status(422, "Invalid", "bad selector"),
        status(429, "TooManyRequests", "storage is (re)initializing"),
    ],
)
@virtual
async def test_T57_the_trouble_of_one_resource_is_no_trouble_of_the_others(answer: Answer) -> None:
    api = TroubledForOne(answer, pod("a", 1))
    async with following(api, watchers=3) as s:
        await s.until(lambda: all(f.status.state == "watching" for f in s.followers[1:]))
        await s.run_for(120)
        api.put(pod("b", 0))
        await s.until(lambda: all(f.mirror.names == ["a", "b"] for f in s.followers[1:]), 0.3)
        assert s.admission.breaker.generation == 0
        assert all(not f.mirror.troubles for f in s.followers[1:])


class CutShort(Api):
    """Behind a proxy that ends what was silent for 35 s. Source: `timeout server` in kubeadm's
    guide to high availability."""

    async def watch(self, request: Request, reply: Reply) -> None:
        try:
            async with asyncio.timeout(35):
                await super().watch(request, reply)
        except TimeoutError:
            await reply.reset()


def all_hold(followers: Sequence[Follower], count: int) -> bool:
    """Each has `count` objects."""
    return all(len(follower.mirror.names) == count for follower in followers)


@virtual
async def test_watches_that_a_proxy_cuts_one_by_one_are_back_in_seconds_each_and_hold_up_nobody() -> (
    None
):
    api = CutShort(pod("a", 1))
    async with following(api, watchers=40, settled=True) as s:
        lists = len(api.list_requests)
        for number in range(1, 31):
            await s.run_for(20)
            api.put(pod(f"b{number}", 0))
            await s.until(partial(all_hold, s.followers, 1 + number), 3)
        assert len(api.list_requests) == lists
        assert s.admission.breaker.failures_in_row <= 1
        assert len(api.watch_requests) <= 40 * (690 / 35 + 2)


async def hang(request: Request, reply: Reply) -> None:
    await reply.gone()
    await reply.fin()


async def half_a_page(request: Request, reply: Reply) -> None:
    await reply.start(200)
    await reply.chunk(b'{"kind":"PodList","metadata":{"resourceVersion":"5"},"items":[')
    await reply.gone()
    await reply.fin()


def sleeping(api: Api) -> None:
    api.always = status(403, "Forbidden")


def connecting(api: Api) -> None:
    api.always = hang


def listing(api: Api) -> None:
    api.always = half_a_page


def gated(api: Api) -> None:
    api.always = text(503, "service unavailable", {"Retry-After": "200"})


def reading(api: Api) -> None:
    api.always = None


@pytest.mark.parametrize(
    "situation", [sleeping, connecting, listing, gated, reading], ids=lambda f: f.__name__
)
def test_T58_a_stop_ends_the_task_at_once_and_closes_its_sockets(
    situation: Callable[[Api], None],
) -> None:
    async def scene() -> None:
        api = Api(pod("a", 1))
        situation(api)
        async with following(api) as s:
            await s.run_for(5)
            await stop(s)
            assert s.status.state == "stopped"
            assert not s.admission.starting
            assert s.count("watch_active") == 0
            # an idle connection stays in the pool until the client closes
            await s.until(lambda: s.server.open_connections <= 1, 1)

    async def stop(s: Scene) -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        s.followers[0].task.cancel()
        async with asyncio.timeout(1):
            await asyncio.wait([s.followers[0].task])
        assert loop.time() - began_s < 1

    virtualtime.run(scene())


@virtual
async def test_a_stream_that_stops_as_the_prober_leaves_the_probe_to_another() -> None:
    api = Api(pod("a", 1))
    api.always = BROKEN
    async with following(api, watchers=2) as s:
        await s.until(lambda: s.admission.breaker.generation >= 1)
        api.always = hang
        await s.until(lambda: s.admission.breaker.open_until_s == math.inf)
        prober = next(
            f
            for f in s.followers
            if isinstance(f.watcher.state, ListingPages) and f.status.state != "backoff"
        )
        api.always = None
        prober.task.cancel()
        other = next(f for f in s.followers if f is not prober)
        await s.until(lambda: other.mirror.synced)
