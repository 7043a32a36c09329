"""A first start on a Kafka that has none of the topics: the relay creates them, and logs no
warning."""

import pytest

from tests.support.testbed import Testbed

pytestmark = pytest.mark.real


def test_topics_that_are_created_for_streams_that_never_started_are_not_called_recreated(
    testbed: Testbed,
) -> None:
    with testbed.relay("configmaps", "namespaces") as relay:
        relay.await_ready()
        assert relay.stop() == 0
    lines = relay.lines()
    assert [line for line in lines if line["level"] in ("warning", "error")] == []
    reasons = [line["reason"] for line in lines if line["message"] == "log read back"]
    assert reasons == ["nothing was published before"] * 2
