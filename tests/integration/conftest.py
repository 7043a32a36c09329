"""Room: integration tests.  In: REAL=1, PAGE=1.  Out: one real control plane, one broker of each version, one browser per test run.

Without REAL=1, or PAGE=1, the tests that ask for them are skipped; with it, parts that are missing fail the tests.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

import pytest

from tests.support import realparts
from tests.support.browser import Browser, page_wanted, program
from tests.support.realparts import ControlPlane, KafkaBroker

if TYPE_CHECKING:
    from tests.support.kafkabroker import Version


@pytest.fixture(scope="session")
def real_parts() -> None:
    """Skips or fails whoever asks for real parts that cannot be had; tests that start their own ask for this."""
    if not realparts.wanted():
        pytest.skip("REAL=1 is not set: needs the real parts that `make real` builds")
    if obstacle := realparts.unavailable():
        pytest.fail(obstacle, pytrace=False)


@pytest.fixture(scope="session")
def real_cluster(real_parts: None) -> Iterator[ControlPlane]:
    """A running control plane with controllers, shared by all: keep to a namespace of your own, leave it serving."""
    with ControlPlane(controller_manager=True) as cluster:
        yield cluster


@pytest.fixture(scope="session", params=["3.9", "4.1"])
def kafka_broker(real_parts: None, request: pytest.FixtureRequest) -> Iterator[KafkaBroker]:
    """A running plain broker of each version, shared by all: keep to topics of your own, leave it serving."""
    with KafkaBroker(cast("Version", request.param)) as broker:
        yield broker


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """A headless Chromium, shared by all."""
    if not page_wanted():
        pytest.skip("PAGE=1 is not set: needs Chromium (the package chromium, or CHROMIUM); `make page` sets it")
    if program() is None:
        pytest.fail("the browser is wanted (PAGE=1) but not there: install the package chromium, or set CHROMIUM", pytrace=False)
    with Browser() as running:
        yield running


@pytest.fixture
def browser(chromium: Browser) -> Iterator[Browser]:
    """The browser, without pages; what a test opens is closed behind it."""
    yield chromium
    chromium.close_pages()
