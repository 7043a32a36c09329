"""Real parts: proof that the harness does what the other tests rely on."""

import contextlib
import time
import uuid
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from tests.support.parts import class_archive, is_usable
from tests.support.realparts import (
    ApiError,
    ControlPlane,
    KafkaBroker,
    PartError,
    wait_until,
)

pytestmark = pytest.mark.real

_WIDGETS = "/apis/shop.example.com/v1/namespaces/{}/widgets"


@pytest.fixture
def namespace(real_cluster: ControlPlane) -> str:
    name = f"t-{uuid.uuid4().hex[:8]}"
    real_cluster.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    return name


@pytest.fixture(scope="module")
def own_cluster(real_parts: None) -> Iterator[ControlPlane]:
    with ControlPlane(audit=True) as cluster:
        yield cluster


def _widget_definition() -> dict[str, Any]:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.shop.example.com"},
        "spec": {
            "group": "shop.example.com",
            "scope": "Namespaced",
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget"},
            "versions": [version],
        },
    }


def _deployment(name: str, replicas: int) -> dict[str, Any]:
    labels = {"app": name}
    pod = {
        "metadata": {"labels": labels},
        "spec": {"containers": [{"name": "main", "image": "example.com/main:1"}]},
    }
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": pod}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}


def test_a_custom_resource_can_be_defined_and_used(
    real_cluster: ControlPlane, namespace: str
) -> None:
    definition = _widget_definition()
    path = (
        f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{definition['metadata']['name']}"
    )
    real_cluster.apply(path, definition)
    widgets = _WIDGETS.format(namespace)
    real_cluster.wait_for("widgets are served", lambda: real_cluster.request("GET", widgets))
    widget = {
        "apiVersion": "shop.example.com/v1",
        "kind": "Widget",
        "metadata": {"name": "w"},
        "spec": {"size": 3},
    }
    real_cluster.request("POST", widgets, widget)
    assert real_cluster.request("GET", f"{widgets}/w")["spec"] == {"size": 3}
    assert real_cluster.kubectl("-n", namespace, "get", "widgets", "-o", "name").split() == [
        "widget.shop.example.com/w"
    ]


def test_a_deployment_has_as_many_pods_as_it_is_scaled_to(
    real_cluster: ControlPlane, namespace: str
) -> None:
    deployments = f"/apis/apps/v1/namespaces/{namespace}/deployments"
    real_cluster.request("POST", deployments, _deployment("shop", replicas=2))

    def pods() -> list[Any]:
        return list(
            real_cluster.request(
                "GET", f"/api/v1/namespaces/{namespace}/pods?labelSelector=app%3Dshop"
            )["items"]
        )

    real_cluster.wait_for("two pods", lambda: len(pods()) == 2)
    real_cluster.request("PATCH", f"{deployments}/shop/scale", {"spec": {"replicas": 5}})
    real_cluster.wait_for("five pods", lambda: len(pods()) == 5)


def test_a_service_account_may_do_what_it_was_granted_and_nothing_else(
    real_cluster: ControlPlane, namespace: str
) -> None:
    token = real_cluster.service_account_token(namespace, "relay")
    pods = f"/api/v1/namespaces/{namespace}/pods"
    with pytest.raises(ApiError) as refused:
        real_cluster.request("GET", pods, token=token)
    assert refused.value.status == HTTPStatus.FORBIDDEN
    real_cluster.grant(
        namespace, "relay", [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}]
    )
    real_cluster.wait_for("the grant works", lambda: real_cluster.request("GET", pods, token=token))
    with pytest.raises(ApiError) as still_refused:
        real_cluster.request("GET", f"/api/v1/namespaces/{namespace}/secrets", token=token)
    assert still_refused.value.status == HTTPStatus.FORBIDDEN
    kubeconfig = real_cluster.write_kubeconfig("relay", token=token)
    assert (
        real_cluster.kubectl("-n", namespace, "get", "pods", "-o", "name", kubeconfig=kubeconfig)
        == ""
    )


def test_a_killed_apiserver_comes_back_on_its_port_with_its_objects(
    own_cluster: ControlPlane,
) -> None:
    own_cluster.request("POST", "/api/v1/namespaces", {"metadata": {"name": "kept"}})
    own_cluster.kill_apiserver()
    with pytest.raises(OSError):  # refused, whatever the kernel calls it
        own_cluster.request("GET", "/version")
    own_cluster.restart_apiserver()
    assert own_cluster.request("GET", "/version")["gitVersion"].startswith("v1.")
    assert own_cluster.request("GET", "/api/v1/namespaces/kept")["status"]["phase"] == "Active"


def test_a_paused_apiserver_keeps_silent_until_it_is_resumed(own_cluster: ControlPlane) -> None:
    own_cluster.pause()
    with pytest.raises(TimeoutError):
        own_cluster.request("GET", "/version", timeout_s=0.3)
    own_cluster.resume()
    assert own_cluster.wait_for("it answers again", lambda: own_cluster.request("GET", "/version"))


def test_a_continue_token_expires_by_compaction_and_restart(own_cluster: ControlPlane) -> None:
    for number in range(3):
        own_cluster.request("POST", "/api/v1/namespaces", {"metadata": {"name": f"n{number}"}})
    first_page = own_cluster.request("GET", "/api/v1/namespaces?limit=1")
    token = first_page["metadata"]["continue"]
    own_cluster.request("POST", "/api/v1/namespaces", {"metadata": {"name": "later"}})
    assert own_cluster.compact() > int(first_page["metadata"]["resourceVersion"])
    own_cluster.restart_apiserver()
    with pytest.raises(ApiError) as expired:
        own_cluster.request("GET", f"/api/v1/namespaces?limit=1&continue={token}")
    assert expired.value.status == HTTPStatus.GONE
    assert expired.value.body["metadata"]["continue"]


