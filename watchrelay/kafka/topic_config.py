"""What a topic must be configured like: the configs it is created with, why it is refused, and what
is wrong with one that is used all the same."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from watchrelay.core.errors import TopicRefused
from watchrelay.core.text import counted, listed
from watchrelay.core.trouble import Cause, Trouble
from watchrelay.kafka.topic_settings import MAX_LAG, MIN_LAG, SETTINGS, FoundTopic, TopicKind

RETENTION_MS_DEFAULT: Final = 604_800_000
"""Kafka's default of `retention.ms`, assumed of a topic whose configs cannot be read."""
_SHOWN: Final = 5
"""Topics, and values, that a line names."""
_IN_COMMAND: Final = 50
_REQUIRED: Final = {"cleanup.policy", *(each.name for each in SETTINGS if each.refuses)}
"""The settings of a new topic that are kept where brokers do not say which one they refuse."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSpec:
    """A topic as this process needs it.

    `snapshot_interval_s` is that of the slowest stream on it; 0: no snapshots by time.

    `keeps_all`: a stream on it has no snapshots by time, so an object that does not change must not
    be removed by its age.

    `pinned`: its streams were started with this number of partitions; else the config can still
    name another.
    """

    name: str
    kind: TopicKind = "state"
    partitions: int = 1
    replication_factor: int = 3
    min_insync_replicas: int = 2
    snapshot_interval_s: float = 0.0
    keeps_all: bool = False
    pinned: bool = True

    @property
    def interval_ms(self) -> int:
        """The snapshot interval in milliseconds."""
        return int(self.snapshot_interval_s * 1000)

    def configs(self) -> dict[str, str]:
        """What a new topic is created with. See docs/record-contract.md, section 2."""
        created = ((each.name, each.created_for(self)) for each in SETTINGS)
        return {name: value for name, value in created if value is not None}


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """What is wrong with a topic that is used all the same: why, and the configs that cure it.

    `setting` is "" for what takes no record away: it is logged, and shown nowhere else."""

    topic: str
    why: str
    setting: str = ""
    value: str = ""
    cure: tuple[tuple[str, str], ...] = ()

    @property
    def text(self) -> str:
        """The finding without the topic and the cure."""
        return f"{self.setting} is {self.value}: {self.why}" if self.setting else self.why


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """What the sink and the relay work with, once a topic is good.

    `partitions` is what the topic has, which may be more than the stream uses; `checked` is
    False when its configs could not be read; `topic_id` is empty on brokers without ids.
    `max_message_bytes` is what the setting `bounded_by` accepts, the least of all sizes. `keeps_ms`
    is as `kept_by_own_time`.
    """

    name: str
    partitions: int
    replication_factor: int
    max_message_bytes: int
    checked: bool
    created: bool
    findings: tuple[Finding, ...] = ()
    topic_id: bytes = b""
    keeps_ms: int = 0
    bounded_by: str = "max.message.bytes"


def merged(specs: Iterable[TopicSpec]) -> TopicSpec:
    """One spec for a topic that several streams share: the longest snapshot interval counts.

    Raises: TopicRefused when they want different numbers of partitions.
    """
    first, *others = specs
    for other in others:
        if other.partitions != first.partitions:
            counts = f"{first.partitions} and {other.partitions}"
            raise TopicRefused(
                f"topic {first.name} is wanted with {counts} partitions: give its streams the "
                "same `partitions`"
            )
        first = replace(
            first,
            snapshot_interval_s=max(first.snapshot_interval_s, other.snapshot_interval_s),
            keeps_all=first.keeps_all or other.keeps_all,
            pinned=first.pinned or other.pinned,
        )
    return first


def judge(spec: TopicSpec, found: FoundTopic, *, servers: str) -> tuple[Finding, ...]:
    """What is wrong with a topic that is good enough.

    Raises: TopicRefused naming every fault and the commands that mend them.
    See docs/record-contract.md, section 2, for what stale records and slow readers need.
    """
    faults, doubts = findings(spec, found)
    whys, commands = list[str](), list[str]()
    if found.partitions < spec.partitions:
        add = (
            f"kafka-topics.sh --bootstrap-server {servers} --alter --topic {spec.name} "
            f"--partitions {spec.partitions}"
        )
        has = f"it has {counted(found.partitions, 'partition')}"
        if spec.pinned:
            whys.append(f"{has}, the stream is pinned to {spec.partitions}")
            commands.append(add)
        else:
            whys.append(
                f"{has}, the config asks for {spec.partitions}: set `partitions: "
                f"{found.partitions}` in the config, or add partitions (`{add}`)"
            )
    if faults:
        whys += [fault.text for fault in faults]
        configs = {name: value for fault in faults for name, value in fault.cure}
        commands.append(alter_command(spec.name, configs, servers=servers))
    if whys:
        cure = " && ".join(commands)
        mend = f"; mend it with: {cure}" if cure else ""
        raise TopicRefused(f"topic {spec.name} is refused: {'; '.join(whys)}{mend}", cure=cure)
    return doubts


def findings(spec: TopicSpec, found: FoundTopic) -> tuple[tuple[Finding, ...], tuple[Finding, ...]]:
    """The settings for which a topic is refused before a stream starts on it, and what else is
    wrong with it."""
    faults, doubts = list[Finding](), [*_shape_findings(spec, found)]
    for row in SETTINGS:
        if why := row.wrong(spec, found):
            value, cure = found.configs[row.name], tuple(row.cured(spec, found).items())
            finding = Finding(spec.name, why, row.name, value, cure)
            (faults if spec.kind in row.refuses else doubts).append(finding)
    return tuple(faults), tuple(doubts)


def _shape_findings(spec: TopicSpec, found: FoundTopic) -> Iterable[Finding]:
    if found.partitions > spec.partitions and spec.kind != "signal":  # of which all are read
        used = f"{spec.partitions} {'is' if spec.partitions == 1 else 'are'} used"
        if spec.pinned or spec.kind != "state":
            why = f"it has {found.partitions} partitions, the pinned {used}"
        else:
            why = (
                f"it has {found.partitions} partitions, {used}: set "
                f"`partitions: {found.partitions}` in the config before the first start to use "
                "all of them"
            )
        yield Finding(spec.name, why)
    if found.replicas == 1 < spec.replication_factor:
        why = (
            "records are lost with their broker; add replicas with kafka-reassign-partitions.sh, "
            "or set kafka.replicationFactor to 1"
        )
        yield Finding(spec.name, why, "replication.factor", "1")


def troubles(found: Iterable[Finding], *, servers: str) -> dict[str, Trouble]:
    """One for each cause, over all topics that have it, with the command that cures it; by the
    setting, with a number from its second one on."""
    causes: dict[tuple[str, str, tuple[tuple[str, str], ...]], list[Finding]] = {}
    for each in found:
        causes.setdefault((each.setting, each.why, each.cure), []).append(each)
    by_setting = dict[str, Trouble]()
    for (setting, *_), same in causes.items():
        name, number = setting, 1
        while name in by_setting:
            name, number = f"{setting} {number + 1}", number + 1
        by_setting[name] = _trouble(same, servers)
    return by_setting


def _trouble(same: list[Finding], servers: str) -> Trouble:
    first, names = same[0], list(dict.fromkeys(each.topic for each in same))
    values = list(dict.fromkeys(each.value for each in same))
    shown = ", ".join(values[:_SHOWN]) + (" and others" if len(values) > _SHOWN else "")
    noun = "topic" if len(names) == 1 else "topics"
    subject = f"{noun} {listed(names, shown=_SHOWN, what='topic')}"
    text, cure = f"{subject}: {replace(first, value=shown).text}", ""
    if first.cure:
        one = len(names) == 1
        cure = alter_command(names[0] if one else '"$topic"', dict(first.cure), servers=servers)
        if not one:
            cure = f"for topic in {' '.join(names[:_IN_COMMAND])}; do {cure}; done"
        all_of = len(names) <= _IN_COMMAND
        mend = "it" if all_of else f"the first {_IN_COMMAND}, and then the others,"
        text += f"; mend {mend} with: {cure}"
    return Trouble(subject, Cause.TOPIC_SETTING, text, cure)


def without_refused(configs: Mapping[str, str], why: str) -> dict[str, str] | None:
    """The configs to try next where brokers refuse to create a topic with these; None: there are
    none.

    Those that the answer `why` names are left out; where it names none, all but the required ones:
    a policy may be about something else, the name or the partitions. An inherited
    max.compaction.lag.ms below min.compaction.lag.ms is raised to that.
    """
    named = set(re.findall(r"[a-z]+(?:\.[a-z]+)+", why))
    if MAX_LAG in named and MAX_LAG not in configs and MIN_LAG in configs:
        return {**configs, MAX_LAG: configs[MIN_LAG]}
    refused = named.intersection(configs) or {*configs} - _REQUIRED
    if MAX_LAG in refused:  # without it MIN_LAG would be refused again
        refused.add(MIN_LAG)
    rest = {name: value for name, value in configs.items() if name not in refused}
    return rest if len(rest) < len(configs) else None


def kept_by_own_time(topic: FoundTopic) -> int:
    """For how long a topic keeps a record after the time that its writer gave it, in milliseconds;
    0: always, or the brokers give the time. Configs that cannot be read are Kafka's defaults."""
    if not (topic.by_clients_clock and topic.forgets):
        return 0
    kept_ms = topic.number("retention.ms")
    return RETENTION_MS_DEFAULT if kept_ms is None else kept_ms


def alter_command(topic: str, configs: Mapping[str, str], *, servers: str) -> str:
    """The command that gives a topic these configs, ready to paste."""
    pairs = ",".join(
        f"{name}=[{value}]" if "," in value else f"{name}={value}"
        for name, value in configs.items()
    )
    return (
        f"kafka-configs.sh --bootstrap-server {servers} --alter --entity-type topics "
        f"--entity-name {topic} --add-config {pairs}"
    )


def create_command(spec: TopicSpec, *, servers: str) -> str:
    """The command that makes the topic as this process would."""
    configs = " ".join(f"--config {name}={value}" for name, value in spec.configs().items())
    return (
        f"kafka-topics.sh --bootstrap-server {servers} --create --topic {spec.name} "
        f"--partitions {spec.partitions} "
        f"--replication-factor {spec.replication_factor} {configs}"
    )
