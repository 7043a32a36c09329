"""A real broker with an authorizer: proof that a relay needs the rights which the documentation
lists, all of them and no other, and that each one it lacks is named with its cure.

The API server is the synthetic one: rights in Kafka have nothing to do with it.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import cast

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from tests.support.daemon import Daemon, command
from tests.support.embedded import EmbeddedCluster
from tests.support.kafkabroker import Version
from tests.support.kafkarights import (
    RIGHTS,
    certified,
    denied,
    grant,
    grant_group,
    grant_transactions,
    granted,
)
from tests.support.realparts import KafkaBroker
from tests.support.testbed import Testbed
from tests.unit.daemon.conftest import settings_of
from watchrelay.admin.preflight import check_everything
from watchrelay.demo.cluster import SyntheticCluster

pytestmark = pytest.mark.real


@pytest.fixture(scope="module", params=["4.1"])
def broker(real_parts: None, request: pytest.FixtureRequest) -> Iterator[KafkaBroker]:
    """A broker on which nobody may do anything that was not granted."""
    with KafkaBroker(cast("Version", request.param), secured=True) as broker:
        yield broker


def test_with_the_rights_that_are_listed_a_relay_does_all_it_does_and_asks_for_no_other(
    broker: KafkaBroker, cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    grant(broker, *RIGHTS, user="enough")
    assert granted(broker, "enough") == sorted(("TOPIC", "k8s.", right.name) for right in RIGHTS)
    testbed = Testbed(cluster, broker, tmp_path)
    relay = testbed.relay("configmaps", kafka=certified(broker, "enough"))
    maps = testbed.config_maps(3)
    ready = command("validate", "--connect", "-c", relay.file)
    assert ready.code == 0, ready.stdout + ready.stderr
    assert "ok: rights in kafka" in ready.stdout
    with relay:
        relay.await_ready()
        assert relay.metric("watchrelay_list_total", result="success") == 1
        with testbed.reader(testbed.topic("configmaps")) as reader:
            reader.read_until("heartbeats", lambda: reader.of("configmaps", "heartbeat"))
        asked = command("snapshot", "-c", relay.file)
        assert asked.code == 0, asked.stdout + asked.stderr
        grant(broker, AclOperation.READ, user="onlooker")
        onlooker = testbed.relay("configmaps", name="onlooker", kafka=certified(broker, "onlooker"))
        refused = command("snapshot", "-c", onlooker.file)
        assert refused.code == 78
        assert (
            f"topic {testbed.signal_topic} may not be written by this user: grant WRITE on it"
            in refused.stderr
        )
        epoch = relay.stream("configmaps")["epoch"]
        relay.kill()
        testbed.make(maps, [{"metadata": {"name": "made-meanwhile"}}])
        relay.start().await_ready()
        assert relay.stream("configmaps")["epoch"] > epoch
        assert relay.metric("watchrelay_list_total") == 0, "it resumed"
        verified = command("verify", "--cluster", "-c", relay.file)
        assert verified.code == 0, verified.stdout + verified.stderr
        assert relay.stop() == 0
    assert denied(broker, "enough") == set()


REPORTED = {
    AclOperation.WRITE: "grant WRITE on the topic prefix",
    AclOperation.READ: "grant READ on it or its prefix",
    AclOperation.CREATE: "this user may not create it; grant CREATE, or create it with: kafka-topics.sh",
    AclOperation.DESCRIBE_CONFIGS: "its configuration could not be checked: grant DESCRIBE_CONFIGS on it or its prefix",
}
"""What the relay says that lacks one right and has all others. It works without the last one,
unchecked."""


def well(relay: Daemon) -> bool:
    """Ready, and nothing is wrong."""
    code, body = relay.readyz()
    return code == 200 and not body.get("problems")


def watches(relay: Daemon) -> bool:
    return bool(relay.stream("configmaps")["state"] == "watching")


def waits(relay: Daemon, right: AclOperation) -> bool:
    """The right is named; ready where it is the control topic that needs an operator."""
    code, body = relay.readyz()
    wanted = 200 if right is AclOperation.CREATE else 503
    return code == wanted and REPORTED[right] in str(body.get("problems"))


def test_a_right_to_create_on_the_cluster_is_enough(
    broker: KafkaBroker, cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    grant(broker, *(right for right in RIGHTS if right is not AclOperation.CREATE), user="maker")
    anywhere = AclBinding(
        ResourceType.BROKER,
        "kafka-cluster",
        ResourcePatternType.LITERAL,
        "User:maker",
        "*",
        AclOperation.CREATE,
        AclPermissionType.ALLOW,
    )
    broker.admin.create_acls([anywhere])[anywhere].result(10)
    relay = Testbed(cluster, broker, tmp_path).relay("configmaps", kafka=certified(broker, "maker"))
    asked = command("validate", "--connect", "-c", relay.file)
    assert (asked.code, "ok: rights in kafka" in asked.stdout) == (0, True), asked.stdout


def test_without_any_one_of_them_the_relay_names_it_and_once_it_is_granted_goes_on_by_itself(
    broker: KafkaBroker, cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    relays: dict[AclOperation, Daemon] = {}
    for right in RIGHTS:
        user = f"without-{right.name}"
        grant(broker, *(other for other in RIGHTS if other is not right), user=user)
        relays[right] = Testbed(cluster, broker, tmp_path).relay(
            "configmaps", name=user, kafka=certified(broker, user)
        )
    for right, relay in relays.items():
        # before it ever ran: no topic is there
        asked = command("validate", "--connect", "-c", relay.file)
        assert f"rights in kafka: this user has no right {right.name} on " in asked.stdout
        assert asked.code == (0 if right is AclOperation.DESCRIBE_CONFIGS else 78), asked.stdout
    with ExitStack() as stack:
        for relay in relays.values():
            stack.enter_context(relay)
        for right, relay in relays.items():
            relay.wait(f"{right.name} is named", partial(relay.logged, REPORTED[right]))
            if right is not AclOperation.DESCRIBE_CONFIGS:
                relay.wait(f"/readyz has {right.name}", partial(waits, relay, right))
            if right is AclOperation.READ:
                asked = command("snapshot", "-c", relay.file)
                assert (asked.code, "may not be read by this user: grant READ" in asked.stderr) == (
                    78,
                    True,
                ), asked.stderr
            grant(broker, right, user=f"without-{right.name}")
        for relay in relays.values():
            relay.wait("it goes on", partial(well, relay))
            relay.wait("it watches", partial(watches, relay))
        assert [relay.stop() for relay in relays.values()] == [0, 0, 0, 0]


async def test_a_replica_that_may_not_join_its_group_is_reported_by_validate(
    broker: KafkaBroker, tmp_path: Path
) -> None:
    grant(broker, *RIGHTS, user="replica")
    async with SyntheticCluster() as cluster:
        (tmp_path / "config").write_text(cluster.kubeconfig())
        settings = settings_of(
            ["pods"],
            kafka=certified(broker, "replica"),
            kubernetes={"kubeconfig": str(tmp_path / "config")},
            sharding={"enabled": True},
        )
        *_, refused = await check_everything(settings)
        grant_group(broker, user="replica")
        *_, allowed = await check_everything(settings)
    assert str(refused) == (
        "error: group k8s.test.relays is not usable: this user may not be a member: grant READ on "
        "the group or its prefix"
    )
    assert refused.code == 78
    assert str(allowed) == "ok: group k8s.test.relays: 0 members"


async def test_a_relay_that_may_not_use_its_transactional_ids_is_reported_by_validate(
    broker: KafkaBroker, tmp_path: Path
) -> None:
    grant(broker, *RIGHTS, user="transactions")
    async with SyntheticCluster() as cluster:
        (tmp_path / "config").write_text(cluster.kubeconfig())
        settings = settings_of(
            ["pods"],
            kafka={**certified(broker, "transactions"), "delivery": "transactional"},
            kubernetes={"kubeconfig": str(tmp_path / "config")},
        )
        *_, refused = await check_everything(settings)
        grant_transactions(broker, user="transactions")
        *_, allowed = await check_everything(settings)
    assert str(refused) == (
        "error: transactional ids: transactional id k8s.test.pods may not be used by this user: "
        "grant WRITE and DESCRIBE on it or its prefix"
    )
    assert refused.code == 78
    assert str(allowed) == "ok: transactional ids: this user may write under 1 id"
