from dataclasses import replace

import pytest

from tests.support.admin_server import live
from tests.support.troubles import cause_of, message_of, trouble
from watchrelay.core import clock
from watchrelay.core.trouble import Cause
from watchrelay.model.progress import State
from watchrelay.observe.advice import ADVICE, LEVELS
from watchrelay.observe.overview import (
    BEHIND_AFTER_MS,
    Card,
    StreamVerdict,
    cards,
    headline,
    judge,
)
from watchrelay.observe.status import (
    NOTHING_QUEUED,
    QueuedNow,
    StatusRegistry,
    StreamStatus,
)

NOW_MS = clock.wall_ms() + 1_000


def judged(statuses: StatusRegistry) -> tuple[str, list[Card]]:
    verdicts = {name: judge(status, NOW_MS) for name, status in statuses.streams.items()}
    wrong = cards(statuses, verdicts)
    return headline(verdicts.values(), wrong), wrong


@pytest.mark.parametrize(
    ("cause", "kind"),
    [
        (Cause.MISSING_RIGHT, "right"),
        (Cause.RESOURCE_NOT_SERVED, "resource"),
        (Cause.TOPIC_UNUSABLE, "topic"),
        (Cause.ENTRY_UNUSABLE, "entry"),
    ],
)
@pytest.mark.parametrize("message", ["403 forbidden", "kafka: no topic", "404 is not served", "?"])
def test_a_wait_for_an_operator_is_judged_by_its_cause_whatever_its_message(
    cause: Cause, kind: str, message: str
) -> None:
    status = StreamStatus("pods")
    status.failed("stream", trouble(message, cause, operator=True))
    verdict = judge(status, NOW_MS)
    assert status.trouble is not None
    assert verdict == StreamVerdict("person", status.trouble)
    assert cause_of(verdict) == kind


@pytest.mark.parametrize(
    ("state", "cause", "kind"),
    [
        ("backoff", Cause.KUBERNETES, "kubernetes"),
        ("backoff", None, "kubernetes"),
        ("watching", Cause.MISSING_RIGHT, "kubernetes"),
        ("waiting", Cause.KAFKA, "kafka"),
        ("waiting", Cause.INTERNAL, "internal"),
        ("waiting", Cause.OTHER, "other"),
    ],
)
def test_what_is_retried_is_judged_by_its_cause(
    state: State, cause: Cause | None, kind: str
) -> None:
    status = StreamStatus("pods")
    status.progress.state = state
    if cause is not None:
        status.failed("watch", trouble("kafka: no topic 403 forbidden", cause))
    verdict = judge(status, NOW_MS)
    assert (verdict.level, cause_of(verdict)) == ("retrying", kind)
    assert message_of(verdict)


def test_a_stream_without_trouble_is_judged_by_its_state() -> None:
    statuses = StatusRegistry()
    levels = {}
    states: tuple[State, ...] = ("watching", "listing", "resuming", "waiting", "standby", "stopped")
    for state in states:
        status = live(statuses, state)
        status.progress.state = state
        levels[state] = judge(status, NOW_MS).level
    assert levels == {
        "watching": "live", "listing": "live", "resuming": "live", "waiting": "starting", "standby": "standby", "stopped": "stopped",
    }  # fmt: skip
    assert judge(StreamStatus("new"), NOW_MS).level == "starting"


def test_what_waits_too_long_for_kafka_is_behind() -> None:
    status = live(StatusRegistry(), "pods")
    status.queues = QueuedNow(queued_records=3, queued_ms=NOW_MS)
    assert judge(status, NOW_MS + BEHIND_AFTER_MS).level == "live"
    assert judge(status, NOW_MS + BEHIND_AFTER_MS + 1).level == "behind"
    status.queues = QueuedNow(dirty_keys=5, queued_ms=NOW_MS)
    assert message_of(judge(status, NOW_MS)) == "0 records queued, 5 objects waiting to be queued"


def test_a_card_is_as_bad_as_the_worst_of_what_is_on_it() -> None:
    statuses = StatusRegistry()
    cause = Cause.MISSING_RIGHT
    statuses.problems.put("kubernetes", trouble("get /api: 403", cause))
    live(statuses, "pods").failed("watch", trouble("list pods: 403", cause, operator=True))
    sentence, (card,) = judged(statuses)
    assert (card.level, card.streams) == ("person", ["pods"])
    assert sentence == "1 thing needs you; the only stream is not live."


def test_streams_of_one_cause_share_a_card_and_the_problem_of_the_process() -> None:
    statuses = StatusRegistry()
    for number in range(5):
        status = live(statuses, f"s{number}")
        status.progress.state = "backoff"
        status.failed(
            "watch",
            trouble(f"watch s{number} at 10.0.0.1:6443: connection refused", Cause.KUBERNETES),
            next_attempt_ms=NOW_MS + number,
        )
    statuses.problems.put(
        "kubernetes", trouble("get /api at 10.0.0.1:6443: connection refused", Cause.KUBERNETES)
    )
    sentence, (card,) = judged(statuses)
    assert sentence == "1 trouble is being retried; none of 5 streams is live."
    assert (card.cause, card.streams, card.next_ms) == (
        "kubernetes",
        [f"s{number}" for number in range(5)],
        NOW_MS,
    )
    assert card.messages == [("", "get /api at 10.0.0.1:6443: connection refused")]


