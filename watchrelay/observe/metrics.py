"""Every metric of the program: name, kind, labels, help. The names are a public contract, listed in
`docs/reference/metrics.md`. Labels come from closed sets (a stream id, a resource, a reason), never
an object's name, namespace or uid.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.registry import Collector

from watchrelay.model.resources import Resource
from watchrelay.observe.collected import Age, Collected, Lag
from watchrelay.observe.exposition import Family, Rows, family_of, pieces

disable_created_metrics()  # type: ignore[no-untyped-call]  # the library ships this function without annotations

RESOURCE = ("stream", "group", "version", "resource")
# fmt: off
DURATION_BUCKETS_S = (
    0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0,
)
# fmt: on

NO_ACKNOWLEDGEMENT = "no_acknowledgement"
"""The `error` of a batch that Kafka says nothing about."""
USUAL_ERRORS = {
    NO_ACKNOWLEDGEMENT: True,
    "KafkaConnectionError": True,
    "LeaderNotAvailableError": True,
    "MessageSizeTooLargeError": False,
    "NotEnoughReplicasAfterAppendError": True,
    "NotEnoughReplicasError": True,
    "NotLeaderForPartitionError": True,
    "RequestTimedOutError": True,
    "TopicAuthorizationFailedError": False,
    "UnknownTopicOrPartitionError": True,
}
"""Errors with a series in every topic from its start: a rate needs a zero to begin at."""
_VALUES: Final = {
    "list": ("success", "expired", "error"),
    "watch_starts": ("watchlist", "watch"),
    "watch_ends": ("timeout", "gone", "eof", "silent", "error"),
    "events_received": ("ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"),
    "events_filtered": ("suppressed", "ignored", "namespace", "quarantined", "part"),
    "ownership_changes": ("claim", "assigned", "handed_over", "revoked", "fenced"),
    "records_acked": ("event", "snapshot", "tombstone", "marker"),
    "records_trimmed": ("fields", "stub", "withheld"),
    "group_rebalances": ("joined", "left", "died", "asked"),
    "takeover_duration_seconds": ("handover", "failover"),
}
"""The values of the last label, where a stream or topic has a series for each of them."""


@dataclass(frozen=True, slots=True)
class MetricDescription:
    name: str
    kind: str
    labels: tuple[str, ...]
    help: str


_HELP: Final[dict[tuple[str, tuple[str, ...]], dict[str, str]]] = {
    ("gauge", ("version", "revision")): {"build_info": "1, labelled with the version that runs."},
    ("gauge", ("stream",)): {
        "stream_owned": "1 while this process owns the stream, else 0.",
        "stream_warm": "1 while this process follows a stream that another one writes, and has "
        "read it to its end, else 0.",
        "warm_lag_records": "Offsets of the topic of such a stream that are not read yet.",
        "stream_epoch": "Epoch under which this process writes the stream.",
        "last_event_timestamp_seconds": "When the newest event was received, Unix time.",
        "state_age_seconds": "How old the state is that consumers have: the time since the API "
        "server showed what the newest acknowledged markers of all partitions cover.",
        "last_event_age_seconds": "Time since the newest event was received; +Inf before the "
        "first.",
        "last_heard_age_seconds": "Time since the API server last sent data on this stream; +Inf "
        "before the first.",
        "snapshot_age_seconds": "Time since the newest snapshot ended; +Inf where there is none.",
        "last_heard_timestamp_seconds": "When the API server last sent data on this stream, "
        "Unix time.",
        "queue_records": "Records queued and not yet acknowledged.",
        "queue_bytes": "Bytes queued and not yet acknowledged.",
        "queue_dirty_keys": "Keys whose present state is still to be queued, the queue having "
        "been full.",
        "queue_capacity_bytes": "Bound of the queue.",
        "snapshot_interval_seconds": "`snapshotInterval` of the stream; 0: no snapshots by time.",
        "snapshot_running": "1 between the begin and the end of a snapshot.",
        "snapshot_objects": "Objects in the newest complete snapshot.",
        "snapshot_duration_seconds": "Duration of the newest complete snapshot.",
        "snapshot_last_success_timestamp_seconds": "When the newest snapshot ended, Unix time.",
    },
    ("gauge", ("stream", "state")): {"stream_state": "1 for the state that the stream is in."},
    ("counter", ("stream",)): {
        "stream_failures": "Times the stream was restarted after an unexpected error.",
        "backpressure_seconds": "Time that the watch was not read because the queue was full.",
    },
    ("counter", ("stream", "reason")): {
        "ownership_changes": "Times the stream was assigned by the group of replicas, claimed, "
        "handed over to another replica, lost to one (revoked), or to another relay (fenced)."
    },
    ("counter", (*RESOURCE, "result")): {"list": "Lists finished, by result."},
    ("histogram", RESOURCE): {
        "list_duration_seconds": "Time from the first page's request to the end of the list."
    },
    ("gauge", RESOURCE): {
        "list_objects": "Objects that the newest complete list held.",
        "watch_active": "1 while a watch is open.",
        "store_objects": "Objects held.",
    },
    ("counter", (*RESOURCE, "mode")): {"watch_starts": "Watches opened, by mode."},
    ("counter", (*RESOURCE, "reason")): {
        "watch_ends": "Watches ended, by reason.",
        "events_filtered": "Events not published, by reason: nothing that is published had "
        "changed (suppressed), or nothing that counts (ignored); of another namespace, or part; "
        "an object that cannot be decoded (quarantined).",
    },
    ("counter", RESOURCE): {
        "missed_changes": "Changes found by a list that the watch should have shown.",
        "events_deduplicated": "Events that repeated what was already held.",
        "events_conflated": "States skipped because a newer one replaced them in the queue.",
    },
    ("counter", (*RESOURCE, "type")): {"events_received": "Frames received in watches, by type."},
    ("counter", ("topic", "kind")): {"records_acked": "Records acknowledged by Kafka, by kind."},
    ("counter", ("topic",)): {
        "record_bytes": "Bytes of keys and values acknowledged by Kafka, before compression."
    },
    ("counter", ("topic", "how")): {
        "records_trimmed": "Records published without part of the object because it was too "
        "large; withheld: not published, not even by name."
    },
    ("counter", ("topic", "error", "retriable")): {
        "produce_errors": "Batches that Kafka refused or did not acknowledge, by error."
    },
    ("histogram", ("topic",)): {
        "produce_duration_seconds": "Time from handing a batch to the producer to its "
        "acknowledgement."
    },
    ("counter", ("reason",)): {
        "producer_rebuilds": "Times the producer replaced its connections (watchdog, credentials) "
        "or the producer id of a partition (identity).",
        "group_rebalances": "Times this replica assigned the streams as the leader of the group, "
        "because a replica joined, left, died (its session ended), or asked for it.",
    },
    ("histogram", ("kind",)): {
        "takeover_duration_seconds": "Time from the assignment of a stream that another replica "
        "wrote to the first acknowledgement; handover: that replica still wrote it; failover: none "
        "did. The time until a dead replica was noticed is not in it."
    },
    ("histogram", ("stream",)): {
        "relay_lag_seconds": "Time from receiving an event to its acknowledgement by Kafka."
    },
    ("gauge", ("topic",)): {
        "last_ack_timestamp_seconds": "When Kafka last acknowledged a batch, Unix time.",
        "last_ack_age_seconds": "Time since Kafka last acknowledged a batch; before the first, "
        "since the topic was first written to.",
    },
    ("counter", ("result",)): {
        "signals": "Records read from the signal topic, by what became of them.",
        "transactions": "Transactions by how they ended: committed, aborted, or with an unknown "
        "outcome. What was not committed is sent again; after an unknown outcome it may be in the "
        "topic twice.",
    },
    ("gauge", ("source",)): {
        "clock_offset_seconds": "By how much this machine's clock is ahead (negative: behind), by "
        "several answers of Kafka's brokers or of the API server that agree."
    },
    ("counter", ("verb", "code")): {
        "kube_requests": "Requests to the API server, by verb and status code (0: no answer)."
    },
    ("histogram", ("verb",)): {"kube_request_duration_seconds": "Time to the response's headers."},
    ("gauge", ()): {
        "endpoint_gate_closed": "1 while requests of all streams are paused: the API server is "
        "unavailable.",
        "group_members": "Members of the group by which replicas share the streams, counted by its "
        "leader; 0 in the other replicas.",
        "group_generation": "The generation of that group of which this replica has its "
        "assignment.",
        "config_last_reload_successful": "1 if the newest config was accepted.",
        "config_last_reload_success_timestamp_seconds": "When a config was last accepted, Unix "
        "time.",
    },
    ("counter", ()): {
        "group_doubts": "Times this replica could not know whether it is still in the group.",
        "group_doubt_seconds": "Time during which it could not.",
        "log_lines_dropped": "Log lines dropped because stderr was not read, or could not be "
        "written.",
    },
    ("histogram", ()): {
        "event_loop_lag_seconds": "How late a timer of the event loop ran, twice a second.",
        "transaction_duration_seconds": "Time from the begin of a transaction to its end.",
    },
    ("counter", ("generation",)): {
        "gc_pause_seconds": "Time that Python's garbage collector held everything up."
    },
    ("gauge", ("setting",)): {
        "topics_at_risk": "Topics that are used although this setting of theirs can take records "
        "away from them, or have them refused."
    },
    ("gauge", ("hash",)): {"config_info": "1, labelled with the hash of the config in force."},
}
"""By kind and labels, `cluster` left out: the help of each metric by its name."""

CATALOGUE: Final = {
    name: MetricDescription(name, kind, ("cluster", *labels), text)
    for (kind, labels), rows in _HELP.items()
    for name, text in rows.items()
}

_STREAM_ALONE: Final = ("cluster", "stream")
_KEPT = {"stream_owned", "stream_warm"}
"""Gauges that each replica has of each stream."""
_COLLECTED = {"relay_lag_seconds", "gc_pause_seconds", "state_age_seconds", "stream_state"}
"""They are counted outside the library, and read when somebody asks."""


def _family(name: str, rows: Callable[[], Rows]) -> Family:
    described = CATALOGUE[name]
    return Family(f"watchrelay_{name}", described.kind, described.labels[1:], described.help, rows)


def _rows(family: Counter | Gauge | Histogram) -> Rows:
    """The library reads a family in one go: what it reads is read here child by child."""
    if not family._labelnames:
        yield (), family._samples()
        return
    with family._lock:
        children = family._metrics.copy()
    for values, child in children.items():
        yield values, child._samples()


class _Children:
    """The children of every metric with some labels, made at once so that rates begin at zero;
    a dict by the last label where `_VALUES` has its values."""

    def __init__(self, metrics: Metrics, labels: Mapping[str, str]) -> None:
        self.metrics, self._labels = metrics, labels
        for attribute, name, values in self._own():
            family = metrics._families[name]
            is_age = self.__annotations__[attribute] == Age.__name__
            children: Any = (
                {last: family.labels(*values, last) for last in _VALUES[name]}
                if name in _VALUES
                else Age(family.labels(*values))
                if is_age and isinstance(family, Gauge)
                else family.labels(*values)
            )
            setattr(self, attribute, children)

    def _own(self) -> Iterator[tuple[str, str, list[str]]]:
        """By attribute: the metric, and the values of its labels, but for one of `_VALUES`."""
        for attribute in type(self).__annotations__:
            name = attribute.removesuffix("_total")
            labels = CATALOGUE[name].labels
            yield attribute, name, [self._labels[each] for each in labels if each in self._labels]

    def drop(self, *, gauges_alone: bool = False) -> None:
        """Remove the children from their families; with `gauges_alone` the gauges but `_KEPT`.
        By their labels: a search would cost as much as there are streams."""
        for _, name, values in self._own():
            family = self.metrics._families[name]
            if gauges_alone and (name in _KEPT or not isinstance(family, Gauge)):
                continue
            for last in _VALUES.get(name, [None]):
                family.remove(*values, *([] if last is None else [last]))


class StreamMetrics(_Children):
    """The children of every per-stream metric."""

    list_total: dict[str, Counter]
    list_duration_seconds: Histogram
    list_objects: Gauge
    watch_starts_total: dict[str, Counter]
    watch_ends_total: dict[str, Counter]
    watch_active: Gauge
    missed_changes_total: Counter
    events_received_total: dict[str, Counter]
    events_filtered_total: dict[str, Counter]
    events_deduplicated_total: Counter
    events_conflated_total: Counter
    store_objects: Gauge
    stream_owned: Gauge
    stream_warm: Gauge
    stream_epoch: Gauge
    stream_failures_total: Counter
    ownership_changes_total: dict[str, Counter]
    last_event_timestamp_seconds: Gauge
    last_event_age_seconds: Age
    last_heard_age_seconds: Age
    snapshot_age_seconds: Age
    last_heard_timestamp_seconds: Gauge
    queue_records: Gauge
    queue_bytes: Gauge
    queue_dirty_keys: Gauge
    queue_capacity_bytes: Gauge
    backpressure_seconds_total: Counter
    snapshot_interval_seconds: Gauge
    snapshot_running: Gauge
    snapshot_objects: Gauge
    snapshot_duration_seconds: Gauge
    snapshot_last_success_timestamp_seconds: Gauge

    def __init__(self, metrics: Metrics, stream: str, resource: Resource | None) -> None:
        self.stream, self.resource = stream, resource
        self.has_gauges = True
        """False once `Metrics.forget_gauges` has dropped those that it drops."""
        self.relay_lag = metrics.lag(stream)
        group, version, plural = (
            (resource.group, resource.version, resource.plural) if resource else ("", "", "")
        )
        labels = {"stream": stream, "group": group, "version": version, "resource": plural}
        super().__init__(metrics, labels)

    def show_age(self, age_s: Callable[[], float | None]) -> None:
        """Show what `age_s` returns when `text` is made, in seconds; nothing while it is None."""
        self.metrics.ages[self.stream] = age_s

    def show_last_age(self, age_s: Callable[[], float | None]) -> None:
        """The same for a writer that has ended, unless the stream is forgotten."""
        if self.stream in self.metrics.ages:
            self.show_age(age_s)


class TopicMetrics(_Children):
    """The children of every per-topic metric."""

    records_acked_total: dict[str, Counter]
    record_bytes_total: Counter
    records_trimmed_total: dict[str, Counter]
    produce_duration_seconds: Histogram
    last_ack_timestamp_seconds: Gauge
    last_ack_age_seconds: Age

    def __init__(self, metrics: Metrics, topic: str) -> None:
        self.topic = topic
        super().__init__(metrics, {"topic": topic})
        self.last_ack_age_seconds.restart()
        self.ack_shown_s = -math.inf
        """When the time of the newest acknowledgement was set, monotonic."""
        for error, retriable in USUAL_ERRORS.items():
            self._produce_errors(error, retriable)

    def drop(self, *, gauges_alone: bool = False) -> None:
        super().drop(gauges_alone=gauges_alone)
        # whatever errors there were; there are few topics
        self.metrics.counter("produce_errors").remove_by_labels({"topic": self.topic})

    def produce_failed(self, error: str, *, retriable: bool) -> None:
        """Count one failed batch. `error`: an exception's class name, or `NO_ACKNOWLEDGEMENT`."""
        self._produce_errors(error, retriable).inc()

    def _produce_errors(self, error: str, retriable: bool) -> Counter:
        return self.metrics.counter("produce_errors").labels(
            self.topic, error, str(retriable).lower()
        )


