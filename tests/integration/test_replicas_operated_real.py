"""What operators see and do with three replicas that share streams by real Kafka: the group, its
metrics, and the commands."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.daemon import Daemon, command
from tests.support.embedded import EmbeddedCluster
from tests.support.pace import last
from tests.support.process import wait_until
from tests.support.realparts import KafkaBroker
from tests.support.testbed import Testbed

pytestmark = pytest.mark.real
SESSION_S = 6.0


class Replicas:
    """Three replicas of one relay, with a stream for each of three namespaces."""

    def __init__(self, testbed: Testbed) -> None:
        self.namespaces = testbed.namespaces(3)
        self.streams = {f"configmaps@{each}" for each in self.namespaces}
        self.running = {name: self._relay(testbed, name) for name in "abc"}

    def _relay(self, testbed: Testbed, name: str) -> Daemon:
        return testbed.relay(
            {"resource": "configmaps", "namespaces": self.namespaces},
            name=name,
            heartbeatInterval="1s",
            sharding={"enabled": True, "balanceAfter": "1s"},
        )

    def rows(self) -> list[dict[str, dict[str, Any]]]:
        return [relay.api_streams() for relay in self.running.values()]

    def groups(self) -> list[dict[str, Any]]:
        return [relay.get_json("/api/group") for relay in self.running.values()]

    def owners(self) -> dict[str, str]:
        """By stream that is written and complete, its replica."""
        return {
            stream: name
            for name, relay in self.running.items()
            for stream, row in relay.api_streams().items()
            if row["role"] == "owner" and row["complete"]
        }

    def await_owned(self, *, streams: set[str] | None = None, each_some: bool = False) -> None:
        wanted = self.streams if streams is None else streams

        def owned() -> bool:
            owners = self.owners()
            spread = not each_some or set(owners.values()) == set(self.running)
            return set(owners) == wanted and spread

        wait_until(f"{wanted} are written", owned, deadline_s=60.0)

    def edit(self, name: str, *namespaces: str) -> Daemon:
        """The replica's config has these namespaces alone."""
        relay = self.running[name]
        resources = [{"resource": "configmaps", "namespaces": list(namespaces)}]
        relay.file.write_text(yaml.safe_dump({**relay.config, "resources": resources}))
        return relay

    def metric(self, metric: str, **labels: str) -> float:
        return sum(relay.metric(metric, **labels) for relay in self.running.values())


@pytest.fixture
def replicas(
    cluster: EmbeddedCluster, kafka_broker: KafkaBroker, tmp_path: Path
) -> Iterator[Replicas]:
    replicas = Replicas(Testbed(cluster, kafka_broker, tmp_path))
    try:
        for relay in replicas.running.values():
            relay.start()
        for relay in replicas.running.values():
            relay.await_ready()
        replicas.await_owned(each_some=True)
        yield replicas
    finally:
        for relay in replicas.running.values():
            relay.kill()


def test_every_replica_shows_the_group_and_all_streams_and_counts_takeovers(
    replicas: Replicas,
) -> None:
    def agreed() -> bool:
        groups = [{**group, "holder": ""} for group in replicas.groups()]
        return groups[0] == groups[1] == groups[2] and groups[0]["even"]

    wait_until("the replicas agree on their group", agreed)
    group = replicas.groups()[0]
    hashes = {each["configHash"] for each in group["members"]}
    assert len(hashes) == 1, "they differ in the port that each listens on alone"
    assert {len(each["streams"]) for each in group["members"]} == {1}
    assert {name for each in group["members"] for name in each["streams"]} == replicas.streams
    shown = {each["streams"][0]: each["holder"] for each in group["members"]}

    def owners() -> list[dict[str, str]]:
        return [{stream: row["owner"] for stream, row in rows.items()} for rows in replicas.rows()]

    wait_until("all show the owners", lambda: owners() == [shown] * 3)
    assert replicas.metric("watchrelay_takeover_duration_seconds_count", kind="failover") == 0

    leader = next(
        name
        for name, relay in replicas.running.items()
        if relay.get_json("/api/group")["holder"] == group["leader"]
    )
    followers = [name for name in "abc" if name != leader]
    killed = replicas.running.pop(followers[0])
    killed.kill()
    replicas.await_owned()
    wait_until(
        "the takeover is counted",
        lambda: replicas.metric("watchrelay_takeover_duration_seconds_count", kind="failover") == 1,
    )
    assert replicas.metric("watchrelay_group_rebalances_total", reason="died") == 1
    left = replicas.running.pop(followers[1])
    owned = [row["role"] for row in left.api_streams().values()].count("owner")
    assert left.stop() == 0
    replicas.await_owned()
    counted = replicas.running[leader].metric
    wait_until(
        "the handovers are counted",
        lambda: counted("watchrelay_takeover_duration_seconds_count", kind="handover") >= owned,
    )
    wait_until(
        "the leader has seen it go",
        lambda: counted("watchrelay_group_rebalances_total", reason="left") == 1,
    )


