"""PAGE=1, the daemon on embedded parts, Chromium: what a person sees at `/`, and sees change."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.browser import Browser, Page
from tests.support.daemon import Daemon
from tests.support.embedded import EmbeddedBroker, EmbeddedCluster
from tests.support.testbed import Testbed

STREAMS = ("configmaps", "namespaces", "pods")


@pytest.fixture
def testbed(cluster: EmbeddedCluster, broker: EmbeddedBroker, tmp_path: Path) -> Testbed:
    testbed = Testbed(cluster, broker, tmp_path)
    for kind in ("control", "signal"):
        broker.create_topic(f"k8s.{testbed.name}.{kind}")
    for stream in STREAMS:
        broker.create_topic(testbed.topic(stream), partitions=3)
    return testbed


@pytest.fixture
def relay(testbed: Testbed) -> Iterator[Daemon]:
    with testbed.relay(*STREAMS) as relay:
        yield relay.await_ready()


def opened(browser: Browser, relay: Daemon) -> Page:
    page = browser.page(f"http://127.0.0.1:{relay.port}/")
    page.wait(
        "each stream has a row",
        f"document.querySelectorAll('#rows > [data-stream]').length === {len(STREAMS)}",
    )
    page.evaluate("window.sameDocument = true")
    return page


def cell(stream: str, name: str) -> str:
    return f"document.querySelector('#rows > [data-stream=\"{stream}\"] .{name}').innerText"


def well(page: Page) -> None:
    """No error, no refusal by policy, nothing asked of anybody else."""
    origin = page.evaluate("location.origin")
    assert [
        url for url in page.requests if not url.startswith((f"{origin}/", "data:", "about:"))
    ] == []
    assert page.evaluate("window.sameDocument") is True, "the page was loaded again"
    assert page.problems == []


def test_rows_appear_and_objects_are_counted_live(
    browser: Browser, testbed: Testbed, relay: Daemon
) -> None:
    page = opened(browser, relay)
    page.wait(
        "the sentence says all is well",
        "document.getElementById('verdict').innerText === 'All 3 streams are live.'",
    )
    before = int(page.evaluate(cell("namespaces", "objects")))
    testbed.namespaces(3)
    page.wait(
        "three more are counted", f"{cell('namespaces', 'objects')}.trim() === '{before + 3}'"
    )
    page.wait("their pace is shown", f"parseFloat({cell('namespaces', 'rate')}) > 0")
    page.wait("their lag is shown", f"/ms|s/.test({cell('namespaces', 'lag')})")
    assert page.evaluate(cell("pods", "epoch")) == str(relay.stream("pods")["epoch"])
    assert page.evaluate("document.title") == f"watchrelay {testbed.name}"
    well(page)


def test_an_api_server_that_goes_and_comes_is_seen_live(
    browser: Browser, cluster: EmbeddedCluster, relay: Daemon
) -> None:
    page = opened(browser, relay)
    cluster.kill()
    page.wait(
        "a card names the cause", "document.querySelector('[data-cause=kubernetes] h3')?.innerText"
    )
    page.wait("a row backs off", f"{cell('pods', 'word')} === 'backoff'")
    page.wait("it says when it tries again", f"/again in|trying now/.test({cell('pods', 'error')})")
    page.wait("the title counts", "document.title.startsWith('(3) ')")
    page.click("#rows > [data-stream=pods] .name")
    page.wait(
        "its transitions are shown",
        "/backoff.*refused|backoff.*broke/s.test(document.querySelector('.transitions')?.innerText)",
    )
    cluster.restart()
    page.wait(
        "all are live again",
        "document.getElementById('verdict').innerText === 'All 3 streams are live.'",
    )
    page.wait("no card is left", "document.querySelectorAll('#cards > li').length === 0")
    page.wait(
        "its recovery is shown",
        "document.querySelector('.transitions').innerText.includes('recovered')",
    )
    well(page)


def test_a_kafka_that_goes_and_comes_is_seen_live(
    browser: Browser, testbed: Testbed, broker: EmbeddedBroker, relay: Daemon
) -> None:
    page = opened(browser, relay)
    broker.kafka.broker_down()
    testbed.namespaces(1)
    page.wait(
        "a card names the cause",
        "document.querySelector('[data-cause=kafka] h3')?.innerText",
        deadline_s=40.0,
    )
    page.wait(
        "the lag grows",
        f"parseFloat({cell('namespaces', 'lag')}) >= 5 && {cell('namespaces', 'lag')}.endsWith(' "
        "s')",
    )
    assert "WatchRelayKafkaSilent" in page.text()
    broker.kafka.broker_up()
    page.wait(
        "no card is left", "document.querySelectorAll('#cards > li').length === 0", deadline_s=60.0
    )
    well(page)


def test_what_only_a_person_can_mend_comes_first_and_says_what_to_do(
    browser: Browser, cluster: EmbeddedCluster, testbed: Testbed
) -> None:
    cluster.do(
        lambda: cluster.server.behaviour.forbidden.update({("list", "pods"), ("watch", "pods")})
    )
    with testbed.relay(*STREAMS) as relay:
        relay.wait("the admin server answers", lambda: relay.livez() == 200)
        page = opened(browser, relay)
        page.wait(
            "the right is missed",
            "document.querySelector('#cards > [data-cause=right] h3')?.innerText",
        )
        card = page.evaluate("document.querySelector('#cards > li').innerText")
        for words in ("needs you", "403", "watchrelay rbac", "WatchRelayForbidden", "Since"):
            assert words in card
        page.wait(
            "its row is first", "document.querySelector('#rows > tr').dataset.stream === 'pods'"
        )
        page.click("#cards .name")
        page.wait(
            "the card leads to the row",
            "document.activeElement.closest('tr')?.dataset.stream === 'pods'",
        )
        assert page.evaluate("document.activeElement.getAttribute('aria-expanded')") == "true"
        assert "open=pods" in page.evaluate("location.hash")
        well(page)


def test_the_page_follows_a_relay_that_is_started_again(
    browser: Browser, testbed: Testbed, relay: Daemon
) -> None:
    page = opened(browser, relay)
    page.wait("the line is live", "document.getElementById('line').innerText.includes('live')")
    relay.kill()
    page.wait(
        "the line is lost",
        "document.getElementById('line').innerText.includes('No word from the relay since')",
    )
    assert page.evaluate("document.title.startsWith('(lost) ')")
    epochs = {stream: page.evaluate(cell(stream, "epoch")) for stream in STREAMS}
    relay.start().await_ready()
    page.wait(
        "the line is live again", "document.getElementById('line').innerText.includes('live')"
    )
    page.wait("it shows the new epochs", f"{cell('pods', 'epoch')} !== '{epochs['pods']}'")
    testbed.namespaces(1)
    page.wait("news come", f"parseFloat({cell('namespaces', 'rate')}) > 0")
    assert page.evaluate("window.sameDocument") is True
    # That nobody answered was the point; anything else would be a fault of ours.
    assert [
        problem
        for problem in page.problems
        if "ERR_CONNECTION" not in problem and "ERR_INCOMPLETE" not in problem
    ] == []


def test_a_stream_that_leaves_the_config_leaves_the_page(
    browser: Browser, testbed: Testbed, relay: Daemon
) -> None:
    page = opened(browser, relay)
    text = relay.file.read_text()
    relay.file.write_text(text.replace("- resource: pods\n", ""))
    page.wait(
        "two rows are left", "document.querySelectorAll('#rows > [data-stream]').length === 2"
    )
    relay.file.write_text(text.replace("resources:", "resorces:"))
    page.wait(
        "the refusal is shown",
        "document.querySelector('[data-cause=reload]')?.innerText.includes('resorces')",
    )
    relay.file.write_text(text)
    page.wait(
        "all rows are back", "document.querySelectorAll('#rows > [data-stream]').length === 3"
    )
    page.wait("no card is left", "document.querySelectorAll('#cards > li').length === 0")
    well(page)


def test_a_hidden_page_costs_nothing_and_is_fresh_when_it_is_looked_at(
    browser: Browser, testbed: Testbed, relay: Daemon
) -> None:
    page = opened(browser, relay)
    show = (
        "Object.defineProperty(document, 'visibilityState', {{configurable: true, value: '{0}'}});"
    )
    page.evaluate(show.format("hidden") + "document.dispatchEvent(new Event('visibilitychange'))")
    page.wait("it says so", "document.title.startsWith('(paused) ')")
    before = int(page.evaluate(cell("namespaces", "objects")))
    testbed.namespaces(2)
    relay.wait(
        "the relay counted them", lambda: relay.stream("namespaces")["objects"] == before + 2
    )
    assert int(page.evaluate(cell("namespaces", "objects"))) == before
    page.evaluate(show.format("visible") + "document.dispatchEvent(new Event('visibilitychange'))")
    page.wait("it is fresh", f"{cell('namespaces', 'objects')}.trim() === '{before + 2}'")
    well(page)
