"""Room: integration tests.  In: REAL=1.  Out: one real control plane and one broker of each version per test run; embedded parts per test.

Without REAL=1 the tests that ask for real parts are skipped; with it, real parts that are missing fail the tests.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from tests.support import realparts
from tests.support.embedded import EmbeddedBroker, EmbeddedCluster
from tests.support.realparts import ControlPlane, KafkaBroker
from tests.support.trial import Trial

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


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    """A synthetic API server of the test's own."""
    with EmbeddedCluster() as cluster:
        yield cluster


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    """A mock Kafka of the test's own; `Trial.make_topics` makes what it makes not by itself."""
    with EmbeddedBroker() as broker:
        yield broker


@pytest.fixture
def trial(real_cluster: ControlPlane, kafka_broker: KafkaBroker, tmp_path: Path) -> Trial:
    """A trial on real parts. Files whose tests stand on other parts have a fixture of this name that says on which."""
    return Trial(real_cluster, kafka_broker, tmp_path)
