"""Whether Kafka keeps records by the time that this machine's clock gives them."""

from __future__ import annotations

from collections.abc import Callable

from watchrelay.core import clock
from watchrelay.core.clock_offset import SHOWN_FROM_S, ClockOffset, is_time, off_by
from watchrelay.core.trouble import Cause, Trouble
from watchrelay.kafka.topic_config import alter_command


class RecordTimes:
    """What is known of the clock and of the topics, for the sink and the streams that start.

    Args:
        now_s: as `clock.boot_s`: monotonic, and it counts while the machine is suspended.
        wall_ms: the clock that records get.
    """

    def __init__(
        self,
        offset: ClockOffset | None = None,
        *,
        servers: str = "",
        now_s: Callable[[], float] = clock.boot_s,
        wall_ms: Callable[[], int] = clock.wall_ms,
    ) -> None:
        self.offset = offset or ClockOffset()
        self.now_s, self.wall_ms = now_s, wall_ms
        self._servers = servers
        self._keeps_ms: dict[str, int] = {}
        self._by_brokers: set[str] = set()
        """Topics to whose records brokers gave the time, by their answers."""

    def learn(self, topic: str, keeps_ms: int, *, assumed: bool = False) -> None:
        """The topic removes records `keeps_ms` after the time that their writer gave them; 0: it
        never does, or brokers give the time. `assumed`: its configs cannot be read, so that what
        brokers answer counts more."""
        if not assumed:
            self._by_brokers.discard(topic)
        self._keeps_ms[topic] = 0 if topic in self._by_brokers else keeps_ms

    def timed(self, topic: str, at_ms: int, took_s: float) -> None:
        """A broker's clock showed `at_ms` at some time in the last `took_s`, and gave that time to
        records of `topic`."""
        if is_time(at_ms):
            if self._keeps_ms.get(topic):
                self._by_brokers.add(topic)
                self._keeps_ms[topic] = 0
            now_s = self.now_s()
            self.offset.kafka.note(at_ms, within_ms=1, asked_s=now_s - took_s, answered_s=now_s)

    def forget(self, topic: str) -> None:
        """No stream writes the topic."""
        self._keeps_ms.pop(topic, None)
        self._by_brokers.discard(topic)

    @property
    def topics(self) -> list[str]:
        """Those that remove records by the time of our clock."""
        return [topic for topic, keeps_ms in self._keeps_ms.items() if keeps_ms]

    def off_s(self, topic: str, *, suspected: bool = False) -> float | None:
        """The offset of the clock where it is half of what the topic keeps, or more: behind, its
        records would be removed while they are unchanged; ahead, the log cleaner would wait for
        that time to come. None: records may be written.

        Args:
            suspected: also by a single answer, which may be wrong.
        """
        keeps_ms = self._keeps_ms.get(topic)
        return self._off_s(keeps_ms, self.wall_ms(), suspected=suspected) if keeps_ms else None

    def stamp_ms(self, topic: str) -> int | None:
        """The time of records that are written now; None while they may not be, by `off_s`."""
        now_ms, keeps_ms = self.wall_ms(), self._keeps_ms.get(topic)
        return now_ms if not keeps_ms or self._off_s(keeps_ms, now_ms) is None else None

    @property
    def fit(self) -> bool:
        """Whether records of every topic may be written."""
        keeps_ms = min((each for each in self._keeps_ms.values() if each), default=0)
        return not keeps_ms or self._off_s(keeps_ms, self.wall_ms()) is None

    def _off_s(self, keeps_ms: int, now_ms: int, *, suspected: bool = False) -> float | None:
        of = self.offset.suspected_s if suspected else self.offset.known_s
        offset_s = of(self.now_s(), now_ms)
        if offset_s is None or abs(offset_s) < max(SHOWN_FROM_S, keeps_ms / 2000):
            return None
        return offset_s

    def true_ms(self) -> int:
        """As `ClockOffset.true_ms`, now."""
        return self.offset.true_ms(self.now_s(), self.wall_ms())

    def trouble(self, topic: str, offset_s: float) -> Trouble:
        """Why nothing is written to the topic."""
        kept, cure = f"{self._keeps_ms.get(topic, 0) / 3_600_000:g} h", self.cure(topic)
        message = (
            f"this machine's clock is {off_by(offset_s)}, and topic {topic} keeps records for "
            f"{kept} by the time of that clock (message.timestamp.type CreateTime): nothing is "
            f"written until the clock is right; {cure}"
        )
        return Trouble(topic, Cause.CLOCK, message, cure, operator=True)

    def refused(self, topic: str) -> str:
        """Why brokers refuse the time of a record, and the cure."""
        offset_s = self.offset.suspected_s(self.now_s(), self.wall_ms()) or 0.0
        is_off = abs(offset_s) >= SHOWN_FROM_S
        known = off_by(offset_s) if is_off else "wrong, or the brokers' is"
        return (
            "kafka refuses the time that this machine's clock gives to records "
            f"(INVALID_TIMESTAMP): the clock is {known}; {self.cure(topic)}"
        )

    def cure(self, topic: str) -> str:
        """What to do about the clock, and the command by which it does not matter to the topic."""
        return "set the clock (NTP), or let brokers give the time: " + alter_command(
            topic, {"message.timestamp.type": "LogAppendTime"}, servers=self._servers
        )
