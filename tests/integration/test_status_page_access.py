"""PAGE=1, boards filled by hand, Chromium, axe-core: a page for every eye, hand and screen."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.admin_server import RunningAdminServer, live, shared
from tests.support.browser import Browser, Page
from tests.support.troubles import trouble
from watchrelay.core import clock
from watchrelay.core.trouble import Cause
from watchrelay.observe.status import QueuedNow, StatusRegistry

_TOOLS = Path(__file__).resolve().parents[2] / "tools" / "pagetools.sh"
HOSTILE = (
    "<img src=x onerror=\"document.title='owned'\">",
    "</noscript><script>document.title='owned'</script>",
    '"><svg onload=alert(1)>',
    "javascript:alert(1)",
    "pods\u202eevil\u2028line",
    "`${alert(1)}`",
)


@pytest.fixture(scope="session")
def axe() -> str:
    """axe-core's text, got once by npm."""
    path = Path(
        subprocess.run(
            [_TOOLS, "--path"], check=True, capture_output=True, text=True
        ).stdout.strip()
    )
    if not path.exists():
        if shutil.which("npm") is None:
            pytest.skip(
                "axe-core is not in the cache, and there is no npm to get it with: "
                "tools/pagetools.sh"
            )
        done = subprocess.run([_TOOLS], check=False, capture_output=True, text=True, timeout=100)
        if done.returncode:
            pytest.skip(f"axe-core cannot be got: {done.stderr.strip()[-300:]}")
    return path.read_text()


@pytest.fixture
def window() -> Iterator[RunningAdminServer]:
    with RunningAdminServer() as window:
        yield window


def all_is_well(statuses: StatusRegistry) -> None:
    for stream in ("pods", "configmaps", "deployments.apps"):
        live(statuses, stream).event_rate.count(clock.wall_ms() - 15_000, 120)


def everything_is_wrong(statuses: StatusRegistry) -> None:
    """Each state, each level, each kind of card."""
    all_is_well(statuses)
    forbidden = live(statuses, "secrets")
    forbidden.progress.state = "waiting"
    forbidden.failed(
        "watch",
        trouble(
            "watch secrets at 10.0.0.1:6443: 403 secrets is forbidden",
            Cause.MISSING_RIGHT,
            operator=True,
        ),
        next_attempt_ms=clock.wall_ms() + 40_000,
    )
    away = live(statuses, "nodes")
    away.progress.state = "backoff"
    away.failed(
        "watch",
        trouble("watch nodes at 10.0.0.1:6443: connection refused", Cause.KUBERNETES),
        next_attempt_ms=clock.wall_ms() + 12_000,
    )
    live(statuses, "events").failed(
        "records", trouble("no acknowledgement from kafka at kafka-0:9092 for 12 s")
    )
    live(statuses, "jobs.batch").queues = QueuedNow(40_000, 9_000_000, 812, clock.wall_ms())
    statuses.open("services").progress.state = "listing"
    live(statuses, "ingresses").progress.state = "standby"
    live(statuses, "leases").progress.state = "stopped"
    statuses.problems.put(
        "reload",
        trouble(
            "edited config refused, keeping the previous one: watchrelay.yaml:4: resorces",
            Cause.CONFIG_REFUSED,
        ),
    )
    statuses.problems.put(
        "restart", trouble("a restart is needed for what was edited in kafka", Cause.RESTART_NEEDED)
    )


def streams_are_shared(statuses: StatusRegistry) -> None:
    live(statuses, "pods")
    shared(statuses)


def two_hundred(statuses: StatusRegistry) -> None:
    everything_is_wrong(statuses)
    for number in range(190):
        status = live(statuses, f"pods@team-{number:03}")
        status.event_rate.count(clock.wall_ms() - 12_000, number)
        if number % 3 == 0:
            status.progress.state = "backoff"
            status.failed(
                "watch",
                trouble(
                    f"watch pods@team-{number:03} at 10.0.0.1:6443: connection refused",
                    Cause.KUBERNETES,
                ),
                next_attempt_ms=clock.wall_ms() + 9_000,
            )


