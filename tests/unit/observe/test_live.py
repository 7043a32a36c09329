import asyncio
import json
from contextlib import aclosing
from pathlib import Path
from typing import Any

from tests.support.admin_server import live
from tests.support.relays import virtual
from tests.support.troubles import trouble
from watchrelay import __version__
from watchrelay.core.trouble import Cause
from watchrelay.observe.advice import ADVICE, SOURCES
from watchrelay.observe.live import VIEWERS_MAX, LiveStatus
from watchrelay.observe.overview import About
from watchrelay.observe.status import Readiness, StatusRegistry

ROOT = Path(__file__).parents[3]


def pictured(statuses: StatusRegistry) -> LiveStatus:
    return LiveStatus(
        statuses, Readiness(statuses, started=True), About("test", "relay-1", "0.0.0", 1)
    )


def event(raw: bytes) -> tuple[str, Any]:
    kind, data = raw.decode().strip().split("\n")
    return kind.removeprefix("event: "), json.loads(data.removeprefix("data: "))


@virtual
async def test_a_viewer_is_sent_all_then_what_changed_then_what_left() -> None:
    statuses = StatusRegistry()
    for stream in ("pods", "nodes", "events"):
        live(statuses, stream)
    picture = pictured(statuses)
    async with aclosing(picture.events()) as events:
        assert (await anext(events)).startswith(b"retry: ")
        kind, whole = event(await anext(events))
        assert (kind, [row["stream"] for row in whole["rows"]]) == (
            "all",
            ["pods", "nodes", "events"],
        )
        assert whole["relay"]["headline"] == "All 3 streams are live."
        statuses.streams["nodes"].objects = 99
        kind, news = event(await anext(events))
        assert (kind, [(row["stream"], row["objects"]) for row in news["rows"]]) == (
            "news",
            [("nodes", 99)],
        )
        statuses.close("pods")
        kind, news = event(await anext(events))
        assert (news["order"], "rows" in news) == (["nodes", "events"], False)
        assert news["relay"]["headline"] == "All 2 streams are live."
        kind, news = event(await anext(events))
        assert list(news) == ["at", "number"], "a stream at rest was sent again"


@virtual
async def test_all_viewers_share_one_picture_and_one_text_of_it() -> None:
    statuses = StatusRegistry()
    live(statuses, "pods")
    picture = pictured(statuses)
    async with aclosing(picture.events()) as one, aclosing(picture.events()) as other:
        for viewer in (one, other):
            await anext(viewer)
        first, second = await anext(one), await anext(other)
        assert first == second
        statuses.streams["pods"].objects = 5
        async with asyncio.TaskGroup() as group:
            both = [group.create_task(anext(viewer), name="viewer") for viewer in (one, other)]
        assert both[0].result() is both[1].result(), "the news were written twice"
        assert picture.viewers == 2
    assert picture.viewers == 0


@virtual
async def test_a_viewer_that_missed_a_picture_is_given_the_whole_again() -> None:
    statuses = StatusRegistry()
    live(statuses, "pods")
    picture = pictured(statuses)
    async with aclosing(picture.events()) as slow, aclosing(picture.events()) as quick:
        for viewer in (slow, quick):
            await anext(viewer)
            await anext(viewer)
        for _ in range(3):
            assert event(await anext(quick))[0] == "news"
        assert event(await anext(slow))[0] == "all"


@virtual
async def test_nothing_is_held_when_nobody_looks() -> None:
    statuses = StatusRegistry()
    live(statuses, "pods")
    picture = pictured(statuses)
    async with aclosing(picture.events()) as events:
        await anext(events)
        await anext(events)
        live(statuses, "nodes")
        assert len(json.loads(picture.whole())["rows"]) == 1, "the picture that the viewer has"
    assert len(json.loads(picture.whole())["rows"]) == 2
    live(statuses, "jobs")
    assert len(json.loads(picture.whole())["rows"]) == 3
    assert [
        task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()
    ] == []


@virtual
async def test_viewers_are_bounded_and_end_when_the_window_closes() -> None:
    picture = pictured(StatusRegistry())
    viewers = [picture.events() for _ in range(VIEWERS_MAX)]
    for viewer in viewers:
        assert not picture.full
        await anext(viewer)
    assert picture.full
    await anext(viewers[0])
    picture.end()
    assert [sent async for sent in viewers[0]] == []
    for viewer in viewers:
        await viewer.aclose()
    assert picture.viewers == 0


def test_a_stream_is_served_with_its_transitions_and_an_unknown_one_is_not() -> None:
    statuses = StatusRegistry()
    live(statuses, "pods").failed("watch", trouble("refused"))
    answer = json.loads(pictured(statuses).transitions("pods") or b"")
    assert [each["message"] for each in answer["transitions"]] == ["refused"]
    assert answer["stream"] == "pods"
    assert pictured(statuses).transitions("nodes") is None


def test_a_card_links_to_its_runbook_by_version_or_where_the_config_says() -> None:
    statuses = StatusRegistry()
    live(statuses, "pods").failed("watch", trouble("403", Cause.MISSING_RIGHT, operator=True))
    statuses.problems.put("signal", trouble("refused", Cause.SIGNAL_TOPIC))
    for base, address in (
        ("", f"https://github.com/watchrelay/watchrelay/blob/v{__version__}/"),
        ("https://git.example.com/", "https://git.example.com/"),
    ):
        about = About("test", "relay-1", "0.0.0", 1, base)
        picture = LiveStatus(statuses, Readiness(statuses, started=True), about)
        urls = [card["runbookUrl"] for card in json.loads(picture.whole())["cards"]]
        assert urls == [f"{address}docs/runbooks/WatchRelayForbidden.md", ""]
        assert f"runbook: {urls[0]}\n" in picture.text()


def test_every_runbook_that_a_card_links_to_is_there() -> None:
    runbooks = {path.stem for path in (ROOT / "docs" / "runbooks").glob("*.md")}
    assert {advice.runbook for advice in ADVICE.values()} - {""} <= runbooks
    chart = (ROOT / "helm" / "watchrelay" / "Chart.yaml").read_text()
    assert f"\nhome: {SOURCES.partition('/blob/')[0]} " in chart, "alerts and cards link alike"
