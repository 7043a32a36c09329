"""From a seed: a topic with settings that somebody else chose, what Kafka does to its records by
them, and whether the relay has named the setting beforehand.

`python -m tests.fuzz.settings --seeds N`; `--seed S` plays one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random

from tests.fuzz.seeds import Played, main
from watchrelay.core.errors import TopicRefused
from watchrelay.kafka.topic_config import Finding, TopicSpec, findings, judge
from watchrelay.kafka.topic_settings import FoundTopic

HOUR_MS, DAY_MS = 3_600_000, 86_400_000
BROKERS = {
    "cleanup.policy": "delete",
    "retention.ms": str(7 * DAY_MS),
    "retention.bytes": "-1",
    "min.compaction.lag.ms": "0",
    "max.compaction.lag.ms": str((1 << 63) - 1),
    "delete.retention.ms": str(DAY_MS),
    "message.timestamp.type": "CreateTime",
    "message.timestamp.before.max.ms": str((1 << 63) - 1),
    "message.timestamp.after.max.ms": str(HOUR_MS),
    "max.message.bytes": "1048588",
    "segment.bytes": "1073741824",
    "compression.type": "producer",
    "min.insync.replicas": "1",
    "unclean.leader.election.enable": "false",
}
"""The defaults of Kafka 4.1."""
TIMES = ["-1", "0", "1", "60000", "299999", str(HOUR_MS), str(3 * HOUR_MS), str(DAY_MS)]
SIZES = ["-1", "0", "1000", "100000", "1048576", "1000000000"]
HOSTILE: dict[str, list[str]] = {
    "cleanup.policy": ["delete", "compact", "compact,delete", "delete,compact", ""],
    **dict.fromkeys(("retention.ms", "local.retention.ms"), TIMES),
    **dict.fromkeys(("retention.bytes", "local.retention.bytes"), SIZES),
    **dict.fromkeys(
        (
            "min.compaction.lag.ms",
            "max.compaction.lag.ms",
            "delete.retention.ms",
            "message.timestamp.before.max.ms",
            "message.timestamp.after.max.ms",
            "message.timestamp.difference.max.ms",
        ),
        TIMES[1:],
    ),
    "message.timestamp.type": ["CreateTime", "LogAppendTime"],
    "max.message.bytes": SIZES[1:],
    "segment.bytes": SIZES[1:],
    "compression.type": ["producer", "uncompressed", "gzip", "lz4", "zstd", "snappy"],
    "min.insync.replicas": ["1", "2", "3", "4"],
    "unclean.leader.election.enable": ["true", "false"],
    "remote.storage.enable": ["true", "false"],
}


@dataclass(frozen=True, slots=True)
class Case:
    """A topic as a relay finds it, and the clock of that relay."""

    spec: TopicSpec
    found: FoundTopic
    skew_ms: int

    def value(self, setting: str) -> int:
        """A number of the topic; one without a bound is far away."""
        value = int((self.found.configs or {}).get(setting, "-1"))
        return value if value >= 0 else 1 << 62

    @property
    def policy(self) -> str:
        return (self.found.configs or {})["cleanup.policy"]


def case_of(seed: int) -> Case:
    """The case of a seed: defaults of brokers, what a former or this release created, overrides."""
    random = Random(seed)
    interval_s = random.choice([0.0, 60.0, 3600.0, 86400.0])
    spec = TopicSpec(name="t", snapshot_interval_s=interval_s, keeps_all=interval_s == 0)
    created = spec.configs()
    if random.random() < 0.5:
        created = {name: value for name, value in created.items() if random.random() < 0.6}
    broker, topic = (
        {name: random.choice(HOSTILE[name]) for name in random.sample(sorted(HOSTILE), count)}
        for count in (random.randrange(6), random.randrange(3))
    )
    found = FoundTopic(1, random.choice([1, 3, 3]), {**BROKERS, **broker, **created, **topic})
    return Case(spec, found, random.choice([0, 1000, -1000, 250_000, -250_000]))


def removed(case: Case) -> Iterator[tuple[str, str]]:
    """What Kafka does that no consumer can notice: the setting by which it does, and the harm.

    The topic has 100 objects of 5 KB that never change, snapshots take half of their interval, and
    the cleaner works at once."""
    interval_ms = case.spec.interval_ms
    oldest_ms = int(1.5 * interval_ms) if interval_ms else 1000 * DAY_MS
    if "delete" in case.policy:
        if case.value("retention.ms") < oldest_ms:
            setting = "retention.ms" if interval_ms else "cleanup.policy"
            yield setting, "an object that does not change is removed by its age"
        if case.value("retention.bytes") < 100 * 5000:
            yield "retention.bytes", "an object that does not change is removed by size"
    if "compact" in case.policy and interval_ms:
        # a stale record is healed before the next end; a slow reader has an interval for a snapshot
        if case.value("min.compaction.lag.ms") < oldest_ms:
            yield "min.compaction.lag.ms", "a true record is compacted in favour of a stale one"
        if case.value("delete.retention.ms") < oldest_ms:
            yield "delete.retention.ms", "a reader within a snapshot misses a delete"


def refused(case: Case) -> Iterator[tuple[str, str]]:
    """The setting by which Kafka accepts no record, or loses one that it has acknowledged."""
    configs = case.found.configs or {}
    if configs["message.timestamp.type"] == "CreateTime":
        for setting, bad in (
            ("message.timestamp.before.max.ms", case.skew_ms < 0),
            ("message.timestamp.after.max.ms", case.skew_ms > 0),
            ("message.timestamp.difference.max.ms", True),
        ):
            if bad and abs(case.skew_ms) > case.value(setting):
                yield setting, "a record of a clock within 5 minutes is refused"
    for setting in ("max.message.bytes", "segment.bytes"):
        if case.value(setting) < 900_000:
            yield setting, "an object of 0.9 MB cannot be published whole"
    if case.value("min.insync.replicas") > case.found.replicas:
        yield "min.insync.replicas", "nothing can be written"
    if configs["unclean.leader.election.enable"] == "true":
        yield "unclean.leader.election.enable", "acknowledged records can be lost"
    if case.found.replicas > 1 and case.value("min.insync.replicas") < 2:
        yield "min.insync.replicas", "an acknowledged record is on one broker"


def refused_before(case: Case) -> bool:
    """Whether the release before this table refused the topic."""
    configs, least_ms = case.found.configs, 2 * case.spec.interval_ms
    periods = (("compact", "min.compaction.lag.ms"), ("compact", "delete.retention.ms"))
    short = any(
        cleanup in case.policy and 0 <= int(configs[setting]) < least_ms
        for cleanup, setting in (*periods, ("delete", "retention.ms"))
    )
    return short or case.value("min.insync.replicas") > case.found.replicas


def play(seed: int, *, without: str = "") -> list[str]:
    """What is wrong with the judgement of a seed's topic; [] for nothing. Args: `without`: a
    setting that is not reported."""
    case, wrong = case_of(seed), list[str]()
    faults, doubts = findings(case.spec, case.found)
    named = {each.setting for each in (*faults, *doubts)} - {without}
    for setting, harm in (*removed(case), *refused(case)):
        if setting not in named:
            wrong.append(f"{harm}, and {setting} was not named")
    try:
        judge(case.spec, case.found, servers="b:1")
        is_refused = False
    except TopicRefused:
        is_refused = True
    if is_refused != refused_before(case):
        wrong.append(f"refused: {is_refused}, by the release before: {refused_before(case)}")
    cured = dict(case.found.configs or {})
    for each in (*faults, *doubts):
        cured |= dict(each.cure)
    left = _curable(findings(case.spec, replace(case.found, configs=cured)))
    wrong += [f"after the cures: {each.text}" for each in left]
    if int(cured["min.compaction.lag.ms"]) > int(cured["max.compaction.lag.ms"]):
        wrong += ["Kafka refuses the cures: the least lag is above the greatest"] * bool(
            {"min.compaction.lag.ms", "max.compaction.lag.ms"} & named
        )
    return [f"seed {seed}: {each}; {case.found.configs}" for each in wrong]


def _curable(found: tuple[tuple[Finding, ...], tuple[Finding, ...]]) -> list[Finding]:
    return [each for kind in found for each in kind if each.cure]


def played(seed: int, plant: bool = False) -> Played:
    """One seed for the command line; with `plant` one setting is not reported."""
    return Played(seed, play(seed, without="retention.bytes" if plant else ""))


if __name__ == "__main__":
    raise SystemExit(main("settings", played, quick=True))