def test_a_watch_from_before_a_restart_is_expired(own_cluster: ControlPlane) -> None:
    before = own_cluster.request("GET", "/api/v1/namespaces")["metadata"]["resourceVersion"]
    own_cluster.request("POST", "/api/v1/namespaces", {"metadata": {"name": "after"}})
    own_cluster.restart_apiserver()
    answer = own_cluster.request(
        "GET", f"/api/v1/namespaces?watch=1&timeoutSeconds=1&resourceVersion={before}"
    )
    assert '"code":410' in str(answer).replace("'", '"').replace(" ", "")


def test_the_audit_log_says_who_asked_for_what(own_cluster: ControlPlane) -> None:
    own_cluster.request("POST", "/api/v1/namespaces", {"metadata": {"name": "audited"}})
    token = own_cluster.service_account_token("audited", "relay")
    with contextlib.suppress(ApiError):
        own_cluster.request("GET", "/api/v1/namespaces/audited/secrets", token=token)

    def refused() -> list[Mapping[str, Any]]:
        user = "system:serviceaccount:audited:relay"
        return [entry for entry in own_cluster.audit_entries() if entry["user"]["username"] == user]

    entry = wait_until("the refusal is in the audit log", refused)[0]
    assert (entry["verb"], entry["objectRef"]["resource"]) == ("list", "secrets")
    assert entry["responseStatus"]["code"] == HTTPStatus.FORBIDDEN


def test_a_part_that_does_not_start_says_why(real_parts: None) -> None:
    with pytest.raises(PartError, match="unknown flag: --no-such-flag"):
        ControlPlane(apiserver_flags=["--no-such-flag"]).start()


def _produce(bootstrap: str, topic: str, values: list[bytes], **security: Any) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "log_level": 0, **security})
    failures: list[KafkaError] = []

    def note(error: KafkaError | None, _: object) -> None:
        if error is not None:
            failures.append(error)

    for value in values:
        producer.produce(topic, value, on_delivery=note)
    assert producer.flush(20.0) == 0
    assert failures == []


def _consume(bootstrap: str, topic: str, count: int) -> list[bytes]:
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": uuid.uuid4().hex,
        "auto.offset.reset": "earliest",
    }
    consumer = Consumer({**settings, "log_level": 0})
    consumer.subscribe([topic])
    read: list[bytes] = []

    def enough() -> bool:
        for message in consumer.consume(100, timeout=0.2):
            value = message.value()
            if message.error() is None and value is not None:
                read.append(value)
        return len(read) >= count

    try:
        wait_until(f"{count} records of {topic} are read", enough)
    finally:
        consumer.close()
    return read


def test_a_broker_keeps_what_was_written_across_a_kill_and_a_restart(
    kafka_broker: KafkaBroker,
) -> None:
    topic = f"t-{uuid.uuid4().hex[:8]}"
    kafka_broker.create_topic(topic)
    address, values = kafka_broker.bootstrap, [b"one", b"two"]
    _produce(address, topic, values)
    kafka_broker.kill()
    kafka_broker.restart()
    assert _consume(address, topic, 2) == values
    kafka_broker.restart()
    assert kafka_broker.bootstrap == address
    _produce(address, topic, [b"three"])
    assert _consume(address, topic, 3) == [*values, b"three"]


def test_a_truncated_class_archive_is_not_used(real_parts: None, tmp_path: Path) -> None:
    archive, truncated = class_archive("4.1"), tmp_path / "truncated.jsa"
    if not archive.exists():
        pytest.skip(f"there is no class archive {archive}: `make real` makes it")
    assert is_usable(archive, "4.1")
    truncated.write_bytes(archive.read_bytes()[:20_000_000])
    assert not is_usable(truncated, "4.1")


def test_a_secured_broker_knows_its_clients_and_their_rights(real_parts: None) -> None:
    with KafkaBroker("4.1", secured=True) as broker:
        broker.create_topic("t")
        certificate = broker.client_certificate()
        password = {"sasl.username": broker.user, "sasl.password": broker.password}
        scram = {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "ssl.ca.location": str(broker.ca),
        }
        mtls = {
            "security.protocol": "SSL",
            "ssl.ca.location": str(broker.ca),
            "ssl.certificate.location": str(certificate.certificate),
            "ssl.key.location": str(certificate.key),
        }
        token, expires_at = broker.oauth_token(broker.user), time.time() + 3600
        bearer = {"sasl.mechanism": "OAUTHBEARER", "oauth_cb": lambda _: (token, expires_at)}
        clients: list[tuple[str, dict[str, Any]]] = [
            ("SCRAM", {**scram, **password}),
            ("MTLS", mtls),
            (
                "PLAIN",
                {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", **password},
            ),
            ("PLAIN", {"security.protocol": "SASL_PLAINTEXT", **bearer}),
        ]
        with pytest.raises(AssertionError, match="TOPIC_AUTHORIZATION_FAILED"):
            _produce(broker.listeners["MTLS"], "t", [b"refused"], **mtls)
        allow = AclBinding(
            ResourceType.TOPIC, "t", ResourcePatternType.LITERAL, f"User:{broker.user}", "*",
            AclOperation.WRITE, AclPermissionType.ALLOW,
        )  # fmt: skip
        for done in broker.admin.create_acls([allow]).values():
            done.result(10.0)
        for listener, security in clients:
            _produce(broker.listeners[listener], "t", [listener.encode()], **security)
        assert _consume(broker.bootstrap, "t", len(clients)) == [
            name.encode() for name, _ in clients
        ]
