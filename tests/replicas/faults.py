"""What is done to replicas, by name; each is over, and each stream has one owner, when its function
returns. How long each lasts is drawn from the seed."""

from __future__ import annotations

import random
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.replicas.load import Load
from tests.support.daemon import Daemon
from tests.support.faultproxy import FaultProxy
from tests.support.kafkabroker import KafkaBroker
from tests.support.pace import last
from tests.support.replicas import SESSION_S, SETTLE_S, Replicas

FLOOD_PER_S = 1000.0
_SHARED_S = SESSION_S + 4 * SETTLE_S
_UNFIT_S = 30.0


@dataclass
class Scene:
    """Everything there is to hurt. The replica `proxied` reaches both sides by proxies."""

    rng: random.Random
    broker: KafkaBroker
    to_kafka: FaultProxy
    to_api: FaultProxy
    replicas: Replicas
    load: Load
    by_proxies: dict[str, Any]
    proxied: str = ""
    exits: Counter[int] = field(default_factory=Counter)
    _count: int = 0

    def start(self, *, proxied: bool = False) -> str:
        """One more replica, which is ready on return; its name."""
        self._count += 1
        name = f"r{self._count}"
        if proxied:
            self.proxied = name
        self.replicas.start(name, **(self.by_proxies if proxied else {})).await_ready()
        return name

    def end(self, name: str) -> None:
        """SIGTERM; the exit code is counted."""
        self.exits[self.replicas.running.pop(name).stop(deadline_s=60.0)] += 1

    def back(self, name: str, relay: Daemon) -> None:
        """A replica that ended is started again."""
        self.replicas.running[name] = relay.start()
        relay.await_ready(deadline_s=60.0)

    def any(self) -> str:
        return self.rng.choice(sorted(self.replicas.running))

    def shared(self, *, even: bool = False) -> None:
        self.replicas.await_shared(deadline_s=_SHARED_S, even=even)

    def last(self, least_s: float, most_s: float) -> None:
        last(self.rng.uniform(least_s, most_s))


def _killed(scene: Scene) -> None:
    name = scene.any()
    relay = scene.replicas.running.pop(name)
    relay.kill()
    scene.shared()
    scene.back(name, relay)


def _killed_and_back_at_once(scene: Scene) -> None:
    name = scene.any()
    relay = scene.replicas.running.pop(name)
    relay.kill()
    scene.last(0, 3)
    scene.back(name, relay)


def _suspended(scene: Scene) -> None:
    relay = scene.replicas.running[scene.any()]
    relay.send(signal.SIGSTOP)
    try:
        scene.last(0.3 * SESSION_S, 2 * SESSION_S)
    finally:
        relay.send(signal.SIGCONT)


def _ended_under_flood(scene: Scene) -> None:
    name = scene.any()
    relay = scene.replicas.running[name]
    with scene.load.at(FLOOD_PER_S):
        scene.last(1, 3)
        scene.end(name)
    scene.shared()
    scene.back(name, relay)


def _ended_under_overload(scene: Scene) -> None:
    """Its path to Kafka takes less than it is to publish."""
    name = scene.proxied
    relay = scene.replicas.running[name]
    scene.to_kafka.throttle(50_000)
    with scene.load.at(FLOOD_PER_S):
        scene.last(2, 4)
        scene.end(name)
    scene.to_kafka.heal()
    scene.shared()
    scene.back(name, relay)


def _updated(scene: Scene) -> None:
    """All replicas are replaced in turn, the new one first."""
    with scene.load.at(FLOOD_PER_S):
        for name in sorted(scene.replicas.running):
            scene.start(proxied=name == scene.proxied)
            scene.end(name)
        scene.shared(even=True)


def _scaled(scene: Scene) -> None:
    """To one, to five, to two, and back to three."""
    others = [name for name in scene.replicas.running if name != scene.proxied]
    for name in others:
        scene.end(name)
    scene.shared()
    started = [scene.start() for _ in range(4)]
    scene.shared(even=True)
    for name in started[:3]:
        scene.end(name)
    scene.shared()
    scene.start()


def _kafka_killed(scene: Scene) -> None:
    scene.broker.kill()
    scene.last(1, 31)
    scene.broker.restart()


def _kafka_frozen(scene: Scene) -> None:
    with scene.broker.frozen():
        scene.last(2, 20)


def _cut_off_from_kafka(scene: Scene) -> None:
    scene.to_kafka.hold()
    scene.last(1, 3 * SESSION_S)
    scene.to_kafka.heal()


def _cut_off_from_api_server(scene: Scene) -> None:
    scene.to_api.refuse()
    scene.last(5, _UNFIT_S + 15)
    scene.to_api.heal()


FAULTS: dict[str, Callable[[Scene], None]] = {
    "kill": _killed,
    "restart": _killed_and_back_at_once,
    "suspend": _suspended,
    "flood": _ended_under_flood,
    "overload": _ended_under_overload,
    "update": _updated,
    "scale": _scaled,
    "kafka-killed": _kafka_killed,
    "kafka-frozen": _kafka_frozen,
    "no-kafka": _cut_off_from_kafka,
    "no-api": _cut_off_from_api_server,
}
