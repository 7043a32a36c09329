"""Objects as a busy cluster has them.

Pods of about 5.1 KB (3.7 KB without managedFields), encoded without a JSON encoder in the way: a
pod is its app's template with its own few dozen bytes put in between. Equal arguments give equal
bytes.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any, cast

import msgspec

from watchrelay.demo.storage import Stored

APPS = 97
NAMESPACES = 20
_SLOT = re.compile(rb"@(\w+)@")
_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
_NODES = 40


@dataclass(frozen=True, slots=True)
class PodFacts:
    """What tells a pod from the others of its app. `phase` Pending has no addresses and no
    container states yet."""

    namespace: str
    name: str
    uid: str
    created: str
    changed: str
    node: int = 0
    address: int = 0
    restarts: int = 0
    ready: bool = True


@dataclass(frozen=True, slots=True)
class ReplicaSet:
    """The owner of pods: one revision of one app."""

    app: str
    namespace: str
    uid: str
    revision: int = 1

    @property
    def pod_hash(self) -> str:
        """The value of its pods' pod-template-hash label."""
        number = int.from_bytes(
            hashlib.sha256(f"{self.app}.{self.revision}".encode()).digest()[:8], "big"
        )
        return "".join(_ALPHABET[(number >> 5 * i) % len(_ALPHABET)] for i in range(9))

    @property
    def name(self) -> str:
        """`web-7d9f8b6c5`."""
        return f"{self.app}-{self.pod_hash}"


class PodTemplate:
    """All pods of one ReplicaSet in one phase, but for their facts."""

    def __init__(
        self,
        owner: ReplicaSet,
        *,
        phase: str = "Running",
        managed_fields: bool = True,
        deleted: str = "",
    ) -> None:
        self.owner, self.phase = owner, phase
        tree = _pod_tree(owner, phase, managed_fields=managed_fields, deleted=deleted)
        self.labels: dict[str, str] = tree["metadata"]["labels"]
        # a number, not a string
        pieces = _SLOT.split(msgspec.json.encode(tree).replace(b'"@restarts@"', b"@restarts@"))
        self._texts, self._slots = pieces[::2], pieces[1::2]
        self._cut = self._slots.index(b"version")

    def pod(self, facts: PodFacts) -> Stored:
        """The pod with these facts, version 0 until it is put into a storage. Costs about 5 us."""
        unique = hashlib.blake2b(facts.uid.encode(), digest_size=64).hexdigest().encode()
        values = {
            b"namespace": facts.namespace.encode(),
            b"name": facts.name.encode(),
            b"uid": facts.uid.encode(),
            b"created": facts.created.encode(),
            b"changed": facts.changed.encode(),
            b"node": b"node-%02d" % facts.node,
            b"host": b"10.0.%d.%d" % (facts.node >> 8, facts.node & 255),
            b"pod": b"10.%d.%d.%d"
            % (100 + (facts.address >> 16 & 63), facts.address >> 8 & 255, facts.address & 255),
            b"first": unique[:64],
            b"second": unique[64:],
            b"volume": unique[8:13],
            b"restarts": b"%d" % facts.restarts,
            b"ready": b"True" if facts.ready else b"False",
        }
        texts = self._texts
        parts: list[bytes] = []
        for text, slot in zip(texts, self._slots, strict=False):
            parts.append(text)
            if slot != b"version":
                parts.append(values[slot])
        parts.append(texts[-1])
        # Every slot before the version put one value after its text; the version's own slot put
        # none.
        cut = 2 * self._cut + 1
        fields = {"spec.nodeName": f"node-{facts.node:02d}", "status.phase": self.phase}
        return Stored(
            facts.namespace, facts.name, facts.uid, 0, self.labels, fields, tuple(parts), cut
        )


def uid(random: Random) -> str:
    """A version 4 UUID from `random`."""
    text = f"{random.getrandbits(128):032x}"
    return f"{text[:8]}-{text[8:12]}-4{text[13:16]}-a{text[17:20]}-{text[20:]}"


def suffix(random: Random, length: int = 5) -> str:
    """The random end of a generated name, from the letters that Kubernetes uses."""
    return "".join(random.choices(_ALPHABET, k=length))


@cache
def _template(app: int, managed_fields: bool) -> PodTemplate:
    owner = ReplicaSet(f"app-{app}", f"team-{app % NAMESPACES}", uid(Random(app)))
    return PodTemplate(owner, managed_fields=managed_fields)


