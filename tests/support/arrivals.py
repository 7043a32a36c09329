"""When the records of a topic arrive, and the longest time without one."""

from __future__ import annotations

import threading
import time
import uuid
from typing import Any, Self

from confluent_kafka import OFFSET_END, Consumer, Message, TopicPartition

from tests.support.process import wait_until

_MARKER = b"%wr/"
_QUIET_S = 0.5


class Arrivals:
    """When records of objects arrive, by stream, from now on; a context manager."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": uuid.uuid4().hex,
                "fetch.wait.max.ms": 10,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )
        known = self._consumer.list_topics(topic, timeout=10.0).topics[topic].partitions
        self._consumer.assign([TopicPartition(topic, each, OFFSET_END) for each in known])
        self._last_s: dict[str, float] = {}
        self._longest_s: dict[str, float] = {}
        self._newest_s = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="arrivals", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._consumer.close()

    def _run(self) -> None:
        while not self._over.is_set():
            for message in self._consumer.consume(500, timeout=0.02):
                if message.error() is None and not (message.key() or b"").startswith(_MARKER):
                    self._take(_stream_of(message), time.monotonic())

    def _take(self, stream: str, now_s: float) -> None:
        longest_s = now_s - self._last_s.get(stream, now_s)
        self._longest_s[stream] = max(self._longest_s.get(stream, 0.0), longest_s)
        self._last_s[stream] = self._newest_s = now_s

    def begin(self) -> None:
        """The longest times count from here on."""
        now_s = time.monotonic()
        self._last_s = dict.fromkeys(self._last_s, now_s)
        self._longest_s = {}

    def longest_s(self) -> float:
        """The longest time without a record of a stream since `begin`."""
        return max(self._longest_s.values(), default=0.0)

    def await_quiet(self) -> None:
        """Return once no record has arrived for a while."""
        wait_until("no record arrives", lambda: time.monotonic() - self._newest_s > _QUIET_S)


def _stream_of(message: Message) -> str:
    headers: Any = message.headers() or ()
    return str(dict(headers)["ce_wrstream"], "ascii")
