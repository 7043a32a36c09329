"""Streams that open topics: which are called after a loss, and whose records still count."""

import pytest

from watchrelay.kafka.client import TopicPartition
from watchrelay.kafka.topic_writers import TopicWriters


class Losses(list[str]):
    """A stream that opens the topic `t`."""

    def open(
        self, writers: TopicWriters, stream: str, *, made: bool = False, topic_id: bytes = b""
    ) -> bool:
        own, others = writers.open("t", stream, self.append, made=made, topic_id=topic_id)
        for lost in others:
            lost("made")
        return own


def test_each_stream_that_had_opened_a_lost_topic_is_notified_once_and_nothing_counts_until_it_opens_again() -> (
    None
):
    writers, pods, nodes = TopicWriters(), Losses(), Losses()
    assert not pods.open(writers, "pods")
    assert not nodes.open(writers, "nodes")
    for lost in writers.lose("t"):
        lost("deleted")
    assert (pods, nodes) == (["deleted"], ["deleted"])
    assert writers.has_lost("t", "pods")
    assert not writers.has_lost("t", "jobs"), "who opened none is not concerned"
    assert writers.lose("other") == []
    assert pods.open(writers, "pods"), "another topic than it opened before"
    assert not writers.has_lost("t", "pods")
    assert writers.has_lost("t", "nodes")
    assert nodes.open(writers, "nodes", made=True)
    assert (pods, nodes) == (["deleted"], ["deleted"])
    assert not writers.has_lost("t", "pods")
    assert not pods.open(writers, "pods"), "a further life on the same topic"


@pytest.mark.parametrize(
    ("former", "found", "is_another"),
    [(b"1", b"1", False), (b"1", b"2", True), (b"1", b"", True), (b"", b"", True)],
)
def test_a_topic_that_was_absent_is_the_same_only_if_it_is_back_under_its_id(
    former: bytes, found: bytes, is_another: bool
) -> None:
    writers, pods, nodes = TopicWriters(), Losses(), Losses()
    for each, stream in ((pods, "pods"), (nodes, "nodes")):
        each.open(writers, stream, topic_id=former)
    assert len(writers.lose("t", may_return=True)) == 2
    assert writers.has_lost("t", "pods"), "until it opens it again"
    for each, stream in ((pods, "pods"), (nodes, "nodes")):
        assert each.open(writers, stream, topic_id=found) is is_another
    assert not writers.has_lost("t", "pods")
    assert (pods, nodes) == ([], []), "they were called once"


def test_a_topic_of_another_id_that_one_stream_finds_is_lost_to_the_others_too() -> None:
    writers, pods, nodes = TopicWriters(), Losses(), Losses()
    pods.open(writers, "pods", topic_id=b"1")
    nodes.open(writers, "nodes", topic_id=b"1")
    assert pods.open(writers, "pods", topic_id=b"2")
    assert (pods, nodes) == (["made"], ["made"])
    assert nodes.open(writers, "nodes", topic_id=b"2")


def test_an_answer_without_an_id_makes_no_other_topic() -> None:
    writers, pods, nodes = TopicWriters(), Losses(), Losses()
    pods.open(writers, "pods", topic_id=b"1")
    assert not nodes.open(writers, "nodes")
    assert not pods.open(writers, "pods", topic_id=b"1")
    assert (pods, nodes) == ([], [])
    assert nodes.open(writers, "nodes", topic_id=b"2"), "the id of before is known still"


def test_a_topic_that_its_stream_finds_gone_is_lost_to_the_others_too() -> None:
    writers, pods, nodes = TopicWriters(), Losses(), Losses()
    pods.open(writers, "pods")
    nodes.open(writers, "nodes")
    assert writers.close("t", "pods") is False
    assert pods.open(writers, "pods", made=True)
    assert (pods, nodes) == ([], ["made"])
    assert not writers.has_lost("t", "pods")


def test_a_topic_that_was_lost_while_another_process_wrote_it_is_no_other_to_whom_takes_it_back() -> (
    None
):
    writers, pods, nodes = TopicWriters(), Losses(), Losses()
    pods.open(writers, "pods")
    nodes.open(writers, "nodes")
    writers.close("t", "pods", taken_over=True)
    writers.close("t", "nodes")
    writers.lose("t")
    assert not pods.open(writers, "pods")
    assert nodes.open(writers, "nodes")


def test_the_first_to_make_a_topic_does_not_disturb_the_streams_that_were_quicker() -> None:
    writers, pods, nodes = TopicWriters(), Losses(), Losses()
    assert not nodes.open(writers, "nodes")
    assert pods.open(writers, "pods", made=True), "nothing of it is there"
    assert nodes == []
    assert not writers.has_lost("t", "nodes")


def test_an_offset_that_goes_back_shows_another_topic_to_a_stream_that_has_opened_it() -> None:
    writers, pods = TopicWriters(), Losses()
    pods.open(writers, "pods")
    place = TopicPartition("t", 0)
    assert writers.contradicts(place, "pods", 0, 0) == ""
    assert writers.contradicts(place, "pods", 9, 6) == "", "others write as well"
    assert writers.contradicts(place, "nobody", 0, 1) == ""
    assert writers.contradicts(place, "pods", 2, 10).startswith(
        "partition 0: a record got offset 2 after one at 9; it was deleted and recreated"
    )


def test_a_topic_is_open_until_the_last_stream_closed_it() -> None:
    writers = TopicWriters()
    Losses().open(writers, "pods")
    Losses().open(writers, "nodes")
    assert [writers.close("t", stream) for stream in ("pods", "nodes", "nodes")] == [
        False,
        True,
        True,
    ]
