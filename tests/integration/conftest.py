"""Room: integration tests.  In: REAL=1.  Out: one real control plane and one broker of each version per test run.

Without REAL=1 the tests that ask for them are skipped; with it, real parts that are missing fail the tests.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

import pytest

from tests.support import realparts
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