def test_commands_are_answered_by_the_owners_alone(replicas: Replicas) -> None:
    relay = replicas.running["a"]
    logs = {each: each.log_bytes for each in replicas.running.values()}
    done = command("snapshot", "-c", relay.file, timeout_s=60.0)
    assert done.code == 0, done

    def completed() -> list[str]:
        return sorted(
            line["stream"]
            for each, since in logs.items()
            for line in each.lines(since=since)
            if line["message"] == "snapshot complete"
        )

    # the command reads the end marker from the topic, which may be before the owner logs it
    wait_until("each owner says so", lambda: completed() == sorted(replicas.streams))
    verified = command("verify", "-c", relay.file, "--cluster", timeout_s=60.0)
    assert verified.code == 0, verified
    tailed = command(
        "tail", "-c", relay.file, "--from-beginning", "--until-end", "--markers", timeout_s=60.0
    )
    assert tailed.code == 0, tailed
    assert all(stream in tailed.stdout for stream in replicas.streams)


def test_a_stream_is_retired_once_it_has_left_the_configs_of_all_replicas(
    replicas: Replicas,
) -> None:
    *kept, namespace = replicas.namespaces
    stream = f"configmaps@{namespace}"
    left = {f"configmaps@{each}" for each in kept}
    owner = replicas.owners()[stream]
    edited = replicas.edit(owner, *kept)
    edited.wait("it left one config", lambda: stream not in edited.api_streams())
    refused = command("retire", stream, "--yes", "-c", edited.file, timeout_s=60.0)
    assert refused.code == 1, refused
    assert "every replica" in refused.stderr
    every = [replicas.edit(name, *kept) for name in replicas.running]
    edited.wait(
        "it left each config", lambda: all(stream not in each.api_streams() for each in every)
    )
    replicas.await_owned(streams=left)
    done = command("retire", stream, "--yes", "-c", edited.file, timeout_s=60.0)
    assert done.code == 0, done
    verified = command("verify", "-c", edited.file, "--cluster", timeout_s=60.0)
    assert verified.code == 0, verified


def test_a_stream_that_is_retired_by_force_is_taken_over_by_no_replica(
    replicas: Replicas, tmp_path: Path
) -> None:
    *kept, namespace = replicas.namespaces
    stream = f"configmaps@{namespace}"
    relay = replicas.running["a"]
    resources = [{"resource": "configmaps", "namespaces": list(kept)}]
    without = tmp_path / "without.yaml"
    without.write_text(yaml.safe_dump({**relay.config, "resources": resources}))
    done = command("retire", stream, "--yes", "--force", "-c", without, timeout_s=60.0)
    assert done.code == 0, done
    last(SESSION_S + 4.0)  # long enough for another replica to take it over
    assert all(each.alive for each in replicas.running.values())
    assert set(replicas.owners()) == replicas.streams - {stream}
    assert "owner" not in {rows[stream]["role"] for rows in replicas.rows()}
