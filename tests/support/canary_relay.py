"""A relay of Secrets, its store, reflector and writer the real ones, and what it shows on its topic
and to operators. Kafka is a list of records."""

from __future__ import annotations

import asyncio
import io
import json
import random
from collections.abc import Iterable

from prometheus_client import generate_latest

from tests.support.canary import SECRETS, Outputs
from tests.support.fakesink import FakeControl, FakeLogReader, KafkaLogs, LogConnection
from watchrelay.cli.audits import print_rows
from watchrelay.cli.records import as_json, as_name, as_text, yaml_printer
from watchrelay.consumer.audit import Audit, AuditProblem
from watchrelay.consumer.reader import TailRecord
from watchrelay.contract.control_state import Origin
from watchrelay.contract.records import ObjectRecord, decode
from watchrelay.contract.wire import WireRecord
from watchrelay.model.resources import Selection
from watchrelay.model.streams import Format, StreamSpec, WatchPlan
from watchrelay.observe.metrics import Metrics
from watchrelay.observe.status import Readiness, StatusRegistry
from watchrelay.publish.ports import WriterContext
from watchrelay.publish.timing import HeartbeatInterval
from watchrelay.publish.writer import StreamWriter
from watchrelay.store.objects import Store
from watchrelay.store.reflector import Reflector
from watchrelay.store.transform import Transform

PARTITIONS = 2
MESSAGE_BYTES_MAX = 64 << 10
"""Of the topic: the Secret called `huge` does not fit."""


class CanaryRelay:
    """One life of the relay on a log that others continue."""

    def __init__(
        self,
        transform: Transform,
        selection: Selection,
        form: Format,
        kafka: KafkaLogs,
        control: FakeControl,
    ) -> None:
        self.spec = StreamSpec(
            "secrets",
            "test",
            "k8s.test.core.secrets",
            PARTITIONS,
            WatchPlan(selection),
            "c0ffee",
            b"",
            form,
            snapshot_interval_s=0.0,
        )
        self.selection, self.kafka = selection, kafka
        self.metrics, self.statuses = Metrics(), StatusRegistry()
        self.status = self.statuses.open("secrets", self.spec.topic)
        connection = LogConnection(kafka, random.Random(1))
        self.store = Store(transform, partitions=PARTITIONS)
        self.log = FakeLogReader(self.spec, connection)
        self.relay = StreamWriter(
            self.spec,
            WriterContext(
                sink=connection,
                control=control,
                store=self.store,
                metrics=self.metrics.stream("secrets", SECRETS),
                topic_metrics=self.metrics.topic(self.spec.topic),
                status=self.status,
                progress=self.status.progress,
                heartbeat_interval=HeartbeatInterval(1.0),
                must_stop=lambda epoch: control.superseded("secrets", epoch),
                queue_bytes=64 << 20,
                max_message_bytes=MESSAGE_BYTES_MAX,
                gap_reader=self.log,
                rng=random.Random(1),
                now_s=lambda: asyncio.get_running_loop().time(),
                wall_ms=lambda: int(asyncio.get_running_loop().time() * 1000),
            ),
        )
        self.reflector = Reflector(
            "secrets",
            self.store,
            self.relay,
            metrics=self.metrics.stream("secrets", SECRETS),
            status=self.status,
        )

    def written(self) -> list[tuple[int, int, WireRecord]]:
        """Partition, offset and record of everything in the log."""
        logs = [
            (partition, self.kafka.logs.get((self.spec.topic, partition), []))
            for partition in range(PARTITIONS)
        ]
        return [
            (partition, offset, record)
            for partition, log in logs
            for offset, record in enumerate(log)
        ]

    def collect(self, outputs: Outputs, path: str) -> None:
        """Adds the new records of the log, as having left by `path`."""
        for partition, offset, record in self.written():
            if offset < outputs.read[partition]:
                continue
            outputs.read[partition] = offset + 1
            outputs.add(
                path,
                (record.key or b"")
                + (record.value or b"")
                + b"".join(name.encode() + value for name, value in record.headers),
            )
            if (
                isinstance(decode(record.key, record.value, record.headers), ObjectRecord)
                and record.value is not None
            ):
                outputs.objects[path] += 1

    def add_statuses(self, outputs: Outputs) -> None:
        """Adds what operators and the commands see."""
        outputs.add("metrics", generate_latest(self.metrics.registry))
        outputs.add(
            "status", json.dumps([status.as_json() for status in self.statuses.streams.values()])
        )
        outputs.add("status", json.dumps(Readiness(self.statuses).check()[1]))
        outputs.add("repr", repr(self.spec) + repr(self.store) + repr(self.status))
        audits = [
            Audit(
                "secrets",
                self.spec.topic,
                each,
                origin=Origin(),
                partitions=PARTITIONS,
            )
            for each in range(PARTITIONS)
        ]
        for partition, offset, record in self.written():
            decoded = decode(record.key, record.value, record.headers)
            seen = TailRecord(self.spec.topic, partition, offset, decoded)
            outputs.add(
                "tail",
                as_text(seen, coloured=False)
                + as_json(seen)
                + yaml_printer()(seen)
                + as_name(seen),
            )
            audits[partition].take(offset, -1, decoded, record.headers)
            audits[partition].add(
                AuditProblem("hash", offset, str(record.key), "added to see how it is shown")
            )
        outputs.add("verify", _rows(audits, "text") + _rows(audits, "json"))


def _rows(audits: Iterable[Audit], output: str) -> str:
    out = io.StringIO()
    print_rows([(audit, 0, 1) for audit in audits], out, as_json=output == "json", now_ms=0)
    return out.getvalue()
