"""A scripted server: a client of it, and the objects and lines that an API server would send."""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from tests.support.scripted import ScriptedServer
from watchrelay.kube.auth.transport import Endpoint
from watchrelay.kube.client import KubeClient
from watchrelay.model.frames import ListQuery, Page, WatchQuery
from watchrelay.model.resources import Resource, Selection
from watchrelay.observe.metrics import Metrics

PODS = Selection(Resource("", "v1", "pods", "Pod", namespaced=True))
TYPED_PODS = replace(PODS, depth_checked=False)
"""As the daemon selects pods whose fields are neither left out nor hidden."""
WIDGETS = Selection(Resource("example.com", "v1", "widgets", "Widget", namespaced=True))
STREAM = "pods@shop"


class KnownCredentials:
    """Credentials that are what the test says; counts refusals."""

    def __init__(
        self,
        url: str,
        *,
        tls: ssl.SSLContext | None = None,
        compress: bool = True,
        server_hostname: str | None = None,
    ) -> None:
        self.endpoint = Endpoint(url, server_hostname=server_hostname, compress=compress)
        self.given: list[tuple[str, str]] = [("Authorization", "Bearer first")]
        self.after_refusal: list[tuple[str, str]] = [("Authorization", "Bearer second")]
        self.context = tls
        self.refusals = 0
        self.context_after_distrust: ssl.SSLContext | None = None

    async def headers(self) -> list[tuple[str, str]]:
        return self.given

    async def tls(self) -> ssl.SSLContext | None:
        return self.context

    def distrusted(self, asked_s: float) -> None:
        self.context = self.context_after_distrust or self.context

    async def rejected(self, asked_s: float) -> None:
        self.refusals += 1
        self.given = self.after_refusal


@asynccontextmanager
async def client_of(
    url: str, *, credentials: KnownCredentials | None = None, metrics: Metrics | None = None
) -> AsyncIterator[KubeClient]:
    async with KubeClient(credentials or KnownCredentials(url), metrics or Metrics()) as client:
        yield client


def watch_from(
    version: str = "1", *, idle_timeout_s: float = 30.0, timeout_s: int = 300, **more: bool
) -> WatchQuery:
    return WatchQuery(version, timeout_s=timeout_s, idle_timeout_s=idle_timeout_s, **more)


def pod(
    name: str,
    version: object = "10",
    *,
    namespace: str = "shop",
    named: bool = True,
    **more: object,
) -> dict[str, object]:
    """An object as kube-apiserver would put it into a watch; with `named` False as into a list of a
    built-in resource."""
    metadata = {
        "name": name,
        "namespace": namespace,
        "uid": f"uid-{name}",
        "resourceVersion": version,
    }
    head = {"kind": "Pod", "apiVersion": "v1"} if named else {}
    return {**head, "metadata": metadata, "spec": {"nodeName": "n1"}, **more}


def dumps(value: object) -> bytes:
    """As Go writes JSON: no blanks, UTF-8 as it is."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def line(verb: str, obj: object) -> bytes:
    return dumps({"type": verb, "object": obj}) + b"\n"


def bookmark(version: object, **metadata: object) -> bytes:
    """With the zero-valued spec that typed servers send along."""
    return line(
        "BOOKMARK",
        {
            "kind": "Pod",
            "apiVersion": "v1",
            "metadata": {"resourceVersion": version, "creationTimestamp": None, **metadata},
            "spec": {"containers": None},
            "status": {},
        },
    )


def listed(
    *items: object, version: object = "100", token: str | None = None, kind: str = "PodList"
) -> dict[str, object]:
    metadata: dict[str, object] = {"resourceVersion": version}
    if token is not None:
        metadata["continue"] = token
    return {"kind": kind, "apiVersion": "v1", "metadata": metadata, "items": list(items)}


def failure_status(
    code: object, reason: str, message: str = "", **more: object
) -> dict[str, object]:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
        **more,
    }


async def list_from(
    server: ScriptedServer, query: ListQuery | None = None, selection: Selection = PODS
) -> Page:
    """One page of a list by a client of its own."""
    async with client_of(server.url) as client:
        return await client.list_page(selection, query or ListQuery(), stream=STREAM)
