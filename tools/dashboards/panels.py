"""What the dashboards show: rows of panels, each with its unit and what its expressions mean.

`build.py` makes Grafana's JSON of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

RATE: Final = "[$__rate_interval]"
ALL: Final = 'job="watchrelay",namespace=~"$namespace"'
STREAMS: Final = ALL + ',stream=~"$stream"'
ONE: Final = ALL + ',stream="$stream"'
TOPICS: Final = ALL + ',topic=~"$topic"'


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel. Shape: `queries` are pairs of an expression and its legend; `bad` is the value from which on it is red."""

    title: str
    says: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    kind: str = "timeseries"
    width: int = 8
    height: int = 7
    bad: float | None = None
    below: bool = False
    stacked: bool = False
    extra: dict[str, Any] = field(default_factory=dict)


Rows = tuple[tuple[str, tuple[Panel, ...]], ...]


def _stat(title: str, says: str, unit: str, query: str, *, bad: float | None = None, below: bool = False, width: int = 4) -> Panel:
    return Panel(title, says, unit, ((query, ""),), kind="stat", width=width, height=4, bad=bad, below=below)


def _quantiles(metric: str, matchers: str, by: str = "") -> tuple[tuple[str, str], ...]:
    labels, legend = (f"{by}, le", f"{{{{{by}}}}} ") if by else ("le", "")
    rate = f"sum by ({labels}) (rate({metric}_bucket{{{matchers}}}{RATE}))"
    return tuple((f"histogram_quantile({q}, {rate})", f"{legend}p{round(q * 100)}") for q in (0.5, 0.99))


