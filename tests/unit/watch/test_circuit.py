"""Which requests the circuit breaker admits, and when."""

import math
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchrelay.watch.circuit import (
    CircuitBreaker,
    Closed,
    Denied,
    HalfOpen,
    Open,
    Permit,
    spread_s,
)


def fails(breaker: CircuitBreaker, stream: int, now_s: float, **more: Any) -> bool:
    """A request of the stream is admitted and fails: whether that opens the circuit."""
    permit = breaker.admit(stream, now_s)
    assert isinstance(permit, Permit)
    return breaker.failed(stream, permit, now_s, **more)


def open_breaker(*, now_s: float = 0.0, retry_after_s: float = 0.0) -> CircuitBreaker:
    breaker = CircuitBreaker(Random(1))
    assert fails(breaker, 1, now_s, retry_after_s=retry_after_s)
    return breaker


def test_a_closed_circuit_admits_every_stream() -> None:
    breaker = CircuitBreaker(Random(1))
    assert breaker.admit(1, 0.0) == breaker.admit(2, 0.0) == Permit(0)
    assert breaker.open_until_s is None


def test_many_streams_that_see_one_failure_raise_the_level_once() -> None:
    breaker = CircuitBreaker(Random(1))
    passes = {stream: breaker.admit(stream, 0.0) for stream in range(50)}
    for stream, permit in passes.items():
        assert isinstance(permit, Permit)
        assert breaker.failed(stream, permit, 0.1) == (stream == 0)
    assert breaker.failures_in_row == 1


def test_an_open_circuit_denies_until_its_time_and_then_admits_one_probe() -> None:
    breaker = open_breaker(retry_after_s=7)
    assert breaker.admit(2, 6.9) == Denied(7.0)
    assert isinstance(breaker.admit(3, 7.0), Permit)
    assert breaker.admit(2, 7.0) == Denied(math.inf)
    assert breaker.admit(1, 99.0) == Denied(math.inf)
    assert breaker.state == HalfOpen(3)


def test_an_answered_probe_closes_the_circuit_and_spreads_the_waiting_streams() -> None:
    breaker = open_breaker(retry_after_s=7)
    for stream in range(2, 42):
        breaker.admit(stream, 1.0)
    breaker.admit(1, 8.0)
    assert breaker.answered(1, 8.5)
    turns = [breaker.admit(stream, 8.5) for stream in range(2, 42)]
    moments = [turn.until_s for turn in turns if isinstance(turn, Denied)]
    assert len(set(moments)) > 35
    assert all(8.5 < moment <= 8.5 + 0.8 for moment in moments)
    assert all(isinstance(breaker.admit(stream, 9.3), Permit) for stream in range(2, 42))
    assert isinstance(breaker.admit(99, 8.5), Permit)


def test_a_failed_probe_opens_the_circuit_for_longer() -> None:
    breaker = open_breaker(retry_after_s=7)
    probe = breaker.admit(1, 7.0)
    assert isinstance(probe, Permit)
    assert breaker.failed(1, probe, 8.0)
    assert breaker.failures_in_row == 2
    assert isinstance(breaker.state, Open)
    assert 8 + 1.6 <= breaker.state.until_s < 8 + 3.2


def test_a_probe_that_cannot_connect_is_retried_soon_and_does_not_raise_later_delays() -> None:
    breaker, now_s = CircuitBreaker(Random(1)), 0.0
    for _ in range(20):
        assert fails(breaker, 1, now_s, reached=False)
        assert isinstance(breaker.state, Open)
        assert 1.0 <= breaker.state.until_s - now_s <= 4.0
        now_s = breaker.state.until_s
    assert breaker.failures_in_row == 20
    fails(breaker, 1, now_s)
    assert breaker.failures_in_row == 1
    assert isinstance(breaker.state, Open)
    assert breaker.state.until_s - now_s < 1.6


@pytest.mark.parametrize("reached", [True, False])
def test_a_probe_that_was_not_sent_leaves_the_circuit_open_until_the_next_probe(
    reached: bool,
) -> None:
    breaker = CircuitBreaker(Random(1))
    fails(breaker, 1, 0.0, retry_after_s=7, reached=reached)
    assert isinstance(breaker.admit(1, 7.0), Permit)
    assert breaker.admit(2, 7.5) == Denied(math.inf)
    assert not breaker.not_sent(2, 7.6), "it is not the prober"
    assert breaker.not_sent(1, 8.0)
    assert isinstance(breaker.state, Open)
    assert 9.0 <= breaker.state.until_s <= 12.0
    assert breaker.failures_in_row == 1
    until_s = breaker.state.until_s
    assert breaker.admit(2, until_s - 0.1) == breaker.admit(1, until_s - 0.1) == Denied(until_s)
    assert isinstance(breaker.admit(2, until_s), Permit)
    assert breaker.answered(2, until_s)
    assert breaker.open_until_s is None


