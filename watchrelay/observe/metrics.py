"""Every metric of the program: name, kind, labels, help. The names are a public contract, listed in
`docs/reference/metrics.md`. Labels come from closed sets (a stream id, a resource, a reason), never
an object's name, namespace or uid.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter as Tally
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

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
LAG_BUCKETS_S = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    300.0,
    1800.0,
)
DURATION_BUCKETS_S = (
    0.001,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    120.0,
)

LIST_RESULTS = ("success", "expired", "error")
WATCH_MODES = ("watchlist", "watch")
WATCH_ENDS = ("timeout", "gone", "eof", "error")
EVENT_TYPES = ("ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR")
FILTER_REASONS = ("suppressed", "namespace", "quarantined")
CLAIM_REASONS = ("claim", "assigned", "revoked", "fenced")
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
"""Errors of batches that every topic has a series for from its start, with their `retriable`: a
rate needs a zero to begin at."""
RECORD_KINDS = ("event", "snapshot", "tombstone", "marker")


@dataclass(frozen=True, slots=True)
class Described:
    """One line of the catalogue."""

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str


CATALOGUE: dict[str, Described] = {
    d.name: replace(d, labels=("cluster", *d.labels))
    for d in (
        Described(
            "build_info",
            "gauge",
            ("version", "revision"),
            "1, labelled with the version that runs.",
        ),
        Described(
            "stream_owned", "gauge", ("stream",), "1 while this process owns the stream, else 0."
        ),
        Described(
            "stream_epoch",
            "gauge",
            ("stream",),
            "Epoch under which this process writes the stream.",
        ),
        Described(
            "stream_state", "gauge", ("stream", "state"), "1 for the state that the stream is in."
        ),
        Described(
            "stream_failures",
            "counter",
            ("stream",),
            "Times the stream was restarted after an unexpected error.",
        ),
        Described(
            "ownership_changes",
            "counter",
            ("stream", "reason"),
            "Times the stream was claimed, assigned, revoked or fenced.",
        ),
        Described("list", "counter", (*RESOURCE, "result"), "Lists finished, by result."),
        Described(
            "list_duration_seconds",
            "histogram",
            RESOURCE,
            "Time from the first page's request to the end of the list.",
        ),
        Described("list_objects", "gauge", RESOURCE, "Objects that the newest complete list held."),
        Described("watch_starts", "counter", (*RESOURCE, "mode"), "Watches opened, by mode."),
        Described("watch_ends", "counter", (*RESOURCE, "reason"), "Watches ended, by reason."),
        Described("watch_active", "gauge", RESOURCE, "1 while a watch is open."),
        Described(
            "missed_changes",
            "counter",
            RESOURCE,
            "Changes found by a list that the watch should have shown.",
        ),
        Described(
            "events_received",
            "counter",
            (*RESOURCE, "type"),
            "Frames received in watches, by type.",
        ),
        Described(
            "events_filtered", "counter", (*RESOURCE, "reason"), "Events not published, by reason."
        ),
        Described(
            "events_deduplicated",
            "counter",
            RESOURCE,
            "Events that repeated what was already held.",
        ),
        Described(
            "events_conflated",
            "counter",
            RESOURCE,
            "States skipped because a newer one replaced them in the queue.",
        ),
        Described("store_objects", "gauge", RESOURCE, "Objects held."),
        Described(
            "records_acked", "counter", ("topic", "kind"), "Records acknowledged by Kafka, by kind."
        ),
        Described(
            "record_bytes",
            "counter",
            ("topic",),
            "Bytes of keys and values acknowledged by Kafka, before compression.",
        ),
        Described(
            "records_trimmed",
            "counter",
            ("topic", "how"),
            "Records published without part of the object because it was too large; withheld: "
            "not published, not even by name.",
        ),
        Described(
            "produce_errors",
            "counter",
            ("topic", "error", "retriable"),
            "Batches that Kafka refused or did not acknowledge, by error.",
        ),
        Described(
            "produce_duration_seconds",
            "histogram",
            ("topic",),
            "Time from handing a batch to the producer to its acknowledgement.",
        ),
        Described(
            "producer_rebuilds",
            "counter",
            ("reason",),
            "Times the producer was discarded and rebuilt.",
        ),
        Described(
            "relay_lag_seconds",
            "histogram",
            ("stream",),
            "Time from receiving an event to its acknowledgement by Kafka.",
        ),
        Described(
            "last_event_timestamp_seconds",
            "gauge",
            ("stream",),
            "When the newest event was received, Unix time.",
        ),
        Described(
            "last_heard_timestamp_seconds",
            "gauge",
            ("stream",),
            "When the API server last sent data on this stream, Unix time.",
        ),
        Described(
            "last_ack_timestamp_seconds",
            "gauge",
            ("topic",),
            "When Kafka last acknowledged a batch, Unix time.",
        ),
        Described(
            "queue_records", "gauge", ("stream",), "Records queued and not yet acknowledged."
        ),
        Described("queue_bytes", "gauge", ("stream",), "Bytes queued and not yet acknowledged."),
        Described(
            "queue_dirty_keys",
            "gauge",
            ("stream",),
            "Keys whose present state is still to be queued, the queue having been full.",
        ),
        Described("queue_capacity_bytes", "gauge", ("stream",), "Bound of the queue."),
        Described(
            "backpressure_seconds",
            "counter",
            ("stream",),
            "Time that the watch was not read because the queue was full.",
        ),
        Described(
            "snapshot_interval_seconds",
            "gauge",
            ("stream",),
            "`snapshotInterval` of the stream; 0: no snapshots by time.",
        ),
        Described(
            "snapshot_running",
            "gauge",
            ("stream",),
            "1 between the begin and the end of a snapshot.",
        ),
        Described(
            "snapshot_objects", "gauge", ("stream",), "Objects in the newest complete snapshot."
        ),
        Described(
            "snapshot_duration_seconds",
            "gauge",
            ("stream",),
            "Duration of the newest complete snapshot.",
        ),
        Described(
            "snapshot_last_success_timestamp_seconds",
            "gauge",
            ("stream",),
            "When the newest snapshot ended, Unix time.",
        ),
        Described(
            "signals",
            "counter",
            ("result",),
            "Records read from the signal topic, by what became of them.",
        ),
        Described(
            "kube_requests",
            "counter",
            ("verb", "code"),
            "Requests to the API server, by verb and status code (0: no answer).",
        ),
        Described(
            "kube_request_duration_seconds",
            "histogram",
            ("verb",),
            "Time to the response's headers.",
        ),
        Described(
            "endpoint_gate_closed",
            "gauge",
            (),
            "1 while requests of all streams are paused: the API server is unavailable.",
        ),
        Described(
            "event_loop_lag_seconds",
            "histogram",
            (),
            "How late a timer of the event loop ran, twice a second.",
        ),
        Described(
            "gc_pause_seconds",
            "counter",
            ("generation",),
            "Time that Python's garbage collector held everything up.",
        ),
        Described(
            "config_last_reload_successful", "gauge", (), "1 if the newest config was accepted."
        ),
        Described(
            "config_last_reload_success_timestamp_seconds",
            "gauge",
            (),
            "When a config was last accepted, Unix time.",
        ),
        Described(
            "config_info", "gauge", ("hash",), "1, labelled with the hash of the config in force."
        ),
    )
}

_SERIES = re.compile(rb"^(\w+)([{ ])", re.MULTILINE)
"""The begin of a line of the text format that is a series: its name, then its labels or its
value."""
_COLLECTED = {"relay_lag_seconds", "gc_pause_seconds"}
"""They are counted outside the library, and read when somebody asks."""


class Lag:
    """A histogram that takes a batch of observations in one call: one list increment each, no
    locks."""

    def __init__(self) -> None:
        self.counts = [0] * (len(LAG_BUCKETS_S) + 1)
        self.total_s = 0.0

    def observe_batch(self, received_s: Iterable[float], now_s: float) -> float | None:
        """Count `now_s - t` for each t; the longest of them. Units: seconds, monotonic; a t of 0
        was not received and is not counted."""
        slowest_s: float | None = None
        # events of one chunk were received at one moment
        for at_s, count in Tally(received_s).items():
            if at_s:
                lag_s = now_s - at_s
                self.counts[bisect_left(LAG_BUCKETS_S, lag_s)] += count
                self.total_s += lag_s * count
                slowest_s = lag_s if slowest_s is None or lag_s > slowest_s else slowest_s
        return slowest_s


class _LagCollector(Collector):
    def __init__(self) -> None:
        self.by_stream: dict[str, Lag] = {}

    def collect(self) -> Iterable[HistogramMetricFamily]:
        described = CATALOGUE["relay_lag_seconds"]
        family = HistogramMetricFamily(
            "watchrelay_relay_lag_seconds", described.help, labels=["stream"]
        )
        for stream, lag in self.by_stream.items():
            running, buckets = 0, []
            for bound, count in zip((*map(str, LAG_BUCKETS_S), "+Inf"), lag.counts, strict=True):
                running += count
                buckets.append((bound, running))
            family.add_metric([stream], buckets=buckets, sum_value=lag.total_s)
        yield family


class _PauseCollector(Collector):
    """`seconds` are added to from where no lock may be taken (`interpreter.py`)."""

    def __init__(self) -> None:
        self.seconds = [0.0, 0.0, 0.0]

    def collect(self) -> Iterable[CounterMetricFamily]:
        family = CounterMetricFamily(
            "watchrelay_gc_pause_seconds", CATALOGUE["gc_pause_seconds"].help, labels=["generation"]
        )
        for generation, seconds in enumerate(self.seconds):
            family.add_metric([str(generation)], seconds)
        yield family


class StreamMetrics:
    """The children of every per-stream metric, made at start so that rates begin at zero.

    One attribute per metric without its prefix; a dict by the last label where there is one
    more.
    """

    def __init__(self, metrics: Metrics, stream: str, resource: Resource | None) -> None:
        self.metrics, self.stream, self.resource = metrics, stream, resource
        group, version, plural = (
            (resource.group, resource.version, resource.plural) if resource else ("", "", "")
        )
        named = (stream, group, version, plural)
        counter, gauge, histogram = metrics.counter, metrics.gauge, metrics.histogram
        self.list_total = {r: counter("list").labels(*named, r) for r in LIST_RESULTS}
        self.list_duration_seconds = histogram("list_duration_seconds").labels(*named)
        self.list_objects = gauge("list_objects").labels(*named)
        self.watch_starts_total = {
            m: counter("watch_starts").labels(*named, m) for m in WATCH_MODES
        }
        self.watch_ends_total = {r: counter("watch_ends").labels(*named, r) for r in WATCH_ENDS}
        self.watch_active = gauge("watch_active").labels(*named)
        self.missed_changes_total = counter("missed_changes").labels(*named)
        self.events_received_total = {
            t: counter("events_received").labels(*named, t) for t in EVENT_TYPES
        }
        self.events_filtered_total = {
            r: counter("events_filtered").labels(*named, r) for r in FILTER_REASONS
        }
        self.events_deduplicated_total = counter("events_deduplicated").labels(*named)
        self.events_conflated_total = counter("events_conflated").labels(*named)
        self.store_objects = gauge("store_objects").labels(*named)
        self.stream_owned = gauge("stream_owned").labels(stream)
        self.stream_epoch = gauge("stream_epoch").labels(stream)
        self.stream_failures_total = counter("stream_failures").labels(stream)
        self.ownership_changes_total = {
            r: counter("ownership_changes").labels(stream, r) for r in CLAIM_REASONS
        }
        self.relay_lag = metrics.lag(stream)
        self.last_event_timestamp_seconds = gauge("last_event_timestamp_seconds").labels(stream)
        self.last_heard_timestamp_seconds = gauge("last_heard_timestamp_seconds").labels(stream)
        self.queue_records = gauge("queue_records").labels(stream)
        self.queue_bytes = gauge("queue_bytes").labels(stream)
        self.queue_dirty_keys = gauge("queue_dirty_keys").labels(stream)
        self.queue_capacity_bytes = gauge("queue_capacity_bytes").labels(stream)
        self.backpressure_seconds_total = counter("backpressure_seconds").labels(stream)
        self.snapshot_interval_seconds = gauge("snapshot_interval_seconds").labels(stream)
        self.snapshot_running = gauge("snapshot_running").labels(stream)
        self.snapshot_objects = gauge("snapshot_objects").labels(stream)
        self.snapshot_duration_seconds = gauge("snapshot_duration_seconds").labels(stream)
        self.snapshot_last_success_timestamp_seconds = gauge(
            "snapshot_last_success_timestamp_seconds"
        ).labels(stream)


class TopicMetrics:
    """The children of every per-topic metric."""

    def __init__(self, metrics: Metrics, topic: str) -> None:
        self.metrics, self.topic = metrics, topic
        self.records_acked_total = {
            k: metrics.counter("records_acked").labels(topic, k) for k in RECORD_KINDS
        }
        self.record_bytes_total = metrics.counter("record_bytes").labels(topic)
        self.records_trimmed_total = {
            h: metrics.counter("records_trimmed").labels(topic, h)
            for h in ("fields", "stub", "withheld")
        }
        self.produce_duration_seconds = metrics.histogram("produce_duration_seconds").labels(topic)
        self.last_ack_timestamp_seconds = metrics.gauge("last_ack_timestamp_seconds").labels(topic)
        for error, retriable in USUAL_ERRORS.items():
            self._produce_errors(error, retriable)

    def produce_failed(self, error: str, *, retriable: bool) -> None:
        """Count one failed batch. `error` is an exception's class name, or
        `NO_ACKNOWLEDGEMENT`."""
        self._produce_errors(error, retriable).inc()

    def _produce_errors(self, error: str, retriable: bool) -> Counter:
        return self.metrics.counter("produce_errors").labels(
            self.topic, error, str(retriable).lower()
        )


class Metrics:
    """All metrics on a registry of their own. `cluster` is the label that each series gets in
    `text`."""

    def __init__(self, cluster: str = "") -> None:
        self.registry = CollectorRegistry()
        self._cluster = cluster
        self._families: dict[str, Counter | Gauge | Histogram] = {}
        self._streams: dict[str, StreamMetrics] = {}
        self._topics: dict[str, TopicMetrics] = {}
        for described in CATALOGUE.values():
            if described.name not in _COLLECTED:
                self._families[described.name] = self._make(described)
        self._lags = _LagCollector()
        pauses = _PauseCollector()
        self.gc_pause_seconds = pauses.seconds
        for collector in (self._lags, pauses):
            self.registry.register(collector)

    def _make(self, described: Described) -> Counter | Gauge | Histogram:
        name, labels = f"watchrelay_{described.name}", described.labels[1:]
        if described.kind == "counter":
            return Counter(name, described.help, labels, registry=self.registry)
        if described.kind == "gauge":
            return Gauge(name, described.help, labels, registry=self.registry)
        return Histogram(
            name, described.help, labels, registry=self.registry, buckets=DURATION_BUCKETS_S
        )

    def text(self) -> bytes:
        """What `/metrics` answers: every series has the label `cluster`, set here so that counting
        costs no more by it."""
        label = b'cluster="%b"' % self._cluster.encode()
        return _SERIES.sub(
            lambda series: b"%b{%b%b" % (series[1], label, b"," if series[2] == b"{" else b"} "),
            generate_latest(self.registry),
        )

    def register_process_collectors(self) -> None:
        """Expose CPU, memory, open files, start and collections of this process too, as every
        client library names them."""
        ProcessCollector(registry=self.registry)
        GCCollector(registry=self.registry)

    def counter(self, name: str) -> Counter:
        """The counter family `watchrelay_<name>_total`."""
        family = self._families[name]
        assert isinstance(family, Counter), name
        return family

    def gauge(self, name: str) -> Gauge:
        """The gauge family `watchrelay_<name>`."""
        family = self._families[name]
        assert isinstance(family, Gauge), name
        return family

    def histogram(self, name: str) -> Histogram:
        """The histogram family `watchrelay_<name>`."""
        family = self._families[name]
        assert isinstance(family, Histogram), name
        return family

    def lag(self, stream: str) -> Lag:
        """The lag histogram of `stream`."""
        return self._lags.by_stream.setdefault(stream, Lag())

    def stream(self, stream: str, resource: Resource | None) -> StreamMetrics:
        """The per-stream children, made on first use (and again when the stream's resource was
        resolved to another version)."""
        held = self._streams.get(stream)
        if held is None or held.resource != resource:
            if held is not None:
                self._drop_children(held)
            held = self._streams[stream] = StreamMetrics(self, stream, resource)
        return held

    def topic(self, topic: str) -> TopicMetrics:
        """The per-topic children, made on first use."""
        held = self._topics.get(topic)
        if held is None:
            held = self._topics[topic] = TopicMetrics(self, topic)
        return held

    def set_states(self, current: Mapping[str, str], states: Sequence[str]) -> None:
        """Make the series of `stream_state` those of the streams in `current`, and of no other.

        Args:
            current: The state of each stream, by stream id.
            states: Every state that there is.
        """
        family = self.gauge("stream_state")
        family.clear()
        for stream, state in current.items():
            for each in states:
                family.labels(stream, each).set(1 if each == state else 0)

    def forget(self, stream: str) -> None:
        """Drop every series of a stream that left the config."""
        held = self._streams.pop(stream, None)
        if held is not None:
            self._drop_children(held)
            self._lags.by_stream.pop(stream, None)

    def _drop_children(self, held: StreamMetrics) -> None:
        for name, family in self._families.items():
            if "stream" in CATALOGUE[name].labels:
                family.remove_by_labels({"stream": held.stream})
