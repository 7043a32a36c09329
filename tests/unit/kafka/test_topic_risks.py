"""What is shown of settings that can take records away: where, and how often."""

import asyncio
import logging
import time

import pytest

from tests.support.turns import slowness
from tests.support.virtualtime import run, virtual
from watchrelay.kafka.topic_config import Finding
from watchrelay.kafka.topic_risks import TopicRisks
from watchrelay.observe.metrics import Metrics
from watchrelay.observe.status import StatusRegistry

MANY = 5_000


def small(topic: str, value: str = "1000") -> Finding:
    cure = (("retention.bytes", "-1"),)
    return Finding(topic, "objects are removed", "retention.bytes", value, cure)


class Shown:
    """Risks, and where they are shown."""

    def __init__(self) -> None:
        self.statuses, self.metrics = StatusRegistry(), Metrics()
        self.risks = TopicRisks("b:1", metrics=self.metrics, statuses=self.statuses)

    def count(self, setting: str) -> float | None:
        return self.metrics.registry.get_sample_value(
            "watchrelay_topics_at_risk", {"setting": setting}
        )


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.__dict__["warning"] for record in caplog.records]


@virtual
async def test_a_cause_is_one_problem_one_metric_and_one_line_over_all_topics(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, logger="watchrelay")

    shown = Shown()
    for name in ("a", "b", "c"):
        shown.risks.put({name: [small(name)]})
        await asyncio.sleep(0.1)
    await asyncio.sleep(1.0)
    (shown_now,) = shown.statuses.problems.values()
    problem = shown_now.message
    assert problem.startswith("topics a, b, c: retention.bytes is 1000: objects are removed")
    assert shown.count("retention.bytes") == 3
    await asyncio.sleep(5.0)
    assert logged(caplog) == [problem]
    # the same again is no news
    shown.risks.put({name: [small(name)] for name in ("a", "b", "c")})
    await asyncio.sleep(5.0)
    assert logged(caplog) == [problem]
    # one more is
    shown.risks.put({"d": [small("d")]})
    await asyncio.sleep(5.0)
    (more,) = logged(caplog)[1:]
    assert more == (
        "topic d: retention.bytes is 1000: objects are removed; mend it with: "
        "kafka-configs.sh --bootstrap-server b:1 --alter --entity-type topics --entity-name d "
        "--add-config retention.bytes=-1"
    )


@virtual
async def test_what_is_cured_and_what_is_not_used_any_longer_is_not_shown() -> None:
    shown = Shown()
    shown.risks.put({"a": [small("a")], "b": [small("b")]})
    shown.risks.put({"a": []})
    await asyncio.sleep(1.0)
    assert list(shown.statuses.problems) == ["setting retention.bytes"]
    assert shown.count("retention.bytes") == 1
    shown.risks.put({}, of={"a"})
    await asyncio.sleep(1.0)
    assert shown.statuses.problems == {}
    assert shown.count("retention.bytes") == 0


def test_what_many_topics_cost_grows_with_their_number() -> None:
    """At the start they are looked at one by one."""

    async def main() -> float:
        shown, began_s = Shown(), time.thread_time()
        for number in range(MANY):
            shown.risks.put({f"t{number}": [small(f"t{number}")]})
            await asyncio.sleep(0.001)
        await asyncio.sleep(5.0)
        assert shown.count("retention.bytes") == MANY
        return time.thread_time() - began_s

    took_s = run(main())
    assert took_s < 5.0 * slowness(), f"{took_s:.1f} s of CPU"


@virtual
async def test_what_takes_no_record_away_is_not_shown() -> None:
    shown = Shown()
    shown.risks.put({"a": [Finding("a", "it has 8 partitions, 4 are used")]})
    await asyncio.sleep(1.0)
    assert shown.statuses.problems == {}
    assert shown.count("") is None


@virtual
async def test_of_topics_that_are_used_no_longer_nothing_is_kept(
    caplog: pytest.LogCaptureFixture,
) -> None:
    shown, odd = Shown(), Finding("a", "it has 8 partitions, 4 are used")
    for number in range(MANY):
        shown.risks.note(f"t{number}", [])
    for _ in range(2):
        shown.risks.note("a", [odd])
    assert logged(caplog) == [odd.why], "the same is no news"
    assert len(shown.risks._noted) == 1
    shown.risks.put({}, of={"b"})
    assert not shown.risks._noted
    shown.risks.note("a", [odd])
    assert logged(caplog) == [odd.why] * 2
