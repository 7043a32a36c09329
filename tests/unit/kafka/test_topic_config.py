"""Topics as brokers describe them: which are refused or warned about, and the commands that cure
it."""

from collections.abc import Iterable
from dataclasses import replace

import pytest

from watchrelay.core.errors import TopicRefused
from watchrelay.kafka.topic_config import (
    Finding,
    TopicSpec,
    alter_command,
    create_command,
    findings,
    judge,
    merged,
    troubles,
    without_refused,
)
from watchrelay.kafka.topic_settings import SETTINGS, FoundTopic, TopicKind

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
    found = FoundTopic(partitions, replicas, {**GOOD, **changed})
    return shown(judge(spec, found, servers="kafka-0:9092"))


def shown(found: Iterable[Finding]) -> tuple[str, ...]:
    return tuple(each.message for each in troubles(found, servers="kafka-0:9092").values())


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
        match=r"min.insync.replicas is 3: its replication factor is 2.*--add-config "
        r"min.insync.replicas=1",
    ):
        verdict(replicas=2, min_insync_replicas="3")


def test_fewer_partitions_than_pinned_are_refused_and_more_are_warned_of() -> None:
    with pytest.raises(
        TopicRefused, match=r"has 4 partitions.*pinned to 6.*kafka-topics.sh .* --partitions 6"
    ):
        verdict(partitions=4)
    assert verdict(partitions=8) == (
        "topic k8s.prod.core.pods: it has 8 partitions, the pinned 6 are used",
    )


def test_more_partitions_of_a_signal_topic_are_all_read_and_not_warned_of() -> None:
    assert judge(SIGNAL, FoundTopic(3, 3, {}), servers="b:1") == ()
    (more,) = judge(CONTROL, FoundTopic(3, 3, {}), servers="b:1")
    assert more.text == "it has 3 partitions, the pinned 1 is used"


def test_all_faults_are_named_at_once_and_mended_by_one_command() -> None:
    with pytest.raises(TopicRefused) as caught:
        verdict(retention_ms="1", min_compaction_lag_ms="0")
    command = str(caught.value).partition("mend it with: ")[2]
    assert command.count("kafka-configs.sh") == 1
    assert "retention.ms=612000000,min.compaction.lag.ms=14400000" in command


def test_doubtful_settings_are_warned_of_with_the_command_that_mends_them() -> None:
    small, unclean = verdict(unclean_leader_election_enable="true", max_message_bytes="1048575")
    assert "unclean.leader.election.enable is true" in unclean
    assert unclean.endswith("--add-config unclean.leader.election.enable=false")
    assert "max.message.bytes is 1048575" in small
    assert verdict(max_message_bytes="1048576") == ()


def test_configs_that_could_not_be_read_are_not_judged() -> None:
    assert judge(HOUR, FoundTopic(6, 3, {}), servers="b:1") == ()
    odd = {each.name: "a lot" for each in SETTINGS}
    odd |= {"cleanup.policy": "compact,delete", "compression.type": "producer"}
    assert judge(HOUR, FoundTopic(6, 3, odd), servers="b:1") == ()


CONTROL = TopicSpec(name="k8s.prod.control", kind="control")
SIGNAL = TopicSpec(name="k8s.prod.signal", kind="signal")


def test_a_control_topic_that_is_not_compacted_is_warned_of() -> None:
    configs = {"cleanup.policy": "delete", "min.insync.replicas": "2"}
    (finding,) = judge(CONTROL, FoundTopic(1, 3, configs), servers="b:1")
    assert finding.text.startswith("cleanup.policy is delete: what describes the streams")
    compacted = FoundTopic(1, 3, {**configs, "cleanup.policy": "compact"})
    assert judge(CONTROL, compacted, servers="b:1") == ()