def test_a_request_that_was_not_sent_neither_opens_nor_closes_the_circuit() -> None:
    breaker = CircuitBreaker(Random(1))
    early, other = breaker.admit(1, 0.0), breaker.admit(2, 0.0)
    assert isinstance(early, Permit)
    assert isinstance(other, Permit)
    assert not breaker.not_sent(1, 0.1)
    assert breaker.open_until_s is None
    breaker.failed(2, other, 0.2, retry_after_s=7)
    assert not breaker.not_sent(1, 1.0)
    assert breaker.open_until_s == 7.2


ENDS = st.sampled_from(["failed", "not reached", "unanswered"])


@given(
    seed=st.integers(0, 2**32), ends=st.lists(ENDS, min_size=2, max_size=12), broken=st.booleans()
)
def test_an_unavailable_server_gets_one_request_a_second_at_most(
    seed: int, ends: list[str], broken: bool
) -> None:
    breaker, now_s, asked_s = CircuitBreaker(Random(seed)), 0.0, list[float]()
    if broken:
        breaker.watch_broke(now_s)
    else:
        assert fails(breaker, 99, now_s - 1.0)
        assert breaker.open_until_s is not None
        now_s = breaker.open_until_s
    for stream, end in enumerate(ends):
        permit = breaker.admit(stream, now_s)
        assert isinstance(permit, Permit)
        asked_s.append(now_s)
        if end == "unanswered":
            assert breaker.not_sent(stream, now_s)
        else:
            assert breaker.failed(stream, permit, now_s, reached=end == "failed")
        assert isinstance(breaker.state, Open)
        now_s = breaker.state.until_s
    assert all(after >= before + 1.0 for before, after in pairwise(asked_s))


def test_an_answer_to_a_request_from_before_the_failure_closes_nothing() -> None:
    breaker = CircuitBreaker(Random(1))
    early, other = breaker.admit(1, 0.0), breaker.admit(2, 0.0)
    assert isinstance(early, Permit)
    assert isinstance(other, Permit)
    breaker.failed(1, early, 1.0, retry_after_s=20)
    assert not breaker.answered(2, 2.0)
    assert breaker.admit(2, 2.0) == Denied(21.0)
    assert breaker.failed(2, other, 3.0, retry_after_s=25), (
        "a longer Retry-After counts from whomever it comes"
    )
    assert (breaker.failures_in_row, breaker.open_until_s) == (1, 28.0)


def test_a_stream_that_fails_while_others_are_answered_opens_the_circuit_once() -> None:
    breaker = open_breaker(retry_after_s=7)
    for round_ in range(1, 20):
        now_s = 40.0 * round_
        assert isinstance(breaker.admit(2, now_s), Permit)
        breaker.answered(2, now_s)
        assert not fails(breaker, 1, now_s + 1, retry_after_s=300)
        assert isinstance(breaker.admit(3, now_s + 1), Permit), "the others pass"
    assert breaker.generation == 1


def test_a_stream_that_goes_on_failing_by_itself_opens_the_circuit_for_no_quiet_stream() -> None:
    breaker = open_breaker(retry_after_s=7)
    breaker.admit(2, 7.0)
    breaker.answered(2, 7.0)
    for now_s in (40.0, 100.0, 160.0):
        assert not fails(breaker, 1, now_s)
    assert fails(breaker, 2, 200.0)
    assert fails(breaker, 1, 300.0), "the server has failed another stream since"
    assert breaker.generation == 3


def test_a_stream_with_a_failure_of_its_own_is_no_probe_for_others() -> None:
    breaker = open_breaker(retry_after_s=7)
    breaker.admit(2, 7.0)
    breaker.answered(2, 7.0)
    breaker.watch_broke(8.0)
    assert fails(breaker, 1, 8.0, retry_after_s=300)
    assert breaker.open_until_s == 9.0
    assert isinstance(breaker.admit(3, 9.0), Permit)