FLEET: Final[Rows] = (
    (
        "Overview",
        (
            _stat("Streams owned", "Streams that some process relays.", "short", f"sum(watchrelay_stream_owned{{{STREAMS}}})"),
            _stat(
                "Streams unowned",
                "Streams that are configured and that nobody relays.",
                "short",
                f"count(sum by (namespace, stream) (watchrelay_stream_owned{{{STREAMS}}}) == 0) or vector(0)",
                bad=1,
            ),
            _stat(
                "Waiting",
                "Streams that wait for a resource, a right, a topic, or Kafka at their start.",
                "short",
                f'sum(watchrelay_stream_state{{{STREAMS},state="waiting"}})',
                bad=1,
            ),
            _stat(
                "Lag, p99",
                "From the receipt of an event to Kafka's acknowledgement.",
                "s",
                f"histogram_quantile(0.99, sum by (le) (rate(watchrelay_relay_lag_seconds_bucket{{{STREAMS}}}{RATE})))",
                bad=5,
            ),
            _stat(
                "Events", "Events received from the API server.", "eps", f"sum(rate(watchrelay_events_received_total{{{STREAMS}}}{RATE}))"
            ),
            _stat("Objects", "Objects held.", "short", f"sum(watchrelay_store_objects{{{STREAMS}}})"),
            Panel(
                "State of each stream",
                "What each stream is doing.",
                "short",
                ((f"sum by (stream, state) (watchrelay_stream_state{{{STREAMS}}}) > 0", "{{stream}}: {{state}}"),),
                width=12,
            ),
            Panel(
                "Owners",
                "Processes that own each stream: one is right.",
                "short",
                ((f"sum by (stream) (watchrelay_stream_owned{{{STREAMS}}})", "{{stream}}"),),
                width=12,
                bad=2,
            ),
        ),
    ),
    (
        "Kubernetes side",
        (
            Panel(
                "Events received",
                "Frames of watches, by stream.",
                "eps",
                ((f"sum by (stream) (rate(watchrelay_events_received_total{{{STREAMS}}}{RATE}))", "{{stream}}"),),
                stacked=True,
            ),
            Panel(
                "Requests to the API server",
                "By verb and status; 0 is no answer.",
                "reqps",
                ((f"sum by (verb, code) (rate(watchrelay_kube_requests_total{{{ALL}}}{RATE}))", "{{verb}} {{code}}"),),
            ),
            Panel(
                "Silence of the API server",
                "Time since the server was last heard on the stream; bookmarks come about once a minute.",
                "s",
                ((f"time() - max by (stream) (watchrelay_last_heard_timestamp_seconds{{{STREAMS}}} > 0)", "{{stream}}"),),
                bad=120,
            ),
            Panel(
                "Lists",
                "Lists that ended, by result. A healthy relay lists at its start and hardly ever again.",
                "ops",
                ((f"sum by (result) (rate(watchrelay_list_total{{{STREAMS}}}{RATE}))", "{{result}}"),),
            ),
            Panel(
                "Missed changes",
                "Changes that a list found and the watch had not shown, in an hour.",
                "short",
                ((f"sum by (stream) (increase(watchrelay_missed_changes_total{{{STREAMS}}}[1h]))", "{{stream}}"),),
                bad=1,
            ),
            Panel(
                "Gate",
                "1 while all streams stay away from an API server in trouble.",
                "short",
                ((f"max by (namespace) (watchrelay_endpoint_gate_closed{{{ALL}}})", "{{namespace}}"),),
                bad=1,
            ),
        ),
    ),
    (
        "Relay and queues",
        (
            Panel(
                "Lag by stream, p99",
                "From the receipt of an event to Kafka's acknowledgement.",
                "s",
                (
                    (
                        f"histogram_quantile(0.99, sum by (stream, le) (rate(watchrelay_relay_lag_seconds_bucket{{{STREAMS}}}{RATE})))",
                        "{{stream}}",
                    ),
                ),
                bad=5,
            ),
            Panel(
                "Queues",
                "Part of each queue's bound that is in use.",
                "percentunit",
                ((f"max by (stream) (watchrelay_queue_bytes{{{STREAMS}}} / watchrelay_queue_capacity_bytes{{{STREAMS}}})", "{{stream}}"),),
                bad=0.8,
            ),
            Panel(
                "Age of the newest snapshot",
                "Time since a snapshot of the stream ended.",
                "s",
                (
                    (
                        f"time() - max by (stream) (watchrelay_snapshot_last_success_timestamp_seconds{{{STREAMS}}} > 0)",
                        "{{stream}}",
                    ),
                ),
                bad=10800,
            ),
        ),
    ),
    (
        "Versions and config",
        (
            Panel("Versions", "Processes by version.", "short", ((f"sum by (version) (watchrelay_build_info{{{ALL}}})", "{{version}}"),)),
            Panel(
                "Configs in force",
                "Processes by the hash of their config.",
                "short",
                ((f"sum by (hash) (watchrelay_config_info{{{ALL}}})", "{{hash}}"),),
            ),
            Panel(
                "Newest config accepted",
                "1 if the newest edit of the config was accepted.",
                "short",
                ((f"min by (namespace) (watchrelay_config_last_reload_successful{{{ALL}}})", "{{namespace}}"),),
                bad=1,
                below=True,
            ),
        ),
    ),
)

