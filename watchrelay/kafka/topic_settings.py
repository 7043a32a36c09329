"""The table of settings that decide over the life and the acceptance of records, by kind of topic:
what a new topic gets, what is wrong with a topic as found, and the value that cures it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

TopicKind = Literal["state", "control", "signal"]

MIN_LAG: Final = "min.compaction.lag.ms"
MAX_LAG: Final = "max.compaction.lag.ms"
MESSAGE_BYTES: Final = 4 * 1024 * 1024
"""See docs/record-contract.md, section 2."""
MESSAGE_BYTES_LEAST: Final[dict[TopicKind, int]] = {
    "state": 1024 * 1024,
    "control": 256 * 1024,
    "signal": 64 * 1024,
}
"""On a state topic larger objects are cut short; an index record has a hundred bytes for each
partition, a request a name for each stream."""
SIZE_LIMITS: Final = {"max.message.bytes": MESSAGE_BYTES, "segment.bytes": 1024 * 1024 * 1024}
"""The settings that each bound a batch after compression, with values that are right."""

_HOUR_MS = 3_600_000
_WEEK_MS = 7 * 24 * _HOUR_MS
_OUTAGE_MS = _WEEK_MS
"""The longest absence of a consumer that a new topic allows for."""
_SLACK_MS = 2 * _HOUR_MS
"""A snapshot takes time itself; two hours above twice the interval are room for the largest."""
_SKEW_MS = 300_000
"""Clocks that differ by less are usual."""
_SIGNAL_BYTES = 1024 * 1024
_KEPT_LOCALLY = {"local.retention.ms": "-2", "local.retention.bytes": "-2"}
"""Brokers keep records for as long as remote storage does."""
_SIGNALS = "requests can be removed before a relay that starts has read them"


class Wanted(Protocol):
    """The part of a `TopicSpec` that the table reads."""

    @property
    def kind(self) -> TopicKind: ...
    @property
    def min_insync_replicas(self) -> int: ...
    @property
    def interval_ms(self) -> int: ...
    @property
    def keeps_all(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class FoundTopic:
    """A topic as the brokers describe it. `replicas` is the least of its partitions'; `configs` has
    nothing where they cannot be read; `id` is empty on brokers without ids."""

    partitions: int
    replicas: int
    configs: Mapping[str, str] = field(default_factory=dict)
    id: bytes = b""

    def number(self, name: str) -> int | None:
        """A setting's number; None where the brokers give none."""
        try:
            return int(self.configs[name])
        except (KeyError, ValueError):
            return None

    def size_limit(self) -> tuple[int, str] | None:
        """The largest batch that is accepted, in bytes after compression, and the setting that
        bounds it; None where the brokers give none."""
        sizes = [(size, name) for name in SIZE_LIMITS if (size := self.number(name)) is not None]
        return min(sizes, default=None)

    def below(self, name: str, least: int) -> bool:
        """Whether the setting is below `least`; -1 and -2 stand for no bound, or another's."""
        value = self.number(name)
        return value is not None and 0 <= value < least

    @property
    def policy(self) -> str:
        return self.configs.get("cleanup.policy", "delete")

    @property
    def deletes(self) -> bool:
        return "delete" in self.policy

    @property
    def compacts(self) -> bool:
        return "compact" in self.policy

    @property
    def forgets(self) -> bool:
        """Whether records are removed by their age."""
        return self.deletes and self.number("retention.ms") != -1

    @property
    def by_clients_clock(self) -> bool:
        """Whether the timestamps of records are those of their producers."""
        return self.configs.get("message.timestamp.type", "CreateTime") == "CreateTime"

    @property
    def is_tiered(self) -> bool:
        return self.configs.get("remote.storage.enable") == "true"


Configs = Mapping[str, str]
Value = str | Callable[[Wanted], str]
Why = Callable[[Wanted, FoundTopic], str]
"""Why the value found is wrong; "" where it is not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A row of the table.

    `right` are the values with which nothing is wrong, for people. `created` is what a new topic of
    a kind gets; kinds that are missing get the brokers' default. `refuses` are the kinds on which a
    wrong value stops the stream, elsewhere it warns. `cure` are the settings to alter, by default
    this one to what a new topic gets.
    """

    name: str
    right: str
    created: Mapping[TopicKind, Value] = field(default_factory=dict)
    why: Mapping[TopicKind, Why] = field(default_factory=dict)
    refuses: frozenset[TopicKind] = frozenset()
    cure: Configs | Callable[[Wanted, FoundTopic], Configs] | None = None

    def created_for(self, spec: Wanted) -> str | None:
        """The value of a new topic; None: the brokers' default."""
        value = self.created.get(spec.kind)
        return value(spec) if callable(value) else value

    def wrong(self, spec: Wanted, topic: FoundTopic) -> str:
        """Why the value found is wrong; "" where it is not, or not known."""
        why = self.why.get(spec.kind)
        return why(spec, topic) if why is not None and self.name in topic.configs else ""

    def cured(self, spec: Wanted, topic: FoundTopic) -> Configs:
        """The settings to alter, with their values."""
        if self.cure is None:
            return {self.name: self.created_for(spec) or ""}
        return self.cure(spec, topic) if callable(self.cure) else self.cure