def test_a_stream_with_an_earlier_failure_of_its_own_opens_the_circuit_when_all_fail() -> None:
    breaker = open_breaker(retry_after_s=7)
    breaker.admit(2, 7.0)
    breaker.answered(2, 7.0)
    for stream in (2, 1):
        permit = breaker.admit(stream, 50.0 * (3 - stream))
        assert isinstance(permit, Permit)
        assert breaker.failed(stream, permit, 50.0 * (3 - stream))
    assert breaker.generation == 3


def test_a_retry_after_of_one_stream_delays_the_others_32_seconds_at_most() -> None:
    assert open_breaker(retry_after_s=300).open_until_s == 32.0


def test_a_prober_that_is_removed_lets_another_stream_probe() -> None:
    breaker = open_breaker(retry_after_s=7)
    breaker.admit(1, 7.0)
    assert breaker.remove(1, 9.0)
    assert isinstance(breaker.admit(2, 9.0), Permit)
    assert not breaker.remove(3, 9.0)


def test_two_healthy_minutes_reset_the_level() -> None:
    breaker = open_breaker(retry_after_s=7)
    breaker.admit(1, 7.0)
    breaker.answered(1, 7.5)
    fails(breaker, 1, 130.0)
    assert breaker.failures_in_row == 1


def test_a_broken_watch_delays_no_stream_but_makes_the_next_request_a_probe() -> None:
    breaker = CircuitBreaker(Random(1))
    for stream in range(20):  # a proxy cuts one after the other
        now_s = 10.0 * stream
        breaker.watch_broke(now_s)
        assert breaker.open_until_s is None
        assert isinstance(breaker.admit(stream, now_s), Permit)
        assert breaker.admit(99, now_s) == Denied(math.inf), "while the probe is out"
        assert breaker.answered(stream, now_s + 0.1)
        assert isinstance(breaker.admit(99, now_s + 0.2), Permit)
    assert breaker.failures_in_row == 1


def test_a_failed_probe_after_a_broken_watch_is_the_second_failure_of_its_row() -> None:
    breaker = CircuitBreaker(Random(1))
    breaker.watch_broke(0.0)
    breaker.watch_broke(0.1)
    assert fails(breaker, 1, 0.8)
    assert breaker.failures_in_row == 2
    assert isinstance(breaker.state, Open)
    assert 1.6 <= breaker.state.until_s - 0.8 < 3.2
    breaker.watch_broke(0.9)
    assert isinstance(breaker.state, Open), "what breaks while it is closed opens nothing"
    probe = breaker.admit(1, breaker.state.until_s)
    assert isinstance(probe, Permit)
    assert breaker.failed(1, probe, 5.0)
    assert breaker.failures_in_row == 3


def test_the_spread_grows_with_the_streams_up_to_half_a_minute() -> None:
    rng = Random(3)
    assert spread_s(0, rng) == 0
    assert 0.15 < max(spread_s(10, rng) for _ in range(300)) <= 0.2
    assert 25 < max(spread_s(5000, rng) for _ in range(300)) <= 30.0


@given(
    st.lists(
        st.tuples(
            st.integers(0, 4),
            st.sampled_from(["ask", "answer", "fail", "lack", "break", "leave"]),
            st.floats(0, 40),
        ),
        max_size=80,
    )
)
def test_at_most_one_request_is_in_flight_while_the_circuit_is_not_closed(
    steps: list[tuple[int, str, float]],
) -> None:
    breaker, now_s, out = CircuitBreaker(Random(5)), 0.0, dict[int, Permit]()
    for stream, what, wait_s in steps:
        now_s += wait_s
        if what == "ask" and stream not in out:
            answer = breaker.admit(stream, now_s)
            if isinstance(answer, Permit):
                assert isinstance(breaker.state, Closed) or breaker.state == HalfOpen(stream)
                out[stream] = answer
            else:
                assert answer.until_s > now_s
        elif what == "answer" and stream in out:
            breaker.answered(stream, now_s)
            del out[stream]
        elif what == "fail" and stream in out:
            breaker.failed(stream, out.pop(stream), now_s)
        elif what == "lack" and stream in out:
            breaker.not_sent(stream, now_s)
            del out[stream]
        elif what == "break":
            breaker.watch_broke(now_s)
        elif what == "leave":
            out.pop(stream, None)
            breaker.remove(stream, now_s)
        if isinstance(breaker.state, HalfOpen) and breaker.state.prober is not None:
            assert breaker.state.prober in out, "a probe is always somebody's open request"
