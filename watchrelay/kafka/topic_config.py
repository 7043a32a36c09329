"""What a topic must be configured like: the configs it is created with, or why it is refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from watchrelay.core.errors import TopicRefused
from watchrelay.core.text import counted

TopicKind = Literal["state", "control", "signal"]

MESSAGE_BYTES = 4 * 1024 * 1024
"""See docs/record-contract.md, section 2."""
MESSAGE_BYTES_LEAST = 1024 * 1024

_HOUR_MS = 3_600_000
_WEEK_MS = 7 * 24 * _HOUR_MS
_OUTAGE_MS = _WEEK_MS
"""The longest absence of a consumer that a new topic allows for."""
_SLACK_MS = 2 * _HOUR_MS
"""A snapshot takes time itself; two hours above twice the interval are room for the largest."""


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
        common = {"min.insync.replicas": str(self.min_insync_replicas)}
        match self.kind:
            case "control":
                return common | {"cleanup.policy": "compact"}
            case "signal":
                return common | {"cleanup.policy": "delete"}
            case "state":
                twice_ms = 2 * self.interval_ms
                return common | {
                    "cleanup.policy": "compact" if self.keeps_all else "compact,delete",
                    "max.message.bytes": str(MESSAGE_BYTES),
                    "min.compaction.lag.ms": str(twice_ms + _SLACK_MS),
                    "delete.retention.ms": str(max(_WEEK_MS, twice_ms + _SLACK_MS)),
                    "retention.ms": str(twice_ms + _OUTAGE_MS),
                    "compression.type": "producer",
                }


@dataclass(frozen=True, slots=True)
class FoundTopic:
    """A topic as the brokers describe it.

    `replication_factor` is the least of its partitions'; `configs` is None if not readable.
    """

    partitions: int
    replication_factor: int
    configs: Mapping[str, str] | None


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """What the sink and the relay work with, once a topic is good.

    `partitions` is what the topic has, which may be more than the stream uses; `checked` is
    False when its configs could not be read; `warnings` are lines for the log, each naming the
    setting and its value; `topic_id` is empty on brokers without ids.
    """

    name: str
    partitions: int
    replication_factor: int
    max_message_bytes: int
    checked: bool
    created: bool
    warnings: tuple[str, ...]
    topic_id: bytes = b""


@dataclass(frozen=True, slots=True)
class _Fault:
    """A setting that is wrong: why, and the value that mends it."""

    setting: str
    why: str
    value: str


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


def judge(spec: TopicSpec, found: FoundTopic, *, servers: str) -> tuple[str, ...]:
    """The warnings about a topic that is good enough.

    Raises: TopicRefused naming every fault and the commands that mend them.
    See docs/record-contract.md, section 2, for what stale records and slow readers need.
    """
    mends: list[str] = []
    whys: list[str] = []
    if found.partitions < spec.partitions:
        add = (
            f"kafka-topics.sh --bootstrap-server {servers} --alter --topic {spec.name} "
            f"--partitions {spec.partitions}"
        )
        has = f"it has {counted(found.partitions, 'partition')}"
        if spec.pinned:
            whys.append(f"{has}, the stream is pinned to {spec.partitions}")
            mends.append(add)
        else:
            cure = f"set `partitions: {found.partitions}` in the config"
            whys.append(
                f"{has}, the config asks for {spec.partitions}: {cure}, or add partitions (`{add}`)"
            )
    faults = [] if found.configs is None else _faults(spec, found, found.configs)
    if faults:
        whys += [fault.why for fault in faults]
        mends.append(
            alter_command(
                spec.name, {fault.setting: fault.value for fault in faults}, servers=servers
            )
        )
    if whys:
        cure = f"; mend it with: {' && '.join(mends)}" if mends else ""
        raise TopicRefused(f"topic {spec.name} is refused: {'; '.join(whys)}{cure}")
    return tuple(_warnings(spec, found, servers))


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


def _faults(spec: TopicSpec, found: FoundTopic, configs: Mapping[str, str]) -> list[_Fault]:
    faults: list[_Fault] = []
    wanted = spec.configs()
    if spec.kind == "state" and spec.interval_ms:
        policy = configs.get("cleanup.policy", "delete")
        periods = [
            ("compact", "min.compaction.lag.ms"),
            ("compact", "delete.retention.ms"),
            ("delete", "retention.ms"),
        ]
        for cleanup, setting in periods:
            value = _number(configs, setting)
            if cleanup in policy and value is not None and 0 <= value < 2 * spec.interval_ms:
                least = (
                    f"at least {2 * spec.interval_ms}, twice the snapshot interval of "
                    f"{spec.snapshot_interval_s:g} s"
                )
                faults.append(
                    _Fault(
                        setting,
                        f"{setting} is {value} with cleanup.policy {policy}, and must be {least}",
                        wanted[setting],
                    )
                )
    insync = _number(configs, "min.insync.replicas")
    if insync is not None and insync > found.replication_factor:
        why = (
            f"min.insync.replicas is {insync}, over its replication factor of "
            f"{found.replication_factor}: nothing could be written"
        )
        faults.append(_Fault("min.insync.replicas", why, str(max(1, found.replication_factor - 1))))
    return faults


def _warnings(spec: TopicSpec, found: FoundTopic, servers: str) -> Iterable[str]:
    if found.partitions > spec.partitions:
        used = f"{spec.partitions} {'is' if spec.partitions == 1 else 'are'} used"
        if spec.pinned or spec.kind != "state":
            yield f"topic {spec.name} has {found.partitions} partitions, the pinned {used}"
        else:
            cure = (
                f"set `partitions: {found.partitions}` in the config before the first start "
                "to use all of them"
            )
            yield f"topic {spec.name} has {found.partitions} partitions, {used}: {cure}"
    configs = found.configs
    if configs is None:
        return
    if configs.get("unclean.leader.election.enable") == "true":
        mend = alter_command(
            spec.name, {"unclean.leader.election.enable": "false"}, servers=servers
        )
        yield (
            f"topic {spec.name}: unclean.leader.election.enable is true: acknowledged "
            f"records can be lost; mend it with: {mend}"
        )
    size = _number(configs, "max.message.bytes")
    if spec.kind == "state" and size is not None and size < MESSAGE_BYTES_LEAST:
        mend = alter_command(spec.name, {"max.message.bytes": str(MESSAGE_BYTES)}, servers=servers)
        yield (
            f"topic {spec.name}: max.message.bytes is {size}, large objects will be "
            f"published in part; mend it with: {mend}"
        )
    policy = configs.get("cleanup.policy", "delete")
    mend = alter_command(spec.name, {"cleanup.policy": "compact"}, servers=servers)
    forgets = "delete" in policy and _number(configs, "retention.ms") != -1
    if spec.keeps_all and forgets:
        yield (
            f"topic {spec.name}: cleanup.policy is {policy}, and a stream on it has "
            "snapshotInterval 0: objects that do not change are removed after retention.ms; mend "
            f"it with: {mend}"
        )
    if spec.kind == "control" and ("compact" not in policy or forgets):
        yield (
            f"topic {spec.name}: cleanup.policy is {policy}, what describes the streams, their "
            f"claims and the index of snapshots will be forgotten; mend it with: {mend}"
        )


def _number(configs: Mapping[str, str], name: str) -> int | None:
    try:
        return int(configs[name])
    except (KeyError, ValueError):
        return None