def numbered_pod(number: int, *, revision: int = 0, managed_fields: bool = True) -> Stored:
    """Pod `number` of an endless, even series over 97 apps and 20 namespaces; `revision` changes
    its status as a kubelet does.

    About 5.1 KB, 3.7 KB without managedFields. Units: costs about 12 us. For floods and
    memory benchmarks.
    """
    random = Random(number)
    template = _template(number % APPS, managed_fields)
    created = (
        f"2026-11-{number % 27 + 1:02}T{number % 24:02}:{number % 60:02}:{number // 60 % 60:02}Z"
    )
    changed = (
        f"2026-11-28T{revision // 3600 % 24:02}:{revision // 60 % 60:02}:{revision % 60:02}Z"
        if revision
        else created
    )
    facts = PodFacts(
        namespace=template.owner.namespace,
        name=f"{template.owner.name}-{random.getrandbits(20):05x}{number:x}",
        uid=uid(random),
        created=created,
        changed=changed,
        node=random.getrandbits(20) % _NODES,
        address=number,
        restarts=revision // 2,
        ready=revision % 2 == 0,
    )
    return template.pod(facts)


def pod_tree(number: int, *, revision: int = 0, managed_fields: bool = True) -> dict[str, Any]:
    """`numbered_pod` as a tree, with its number as resourceVersion."""
    return cast(
        "dict[str, Any]",
        json.loads(
            numbered_pod(number, revision=revision, managed_fields=managed_fields).body(number + 1)
        ),
    )


def _pod_tree(
    owner: ReplicaSet, phase: str, *, managed_fields: bool, deleted: str
) -> dict[str, Any]:
    app = owner.app
    containers = [
        pod_container(app, "app", 8080, owner.revision),
        pod_container(app, "proxy", 15001),
    ]
    metadata: dict[str, Any] = {
        "name": "@name@",
        "generateName": f"{owner.name}-",
        "namespace": "@namespace@",
        "uid": "@uid@",
        "resourceVersion": "@version@",
        "creationTimestamp": "@created@",
        "labels": {"app": app, "pod-template-hash": owner.pod_hash, "team": owner.namespace},
        "annotations": {"prometheus.io/scrape": "true", "prometheus.io/port": "8080"},
        "ownerReferences": [
            {
                "apiVersion": "apps/v1",
                "kind": "ReplicaSet",
                "name": owner.name,
                "uid": owner.uid,
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ],
    }
    if deleted:
        metadata |= {"deletionTimestamp": deleted, "deletionGracePeriodSeconds": 30}
    if managed_fields:
        metadata["managedFields"] = [
            {
                "manager": name,
                "operation": "Update",
                "apiVersion": "v1",
                "time": time,
                "fieldsType": "FieldsV1",
                "fieldsV1": fields,
                **more,
            }
            for name, time, fields, more in _MANAGED
        ]
    spec = {
        "volumes": [
            {"name": "config", "configMap": {"name": f"{app}-config", "defaultMode": 420}},
            {
                "name": "kube-api-access-@volume@",
                "projected": {"sources": _TOKEN_SOURCES, "defaultMode": 420},
            },
        ],
        "containers": containers,
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 30,
        "dnsPolicy": "ClusterFirst",
        "serviceAccountName": app,
        "serviceAccount": app,
        "nodeName": "@node@",
        "securityContext": {"runAsNonRoot": True},
        "schedulerName": "default-scheduler",
        "tolerations": [
            {
                "key": f"node.kubernetes.io/{key}",
                "operator": "Exists",
                "effect": "NoExecute",
                "tolerationSeconds": 300,
            }
            for key in ("not-ready", "unreachable")
        ],
        "priority": 0,
        "enableServiceLinks": True,
    }
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": metadata,
        "spec": spec,
        "status": _pod_status(containers, phase),
    }


def pod_container(app: str, name: str, port: int, revision: int = 1) -> dict[str, Any]:
    """A container as its pod's spec, and its deployment's template, has it."""
    number = int(hashlib.sha256(f"{app}{name}".encode()).hexdigest()[:6], 16)
    return {
        "name": name,
        "image": f"registry.example.com/shop/{app}-{name}:v1.{number % 40}.{revision}",
        "ports": [{"name": "http", "containerPort": port, "protocol": "TCP"}],
        "env": [{"name": "DB_HOST", "value": f"{app}-db.internal"}],
        "resources": {
            "limits": {"memory": "512Mi"},
            "requests": {"cpu": f"{number % 9 + 1}00m", "memory": "256Mi"},
        },
        "volumeMounts": [
            {"name": "config", "readOnly": True, "mountPath": "/etc/app"},
            {
                "name": "kube-api-access-@volume@",
                "readOnly": True,
                "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
            },
        ],
        "imagePullPolicy": "IfNotPresent",
    }