STREAM: Final[Rows] = (
    (
        "Overview",
        (
            _stat("Objects", "Objects held.", "short", f"max(watchrelay_store_objects{{{ONE}}})"),
            _stat("Owned", "Processes that own the stream.", "short", f"sum(watchrelay_stream_owned{{{ONE}}})", bad=1, below=True),
            _stat("Epoch", "Epoch of the newest writer.", "none", f"max(watchrelay_stream_epoch{{{ONE}}})"),
            _stat(
                "Since the newest event",
                "Time since an event was received; a quiet resource has none.",
                "s",
                f"time() - max(watchrelay_last_event_timestamp_seconds{{{ONE}}} > 0)",
            ),
            _stat(
                "Since the server was heard",
                "Time since the API server said anything on the stream.",
                "s",
                f"time() - max(watchrelay_last_heard_timestamp_seconds{{{ONE}}} > 0)",
                bad=120,
            ),
            _stat(
                "Since the newest snapshot",
                "Time since a snapshot ended.",
                "s",
                f"time() - max(watchrelay_snapshot_last_success_timestamp_seconds{{{ONE}}} > 0)",
                bad=10800,
            ),
            Panel(
                "State", "What the stream is doing.", "short", ((f"sum by (state) (watchrelay_stream_state{{{ONE}}}) > 0", "{{state}}"),)
            ),
            Panel(
                "Lag", "From the receipt of an event to the acknowledgement.", "s", _quantiles("watchrelay_relay_lag_seconds", ONE), bad=5
            ),
            Panel(
                "Ownership",
                "Claims, takeovers and losses.",
                "short",
                ((f"sum by (reason) (increase(watchrelay_ownership_changes_total{{{ONE}}}{RATE}))", "{{reason}}"),),
            ),
        ),
    ),
    (
        "Kubernetes side",
        (
            Panel(
                "Events by type",
                "Frames of the watch.",
                "eps",
                ((f"sum by (type) (rate(watchrelay_events_received_total{{{ONE}}}{RATE}))", "{{type}}"),),
                stacked=True,
            ),
            Panel(
                "Events not published",
                "Suppressed (only dropped fields changed), of other namespaces, quarantined, or a repetition.",
                "eps",
                (
                    (f"sum by (reason) (rate(watchrelay_events_filtered_total{{{ONE}}}{RATE}))", "{{reason}}"),
                    (f"sum(rate(watchrelay_events_deduplicated_total{{{ONE}}}{RATE}))", "repeated"),
                    (f"sum(rate(watchrelay_events_conflated_total{{{ONE}}}{RATE}))", "conflated"),
                ),
            ),
            Panel(
                "Missed changes",
                "Changes that a list found and the watch had not shown, in an hour.",
                "short",
                ((f"sum(increase(watchrelay_missed_changes_total{{{ONE}}}[1h]))", "missed"),),
                bad=1,
            ),
            Panel(
                "Watches",
                "Watches opened by mode, and ended by reason.",
                "ops",
                (
                    (f"sum by (mode) (rate(watchrelay_watch_starts_total{{{ONE}}}{RATE}))", "opened: {{mode}}"),
                    (f"sum by (reason) (rate(watchrelay_watch_ends_total{{{ONE}}}{RATE}))", "ended: {{reason}}"),
                ),
            ),
            Panel(
                "Watch open", "1 while a watch is open.", "short", ((f"max(watchrelay_watch_active{{{ONE}}})", "open"),), bad=1, below=True
            ),
            Panel(
                "Lists",
                "Lists that ended by result, and the objects of the newest.",
                "short",
                (
                    (f"sum by (result) (increase(watchrelay_list_total{{{ONE}}}{RATE}))", "{{result}}"),
                    (f"max(watchrelay_list_objects{{{ONE}}})", "objects"),
                ),
            ),
            Panel("Duration of lists", "From the first page to the end.", "s", _quantiles("watchrelay_list_duration_seconds", ONE)),
        ),
    ),
    (
        "Relay and queue",
        (
            Panel(
                "Queue",
                "Bytes that wait for Kafka, and their bound.",
                "bytes",
                (
                    (f"max(watchrelay_queue_bytes{{{ONE}}})", "queued"),
                    (f"max(watchrelay_queue_capacity_bytes{{{ONE}}})", "bound"),
                ),
            ),
            Panel(
                "Records queued",
                "Records that wait for Kafka; past the bound, objects whose present state does.",
                "short",
                (
                    (f"max(watchrelay_queue_records{{{ONE}}})", "records"),
                    (f"max(watchrelay_queue_dirty_keys{{{ONE}}})", "objects past the bound"),
                ),
            ),
            Panel(
                "Watch held back",
                "Part of the time that the watch was not read because the queue was full.",
                "percentunit",
                ((f"sum(rate(watchrelay_backpressure_seconds_total{{{ONE}}}{RATE}))", "held back"),),
                bad=0.5,
            ),
            Panel(
                "Snapshot objects",
                "Objects held, and in the newest snapshot.",
                "short",
                (
                    (f"max(watchrelay_store_objects{{{ONE}}})", "held"),
                    (f"max(watchrelay_snapshot_objects{{{ONE}}})", "in the snapshot"),
                ),
            ),
            Panel(
                "Snapshot duration",
                "How long the newest snapshot took.",
                "s",
                ((f"max(watchrelay_snapshot_duration_seconds{{{ONE}}})", "took"),),
            ),
            Panel(
                "Snapshot running",
                "1 between begin and end of a snapshot.",
                "short",
                ((f"max(watchrelay_snapshot_running{{{ONE}}})", "running"),),
            ),
        ),
    ),
)

