"""What `watchrelay snapshot` waits for."""

from types import SimpleNamespace

from watchrelay.admin.snapshot_request import Answers, covers
from watchrelay.contract.control import control_value
from watchrelay.kafka.client.connection import KafkaConnection


def test_a_request_is_complete_once_snapshots_of_either_layout_have_covered_every_partition() -> (
    None
):
    first, second, whole = (
        {"partitions": [{"partition": each} for each in some]} for some in ((0, 1), (2,), (0, 1, 2))
    )
    described = {"partitions": 3}
    assert covers([whole], described)
    assert covers([first, second], described)
    assert not covers([first], described)
    assert not covers([], described)
    assert not covers([{}], described)
    assert not covers([whole], None)


def test_an_index_record_that_names_the_request_counts_also_where_the_next_is_read_with_it() -> (
    None
):
    answers = Answers(KafkaConnection(bootstrap_servers=("127.0.0.1:1",)), "control")
    named = {"snapshot": "2-2", "epoch": 2, "requests": ["x", answers.request], "partitions": []}
    replaced = {**named, "snapshot": "2-3", "requests": []}
    for offset, (key, value) in enumerate(
        [
            (b"snapshot/pods", named),
            (b"snapshot/pods", replaced),
            (b"snapshot/nodes", replaced),
            (b"snapshot/secrets%1/2", named),
            (b"stream/maps", named),
            (None, named),
        ]
    ):
        answers.take(
            SimpleNamespace(offset=offset, key=key, value=control_value(value), headers=())
        )
    found = {(stream, *by_writer) for stream, by_writer in answers.found.items()}
    assert found == {("pods", "pods"), ("secrets", "secrets%1/2")}
    assert answers.found["pods"]["pods"]["snapshot"] == "2-2"
