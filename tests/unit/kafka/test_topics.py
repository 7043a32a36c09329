"""What follows from the answers of brokers about a topic, and from none."""

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.virtualtime import run
from tests.unit.kafka.client.test_brokers import FakeBroker, PerhapsSilent, described, serving
from watchrelay.core.errors import SinkUnavailable, TopicRefused
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.topics import Topics, TopicSpec

ALREADY_EXISTS = 36
INVALID_TOPIC, NO_RIGHT_ON_TOPIC = 17, 29
INVALID_CONFIG, POLICY_VIOLATION = 40, 44
LISTENER_NOT_FOUND = 72


class Admin:
    """Creates a topic for the first that asks."""

    def __init__(self) -> None:
        self.made = False

    async def create_topics(
        self, new: list[Any], timeout_ms: int, validate_only: bool
    ) -> SimpleNamespace:
        code, self.made = ALREADY_EXISTS if self.made else 0, True
        return SimpleNamespace(topic_errors=[(new[0].name, code, None)])


async def test_a_topic_that_two_streams_share_is_created_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, logger="watchrelay")
    topics, admin = Topics(KafkaConnection(bootstrap_servers=("k:1",))), Admin()
    made = [await topics._make(admin, TopicSpec(name="t")) for _ in range(2)]
    assert made == [True, False]
    assert caplog.messages == ["topic created"]


class Picky:
    """Brokers that refuse settings of a new topic, and say why, until they are left out."""

    def __init__(self, refused: dict[str, str | None], code: int) -> None:
        self.refused, self.code = refused, code
        self.made: dict[str, str] | None = None

    async def create_topics(
        self, new: list[Any], timeout_ms: int, validate_only: bool
    ) -> SimpleNamespace:
        configs = new[0].topic_configs
        for setting, why in self.refused.items():
            if setting in configs:
                return SimpleNamespace(topic_errors=[(new[0].name, self.code, why)])
        self.made = configs
        return SimpleNamespace(topic_errors=[(new[0].name, 0, None)])


@pytest.mark.parametrize("code", [INVALID_CONFIG, POLICY_VIOLATION])
async def test_settings_that_brokers_refuse_are_left_out_of_a_new_topic(
    code: int, caplog: pytest.LogCaptureFixture
) -> None:
    settings = ("retention.bytes", "message.timestamp.type")
    picky = Picky({each: f"{each} is not supported" for each in settings}, code)
    spec = TopicSpec(name="t", snapshot_interval_s=3600)
    assert await Topics(KafkaConnection(bootstrap_servers=("k:1",)))._make(picky, spec)
    assert picky.made == {k: v for k, v in spec.configs().items() if k not in settings}
    assert caplog.messages == ["brokers refuse settings of a new topic"] * 2


async def test_a_setting_that_brokers_refuse_without_a_name_is_left_out_with_all_that_can_be() -> (
    None
):
    picky = Picky({"compression.type": None}, POLICY_VIOLATION)
    spec = TopicSpec(name="t", snapshot_interval_s=3600)
    assert await Topics(KafkaConnection(bootstrap_servers=("k:1",)))._make(picky, spec)
    assert picky.made is not None
    assert picky.made["cleanup.policy"] == "compact,delete"
    assert "retention.bytes" not in picky.made


async def test_a_topic_that_a_policy_refuses_is_refused_with_its_answer_after_one_more_try() -> (
    None
):
    spec = TopicSpec(name="t", snapshot_interval_s=3600)

    class Never:
        tries = 0

        async def create_topics(
            self, new: list[Any], timeout_ms: int, validate_only: bool
        ) -> SimpleNamespace:
            self.tries += 1
            why = "topics of this name are not for you"
            return SimpleNamespace(topic_errors=[(new[0].name, POLICY_VIOLATION, why)])

    never = Never()
    with pytest.raises(
        TopicRefused,
        match=r"this name are not for you: a policy .*create.topic.policy.*; create it with",
    ):
        await Topics(KafkaConnection(bootstrap_servers=("k:1",)))._make(never, spec)
    assert never.tries == 2


