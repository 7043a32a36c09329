"""Text of others on one line of ours."""

from __future__ import annotations

import io
import json
import logging

import pytest

from tests.support.daemon import command
from watchrelay.core.text import counted, printable, short
from watchrelay.observe.logs import ConsoleFormatter, JsonFormatter

HOSTILE = [
    "a\nb",
    "\x1b[2J",
    "\x9b31m",
    "a\u2028b",
    "\u202etxt.exe",
    "\ud800",
    "\x00",
    "\x7f",
    "\x85",
    "\U000e0001",
    "\r\nERROR all is lost",
]


def test_one_is_singular() -> None:
    assert [counted(number, "partition") for number in (0, 1, 2)] == [
        "0 partitions",
        "1 partition",
        "2 partitions",
    ]
    assert [counted(number, "entry", "entries") for number in (0, 1, 2)] == [
        "0 entries",
        "1 entry",
        "2 entries",
    ]


def test_what_is_printable_stays() -> None:
    for text in ("", "pods@shop", "Größe 東京 😀", '"quoted" \\ back'):
        assert printable(text) == text


@pytest.mark.parametrize("text", HOSTILE)
def test_the_rest_is_escaped_and_can_be_read_back(text: str) -> None:
    assert printable(text).isprintable()
    assert json.loads(f'"{printable(text)}"') == text


def test_a_long_text_is_cut() -> None:
    assert len(short("x" * 10_000)) == 300
    assert short("abc") == "abc"


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("formatter", [JsonFormatter(), ConsoleFormatter(colour=False)])
def test_a_log_line_stays_one_line_that_any_terminal_can_show(
    text: str, formatter: logging.Formatter
) -> None:
    record = logging.makeLogRecord(
        {
            "msg": f"of a library: {text}",
            "levelname": "INFO",
            "object": text,
            "error": ValueError(text),
        }
    )
    line = formatter.format(record)
    assert line.isprintable()
    io.TextIOWrapper(io.BytesIO(), encoding="utf-8").write(line)
    if isinstance(formatter, JsonFormatter):
        assert json.loads(line)["object"] == text


def test_a_complaint_of_the_program_is_printable_whatever_it_quotes() -> None:
    done = command("validate", "-c", "no\x1b[2Jsuch\u202efile")
    assert done.code == 78
    assert all(line.isprintable() for line in done.stderr.splitlines())
