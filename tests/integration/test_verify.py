"""`watchrelay verify`, as its users run it: against the embedded parts, with a relay and under
churn."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.churn import GROUP, Churn, widget_definition
from tests.support.daemon import Outcome, command
from tests.support.embedded import EmbeddedBroker, EmbeddedCluster
from tests.support.pod_topics import LogAppender
from tests.support.process import free_port
from tests.support.stream_log import Log, Writer, stream
from tests.support.testbed import Testbed
from tests.vectors.document import claim, description
from watchrelay.cli.audits import check_streams
from watchrelay.config import load_settings
from watchrelay.core import clock

_STREAMS = ("configmaps", f"widgets.{GROUP}")
_KEYS = {
    "stream",
    "topic",
    "partition",
    "from",
    "to",
    "records",
    "objects",
    "epoch",
    "proven",
    "ageSeconds",
    "ageClock",
    "problems",
    "stale",
    "inPart",
}


@pytest.fixture
def testbed(cluster: EmbeddedCluster, broker: EmbeddedBroker, tmp_path: Path) -> Testbed:
    cluster.request(
        "POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", widget_definition()
    )
    testbed = Testbed(cluster, broker, tmp_path)
    testbed.make_topics(*_STREAMS, "pods")
    return testbed


def verify(file: Path, *more: str) -> Outcome:
    return command("verify", "-c", file, *more, timeout_s=110.0)


def kinds(outcome: Outcome) -> set[tuple[str, str | None]]:
    return {
        (problem["kind"], problem["key"])
        for row in outcome.objects()
        for problem in row["problems"]
    }


def test_a_topic_that_a_relay_writes_holds_also_against_a_cluster_under_churn(
    testbed: Testbed, cluster: EmbeddedCluster
) -> None:
    relay = testbed.relay(*_STREAMS, defaults={"snapshotInterval": "5s"})
    namespaces = testbed.namespaces(4)
    with (
        Churn(
            cluster, namespaces, operations=1000, kinds=("configmaps", "widgets"), per_s=200
        ) as churn,
        relay,
    ):
        relay.await_ready()
        churn.reach(200)
        live = verify(relay.file, "--cluster", "--output", "json")
        assert churn.running, "the churn ended before the verification"
        assert live.code == 0, live.stdout + live.stderr
        rows = live.objects()
        assert [(row["stream"], row["partition"]) for row in rows] == [
            (stream, number) for stream in sorted(_STREAMS) for number in range(3)
        ]
        assert all(
            set(row) == _KEYS and row["proven"] and row["problems"] == [] and row["objects"]
            for row in rows
        )
        assert all(row["to"] - row["from"] >= row["records"] > 0 for row in rows)
        churn.finish()
        text = verify(relay.file, "configmaps")
        assert text.code == 0, text.stdout + text.stderr
        assert "all 3 partitions hold" in text.stdout
        assert relay.stop() == 0


def test_what_changed_behind_the_relays_back_is_found_by_kind_and_key(
    testbed: Testbed, cluster: EmbeddedCluster
) -> None:
    path = testbed.config_maps(3)
    namespace = path.split("/")[4]
    registry, relay = cluster.registry, testbed.relay("configmaps")

    def change() -> None:
        registry.delete("configmaps", namespace, "c0")
        for name, write in (("c1", registry.replace), ("c3", registry.create)):
            write("configmaps", {"metadata": {"name": name, "namespace": namespace}, "data": {}})

    with relay:
        relay.await_ready()
        cluster.unseen("configmaps", change)
        changed = cluster.request("PUT", f"{path}/c2", {"metadata": {"name": "c2"}})
        relay.wait(
            "the watch is past it",
            lambda: (
                relay.stream("configmaps")["frontier"] == changed["metadata"]["resourceVersion"]
            ),
        )
        assert verify(relay.file).code == 0
        found = verify(relay.file, "--cluster", "--output", "json")
        assert relay.stop() == 0
    assert found.code == 1
    assert kinds(found) == {
        ("extra", f"{namespace}/c0"),
        ("differs", f"{namespace}/c1"),
        ("missing", f"{namespace}/c3"),
    }
    assert all(row["proven"] for row in found.objects())


async def test_a_log_that_does_not_hold_exits_with_1_and_says_where(
    testbed: Testbed, broker: EmbeddedBroker
) -> None:
    topic, control = testbed.topic("pods"), testbed.control_topic
    logs = [Log(), Log(), Log()]
    writer = Writer(stream(partitions=3), logs, epoch=2)
    writer.first(*(f"shop/{letter}" for letter in "abcdefgh"))
    writer.put("shop/a", 2, lose=True)
    writer.put("shop/a", 3)
    writer.beat()
    (home,) = [number for number, held in enumerate(writer.held) if b"shop/a" in held]
    async with LogAppender(broker.bootstrap) as appender:
        await appender.append(topic, logs)
        foreign = await appender.send(topic, "other", b"{}", home)
        await appender.send(control, "stream/pods", description(3, topic=topic))
        await appender.send(control, "claim/pods", claim("w1"))
        await appender.send(control, "snapshot/pods", writer.index())
    file = testbed.relay("pods").file
    found = verify(file, "pods", "--output", "json")
    assert found.code == 1, found.stderr
    problems = {row["partition"]: row["problems"] for row in found.objects()}
    assert [(problem["kind"], problem["offset"]) for problem in problems.pop(home)] == [
        ("gap", foreign - 2),
        ("foreign", foreign),
    ]
    assert all(not each for each in problems.values())
    text = verify(file)
    assert text.code == 1
    assert "1 of 3 partitions does not hold" in text.stdout
    assert f"gap @{foreign - 2}: sequence" in text.stdout


async def test_stale_records_are_noted_with_their_place_and_hold(
    testbed: Testbed, broker: EmbeddedBroker
) -> None:
    topic, control = testbed.topic("pods"), testbed.control_topic
    logs = [Log(), Log(), Log()]
    former = Writer(stream(partitions=3), logs, epoch=2)
    former.first("shop/a", "shop/b")
    writer = Writer(stream(partitions=3), logs, epoch=3, before=former)
    writer.claim()
    former.put("shop/a", 9)
    writer.beat()
    (home,) = [number for number, held in enumerate(writer.held) if b"shop/a" in held]
    async with LogAppender(broker.bootstrap) as appender:
        await appender.append(topic, logs)
        await appender.send(control, "stream/pods", description(3, topic=topic))
        await appender.send(control, "claim/pods", claim("w1"))
    file = testbed.relay("pods", "configmaps", f"widgets.{GROUP}", "Gadget", "*.example.org").file
    found = verify(file, "pods", "--output", "json")
    assert (found.code, found.stderr) == (0, "")
    at = logs[home].end - 2
    noted = {row["partition"]: row["stale"] for row in found.objects()}
    assert noted.pop(home) == {"keys": 1, "first": at, "last": at, "key": "shop/a"}
    assert set(noted.values()) == {None}
    text = verify(file, "pods")
    assert text.code == 0
    assert f"  note @{at}: the newest record of 1 key (shop/a) is stale" in text.stdout
    assert "all 3 partitions hold" in text.stdout
    whole = verify(file)
    assert whole.code == 1, "streams of the config were never published"
    absent = [line.split(":")[1].strip() for line in whole.stderr.splitlines()]
    assert absent == ["stream configmaps", f"stream widgets.{GROUP}"], whole.stderr
    assert "all 3 partitions hold; 2 streams of the config were never published" in whole.stdout


def test_what_cannot_be_reached_is_69_what_is_not_there_1_and_a_bad_config_78(
    testbed: Testbed, cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    relay = testbed.relay("configmaps")
    nothing = verify(relay.file)
    assert (nothing.code, nothing.stdout) == (1, "")
    assert (
        f"no stream has been published yet: {testbed.control_topic} describes none"
        in nothing.stderr
    )
    with relay:
        relay.await_ready()
        assert relay.stop() == 0
    unknown = verify(relay.file, "nowhere")
    assert unknown.code == 1
    assert "stream nowhere has not been published yet; published: configmaps" in unknown.stderr
    dead = f"127.0.0.1:{free_port()}"
    away: dict[str, Any] = {**testbed.config("configmaps"), "kafka": {"bootstrapServers": [dead]}}
    away_file = tmp_path / "away.yaml"
    away_file.write_text(str(away))
    no_kafka = verify(away_file)
    assert no_kafka.code == 69, no_kafka.stderr
    assert dead in no_kafka.stderr
    cluster.do(lambda: cluster.server.behaviour.forbidden.add(("list", "configmaps")))
    no_right = verify(relay.file, "--cluster")
    assert (no_right.code, no_right.stdout) == (78, "")
    assert "configmaps" in no_right.stderr
    assert no_right.stderr.count("\n") == 1
    cluster.kill()
    no_cluster = verify(relay.file, "--cluster")
    assert no_cluster.code == 69, no_cluster.stderr
    assert str(cluster.port) in no_cluster.stderr
    cluster.restart()
    bad = tmp_path / "bad.yaml"
    bad.write_text("clustr: x\n")
    assert verify(bad).code == 78


async def test_a_stream_whose_topic_is_gone_keeps_none_of_the_others_from_being_verified(
    testbed: Testbed, broker: EmbeddedBroker
) -> None:
    relay = testbed.relay("configmaps")
    with relay:
        relay.await_ready()
        assert relay.stop() == 0
    async with LogAppender(broker.bootstrap) as appender:
        await appender.send(
            testbed.control_topic, "stream/pods", description(1, topic=testbed.topic("jobs"))
        )
        await appender.send(testbed.control_topic, "claim/pods", claim("w1"))
    for arguments in ((), ("--cluster",)):
        found = verify(relay.file, *arguments)
        assert found.code == 1
        assert (
            f"error: topic {testbed.topic('jobs')} of stream pods is described on "
            f"{testbed.control_topic} and not there"
        ) in found.stderr
        assert ("never published" in found.stderr) is False
        assert "epoch 2: holds" in found.stdout
        assert "all 3 partitions hold; 1 stream cannot be read as a whole" in found.stdout
    alone = verify(relay.file, "pods")
    assert (alone.code, alone.stdout) == (1, "")


def test_a_stream_of_the_config_that_was_never_published_does_not_pass_for_verified(
    testbed: Testbed,
) -> None:
    relay = testbed.relay("configmaps")
    with relay:
        relay.await_ready()
        assert relay.stop() == 0
    more = testbed.relay("configmaps", f"widgets.{GROUP}", name="more")
    found = verify(more.file, "--cluster")
    assert found.code == 1
    assert f"error: stream widgets.{GROUP}: in the config, but never published" in found.stderr
    assert verify(more.file, "configmaps", "--cluster").code == 0


async def test_a_dead_relay_holds_and_fails_over_max_age_once_the_state_is_older(
    testbed: Testbed, capsys: pytest.CaptureFixture[str]
) -> None:
    relay = testbed.relay("configmaps")
    with relay:
        relay.await_ready()
        fresh = verify(relay.file, "--max-age", "2m", "--output", "json")
        assert fresh.code == 0, fresh
        assert all(0 <= row["ageSeconds"] < 120 for row in fresh.objects())
        relay.kill()
    holds = verify(relay.file)
    assert holds.code == 0, holds
    assert re.search(r": holds, \d+s old by the clock of the relay\n", holds.stdout)
    settings = load_settings(str(relay.file), [])
    asked: dict[str, Any] = {"cluster": False, "each": False, "as_json": False}

    def later_ms() -> int:
        return clock.wall_ms() + 600_000

    assert await check_streams(settings, [], **asked, wall_ms=later_ms) == 0
    assert re.search(r": holds, 10m\d*s? old by the clock of the relay\n", capsys.readouterr().out)
    assert await check_streams(settings, [], **asked, max_age_s=120.0, wall_ms=later_ms) == 1
    printed = capsys.readouterr().out
    assert re.search(r"  age: the state is 10m\d*s? old, the limit is 2m: start the relay", printed)
    assert "3 of 3 partitions do not hold" in printed
