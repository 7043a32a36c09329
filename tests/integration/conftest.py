"""REAL=1, PAGE=1: one real control plane, one broker of each version and one browser per test run;
embedded parts per test.

Without REAL=1, or PAGE=1, the tests that ask for real parts, or the browser, are skipped; with it,
parts that are missing fail the tests.
"""

import functools
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from tests.support import realparts
from tests.support.browser import Browser, page_wanted, program
from tests.support.embedded import EmbeddedBroker, EmbeddedCluster
from tests.support.kafkabroker import versions
from tests.support.pod_topics import LogAppender, PodTopics
from tests.support.realparts import ControlPlane, KafkaBroker
from tests.support.testbed import Testbed
from watchrelay.demo.kafka import EmbeddedKafka

if TYPE_CHECKING:
    from tests.support.kafkabroker import Version


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Without LONG=1, tests that take long on the clock are skipped."""
    if os.environ.get("LONG", "") != "1":
        skip = pytest.mark.skip(reason="LONG=1 is not set: takes long; `make long` sets it")
        for item in items:
            if item.get_closest_marker("long"):
                item.add_marker(skip)


@pytest.fixture(scope="session")
def real_parts() -> None:
    """Skips or fails a test that asks for real parts that cannot be had; tests that start their own ask
    for this."""
    if not realparts.wanted():
        pytest.skip("REAL=1 is not set: needs the real parts that `make real` builds")
    if obstacle := realparts.unavailable():
        pytest.fail(obstacle, pytrace=False)


@pytest.fixture(scope="session")
def real_cluster(real_parts: None) -> Iterator[ControlPlane]:
    """A running control plane with controllers, shared by all: keep to a namespace of your own,
    leave it serving."""
    with ControlPlane(controller_manager=True) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def kafka_brokers(real_parts: None) -> Iterator[Callable[[str], KafkaBroker]]:
    """The plain broker of a version, started when it is first asked for and kept to the end: pytest
    would end a fixture at each change of its parameter, twice in each file, and a start costs some
    3 s of processor.
    """
    with ExitStack() as running:

        @functools.cache
        def broker(version: str) -> KafkaBroker:
            return running.enter_context(KafkaBroker(cast("Version", version)))

        yield broker


@pytest.fixture(scope="session", params=versions("4.1"))
def kafka_broker(
    kafka_brokers: Callable[[str], KafkaBroker], request: pytest.FixtureRequest
) -> KafkaBroker:
    """A running plain broker, shared by all: keep to topics of your own, leave it serving. Tests
    that are worth their time on both versions in each run are marked with `on_both`."""
    return kafka_brokers(request.param)


@pytest.fixture(scope="session")
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
