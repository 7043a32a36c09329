"""What a soak does to the relay, to both sides of it, and to the paths between; each fault is over
when its function returns.

Input: the parts under test. Output: faults by name; how long each lasts is drawn from the seed.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.support.churn import Churn
from tests.support.daemon import Daemon
from tests.support.faultproxy import FaultProxy
from tests.support.pace import last
from tests.support.realparts import ControlPlane, KafkaBroker
from tests.support.testbed import Testbed


@dataclass
class Scene:
    """Everything there is to hurt."""

    rng: random.Random
    cluster: ControlPlane
    broker: KafkaBroker
    relay: Daemon
    churn: Churn
    to_kafka: FaultProxy
    to_api: FaultProxy
    directory: Path
    testbed: Testbed

    def last(self, least_s: float, most_s: float) -> None:
        """The fault lasts, for as long as the seed says."""
        last(self.rng.uniform(least_s, most_s))

    def heal(self) -> None:
        """Both paths are good."""
        self.to_kafka.heal()
        self.to_api.heal()


Fault = Callable[[Scene], None]


def _on_path(
    side: str, command: Callable[[FaultProxy, random.Random], object], least_s: float, most_s: float
) -> Fault:
    def fault(scene: Scene) -> None:
        proxy: FaultProxy = getattr(scene, side)
        command(proxy, scene.rng)
        scene.last(least_s, most_s)
        proxy.heal()

    return fault


def _kafka_frozen(scene: Scene) -> None:
    scene.broker.pause()
    scene.last(2, 20)
    scene.broker.resume()


def _kafka_killed(scene: Scene) -> None:
    scene.broker.kill()
    scene.last(0, 5)
    scene.broker.restart()


def _kafka_throttled_by_quota(scene: Scene) -> None:
    scene.broker.limit_producers(20_000)
    scene.last(5, 15)
    scene.broker.limit_producers(None)


def _api_frozen(scene: Scene) -> None:
    scene.cluster.pause()
    scene.last(2, 15)
    scene.cluster.resume()


def _api_killed(scene: Scene) -> None:
    scene.cluster.kill_apiserver()
    scene.last(0, 5)
    scene.cluster.restart_apiserver()


def _history_lost(scene: Scene) -> None:
    scene.cluster.compact()
    scene.cluster.restart_apiserver()


def _etcd_frozen(scene: Scene) -> None:
    scene.cluster.pause("etcd")
    scene.last(1, 8)
    scene.cluster.resume("etcd")


def _relay_killed(scene: Scene) -> None:
    scene.relay.kill()
    scene.last(0, 3)
    scene.relay.start()
    scene.relay.await_ready(deadline_s=90.0)


def _relay_stopped(scene: Scene) -> None:
    scene.relay.stop()
    scene.relay.start()
    scene.relay.await_ready(deadline_s=90.0)


def _relay_frozen(scene: Scene) -> None:
    scene.relay.send(signal.SIGSTOP)
    scene.last(1, 15)
    scene.relay.send(signal.SIGCONT)


def _config_read_again(scene: Scene) -> None:
    scene.relay.send(signal.SIGHUP)
    scene.last(0.5, 1)


FAULTS: dict[str, Fault] = {
    "api server frozen": _api_frozen,
    "api server killed": _api_killed,
    "api server: history lost": _history_lost,
    "config read again": _config_read_again,
    "etcd frozen": _etcd_frozen,
    "kafka frozen": _kafka_frozen,
    "kafka killed": _kafka_killed,
    "kafka: producers throttled by quota": _kafka_throttled_by_quota,
    "path to api server cuts": _on_path("to_api", lambda proxy, rng: proxy.cut_after(rng.randrange(200, 50_000)), 2, 10),
    "path to api server delays": _on_path("to_api", lambda proxy, rng: proxy.delay(rng.uniform(0.05, 1)), 3, 12),
    "path to api server forgets connections": _on_path("to_api", lambda proxy, _: proxy.freeze_open(), 1, 3),
    "path to api server holds": _on_path("to_api", lambda proxy, _: proxy.hold(), 2, 20),
    "path to api server refuses": _on_path("to_api", lambda proxy, _: proxy.refuse(), 1, 15),
    "path to kafka cuts": _on_path("to_kafka", lambda proxy, rng: proxy.cut_after(rng.randrange(40, 20_000)), 2, 10),
    "path to kafka delays": _on_path("to_kafka", lambda proxy, rng: proxy.delay(rng.uniform(0.05, 1)), 3, 12),
    "path to kafka forgets connections": _on_path("to_kafka", lambda proxy, _: proxy.freeze_open(), 1, 3),
    "path to kafka holds": _on_path("to_kafka", lambda proxy, _: proxy.hold(), 2, 20),
    "path to kafka is slow": _on_path("to_kafka", lambda proxy, rng: proxy.throttle(rng.uniform(5_000, 50_000)), 5, 15),
    "path to kafka refuses": _on_path("to_kafka", lambda proxy, _: proxy.refuse(), 1, 15),
    "relay frozen": _relay_frozen,
    "relay killed": _relay_killed,
    "relay stopped": _relay_stopped,
}  # fmt: skip
