"""REAL and what `tools/build.sh` built: the harness of real parts, in one import.

Real parts are a kube-apiserver with its etcd (`ControlPlane`) and Apache Kafka (`KafkaBroker`,
`KafkaCluster`). All run on loopback ports of their own with data in memory, and none survives the
test run. Nothing here is asynchronous; asyncio tests call the slow methods through
`asyncio.to_thread`.
"""

import os

from tests.support.controlplane import ApiError, ControlPlane
from tests.support.kafkabroker import KafkaBroker, KafkaCluster
from tests.support.parts import parts_directory
from tests.support.process import PartError, wait_until

__all__ = [
    "ApiError",
    "ControlPlane",
    "KafkaBroker",
    "KafkaCluster",
    "PartError",
    "unavailable",
    "wait_until",
    "wanted",
]


def wanted() -> bool:
    """True when REAL=1 asks for the tests that need real parts."""
    return os.environ.get("REAL", "") == "1"


def unavailable() -> str | None:
    """One line that says why real parts cannot be started although they are wanted; None when they
    can."""
    directory = parts_directory()
    if directory.is_dir():
        return None
    return f"REAL=1 is set but the real parts are not built (no {directory}): run `make real`"
