"""A request that any broker can answer, where one of them does not."""

import asyncio
import itertools
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import IncompatibleBrokerVersion, KafkaError

from tests.support.virtualtime import run
from watchrelay.kafka.client.admin import topic_configs, topic_metadata
from watchrelay.kafka.client.metadata import ask_any, topic_ids


class Client:
    """One of three brokers; `waits_s` are how long each that is asked takes for its answer, which
    is its number, in order."""

    def __init__(self, *waits_s: float) -> None:
        self._waits_s = list(waits_s)
        self.asked: list[int] = []
        nodes = [SimpleNamespace(nodeId=node) for node in (1, 2, 3)]
        self.cluster = SimpleNamespace(brokers=lambda: nodes)

    async def send(self, node: int, request: object) -> Any:
        self.asked.append(node)
        await asyncio.sleep(self._waits_s.pop(0))
        return SimpleNamespace(
            API_VERSION=10,
            brokers=[node],
            topics=[(0, "t", b"1" * 16, False, [], 0, {})],
            resources=[(0, "", 2, "t", [])],
        )


def timed(client: Client, question: Any) -> float:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        await question(client)
        return loop.time() - began_s

    return run(main())


@pytest.mark.parametrize(
    "question",
    [
        lambda client: topic_ids(client, ["t"]),
        lambda client: topic_metadata(SimpleNamespace(_client=client), ["t"]),
        lambda client: topic_configs(SimpleNamespace(_client=client), ["t"]),
    ],
)
def test_a_broker_that_does_not_answer_is_passed_over(question: Any) -> None:
    client = Client(3600.0, 0.0)
    assert timed(client, question) == pytest.approx(3.0)
    assert len(set(client.asked)) == 2


def test_where_all_are_slow_the_last_one_may_be() -> None:
    client = Client(14.0, 14.0, 14.0)
    assert timed(client, lambda asked: ask_any(asked, None)) == pytest.approx(20.0)
    assert sorted(client.asked) == [1, 2, 3]


async def test_the_second_of_two_answers_in_a_row_is_of_another_broker() -> None:
    client = Client(*[0.0] * 101)
    for _ in range(100):
        await ask_any(client, None)
    assert all(one != other for one, other in itertools.pairwise(client.asked))
    client.cluster = SimpleNamespace(brokers=lambda: [SimpleNamespace(nodeId=client.asked[-1])])
    await ask_any(client, None)
    assert client.asked[-1] == client.asked[-2], "the only one is asked again"


@pytest.mark.parametrize(
    ("error", "asked", "raised"),
    [
        (KafkaError("gone"), 3, "gone"),
        (IncompatibleBrokerVersion("unknown"), 1, "unknown"),
        (NotImplementedError("0"), 1, "topics cannot be asked about"),
        (KeyError((1, 0)), 3, "no connection to broker"),
    ],
)
async def test_the_others_are_asked_where_they_may_know_better(
    error: Exception, asked: int, raised: str
) -> None:
    class Refusing(Client):
        async def send(self, node: int, request: object) -> Any:
            self.asked.append(node)
            raise error

    client = Refusing()
    with pytest.raises(KafkaError, match=raised):
        await ask_any(client, None)
    assert len(client.asked) == asked