HOSTILE: list[tuple[TopicSpec, dict[str, str], str, dict[str, str]]] = [
    (HOUR, {"retention.bytes": "1000"}, "retention.bytes", {"retention.bytes": "-1"}),
    (HOUR, {"retention.bytes": "0"}, "retention.bytes", {"retention.bytes": "-1"}),
    (
        CONTROL,
        {"cleanup.policy": "compact,delete", "retention.ms": "-1", "retention.bytes": "99"},
        "retention.bytes",
        {"retention.bytes": "-1"},
    ),
    (SIGNAL, {"retention.bytes": "1000"}, "retention.bytes", {"retention.bytes": "-1"}),
    (SIGNAL, {"retention.ms": "60000"}, "retention.ms", {"retention.ms": "86400000"}),
    (SIGNAL, {"cleanup.policy": "compact,delete"}, "cleanup.policy", {"cleanup.policy": "delete"}),
    (HOUR, {"max.compaction.lag.ms": "7199999"}, "max.compaction.lag.ms", {"max.compaction.lag.ms": "14400000"}),
    (
        HOUR,
        {"max.compaction.lag.ms": "60000", "min.compaction.lag.ms": "86400000"},
        "max.compaction.lag.ms",
        {"max.compaction.lag.ms": "86400000"},
    ),
    *(
        (
            HOUR,
            {"remote.storage.enable": "true", "cleanup.policy": "delete", setting: value},
            setting,
            {"local.retention.ms": "-2", "local.retention.bytes": "-2"},
        )
        for setting, value in [("local.retention.ms", "1000"), ("local.retention.bytes", "1000")]
    ),
    *(
        (spec, {setting: "1000"}, setting, {"message.timestamp.type": "LogAppendTime"})
        for spec in (HOUR, CONTROL, SIGNAL)
        for setting in (
            "message.timestamp.before.max.ms",
            "message.timestamp.after.max.ms",
            "message.timestamp.difference.max.ms",
        )
    ),
    (HOUR, {"compression.type": "gzip"}, "compression.type", {"compression.type": "producer"}),
    *(
        (spec, {"max.message.bytes": "1000"}, "max.message.bytes", {"max.message.bytes": cure})
        for spec, cure in [(HOUR, "4194304"), (CONTROL, "1048576"), (SIGNAL, "1048576")]
    ),
    *((spec, {"segment.bytes": "16384"}, "segment.bytes", {"segment.bytes": "1073741824"}) for spec in (HOUR, CONTROL, SIGNAL)),
    (CONTROL, {"min.insync.replicas": "1"}, "min.insync.replicas", {"min.insync.replicas": "2"}),
    (
        SIGNAL,
        {"unclean.leader.election.enable": "true"},
        "unclean.leader.election.enable",
        {"unclean.leader.election.enable": "false"},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "configs", "setting", "cure"), HOSTILE)
def test_a_hostile_setting_is_warned_of_by_name_and_its_cure_ends_the_warning(
    spec: TopicSpec, configs: dict[str, str], setting: str, cure: dict[str, str]
) -> None:
    found = {**GOOD, **spec.configs(), "message.timestamp.type": "CreateTime", **configs}
    (finding,) = judge(spec, FoundTopic(spec.partitions, 3, found), servers="b:1")
    assert (finding.setting, finding.value) == (setting, found[setting])
    assert dict(finding.cure) == cure
    assert judge(spec, FoundTopic(spec.partitions, 3, {**found, **cure}), servers="b:1") == ()


@pytest.mark.parametrize("setting", ["local.retention.ms", "local.retention.bytes"])
def test_local_retention_counts_only_on_a_tiered_topic(setting: str) -> None:
    assert verdict(other=(setting, "1000")) == ()


def test_bounds_of_timestamps_count_only_where_clients_set_them() -> None:
    bounds = {"message.timestamp.after.max.ms": "1", "message.timestamp.type": "LogAppendTime"}
    assert judge(HOUR, FoundTopic(6, 3, {**GOOD, **bounds}), servers="b:1") == ()
    # the defaults of Kafka 4
    defaults = {"message.timestamp.after.max.ms": "3600000", "message.timestamp.type": "CreateTime"}
    assert judge(HOUR, FoundTopic(6, 3, {**GOOD, **defaults}), servers="b:1") == ()


def test_one_replica_is_warned_of_where_the_config_asks_for_more() -> None:
    (warning,) = verdict(replicas=1, min_insync_replicas="1")
    assert "replication.factor is 1: records are lost with their broker" in warning
    assert verdict(replace(HOUR, replication_factor=1), replicas=1, min_insync_replicas="1") == ()


