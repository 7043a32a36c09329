"""Log lines: one object a line for machines, no traceback for operators."""

import io
import json
import logging
from collections.abc import Iterator

import pytest

from watchrelay.observe import logs


@pytest.fixture(autouse=True)
def root_handlers_as_before() -> Iterator[None]:
    """`configure` puts its own handler in the place of the root's, the one thing of loggers that
    tests/conftest.py does not put back."""
    handlers = logging.root.handlers[:]
    yield
    logging.root.handlers[:] = handlers


def test_a_json_line_carries_phrase_level_time_and_data() -> None:
    out = io.StringIO()
    logs.configure("json", "info", stream=out)
    logging.getLogger("watchrelay.watch").info(
        "watch ended", extra={"stream": "pods", "lived_s": 12.5}
    )
    line = json.loads(out.getvalue())
    assert line["message"] == "watch ended"
    assert line["level"] == "info"
    assert (line["stream"], line["lived_s"]) == ("pods", 12.5)
    assert line["time"].endswith("Z")


def test_an_error_is_one_line_without_traceback_unless_debug_is_asked_for() -> None:
    out = io.StringIO()
    logs.configure("json", "info", stream=out)
    try:
        raise ValueError("boom")
    except ValueError:
        logging.getLogger("x").exception("it failed")
    line = json.loads(out.getvalue())
    assert line["error"] == "ValueError: boom"
    assert "traceback" not in line
    out.truncate(0)
    logs.set_level("debug")
    try:
        raise ValueError("boom")
    except ValueError:
        logging.getLogger("x").exception("it failed")
    assert "Traceback" in out.getvalue()


@pytest.mark.parametrize("form", ["json", "console"])
def test_an_error_of_our_own_that_nobody_expected_is_logged_with_its_traceback_at_every_level(
    form: logs.LogFormat,
) -> None:
    out = io.StringIO()
    logs.configure(form, "error", stream=out)
    try:
        raise ValueError("x" * 1_000_000)
    except ValueError:
        logging.getLogger("watchrelay.daemon.stream_runner").exception(
            "stream restarts after an unexpected error"
        )
    assert "Traceback" in out.getvalue()
    assert "test_logs.py" in out.getvalue()
    assert len(out.getvalue()) < 20_000, "what is in the input does not fill the log"


def test_data_cannot_forge_a_console_line() -> None:
    out = io.StringIO()
    logs.configure("console", "info", stream=out)
    logging.getLogger("x").info("named", extra={"object": "a\nERROR all is lost"})
    assert out.getvalue().count("\n") == 1


def test_auto_is_json_where_no_terminal_reads() -> None:
    out = io.StringIO()
    logs.configure("auto", "info", stream=out)
    logging.getLogger("x").info("hello")
    assert json.loads(out.getvalue())["message"] == "hello"


@pytest.mark.parametrize(
    "library",
    [
        "aiokafka.conn",
        "botocore.auth",
        "botocore.parsers",
        "urllib3.connectionpool",
        "aiohttp.client",
    ],
)
def test_libraries_say_nothing_below_a_warning_even_where_debug_is_asked_for(library: str) -> None:
    """botocore's lines hold what it signs and the keys that it was given."""
    out = io.StringIO()
    logs.configure("json", "debug", stream=out)
    logging.getLogger(library).info("SecretAccessKey: hunter2")
    assert out.getvalue() == ""
    logging.getLogger(library).warning("worth a look")
    assert "worth a look" in out.getvalue()
