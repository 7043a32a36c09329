"""Room: tests.  In: whatever the test before left of the logging module.  Out: loggers that pass everything on, as at the start."""

import logging

import pytest


@pytest.fixture(autouse=True)
def loggers_as_at_the_start() -> None:
    """No test silences the next: files run side by side in any order."""
    logging.disable(logging.NOTSET)
    for name, logger in logging.root.manager.loggerDict.items():
        if name.split(".")[0] in {"watchrelay", "aiokafka"} and isinstance(logger, logging.Logger):
            logger.disabled, logger.propagate = False, True
            logger.setLevel(logging.NOTSET)