def opened(
    browser: Browser, window: RunningAdminServer, *, width: int = 1280, dark: bool = False
) -> Page:
    page = browser.page(window.url, width=width, dark=dark)
    rows = len(window.statuses.streams)
    page.wait(
        "each stream has a row",
        f"document.querySelectorAll('#rows > [data-stream]').length === {rows}",
    )
    return page


def complaints(page: Page, axe: str) -> list[str]:
    page.evaluate(axe + "; true")
    found = page.evaluate(
        "axe.run(document, {resultTypes: ['violations']}).then((all) => "
        "JSON.stringify(all.violations))"
    )
    return [
        f"{rule['id']}: {rule['help']}: {[node['html'][:160] for node in rule['nodes'][:3]]}"
        for rule in json.loads(found)
    ]


@pytest.mark.parametrize(
    ("fill", "width", "dark"),
    [
        (all_is_well, 1280, False),
        (all_is_well, 400, True),
        (everything_is_wrong, 1280, False),
        (everything_is_wrong, 1280, True),
        (everything_is_wrong, 400, False),
        (everything_is_wrong, 400, True),
        (two_hundred, 1280, False),
        (streams_are_shared, 1280, False),
        (streams_are_shared, 400, True),
    ],
)
def test_axe_finds_nothing(
    browser: Browser,
    window: RunningAdminServer,
    axe: str,
    fill: Callable[[StatusRegistry], None],
    width: int,
    dark: bool,
) -> None:
    window.do(lambda: fill(window.statuses))
    page = opened(browser, window, width=width, dark=dark)
    if fill is not two_hundred:  # what a few rows show is not looked for in 200 twice
        assert complaints(page, axe) == []
    page.evaluate("document.querySelector('#rows .name').click()")
    page.wait("the details are there", "document.querySelectorAll('.transitions li').length > 0")
    assert complaints(page, axe) == []
    if shots := os.environ.get("PAGE_SHOTS"):
        page.screenshot(
            Path(shots) / f"{fill.__name__}-{width}-{'dark' if dark else 'light'}.png",
            whole=fill is not two_hundred,
        )
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (
        "it must be scrolled sideways"
    )
    assert page.problems == []


def test_names_and_messages_are_text_whatever_they_hold(
    browser: Browser, window: RunningAdminServer
) -> None:
    def fill() -> None:
        for text in HOSTILE:
            status = live(window.statuses, text, topic=text)
            status.owner = status.frontier = status.last_snapshot = text
            status.failed("watch", trouble(f"{text} 403 forbidden"))
        window.statuses.problems.put("reload", trouble(HOSTILE[0], Cause.CONFIG_REFUSED))
        window.statuses.problems.put("some<b>thing", trouble(HOSTILE[1]))

    window.do(fill)
    page = opened(browser, window)
    for number in range(len(HOSTILE)):
        page.evaluate(f"document.querySelectorAll('#rows > [data-stream] .name')[{number}].click()")
    page.wait(
        "all are open", f"document.querySelectorAll('.transitions li').length >= {len(HOSTILE)}"
    )
    assert page.evaluate("document.title").endswith("watchrelay test")
    assert (
        page.evaluate(
            "document.querySelectorAll('main img, main script, main svg:not(.spark), "
            "iframe').length"
        )
        == 0
    )
    shown = page.evaluate(
        "[...document.querySelectorAll('#rows > [data-stream]')].map((row) => row.dataset.stream)"
    )
    assert sorted(shown) == sorted(HOSTILE)
    address = page.evaluate("location.href")
    assert [
        url for url in page.requests if not url.startswith((window.url, "data:", "about:"))
    ] == []
    page.go("about:blank")
    page.go(address)
    page.wait(
        "the address opens the same rows",
        f"document.querySelectorAll('.transitions').length === {len(HOSTILE)}",
    )
    assert page.problems == []


