"""What the records of a topic tell of their streams."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from aiokafka import AIOKafkaProducer

from tests.support.stream_log import PODS, Log, Writer, stream
from watchrelay.contract.wire import WireRecord
from watchrelay.demo.kafka import EmbeddedKafka
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.log_scan import TopicContent, Written, epoch_of, other_cluster
from watchrelay.kafka.log_scan import written as written_in
from watchrelay.model.resources import Resource


@pytest.mark.parametrize(
    ("headers", "epoch"),
    [
        ((("ce_wrstream", b"pods"), ("ce_wrepoch", b"12")), 12),
        ((("ce_wrepoch", b"12"), ("ce_wrstream", b"pods")), 12),
        ((("ce_wrstream", b"nodes"), ("ce_wrepoch", b"12")), 0),
        ((("ce_wrepoch", b"12"),), 0),
        ((("ce_wrstream", b"pods"), ("ce_wrepoch", b"x")), 0),
        ((("ce_wrstream", b"pods"), ("ce_wrepoch", None)), 0),
        ((("ce_wrstream", None), ("ce_wrepoch", b"12")), 0),
        ((), 0),
    ],
)
def test_only_records_of_the_stream_count(
    headers: tuple[tuple[str, bytes | None], ...], epoch: int
) -> None:
    assert epoch_of(headers, "pods") == epoch


@pytest.mark.parametrize(
    ("headers", "other"),
    [
        ((("ce_source", b"/clusters/prod/api/v1/pods"), ("ce_wrstream", b"pods")), ""),
        ((("ce_source", b"/clusters/prod-2/api/v1/pods"), ("ce_wrstream", b"pods")), "prod-2"),
        ((("ce_source", b"/clusters/test/apis/apps/v1/deployments"), ("ce_wrstream", b"deployments.apps")), "test"),
        ((("ce_source", b"/clusters/test/api/v1/pods"),), ""),
        ((("ce_source", b"//elsewhere/orders"), ("ce_wrstream", b"pods")), ""),
        ((), ""),
    ],
)  # fmt: skip
def test_another_cluster_is_recognized_by_the_source_of_records_of_the_contract(
    headers: tuple[tuple[str, bytes], ...], other: str
) -> None:
    assert other_cluster(headers, "prod") == other


def written(logs: list[Log]) -> Written:
    """What the partitions hold of their one stream, read one after the other."""
    found = Written()
    for partition, log in enumerate(logs):
        for record in log.records.values():
            take(found, record, partition=partition)
    return found


def take(found: Written, record: WireRecord, *, partition: int = 0) -> None:
    headers = tuple(record.headers)
    read = SimpleNamespace(partition=partition, key=record.key, value=record.value, headers=headers)
    found.take(epoch_of(headers, "pods"), read)


@pytest.mark.parametrize(
    ("prefix", "key_format"), [(b"", "plain"), (b"pods/", "prefixed")], ids=["plain", "prefixed"]
)
@pytest.mark.parametrize("name", ["shop/a", "a"], ids=["namespaced", "cluster-scoped"])
def test_markers_tell_the_partitions_and_objects_the_keys(
    prefix: bytes, key_format: str, name: str
) -> None:
    logs = [Log(), Log(), Log()]
    Writer(stream(partitions=3, prefix=prefix), logs, epoch=4).first(name)
    found = written(logs)
    assert (found.epoch, found.retired) == (4, False)
    assert found.shape == {"partitions": 3, "keyFormat": key_format, "resource": "pods/v1"}


def test_the_highest_epoch_counts_in_whatever_order_the_partitions_are_read() -> None:
    logs = [Log(), Log(), Log()]
    Writer(stream(partitions=1, prefix=b"pods/"), logs[:1], epoch=4).first("shop/a")
    Writer(stream(partitions=3), logs, epoch=9).first("shop/b")
    for order in (logs, logs[::-1]):
        assert written(order).shape == {
            "partitions": 3,
            "keyFormat": "plain",
            "resource": "pods/v1",
        }


def test_what_left_no_marker_or_no_object_tells_nothing_of_it() -> None:
    empty, compacted = [Log()], [Log()]
    Writer(stream(), empty, epoch=4).first()
    Writer(stream(), compacted, epoch=4).first("shop/a")
    compacted[0].records = {
        at: each for at, each in compacted[0].records.items() if not each.key.startswith(b"%wr/")
    }
    assert written(empty).shape == {"partitions": 1}
    assert written(compacted).shape == {"keyFormat": "plain", "resource": "pods/v1"}


def test_a_marker_that_does_not_follow_the_contract_tells_its_epoch_alone() -> None:
    log = Log()
    Writer(stream(), [log], epoch=4).claim()
    (claim,) = log.records.values()
    found = Written()
    for without in ("ce_wrpartitions", "ce_wrconfig"):
        headers = [each for each in claim.headers if each[0] != without]
        take(found, claim._replace(headers=headers))
    assert (found.epoch, found.shape) == (4, {})


def test_the_resource_is_that_of_the_description() -> None:
    deployments = Resource("apps", "v1", "deployments", "Deployment", namespaced=True)
    for resource in (PODS, deployments):
        log = Log()
        Writer(replace(stream(resource), id="pods"), [log], epoch=4).first("shop/a")
        assert written([log]).shape["resource"] == str(resource)


def retired(log: Log, partitions: int, *, epoch: int) -> Writer:
    """The stream is retired with so many partitions, of which `log` is the first."""
    writer = Writer(stream(partitions=partitions), [log], epoch=epoch)
    writer.knows_nothing = True
    writer.claim()
    writer.snapshot()
    return writer


def test_a_stream_is_retired_once_each_partition_of_the_retired_one_is_whatever_others_hold() -> (
    None
):
    logs = [Log(), Log(), Log()]
    Writer(stream(partitions=3), logs, epoch=4).first("shop/a", "shop/b", "shop/c")
    retired(logs[0], 3, epoch=5)
    assert not written(logs).retired, "it was interrupted"
    assert written(logs).shape["partitions"] == 3
    retired(logs[0], 1, epoch=6)
    late = Writer(stream(partitions=3), logs, epoch=4)
    late.beat(0)
    assert written(logs).retired


def test_what_was_written_before_a_retirement_tells_nothing_of_the_stream_that_began_behind_it() -> (
    None
):
    log = Log()
    Writer(stream(), [log], epoch=4).first("shop/a")
    retired(log, 1, epoch=5)
    Writer(stream(prefix=b"pods/"), [log], epoch=6).claim()
    assert not written([log]).retired
    assert written([log]).shape == {"partitions": 1}


def test_a_stream_of_another_cluster_counts_by_its_newest_records_until_it_is_retired() -> None:
    log, elsewhere = Log(), replace(stream(), cluster="old")
    Writer(elsewhere, [log], epoch=4).first("shop/a")
    assert written([log]).other_cluster("test") == "old"
    assert written([log]).other_cluster("old") == ""
    heartbeats = [*log.records.values()]
    retirement = Writer(elsewhere, [log], epoch=5)
    retirement.knows_nothing = True
    retirement.claim()
    retirement.snapshot()
    assert written([log]).other_cluster("test") == ""
    Writer(stream(), [log], epoch=6).claim()
    for stale in heartbeats:
        log.append(stale)
    assert written([log]).other_cluster("test") == "", "readers ignore these"


@pytest.mark.parametrize(
    ("ends", "streams"),
    [
        ({0: 1, 1: 0}, {"b", "c"}),
        ({0: 3, 1: 0}, set()),
        ({0: 4, 1: 0}, {"a", "b", "c"}),
        ({1: 0}, {"a", "b", "c"}),
    ],
    ids=["records came", "none came", "the log lost its end", "the partition was added"],
)
async def test_a_topic_that_was_read_is_read_on_from_there(
    ends: dict[int, int], streams: set[str]
) -> None:
    with EmbeddedKafka.start() as kafka:
        kafka.create_topic("t", 2)
        async with AIOKafkaProducer(bootstrap_servers=kafka.bootstrap) as producer:
            for name in (b"a", b"b", b"c"):
                await producer.send_and_wait("t", b"", headers=[("ce_wrstream", name)], partition=0)
        connection = KafkaConnection(bootstrap_servers=(kafka.bootstrap,))
        found = await written_in(connection, "t", before=TopicContent(ends=ends))
        assert found.streams.keys() == streams
        assert found.ends == {0: 3, 1: 0}
