"""A vector before it is judged.

Input: logs of a scenario, what was lost on the way to the reader, the control topic. Output: the
document without `expect`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from tests.support.stream_log import Log
from tests.support.vectors import record_of
from watchrelay import __version__
from watchrelay.contract.wire import WireRecord


@dataclass(frozen=True, slots=True)
class Vector:
    """One scenario. `lost` by partition: offsets that the first reading does not get; `streams`
    empty: all are wanted."""

    name: str
    about: str
    logs: list[Log]
    lost: dict[int, list[int]] = field(default_factory=dict)
    bootstrap: Literal["start", "heartbeats", "control"] = "start"
    control: Sequence[tuple[int, str, dict[str, object] | None]] = ()
    streams: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """As in the file."""
        return {
            "name": self.name,
            "about": self.about,
            "contract": 1,
            "streams": list(self.streams),
            "bootstrap": self.bootstrap,
            "control": [
                {
                    "offset": offset,
                    "key": key,
                    "value": None if value is None else json.dumps(value),
                }
                for offset, key, value in self.control
            ],
            "partitions": [
                {
                    "partition": number,
                    "start": log.start,
                    "end": log.end,
                    "lost": self.lost.get(number, []),
                    "records": [
                        record_of(offset, _timeless(record))
                        for offset, record in sorted(log.records.items())
                    ],
                }
                for number, log in enumerate(self.logs)
            ],
        }


def _timeless(record: WireRecord) -> WireRecord:
    """The record without the release that wrote it: vectors outlive releases."""
    written, fixed = (
        f'"version":"{version}","connector"'.encode() for version in (__version__, "1.0.0")
    )
    return record._replace(
        value=None if record.value is None else record.value.replace(written, fixed)
    )


def description(
    partitions: int, *, base: int = 1, topic: str = "k8s.test.core.pods"
) -> dict[str, object]:
    """A `stream/<stream>` record, as far as readers look at it."""
    return {
        "topic": topic,
        "partitions": partitions,
        "keyFormat": "plain",
        "resource": "pods/v1",
        "configHash": "c0ffee",
        "epochBase": base,
    }


def claim(
    instance: str, origin: dict[str, object] | None = None, partitions: list[int] | None = None
) -> dict[str, object]:
    """A `claim/<stream>` record; `partitions` of a part, or of none."""
    named = {} if partitions is None else {"partitions": partitions}
    return named | {
        "holder": instance,
        "instance": instance,
        "version": "0.0.0",
        "time": "2026-01-02T03:04:05.006Z",
        "from": origin,
    }
