"""The fleet: all streams at a glance."""

from __future__ import annotations

from typing import Final

from tools.dashboards.panel import ALL, RATE, STATES, STREAMS, Panel, Rows, quantiles, stat

_STREAM: Final = "{{cluster}}/{{stream}}"
_LAG: Final = f"rate(watchrelay_relay_lag_seconds_bucket{{{STREAMS}}}{RATE})"
_SNAPSHOT: Final = f"min by (cluster, stream) (watchrelay_snapshot_age_seconds{{{STREAMS}}} < +Inf)"
_INTERVAL: Final = (
    f"max by (cluster, stream) (watchrelay_snapshot_interval_seconds{{{STREAMS}}} > 0)"
)
_AGE: Final = f"watchrelay_state_age_seconds{{{STREAMS}}}"

FLEET: Final[Rows] = (
    (
        "Overview",
        (
            stat(
                "Age of the data",
                "How old the data of consumers may be: of the stalest stream, the time since the "
                "API server showed what is in Kafka. It grows also while no relay runs, for an "
                "hour.",
                "s",
                f"max(min by (namespace, cluster, stream) ({_AGE} or last_over_time({_AGE}[1h]) + "
                f"time() - max_over_time(timestamp({_AGE})[1h:1m])))",
                bad=180,
            ),
            stat(
                "Streams owned",
                "Streams that some process relays.",
                "short",
                f"sum(watchrelay_stream_owned{{{STREAMS}}})",
                width=3,
            ),
            stat(
                "Streams unowned",
                "Streams that are configured and that nobody relays.",
                "short",
                "count(sum by (namespace, cluster, stream) "
                f"(watchrelay_stream_owned{{{STREAMS}}}) == 0) or vector(0)",
                bad=1,
                width=3,
            ),
            stat(
                "Waiting",
                "Streams that wait for a resource, a right, a topic, or Kafka at their start.",
                "short",
                "count(sum by (namespace, cluster, stream) "
                f'(watchrelay_stream_state{{{STREAMS},state="waiting"}}) > 0) or vector(0)',
                bad=1,
                width=3,
            ),
            stat(
                "Lag, p99",
                "From the receipt of an event to Kafka's acknowledgement.",
                "s",
                f"histogram_quantile(0.99, sum by (le) ({_LAG}))",
                bad=5,
            ),
            stat(
                "Events",
                "Events received from the API server.",
                "eps",
                f"sum(rate(watchrelay_events_received_total{{{STREAMS}}}{RATE}))",
            ),
            stat(
                "Objects",
                "Objects held.",
                "short",
                f"sum(watchrelay_store_objects{{{STREAMS}}})",
                width=3,
            ),
            Panel(
                "Streams by state",
                "How many streams are in each state.",
                "short",
                ((f"sum by (state) (watchrelay_stream_state{{{STREAMS}}}) > 0", "{{state}}"),),
                stacked=True,
                counts=True,
                looks=STATES,
            ),
            Panel(
                "Not watching",
                "Which streams are in another state than watching; standbys are left out.",
                "short",
                (
                    (
                        (
                            "sum by (cluster, stream, state) "
                            f'(watchrelay_stream_state{{{STREAMS},state!~"watching|standby"}}) > 0'
                        ),
                        "{{cluster}}/{{stream}}: {{state}}",
                    ),
                ),
                stacked=True,
                counts=True,
                empty="all streams are watching",
                may_be_empty=True,
            ),
            Panel(
                "Not owned by one",
                "Processes that own each stream, where it is not one: 0 is nobody, 2 is one too "
                "many. A claim takes a moment.",
                "short",
                (
                    (
                        (
                            "sum by (namespace, cluster, stream) "
                            f"(watchrelay_stream_owned{{{STREAMS}}}) != 1"
                        ),
                        "{{namespace}}/{{cluster}}/{{stream}}",
                    ),
                ),
                bad=2,
                counts=True,
                empty="each stream has one owner",
                may_be_empty=True,
            ),
        ),
    ),
    (
        "Replicas",
        (
            Panel(
                "Members of the group",
                "Replicas that share the streams, as the leader of the group counts them; 0 where "
                "no streams are shared.",
                "short",
                (
                    (
                        f"max by (namespace, cluster) (watchrelay_group_members{{{ALL}}})",
                        "{{namespace}}/{{cluster}}",
                    ),
                ),
                counts=True,
            ),
            Panel(
                "Streams by pod",
                "How many streams each pod writes.",
                "short",
                ((f"sum by (pod) (watchrelay_stream_owned{{{STREAMS}}})", "{{pod}}"),),
                stacked=True,
                counts=True,
            ),
            Panel(
                "Warm standbys by pod",
                "How many streams of others each pod has read to their end and follows.",
                "short",
                ((f"sum by (pod) (watchrelay_stream_warm{{{STREAMS}}})", "{{pod}}"),),
                stacked=True,
                counts=True,
            ),
            Panel(
                "Not read by standbys",
                "Offsets of topics that standbys have not read yet, by pod: a takeover reads them.",
                "short",
                (
                    (
                        (
                            f"sum by (pod) (watchrelay_warm_lag_records{{{STREAMS}}}) "
                            "or on() vector(0)"
                        ),
                        "{{pod}}",
                    ),
                ),
                counts=True,
            ),
            Panel(
                "Assignments",
                "How often the leader assigned the streams, and why. A rebalance stops nothing.",
                "short",
                (
                    (
                        (
                            "sum by (reason) "
                            f"(increase(watchrelay_group_rebalances_total{{{ALL}}}{RATE})) "
                            "or on() vector(0)"
                        ),
                        "{{reason}}",
                    ),
                    (f"max(changes(watchrelay_group_generation{{{ALL}}}{RATE}))", "generations"),
                ),
                counts=True,
            ),
            Panel(
                "Takeovers",
                "Time from the assignment of a stream that another replica wrote to the first "
                "acknowledgement: 95th percentile.",
                "s",
                (
                    (
                        (
                            "histogram_quantile(0.95, sum by (kind, le) (rate("
                            f"watchrelay_takeover_duration_seconds_bucket{{{ALL}}}{RATE})))"
                        ),
                        "{{kind}}",
                    ),
                ),
                empty="no takeover",
                may_be_empty=True,
            ),
            Panel(
                "In doubt",
                "Seconds per second in which a replica could not know whether it is still in the "
                "group, and how often that began.",
                "short",
                (
                    (
                        f"sum by (pod) (rate(watchrelay_group_doubt_seconds_total{{{ALL}}}{RATE}))",
                        "{{pod}}: in doubt",
                    ),
                    (
                        f"sum by (pod) (increase(watchrelay_group_doubts_total{{{ALL}}}{RATE}))",
                        "{{pod}}: doubts",
                    ),
                ),
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
                (
                    (
                        (
                            "sum by (cluster, stream) "
                            f"(rate(watchrelay_events_received_total{{{STREAMS}}}{RATE}))"
                        ),
                        _STREAM,
                    ),
                ),
                stacked=True,
            ),
            Panel(
                "Requests to the API server",
                "By verb and status; 0 is no answer.",
                "reqps",
                (
                    (
                        (
                            "sum by (verb, code) "
                            f"(rate(watchrelay_kube_requests_total{{{ALL}}}{RATE}))"
                        ),
                        "{{verb}} {{code}}",
                    ),
                ),
            ),
            Panel(
                "Silence of the API server",
                "Time since the server last sent data on the stream; bookmarks come about once a "
                "minute.",
                "s",
                (
                    (
                        (
                            "min by (cluster, stream) "
                            f"(watchrelay_last_heard_age_seconds{{{STREAMS}}} < +Inf)"
                        ),
                        _STREAM,
                    ),
                ),
                bad=120,
            ),
            Panel(
                "Lists",
                "Lists that ended, by result: one at the first start, then every 6 hours by "
                "default. Before the first scrape none is seen.",
                "short",
                (
                    (
                        f"sum by (result) (increase(watchrelay_list_total{{{STREAMS}}}{RATE}))",
                        "{{result}}",
                    ),
                ),
                counts=True,
                looks={"success": "green", "error": "red", "expired": "orange"},
            ),
            Panel(
                "Missed changes",
                "Changes that a list found and the watch had not shown, in an hour.",
                "short",
                (
                    (
                        (
                            "sum by (cluster, stream) "
                            f"(increase(watchrelay_missed_changes_total{{{STREAMS}}}[1h]))"
                        ),
                        _STREAM,
                    ),
                ),
                bad=1,
                counts=True,
            ),
            Panel(
                "Circuit breaker",
                "1 while requests of all streams are paused: the API server is unavailable.",
                "short",
                (
                    (
                        f"max by (namespace, cluster) (watchrelay_endpoint_gate_closed{{{ALL}}})",
                        "{{namespace}}/{{cluster}}",
                    ),
                ),
                bad=1,
                counts=True,
                most=1,
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
                        f"histogram_quantile(0.99, sum by (cluster, stream, le) ({_LAG}))",
                        _STREAM,
                    ),
                ),
                bad=5,
            ),
            Panel(
                "Queues",
                "Part of each queue's bound that is in use.",
                "percentunit",
                (
                    (
                        (
                            f"max by (cluster, stream) (watchrelay_queue_bytes{{{STREAMS}}} / "
                            f"watchrelay_queue_capacity_bytes{{{STREAMS}}})"
                        ),
                        _STREAM,
                    ),
                ),
                bad=0.8,
                most=1,
            ),
            Panel(
                "Age of the newest snapshot",
                "Time since a snapshot of the stream ended, in intervals of the stream "
                "(snapshotInterval).",
                "none",
                (
                    (
                        f"({_SNAPSHOT}) / {_INTERVAL}",
                        _STREAM,
                    ),
                ),
                bad=2,
            ),
        ),
    ),
    (
        "Internals",
        (
            Panel(
                "CPU",
                "Cores in use, by process.",
                "short",
                (
                    (
                        f"sum by (namespace, pod) (rate(process_cpu_seconds_total{{{ALL}}}{RATE}))",
                        "{{namespace}}/{{pod}}",
                    ),
                ),
            ),
            Panel(
                "Memory",
                "Resident memory, by process.",
                "bytes",
                (
                    (
                        f"sum by (namespace, pod) (process_resident_memory_bytes{{{ALL}}})",
                        "{{namespace}}/{{pod}}",
                    ),
                ),
            ),
            Panel(
                "Uptime",
                "Time since each process started.",
                "s",
                (
                    (
                        f"time() - max by (namespace, pod) (process_start_time_seconds{{{ALL}}})",
                        "{{namespace}}/{{pod}}",
                    ),
                ),
            ),
            Panel(
                "Event loop",
                "How late timers run: all streams of a process share one loop, and while it is "
                "held up none of them moves.",
                "s",
                quantiles("watchrelay_event_loop_lag_seconds", ALL, "pod"),
                bad=1,
            ),
            Panel(
                "Garbage collector",
                "Part of all time that Python's collector held the process up, by generation. "
                "The oldest looks at everything that is held.",
                "percentunit",
                (
                    (
                        (
                            "sum by (namespace, pod, generation) "
                            f"(rate(watchrelay_gc_pause_seconds_total{{{ALL}}}{RATE}))"
                        ),
                        "{{namespace}}/{{pod}} generation {{generation}}",
                    ),
                ),
                bad=0.1,
                most=1,
            ),
            Panel(
                "Open files",
                "Part of the limit of open files in use, by process: each watch and each broker "
                "is a connection.",
                "percentunit",
                (
                    (
                        (
                            f"max by (namespace, pod) (process_open_fds{{{ALL}}} / "
                            f"process_max_fds{{{ALL}}})"
                        ),
                        "{{namespace}}/{{pod}}",
                    ),
                ),
                bad=0.8,
                most=1,
            ),
        ),
    ),
    (
        "Versions and config",
        (
            Panel(
                "Versions",
                "Processes by version.",
                "short",
                ((f"sum by (version) (watchrelay_build_info{{{ALL}}})", "{{version}}"),),
                stacked=True,
                counts=True,
                height=5,
            ),
            Panel(
                "Configs in force",
                "Processes by the hash of their config.",
                "short",
                ((f"sum by (hash) (watchrelay_config_info{{{ALL}}})", "{{hash}}"),),
                stacked=True,
                counts=True,
                height=5,
            ),
            Panel(
                "Newest config accepted",
                "1 if the newest edit of the config was accepted.",
                "short",
                (
                    (
                        (
                            "min by (namespace, cluster) "
                            f"(watchrelay_config_last_reload_successful{{{ALL}}})"
                        ),
                        "{{namespace}}/{{cluster}}",
                    ),
                ),
                bad=1,
                below=True,
                counts=True,
                most=1,
                height=5,
            ),
        ),
    ),
)
