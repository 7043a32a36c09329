"""The offset of the clock: by answers that agree, whatever one of them says, and whatever is done to
the clock meanwhile."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from watchrelay.core.clock_offset import (
    AGREE_MIN,
    EVERY_S,
    SHOWN_FROM_S,
    ClockOffset,
    TimeAnswers,
    off_by,
)

DAY_S = 86_400.0
TRUE_MS = 1_790_000_000_000


@dataclass
class Machine:
    """A machine whose clock is ahead by `ahead_s`, and what it learns of it."""

    ahead_s: float = 0.0
    now_s: float = 1_000.0
    offset: ClockOffset = field(default_factory=ClockOffset)

    @property
    def true_ms(self) -> float:
        return TRUE_MS + self.now_s * 1000

    @property
    def wall_ms(self) -> int:
        return round(self.true_ms + self.ahead_s * 1000)

    def pass_s(self, seconds: float) -> None:
        self.now_s += seconds

    def answered(
        self, *, wrong_s: float = 0.0, took_s: float = 0.02, answers: TimeAnswers | None = None
    ) -> None:
        """The API server answers with its date, in whole seconds, which is wrong by `wrong_s`."""
        asked_s = self.now_s
        date_ms = (self.true_ms + 1000 * (took_s / 2 + wrong_s)) // 1000 * 1000
        self.pass_s(took_s)
        (answers or self.offset.kubernetes).note(
            date_ms, within_ms=1000, asked_s=asked_s, answered_s=self.now_s
        )

    def answers(self, count: int, *, every_s: float = EVERY_S, wrong_s: float = 0.0) -> None:
        for _ in range(count):
            self.answered(wrong_s=wrong_s)
            self.pass_s(every_s)

    @property
    def known_s(self) -> float | None:
        return self.offset.known_s(self.now_s, self.wall_ms)

    @property
    def suspected_s(self) -> float | None:
        return self.offset.suspected_s(self.now_s, self.wall_ms)


def near(offset_s: float) -> object:
    return pytest.approx(offset_s, abs=1.5)


@pytest.mark.parametrize("ahead_s", [0.0, -20 * DAY_S, DAY_S, 299.0, -0.4])
def test_several_answers_tell_the_offset(ahead_s: float) -> None:
    machine = Machine(ahead_s)
    machine.answers(AGREE_MIN)
    assert machine.known_s == near(ahead_s)


def test_fewer_answers_are_a_suspicion_alone() -> None:
    machine = Machine(-20 * DAY_S)
    assert machine.suspected_s is None
    machine.answers(AGREE_MIN - 1)
    assert machine.known_s is None
    assert machine.suspected_s == near(-20 * DAY_S)


@pytest.mark.parametrize("lies_s", [(0.0, -20 * DAY_S), (-20 * DAY_S, 0.0)])
def test_an_answer_by_which_the_clock_is_right_does_not_end_a_suspicion(
    lies_s: tuple[float, float],
) -> None:
    machine = Machine(-20 * DAY_S)
    for wrong_s in lies_s:
        machine.answers(1, wrong_s=wrong_s)
    assert machine.known_s is None
    assert machine.suspected_s == near(-20 * DAY_S)


def test_answers_of_one_moment_are_one_answer() -> None:
    machine = Machine(DAY_S)
    machine.answers(20, every_s=0.1)
    assert machine.known_s is None


@pytest.mark.parametrize("after", [0, 1, 5, 20])
def test_one_wrong_answer_changes_nothing(after: int) -> None:
    machine = Machine()
    machine.answers(AGREE_MIN + after)
    machine.answers(1, wrong_s=-20 * DAY_S)
    assert machine.known_s == near(0.0)
    machine.answers(2)
    assert machine.known_s == near(0.0)


def test_an_answer_of_a_cache_repeats_its_date_and_is_not_believed() -> None:
    machine = Machine()
    date_ms = (machine.true_ms - 20 * DAY_S * 1000) // 1000 * 1000
    for _ in range(30):
        machine.pass_s(EVERY_S)
        machine.offset.kubernetes.note(
            date_ms, within_ms=1000, asked_s=machine.now_s - 0.1, answered_s=machine.now_s
        )
    assert machine.known_s is None


def test_a_proxy_with_a_wrong_clock_before_some_of_the_servers_loses_the_vote() -> None:
    machine = Machine()
    for number in range(30):
        machine.answers(1, wrong_s=-20 * DAY_S if number % 3 == 0 else 0.0)
    assert machine.known_s == near(0.0)


def test_a_clock_that_is_set_while_the_process_runs_is_known_at_once() -> None:
    machine = Machine()
    machine.answers(AGREE_MIN)
    machine.ahead_s = -20 * DAY_S
    assert machine.known_s == near(-20 * DAY_S)
    machine.ahead_s = 0.0
    assert machine.known_s == near(0.0)


def test_servers_whose_clock_was_wrong_and_is_set_are_believed_after_as_many_answers() -> None:
    machine = Machine()
    machine.answers(20, wrong_s=30 * DAY_S)
    assert machine.known_s == near(-30 * DAY_S)
    machine.answers(5)
    assert machine.known_s == near(0.0)


def test_a_clock_that_drifts_between_rare_answers_agrees_with_itself() -> None:
    machine = Machine()
    for _ in range(20):
        machine.answered()
        machine.pass_s(600.0)
        machine.ahead_s += 600.0 * 20e-6  # 20 ppm of our oscillator; the monotonic clock likewise
    assert machine.known_s == near(machine.ahead_s)


def test_an_answer_that_took_long_says_too_little_and_is_left_out() -> None:
    machine = Machine()
    for _ in range(10):
        machine.answered(took_s=20.0)
    assert machine.suspected_s is None


@pytest.mark.parametrize("date_ms", [-1, 0, 1234, 10**15])
def test_a_stand_in_for_no_time_is_left_out(date_ms: int) -> None:
    machine = Machine()
    for _ in range(10):
        machine.pass_s(EVERY_S)
        machine.offset.kafka.note(
            date_ms, within_ms=1, asked_s=machine.now_s, answered_s=machine.now_s
        )
    assert machine.suspected_s is None


def test_kafka_comes_before_the_api_server() -> None:
    machine = Machine(DAY_S)
    for _ in range(AGREE_MIN):
        machine.answered(wrong_s=9 * DAY_S)
        machine.answered(answers=machine.offset.kafka)
        machine.pass_s(EVERY_S)
    by_source = machine.offset.by_source(machine.now_s, machine.wall_ms)
    assert by_source == {"kafka": near(DAY_S), "kubernetes": near(-8 * DAY_S)}
    assert machine.known_s == near(DAY_S)


def test_the_time_is_put_right_only_where_the_clock_is_off_by_much() -> None:
    machine = Machine(SHOWN_FROM_S / 2)
    machine.answers(AGREE_MIN)
    assert machine.offset.true_ms(machine.now_s, machine.wall_ms) == machine.wall_ms
    machine.ahead_s = -20 * DAY_S
    true_ms = machine.offset.true_ms(machine.now_s, machine.wall_ms)
    assert true_ms == pytest.approx(machine.true_ms, abs=1500)


@pytest.mark.parametrize(
    ("offset_s", "words"),
    [
        (-20 * DAY_S - 3 * 3600, "20 d 3 h behind"),
        (DAY_S, "1 d 0 h ahead"),
        (3_900.0, "1 h 5 min ahead"),
        (-301.0, "5 min behind"),
    ],
)
def test_an_offset_in_words(offset_s: float, words: str) -> None:
    assert off_by(offset_s) == words
