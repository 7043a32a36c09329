"""Topics are looked at while they are used."""

import asyncio
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, cast

from tests.support.virtualtime import virtual
from tests.unit.daemon.conftest import settings_of
from watchrelay.core.errors import SinkUnavailable
from watchrelay.daemon.relaying import look_at_topics
from watchrelay.kafka.topic_config import Finding, TopicSpec
from watchrelay.kafka.topic_risks import TopicRisks
from watchrelay.observe.metrics import Metrics
from watchrelay.observe.status import StatusRegistry


class Topics:
    """All good; then somebody alters the control topic; then the brokers are away."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    async def look_again(self, specs: Iterable[TopicSpec]) -> dict[str, list[Finding]]:
        names = [each.name for each in specs]
        self.asked.append(names)
        if len(self.asked) == 1:
            return {name: [] for name in names}
        if len(self.asked) == 2:
            return {names[0]: [Finding(names[0], "forgotten", "cleanup.policy", "delete")]}
        raise SinkUnavailable("no broker answers")


@virtual
async def test_a_setting_altered_while_the_relay_runs_is_shown_within_ten_minutes() -> None:
    statuses, topics = StatusRegistry(), Topics()
    risks = TopicRisks("b:1", metrics=Metrics(), statuses=statuses)
    context = SimpleNamespace(
        settings=settings_of(["pods"]), planned={}, topics=topics, risks=risks
    )
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(look_at_topics(cast("Any", context)), name="topics")
        await asyncio.sleep(605.0)
        assert statuses.problems == {}
        await asyncio.sleep(600.0)
        (problem,) = statuses.problems.values()
        assert "cleanup.policy is delete: forgotten" in problem.message
        await asyncio.sleep(600.0)
        assert len(topics.asked) == 3
        assert list(statuses.problems.values()) == [problem]
        task.cancel()
