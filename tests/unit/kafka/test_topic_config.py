"""Topics as brokers describe them: which are refused or warned about, and the commands that cure
it."""

from dataclasses import replace

import pytest

from watchrelay.core.errors import TopicRefused
from watchrelay.kafka.topic_config import (
    FoundTopic,
    TopicSpec,
    alter_command,
    create_command,
    judge,
    merged,
)

HOUR = TopicSpec(name="k8s.prod.core.pods", partitions=6, snapshot_interval_s=3600)
GOOD = {
    "cleanup.policy": "compact,delete",
    "min.compaction.lag.ms": "7200000",
    "delete.retention.ms": "7200000",
    "retention.ms": "7200000",
    "min.insync.replicas": "2",
    "max.message.bytes": "4194304",
    "unclean.leader.election.enable": "false",
}


def verdict(
    spec: TopicSpec = HOUR,
    *,
    partitions: int = 6,
    replicas: int = 3,
    other: tuple[str, str] | None = None,
    **configs: str,
) -> tuple[str, ...]:
    changed = {name.replace("_", "."): value for name, value in configs.items()} | dict(
        [other] if other else []
    )
    return judge(
        spec, FoundTopic(partitions, replicas, {**GOOD, **changed}), servers="kafka-0:9092"
    )


def test_a_new_topic_is_made_so_that_it_is_found_good() -> None:
    for interval_s in (0.0, 5.0, 3600.0, 86400.0, 2_000_000.0):
        spec = replace(HOUR, snapshot_interval_s=interval_s)
        assert judge(spec, FoundTopic(6, 3, spec.configs()), servers="b:1") == ()


def test_a_good_topic_has_no_warnings() -> None:
    assert verdict() == ()


@pytest.mark.parametrize(
    "setting", ["min.compaction.lag.ms", "delete.retention.ms", "retention.ms"]
)
def test_a_period_under_twice_the_interval_is_refused_with_setting_value_and_command(
    setting: str,
) -> None:
    with pytest.raises(TopicRefused) as caught:
        verdict(other=(setting, "7199999"))
    message = str(caught.value)
    assert f"{setting} is 7199999" in message
    assert "at least 7200000, twice the snapshot interval of 3600 s" in message
    mend = (
        f"--alter --entity-type topics --entity-name {HOUR.name} --add-config "
        f"{setting}={HOUR.configs()[setting]}"
    )
    assert message.endswith(f"kafka-configs.sh --bootstrap-server kafka-0:9092 {mend}")


def test_a_period_counts_only_where_its_cleanup_is_on() -> None:
    assert (
        verdict(cleanup_policy="delete", min_compaction_lag_ms="0", delete_retention_ms="0") == ()
    )
    assert verdict(cleanup_policy="compact", retention_ms="1") == ()


def test_unlimited_retention_is_long_enough() -> None:
    assert verdict(retention_ms="-1") == ()


def test_without_snapshots_by_time_no_period_is_asked_for() -> None:
    assert (
        verdict(replace(HOUR, snapshot_interval_s=0.0), min_compaction_lag_ms="0", retention_ms="1")
        == ()
    )


def test_more_in_sync_replicas_than_replicas_are_refused() -> None:
    with pytest.raises(
        TopicRefused,
        match=r"min.insync.replicas is 3, over its replication factor of 2.*--add-config "
        r"min.insync.replicas=1",
    ):
        verdict(replicas=2, min_insync_replicas="3")


def test_fewer_partitions_than_pinned_are_refused_and_more_are_warned_of() -> None:
    with pytest.raises(
        TopicRefused, match=r"has 4 partitions.*pinned to 6.*kafka-topics.sh .* --partitions 6"
    ):
        verdict(partitions=4)
    assert verdict(partitions=8) == (
        "topic k8s.prod.core.pods has 8 partitions, the pinned 6 are used",
    )


def test_all_faults_are_named_at_once_and_mended_by_one_command() -> None:
    with pytest.raises(TopicRefused) as caught:
        verdict(retention_ms="1", min_compaction_lag_ms="0")
    command = str(caught.value).partition("mend it with: ")[2]
    assert command.count("kafka-configs.sh") == 1
    assert "min.compaction.lag.ms=14400000,retention.ms=612000000" in command


def test_doubtful_settings_are_warned_of_with_the_command_that_mends_them() -> None:
    unclean, small = verdict(unclean_leader_election_enable="true", max_message_bytes="1048575")
    assert "unclean.leader.election.enable is true" in unclean
    assert unclean.endswith("--add-config unclean.leader.election.enable=false")
    assert "max.message.bytes is 1048575" in small
    assert verdict(max_message_bytes="1048576") == ()


def test_configs_that_could_not_be_read_are_not_judged() -> None:
    assert judge(HOUR, FoundTopic(6, 1, None), servers="b:1") == ()


def test_a_control_topic_that_is_not_compacted_is_warned_of() -> None:
    control = TopicSpec(name="k8s.prod.control", kind="control")
    configs = {"cleanup.policy": "delete", "min.insync.replicas": "1"}
    assert "cleanup.policy is delete" in judge(control, FoundTopic(1, 3, configs), servers="b:1")[0]
    assert (
        judge(control, FoundTopic(1, 3, {**configs, "cleanup.policy": "compact"}), servers="b:1")
        == ()
    )


@pytest.mark.parametrize(("retention_ms", "warnings"), [("604800000", 1), ("-1", 0)])
def test_a_control_topic_that_is_compacted_and_forgets_by_age_is_warned_of(
    retention_ms: str, warnings: int
) -> None:
    control = TopicSpec(name="k8s.prod.control", kind="control")
    configs = {"cleanup.policy": "compact,delete", "retention.ms": retention_ms}
    assert len(judge(control, FoundTopic(1, 3, configs), servers="b:1")) == warnings


def test_the_slowest_stream_of_a_topic_counts() -> None:
    slow = replace(HOUR, snapshot_interval_s=86400)
    assert merged([HOUR, slow]) == merged([slow, HOUR]) == slow


def test_objects_of_a_stream_without_snapshots_by_time_are_not_removed_by_their_age() -> None:
    never = replace(HOUR, snapshot_interval_s=0.0, keeps_all=True)
    for spec in (never, merged([HOUR, never])):
        assert spec.configs()["cleanup.policy"] == "compact"
        assert verdict(spec, retention_ms="-1") == ()
        (warning,) = verdict(spec)
        assert warning.endswith("--add-config cleanup.policy=compact")
    assert merged([HOUR, never]).snapshot_interval_s == HOUR.snapshot_interval_s


def test_streams_of_one_topic_want_the_same_partitions() -> None:
    with pytest.raises(TopicRefused, match="6 and 3 partitions"):
        merged([HOUR, replace(HOUR, partitions=3)])


def test_commands_can_be_pasted() -> None:
    assert alter_command("t", {"cleanup.policy": "compact,delete"}, servers="b:1").endswith(
        "--add-config cleanup.policy=[compact,delete]"
    )
    assert "--partitions 6 --replication-factor 3 --config min.insync.replicas=2" in create_command(
        HOUR, servers="b:1"
    )
