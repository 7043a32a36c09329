"""Hundreds of examples each: their verdicts, without coverage, as in `tests/simulation`.

The tracer makes them two and a half times as dear, and their time limits would be those of the
tracer.
"""

import pytest


@pytest.fixture(autouse=True)
def untraced(no_cover: None) -> None:
    """Coverage rests while an example is played."""