def _all(value: Value) -> dict[TopicKind, Value]:
    return {"state": value, "control": value, "signal": value}


def _every(why: Why) -> dict[TopicKind, Why]:
    return {"state": why, "control": why, "signal": why}


def _lag_ms(spec: Wanted) -> str:
    return str(2 * spec.interval_ms + _SLACK_MS)


def _too_short(setting: str, *, policy: str) -> Why:
    def why(spec: Wanted, topic: FoundTopic) -> str:
        least_ms = 2 * spec.interval_ms
        if policy not in topic.policy or not topic.below(setting, least_ms):
            return ""
        return (
            f"with cleanup.policy {topic.policy} it must be at least {least_ms}, twice the "
            f"snapshot interval of {spec.interval_ms / 1000:g} s"
        )

    return why


def _state_policy(spec: Wanted, topic: FoundTopic) -> str:
    if not spec.keeps_all or not topic.forgets:
        return ""
    return (
        "a stream on it has snapshotInterval 0: objects that do not change are removed after "
        "retention.ms"
    )


def _control_policy(_spec: Wanted, topic: FoundTopic) -> str:
    if topic.compacts and not topic.forgets:
        return ""
    return "what describes the streams, their claims and the index of snapshots will be forgotten"


def _signal_policy(_spec: Wanted, topic: FoundTopic) -> str:
    if not topic.compacts:
        return ""
    return "of requests with one key only the newest is kept, and those without a key are refused"


def _by_size(what: str, least: int | None = None) -> Why:
    def why(_spec: Wanted, topic: FoundTopic) -> str:
        value = topic.number("retention.bytes")
        removes = value is not None and value >= 0 and (least is None or value < least)
        return what if topic.deletes and removes else ""

    return why


def _local(setting: str) -> Why:
    def why(spec: Wanted, topic: FoundTopic) -> str:
        value, bytes_ = topic.number(setting), setting.endswith("bytes")
        short = value is not None and value >= 0 and (bytes_ or value < 2 * spec.interval_ms)
        if not topic.is_tiered or not short:
            return ""
        return (
            "a start and new consumers read back for up to two snapshot intervals, and older "
            "records are in remote storage alone: they wait while that is away"
        )

    return why


def _clock_bound(setting: str) -> Why:
    def why(_spec: Wanted, topic: FoundTopic) -> str:
        if not topic.by_clients_clock or not topic.below(setting, _SKEW_MS):
            return ""
        return (
            "nothing is accepted from a relay whose clock differs by more from the brokers', as "
            "message.timestamp.type is CreateTime"
        )

    return why


def _sizes(setting: str) -> dict[TopicKind, Why]:
    def why(what: str) -> Why:
        return lambda spec, topic: (
            what if topic.below(setting, MESSAGE_BYTES_LEAST[spec.kind]) else ""
        )

    return {
        "state": why("large objects will be published in part"),
        "control": why(
            "claims and index records of streams with many partitions do not fit: such a "
            "stream cannot start, or its restarts and new consumers read further back"
        ),
        "signal": why("requests that name many streams are refused"),
    }


def _in_sync_least(spec: Wanted, topic: FoundTopic) -> int:
    return min(spec.min_insync_replicas, max(1, topic.replicas - 1))


def _in_sync_too_few(spec: Wanted, topic: FoundTopic) -> str:
    few = topic.below("min.insync.replicas", _in_sync_least(spec, topic))
    return "acknowledged records may be on one broker alone, and are lost with it" if few else ""


def _in_sync_too_many(_spec: Wanted, topic: FoundTopic) -> str:
    value = topic.number("min.insync.replicas")
    if value is None or value <= topic.replicas:
        return ""
    return f"its replication factor is {topic.replicas}: nothing could be written"


def _cure_of_min_lag(spec: Wanted, topic: FoundTopic) -> Configs:
    """With the greatest lag where that is smaller: Kafka accepts no such pair."""
    least_ms = int(_lag_ms(spec))
    if topic.below("max.compaction.lag.ms", least_ms):
        return {MIN_LAG: str(least_ms), MAX_LAG: str(least_ms)}
    return {MIN_LAG: str(least_ms)}


def _cure_of_max_lag(spec: Wanted, topic: FoundTopic) -> Configs:
    return {MAX_LAG: str(max(int(_lag_ms(spec)), topic.number(MIN_LAG) or 0))}


