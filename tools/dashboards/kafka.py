"""The Kafka side: records, acknowledgements, errors."""

from __future__ import annotations

from typing import Final

from tools.dashboards.panel import ALL, RATE, TOPICS, Panel, Rows, quantiles, stat

KAFKA: Final[Rows] = (
    (
        "Overview",
        (
            stat(
                "Records acknowledged",
                "Records of all kinds.",
                "wps",
                f"sum(rate(watchrelay_records_acked_total{{{TOPICS}}}{RATE}))",
                width=6,
            ),
            stat(
                "Bytes",
                "Keys and values before compression.",
                "Bps",
                f"sum(rate(watchrelay_record_bytes_total{{{TOPICS}}}{RATE}))",
                width=6,
            ),
            stat(
                "Since the last acknowledgement",
                "Time since Kafka acknowledged a batch of any topic; heartbeats alone make "
                "several a minute.",
                "s",
                f"min(watchrelay_last_ack_age_seconds{{{TOPICS}}})",
                bad=120,
                width=6,
            ),
            stat(
                "Errors",
                "Batches that failed or were not acknowledged for seconds, in the time shown.",
                "short",
                f"sum(increase(watchrelay_produce_errors_total{{{TOPICS}}}[$__range]))",
                bad=1,
                width=6,
                counts=True,
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
                (
                    (
                        f"sum by (topic) (rate(watchrelay_records_acked_total{{{TOPICS}}}{RATE}))",
                        "{{topic}}",
                    ),
                ),
                stacked=True,
            ),
            Panel(
                "Records by kind",
                "Events, snapshot records, tombstones, markers (heartbeats among them).",
                "wps",
                (
                    (
                        f"sum by (kind) (rate(watchrelay_records_acked_total{{{TOPICS}}}{RATE}))",
                        "{{kind}}",
                    ),
                ),
                stacked=True,
            ),
            Panel(
                "Bytes by topic",
                "Keys and values before compression.",
                "Bps",
                (
                    (
                        f"sum by (topic) (rate(watchrelay_record_bytes_total{{{TOPICS}}}{RATE}))",
                        "{{topic}}",
                    ),
                ),
            ),
            Panel(
                "Trimmed records",
                "Records that were too large to be published whole, in an hour.",
                "short",
                (
                    (
                        (
                            "sum by (topic, how) "
                            f"(increase(watchrelay_records_trimmed_total{{{TOPICS}}}[1h])) > 0"
                        ),
                        "{{topic}}: {{how}}",
                    ),
                ),
                width=12,
                bad=1,
                counts=True,
                empty="no record was trimmed",
                may_be_empty=True,
            ),
            Panel(
                "Requests for snapshots",
                "Records of the signal topic by what became of them, in an hour.",
                "short",
                (
                    (
                        f"sum by (result) (increase(watchrelay_signals_total{{{ALL}}}[1h]))",
                        "{{result}}",
                    ),
                ),
                width=12,
                counts=True,
                empty="no snapshot was asked for",
                may_be_empty=True,
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
                quantiles("watchrelay_produce_duration_seconds", TOPICS),
                bad=1,
            ),
            Panel(
                "Errors of batches",
                "By error; no_acknowledgement is counted while Kafka is silent. The same bytes "
                "are sent again under the same positions.",
                "short",
                (
                    (
                        (
                            "sum by (topic, error) "
                            f"(increase(watchrelay_produce_errors_total{{{TOPICS}}}{RATE})) > 0"
                        ),
                        "{{topic}}: {{error}}",
                    ),
                ),
                counts=True,
                empty="no batch failed",
                may_be_empty=True,
            ),
            Panel(
                "Producers rebuilt",
                "In an hour, by reason. watchdog: a broker answered and took nothing for 16 s, or "
                "none of those known could be used; credentials: connections were opened with new "
                "secrets; identity: a partition got a new producer id.",
                "short",
                (
                    (
                        (
                            "sum by (reason) "
                            f"(increase(watchrelay_producer_rebuilds_total{{{ALL}}}[1h]))"
                        ),
                        "{{reason}}",
                    ),
                ),
                counts=True,
                empty="no producer was rebuilt",
                may_be_empty=True,
            ),
            Panel(
                "Transactions",
                "With `kafka.delivery: transactional`: how they ended. What was not committed is "
                "sent again.",
                "short",
                (
                    (
                        (
                            "sum by (result) "
                            f"(increase(watchrelay_transactions_total{{{ALL}}}{RATE}))"
                        ),
                        "{{result}}",
                    ),
                ),
                counts=True,
                empty="no transactions",
                may_be_empty=True,
            ),
            Panel(
                "Time of a transaction",
                "From its begin to its end.",
                "s",
                quantiles("watchrelay_transaction_duration_seconds", ALL),
                empty="no transactions",
                may_be_empty=True,
            ),
            Panel(
                "Records queued",
                "Records that wait for Kafka, by stream.",
                "short",
                (
                    (
                        f"sum by (cluster, stream) (watchrelay_queue_records{{{ALL}}})",
                        "{{cluster}}/{{stream}}",
                    ),
                ),
                width=12,
            ),
            Panel(
                "Silence by topic",
                "Time since Kafka acknowledged a batch of the topic.",
                "s",
                (
                    (
                        (f"min by (topic) (watchrelay_last_ack_age_seconds{{{TOPICS}}})"),
                        "{{topic}}",
                    ),
                ),
                width=12,
                bad=120,
            ),
        ),
    ),
)
