"""CHART=1: the chart's tools, or the reason why there is nothing to run."""

import pytest

from tests.support import charttools


@pytest.fixture(scope="session")
def tools() -> None:
    """Skips or fails a test that asks for programs that cannot be had."""
    if not charttools.wanted():
        pytest.skip(
            "CHART=1 is not set: needs the programs that `make chart-tools` gets; `make chart` "
            "sets it"
        )
    if obstacle := charttools.unavailable():
        pytest.fail(obstacle, pytrace=False)
