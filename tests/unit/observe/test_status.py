from dataclasses import replace

from tests.support.troubles import trouble
from watchrelay.core import clock
from watchrelay.core.errors import TopicRefused
from watchrelay.core.trouble import Cause
from watchrelay.observe.advice import ADVICE
from watchrelay.observe.status import (
    HISTORY_MAX,
    RECOVERED,
    QueuedNow,
    StatusRegistry,
    StreamStatus,
)


def history(status: StreamStatus) -> list[tuple[str, str]]:
    return [(each.state, each.message) for each in status.history]


def test_a_change_of_state_is_kept_with_the_message_right_after_it() -> None:
    status = StreamStatus("pods")
    status.progress.state = "listing"
    status.progress.state = "listing"
    status.progress.state = "backoff"
    status.failed("watch", trouble("refused"))
    status.failed("watch", trouble("refused"))
    status.failed("watch", trouble("reset"))
    status.progress.state = "watching"
    status.recovered("watch")
    assert history(status) == [
        ("listing", ""),
        ("backoff", "refused"),
        ("backoff", "reset"),
        ("watching", RECOVERED),
    ]
    status.recovered("watch")
    assert status.transitions_count == 6, "a repeated recovery was counted"


def test_a_history_is_bounded_and_its_newest_moment_comes_first() -> None:
    status = StreamStatus("pods")
    for number in range(HISTORY_MAX * 2):
        status.failed("watch", trouble(f"error {number} " + "x" * 1000))
    assert len(status.history) == HISTORY_MAX
    assert status.history_json()[0]["message"].startswith(f"error {HISTORY_MAX * 2 - 1} ")
    assert max(len(each.message) for each in status.history) <= 300


def test_trouble_began_with_the_first_failure_since_the_last_progress() -> None:
    status = StreamStatus("pods")
    status.failed("watch", trouble("refused"))
    assert status.trouble is not None
    began = status.trouble.since_ms
    status.failed("watch", trouble("reset"))
    assert status.trouble is not None
    assert (status.trouble.message, status.trouble.since_ms) == ("reset", began)
    status.recovered("watch")
    assert status.trouble is None


def test_a_silence_of_kafka_is_reported_once_and_its_end_too() -> None:
    status = StreamStatus("pods")
    for seconds in (10, 11, 12):
        status.failed("records", trouble(f"no acknowledgement for {seconds} s"))
    status.recovered("records")
    status.recovered("records")
    assert history(status) == [("waiting", "no acknowledgement for 10 s"), ("waiting", RECOVERED)]


def test_a_right_that_kafka_misses_is_waited_for_until_records_are_acknowledged() -> None:
    status = StreamStatus("pods")
    status.failed("records", trouble("grant WRITE on the topic", operator=True))
    assert status.waits_for == "grant WRITE on the topic"
    status.recovered("records")
    assert status.waits_for == ""
    status.failed("records", trouble("grant WRITE on the topic", operator=True))
    status.failed("watch", trouble("no right to list", operator=True))
    status.recovered("records")
    assert status.waits_for == "no right to list", (
        "what the API server does not allow is another matter"
    )


def test_the_problem_of_an_unreadable_log_is_over_once_it_was_read() -> None:
    status = StreamStatus("pods")
    status.failed("log", trouble("grant READ", operator=True), next_attempt_ms=1)
    assert (status.waits_for, status.last_error, status.next_attempt_ms) == (
        "grant READ",
        "grant READ",
        1,
    )
    status.failed("log", trouble("no broker answers"), next_attempt_ms=2)
    assert (status.waits_for, status.last_error) == ("", "no broker answers")
    status.recovered("log")
    assert (status.last_error, status.next_attempt_ms) == (None, None)
    status.recovered("log")
    assert history(status) == [
        ("waiting", "grant READ"),
        ("waiting", "no broker answers"),
        ("waiting", RECOVERED),
    ]


def test_a_log_that_was_read_ends_no_other_trouble() -> None:
    status = StreamStatus("pods")
    status.failed("log", trouble("grant READ", operator=True), next_attempt_ms=1)
    status.failed("watch", trouble("403: no right to list", operator=True), next_attempt_ms=2)
    status.recovered("log")
    assert (status.waits_for, status.last_error, status.next_attempt_ms) == (
        "403: no right to list",
        "403: no right to list",
        2,
    )


def test_what_is_queued_waits_since_it_was_queued_or_since_the_last_acknowledgement() -> None:
    status = StreamStatus("pods")
    assert status.waiting_since_ms() == 0
    status.queues = QueuedNow(queued_records=2, queued_ms=clock.wall_ms() - 60_000)
    assert status.waiting_since_ms() == status.queues.queued_ms
    status.acked(lag_s=0.004)
    assert (status.waiting_since_ms(), status.lag_ms) == (status.acked_ms, 4.0)
    status.queues = QueuedNow(queued_ms=status.queues.queued_ms)
    status.acked(lag_s=None)
    assert (status.waiting_since_ms(), status.lag_ms) == (0, 4.0)
    status.renew()
    assert status.lag_ms is None, "that of another life of the stream"


def test_a_problem_keeps_the_moment_at_which_it_was_first_reported() -> None:
    statuses = StatusRegistry()
    statuses.problems.put("kafka", trouble("away for 1 s", Cause.KAFKA))
    held = statuses.problems["kafka"]
    statuses.problems["kafka"] = replace(held, since_ms=held.since_ms - 5_000)
    since = statuses.problems["kafka"].since_ms
    statuses.problems.put("kafka", trouble("away for 2 s", Cause.KAFKA))
    assert statuses.problems["kafka"].since_ms == since
    statuses.problems.pop("kafka")
    statuses.problems.put("kafka", trouble("away for 1 s", Cause.KAFKA))
    assert statuses.problems["kafka"].since_ms > since


def test_what_is_wrong_reaches_programs_with_its_cause_its_cure_and_since_when() -> None:
    status = StreamStatus("pods")
    refused = TopicRefused("topic t is refused: mend it with: alter t", cure="alter t")
    assert status.failed("stream", refused.trouble(subject="t", operator=True))
    (held,) = status.troubles.values()
    assert (held.subject, held.cause, held.cure) == ("t", Cause.TOPIC_UNUSABLE, "alter t")
    status.troubles["stream"] = replace(held, since_ms=0)
    assert not status.failed("stream", refused.trouble(operator=True)), "it says nothing new"
    assert status.failed("stream", refused.trouble()), "no operator must act now"
    shown = status.as_json()["lastError"]
    assert isinstance(shown, dict)
    assert (shown["cause"], shown["cure"]) == ("topic", "alter t")
    assert shown["since"] == "1970-01-01T00:00:00.000Z"
    status.recovered()
    status.failed("watch", trouble("connection refused", Cause.KUBERNETES))
    shown = status.as_json()["lastError"]
    assert isinstance(shown, dict)
    assert shown["cure"] == ADVICE[Cause.KUBERNETES].todo, "where there is none of its own"
