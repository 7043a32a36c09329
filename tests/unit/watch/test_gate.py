"""Room: unit tests.  In: requests and how they end.  Out: when the gate of an endpoint lets whom through."""

import math
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchrelay.watch.gate import Closed, Gate, Go, Hold, Open, Probing, spread_s


def closed_gate(*, now_s: float = 0.0, retry_after_s: float = 0.0) -> Gate:
    gate = Gate(Random(1))
    go = gate.ask(1, now_s)
    assert isinstance(go, Go)
    assert gate.failed(1, go, now_s, retry_after_s=retry_after_s)
    return gate


def test_an_open_gate_lets_everyone_through() -> None:
    gate = Gate(Random(1))
    assert gate.ask(1, 0.0) == gate.ask(2, 0.0) == Go(0)
    assert gate.closed_until_s is None


def test_many_streams_that_see_one_closure_raise_its_level_once() -> None:
    gate = Gate(Random(1))
    passes = {stream: gate.ask(stream, 0.0) for stream in range(50)}
    for stream, go in passes.items():
        assert isinstance(go, Go)
        assert gate.failed(stream, go, 0.1) == (stream == 0)
    assert gate.level == 1


def test_a_closed_gate_holds_all_until_its_time_and_then_lets_exactly_one_probe() -> None:
    gate = closed_gate(retry_after_s=7)
    assert gate.ask(2, 6.9) == Hold(7.0)
    assert isinstance(gate.ask(3, 7.0), Go)
    assert gate.ask(2, 7.0) == Hold(math.inf)
    assert gate.ask(1, 99.0) == Hold(math.inf)
    assert gate.state == Probing(3)


def test_a_probe_that_is_answered_opens_for_the_waiting_at_moments_of_their_own() -> None:
    gate = closed_gate(retry_after_s=7)
    for stream in range(2, 42):
        gate.ask(stream, 1.0)
    gate.ask(1, 8.0)
    assert gate.answered(1, 8.5)
    turns = [gate.ask(stream, 8.5) for stream in range(2, 42)]
    moments = [turn.until_s for turn in turns if isinstance(turn, Hold)]
    assert len(set(moments)) > 35
    assert all(8.5 < moment <= 8.5 + 0.8 for moment in moments)
    assert all(isinstance(gate.ask(stream, 9.3), Go) for stream in range(2, 42))
    assert isinstance(gate.ask(99, 8.5), Go)


def test_a_probe_that_fails_closes_for_all_and_for_longer() -> None:
    gate = closed_gate(retry_after_s=7)
    probe = gate.ask(1, 7.0)
    assert isinstance(probe, Go)
    assert gate.failed(1, probe, 8.0)
    assert gate.level == 2
    assert isinstance(gate.state, Closed)
    assert 8 + 1.6 <= gate.state.until_s < 8 + 3.2


def test_a_probe_that_reaches_nobody_is_tried_again_soon_and_teaches_nothing_of_the_server_that_returns() -> None:
    gate, now_s = Gate(Random(1)), 0.0
    for _ in range(20):
        go = gate.ask(1, now_s)
        assert isinstance(go, Go)
        assert gate.failed(1, go, now_s, reached=False)
        assert isinstance(gate.state, Closed)
        assert 1.0 <= gate.state.until_s - now_s <= 4.0
        now_s = gate.state.until_s
    assert gate.level == 20
    go = gate.ask(1, now_s)
    assert isinstance(go, Go)
    gate.failed(1, go, now_s)
    assert gate.level == 1
    assert isinstance(gate.state, Closed)
    assert gate.state.until_s - now_s < 1.6


@pytest.mark.parametrize("reached", [True, False])
def test_a_probe_that_nobody_could_answer_leaves_the_gate_shut_until_another_probes(reached: bool) -> None:
    gate = Gate(Random(1))
    go = gate.ask(1, 0.0)
    assert isinstance(go, Go)
    gate.failed(1, go, 0.0, retry_after_s=7, reached=reached)
    assert isinstance(gate.ask(1, 7.0), Go)
    assert gate.ask(2, 7.5) == Hold(math.inf)
    assert not gate.unanswered(2, 7.6), "it is not the prober"
    assert gate.unanswered(1, 8.0)
    assert isinstance(gate.state, Closed)
    assert 9.0 <= gate.state.until_s <= 12.0
    assert gate.level == 1
    until_s = gate.state.until_s
    assert gate.ask(2, until_s - 0.1) == gate.ask(1, until_s - 0.1) == Hold(until_s)
    assert isinstance(gate.ask(2, until_s), Go)
    assert gate.answered(2, until_s)
    assert gate.closed_until_s is None


