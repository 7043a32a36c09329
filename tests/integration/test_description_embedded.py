"""A description on the control topic that another writer changed while the relay runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.daemon import command
from tests.support.embedded import EmbeddedBroker, EmbeddedCluster
from tests.support.extent import few
from tests.support.testbed import Testbed
from tests.support.topicreader import read_control


@pytest.mark.parametrize("written", few(["another topic", "nothing", "no object"], 1))
def test_the_relay_writes_it_again_and_readers_find_the_stream(
    cluster: EmbeddedCluster, broker: EmbeddedBroker, tmp_path: Path, written: str
) -> None:
    testbed = Testbed(cluster, broker, tmp_path)
    testbed.make_topics("configmaps")
    testbed.config_maps(3)
    control = testbed.control_topic

    def newest() -> Any:
        records = read_control(broker.bootstrap, control)
        return [value for _, key, value in records if key == "stream/configmaps"][-1]

    with testbed.relay("configmaps") as relay:
        relay.await_ready()
        described = newest()
        values = {
            "another topic": json.dumps({**described, "topic": "elsewhere"}).encode(),
            "nothing": None,
            "no object": b"[1]",
        }
        testbed.write(control, "stream/configmaps", values[written])
        relay.wait("it is written again", lambda: newest() == described)
        relay.wait("that is logged", lambda: relay.logged("another writer changed"))
        verified = command("verify", "-c", relay.file)
        assert verified.code == 0, verified
        assert relay.stop() == 0