def _pod_status(containers: list[dict[str, Any]], phase: str) -> dict[str, Any]:
    running = phase == "Running"
    status = {True: "@ready@", False: "False"}[running]
    conditions = [
        {"type": kind, "status": value, "lastProbeTime": None, "lastTransitionTime": at}
        for kind, value, at in (
            ("Initialized", "True", "@created@"),
            ("Ready", status, "@changed@"),
            ("ContainersReady", status, "@changed@"),
            ("PodScheduled", "True", "@created@"),
        )
    ]
    if not running:
        return {
            "phase": phase,
            "conditions": conditions,
            "startTime": "@created@",
            "qosClass": "Burstable",
        }
    states = [
        {
            "name": container["name"],
            "state": {"running": {"startedAt": "@changed@"}},
            "lastState": {},
            "ready": True,
            "restartCount": "@restarts@",
            "image": container["image"],
            "imageID": _image_id(container["image"]),
            "containerID": f"containerd://@{slot}@",
            "started": True,
        }
        for container, slot in zip(containers, ("first", "second"), strict=True)
    ]
    return {
        "phase": phase,
        "conditions": conditions,
        "hostIP": "@host@",
        "podIP": "@pod@",
        "podIPs": [{"ip": "@pod@"}],
        "startTime": "@created@",
        "containerStatuses": states,
        "qosClass": "Burstable",
    }


_TOKEN_SOURCES = [
    {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
    {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
]
_DOT: dict[str, Any] = {".": {}}
_MANAGED: tuple[tuple[str, str, dict[str, Any], dict[str, str]], ...] = (
    (
        "kube-controller-manager",
        "@created@",
        {
            "f:metadata": {
                "f:generateName": {},
                "f:labels": {**_DOT, "f:app": {}, "f:pod-template-hash": {}},
                "f:ownerReferences": _DOT,
            },
            "f:spec": {
                'f:containers{"name":"app"}': {
                    **_DOT,
                    "f:env": {
                        **_DOT,
                        'k:{"name":"DB_HOST"}': {**_DOT, "f:name": {}, "f:value": {}},
                    },
                    "f:image": {},
                    "f:imagePullPolicy": {},
                    "f:name": {},
                    "f:ports": {
                        **_DOT,
                        'k:{"containerPort":8080,"protocol":"TCP"}': {
                            **_DOT,
                            "f:containerPort": {},
                        },
                    },
                    "f:resources": {
                        **_DOT,
                        "f:limits": {**_DOT, "f:memory": {}},
                        "f:requests": {**_DOT, "f:cpu": {}},
                    },
                    "f:volumeMounts": {
                        **_DOT,
                        'k:{"mountPath":"/etc/app"}': {**_DOT, "f:mountPath": {}, "f:name": {}},
                    },
                },
                "f:dnsPolicy": {},
                "f:enableServiceLinks": {},
                "f:restartPolicy": {},
                "f:schedulerName": {},
                "f:securityContext": {},
                "f:serviceAccount": {},
                "f:terminationGracePeriodSeconds": {},
            },
        },
        {},
    ),
    (
        "kubelet",
        "@changed@",
        {
            "f:status": {
                "f:conditions": {
                    'k:{"type":"ContainersReady"}': {
                        **_DOT,
                        "f:lastTransitionTime": {},
                        "f:status": {},
                        "f:type": {},
                    },
                    'k:{"type":"Ready"}': {
                        **_DOT,
                        "f:lastTransitionTime": {},
                        "f:status": {},
                        "f:type": {},
                    },
                },
                "f:containerStatuses": {},
                "f:hostIP": {},
                "f:phase": {},
                "f:podIP": {},
                "f:startTime": {},
            }
        },
        {"subresource": "status"},
    ),
)


def _image_id(image: str) -> str:
    return f"{image.split(':')[0]}@sha256:{hashlib.sha256(image.encode()).hexdigest()}"
