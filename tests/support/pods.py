"""Pods as a busy cluster has them: about 5.1 KB each, 3.8 KB without managedFields; every one
different where real ones differ.

Input: a number. Output: the JSON bytes that an API server sends, and frames cut from them.
"""

from __future__ import annotations

import hashlib
from random import Random
from typing import Any

import msgspec

from watchrelay.model.frames import FrameType, ObjectFrame

_FIELDS: dict[str, dict[str, Any]] = {
    "kube-controller-manager": {
        "f:metadata": {
            "f:generateName": {},
            "f:labels": {".": {}, "f:app": {}, "f:pod-template-hash": {}, "f:team": {}},
        },
        "f:spec": {
            "f:affinity": {},
            'f:containers{"name":"app"}': {
                ".": {},
                "f:env": {".": {}, 'k:{"name":"DB_HOST"}': {".": {}, "f:name": {}, "f:value": {}}},
                "f:image": {},
                "f:imagePullPolicy": {},
                "f:name": {},
                "f:ports": {
                    ".": {},
                    'k:{"containerPort":8080,"protocol":"TCP"}': {".": {}, "f:containerPort": {}},
                },
                "f:resources": {
                    ".": {},
                    "f:limits": {".": {}, "f:cpu": {}},
                    "f:requests": {".": {}, "f:cpu": {}},
                },
            },
            "f:dnsPolicy": {},
            "f:enableServiceLinks": {},
            "f:schedulerName": {},
            "f:securityContext": {},
            "f:terminationGracePeriodSeconds": {},
            "f:tolerations": {},
            "f:restartPolicy": {},
        },
    },
    "kubelet": {
        "f:status": {
            "f:conditions": {
                'k:{"type":"Ready"}': {
                    ".": {},
                    "f:lastProbeTime": {},
                    "f:status": {},
                    "f:type": {},
                },
                'k:{"type":"ContainersReady"}': {
                    ".": {},
                    "f:lastProbeTime": {},
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
}


def _uid(random: Random) -> str:
    text = f"{random.getrandbits(128):032x}"
    return f"{text[:8]}-{text[8:12]}-4{text[13:16]}-a{text[17:20]}-{text[20:]}"


def _at(random: Random) -> str:
    return f"2026-11-{random.randrange(1, 28):02}T{random.randrange(24):02}:{random.randrange(60):02}:{random.randrange(60):02}Z"


def _name(random: Random, length: int) -> str:
    return "".join(random.choices("bcdfghjklmnpqrstvwxz2456789", k=length))


def _container(name: str, app: str, volume: str) -> dict[str, Any]:
    return {
        "name": name,
        "image": f"registry.example.com/shop/{app}-{name}:v1.{len(app)}.{int(app[4:]) % 7}",
        "ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}],
        "env": [
            {"name": "DB_HOST", "value": f"{app}-db.shop.svc.cluster.local"},
        ],
        "resources": {
            "limits": {"cpu": "500m", "memory": "512Mi"},
            "requests": {"cpu": "100m", "memory": "256Mi"},
        },
        "volumeMounts": [
            {"name": "config", "readOnly": True, "mountPath": "/etc/app"},
            {
                "name": volume,
                "readOnly": True,
                "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
            },
        ],
        "imagePullPolicy": "IfNotPresent",
    }


def _status(random: Random, containers: list[dict[str, Any]], started: str) -> dict[str, Any]:
    condition = {"lastProbeTime": None, "lastTransitionTime": started, "status": "True"}
    return {
        "phase": "Running",
        "conditions": [
            {"type": kind, **condition}
            for kind in (
                "PodReadyToStartContainers",
                "Initialized",
                "Ready",
                "ContainersReady",
                "PodScheduled",
            )
        ],
        "hostIP": f"10.0.{random.randrange(8)}.{random.randrange(256)}",
        "podIP": f"10.{random.randrange(100, 120)}.{random.randrange(256)}.{random.randrange(256)}",
        "startTime": started,
        "containerStatuses": [
            {
                "name": c["name"],
                "state": {"running": {"startedAt": started}},
                "lastState": {},
                "ready": True,
                "restartCount": random.choice((0, 0, 0, 0, 1, 2)),
                "image": c["image"],
                "imageID": f"{c['image'].split(':')[0]}@sha256:{hashlib.sha256(c['image'].encode()).hexdigest()}",
                "containerID": f"containerd://{random.getrandbits(256):064x}",
                "started": True,
            }
            for c in containers
        ],
        "qosClass": "Burstable",
    }


def pod(number: int, *, resource_version: int | None = None, revision: int = 0) -> dict[str, Any]:
    """Pod `number` as a tree. Law: equal arguments give equal pods; `revision` changes only its
    status."""
    random = Random(number)
    app = f"app-{number % 97}"
    replica_set = f"{app}-{hashlib.sha256(app.encode()).hexdigest()[:9]}"
    name, started, volume = (
        f"{replica_set}-{_name(random, 5)}{number:x}",
        _at(random),
        f"kube-api-access-{_name(random, 5)}",
    )
    containers = [_container("app", app, volume), _container("sidecar", app, volume)]
    metadata = {
        "name": name,
        "generateName": f"{replica_set}-",
        "namespace": f"team-{number % 20}",
        "uid": _uid(random),
        "resourceVersion": str(
            90_000_000 + number if resource_version is None else resource_version
        ),
        "creationTimestamp": started,
        "labels": {
            "app": app,
            "pod-template-hash": replica_set.rpartition("-")[2],
            "team": f"team-{number % 20}",
        },
        "annotations": {"prometheus.io/scrape": "true", "prometheus.io/port": "8080"},
        "ownerReferences": [
            {
                "apiVersion": "apps/v1",
                "kind": "ReplicaSet",
                "name": replica_set,
                "uid": _uid(Random(number % 97)),
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ],
        "managedFields": [
            {
                "manager": manager,
                "operation": "Update",
                "apiVersion": "v1",
                "time": started,
                "fieldsType": "FieldsV1",
                "fieldsV1": fields,
            }
            for manager, fields in _FIELDS.items()
        ],
    }
    spec = {
        "volumes": [
            {"name": "config", "configMap": {"name": f"{app}-config", "defaultMode": 420}},
            {
                "name": volume,
                "projected": {
                    "sources": [
                        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}}
                    ]
                },
            },
        ],
        "containers": containers,
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 30,
        "dnsPolicy": "ClusterFirst",
        "serviceAccountName": app,
        "nodeName": f"node-{random.randrange(200)}.eu-1.example.com",
        "securityContext": {},
        "schedulerName": "default-scheduler",
        "tolerations": [
            {
                "key": f"node.kubernetes.io/{why}",
                "operator": "Exists",
                "effect": "NoExecute",
                "tolerationSeconds": 300,
            }
            for why in ("not-ready", "unreachable")
        ],
        "priority": 0,
        "enableServiceLinks": True,
        "preemptionPolicy": "PreemptLowerPriority",
    }
    changed = Random(number * 1_000_003 + revision) if revision else random
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": metadata,
        "spec": spec,
        "status": _status(changed, containers, started),
    }


_TOP = msgspec.json.Decoder(dict[str, msgspec.Raw])


def frame_of(raw: bytes, kind: FrameType = "MODIFIED") -> ObjectFrame:
    """The frame that the API server's bytes `raw` make: apiVersion and kind first, as `kube` hands
    them on."""
    came = _TOP.decode(raw)
    fields = {key: came[key] for key in ("apiVersion", "kind") if key in came} | came
    metadata = _TOP.decode(fields["metadata"])
    text = {
        key: str(msgspec.json.decode(metadata[key])) if key in metadata else ""
        for key in ("namespace", "name", "uid", "resourceVersion")
    }
    return ObjectFrame(
        kind,
        text["namespace"],
        text["name"],
        text["uid"],
        text["resourceVersion"],
        fields,
        metadata,
        len(raw),
    )


def pod_frame(
    number: int,
    kind: FrameType = "MODIFIED",
    *,
    resource_version: int | None = None,
    revision: int = 0,
) -> ObjectFrame:
    """Pod `number` as a frame."""
    return frame_of(
        msgspec.json.encode(pod(number, resource_version=resource_version, revision=revision)), kind
    )