def test_replicas_and_owners_are_shown_where_streams_are_shared_and_only_there(
    browser: Browser, window: RunningAdminServer
) -> None:
    window.do(lambda: live(window.statuses, "pods"))
    page = opened(browser, window)
    columns = "[...document.querySelectorAll('th.owner, td.owner, #replicas')]"
    visible = f"{columns}.filter((each) => each.checkVisibility()).map((each) => each.innerText)"
    assert page.evaluate(visible) == []
    window.do(lambda: shared(window.statuses, other=HOSTILE[0]))
    page.wait("they are shown", f"{visible}.length === 4")
    shown = page.evaluate(visible)
    assert "relay-1\n1 stream, leader, this one, config aaaa" in shown[0]
    assert f"{HOSTILE[0]}\n1 stream, does not reach the API server, leaving" in shown[0]
    assert sorted(shown[1:]) == sorted(["Owner", "relay-1", HOSTILE[0]])
    assert page.problems == []


def test_without_scripts_the_page_says_the_same_once(
    browser: Browser, window: RunningAdminServer
) -> None:
    window.do(lambda: [live(window.statuses, text) for text in (*HOSTILE, "pods")])
    window.do(lambda: window.statuses.streams["pods"].failed("watch", trouble(HOSTILE[0])))
    page = browser.page(window.url, scripts=False)
    document = page.send("DOM.getDocument", depth=-1)
    text = json.dumps(document)
    assert "STREAM" in text
    assert "onerror" in text, "the message is not shown"
    found = page.send(
        "DOM.querySelectorAll",
        nodeId=document["root"]["nodeId"],
        selector="main img, main script, main svg, body > script",
    )
    assert found["nodeIds"] == []
    assert page.problems == []


def test_where_no_event_comes_through_the_page_asks(
    browser: Browser, window: RunningAdminServer
) -> None:
    """A proxy that buffers: the line of events is open, and silent."""
    window.do(lambda: live(window.statuses, "pods"))
    page = browser.page()
    silent = "EventSource = class { readyState = 1; addEventListener() {} close() {} };"
    page.send("Page.addScriptToEvaluateOnNewDocument", source=silent)
    page.go(window.url)
    page.wait(
        "what the relay wrote into the page is shown",
        'document.querySelector("tr[data-stream=pods]") !== null',
    )
    window.do(lambda: live(window.statuses, "nodes"))
    page.wait("a later stream is shown", 'document.querySelector("tr[data-stream=nodes]") !== null')
    assert "fresh every 5 s" in page.evaluate("document.getElementById('line').textContent")
    assert page.evaluate("document.getElementById('text').hidden")
    assert page.problems == []


def test_pictures_are_ordered_by_their_numbers_not_by_the_relays_clock(
    browser: Browser, window: RunningAdminServer
) -> None:
    page = browser.page()
    by_hand = (
        "EventSource = class { readyState = 1; constructor() { window.events = {}; } "
        "addEventListener(name, take) { window.events[name] = take; } close() {} };"
    )
    page.send("Page.addScriptToEvaluateOnNewDocument", source=by_hand)
    page.go(window.url)
    page.wait("the page listens", "window.events?.news !== undefined")
    verdict = "document.getElementById('verdict').textContent"

    def send(event: str, change: str) -> None:
        page.evaluate(
            "fetch('api/overview').then((answer) => answer.json()).then((picture) => { "
            f"{change}; events.{event}({{ data: JSON.stringify(picture) }}); }})"
        )

    day = "picture.at -= 86400000; picture.number += 1000; "
    send("all", f"{day} picture.relay.headline = 'the clock was set back'")
    page.wait("an earlier time is taken", f"{verdict} === 'the clock was set back'")
    send("news", f"{day} picture.number += 1; picture.relay.headline = 'and goes on'")
    page.wait("so is what follows it", f"{verdict} === 'and goes on'")
    send("all", "picture.relay.headline = 'held back'")
    send("news", "picture.relay.headline = 'held back'")
    assert page.evaluate(verdict) == "and goes on"
    send(
        "all", "picture.number = 1; picture.relay.started += 1; picture.relay.headline = 'another'"
    )
    page.wait("the numbers of another process begin again", f"{verdict} === 'another'")
    assert page.problems == []