KAFKA: Final[Rows] = (
    (
        "Overview",
        (
            _stat(
                "Records acknowledged",
                "Records of all kinds.",
                "wps",
                f"sum(rate(watchrelay_records_acked_total{{{TOPICS}}}{RATE}))",
                width=6,
            ),
            _stat(
                "Bytes",
                "Keys and values before compression.",
                "Bps",
                f"sum(rate(watchrelay_record_bytes_total{{{TOPICS}}}{RATE}))",
                width=6,
            ),
            _stat(
                "Since the newest acknowledgement",
                "Time since Kafka acknowledged a batch of any topic; heartbeats alone make several a minute.",
                "s",
                f"time() - max(watchrelay_last_ack_timestamp_seconds{{{TOPICS}}} > 0)",
                bad=120,
                width=6,
            ),
            _stat(
                "Errors",
                "Batches that failed, in the time shown.",
                "short",
                f"sum(increase(watchrelay_produce_errors_total{{{TOPICS}}}[$__range]))",
                bad=1,
                width=6,
            ),
        ),
    ),
    (
        "Records",
        (
            Panel(
                "Records by topic",
                "Acknowledged records.",
                "wps",
                ((f"sum by (topic) (rate(watchrelay_records_acked_total{{{TOPICS}}}{RATE}))", "{{topic}}"),),
                stacked=True,
            ),
            Panel(
                "Records by kind",
                "Events, snapshot records, tombstones, markers (heartbeats among them).",
                "wps",
                ((f"sum by (kind) (rate(watchrelay_records_acked_total{{{TOPICS}}}{RATE}))", "{{kind}}"),),
                stacked=True,
            ),
            Panel(
                "Bytes by topic",
                "Keys and values before compression.",
                "Bps",
                ((f"sum by (topic) (rate(watchrelay_record_bytes_total{{{TOPICS}}}{RATE}))", "{{topic}}"),),
            ),
            Panel(
                "Trimmed records",
                "Records that were too large to be published whole, in an hour.",
                "short",
                ((f"sum by (topic, how) (increase(watchrelay_records_trimmed_total{{{TOPICS}}}[1h]))", "{{topic}}: {{how}}"),),
                bad=1,
            ),
            Panel(
                "Requests for snapshots",
                "Records of the signal topic by what became of them, in an hour.",
                "short",
                ((f"sum by (result) (increase(watchrelay_signals_total{{{ALL}}}[1h]))", "{{result}}"),),
                extra={"mayBeEmpty": True},
            ),
        ),
    ),
    (
        "Delivery",
        (
            Panel(
                "Time to the acknowledgement",
                "From handing a batch to the producer to Kafka's acknowledgement.",
                "s",
                _quantiles("watchrelay_produce_duration_seconds", TOPICS),
                bad=1,
            ),
            Panel(
                "Errors of batches",
                "By error; a failed batch is sent again under the same positions.",
                "ops",
                ((f"sum by (topic, error) (rate(watchrelay_produce_errors_total{{{TOPICS}}}{RATE})) > 0", "{{topic}}: {{error}}"),),
                extra={"mayBeEmpty": True},
            ),
            Panel(
                "Producers built anew",
                "Any error of a batch throws its producer away.",
                "short",
                ((f"sum by (reason) (increase(watchrelay_producer_rebuilds_total{{{ALL}}}[1h]))", "{{reason}}"),),
                extra={"mayBeEmpty": True},
            ),
            Panel(
                "Records queued",
                "Records that wait for Kafka, by stream.",
                "short",
                ((f"sum by (stream) (watchrelay_queue_records{{{ALL}}})", "{{stream}}"),),
                width=12,
            ),
            Panel(
                "Silence by topic",
                "Time since Kafka acknowledged a batch of the topic.",
                "s",
                ((f"time() - max by (topic) (watchrelay_last_ack_timestamp_seconds{{{TOPICS}}} > 0)", "{{topic}}"),),
                width=12,
                bad=120,
            ),
        ),
    ),
)

MAY_BE_EMPTY: Final = frozenset(
    panel.title for rows in (FLEET, STREAM, KAFKA) for _, panels in rows for panel in panels if panel.extra.get("mayBeEmpty")
)
"""Panels that have no data on a healthy relay."""