def test_credentials_that_do_not_work_need_a_person_whichever_loop_found_out() -> None:
    statuses = StatusRegistry()
    status = live(statuses, "pods")
    status.failed(
        "watch", trouble("watch pods at 10.0.0.1:6443: 401 Unauthorized", Cause.CREDENTIALS)
    )
    statuses.problems.put(
        "kubernetes", trouble("get /api at 10.0.0.1:6443: 401 Unauthorized", Cause.CREDENTIALS)
    )
    _, (card,) = judged(statuses)
    assert (card.level, card.cause, card.streams) == ("person", "credentials", ["pods"])
    status.failed(
        "watch", trouble("watch pods at 10.0.0.1:6443: connection refused", Cause.KUBERNETES)
    )
    statuses.problems.put(
        "kubernetes", trouble("get /api at 10.0.0.1:6443: connection refused", Cause.KUBERNETES)
    )
    _, (card,) = judged(statuses)
    assert (card.level, card.cause) == ("retrying", "kubernetes"), (
        "a later failure has a cause of its own"
    )


def test_of_two_troubles_the_one_that_needs_a_person_is_judged() -> None:
    status = StreamStatus("pods")
    status.failed("discovery", trouble("401 Unauthorized", Cause.CREDENTIALS))
    status.failed("daemon", trouble("no broker answers", Cause.KAFKA))
    assert (judge(status, NOW_MS).level, cause_of(judge(status, NOW_MS))) == (
        "person",
        "credentials",
    )
    status.recovered("discovery")
    assert (judge(status, NOW_MS).level, cause_of(judge(status, NOW_MS))) == ("retrying", "kafka")


def test_the_worst_comes_first_then_what_began_first() -> None:
    statuses = StatusRegistry()
    statuses.problems.put("restart", trouble("an edit waits", Cause.RESTART_NEEDED))
    statuses.problems.put("kafka", trouble("silent", Cause.KAFKA))
    statuses.problems.put("reload", trouble("refused", Cause.CONFIG_REFUSED))
    statuses.problems.put("config", trouble("twice", Cause.DUPLICATE_ENTRY))
    config = statuses.problems["config"]
    statuses.problems["config"] = replace(config, since_ms=config.since_ms - 1_000)
    sentence, found = judged(statuses)
    assert [card.cause for card in found] == ["config", "reload", "kafka", "restart"]
    assert sentence == "The config names no stream."


def test_what_follows_from_kafka_is_no_trouble_of_its_own() -> None:
    statuses = StatusRegistry()
    statuses.problems.put("signal", trouble("signal topic: refused", Cause.SIGNAL_TOPIC))
    assert [(card.level, card.cause) for card in judged(statuses)[1]] == [("notice", "signal")]
    statuses.problems.put("kafka", trouble("silent", Cause.KAFKA))
    assert [(card.level, card.cause) for card in judged(statuses)[1]] == [("retrying", "kafka")]
    behind = statuses.open("pods")
    behind.queues = QueuedNow(queued_records=3, queued_ms=NOW_MS - 60_000)
    (card,) = judged(statuses)[1]
    assert (card.level, card.cause, card.streams) == ("retrying", "kafka", ["pods"])
    behind.queues = NOTHING_QUEUED
    statuses.problems.put("control", trouble("control topic: refused", Cause.CONTROL_TOPIC))
    levels = [(card.level, card.cause) for card in judged(statuses)[1]]
    assert levels == [("person", "control"), ("retrying", "kafka")]


def test_a_problem_of_an_unknown_name_has_a_card_too() -> None:
    statuses = StatusRegistry()
    statuses.problems.put("some<b>thing", trouble("odd"))
    assert [(card.level, card.cause) for card in judged(statuses)[1]] == [("retrying", "other")]


def test_every_cause_has_advice_and_a_title_and_every_level_a_place() -> None:
    assert set(ADVICE) == set(Cause)
    assert all(each.title and each.todo for each in ADVICE.values())
    assert len(set(LEVELS)) == len(LEVELS)


@pytest.mark.parametrize(
    ("states", "sentence"),
    [
        ((), "The config names no stream."),
        (("watching",), "The only stream is live."),
        (("watching", "watching"), "All 2 streams are live."),
        (("watching", "standby", "standby"), "1 of 3 streams are live here, 2 stand by."),
        (("stopped", "watching"), "The relay is stopping: 1 of 2 streams have stopped."),
        (("waiting", "watching"), "1 of 2 streams is starting; 1 of 2 streams is live."),
    ],
)
def test_the_verdict_is_one_sentence(states: tuple[State, ...], sentence: str) -> None:
    statuses = StatusRegistry()
    for number, state in enumerate(states):
        live(statuses, f"s{number}").progress.state = state
    assert judged(statuses)[0] == sentence
