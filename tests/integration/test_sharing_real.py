"""Three replicas that share twelve streams by real Kafka, under churn: one dies, leaves, is suspended,
or all are replaced in turn. Each stream has one owner again, and the topics verify."""

import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.churn import Churn
from tests.support.embedded import EmbeddedCluster
from tests.support.pace import last
from tests.support.process import wait_until
from tests.support.realparts import KafkaBroker
from tests.support.replicas import SESSION_S, SETTLE_S, Replicas
from tests.support.testbed import Testbed
from tests.support.topicreader import TopicReader
from watchrelay.core.timestamps import parse_timestamp

pytestmark = pytest.mark.real
STREAMS = 12


@pytest.fixture
def testbed(cluster: EmbeddedCluster, kafka_broker: KafkaBroker, tmp_path: Path) -> Testbed:
    return Testbed(cluster, kafka_broker, tmp_path)


def gaps_s(reader: TopicReader, epochs: dict[str, int]) -> dict[str, float]:
    """By stream that was claimed since these epochs: seconds between its newest object record
    before that and the first one after it."""
    reader.read()
    times_ms: dict[str, tuple[list[int], list[int]]] = {}
    for each in reader.records:
        if each.stream in epochs and "ce_kind" in each.headers:
            at_ms = parse_timestamp(each.headers["ce_time"].encode())
            later = each.epoch > epochs[each.stream]
            times_ms.setdefault(each.stream, ([], []))[later].append(at_ms)
    return {
        stream: (min(after) - max(before)) / 1000
        for stream, (before, after) in times_ms.items()
        if before and after
    }


@pytest.fixture
def shared(testbed: Testbed) -> Callable[[], Any]:
    """Three replicas, evenly loaded, under churn."""

    @contextmanager
    def running() -> Iterator[tuple[Replicas, Churn, TopicReader]]:
        namespaces = testbed.namespaces(STREAMS)
        with ExitStack() as stack:
            entry = {"resource": "configmaps", "namespaces": namespaces}
            replicas = Replicas(testbed, [entry], stack, streams=STREAMS)
            churn = stack.enter_context(
                Churn(testbed.cluster, namespaces, operations=100, kinds=("configmaps",), per_s=50)
            )
            reader = stack.enter_context(testbed.reader(testbed.topic("configmaps")))
            replicas.start_shared(*"abc")
            yield replicas, churn, reader

    return running


def test_a_replica_that_is_killed_loses_its_streams_to_the_others(shared: Any) -> None:
    with shared() as (replicas, churn, reader):
        replicas.await_warm()
        before, epochs, lines = replicas.owned(), replicas.epochs(), replicas.mark()
        killed = replicas.running.pop("a")
        killed.kill()
        began_s = time.monotonic()
        after = replicas.await_shared(deadline_s=SESSION_S + 10 * SETTLE_S)
        took_s = time.monotonic() - began_s
        for name, streams in after.items():
            assert set(before[name]) <= set(streams), "a death moves no stream of live replicas"
        print(f"killed: each stream has one owner after {took_s:.2f} s")
        resumed = [line for line in lines() if line["message"] == "log read back"]
        assert len(resumed) == len(before["a"])
        assert {line["then"] for line in resumed} == {"WatchFrom"}, "no list"
        assert all(line["followed"] for line in resumed), "the new owners had followed the streams"
        last(1.0)  # each stream has churn four times a second
        gaps = sorted(gaps_s(reader, epochs).values())
        print(
            f"killed: seconds without a record {gaps}, reads {[line['took_s'] for line in resumed]}"
        )
        replicas.await_warm()
        churn.finish()
        replicas.verify()


def test_a_replica_that_ends_hands_each_stream_over_and_exits_with_0(shared: Any) -> None:
    with shared() as (replicas, churn, reader):
        replicas.await_warm()
        before, logs = replicas.epochs(), replicas.mark()
        owned = set(replicas.owned()["a"])
        leaving = replicas.running.pop("a")
        assert leaving.stop() == 0
        replicas.await_shared(deadline_s=60.0)
        lines = logs()
        handed = [line for line in lines if line["message"] == "stream handed over"]
        assert {line["stream"] for line in handed} == owned
        assert all(line["released"] for line in handed), handed
        after = replicas.epochs()
        assert {stream for stream in before if after[stream] > before[stream]} == owned
        resumed = [line for line in lines if line["message"] == "log read back"]
        assert {line["then"] for line in resumed} == {"WatchFrom"}, "no list"
        assert all(line["followed"] for line in resumed), "the new owners had followed the streams"
        print(f"ended: finishing took {sorted(line['took_s'] for line in handed)} s")
        last(1.0)  # each stream has churn four times a second
        print(f"ended: seconds without a record {sorted(gaps_s(reader, before).values())}")
        churn.finish()
        replicas.verify()
        assert not replicas.logged("repairing stale records"), "nothing stale in a planned move"


def test_a_replica_that_was_suspended_writes_nothing_of_what_it_lost(shared: Any) -> None:
    with shared() as (replicas, churn, _):
        suspended = replicas.running.pop("a")
        assigned = len(suspended.logged("streams assigned"))
        suspended.send(signal.SIGSTOP)
        try:
            replicas.await_shared(deadline_s=SESSION_S + 10 * SETTLE_S)
            last(2.0)  # the rest of a suspension that is longer than a session by far
        finally:
            suspended.send(signal.SIGCONT)
        continued_s = time.monotonic()
        replicas.running["a"] = suspended
        wait_until("it is a member again", lambda: suspended.logged("streams assigned")[assigned:])
        wait_until(
            "it follows streams of others", lambda: suspended.metric("watchrelay_stream_warm") > 0
        )
        print(f"suspended: back as a standby after {time.monotonic() - continued_s:.1f} s")
        replicas.await_shared(deadline_s=60.0)
        assert suspended.alive
        churn.finish()
        replicas.verify()
        stale = replicas.logged("repairing stale records")
        print(f"suspended: {sum(line['objects'] for line in stale)} stale records")
        assert not stale


def test_in_a_rolling_update_each_stream_is_handed_over(shared: Any) -> None:
    with shared() as (replicas, churn, _):
        before = replicas.epochs()
        for old, new in zip("abc", "xyz", strict=True):
            replicas.start(new).await_ready()
            assert replicas.running.pop(old).stop() == 0
            replicas.await_shared(deadline_s=60.0)
        after = replicas.epochs()
        claims = Counter(line["stream"] for line in replicas.logged("stream claimed"))
        print(f"rolled: claims by stream {sorted(claims.values())}")
        assert all(after[stream] > before[stream] for stream in before)
        churn.finish()
        replicas.verify()
        assert not replicas.logged("repairing stale records")
        assert not replicas.logged("drain deadline passed")
