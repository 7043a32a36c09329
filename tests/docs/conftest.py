"""CHART=1, REAL=1: the chart's tools and the real parts, or the reason why there is nothing to
run."""

import pytest

from tests.support import charttools, realparts


@pytest.fixture(scope="session")
def tools() -> None:
    """Skips or fails a test that asks for programs that cannot be had."""
    if not charttools.wanted():
        pytest.skip("CHART=1 is not set: needs the programs that `make chart-tools` gets")
    if obstacle := charttools.unavailable():
        pytest.fail(obstacle, pytrace=False)


@pytest.fixture(scope="session")
def real_parts() -> None:
    """Skips or fails a test that asks for real parts that cannot be had."""
    if not realparts.wanted():
        pytest.skip("REAL=1 is not set: needs the real parts that `make real` builds")
    if obstacle := realparts.unavailable() or charttools.unavailable():
        pytest.fail(obstacle, pytrace=False)
