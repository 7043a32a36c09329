"""What all tests of the simulation need: no log lines."""

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def quiet(no_cover: None) -> Iterator[None]:
    """What relays log of many faults is of no use to anybody."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
