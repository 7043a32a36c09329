"""A busy little shop: something to watch.

Each step is one write to a registry. Equal seeds do equal things, in the same order; only
timestamps differ.
"""

from __future__ import annotations

import base64
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from watchrelay.demo.catalog import CRDS
from watchrelay.demo.objects import PodFacts, PodTemplate, ReplicaSet, pod_container, suffix, uid
from watchrelay.demo.registry import Registry

NAMESPACES = ("shop", "pay", "search")
DEPLOYMENTS = (
    ("shop", "web", 4),
    ("shop", "cart", 3),
    ("shop", "checkout", 2),
    ("pay", "billing", 2),
    ("pay", "fraud", 1),
    ("search", "index", 3),
)
ORDERS = "orders.shop.example.com"
PODS, REPLICA_SETS, APPS = "pods", "replicasets.apps", "deployments.apps"
_ORDER_STATES = ("Placed", "Paid", "Packed", "Shipped", "Delivered")
_ITEMS = ("tea", "coffee", "cups", "kettle", "honey", "biscuits", "lemons", "sugar")
_REPLICAS_MAX = 8
_ORDERS_MAX = 40
_ACTIONS_MAX = 6

ORDER_DEFINITION: dict[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": ORDERS},
    "spec": {
        "group": "shop.example.com",
        "names": {
            "plural": "orders",
            "singular": "order",
            "kind": "Order",
            "shortNames": ["ord"],
            "listKind": "OrderList",
        },
        "scope": "Namespaced",
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "x-kubernetes-preserve-unknown-fields": True,
                    }
                },
            }
        ],
    },
}

Step = Callable[[], str]


@dataclass(slots=True)
class _Pod:
    facts: PodFacts
    template: PodTemplate


@dataclass(slots=True)
class _Deployment:
    namespace: str
    name: str
    replicas: int
    replica_set: ReplicaSet
    pods: list[_Pod] = field(default_factory=list)
    busy: bool = False


