from watchrelay.core.causes import MISSING_RIGHT
from watchrelay.observe.status import HISTORY_MAX, RECOVERED, StatusRegistry, StreamStatus


def history(status: StreamStatus) -> list[tuple[str, str]]:
    return [(each.state, each.message) for each in status.history]


def test_a_change_of_state_is_told_with_what_was_said_right_after_it() -> None:
    status = StreamStatus("pods")
    status.state = "listing"
    status.state = "listing"
    status.state = "backoff"
    status.failed("refused")
    status.failed("refused")
    status.failed("reset")
    status.state = "watching"
    status.progressed()
    assert history(status) == [
        ("listing", ""),
        ("backoff", "refused"),
        ("backoff", "reset"),
        ("watching", RECOVERED),
    ]
    status.progressed()
    assert status.transitions_count == 6, "what is no news was told"


def test_a_story_is_bounded_and_its_newest_moment_comes_first() -> None:
    status = StreamStatus("pods")
    for number in range(HISTORY_MAX * 2):
        status.failed(f"error {number} " + "x" * 1000)
    assert len(status.history) == HISTORY_MAX
    assert status.history_json()[0]["said"].startswith(f"error {HISTORY_MAX * 2 - 1} ")
    assert max(len(each.message) for each in status.history) <= 300


def test_trouble_began_with_the_first_failure_since_the_last_progress() -> None:
    status = StreamStatus("pods")
    status.failed("refused")
    began = status.trouble_ms
    status.failed("reset")
    assert status.trouble()[:2] == ("reset", began)
    status.progressed()
    assert status.trouble() == ("", 0, 0)


def test_a_silence_of_kafka_is_told_once_and_its_end_too() -> None:
    status = StreamStatus("pods")
    for seconds in (10, 11, 12):
        status.not_acknowledged(f"no acknowledgement for {seconds} s")
    status.acknowledged()
    status.acknowledged()
    assert history(status) == [("waiting", "no acknowledgement for 10 s"), ("waiting", RECOVERED)]


def test_a_right_that_kafka_misses_is_waited_for_until_records_are_acknowledged() -> None:
    status = StreamStatus("pods")
    status.not_acknowledged("grant WRITE on the topic", person=True)
    assert status.waits_for == "grant WRITE on the topic"
    status.acknowledged()
    assert status.waits_for == ""
    status.not_acknowledged("grant WRITE on the topic", person=True)
    status.wait_for("watch", "no right to list", MISSING_RIGHT)
    status.acknowledged()
    assert status.waits_for == "no right to list", (
        "what the API server does not allow is another matter"
    )


def test_what_is_said_of_a_log_that_cannot_be_read_is_over_once_it_was() -> None:
    status = StreamStatus("pods")
    status.log_unreadable("grant READ", next_attempt_ms=1, person=True)
    assert (status.waits_for, status.last_error, status.next_attempt_ms) == (
        "grant READ",
        "grant READ",
        1,
    )
    status.log_unreadable("no broker answers", next_attempt_ms=2, person=False)
    assert (status.waits_for, status.last_error) == ("", "no broker answers")
    status.log_read()
    assert (status.last_error, status.next_attempt_ms) == (None, None)
    status.log_read()
    assert history(status) == [
        ("waiting", "grant READ"),
        ("waiting", "no broker answers"),
        ("waiting", RECOVERED),
    ]


def test_a_log_that_was_read_ends_no_other_trouble() -> None:
    status = StreamStatus("pods")
    status.log_unreadable("grant READ", next_attempt_ms=1, person=True)
    status.failed("403", next_attempt_ms=2)
    status.wait_for("watch", "no right to list", MISSING_RIGHT)
    status.log_read()
    assert (status.waits_for, status.last_error, status.next_attempt_ms) == (
        "no right to list",
        "403",
        2,
    )


def test_what_is_queued_waits_since_it_was_queued_or_since_the_last_acknowledgement() -> None:
    status = StreamStatus("pods")
    assert status.waiting_since_ms() == 0
    status.queues(records=2, size_bytes=100, dirty_keys=0)
    status.queued_ms -= 60_000
    assert status.waiting_since_ms() == status.queued_ms
    status.acked(lag_s=0.004, rest=True)
    assert (status.waiting_since_ms(), status.lag_ms) == (status.acked_ms, 4.0)
    status.acked(lag_s=None, rest=False)
    assert (status.waiting_since_ms(), status.queued_records, status.lag_ms) == (0, 0, 4.0)


def test_a_problem_keeps_the_moment_at_which_it_was_first_said() -> None:
    statuses = StatusRegistry()
    statuses.problems["kafka"] = "away for 1 s"
    statuses.problems.since_ms["kafka"] -= 5_000
    since = statuses.problems.since_ms["kafka"]
    statuses.problems["kafka"] = "away for 2 s"
    assert statuses.problems.since_ms["kafka"] == since
    statuses.problems.pop("kafka")
    statuses.problems["kafka"] = "away for 1 s"
    assert statuses.problems.since_ms["kafka"] > since
