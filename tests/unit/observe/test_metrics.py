"""The metric catalogue is what `/metrics` shows."""

import math
from dataclasses import replace

from prometheus_client.parser import text_string_to_metric_families

from watchrelay.model.resources import Resource
from watchrelay.observe.metrics import CATALOGUE, Metrics

PODS = Resource("", "v1", "pods", "Pod", namespaced=True)


def families(metrics: Metrics) -> dict[str, list[tuple[str, dict[str, str], float]]]:
    text = metrics.text().decode()
    return {
        f.name: [(s.name, dict(s.labels), s.value) for s in f.samples]
        for f in text_string_to_metric_families(text)
    }


def test_every_catalogued_metric_is_exported_with_its_help() -> None:
    exported = families(Metrics())
    assert set(exported) == {f"watchrelay_{name}" for name in CATALOGUE}


def test_every_series_has_the_label_cluster_and_those_of_the_catalogue() -> None:
    metrics = Metrics("prod-eu-1.example")
    metrics.register_process_collectors()
    metrics.stream("pods", PODS)
    metrics.topic("k8s.prod-eu-1.example.core.pods")
    metrics.set_states({"pods": "watching"}, ("waiting", "watching"))
    exported = families(metrics)
    assert {labels.get("cluster") for samples in exported.values() for _, labels, _ in samples} == {
        "prod-eu-1.example"
    }
    assert metrics.text().count(b"cluster=") == sum(len(samples) for samples in exported.values())
    shown = {
        name: samples[0][1].keys() - {"le"}
        for name, samples in exported.items()
        if samples and name.startswith("watchrelay_")
    }
    assert shown == {
        name: set(CATALOGUE[name.removeprefix("watchrelay_")].labels) for name in shown
    }
    assert len(shown) > 30


def test_the_process_tells_of_itself_under_the_usual_names() -> None:
    metrics = Metrics()
    metrics.register_process_collectors()
    held = {
        name: samples[0][2]
        for name, samples in families(metrics).items()
        if name.startswith("process_")
    }
    assert {
        "process_cpu_seconds",
        "process_resident_memory_bytes",
        "process_start_time_seconds",
        "process_open_fds",
    } <= set(held)
    assert all(value > 0 for value in held.values()), held
    assert {
        labels["generation"] for _, labels, _ in families(metrics)["python_gc_collections"]
    } == {"0", "1", "2"}


def test_counters_of_a_stream_begin_at_zero() -> None:
    metrics = Metrics()
    metrics.stream("pods", PODS)
    samples = families(metrics)["watchrelay_watch_ends"]
    assert {s[1]["reason"]: s[2] for s in samples} == {
        "timeout": 0.0,
        "gone": 0.0,
        "eof": 0.0,
        "silent": 0.0,
        "error": 0.0,
    }


def test_lag_is_a_cumulative_histogram_of_what_was_observed() -> None:
    metrics = Metrics()
    metrics.stream("pods", PODS).relay_lag.observe_batch([10.0, 10.9, 0.0], 11.0)
    samples = families(metrics)["watchrelay_relay_lag_seconds"]
    counts = {s[1]["le"]: s[2] for s in samples if s[0].endswith("_bucket")}
    assert counts["0.05"] == 0.0
    assert counts["0.25"] == 1.0
    assert counts["1.0"] == 2.0
    assert counts["+Inf"] == 2.0


def test_a_stream_that_left_the_config_leaves_no_series() -> None:
    metrics = Metrics()
    metrics.stream("pods", PODS)
    metrics.forget("pods")
    assert all(
        "pods" not in s[1].values() for samples in families(metrics).values() for s in samples
    )


def test_no_created_series_double_the_scrape() -> None:
    metrics = Metrics()
    metrics.stream("pods", PODS)
    assert b"_created" not in metrics.text()


def test_of_a_stream_of_another_replica_stay_the_counters_and_that_it_is_not_owned() -> None:
    metrics = Metrics()
    children = metrics.stream("pods", None)
    children.stream_epoch.set(7)
    children.stream_owned.set(0)
    children.show_age(lambda: 7.0)
    children.ownership_changes_total["handed_over"].inc()
    metrics.forget_gauges("pods")
    text = metrics.text().decode()
    assert "watchrelay_stream_epoch{" not in text
    assert "watchrelay_state_age_seconds{" not in text
    children.show_last_age(lambda: 8.0)
    assert b"watchrelay_state_age_seconds{" not in metrics.text(), "its writer ended later"
    assert 'watchrelay_stream_owned{cluster="",stream="pods"' in text
    assert 'reason="handed_over",stream="pods"} 1.0' in text
    metrics.stream("pods", None).stream_epoch.set(9)
    text = metrics.text().decode()
    assert "watchrelay_stream_epoch{" in text
    assert 'reason="handed_over",stream="pods"} 1.0' in text


def test_a_stream_of_another_replica_that_left_the_config_leaves_no_series() -> None:
    metrics = Metrics()
    metrics.stream("pods", PODS).relay_lag.observe_batch([10.0], 11.0)
    metrics.forget_gauges("pods")
    metrics.forget("pods")
    assert b'"pods"' not in metrics.text()


def test_a_stream_of_another_replica_is_counted_by_the_version_of_its_resource_now() -> None:
    metrics = Metrics()
    metrics.stream("pods", replace(PODS, version="v1beta1"))
    metrics.forget_gauges("pods")
    metrics.stream("pods", PODS)
    text = metrics.text()
    assert b'version="v1"' in text
    assert b'version="v1beta1"' not in text


def test_ages_are_infinite_before_the_first_time_and_no_wall_clock_is_in_them() -> None:
    metrics = Metrics("c")
    stream, topic = metrics.stream("pods", PODS), metrics.topic("t")

    def age(name: str) -> float:
        return families(metrics)[f"watchrelay_{name}"][0][2]

    assert age("snapshot_age_seconds") == math.inf
    assert 0 <= age("last_ack_age_seconds") < 60, "since the topic is written"
    stream.snapshot_age_seconds.restart(ago_s=3600.0)
    stream.last_heard_age_seconds.restart()
    topic.last_ack_age_seconds.restart()
    assert 3600 <= age("snapshot_age_seconds") < 3660
    assert 0 <= age("last_heard_age_seconds") < 60
    assert 0 <= age("last_ack_age_seconds") < 60
    metrics.forget_gauges("pods")
    assert not families(metrics)["watchrelay_snapshot_age_seconds"]
