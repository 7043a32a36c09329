"""Writes to a synthetic cluster, with what an API server adds to them.

Objects come as trees and are stored with uids, timestamps and generations;
CustomResourceDefinitions take effect, and namespaces take their objects along.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from watchrelay.core import clock
from watchrelay.core.timestamps import rfc3339
from watchrelay.demo.catalog import CRDS, Catalog, Served
from watchrelay.demo.objects import suffix, uid
from watchrelay.demo.selectors import EXTRA_FIELDS
from watchrelay.demo.storage import Refused, Storage, Stored, encode

Tree = Mapping[str, Any]


class Registry:
    """One cluster's state. `now` gives RFC 3339 timestamps; `redefined` is called with a
    collection's name when its storage is torn down (its definition changed or went), which ends its
    watches."""

    def __init__(
        self, storage: Storage, catalog: Catalog, *, random: Random, now: Callable[[], str]
    ) -> None:
        self.storage = storage
        self.catalog = catalog
        self.random = random
        self.now = now
        self.redefined: Callable[[str], None] = lambda _: None

    def create(self, resource: str, obj: Tree) -> Stored:
        """A new object. Raises: Refused: 409 when it exists, 422 without a name, 404 without its
        namespace."""
        served, metadata = self.catalog.named(resource), dict(obj.get("metadata") or {})
        if not metadata.get("name") and metadata.get("generateName"):
            metadata["name"] = metadata["generateName"] + suffix(self.random)
        if not metadata.get("name"):
            raise Refused(
                422,
                "Invalid",
                f"{served.resource.kind} is invalid: metadata.name: Required value: name or "
                "generateName is required",
            )
        namespace, name = str(metadata.get("namespace") or ""), str(metadata["name"])
        if (
            served.resource.namespaced
            and ("", namespace) not in self.storage.collection("namespaces").objects
        ):
            raise Refused(404, "NotFound", f'namespaces "{namespace}" not found')
        if (namespace, name) in self.storage.collection(resource).objects:
            raise Refused(409, "AlreadyExists", f'{served.name} "{name}" already exists')
        metadata |= {"uid": uid(self.random), "creationTimestamp": self.now()}
        if "spec" in obj:
            metadata["generation"] = 1
        return self._put(served, {**obj, "metadata": metadata})

    def replace(self, resource: str, obj: Tree) -> Stored:
        """A new state of an object. Raises: Refused: 404 when there is none, 409 when it carries
        another resourceVersion or uid."""
        served, metadata = self.catalog.named(resource), dict(obj.get("metadata") or {})
        name = str(metadata.get("name") or "")
        held = self.storage.collection(resource).objects.get(
            (str(metadata.get("namespace") or ""), name)
        )
        if held is None:
            raise Refused(404, "NotFound", f'{served.name} "{name}" not found')
        asked = metadata.pop("resourceVersion", None)
        if asked not in {None, "", str(held.version)} or metadata.get("uid", held.uid) != held.uid:
            message = (
                "the object has been modified; please apply your changes to the latest "
                "version and try again"
            )
            raise Refused(
                409,
                "Conflict",
                f'Operation cannot be fulfilled on {served.name} "{name}": {message}',
            )
        before = json.loads(held.body())
        for kept in ("uid", "creationTimestamp", "generation"):
            if kept in before["metadata"]:
                metadata[kept] = before["metadata"][kept]
        if obj.get("spec") != before.get("spec") and "generation" in metadata:
            metadata["generation"] += 1
        return self._put(served, {**obj, "metadata": metadata})

    def put(self, resource: str, stored: Stored) -> Stored:
        """An object that was encoded elsewhere, as it is: the fast way, for floods."""
        return self.storage.put(resource, stored)

    def delete(self, resource: str, namespace: str, name: str) -> Stored:
        """Removes an object, and what lives in it: a namespace's objects, a definition's instances.
        Raises: Refused 404."""
        served = self.catalog.named(resource)
        if (namespace, name) not in self.storage.collection(resource).objects:
            raise Refused(404, "NotFound", f'{served.name} "{name}" not found')
        if resource == "namespaces":
            for other in list(self.catalog):
                if other.resource.namespaced:
                    self._clear(other.name, name)
        if resource == CRDS:
            self._clear(name, None)
            self.catalog.undefine(name)
        removed = self.storage.delete(resource, (namespace, name))
        assert removed is not None, "it was there a moment ago"
        if resource == CRDS:
            self.redefined(name)
            self.storage.drop(name)
        return removed

    def get(self, resource: str, namespace: str, name: str) -> dict[str, Any] | None:
        """An object as a tree, for who wants to change it."""
        held = self.storage.collection(resource).objects.get((namespace, name))
        return None if held is None else json.loads(held.body())

    def _clear(self, resource: str, namespace: str | None) -> None:
        for key in list(self.storage.collection(resource).objects):
            if namespace is None or key[0] == namespace:
                self.storage.delete(resource, key)

    def _put(self, served: Served, obj: dict[str, Any]) -> Stored:
        if served.name == CRDS:
            obj = _established(obj, self.now())
            defined = self.catalog.define(obj)
            self.redefined(defined.name)
        resource = served.resource
        whole = {**obj, "apiVersion": resource.api_version, "kind": resource.kind}
        wanted = EXTRA_FIELDS.get(resource.plural, ())
        return self.storage.put(
            served.name,
            encode(whole, fields={path: _at(obj, path) for path in wanted}, custom=served.custom),
        )


def _at(obj: Tree, path: str) -> str:
    value: Any = obj
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return str(value or "")


def _established(definition: dict[str, Any], now: str) -> dict[str, Any]:
    spec = definition.get("spec") or {}
    conditions = [
        {"type": kind, "status": "True", "lastTransitionTime": now, "reason": reason, "message": ""}
        for kind, reason in (
            ("NamesAccepted", "NoConflicts"),
            ("Established", "InitialNamesAccepted"),
        )
    ]
    status = {
        "conditions": conditions,
        "acceptedNames": spec.get("names"),
        "storedVersions": [v.get("name") for v in spec.get("versions", ())],
    }
    return {**definition, "status": definition.get("status") or status}


def make_registry(
    *, seed: int = 0, history_events: int = 10_000, now: Callable[[], str] | None = None
) -> Registry:
    """An empty cluster with the namespaces that every cluster has."""
    storage, catalog = Storage(history_events=history_events), Catalog()
    registry = Registry(
        storage,
        catalog,
        random=Random(seed),
        now=now or (lambda: rfc3339(clock.wall_ms())[:19] + "Z"),
    )
    for name in ("default", "kube-node-lease", "kube-public", "kube-system"):
        labels = {"kubernetes.io/metadata.name": name}
        registry.create(
            "namespaces",
            {
                "metadata": {"name": name, "labels": labels},
                "spec": {},
                "status": {"phase": "Active"},
            },
        )
    return registry
