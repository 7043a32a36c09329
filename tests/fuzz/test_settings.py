"""Settings of topics and brokers by seed: each that takes records away is named, and none that was
accepted before is refused."""

import pytest

from tests.fuzz.settings import play

SEEDS = range(1000)


def test_each_setting_that_takes_records_away_is_named_and_none_is_newly_refused() -> None:
    assert [each for seed in SEEDS for each in play(seed)] == []


@pytest.mark.parametrize(
    "setting",
    [
        "cleanup.policy",
        "retention.ms",
        "retention.bytes",
        "min.compaction.lag.ms",
        "delete.retention.ms",
        "message.timestamp.before.max.ms",
        "message.timestamp.after.max.ms",
        "message.timestamp.difference.max.ms",
        "max.message.bytes",
        "segment.bytes",
        "min.insync.replicas",
        "unclean.leader.election.enable",
    ],
)
def test_a_setting_of_which_nothing_is_reported_is_found(setting: str) -> None:
    assert any(
        f"{setting} was not named" in each for seed in SEEDS for each in play(seed, without=setting)
    )
