"""A real broker that ends SASL sessions after seconds (KIP-368): nothing is lost, written twice or
shown."""

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.test_sink_secured_real import way_in
from tests.support.kafkabroker import versions
from tests.support.kafkarights import PREFIX, RIGHTS, grant
from tests.support.realparts import KafkaBroker
from tests.support.sinkparts import batch, fresh_topic, keys_on, one, running_sink, until
from watchrelay.kafka.control_topic import ControlTopic
from watchrelay.kafka.producer import ProducerSettings
from watchrelay.kafka.topics import Topics, TopicSpec

pytestmark = pytest.mark.real
SESSION_S = 3.0


@pytest.fixture(scope="module", params=versions("4.1"))
def hasty(real_parts: None, request: pytest.FixtureRequest) -> Iterator[KafkaBroker]:
    properties = {"connections.max.reauth.ms": f"{SESSION_S * 1000:.0f}"}
    with KafkaBroker(request.param, secured=True, properties=properties) as broker:
        grant(broker, *RIGHTS, prefix=PREFIX)
        yield broker


@pytest.mark.parametrize("kind", ["SCRAM", "PLAIN"])
async def test_sessions_that_end_cost_no_record_and_show_nothing(
    hasty: KafkaBroker, kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    connection, name = way_in(hasty, kind, tmp_path), fresh_topic()
    topics, control_name = Topics(connection), f"{name}.control"
    await topics.ensure_topic(one(name))
    await topics.ensure_topic(
        TopicSpec(name=control_name, kind="control", replication_factor=1, min_insync_replicas=1)
    )
    caplog.set_level(logging.WARNING)
    async with running_sink(connection, ProducerSettings()) as running:
        control = ControlTopic(connection, control_name, running.sink, statuses=running.statuses)
        tail = asyncio.get_running_loop().create_task(control.run(), name="control")
        now_s = asyncio.get_running_loop().time
        until_s, written = now_s() + 2 * SESSION_S, 0
        while now_s() < until_s:
            receipt = await running.sink.deliver(batch(name, 0, f"r{written}"))
            assert receipt.offsets == [written], "a record was lost, or is there twice"
            written += 1
            assert not running.statuses.problems
            await asyncio.sleep(0.02)
        # what was read before is read on, after the sessions of its consumer have ended
        await control.write("snapshot", "pods", {"snapshot": "1-1", "epoch": 1, "partitions": []})
        await until(lambda: control.index("pods") is not None)
        assert running.errors(name) in ({}, dict.fromkeys(running.errors(name), 0.0))
        assert running.rebuilds("watchdog") == running.rebuilds("identity") == 0
        assert not running.statuses.problems
        tail.cancel()
        await asyncio.wait([tail])
    (keys,) = await keys_on(hasty.bootstrap, name, 1)
    assert keys == [f"r{number}".encode() for number in range(written)]
    assert not [record.getMessage() for record in caplog.records]