class Metrics:
    """All metrics on a registry of their own; `cluster` is a label of each series in `text`."""

    def __init__(self, cluster: str = "") -> None:
        self.registry = CollectorRegistry()
        self._cluster = cluster
        self._families: dict[str, Counter | Gauge | Histogram] = {}
        self._streams: dict[str, StreamMetrics] = {}
        self._topics: dict[str, TopicMetrics] = {}
        for described in CATALOGUE.values():
            if described.name not in _COLLECTED:
                self._families[described.name] = self._make(described)
        for name in ("group_rebalances", "takeover_duration_seconds"):
            for value in _VALUES[name]:
                self._families[name].labels(value)
        self._process: Sequence[Collector] = ()
        self._collected = Collected(_family)
        self.gc_pause_seconds, self.ages = self._collected.gc_seconds, self._collected.ages
        self.registry.register(self._collected)

    def _make(self, described: MetricDescription) -> Counter | Gauge | Histogram:
        name, labels = f"watchrelay_{described.name}", described.labels[1:]
        if described.kind == "counter":
            return Counter(name, described.help, labels, registry=self.registry)
        if described.kind == "gauge":
            return Gauge(name, described.help, labels, registry=self.registry)
        return Histogram(
            name, described.help, labels, registry=self.registry, buckets=DURATION_BUCKETS_S
        )

    def pieces(self) -> Iterator[bytes]:
        """What `/metrics` answers. Each piece is read when it is asked for; a family has the series
        that there are when its first piece is."""
        return pieces(self._all_families(), self._cluster)

    def text(self) -> bytes:
        """All of it at once."""
        return b"".join(self.pieces())

    def _all_families(self) -> Iterator[Family]:
        for name, family in self._families.items():
            yield _family(name, partial(_rows, family))
        yield from self._collected.families()
        for collector in self._process:
            yield from map(family_of, collector.collect())

    def register_process_collectors(self) -> None:
        """Expose CPU, memory, open files and collections too, as every client library names
        them."""
        self._process = (
            ProcessCollector(registry=self.registry),
            GCCollector(registry=self.registry),
        )

    def counter(self, name: str) -> Counter:
        family = self._families[name]
        assert isinstance(family, Counter), name
        return family

    def gauge(self, name: str) -> Gauge:
        family = self._families[name]
        assert isinstance(family, Gauge), name
        return family

    def histogram(self, name: str) -> Histogram:
        family = self._families[name]
        assert isinstance(family, Histogram), name
        return family

    def lag(self, stream: str) -> Lag:
        return self._collected.lags.setdefault(stream, Lag())

    def stream(self, stream: str, resource: Resource | None) -> StreamMetrics:
        """The children of a stream; made again when its resource was resolved to another
        version."""
        held = self._streams.get(stream)
        if held is None or held.resource != resource or not held.has_gauges:
            if held is not None and held.resource != resource:
                held.drop()
            held = self._streams[stream] = StreamMetrics(self, stream, resource)
        return held

    def topic(self, topic: str) -> TopicMetrics:
        held = self._topics.get(topic)
        if held is None:
            held = self._topics[topic] = TopicMetrics(self, topic)
        return held

    def set_states(self, current: Mapping[str, str], states: Sequence[str]) -> None:
        """Make the series of `stream_state` those of `current` (by stream id) and no others."""
        self._collected.states, self._collected.all_states = current, states

    def forget(self, stream: str) -> None:
        """Drop every series of a stream that left the config."""
        self._collected.lags.pop(stream, None)
        self.ages.pop(stream, None)
        if held := self._streams.pop(stream, None):
            held.drop()
        for name, family in self._families.items():
            if CATALOGUE[name].labels == _STREAM_ALONE:
                family.remove(stream)

    def forget_topic(self, topic: str) -> None:
        """Drop every series of a topic that the last of its streams has left."""
        if held := self._topics.pop(topic, None):
            held.drop()

    def forget_gauges(self, stream: str) -> None:
        """Drop the gauges of a stream that another replica writes, but for `stream_owned` and
        `stream_warm`, so that sums and maxima over the replicas are right. `stream` makes them
        again."""
        self.ages.pop(stream, None)
        if (held := self._streams.get(stream)) and held.has_gauges:
            held.has_gauges = False
            held.drop(gauges_alone=True)
        self.gauge("warm_lag_records").remove(stream)
