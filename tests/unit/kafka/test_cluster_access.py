"""The way to a cluster: what is reported of it, and when it ends."""

import random

from aiokafka.errors import KafkaConnectionError

from tests.support.relays import virtual
from watchrelay.kafka.client.brokers import Brokers
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.cluster_access import ClusterAccess


class Reports:
    """What was reported, and what is wrong now."""

    def __init__(self) -> None:
        self.trouble: dict[str, str] = {}
        self.rebuilds: list[str] = []

    def report(self, about: str, message: str) -> None:
        self.trouble[about] = message

    def rebuilt(self, reason: str) -> None:
        self.rebuilds.append(reason)


class Place:
    """A cluster; it answers unless it is away."""

    def __init__(self) -> None:
        self.reports, self.made = Reports(), list[Brokers]()
        self.is_away = False
        self.access = ClusterAccess(
            KafkaConnection(bootstrap_servers=("nowhere:1",)),
            self.reports,
            make_brokers=self.make,
            prove=self.prove,
            taken=lambda _rotated: None,
            rng=random.Random(1),
        )

    def make(self, connection: KafkaConnection) -> Brokers:
        self.made.append(Brokers(connection))
        return self.made[-1]

    async def prove(self, _brokers: Brokers) -> None:
        if self.is_away:
            raise KafkaConnectionError("no broker answers")


@virtual
async def test_brokers_that_were_left_already_are_no_trouble() -> None:
    place = Place()
    former = await place.access.reach()
    place.access.leave(former, KafkaConnectionError("gone"))
    assert "gone" in place.reports.trouble[""]
    assert place.reports.rebuilds == ["watchdog"]
    brokers = await place.access.reach()
    assert place.reports.trouble[""] == ""
    place.access.leave(former, KafkaConnectionError("gone"))
    assert (place.access.brokers, place.reports.trouble[""]) == (brokers, "")
    assert len(place.made) == 2
    assert place.reports.rebuilds == ["watchdog"]


@virtual
async def test_one_broker_that_cannot_be_reached_is_reported_until_all_are() -> None:
    place = Place()
    await place.access.reach()
    place.access.complain(3, KafkaConnectionError("no route"))
    place.access.well(4)
    assert "no route" in place.reports.trouble[""]
    place.access.all_well()
    assert place.reports.trouble[""] == ""
