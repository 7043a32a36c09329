"""Settings that can take records away from topics that are used all the same: on the status page,
as a metric, and in the log, a line for each cause over all topics."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from watchrelay.kafka.topic_config import Finding, troubles
from watchrelay.observe.metrics import Metrics
from watchrelay.observe.status import StatusRegistry

_log = logging.getLogger(__name__)

_SHOWN_AFTER_S: Final = 0.5
_LOGGED_AFTER_S: Final = 2.0
"""Topics are looked at one by one at the start: their causes are then one line each, put together
once."""
_PROBLEM: Final = "setting "


class TopicRisks:
    """What is wrong with each topic, as last seen. Use within one event loop."""

    def __init__(self, servers: str, *, metrics: Metrics, statuses: StatusRegistry) -> None:
        self._servers = servers
        self._at_risk = metrics.gauge("topics_at_risk")
        self._problems = statuses.problems
        self._found: dict[str, tuple[Finding, ...]] = {}
        self._unlogged: set[Finding] = set()
        self._is_due = False
        self._counted: set[str] = set()
        """Settings that a topic has had, so that their number of topics is shown when it is 0."""
        self._noted: dict[str, set[Finding]] = {}
        """By topic in use, what is in the log and shown nowhere."""

    def note(self, name: str, findings: Sequence[Finding]) -> None:
        """A stream is to use this topic: tell also what is wrong besides its settings."""
        self.put({name: findings})
        former = self._noted.pop(name, set())
        if found := {each for each in findings if not each.setting}:
            self._noted[name] = found
        for each in sorted(found - former):
            extra = {"topic": each.topic, "warning": each.why}
            _log.warning("topic is not as configured", extra=extra)

    def put(
        self, found: Mapping[str, Sequence[Finding]], *, of: Collection[str] | None = None
    ) -> None:
        """These topics were looked at. Args: `of`: all topics that are used, if they are known;
        the others are forgotten."""
        if of is not None:
            self._noted = {name: noted for name, noted in self._noted.items() if name in of}
            found = {**found, **dict.fromkeys(self._found.keys() - of, ())}
        is_news = False
        for name, findings in found.items():
            former = self._found.pop(name, ())
            now = tuple(each for each in findings if each.setting)
            if now:
                self._found[name] = now
            is_news = is_news or now != former
            if new := {*now} - {*former}:
                if not self._unlogged:
                    asyncio.get_running_loop().call_later(_LOGGED_AFTER_S, self._log)
                self._unlogged |= new
        if is_news and not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_later(_SHOWN_AFTER_S, self._show)

    def _all(self) -> set[Finding]:
        return {each for findings in self._found.values() for each in findings}

    def _log(self) -> None:
        unlogged, self._unlogged = self._unlogged & self._all(), set()
        for each in troubles(sorted(unlogged), servers=self._servers).values():
            _log.warning("topic has a questionable setting", extra={"warning": each.message})

    def _show(self) -> None:
        self._is_due, found = False, self._all()
        shown = {
            f"{_PROBLEM}{name}": trouble
            for name, trouble in troubles(sorted(found), servers=self._servers).items()
        }
        for name in [each for each in self._problems if each.startswith(_PROBLEM)]:
            if name not in shown:
                self._problems.pop(name)
        for name, trouble in shown.items():
            self._problems.put(name, trouble)
        topics = {each.setting: set[str]() for each in found}
        for each in found:
            topics[each.setting].add(each.topic)
        self._counted |= topics.keys()
        for setting in self._counted:
            self._at_risk.labels(setting).set(len(topics.get(setting, ())))