def test_a_request_that_nobody_could_answer_neither_closes_an_open_gate_nor_opens_a_closed_one() -> None:
    gate = Gate(Random(1))
    early, other = gate.ask(1, 0.0), gate.ask(2, 0.0)
    assert isinstance(early, Go)
    assert isinstance(other, Go)
    assert not gate.unanswered(1, 0.1)
    assert gate.closed_until_s is None
    gate.failed(2, other, 0.2, retry_after_s=7)
    assert not gate.unanswered(1, 1.0)
    assert gate.closed_until_s == 7.2


def test_a_probe_that_nobody_could_answer_takes_no_news_from_the_failure_that_follows() -> None:
    gate = Gate(Random(1))
    gate.broke(0.0)
    gate.ask(1, 0.0)
    assert gate.unanswered(1, 0.1)
    assert gate.closed_until_s is not None
    probe = gate.ask(2, gate.closed_until_s)
    assert isinstance(probe, Go)
    assert gate.failed(2, probe, 5.0)
    assert gate.news


ENDS = st.sampled_from(["failed", "not reached", "unanswered"])


@given(seed=st.integers(0, 2**32), ends=st.lists(ENDS, min_size=2, max_size=12), broken=st.booleans())
def test_a_server_that_is_away_is_asked_once_a_second_at_most(seed: int, ends: list[str], broken: bool) -> None:
    gate, now_s, asked_s = Gate(Random(seed)), 0.0, list[float]()
    if broken:
        gate.broke(now_s)
    else:
        closed = gate.ask(99, now_s - 1.0)
        assert isinstance(closed, Go)
        assert gate.failed(99, closed, now_s - 1.0)
        assert gate.closed_until_s is not None
        now_s = gate.closed_until_s
    for stream, end in enumerate(ends):
        go = gate.ask(stream, now_s)
        assert isinstance(go, Go)
        asked_s.append(now_s)
        if end == "unanswered":
            assert gate.unanswered(stream, now_s)
        else:
            assert gate.failed(stream, go, now_s, reached=end == "failed")
        assert isinstance(gate.state, Closed)
        now_s = gate.state.until_s
    assert all(after >= before + 1.0 for before, after in pairwise(asked_s))


def test_an_answer_to_a_request_from_before_opens_nothing() -> None:
    gate = Gate(Random(1))
    early, other = gate.ask(1, 0.0), gate.ask(2, 0.0)
    assert isinstance(early, Go)
    assert isinstance(other, Go)
    gate.failed(1, early, 1.0, retry_after_s=20)
    assert not gate.answered(2, 2.0)
    assert gate.ask(2, 2.0) == Hold(21.0)
    assert gate.failed(2, other, 3.0, retry_after_s=25), "a longer Retry-After counts from whomever it comes"
    assert (gate.level, gate.closed_until_s) == (1, 28.0)


def test_one_stream_is_failed_again_and_again_while_others_are_answered_and_closes_the_gate_once() -> None:
    gate = closed_gate(retry_after_s=7)
    for round_ in range(1, 20):
        now_s = 40.0 * round_
        assert isinstance(gate.ask(2, now_s), Go)
        gate.answered(2, now_s)
        go = gate.ask(1, now_s + 1)
        assert isinstance(go, Go)
        assert not gate.failed(1, go, now_s + 1, retry_after_s=300)
        assert isinstance(gate.ask(3, now_s + 1), Go), "the others pass"
    assert gate.closures == 1


def test_a_stream_with_a_trouble_of_its_own_probes_for_nobody() -> None:
    gate = closed_gate(retry_after_s=7)
    gate.ask(2, 7.0)
    gate.answered(2, 7.0)
    gate.broke(8.0)
    go = gate.ask(1, 8.0)
    assert isinstance(go, Go)
    assert gate.failed(1, go, 8.0, retry_after_s=300)
    assert gate.closed_until_s == 9.0
    assert isinstance(gate.ask(3, 9.0), Go)


