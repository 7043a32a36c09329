"""Bombs on every topic, and foreign records on the control topic, of a relay that runs, and of one
that starts: its peak memory, in a process of its own."""

import re
from pathlib import Path
from random import Random

import pytest

from tests.fuzz import controls
from tests.support.daemon import Daemon
from tests.support.embedded import EmbeddedBroker, EmbeddedCluster
from tests.support.rawbatches import batch, bomb, send
from tests.support.testbed import Testbed
from watchrelay.daemon.memory import NEEDED_BYTES

_MEBIBYTES = {"gzip": 60, "snappy": 16, "lz4": 39, "zstd": 127}
"""What a batch that brokers take can come to, and what a state topic may have."""


def highest_bytes(relay: Daemon) -> int:
    """The most memory that this life of it ever had."""
    (found,) = re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{relay.pid}/status").read_text())
    return int(found) << 10


def answered(testbed: Testbed, relay: Daemon) -> None:
    """Waits until a request that comes after all else on the signal topic is answered."""
    before = len(relay.logged("snapshot complete"))
    testbed.ask_snapshot("configmaps")
    relay.wait(
        "the request after them is answered",
        lambda: len(relay.logged("snapshot complete")) > before,
        deadline_s=300.0,
    )


@pytest.mark.timeout(600)
def test_bombs_on_every_topic_take_less_memory_than_a_pod_needs(
    cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    with EmbeddedBroker() as broker:
        testbed = Testbed(cluster, broker, tmp_path)
        testbed.make_topics("configmaps")
        testbed.config_maps(5)
        relay = testbed.relay("configmaps", environment={})
        with relay:
            relay.await_ready()
            nested = batch([(b"k", bytes(1 << 20), [])] * 120, codec="zstd")
            bombs = [bomb(codec, size) for codec, size in _MEBIBYTES.items()]
            for topic in (testbed.control_topic, testbed.signal_topic, testbed.topic("configmaps")):
                send(broker.bootstrap, topic, *bombs, nested)
            for _ in range(2):
                answered(testbed, relay)
                peak = highest_bytes(relay)
                print(f"peak of resident memory: {peak >> 20} MiB")
                assert peak < NEEDED_BYTES
                assert relay.stop() == 0
                relay.start().await_ready()
            ignored = [line["error"] for line in relay.logged("signal ignored")]
            assert any("unpacks to more than 1,048,576 bytes" in error for error in ignored)
            ignored = [line["error"] for line in relay.logged("control record ignored")]
            assert any("unpacks to more than 16,777,216 bytes" in error for error in ignored)
            assert relay.stop() == 0


@pytest.mark.full
@pytest.mark.timeout(600)
def test_foreign_records_on_the_control_topic_take_less_memory_than_a_pod_needs(
    cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    with EmbeddedBroker() as broker:
        testbed = Testbed(cluster, broker, tmp_path)
        testbed.make_topics("configmaps")
        testbed.config_maps(5)
        relay = testbed.relay("configmaps", environment={})
        with relay:
            relay.await_ready(deadline_s=300.0)
            for number, kind in enumerate(controls.OWN):
                batches = controls.KINDS[kind](Random(number), "configmaps")
                send(broker.bootstrap, testbed.control_topic, *batches)
            for _ in range(2):
                answered(testbed, relay)
                peak = highest_bytes(relay)
                print(f"peak of resident memory: {peak >> 20} MiB")
                assert peak < NEEDED_BYTES
                assert relay.logged("control topic holds too much")
                assert relay.stop() == 0
                relay.start().await_ready(deadline_s=300.0)
            assert relay.stop() == 0
