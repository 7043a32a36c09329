"""What holds the process up is measured while it runs, and no longer."""

import gc

from tests.support.pace import last
from tests.support.relays import until
from tests.unit.observe.test_metrics import families
from watchrelay.observe.interpreter import measure_interpreter
from watchrelay.observe.metrics import Metrics


def lags(metrics: Metrics) -> dict[str, float]:
    """How many timers were late by at most so many seconds."""
    return {
        labels["le"]: value
        for name, labels, value in families(metrics)["watchrelay_event_loop_lag_seconds"]
        if "le" in labels
    }


def pauses(metrics: Metrics) -> dict[str, float]:
    """Seconds by generation."""
    return {
        labels["generation"]: value
        for _, labels, value in families(metrics)["watchrelay_gc_pause_seconds"]
    }


async def test_a_loop_that_was_held_up_is_seen_and_one_that_was_not_is_too() -> None:
    metrics = Metrics()
    with measure_interpreter(metrics):
        await until(lambda: bool(lags(metrics)["+Inf"]))
        in_time = lags(metrics)
        last(0.8)  # the loop is held up
        await until(lambda: lags(metrics)["+Inf"] > in_time["+Inf"])
    late = lags(metrics)
    assert late["+Inf"] - late["0.25"] > in_time["+Inf"] - in_time["0.25"]


async def test_what_collections_take_is_added_up_by_generation_and_not_after_the_end() -> None:
    metrics = Metrics()
    assert pauses(metrics) == {"0": 0.0, "1": 0.0, "2": 0.0}
    with measure_interpreter(metrics):
        gc.collect()
        first = pauses(metrics)
        assert first["2"] > 0.0
        gc.collect()
        assert pauses(metrics)["2"] > first["2"]
    ended = pauses(metrics)
    gc.collect()
    assert pauses(metrics) == ended