class Shop:
    """`open` sets it up, each `step` changes one thing and says what."""

    def __init__(self, registry: Registry, *, seed: int = 0) -> None:
        self._registry = registry
        self._random = Random(seed)
        self._deployments: list[_Deployment] = []
        self._orders: dict[str, int] = {}
        self._ordered = 0
        self._actions: list[deque[Step]] = []

    def open(self) -> None:
        """Namespaces, settings, secrets, the definition of orders, deployments with running pods,
        some orders."""
        create = self._registry.create
        for namespace in NAMESPACES:
            labels = {"kubernetes.io/metadata.name": namespace}
            create(
                "namespaces",
                {
                    "metadata": {"name": namespace, "labels": labels},
                    "spec": {},
                    "status": {"phase": "Active"},
                },
            )
        create(CRDS, ORDER_DEFINITION)
        for namespace, name, replicas in DEPLOYMENTS:
            create(
                "configmaps",
                {
                    "metadata": {"name": f"{name}-config", "namespace": namespace},
                    "data": self._settings(name),
                },
            )
            secret = {
                "metadata": {"name": f"{name}-db", "namespace": namespace},
                "type": "Opaque",
                "data": self._secret(),
            }
            create("secrets", secret)
            deployment = _Deployment(namespace, name, replicas, ReplicaSet(name, namespace, ""))
            create(APPS, self._deployment(deployment))
            deployment.replica_set = self._new_replica_set(deployment, revision=1)
            for _ in range(replicas):
                self._start(deployment)()
                self._run(deployment.pods[-1])()
            self._deployments.append(deployment)
        for _ in range(5):
            self._place_order()

    def step(self) -> str:
        """Changes one object; says what, for people who watch. Several actions run interleaved, as
        controllers do."""
        if not self._actions or (len(self._actions) < _ACTIONS_MAX and self._random.random() < 0.3):
            self._actions.append(deque(self._plan()))
        action = self._random.choice(self._actions)
        done = action.popleft()()
        if not action:
            self._actions.remove(action)
        return done

    # ---- what to do next -------------------------------------------------------------------------

    def _plan(self) -> list[Step]:
        """The writes of one action, in their order."""
        idle = [deployment for deployment in self._deployments if not deployment.busy]
        choices: list[tuple[int, Callable[[], list[Step]]]] = [
            (4, lambda: [self._order_step]),
            (2, lambda: [self._change_settings]),
            (1, lambda: [self._rotate_secret]),
        ]
        if idle:
            chosen = self._random.choice(idle)
            choices += [
                (3, lambda: self._scale(chosen)),
                (2, lambda: self._roll(chosen)),
                (1, lambda: self._crash(chosen)),
            ]
        weights = [weight for weight, _ in choices]
        return self._random.choices([action for _, action in choices], weights)[0]()

    def _scale(self, deployment: _Deployment) -> list[Step]:
        up = deployment.replicas <= 1 or (
            deployment.replicas < _REPLICAS_MAX and self._random.random() < 0.5
        )
        deployment.replicas += 1 if up else -1
        deployment.busy = True
        steps: list[Step] = [
            self._scaled(deployment, deployment.replicas),
            self._resized(deployment),
        ]
        steps += (
            self._birth(deployment)
            if up
            else self._death(deployment, self._random.choice(deployment.pods))
        )
        return [*steps, self._settled(deployment)]

    def _roll(self, deployment: _Deployment) -> list[Step]:
        deployment.busy = True
        old = list(deployment.pods)
        retired = deployment.replica_set

        def begin() -> str:
            deployment.replica_set = self._new_replica_set(
                deployment, revision=retired.revision + 1
            )
            return (
                f"roll {deployment.namespace}/{deployment.name} to revision "
                f"{deployment.replica_set.revision}"
            )

        def retire() -> str:
            self._registry.delete(REPLICA_SETS, retired.namespace, retired.name)
            return f"remove replicaset {retired.namespace}/{retired.name}"

        steps: list[Step] = [begin]
        for pod in old:
            steps += [*self._birth(deployment), *self._death(deployment, pod)]
        return [*steps, retire, self._settled(deployment)]

    def _crash(self, deployment: _Deployment) -> list[Step]:
        pod = self._random.choice(deployment.pods)

        def crash() -> str:
            pod.facts = self._changed(pod.facts, restarts=pod.facts.restarts + 1, ready=False)
            return f"pod {self._put(pod)} crashed"

        def recover() -> str:
            pod.facts = self._changed(pod.facts, restarts=pod.facts.restarts, ready=True)
            return f"pod {self._put(pod)} is ready again"

        deployment.busy = True
        return [crash, recover, self._settled(deployment)]

    # ---- pods ------------------------------------------------------------------------------------

    def _birth(self, deployment: _Deployment) -> list[Step]:
        start = self._start(deployment)

        def run() -> str:
            return self._run(
                next(pod for pod in deployment.pods if pod.template.phase == "Pending")
            )()

        return [start, run]

    def _start(self, deployment: _Deployment) -> Step:
        def start() -> str:
            now, owner = self._registry.now(), deployment.replica_set
            facts = PodFacts(
                namespace=owner.namespace,
                name=f"{owner.name}-{suffix(self._random)}",
                uid=uid(self._random),
                created=now,
                changed=now,
                node=self._random.randrange(8),
                address=self._random.randrange(1 << 16),
                ready=False,
            )
            deployment.pods.append(_Pod(facts, PodTemplate(owner, phase="Pending")))
            return f"pod {self._put(deployment.pods[-1])} is pending"

        return start

    def _run(self, pod: _Pod) -> Step:
        def run() -> str:
            pod.template = PodTemplate(pod.template.owner)
            pod.facts = self._changed(pod.facts, restarts=0, ready=True)
            return f"pod {self._put(pod)} is running"

        return run

    def _death(self, deployment: _Deployment, pod: _Pod) -> list[Step]:
        def terminate() -> str:
            pod.template = PodTemplate(pod.template.owner, deleted=self._registry.now())
            pod.facts = self._changed(pod.facts, restarts=pod.facts.restarts, ready=False)
            return f"pod {self._put(pod)} is terminating"

        def remove() -> str:
            deployment.pods.remove(pod)
            self._registry.delete(PODS, pod.facts.namespace, pod.facts.name)
            return f"pod {pod.facts.namespace}/{pod.facts.name} is gone"

        return [terminate, remove]

    def _changed(self, facts: PodFacts, *, restarts: int, ready: bool) -> PodFacts:
        return PodFacts(
            facts.namespace,
            facts.name,
            facts.uid,
            facts.created,
            self._registry.now(),
            facts.node,
            facts.address,
            restarts,
            ready,
        )

    def _put(self, pod: _Pod) -> str:
        self._registry.put(PODS, pod.template.pod(pod.facts))
        return f"{pod.facts.namespace}/{pod.facts.name}"

    # ---- deployments -----------------------------------------------------------------------------

    def _deployment(self, deployment: _Deployment) -> dict[str, Any]:
        ready = sum(pod.facts.ready for pod in deployment.pods)
        labels = {"app": deployment.name}
        container = pod_container(deployment.name, "app", 8080, deployment.replica_set.revision)
        template = {
            "metadata": {"labels": labels},
            "spec": {"containers": [container], "serviceAccountName": deployment.name},
        }
        return {
            "metadata": {
                "name": deployment.name,
                "namespace": deployment.namespace,
                "labels": labels,
            },
            "spec": {
                "replicas": deployment.replicas,
                "selector": {"matchLabels": labels},
                "template": template,
            },
            "status": {
                "replicas": len(deployment.pods),
                "readyReplicas": ready,
                "availableReplicas": ready,
            },
        }

    def _new_replica_set(self, deployment: _Deployment, *, revision: int) -> ReplicaSet:
        draft = ReplicaSet(deployment.name, deployment.namespace, "", revision)
        stored = self._registry.create(REPLICA_SETS, self._replica_set(draft, deployment.replicas))
        return ReplicaSet(deployment.name, deployment.namespace, stored.uid, revision)

    def _replica_set(self, replica_set: ReplicaSet, replicas: int) -> dict[str, Any]:
        labels = {"app": replica_set.app, "pod-template-hash": replica_set.pod_hash}
        return {
            "metadata": {
                "name": replica_set.name,
                "namespace": replica_set.namespace,
                "labels": labels,
            },
            "spec": {"replicas": replicas, "selector": {"matchLabels": labels}},
            "status": {"replicas": replicas},
        }

    def _scaled(self, deployment: _Deployment, replicas: int) -> Step:
        def scale() -> str:
            self._registry.replace(APPS, self._deployment(deployment))
            return f"scale {deployment.namespace}/{deployment.name} to {replicas}"

        return scale

    def _resized(self, deployment: _Deployment) -> Step:
        def resize() -> str:
            replica_set = deployment.replica_set
            self._registry.replace(
                REPLICA_SETS, self._replica_set(replica_set, deployment.replicas)
            )
            return (
                f"replicaset {replica_set.namespace}/{replica_set.name} has {deployment.replicas}"
            )

        return resize

    def _settled(self, deployment: _Deployment) -> Step:
        def settle() -> str:
            deployment.busy = False
            self._registry.replace(APPS, self._deployment(deployment))
            return f"deployment {deployment.namespace}/{deployment.name} is settled"

        return settle

    # ---- settings, secrets, orders ---------------------------------------------------------------

    def _settings(self, name: str) -> dict[str, str]:
        features = ",".join(sorted(self._random.sample(_ITEMS, 3)))
        return {
            "app.yaml": (
                f"name: {name}\nfeatures: [{features}]\nworkers: {self._random.randrange(1, 9)}\n"
            ),
            "log.level": "info",
        }

    def _secret(self) -> dict[str, str]:
        value = f"{self._random.getrandbits(96):024x}"
        return {"password": base64.b64encode(value.encode()).decode()}

    def _change_settings(self) -> str:
        namespace, name, _ = self._random.choice(DEPLOYMENTS)
        tree = {
            "metadata": {"name": f"{name}-config", "namespace": namespace},
            "data": self._settings(name),
        }
        self._registry.replace("configmaps", tree)
        return f"configmap {namespace}/{name}-config changed"

    def _rotate_secret(self) -> str:
        namespace, name, _ = self._random.choice(DEPLOYMENTS)
        tree = {
            "metadata": {"name": f"{name}-db", "namespace": namespace},
            "type": "Opaque",
            "data": self._secret(),
        }
        self._registry.replace("secrets", tree)
        return f"secret {namespace}/{name}-db rotated"

    def _order_step(self) -> str:
        if len(self._orders) < 3 or (
            len(self._orders) < _ORDERS_MAX and self._random.random() < 0.3
        ):
            return self._place_order()
        name = self._random.choice(list(self._orders))
        state = self._orders[name] + 1
        if state == len(_ORDER_STATES):
            del self._orders[name]
            self._registry.delete(ORDERS, "shop", name)
            return f"order {name} archived"
        self._orders[name] = state
        held = self._registry.get(ORDERS, "shop", name)
        assert held is not None, "orders leave only by the hand above"
        self._registry.replace(ORDERS, {**held, "status": {"state": _ORDER_STATES[state]}})
        return f"order {name} is {_ORDER_STATES[state].lower()}"

    def _place_order(self) -> str:
        self._ordered += 1
        name = f"order-{self._ordered:05}"
        self._orders[name] = 0
        items = [
            {"product": item, "quantity": self._random.randrange(1, 5)}
            for item in self._random.sample(_ITEMS, self._random.randrange(1, 5))
        ]
        spec = {"customer": f"customer-{self._random.randrange(200)}", "items": items}
        tree = {
            "metadata": {"name": name, "namespace": "shop"},
            "spec": spec,
            "status": {"state": _ORDER_STATES[0]},
        }
        self._registry.create(ORDERS, tree)
        return f"order {name} placed by {spec['customer']}"
