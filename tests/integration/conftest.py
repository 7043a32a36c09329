"""REAL=1, PAGE=1: one real control plane, one broker and one browser per test run; embedded parts
per test.

Without REAL=1, or PAGE=1, the tests that ask for real parts, or the browser, are skipped; with it,
parts that are missing fail the tests.
"""

import functools
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support import realparts
from tests.support.browser import Browser, page_wanted, program
from tests.support.embedded import EmbeddedBroker, EmbeddedCluster
from tests.support.kafkabroker import versions
from tests.support.pod_topics import LogAppender, PodTopics
from tests.support.realparts import ControlPlane, KafkaBroker
from tests.support.testbed import Testbed
from watchrelay.demo.kafka import EmbeddedKafka

HERE = f"{Path(__file__).parent}/"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Without LONG=1, tests that take long on the clock are skipped. Files that ask for real parts
    come last in this folder: parts at rest take a twentieth of a processor in each worker."""
    if os.environ.get("LONG", "") != "1":
        skip = pytest.mark.skip(reason="LONG=1 is not set: takes long; `make long` sets it")
        for item in items:
            if item.get_closest_marker("long"):
                item.add_marker(skip)
    places = [at for at, item in enumerate(items) if str(item.path).startswith(HERE)]
    ours = [items[at] for at in places]
    real = {item.path for item in ours if item.get_closest_marker("real")}
    for at, item in zip(places, sorted(ours, key=lambda each: each.path in real), strict=True):
        items[at] = item


SHARED = versions("4.1")[0]
"""The version of the broker that all files share."""
_RUNNING = ExitStack()
"""The parts that all files share."""


@functools.cache
def _control_plane() -> ControlPlane:
    return _RUNNING.enter_context(ControlPlane(controller_manager=True))


@functools.cache
def _broker() -> KafkaBroker:
    return _RUNNING.enter_context(KafkaBroker(SHARED))


def _end_parts() -> None:
    _RUNNING.close()
    _control_plane.cache_clear()
    _broker.cache_clear()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> Iterator[None]:
    """The shared parts end with the last test of this folder. A folder without an `__init__.py` is
    no package of pytest's: its fixtures would live to the end of the run."""
    try:
        yield
    finally:
        if nextitem is None or not str(nextitem.path).startswith(HERE):
            _end_parts()


@pytest.fixture(scope="package")
def real_parts() -> Iterator[None]:
    """Skips or fails a test that asks for real parts that cannot be had; tests that start their own ask
    for this."""
    if not realparts.wanted():
        pytest.skip("REAL=1 is not set: needs the real parts that `make real` builds")
    if obstacle := realparts.unavailable():
        pytest.fail(obstacle, pytrace=False)
    yield
    _end_parts()


@pytest.fixture(scope="module")
def real_cluster(real_parts: None) -> ControlPlane:
    """A running control plane with controllers, shared by all: keep to a namespace of your own,
    leave it serving."""
    return _control_plane()


@pytest.fixture(scope="module", params=versions("4.1"))
def kafka_broker(real_parts: None, request: pytest.FixtureRequest) -> Iterator[KafkaBroker]:
    """A running plain broker, shared by all: keep to topics of your own, leave it serving. Tests
    that are worth their time on both versions in each run are marked with `on_both`; the other
    version runs for their file alone, as a broker at rest takes in 100 s what a start does.
    """
    if request.param == SHARED:
        yield _broker()
        return
    with KafkaBroker(request.param) as broker:
        yield broker


@pytest.fixture(scope="package")
def chromium() -> Iterator[Browser]:
    """A headless Chromium, shared by all."""
    if not page_wanted():
        pytest.skip(
            "PAGE=1 is not set: needs Chromium (the package chromium, or CHROMIUM); `make page` "
            "sets it"
        )
    if program() is None:
        pytest.fail(
            "the browser is wanted (PAGE=1) but not there: install the package chromium, or set "
            "CHROMIUM",
            pytrace=False,
        )
    with Browser() as running:
        yield running


@pytest.fixture
def browser(chromium: Browser) -> Iterator[Browser]:
    """The browser, without pages; what a test opens is closed behind it."""
    yield chromium
    chromium.close_pages()


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    """A synthetic API server of the test's own."""
    with EmbeddedCluster() as cluster:
        yield cluster


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    """A mock Kafka of the test's own; `Testbed.make_topics` makes what it makes not by itself."""
    with EmbeddedBroker() as broker:
        yield broker


@pytest.fixture
def testbed(real_cluster: ControlPlane, kafka_broker: KafkaBroker, tmp_path: Path) -> Testbed:
    """A testbed on real parts. Files whose tests stand on other parts have a fixture of this name
    that says on which."""
    return Testbed(real_cluster, kafka_broker, tmp_path)


@pytest.fixture(scope="module")
def kafka() -> Iterator[EmbeddedKafka]:
    """A mock Kafka for the tests of one file, each with topics of its own."""
    with EmbeddedKafka.start() as embedded:
        yield embedded


@pytest.fixture
async def pod_topics(kafka: EmbeddedKafka) -> AsyncIterator[PodTopics]:
    """Topics of the test's own, and who writes to them."""
    async with LogAppender(kafka.bootstrap) as appender:
        yield PodTopics(kafka, appender)
