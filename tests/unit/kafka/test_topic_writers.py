"""Room: sink.  In: streams that open topics, and offsets.  Out: claims about who is told of a loss,
and whose records still count."""

from watchrelay.kafka.topic_writers import Incarnations


class Told(list[str]):
    """A stream that opens the topic `t`."""

    def open(self, incarnations: Incarnations, stream: str, *, made: bool = False) -> bool:
        anew, others = incarnations.open("t", stream, self.append, made=made)
        for lost in others:
            lost("made")
        return anew


def test_a_loss_is_told_once_to_each_stream_that_had_opened_the_topic_and_nothing_counts_until_it_opens_again() -> (
    None
):
    incarnations, pods, nodes = Incarnations(), Told(), Told()
    assert not pods.open(incarnations, "pods")
    assert not nodes.open(incarnations, "nodes")
    for lost in incarnations.lose("t"):
        lost("deleted")
    assert (pods, nodes) == (["deleted"], ["deleted"])
    assert not incarnations.counts("t", "pods")
    assert incarnations.counts("t", "jobs"), "whoever opened none is not concerned"
    assert incarnations.lose("other") == []
    assert pods.open(incarnations, "pods"), "another topic than it opened before"
    assert incarnations.counts("t", "pods")
    assert not incarnations.counts("t", "nodes")
    assert nodes.open(incarnations, "nodes", made=True)
    assert (pods, nodes) == (["deleted"], ["deleted"])
    assert incarnations.counts("t", "pods")
    assert not pods.open(incarnations, "pods"), "a further life on the same topic"


def test_a_topic_that_its_stream_finds_gone_is_lost_to_the_others_too() -> None:
    incarnations, pods, nodes = Incarnations(), Told(), Told()
    pods.open(incarnations, "pods")
    nodes.open(incarnations, "nodes")
    assert incarnations.close("t", "pods") is False
    assert pods.open(incarnations, "pods", made=True)
    assert (pods, nodes) == ([], ["made"])
    assert incarnations.counts("t", "pods")


def test_the_first_to_make_a_topic_does_not_disturb_the_streams_that_were_quicker() -> None:
    incarnations, pods, nodes = Incarnations(), Told(), Told()
    assert not nodes.open(incarnations, "nodes")
    assert pods.open(incarnations, "pods", made=True), "nothing of it stands there"
    assert nodes == []
    assert incarnations.counts("t", "nodes")


def test_an_offset_that_goes_back_shows_another_topic_and_that_of_another_stream_or_partition_does_not() -> (
    None
):
    incarnations, pods, nodes = Incarnations(), Told(), Told()
    pods.open(incarnations, "pods")
    nodes.open(incarnations, "nodes")
    assert incarnations.note("t", 0, "pods", 0, 5) == ""
    assert incarnations.note("t", 0, "pods", 5, 6) == ""
    assert incarnations.note("t", 0, "pods", 9, 10) == ""
    assert incarnations.note("t", 1, "pods", 0, 1) == ""
    assert incarnations.note("t", 0, "nodes", 6, 9) == ""
    assert incarnations.note("t", 0, "nobody", 0, 1) == ""
    assert incarnations.note("t", 0, "pods", 2, 4).startswith(
        "partition 0: a record got offset 2 after one at 9; it was deleted and made"
    )
    incarnations.lose("t")
    pods.open(incarnations, "pods")
    assert incarnations.note("t", 0, "pods", 0, 1) == ""


def test_a_topic_is_open_until_the_last_stream_closed_it() -> None:
    incarnations = Incarnations()
    Told().open(incarnations, "pods")
    Told().open(incarnations, "nodes")
    assert [incarnations.close("t", stream) for stream in ("pods", "nodes", "nodes")] == [
        False,
        True,
        True,
    ]