def test_a_cause_is_one_line_over_all_topics_with_one_command() -> None:
    specs = [replace(HOUR, name=f"t{number}") for number in range(7)]
    found = [
        each
        for number, spec in enumerate(specs)
        for each in findings(
            spec, FoundTopic(6, 3, {**GOOD, "retention.bytes": str(1000 * (1 + number % 2))})
        )[1]
    ]
    (line,) = shown(found)
    assert line.startswith(
        "topics t0, t1, t2, t3, t4 and 2 other topics: retention.bytes is 1000, 2000: objects that "
        "do not change are removed"
    )
    assert line.endswith(
        "mend it with: for topic in t0 t1 t2 t3 t4 t5 t6; do kafka-configs.sh --bootstrap-server "
        'kafka-0:9092 --alter --entity-type topics --entity-name "$topic" --add-config '
        "retention.bytes=-1; done"
    )


def test_a_command_is_all_that_follows_also_where_it_does_not_name_every_topic() -> None:
    found = [
        Finding(f"t{number}", "why", "retention.ms", "1", (("retention.ms", "2"),))
        for number in range(51)
    ]
    (line,) = shown(found)
    text, command = line.split(" with: ")
    assert text.endswith("; mend the first 50, and then the others,")
    assert command.startswith("for topic in t0 ")
    assert command.endswith(" --add-config retention.ms=2; done")


def test_troubles_of_one_setting_have_names_of_their_own() -> None:
    found = [Finding("a", "why", "retention.ms", "1"), Finding("b", "other", "retention.ms", "1")]
    assert list(troubles(found, servers="b:1")) == ["retention.ms", "retention.ms 2"]


@pytest.mark.parametrize("kind", ["state", "control", "signal"])
def test_new_topics_keep_records_by_no_default_of_the_brokers(kind: TopicKind) -> None:
    configs = replace(HOUR, kind=kind).configs()
    assert configs["retention.bytes"] == "-1"
    assert configs["message.timestamp.type"] == "LogAppendTime"
    assert "max.compaction.lag.ms" not in configs


def test_a_setting_that_brokers_refuse_to_create_with_is_left_out() -> None:
    configs = HOUR.configs()
    fewer = without_refused(configs, "Unknown topic config name: message.timestamp.type.")
    assert fewer == {k: v for k, v in configs.items() if k != "message.timestamp.type"}
    fewer = without_refused(configs, "Invalid value -1 for retention.bytes")
    assert fewer == {k: v for k, v in configs.items() if k != "retention.bytes"}
    # no other whose name contains it
    fewer = without_refused(configs, "delete.retention.ms cannot be set")
    assert fewer == {k: v for k, v in configs.items() if k != "delete.retention.ms"}


def test_where_brokers_name_no_setting_one_more_try_has_the_required_ones_alone() -> None:
    fewer = without_refused(HOUR.configs(), "topics must be named team-*")
    assert fewer is not None
    assert sorted(fewer) == [
        "cleanup.policy",
        "delete.retention.ms",
        "min.compaction.lag.ms",
        "min.insync.replicas",
        "retention.ms",
    ]
    assert without_refused(fewer, "topics must be named team-*") is None


def test_an_inherited_greatest_lag_below_the_least_is_raised() -> None:
    configs = HOUR.configs()
    why = "conflict: min.compaction.lag.ms (14400000) > max.compaction.lag.ms (60000)"
    assert without_refused(configs, why) == {**configs, "max.compaction.lag.ms": "14400000"}


@pytest.mark.parametrize("policy", ["max.compaction.lag.ms may not be set", "not allowed"])
def test_a_greatest_lag_that_may_neither_be_raised_nor_left_ends_without_the_least(
    policy: str,
) -> None:
    configs: dict[str, str] | None = HOUR.configs()
    tries = 0
    while configs and (both := {*configs} & {"min.compaction.lag.ms", "max.compaction.lag.ms"}):
        why = policy if len(both) == 2 else "min.compaction.lag.ms > max.compaction.lag.ms"
        configs, tries = without_refused(configs, why), tries + 1
        assert tries < 2 * len(HOUR.configs())
    assert configs is not None
    assert tries


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
    assert (
        "--partitions 6 --replication-factor 3 --config cleanup.policy=compact,delete"
        in create_command(HOUR, servers="b:1")
    )
