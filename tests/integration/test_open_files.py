"""More streams than the process may have files open."""

import resource
from pathlib import Path

from tests.support.embedded import EmbeddedBroker, EmbeddedCluster
from tests.support.testbed import Testbed

STREAMS, LIMIT = 60, 64


def test_streams_without_a_file_wait_with_a_cure_and_the_others_and_probes_go_on(
    cluster: EmbeddedCluster, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    testbed = Testbed(cluster, broker, tmp_path)
    testbed.make_topics("pods")
    relay = testbed.relay({"resource": "pods", "namespaces": testbed.namespaces(STREAMS)})
    with relay:
        hard = resource.prlimit(relay.pid, resource.RLIMIT_NOFILE)[1]
        relay.wait("it is alive", lambda: relay.livez() == 200)
        resource.prlimit(relay.pid, resource.RLIMIT_NOFILE, (LIMIT, hard))

        def settled() -> bool:
            states = [row["state"] for row in relay.api_streams().values()]
            return len(states) == STREAMS and set(states) == {"watching", "backoff"}

        relay.wait("each stream watches or waits", settled)
        waiting = [row for row in relay.api_streams().values() if row["state"] == "backoff"]
        assert all(
            f"may have {LIMIT} files open" in row["lastError"]["message"]
            and "ulimit -n" in row["lastError"]["cure"]
            for row in waiting
        )
        assert relay.livez() == 200
        assert not relay.logged("requests of all streams are paused")
        assert not relay.logged("out of system resource")
        assert relay.stop() == 0
