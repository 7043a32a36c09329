"""A relay under churn, on both sides of which secrets are replaced: no change lost, no list."""

import http.client
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from tests.support.daemon import command
from tests.support.faultproxy import FaultProxy
from tests.support.listed import await_equal
from tests.support.pki import Ca
from tests.support.process import wait_until
from tests.support.realparts import ApiError, ControlPlane, KafkaBroker
from tests.support.testbed import Testbed

pytestmark = pytest.mark.real

_WANTED = {"configmaps": "/api/v1/configmaps"}
_RIGHTS = (
    AclOperation.READ,
    AclOperation.WRITE,
    AclOperation.CREATE,
    AclOperation.DESCRIBE_CONFIGS,
)
_SOON_S = 90.0
_END = "-----END CERTIFICATE-----\n"


@pytest.fixture
def secured(real_parts: None) -> Iterator[KafkaBroker]:
    """A broker that lets `relay` in by password, with the rights that it needs."""
    with KafkaBroker("4.1", secured=True) as broker:
        pattern = (
            ResourceType.TOPIC,
            "k8s.",
            ResourcePatternType.PREFIXED,
            f"User:{broker.user}",
            "*",
        )
        for made in broker.admin.create_acls(
            [AclBinding(*pattern, right, AclPermissionType.ALLOW) for right in _RIGHTS]
        ).values():
            made.result(10)
        yield broker


@pytest.fixture
def later() -> Ca:
    """Who signs the API server's next certificate."""
    return Ca("the next authority")


@pytest.fixture
def cluster(real_parts: None, later: Ca) -> Iterator[ControlPlane]:
    """A control plane of the test's own; the tests' own clients trust both of its authorities from
    the start."""
    cluster = ControlPlane()
    cluster.ca.write_bytes(cluster.ca.read_bytes() + later.pem)
    with cluster:
        yield cluster


def refused(cluster: ControlPlane, token: str) -> bool:
    """Whether the API server has forgotten that a token was good."""
    try:
        cluster.request("GET", _WANTED["configmaps"], token=token)
    except ApiError as error:
        return error.status == http.client.UNAUTHORIZED
    return False


def test_token_authority_and_kafkas_password_are_replaced_under_load_and_no_change_is_lost(
    cluster: ControlPlane, secured: KafkaBroker, later: Ca, tmp_path: Path
) -> None:
    testbed = Testbed(cluster, secured, tmp_path)
    token, ca, password = (tmp_path / name for name in ("token", "ca.crt", "password"))
    for account in ("former", "next"):
        cluster.service_account_token("default", account)
        cluster.grant(
            "default",
            account,
            [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list", "watch"]}],
        )
    token.write_text(cluster.service_account_token("default", "former"))
    ca.write_text(cluster.ca.read_text().partition(_END)[0] + _END)
    password.write_text(secured.password)
    with FaultProxy(cluster.port) as path:
        kubeconfig = tmp_path / "by-files.kubeconfig"
        config = json.loads(
            cluster.write_kubeconfig("through", server=f"https://127.0.0.1:{path.port}").read_text()
        )
        config["users"][0]["user"] = {"tokenFile": str(token)}
        config["clusters"][0]["cluster"]["certificate-authority"] = str(ca)
        kubeconfig.write_text(json.dumps(config))
        security = {"protocol": "SASL_SSL", "mechanism": "SCRAM-SHA-512", "username": secured.user}
        security |= {"passwordFile": str(password), "caFile": str(secured.ca)}
        relay = testbed.relay(
            "configmaps",
            kubeconfig=kubeconfig,
            kafka={"bootstrapServers": [secured.listeners["SCRAM"]], "security": security},
        )

        def connects_again() -> None:
            watches = partial(relay.metric, "watchrelay_watch_starts_total")
            before = watches()
            path.refuse()
            path.heal()
            relay.wait(
                "it watches by another connection", lambda: watches() > before, deadline_s=_SOON_S
            )
            relay.wait(
                "nothing is wrong",
                lambda: relay.stream("configmaps").get("lastError") is None,
                deadline_s=_SOON_S,
            )

        with testbed.under_churn(
            relay, [testbed.topic("configmaps")], namespaces=4, operations=400, per_s=60
        ) as (churn, reader):
            churn.reach(churn.operations() + 40)

            former = token.read_text()
            token.write_text(cluster.service_account_token("default", "next"))
            cluster.request("DELETE", "/api/v1/namespaces/default/serviceaccounts/former")
            wait_until("the former token is refused", partial(refused, cluster, former))
            connects_again()
            churn.reach(churn.operations() + 40)

            ca.write_bytes(ca.read_bytes() + later.pem)
            cluster.serve_by(later.issue("kube-apiserver"))
            connects_again()
            ca.write_bytes(later.pem)
            connects_again()
            churn.reach(churn.operations() + 40)

            secured.set_password("the next one")
            password.write_text("the next one")
            rebuilds = partial(relay.metric, "watchrelay_producer_rebuilds_total")
            relay.wait(
                "the producer has the next password",
                lambda: rebuilds(reason="credentials") == 1,
                deadline_s=_SOON_S,
            )
            churn.reach(churn.operations() + 40)
            churn.finish()
            await_equal(cluster, reader, _WANTED, deadline_s=_SOON_S)
            assert rebuilds(reason="identity") == rebuilds(reason="watchdog") == 0
            assert relay.metric("watchrelay_list_total", result="success") == 1, (
                "history was there: no list"
            )
            assert relay.metric("watchrelay_missed_changes_total") == 0
            verified = command("verify", "-c", relay.file, "--cluster", timeout_s=90.0)
            assert verified.code == 0, verified.stdout + verified.stderr
            log = json.dumps(relay.lines())
            assert not [
                secret
                for secret in (former, token.read_text(), secured.password, "the next one")
                if secret in log
            ]
            assert relay.stop() == 0
            reader.read()
        reader.assert_right("configmaps")
