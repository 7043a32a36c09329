"""Real Kafka, and batches on every topic that no client writes: reported, skipped, nothing lost.

The API server is the synthetic one: what is wrong here is on Kafka's side, and a real broker takes
it.
"""

import asyncio
import re
from pathlib import Path

import pytest

from tests.support.daemon import Daemon, command
from tests.support.embedded import EmbeddedCluster
from tests.support.kafkabroker import KafkaBroker
from tests.support.listed import expected_table, list_text
from tests.support.livereader import fresh_tables
from tests.support.process import wait_until
from tests.support.rawbatches import batch, bomb, encoded, framed, send
from tests.support.testbed import Testbed
from tests.support.topic_contents import index_of
from watchrelay.kafka.client.decompress import WHOLE_BYTES_MAX
from watchrelay.kafka.signal_records import SIGNAL_BYTES_MAX

pytestmark = pytest.mark.real

_PATHS = {"configmaps": "/api/v1/configmaps"}
_BOMB_MB = 250
_BAD_NAME = batch([(b"shop/a", b"{}", [(b"ce_\xff", b"x")])])
_ASTRAY = framed(encoded((b"shop/a", b"{}", []), 1 << 30), 1)
_NOT_UTF_8 = r"a record that has a header whose name is not UTF-8: b'ce_\xff'"


@pytest.fixture
def testbed(cluster: EmbeddedCluster, kafka_broker: KafkaBroker, tmp_path: Path) -> Testbed:
    return Testbed(cluster, kafka_broker, tmp_path)


def highest_mib(relay: Daemon) -> int:
    """The most memory that this life of it ever had."""
    (found,) = re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{relay.pid}/status").read_text())
    return int(found) >> 10


def held(testbed: Testbed, cluster: EmbeddedCluster) -> str:
    """Waits until a reader that starts now holds what the API server lists; what it complains
    of."""
    complaints: list[object] = []

    def equal() -> bool:
        tables, complaints[:] = asyncio.run(
            fresh_tables(testbed.broker.bootstrap, testbed.control_topic)
        )
        return tables == {"configmaps": expected_table(list_text(cluster, _PATHS["configmaps"]))}

    wait_until("a fresh reader holds what the server lists", equal, deadline_s=30.0)
    return "\n".join(map(str, complaints))


def test_batches_that_no_client_writes_are_reported_and_skipped_on_every_topic(
    testbed: Testbed, cluster: EmbeddedCluster
) -> None:
    path, topic = testbed.config_maps(20), testbed.topic("configmaps")
    bootstrap, relay, zstd = (
        testbed.broker.bootstrap,
        testbed.relay(*_PATHS, environment={}),
        bomb("zstd", _BOMB_MB),
    )
    with relay:
        relay.await_ready()
        wait_until("its snapshot is in the index", lambda: index_of(testbed, "configmaps"))
        before_mib = highest_mib(relay)

        (place,) = send(bootstrap, testbed.control_topic, bomb("gzip", _BOMB_MB))
        send(bootstrap, testbed.control_topic, _BAD_NAME)
        send(bootstrap, testbed.signal_topic, zstd, _BAD_NAME, _ASTRAY)
        testbed.ask_snapshot("configmaps")
        relay.wait(
            "the request behind them is answered",
            lambda: len(relay.logged("snapshot complete")) == 2,
        )
        relay.wait(
            "the control topic is read too",
            lambda: len(relay.logged("control record ignored")) == 1,
        )
        assert f"a batch (offset {place}) of " in relay.logged("control record ignored")[0]["error"]
        ignored = [line["error"] for line in relay.logged("signal ignored")]
        assert len(zstd) < 100_000
        assert f"unpacks to more than {SIGNAL_BYTES_MAX:,} bytes" in ignored[0]
        assert ignored[1] == _NOT_UTF_8
        assert ignored[2].startswith("a record that says that its offset is ")

        first = dict(
            enumerate(
                send(bootstrap, topic, zstd, _BAD_NAME, _ASTRAY, partition=number)[0]
                for number in range(3)
            )
        )
        cluster.request("DELETE", f"{path}/c1")
        assert _NOT_UTF_8 in held(testbed, cluster)
        assert relay.stop() == 0

        since = relay.log_bytes
        relay.start().await_ready()
        relay.wait(
            "it has read back",
            lambda: [
                line for line in relay.lines(since=since) if line["message"] == "log read back"
            ],
        )
        passed_over = next(
            line
            for line in relay.lines(since=since)
            if "do not follow the record contract" in line["message"]
        )
        assert passed_over["offset"] == first[passed_over["partition"]]
        assert [
            line["then"] for line in relay.lines(since=since) if line["message"] == "log read back"
        ] == ["WatchFrom"]
        cluster.request("DELETE", f"{path}/c2")
        assert _NOT_UTF_8 in held(testbed, cluster)
        assert highest_mib(relay) < before_mib + 2 * (WHOLE_BYTES_MAX >> 20)

        verified = command("verify", "-c", relay.file)
        assert (verified.code, verified.stderr) == (1, "")
        assert verified.stdout.count(_NOT_UTF_8) == 3
        for offset in set(first.values()):
            reported = verified.stdout.count(
                f"(offset {offset}) of {len(zstd):,} bytes, zstd, unpacks to more than"
            )
            assert reported == list(first.values()).count(offset)
        tailed = command("tail", "-c", relay.file, "--from-beginning", "--until-end")
        assert tailed.code == 0, tailed.stderr
        assert tailed.stderr.count(_NOT_UTF_8) == 3
        assert relay.stop() == 0