SETTINGS: Final = (
    Setting(
        name="cleanup.policy",
        right="as created; without `delete`, or `retention.ms=-1`, under `snapshotInterval: 0`",
        created={
            "state": lambda spec: "compact" if spec.keeps_all else "compact,delete",
            "control": "compact",
            "signal": "delete",
        },
        why={"state": _state_policy, "control": _control_policy, "signal": _signal_policy},
    ),
    Setting(
        name="retention.ms",
        right="with `delete`: state twice the snapshot interval, signal 1 h, or more",
        created={
            "state": lambda spec: str(2 * spec.interval_ms + _OUTAGE_MS),
            "signal": str(24 * _HOUR_MS),
        },
        why={
            "state": _too_short("retention.ms", policy="delete"),
            "signal": lambda _, topic: (
                _SIGNALS if topic.deletes and topic.below("retention.ms", _HOUR_MS) else ""
            ),
        },
        refuses=frozenset({"state"}),
    ),
    Setting(
        name="retention.bytes",
        right="with `delete`: -1; signal at least 1 MiB",
        created=_all("-1"),
        why={
            "state": _by_size(
                "objects that do not change are removed once a partition is larger, whatever its "
                "retention.ms"
            ),
            "control": _by_size(
                "what describes the streams, their claims and the index of snapshots is removed "
                "once the topic is larger"
            ),
            "signal": _by_size(_SIGNALS, _SIGNAL_BYTES),
        },
    ),
    Setting(
        name=MIN_LAG,
        right="with `compact`: at least twice the snapshot interval",
        created={"state": _lag_ms},
        why={"state": _too_short(MIN_LAG, policy="compact")},
        refuses=frozenset({"state"}),
        cure=_cure_of_min_lag,
    ),
    Setting(
        name=MAX_LAG,
        right="with `compact`: at least twice the snapshot interval",
        why={"state": _too_short(MAX_LAG, policy="compact")},
        cure=_cure_of_max_lag,
    ),
    Setting(
        name="delete.retention.ms",
        right="with `compact`: at least twice the snapshot interval",
        created={"state": lambda spec: str(max(_WEEK_MS, 2 * spec.interval_ms + _SLACK_MS))},
        why={"state": _too_short("delete.retention.ms", policy="compact")},
        refuses=frozenset({"state"}),
    ),
    Setting(
        name="local.retention.ms",
        right="with `remote.storage.enable`: at least twice the snapshot interval, or -2",
        why={"state": _local("local.retention.ms")},
        cure=_KEPT_LOCALLY,
    ),
    Setting(
        name="local.retention.bytes",
        right="with `remote.storage.enable`: -2",
        why={"state": _local("local.retention.bytes")},
        cure=_KEPT_LOCALLY,
    ),
    Setting(
        name="message.timestamp.type",
        right="both; `CreateTime` asks for clocks that agree",
        created=_all("LogAppendTime"),
    ),
    *(
        Setting(
            name=name,
            right="with `CreateTime`: at least 5 min",
            why=_every(_clock_bound(name)),
            cure={"message.timestamp.type": "LogAppendTime"},
        )
        for name in (
            "message.timestamp.before.max.ms",
            "message.timestamp.after.max.ms",
            "message.timestamp.difference.max.ms",
        )
    ),
    Setting(
        name="max.message.bytes",
        right="state at least 1 MiB, control 256 KiB, signal 64 KiB",
        created={"state": str(MESSAGE_BYTES), "control": str(1 << 20), "signal": str(1 << 20)},
        why=_sizes("max.message.bytes"),
    ),
    Setting(
        name="segment.bytes",
        right="as `max.message.bytes`: a batch must fit a segment",
        why=_sizes("segment.bytes"),
        cure={"segment.bytes": str(SIZE_LIMITS["segment.bytes"])},
    ),
    Setting(
        name="compression.type",
        right="state: `producer` or `zstd`",
        created={"state": "producer"},
        why={
            "state": lambda _, topic: (
                "brokers pack each batch again, and a record that is larger then than "
                "max.message.bytes is published in part"
                if topic.configs["compression.type"] not in ("producer", "zstd")
                else ""
            )
        },
    ),
    Setting(
        name="min.insync.replicas",
        right="at most the replication factor",
        created=_all(lambda spec: str(spec.min_insync_replicas)),
        why=_every(_in_sync_too_many),
        refuses=frozenset({"state", "control", "signal"}),
        cure=lambda _, topic: {"min.insync.replicas": str(max(1, topic.replicas - 1))},
    ),
    Setting(
        name="min.insync.replicas",
        right="at least `kafka.minInsyncReplicas`, where the replicas are more",
        why=_every(_in_sync_too_few),
        cure=lambda spec, topic: {"min.insync.replicas": str(_in_sync_least(spec, topic))},
    ),
    Setting(
        name="unclean.leader.election.enable",
        right="false",
        why=_every(
            lambda _, topic: (
                "acknowledged records can be lost"
                if topic.configs["unclean.leader.election.enable"] == "true"
                else ""
            )
        ),
        cure={"unclean.leader.election.enable": "false"},
    ),
)
