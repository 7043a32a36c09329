import pytest

from tests.support.admin_server import live
from watchrelay.core import causes, clock
from watchrelay.core.causes import Cause, CauseKind
from watchrelay.observe.overview import (
    ADVICE,
    BEHIND_AFTER_MS,
    LEVELS,
    Card,
    StreamVerdict,
    cards,
    headline,
    judge,
)
from watchrelay.observe.status import State, StatusRegistry, StreamStatus

NOW_MS = clock.wall_ms() + 1_000


def judged(statuses: StatusRegistry) -> tuple[str, list[Card]]:
    verdicts = {name: judge(status, NOW_MS) for name, status in statuses.streams.items()}
    wrong = cards(statuses, verdicts)
    return headline(verdicts.values(), wrong), wrong


@pytest.mark.parametrize(
    ("cause", "kind"),
    [
        (causes.MISSING_RIGHT.about("pods", "watch"), "right"),
        (causes.RESOURCE_NOT_SERVED.about("gadgets"), "resource"),
        (causes.TOPIC_UNUSABLE.about("k8s.prod.core.pods"), "topic"),
        (causes.ENTRY_UNUSABLE.about("nodes"), "entry"),
    ],
)
@pytest.mark.parametrize("message", ["403 forbidden", "kafka: no topic", "404 is not served", "?"])
def test_a_wait_for_an_operator_is_judged_by_its_cause_whatever_its_message(
    cause: Cause, kind: str, message: str
) -> None:
    status = StreamStatus("pods")
    status.failed("stream", message, cause=cause, operator=True)
    verdict = judge(status, NOW_MS)
    assert status.trouble is not None
    assert verdict == StreamVerdict("person", status.trouble.since_ms, cause, message)
    assert verdict.kind == kind


@pytest.mark.parametrize(
    ("state", "cause", "kind"),
    [
        ("backoff", causes.KUBERNETES, "kubernetes"),
        ("backoff", None, "kubernetes"),
        ("watching", causes.MISSING_RIGHT, "kubernetes"),
        ("waiting", causes.KAFKA, "kafka"),
        ("waiting", causes.INTERNAL, "internal"),
        ("waiting", causes.OTHER, "other"),
    ],
)
def test_what_is_retried_is_judged_by_its_cause(
    state: State, cause: Cause | None, kind: str
) -> None:
    status = StreamStatus("pods")
    status.state = state
    if cause is not None:
        status.failed("watch", "kafka: no topic 403 forbidden", cause=cause)
    verdict = judge(status, NOW_MS)
    assert (verdict.level, verdict.kind) == ("retrying", kind)
    assert verdict.message


def test_a_stream_without_trouble_is_judged_by_its_state() -> None:
    statuses = StatusRegistry()
    levels = {}
    states: tuple[State, ...] = ("watching", "listing", "resuming", "waiting", "standby", "stopped")
    for state in states:
        status = live(statuses, state)
        status.state = state
        levels[state] = judge(status, NOW_MS).level
    assert levels == {
        "watching": "live", "listing": "live", "resuming": "live", "waiting": "starting", "standby": "standby", "stopped": "stopped",
    }  # fmt: skip
    assert judge(StreamStatus("new"), NOW_MS).level == "starting"


def test_what_waits_too_long_for_kafka_is_behind() -> None:
    status = live(StatusRegistry(), "pods")
    status.queues(records=3, size_bytes=10, dirty_keys=0)
    assert judge(status, status.queued_ms + BEHIND_AFTER_MS).level == "live"
    assert judge(status, status.queued_ms + BEHIND_AFTER_MS + 1).level == "behind"
    status.queues(records=0, size_bytes=0, dirty_keys=5)
    assert (
        judge(status, status.queued_ms).message
        == "0 records queued, 5 objects waiting to be queued"
    )


def test_a_card_is_as_bad_as_the_worst_of_what_is_on_it() -> None:
    statuses = StatusRegistry()
    cause = causes.MISSING_RIGHT.about("pods", "list")
    statuses.problems.put("kubernetes", "get /api: 403", cause=cause)
    live(statuses, "pods").failed("watch", "list pods: 403", cause=cause, operator=True)
    sentence, (card,) = judged(statuses)
    assert (card.level, card.streams) == ("person", ["pods"])
    assert sentence == "1 thing needs you; the only stream is not live."


