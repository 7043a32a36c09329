"""One stream in depth."""

from __future__ import annotations

from typing import Final

from tools.dashboards.panel import BOUND, ONE, RATE, STATES, Panel, Rows, quantiles, stat

STREAM: Final[Rows] = (
    (
        "Overview",
        (
            stat("Objects", "Objects held.", "short", f"max(watchrelay_store_objects{{{ONE}}})"),
            stat(
                "Owned",
                "Processes that own the stream.",
                "short",
                f"sum(watchrelay_stream_owned{{{ONE}}})",
                bad=1,
                below=True,
            ),
            stat(
                "Epoch",
                "Epoch of the newest writer.",
                "none",
                f"max(watchrelay_stream_epoch{{{ONE}}})",
            ),
            stat(
                "Since the last event",
                "Time since an event was received; a quiet resource has none.",
                "s",
                f"min(watchrelay_last_event_age_seconds{{{ONE}}} < +Inf)",
            ),
            stat(
                "Server last heard",
                "Time since the API server last sent data on the stream.",
                "s",
                f"min(watchrelay_last_heard_age_seconds{{{ONE}}} < +Inf)",
                bad=120,
            ),
            stat(
                "Since last snapshot",
                "Time since a snapshot ended.",
                "s",
                f"min(watchrelay_snapshot_age_seconds{{{ONE}}} < +Inf)",
            ),
            Panel(
                "State",
                "What the stream is doing.",
                "short",
                ((f"sum by (state) (watchrelay_stream_state{{{ONE}}}) > 0", "{{state}}"),),
                width=6,
                stacked=True,
                timeline=True,
                looks=STATES,
            ),
            Panel(
                "Lag",
                "From the receipt of an event to the acknowledgement.",
                "s",
                quantiles("watchrelay_relay_lag_seconds", ONE),
                width=6,
                bad=5,
            ),
            Panel(
                "Epoch",
                "Each step is a claim: a restart, or another relay that took the stream.",
                "none",
                ((f"max(watchrelay_stream_epoch{{{ONE}}} > 0)", "epoch"),),
                width=6,
                steps=True,
            ),
            Panel(
                "Ownership",
                "Claims, takeovers, losses, and restarts of the stream after an unexpected "
                "error, since each process started.",
                "short",
                (
                    (
                        f"sum by (reason) (watchrelay_ownership_changes_total{{{ONE}}})",
                        "{{reason}}",
                    ),
                    (f"sum(watchrelay_stream_failures_total{{{ONE}}})", "unexpected error"),
                ),
                width=6,
                counts=True,
                steps=True,
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
                (
                    (
                        f"sum by (type) (rate(watchrelay_events_received_total{{{ONE}}}{RATE}))",
                        "{{type}}",
                    ),
                ),
                stacked=True,
            ),
            Panel(
                "Events not published",
                "Suppressed (only dropped fields changed), of other namespaces, quarantined, or "
                "a repetition.",
                "eps",
                (
                    (
                        f"sum by (reason) (rate(watchrelay_events_filtered_total{{{ONE}}}{RATE}))",
                        "{{reason}}",
                    ),
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
                counts=True,
            ),
            Panel(
                "Watches",
                "Watches opened by mode, and ended by reason: by a timeout every few minutes. "
                "Before the first scrape none is seen.",
                "short",
                (
                    (
                        f"sum by (mode) (increase(watchrelay_watch_starts_total{{{ONE}}}{RATE}))",
                        "opened: {{mode}}",
                    ),
                    (
                        f"sum by (reason) (increase(watchrelay_watch_ends_total{{{ONE}}}{RATE}))",
                        "ended: {{reason}}",
                    ),
                ),
                width=6,
                counts=True,
            ),
            Panel(
                "Watch open",
                "1 while a watch is open.",
                "short",
                ((f"max(watchrelay_watch_active{{{ONE}}})", "open"),),
                width=6,
                bad=1,
                below=True,
                counts=True,
                most=1,
            ),
            Panel(
                "Lists",
                "Lists that ended, by result; those before the first scrape of a process are not "
                "seen.",
                "short",
                (
                    (
                        f"sum by (result) (increase(watchrelay_list_total{{{ONE}}}{RATE}))",
                        "{{result}}",
                    ),
                ),
                width=6,
                counts=True,
                looks={"success": "green", "error": "red", "expired": "orange"},
            ),
            Panel(
                "Duration of lists",
                "From the first page to the end.",
                "s",
                quantiles("watchrelay_list_duration_seconds", ONE),
                width=6,
                empty="no list in this time",
            ),
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
                looks={"bound": BOUND},
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
                (
                    (
                        f"sum(rate(watchrelay_backpressure_seconds_total{{{ONE}}}{RATE}))",
                        "held back",
                    ),
                ),
                bad=0.5,
                most=1,
            ),
            Panel(
                "Objects",
                "Objects held, in the newest snapshot, and in the newest list of this process.",
                "short",
                (
                    (f"max(watchrelay_store_objects{{{ONE}}})", "held"),
                    (f"max(watchrelay_snapshot_objects{{{ONE}}})", "in the snapshot"),
                    (f"max(watchrelay_list_objects{{{ONE}}}) > 0", "in the list"),
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
                counts=True,
                most=1,
            ),
        ),
    ),
)
