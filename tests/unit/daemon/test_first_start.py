"""What a relay logs of a stream that starts for the first time, or again after it was retired:
nothing that sounds like trouble."""

from __future__ import annotations

import logging

import pytest

from tests.unit.daemon.conftest import World, running, until
from watchrelay.admin.retire import retire_stream

UNCHECKED = "its configuration could not be checked: the brokers do not offer it"
"""What the embedded broker cannot do."""


def troubles(records: list[logging.LogRecord]) -> list[str]:
    return [
        record.getMessage()
        for record in records
        if record.levelno >= logging.WARNING
        and UNCHECKED not in str(getattr(record, "warning", ""))
    ]


async def test_a_stream_that_starts_first_comes_back_or_was_retired_logs_no_warning(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "watchrelay")
    world.make_topic("core.pods")
    world.make_topic("core.configmaps")
    world.cluster.open_shop()
    both, one = world.settings("pods", "configmaps"), world.settings("pods")
    async with running(both) as relay:
        await relay.ready()
        await until(
            "both are whole",
            lambda: relay.row("pods").complete and relay.row("configmaps").complete,
        )
        relay.daemon.adopt(one)
        await until("the stream has left", lambda: relay.row("configmaps") is None)
        relay.daemon.adopt(both)
        await until(
            "it is back", lambda: relay.row("configmaps") and relay.row("configmaps").complete
        )
        relay.daemon.adopt(one)
        await until("it has left again", lambda: relay.row("configmaps") is None)
        relay.daemon.stop()
        assert await relay.ended() == 0
    assert troubles(caplog.records) == []
    assert (await retire_stream(one, "configmaps")).deletes == 6
    caplog.clear()
    async with running(both) as relay:
        await until("it starts over", lambda: relay.row("configmaps").complete)
    assert troubles(caplog.records) == []
    assert "stream was retired before and starts again" in caplog.messages
    reasons = [
        str(getattr(record, "reason", ""))
        for record in caplog.records
        if record.message == "log read back"
    ]
    assert len(reasons) == 2
    assert not [reason for reason in reasons if "recreated" in reason]
