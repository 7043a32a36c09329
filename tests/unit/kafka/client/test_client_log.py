"""What becomes of the client's own log."""

import logging

import pytest

from watchrelay.kafka.client.client_log import hide, quiet_client_log, without_secrets


def test_the_debug_log_has_its_lines_shortened_and_without_secrets_and_no_other_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, logger="watchrelay")
    hide("hunter22")
    for _ in range(2):
        quiet_client_log()
    log = logging.getLogger("aiokafka.client")
    log.error("trouble\n  with hunter22")
    log.warning("x" * 10_000)
    log.info("nothing new")
    lines = [(each.levelno, vars(each)["line"]) for each in caplog.records]
    assert lines == [(logging.DEBUG, "trouble with <redacted>"), (logging.DEBUG, "x" * 300)]


def test_what_may_occur_by_chance_is_not_hidden_and_the_newest_secrets_are() -> None:
    hide("abc")
    for number in range(1000):
        hide(f"token-{number}")
    line = without_secrets("abc, token-999 and token-940")
    assert line == "abc, <redacted> and <redacted>"
