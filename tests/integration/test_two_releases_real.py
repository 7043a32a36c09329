"""Two releases at once in one group, as in a rolling update and its way back: this tree and the one
before it share streams by real Kafka, under churn."""

import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.churn import Churn
from tests.support.embedded import EmbeddedCluster
from tests.support.realparts import KafkaBroker
from tests.support.replicas import SETTLE_S, Replicas
from tests.support.testbed import Testbed

pytestmark = pytest.mark.real
ROOT = Path(__file__).resolve().parents[2]
BEFORE = "9c53caad"
"""The release before this one."""
NEW = "watchrelay_log_lines_dropped_total"
"""A metric that only this one has."""
STREAMS = 6


@pytest.fixture
def before(tmp_path: Path) -> dict[str, str]:
    """The environment in which the program is that of the release before."""
    archive = tmp_path / "before.tar"
    git = ["git", "-C", str(ROOT), "archive", "-o", str(archive), BEFORE, "watchrelay"]
    done = subprocess.run(git, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"this clone has no history with {BEFORE}: {done.stderr.strip()}")
    tree = tmp_path / "before"
    tree.mkdir()
    subprocess.run(["tar", "-xf", archive, "-C", tree], check=True)
    return {"PYTHONPATH": str(tree)}


def test_a_rolling_update_and_its_way_back_lose_and_repeat_nothing(
    cluster: EmbeddedCluster, kafka_broker: KafkaBroker, tmp_path: Path, before: dict[str, str]
) -> None:
    testbed = Testbed(cluster, kafka_broker, tmp_path)
    namespaces = testbed.namespaces(STREAMS)
    with ExitStack() as stack:
        entry = {"resource": "configmaps", "namespaces": namespaces}
        replicas = Replicas(testbed, [entry], stack, streams=STREAMS)
        churn = stack.enter_context(
            Churn(testbed.cluster, namespaces, operations=100, kinds=("configmaps",), per_s=20)
        )
        for name in "abc":
            replicas.start(name, environment=before)
        replicas.await_shared(deadline_s=60.0, even=True)
        assert not any(NEW in relay.metrics() for relay in replicas.running.values())
        logs = replicas.mark()
        # each step has both releases in the group; the last ones go back
        for old, new, environment in (
            ("a", "x", None),
            ("b", "y", None),
            ("c", "z", None),
            ("x", "d", before),
        ):
            replicas.start(new, environment=environment)
            replicas.running[new].await_ready()
            assert (NEW in replicas.running[new].metrics()) is (environment is None)
            assert replicas.running.pop(old).stop() == 0
            replicas.await_shared(deadline_s=SETTLE_S + 30.0)
        resumed = [line for line in logs() if line["message"] == "log read back"]
        assert {line["then"] for line in resumed} == {"WatchFrom"}, "no list"
        assert not replicas.logged("repairing stale records"), "nothing stale in a planned move"
        churn.finish()
        del replicas.running["d"]  # `verify` is this release's
        replicas.verify()