@pytest.mark.parametrize("before", ["topic refused; mend it with", "or let brokers give the time"])
def test_a_command_is_whole_and_has_a_button_that_copies_it(
    browser: Browser, window: RunningAdminServer, before: str
) -> None:
    command = (
        "kafka-configs.sh --alter --entity-name k8s.prod.core.pods --add-config " + "a=1," * 60
    )
    window.do(
        lambda: live(window.statuses, "pods").failed("watch", trouble(f"{before}: {command}"))
    )
    page = browser.page(window.url)
    page.wait("the card is shown", 'document.querySelector("#cards .command .copy") !== null')
    shown = "document.querySelector('#cards .command code')"
    assert page.evaluate(f"{shown}.textContent") == command
    assert page.evaluate(
        f"{shown}.scrollHeight <= {shown}.clientHeight + 1 || "
        f"getComputedStyle({shown}).overflowY === 'visible'"
    )
    page.evaluate("document.querySelector('#cards .command .copy').click()")
    page.wait(
        "it was copied, or selected",
        "['Copied', 'Selected'].includes(document.querySelector('#cards .copy').textContent)",
    )
    assert page.evaluate("getSelection().toString()") == command
    runbook = "document.querySelector('#cards .runbook a')"
    assert page.evaluate(f"{runbook}.textContent") == "WatchRelayWatchErrors"
    assert page.evaluate(f"{runbook}.href").endswith("/docs/runbooks/WatchRelayWatchErrors.md")


def test_it_is_used_by_the_keyboard_alone(browser: Browser, window: RunningAdminServer) -> None:
    window.do(lambda: two_hundred(window.statuses))
    page = opened(browser, window)
    page.press("Tab", code=9)
    assert page.evaluate("document.activeElement.className") == "skip"
    page.press("Enter", code=13, text="\r")
    page.wait("the focus is at the streams", "document.activeElement.id === 'streams'")
    page.press("Tab", code=9)
    assert page.evaluate("document.activeElement.id") == "find"
    page.type("team-003")
    page.wait("one row is left", "document.querySelectorAll('#rows > [data-stream]').length === 1")
    assert page.evaluate("document.getElementById('shown').innerText") == "1 of 200 shown"
    page.press("Tab", code=9)
    assert page.evaluate("document.activeElement.name") == "level"
    page.press("ArrowRight", code=39)
    assert page.evaluate("document.activeElement.value") == "wrong"
    page.wait("it is part of the address", "location.hash.includes('show=wrong')")
    for _ in range(20):
        page.press("Tab", code=9)
        if page.evaluate("document.activeElement.matches('#rows .name')"):
            break
    page.press("Enter", code=13, text="\r")
    page.wait("the row opens", "document.activeElement.getAttribute('aria-expanded') === 'true'")
    window.do(lambda: window.statuses.streams["pods@team-003"].recovered("watch"))
    window.do(lambda: setattr(window.statuses.streams["pods@team-003"], "objects", 77))
    page.evaluate("document.querySelector('[name=level][value=all]').click()")
    page.wait("news come in", "document.querySelector('#rows .objects').innerText.trim() === '77'")
    assert page.evaluate("document.activeElement.matches('#rows .name')"), (
        "news took the focus away"
    )
    assert page.problems == []


def test_rows_hold_still_while_somebody_is_among_them(
    browser: Browser, window: RunningAdminServer
) -> None:
    window.do(lambda: all_is_well(window.statuses))
    page = opened(browser, window)
    page.evaluate(
        "document.querySelector('#rows > [data-stream=\"deployments.apps\"] .name').focus()"
    )
    order = (
        "[...document.querySelectorAll('#rows > [data-stream]')].map((row) => "
        "row.dataset.stream).join()"
    )
    window.do(
        lambda: window.statuses.streams["deployments.apps"].failed(
            "watch", trouble("watch deployments at 10.0.0.1:6443: refused")
        )
    )
    page.wait(
        "the row says so",
        "document.querySelector('#rows > [data-stream=\"deployments.apps\"]').dataset.level === "
        "'retrying'",
    )
    assert page.evaluate(order) == "pods,configmaps,deployments.apps"
    page.evaluate("document.activeElement.blur()")
    page.wait("the worst comes first", f"{order} === 'deployments.apps,pods,configmaps'")
    page.evaluate("document.querySelector('#columns .stream button').click()")
    page.wait("sorted by name", f"{order} === 'configmaps,deployments.apps,pods'")
    assert (
        page.evaluate("document.querySelector('#columns .stream').getAttribute('aria-sort')")
        == "ascending"
    )
    assert page.problems == []