async def test_a_leader_without_our_listener_is_named_with_its_cure() -> None:
    class Unlisted(Divided):
        parts: tuple[Any, ...] = ((LISTENER_NOT_FOUND, 0, -1, 5, [1], [1], [], {}),)

    with pytest.raises(SinkUnavailable, match=r"topic t: not all .* listeners and advertised"):
        await Topics(KafkaConnection(bootstrap_servers=("k:1",)))._describe(
            Unlisted(1), TopicSpec(name="t")
        )


async def test_a_name_that_kafka_takes_as_another_topics_is_refused_with_the_way_to_another() -> (
    None
):
    class Collides:
        async def create_topics(
            self, new: list[Any], timeout_ms: int, validate_only: bool
        ) -> SimpleNamespace:
            why = "Topic 'k8s.a' collides with existing topics: k8s_a"
            return SimpleNamespace(topic_errors=[(new[0].name, INVALID_TOPIC, why)])

    topics = Topics(KafkaConnection(bootstrap_servers=("k:1",)))
    for validate_only in (False, True):
        with pytest.raises(TopicRefused) as caught:
            await topics._make(Collides(), TopicSpec(name="k8s.a"), validate_only=validate_only)
        assert str(caught.value) == (
            "topic k8s.a cannot be created: Topic 'k8s.a' collides with existing topics: k8s_a; "
            "kafka takes . and _ in names of topics as the same: choose another topic in the "
            "resource entry, or another kafka.topicPrefix or cluster"
        )


async def test_what_brokers_say_of_a_missing_right_to_create_is_left_to_the_check_of_rights() -> (
    None
):
    class Denies:
        async def create_topics(
            self, new: list[Any], timeout_ms: int, validate_only: bool
        ) -> SimpleNamespace:
            return SimpleNamespace(topic_errors=[(new[0].name, NO_RIGHT_ON_TOPIC, None)])

    topics = Topics(KafkaConnection(bootstrap_servers=("k:1",)))
    assert await topics._make(Denies(), TopicSpec(name="t"), validate_only=True)
    with pytest.raises(TopicRefused, match="may not create it"):
        await topics._make(Denies(), TopicSpec(name="t"))


def test_one_broker_of_three_that_answers_nothing_delays_the_check_of_a_topic_by_seconds() -> None:
    async def main() -> float:
        silent: list[FakeBroker] = []
        fakes = [PerhapsSilent(silent) for _ in range(3)]
        loop = asyncio.get_running_loop()
        async with serving(fakes) as addresses:
            nodes: Any = [(number, "127.0.0.1", fake.port) for number, fake in enumerate(fakes)]
            for fake in fakes:
                fake.metadata = lambda: described(nodes, {"t": 1})
            began_s = loop.time()
            facts = await Topics(KafkaConnection(bootstrap_servers=addresses)).ensure_topic(
                TopicSpec(name="t", partitions=1, replication_factor=1)
            )
            assert (facts.partitions, len(silent)) == (1, 1)
            return loop.time() - began_s

    # at the start, and it may be asked first for the topic and its configuration
    assert 2.5 < run(main()) < 10.0


class Divided:
    """Brokers whose answers in a row have these ids of the topic; the last one is given on."""

    parts: tuple[Any, ...] = ((0, 0, 1, 5, [1], [1], [], {}),)

    def __init__(self, *ids: int) -> None:
        self._ids = list(ids)
        self._client = SimpleNamespace(
            cluster=SimpleNamespace(brokers=lambda: [SimpleNamespace(nodeId=1)]), send=self._send
        )

    async def _send(self, _node: int, _request: object) -> SimpleNamespace:
        topic_id = bytes([self._ids.pop(0) if len(self._ids) > 1 else self._ids[0]]) * 16
        topic: Any = (0, "t", topic_id, False, self.parts, 0, {})
        return SimpleNamespace(API_VERSION=10, brokers=[1], topics=[topic])


async def test_another_id_of_a_topic_is_confirmed_by_a_second_broker() -> None:
    topics = Topics(KafkaConnection(bootstrap_servers=("k:1",)))

    async def found(*ids: int) -> int:
        found, _ = await topics._describe(Divided(*ids), TopicSpec(name="t"))
        assert found is not None
        return found.id[0]

    assert await found(1) == 1
    assert await found(2, 1) == 1, "one broker missed it, or the topic is one of before"
    with pytest.raises(SinkUnavailable, match="brokers answer with different ids"):
        await found(2, 3, 2, 3)
    assert await found(2, 2) == 2
    assert await found(2) == 2
