"""A secured broker, a user: the rights of a relay in Kafka, given, taken and asked for; what was
denied.

`RIGHTS` is what docs/install.md and deploy/strimzi/user.yaml list, which a test compares, and what
a relay is shown to live with.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from tests.support.kafkabroker import KafkaBroker

RIGHTS = (AclOperation.WRITE, AclOperation.READ, AclOperation.CREATE, AclOperation.DESCRIBE_CONFIGS)
"""All on topics by their prefix. Replicas that share streams need READ on their group too
(`grant_group`), and a relay with `delivery: transactional` TRANSACTION_RIGHTS
(`grant_transactions`); no other relay is given these."""
TRANSACTION_RIGHTS = (AclOperation.WRITE, AclOperation.DESCRIBE)
"""On transactional ids by their prefix."""

PREFIX = "k8s."


def binding(
    right: Any, kind: Any = AclBinding, *, user: str = KafkaBroker.user, prefix: str = PREFIX
) -> Any:
    """The right of a user on every topic that begins with `prefix`."""
    pattern = (ResourceType.TOPIC, prefix, ResourcePatternType.PREFIXED)
    return kind(*pattern, f"User:{user}", "*", right, AclPermissionType.ALLOW)


def grant(
    broker: KafkaBroker, *rights: Any, user: str = KafkaBroker.user, prefix: str = PREFIX
) -> None:
    """Give a user these rights."""
    for made in broker.admin.create_acls(
        [binding(right, user=user, prefix=prefix) for right in rights]
    ).values():
        made.result(10)


def grant_group(broker: KafkaBroker, *, user: str) -> None:
    """Let a user be a member of the groups that begin with `PREFIX`."""
    _grant(broker, ResourceType.GROUP, AclOperation.READ, user=user)


def grant_transactions(broker: KafkaBroker, *, user: str) -> None:
    """Let a user write under the transactional ids that begin with `PREFIX`."""
    _grant(broker, ResourceType.TRANSACTIONAL_ID, *TRANSACTION_RIGHTS, user=user)


def _grant(broker: KafkaBroker, kind: Any, *rights: Any, user: str) -> None:
    allowed = [
        AclBinding(
            kind,
            PREFIX,
            ResourcePatternType.PREFIXED,
            f"User:{user}",
            "*",
            right,
            AclPermissionType.ALLOW,
        )
        for right in rights
    ]
    for made in broker.admin.create_acls(allowed).values():
        made.result(10)


def take(broker: KafkaBroker, *rights: Any, user: str = KafkaBroker.user) -> None:
    """Take these rights from a user."""
    for gone in broker.admin.delete_acls(
        [binding(right, AclBindingFilter, user=user) for right in rights]
    ).values():
        gone.result(10)


def granted(broker: KafkaBroker, user: str) -> list[tuple[str, str, str]]:
    """All that the user has been given, on anything: kind of thing, name, right."""
    anything: Any = (
        ResourceType.ANY,
        None,
        ResourcePatternType.ANY,
        f"User:{user}",
        None,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    mine = AclBindingFilter(*anything)
    return sorted(
        (each.restype.name, each.name, each.operation.name)
        for each in broker.admin.describe_acls(mine).result(10)
    )


def denied(broker: KafkaBroker, user: str) -> set[str]:
    """The rights that the user went without, each with what it was wanted on, by the broker's own
    log."""
    log = (broker.directory / "kafka.log").read_text(errors="replace")
    found = re.findall(
        rf"Principal = User:{re.escape(user)} is Denied operation = (\w+) .*? on resource = "
        r"(\w+):\w+:(\S+) ",
        log,
    )
    return {" ".join(each) for each in found}


def certified(broker: KafkaBroker, user: str) -> dict[str, Any]:
    """The config's section `kafka` by which a relay comes as this user: by a certificate of that
    name."""
    issued = broker.client_certificate(user)
    files: dict[str, Path] = {
        "caFile": broker.ca,
        "certFile": issued.certificate,
        "keyFile": issued.key,
    }
    security = {"protocol": "SSL", **{name: str(path) for name, path in files.items()}}
    return {"bootstrapServers": [broker.listeners["MTLS"]], "security": security}


def names(rights: Iterable[Any]) -> list[str]:
    """As people write them."""
    return [right.name for right in rights]