def test_streams_of_one_cause_share_a_card_and_the_problem_of_the_process() -> None:
    statuses = StatusRegistry()
    for number in range(5):
        status = live(statuses, f"s{number}")
        status.state = "backoff"
        status.failed(
            "watch",
            f"watch s{number} at 10.0.0.1:6443: connection refused",
            next_attempt_ms=NOW_MS + number,
            cause=causes.KUBERNETES,
        )
    statuses.problems["kubernetes"] = "get /api at 10.0.0.1:6443: connection refused"
    sentence, (card,) = judged(statuses)
    assert sentence == "1 trouble is being retried; none of 5 streams is live."
    assert (card.kind, card.streams, card.next_ms) == (
        "kubernetes",
        [f"s{number}" for number in range(5)],
        NOW_MS,
    )
    assert card.messages == [("", "get /api at 10.0.0.1:6443: connection refused")]


def test_credentials_that_do_not_work_need_a_person_whichever_loop_found_out() -> None:
    statuses = StatusRegistry()
    status = live(statuses, "pods")
    status.failed(
        "watch", "watch pods at 10.0.0.1:6443: 401 Unauthorized", cause=causes.CREDENTIALS
    )
    statuses.problems.put(
        "kubernetes", "get /api at 10.0.0.1:6443: 401 Unauthorized", cause=causes.CREDENTIALS
    )
    _, (card,) = judged(statuses)
    assert (card.level, card.kind, card.streams) == ("person", "credentials", ["pods"])
    status.failed(
        "watch", "watch pods at 10.0.0.1:6443: connection refused", cause=causes.KUBERNETES
    )
    statuses.problems["kubernetes"] = "get /api at 10.0.0.1:6443: connection refused"
    _, (card,) = judged(statuses)
    assert (card.level, card.kind) == ("retrying", "kubernetes"), (
        "a later failure has a cause of its own"
    )


def test_of_two_troubles_the_one_that_needs_a_person_is_judged() -> None:
    status = StreamStatus("pods")
    status.failed("discovery", "401 Unauthorized", cause=causes.CREDENTIALS)
    status.failed("daemon", "no broker answers", cause=causes.KAFKA)
    assert (judge(status, NOW_MS).level, judge(status, NOW_MS).kind) == ("person", "credentials")
    status.recovered("discovery")
    assert (judge(status, NOW_MS).level, judge(status, NOW_MS).kind) == ("retrying", "kafka")


def test_the_worst_comes_first_then_what_began_first() -> None:
    statuses = StatusRegistry()
    statuses.problems["restart"] = "an edit waits"
    statuses.problems["kafka"] = "silent"
    statuses.problems["reload"] = "refused"
    statuses.problems["config"] = "twice"
    statuses.problems.since_ms["config"] -= 1_000
    sentence, found = judged(statuses)
    assert [card.kind for card in found] == ["config", "reload", "kafka", "restart"]
    assert sentence == "The config names no stream."


def test_what_follows_from_kafka_is_no_trouble_of_its_own() -> None:
    statuses = StatusRegistry()
    statuses.problems["signal"] = "signal topic: refused"
    assert [(card.level, card.kind) for card in judged(statuses)[1]] == [("notice", "signal")]
    statuses.problems["kafka"] = "silent"
    assert [(card.level, card.kind) for card in judged(statuses)[1]] == [("retrying", "kafka")]
    statuses.problems["control"] = "control topic: refused"
    levels = [(card.level, card.kind) for card in judged(statuses)[1]]
    assert levels == [("person", "control"), ("retrying", "kafka")]


def test_a_problem_of_an_unknown_name_has_a_card_too() -> None:
    statuses = StatusRegistry()
    statuses.problems["some<b>thing"] = "odd"
    assert [(card.level, card.kind) for card in judged(statuses)[1]] == [("retrying", "other")]


def test_every_cause_has_advice_and_a_title_and_every_level_a_place() -> None:
    assert set(ADVICE) == set(CauseKind)
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
        live(statuses, f"s{number}").state = state
    assert judged(statuses)[0] == sentence