def test_whoever_had_a_trouble_of_its_own_before_closes_the_gate_when_all_have() -> None:
    gate = closed_gate(retry_after_s=7)
    gate.ask(2, 7.0)
    gate.answered(2, 7.0)
    for stream in (2, 1):
        go = gate.ask(stream, 50.0 * (3 - stream))
        assert isinstance(go, Go)
        assert gate.failed(stream, go, 50.0 * (3 - stream))
    assert gate.closures == 3


def test_what_one_stream_was_asked_to_wait_holds_the_others_for_no_longer_than_a_server_asks_for() -> None:
    assert closed_gate(retry_after_s=300).closed_until_s == 32.0


def test_a_prober_that_leaves_hands_the_probe_on() -> None:
    gate = closed_gate(retry_after_s=7)
    gate.ask(1, 7.0)
    assert gate.left(1, 9.0)
    assert isinstance(gate.ask(2, 9.0), Go)
    assert not gate.left(3, 9.0)


def test_two_healthy_minutes_start_the_levels_anew() -> None:
    gate = closed_gate(retry_after_s=7)
    gate.ask(1, 7.0)
    gate.answered(1, 7.5)
    go = gate.ask(1, 130.0)
    assert isinstance(go, Go)
    gate.failed(1, go, 130.0)
    assert gate.level == 1


def test_a_watch_that_breaks_holds_up_nobody_but_makes_the_next_request_a_probe() -> None:
    gate = Gate(Random(1))
    for stream in range(20):  # a proxy cuts one after the other
        now_s = 10.0 * stream
        gate.broke(now_s)
        assert gate.closed_until_s is None
        assert isinstance(gate.ask(stream, now_s), Go)
        assert gate.ask(99, now_s) == Hold(math.inf), "while the probe is out"
        assert gate.answered(stream, now_s + 0.1)
        assert isinstance(gate.ask(99, now_s + 0.2), Go)
    assert gate.level == 1


def test_a_probe_after_a_broken_watch_that_fails_closes_as_a_second_failure_and_is_news_once() -> None:
    gate = Gate(Random(1))
    gate.broke(0.0)
    gate.broke(0.1)
    probe = gate.ask(1, 0.8)
    assert isinstance(probe, Go)
    assert gate.failed(1, probe, 0.8)
    assert gate.news
    assert isinstance(gate.state, Closed)
    assert 1.6 <= gate.state.until_s - 0.8 < 3.2
    gate.broke(0.9)
    assert isinstance(gate.state, Closed), "what breaks while it is closed opens nothing"
    probe = gate.ask(1, gate.state.until_s)
    assert isinstance(probe, Go)
    assert gate.failed(1, probe, 5.0)
    assert not gate.news


def test_the_spread_grows_with_the_streams_and_ends_at_half_a_minute() -> None:
    rng = Random(3)
    assert spread_s(0, rng) == 0
    assert 0.15 < max(spread_s(10, rng) for _ in range(300)) <= 0.2
    assert 25 < max(spread_s(5000, rng) for _ in range(300)) <= 30.0


@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.sampled_from(["ask", "answer", "fail", "lack", "break", "leave"]), st.floats(0, 40)), max_size=80
    )
)
def test_at_most_one_stream_is_out_while_the_gate_is_not_open(steps: list[tuple[int, str, float]]) -> None:
    gate, now_s, out = Gate(Random(5)), 0.0, dict[int, Go]()
    for stream, what, wait_s in steps:
        now_s += wait_s
        if what == "ask" and stream not in out:
            answer = gate.ask(stream, now_s)
            if isinstance(answer, Go):
                assert isinstance(gate.state, Open) or gate.state == Probing(stream)
                out[stream] = answer
            else:
                assert answer.until_s > now_s
        elif what == "answer" and stream in out:
            gate.answered(stream, now_s)
            del out[stream]
        elif what == "fail" and stream in out:
            gate.failed(stream, out.pop(stream), now_s)
        elif what == "lack" and stream in out:
            gate.unanswered(stream, now_s)
            del out[stream]
        elif what == "break":
            gate.broke(now_s)
        elif what == "leave":
            out.pop(stream, None)
            gate.left(stream, now_s)
        if isinstance(gate.state, Probing):
            assert gate.state.prober in out, "a probe is always somebody's open request"
