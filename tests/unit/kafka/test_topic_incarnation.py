"""Answers of brokers, scripted and of an embedded one: which topics are lost, and why."""

from types import SimpleNamespace

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from watchrelay.demo.kafka import EmbeddedKafka
from watchrelay.kafka.client.metadata import NO_ID, topic_ids
from watchrelay.kafka.client.patches import patch_client
from watchrelay.kafka.topic_incarnation import ABSENT_S, TopicIncarnations

ONE, OTHER, THIRD = b"1" * 16, b"2" * 16, b"3" * 16


class Watched(TopicIncarnations):
    """These topics."""

    def __init__(self, *topics: str) -> None:
        self.lost: dict[str, str] = {}
        super().__init__(self.lost.__setitem__)
        for topic in topics:
            self.expect(topic)

    def taken(self, answer: dict[str, bytes | None], now_s: float) -> dict[str, str]:
        """What is lost by this answer."""
        self.lost.clear()
        self.seen(answer, now_s)
        return dict(self.lost)


def test_a_topic_that_stays_is_not_lost() -> None:
    watched = Watched("t")
    assert all(watched.taken({"t": ONE}, float(now_s)) == {} for now_s in range(100))


def test_a_topic_of_another_id_was_recreated_and_is_reported_once() -> None:
    watched = Watched("t")
    watched.taken({"t": ONE}, 0.0)
    assert watched.taken({"t": OTHER}, 0.5) == {}, "a second broker has to confirm it"
    assert watched.doubtful
    assert watched.taken({"t": OTHER}, 1.0) == {"t": "it was deleted and recreated"}
    assert watched.taken({"t": ONE}, 2.0) == {}, "nobody looks for it until it is expected again"
    watched.expect("t")
    assert watched.taken({"t": ONE}, 3.0) == {}


def test_a_broker_that_missed_that_a_topic_was_recreated_makes_it_doubtful_and_not_lost() -> None:
    watched = Watched("t")
    for now_s in range(0, 100, 5):
        assert watched.taken({"t": ONE}, float(now_s)) == {}
        assert not watched.doubtful
        assert watched.taken({"t": OTHER}, float(now_s)) == {}
        assert watched.doubtful
    assert watched.taken({"t": None}, 100.0) == {}
    assert watched.taken({"t": THIRD}, 101.0) == {}, "it was recreated twice, or that one is late"
    assert watched.taken({"t": THIRD}, 102.0) != {}


def test_brokers_that_tell_no_ids_say_only_that_it_is_there() -> None:
    watched = Watched("t")
    for found in (NO_ID, ONE, NO_ID, ONE):
        assert watched.taken({"t": found}, 0.0) == {}
    assert [watched.taken({"t": each}, 0.0) for each in (OTHER, NO_ID)] == [{}, {}]
    assert watched.taken({"t": OTHER}, 0.0) != {}


def test_a_topic_that_is_not_there_for_a_moment_is_doubtful_and_for_long_is_deleted() -> None:
    watched = Watched("t", "u")
    watched.taken({"t": ONE, "u": ONE}, 0.0)
    assert watched.taken({"t": None, "u": ONE}, 10.0) == {}
    doubtful = [watched.doubtful]
    assert watched.taken({"t": ONE}, 11.0) == {}
    assert [*doubtful, watched.doubtful] == [True, False]
    assert watched.taken({"t": None}, 20.0) == {}
    assert watched.taken({}, 100.0) == {}, "no answer is no absence"
    assert watched.taken({"t": None}, 20.0 + ABSENT_S) == {"t": "brokers do not know it"}
    assert (watched.doubtful, watched.topics) == (False, ["u"])


def absent(known: bytes) -> Watched:
    """A topic, of that id, that is lost since brokers do not know it, and expected again."""
    watched = Watched("t")
    for found, now_s in ((known, 0.0), (None, 1.0), (None, 1.0 + ABSENT_S)):
        lost = watched.taken({"t": found}, now_s)
    assert list(lost) == ["t"]
    assert watched.may_return("t") is bool(known)
    watched.expect("t")
    assert not watched.may_return("t")
    return watched


def test_a_topic_that_brokers_do_not_know_for_long_is_the_same_if_it_is_back_under_its_id() -> None:
    watched = absent(ONE)
    assert watched.taken({"t": ONE}, 10.0) == {}
    another = absent(ONE)
    assert another.taken({"t": OTHER}, 10.0) == {}
    assert another.taken({"t": OTHER}, 11.0) == {"t": "it was deleted and recreated"}
    assert absent(NO_ID).taken({"t": OTHER}, 10.0) == {}, "that was reported"
    watched.taken({"t": None}, 11.0)
    assert watched.taken({"t": None}, 11.0 + ABSENT_S) != {}, "it is looked for again"
    watched.forget("t")
    assert not watched.may_return("t")


async def test_a_broker_that_knows_of_nobody_yet_says_nothing_about_topics() -> None:
    class Starting:
        cluster = SimpleNamespace(brokers=lambda: [SimpleNamespace(nodeId=1)])

        async def send(self, _node: int, _request: object) -> object:
            return SimpleNamespace(
                API_VERSION=10, brokers=[], topics=[(3, "t", bytes(16), False, [], 0, {})]
            )

    with pytest.raises(KafkaError, match="only just started"):
        await topic_ids(Starting(), ["t"])


async def test_asking_tells_what_is_there_and_makes_no_topic() -> None:
    with EmbeddedKafka.start() as kafka:
        kafka.create_topic("there", 2)
        producer = AIOKafkaProducer(bootstrap_servers=kafka.bootstrap)
        patch_client(producer.client)
        with pytest.raises(KafkaError, match="no broker is known"):
            await topic_ids(producer.client, ["there"])
        await producer.start()
        try:
            for _ in range(2):
                found = await topic_ids(producer.client, ["there", "absent"])
                assert found["there"] is not None
                assert found["absent"] is None
                await producer.client.add_topic("absent")
        finally:
            await producer.stop()
