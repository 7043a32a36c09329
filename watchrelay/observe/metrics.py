"""Every metric of the program: name, kind, labels, help. The names are a public contract, listed in
`docs/reference/metrics.md`. Labels come from closed sets (a stream id, a resource, a reason), never
an object's name, namespace or uid.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import Any, Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from watchrelay.model.resources import Resource

disable_created_metrics()  # type: ignore[no-untyped-call]  # the library ships this function without annotations

RESOURCE = ("stream", "group", "version", "resource")
# fmt: off
LAG_BUCKETS_S = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
    1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0,
)
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
    "watch_ends": ("timeout", "gone", "eof", "error"),
    "events_received": ("ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"),
    "events_filtered": ("suppressed", "namespace", "quarantined", "part"),
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
        "events_filtered": "Events not published, by reason.",
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
        "last_ack_timestamp_seconds": "When Kafka last acknowledged a batch, Unix time."
    },
    ("counter", ("result",)): {
        "signals": "Records read from the signal topic, by what became of them.",
        "transactions": "Transactions by how they ended: committed, aborted, or with an unknown "
        "outcome. What was not committed is sent again; after an unknown outcome it may be in the "
        "topic twice.",
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
    },
    ("histogram", ()): {
        "event_loop_lag_seconds": "How late a timer of the event loop ran, twice a second.",
        "transaction_duration_seconds": "Time from the begin of a transaction to its end.",
    },
    ("counter", ("generation",)): {
        "gc_pause_seconds": "Time that Python's garbage collector held everything up."
    },
    ("gauge", ("hash",)): {"config_info": "1, labelled with the hash of the config in force."},
}
"""By kind and labels, `cluster` left out: the help of each metric by its name."""

CATALOGUE: Final = {
    name: MetricDescription(name, kind, ("cluster", *labels), text)
    for (kind, labels), rows in _HELP.items()
    for name, text in rows.items()
}

_SERIES = re.compile(rb"^(\w+)([{ ])", re.MULTILINE)
"""The begin of a series in the text format: its name, then its labels or its value."""
_KEPT = {"stream_owned", "stream_warm"}
"""Gauges that each replica has of each stream."""
_COLLECTED = {"relay_lag_seconds", "gc_pause_seconds"}
"""They are counted outside the library, and read when somebody asks."""


class Lag:
    """A histogram that takes a batch of observations in one call, without locks."""

    def __init__(self) -> None:
        self.counts = [0] * (len(LAG_BUCKETS_S) + 1)
        self.total_s = 0.0

    def observe_batch(self, received_at_s: Iterable[float], now_s: float) -> float | None:
        """Count `now_s - t` for each t but 0; the longest of them. Units: seconds, monotonic."""
        slowest_s: float | None = None
        # events of one chunk were received at one moment
        for at_s, together in groupby(received_at_s):
            if at_s:
                lag_s, count = now_s - at_s, len(list(together))
                self.counts[bisect_left(LAG_BUCKETS_S, lag_s)] += count
                self.total_s += lag_s * count
                slowest_s = lag_s if slowest_s is None or lag_s > slowest_s else slowest_s
        return slowest_s


class _Collected(Collector):
    """The metrics of `_COLLECTED`. `gc_seconds`, by generation, are added to from where no lock may
    be taken (`interpreter.py`)."""

    def __init__(self) -> None:
        self.lags: dict[str, Lag] = {}
        self.gc_seconds = [0.0, 0.0, 0.0]

    def collect(self) -> Iterable[HistogramMetricFamily | CounterMetricFamily]:
        name, text = "watchrelay_relay_lag_seconds", CATALOGUE["relay_lag_seconds"].help
        lags = HistogramMetricFamily(name, text, labels=["stream"])
        for stream, lag in self.lags.items():
            bounds = (*map(str, LAG_BUCKETS_S), "+Inf")
            buckets = list(zip(bounds, accumulate(lag.counts), strict=True))
            lags.add_metric([stream], buckets=buckets, sum_value=lag.total_s)
        yield lags
        name, text = "watchrelay_gc_pause_seconds", CATALOGUE["gc_pause_seconds"].help
        pauses = CounterMetricFamily(name, text, labels=["generation"])
        for generation, seconds in enumerate(self.gc_seconds):
            pauses.add_metric([str(generation)], seconds)
        yield pauses


class _Children:
    """The children of every metric with some labels, made at once so that rates begin at zero;
    a dict by the last label where `_VALUES` has its values."""

    def __init__(self, metrics: Metrics, labels: Mapping[str, str]) -> None:
        for attribute in type(self).__annotations__:
            name = attribute.removesuffix("_total")
            values = [labels[each] for each in CATALOGUE[name].labels if each in labels]
            family = metrics._families[name]
            children: Any = (
                {last: family.labels(*values, last) for last in _VALUES[name]}
                if name in _VALUES
                else family.labels(*values)
            )
            setattr(self, attribute, children)


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
        self.metrics, self.stream, self.resource = metrics, stream, resource
        self.has_gauges = True
        """False once `Metrics.forget_gauges` has dropped those that it drops."""
        self.relay_lag = metrics.lag(stream)
        group, version, plural = (
            (resource.group, resource.version, resource.plural) if resource else ("", "", "")
        )
        labels = {"stream": stream, "group": group, "version": version, "resource": plural}
        super().__init__(metrics, labels)


class TopicMetrics(_Children):
    """The children of every per-topic metric."""

    records_acked_total: dict[str, Counter]
    record_bytes_total: Counter
    records_trimmed_total: dict[str, Counter]
    produce_duration_seconds: Histogram
    last_ack_timestamp_seconds: Gauge

    def __init__(self, metrics: Metrics, topic: str) -> None:
        self.metrics, self.topic = metrics, topic
        super().__init__(metrics, {"topic": topic})
        for error, retriable in USUAL_ERRORS.items():
            self._produce_errors(error, retriable)

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
        self._collected = _Collected()
        self.gc_pause_seconds = self._collected.gc_seconds
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

    def text(self) -> bytes:
        """What `/metrics` answers; the label `cluster` is set here, so that counting costs
        no more by it."""
        label = b'cluster="%b"' % self._cluster.encode()
        return _SERIES.sub(
            lambda series: b"%b{%b%b" % (series[1], label, b"," if series[2] == b"{" else b"} "),
            generate_latest(self.registry),
        )

    def register_process_collectors(self) -> None:
        """Expose CPU, memory, open files and collections too, as every client library names
        them."""
        ProcessCollector(registry=self.registry)
        GCCollector(registry=self.registry)

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
                self._drop_children("stream", stream)
            held = self._streams[stream] = StreamMetrics(self, stream, resource)
        return held

    def topic(self, topic: str) -> TopicMetrics:
        held = self._topics.get(topic)
        if held is None:
            held = self._topics[topic] = TopicMetrics(self, topic)
        return held

    def set_states(self, current: Mapping[str, str], states: Sequence[str]) -> None:
        """Make the series of `stream_state` those of `current` (by stream id) and no others."""
        family = self.gauge("stream_state")
        family.clear()
        for stream, state in current.items():
            for each in states:
                family.labels(stream, each).set(1 if each == state else 0)

    def forget(self, stream: str) -> None:
        """Drop every series of a stream that left the config."""
        self._streams.pop(stream, None)
        self._collected.lags.pop(stream, None)
        self._drop_children("stream", stream)

    def forget_topic(self, topic: str) -> None:
        """Drop every series of a topic that the last of its streams has left."""
        self._topics.pop(topic, None)
        self._drop_children("topic", topic)

    def forget_gauges(self, stream: str) -> None:
        """Drop the gauges of a stream that another replica writes, but for `stream_owned` and
        `stream_warm`, so that sums and maxima over the replicas are right. `stream` makes them
        again."""
        if stream in self._streams:
            self._streams[stream].has_gauges = False
        for name, family in self._families.items():
            is_kept = name in _KEPT or "stream" not in CATALOGUE[name].labels
            if isinstance(family, Gauge) and not is_kept:
                family.remove_by_labels({"stream": stream})

    def _drop_children(self, label: str, value: str) -> None:
        for name, family in self._families.items():
            if label in CATALOGUE[name].labels:
                family.remove_by_labels({label: value})
