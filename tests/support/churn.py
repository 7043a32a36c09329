"""An API server and a bounded plan: changes of its objects, made by another process.

`Churn` starts this file as a program. It creates, changes and deletes ConfigMaps and widgets, and
scales Deployments, in namespaces that exist already, and goes on through outages of the server:
every operation is repeated until the server answered it. It ends when it has done what the plan
asks for and the test has allowed it, so that what the test does in between happens under
churn on any machine.
"""

import argparse
import http.client
import json
import random
import ssl
import sys
import threading
import time
import urllib.parse
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

from tests.support.pace import pace
from tests.support.process import PartError, Process, wait_until

GROUP = "shop.example.com"
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_WORKERS = 4
_NAMES = 8
_REPORT_EVERY = 20
_ANSWERED_S = 60.0
_RETRY_S = 0.05
_OVERTIME = 50
"""The churn ends by itself after so many times the operations asked for."""
_TEXTS = (
    "plain",
    "<a href='x'>&amp;</a>",
    "schön \u2028 \U0001f40b",
    'quote " and \\ and \t',
    "x" * 3000,
    "",
)


class Target(Protocol):
    """What `Churn` needs to know of a control plane."""

    url: str
    ca: Path
    directory: Path

    @property
    def admin(self) -> Any:
        """An object with `certificate` and `key`."""


def config_map(name: str, draw: random.Random) -> dict[str, Any]:
    """A ConfigMap with texts that a careless JSON codec would change."""
    annotations = (
        {LAST_APPLIED: json.dumps({"kind": "ConfigMap", "data": {"secret": "left over"}})}
        if draw.random() < 0.3
        else {}
    )
    metadata = {
        "name": name,
        "labels": {"tier": draw.choice(["web", "db"])},
        "annotations": {**annotations, "note": draw.choice(_TEXTS)},
    }
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata,
        "data": {"n": str(draw.random()), "text": draw.choice(_TEXTS)},
    }


def widget(name: str, draw: random.Random) -> dict[str, Any]:
    """A custom object with numbers that a careless JSON codec would change."""
    spec: dict[str, Any] = {
        "size": draw.randrange(10**6),
        "exact": 9007199254740993,
        "tiny": 1e-7,
        "part": draw.random(),
        "none": None,
        "empty": {},
    }
    return {
        "apiVersion": f"{GROUP}/v1",
        "kind": "Widget",
        "metadata": {"name": name},
        "spec": {**spec, "text": draw.choice(_TEXTS)},
    }


def widget_definition(plural: str = "widgets", kind: str = "Widget") -> dict[str, Any]:
    """The CustomResourceDefinition behind `widget`, or another of its shape."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"plural": plural, "singular": kind.lower(), "kind": kind}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {"group": GROUP, "scope": "Namespaced", "names": names, "versions": [version]},
    }


def deployment(name: str, replicas: int) -> dict[str, Any]:
    """A Deployment whose pods nobody schedules."""
    labels = {"app": name}
    pod = {
        "metadata": {"labels": labels},
        "spec": {"containers": [{"name": "main", "image": "example.com/main:1"}]},
    }
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": pod}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do. `kinds` out of configmaps, widgets, deployments; `certificate` and `key`
    may be empty (no client certificate); `operations` is the least, and once the file `enough`
    exists also the most; `per_s` 0 is as fast as the server answers."""

    url: str
    ca: str
    certificate: str
    key: str
    namespaces: list[str]
    kinds: list[str]
    operations: int
    per_s: int
    enough: str
    seed: int


class Caller:
    """One connection to the API server that survives the server's absence."""

    def __init__(self, plan: Plan) -> None:
        self._address = urllib.parse.urlsplit(plan.url)
        self._context: ssl.SSLContext | None = None
        if self._address.scheme == "https":
            self._context = ssl.create_default_context(cafile=plan.ca)
            if plan.certificate:
                self._context.load_cert_chain(plan.certificate, plan.key)
        self._connection: http.client.HTTPConnection | None = None

    def call(self, method: str, path: str, body: Any = None) -> int:
        """The status of the answer; no answer, 429 and 5xx are tried again."""
        give_up_at = time.monotonic() + _ANSWERED_S
        while True:
            status = self._once(method, path, body)
            if 0 < status < 500 and status != http.HTTPStatus.TOO_MANY_REQUESTS:
                return status
            if time.monotonic() > give_up_at:
                raise TimeoutError(f"{method} {path}: no answer but {status} in {_ANSWERED_S:g} s")
            pace(_RETRY_S)

    def _once(self, method: str, path: str, body: Any) -> int:
        content_type = "application/merge-patch+json" if method == "PATCH" else "application/json"
        try:
            if self._connection is None:
                host, port = self._address.hostname or "", self._address.port
                self._connection = (
                    http.client.HTTPSConnection(host, port, context=self._context, timeout=10.0)
                    if self._context
                    else http.client.HTTPConnection(host, port, timeout=10.0)
                )
            data = None if body is None else json.dumps(body)
            self._connection.request(
                method, path, data, {"Content-Type": content_type, "Accept": "application/json"}
            )
            answer = self._connection.getresponse()
            answer.read()
        except (OSError, http.client.HTTPException):
            if self._connection is not None:
                self._connection.close()
            self._connection = None
            return 0
        return answer.status


class Worker:
    """Changes the objects of its own namespaces, so that the order of its operations is the order
    of their histories."""

    def __init__(self, plan: Plan, index: int) -> None:
        self._caller = Caller(plan)
        self._draw = random.Random(plan.seed * 1000 + index)
        self._namespaces = plan.namespaces[index::_WORKERS] or plan.namespaces[:1]
        self._kinds = plan.kinds

    def step(self) -> None:
        """One operation: create, change, or delete, whichever is possible."""
        draw = self._draw
        namespace, kind = draw.choice(self._namespaces), draw.choice(self._kinds)
        if kind == "deployments":
            self._scale(f"/apis/apps/v1/namespaces/{namespace}/deployments")
        elif kind == "widgets":
            self._change(
                f"/apis/{GROUP}/v1/namespaces/{namespace}/widgets",
                widget(f"w{draw.randrange(_NAMES)}", draw),
            )
        else:
            self._change(
                f"/api/v1/namespaces/{namespace}/configmaps",
                config_map(f"c{draw.randrange(_NAMES)}", draw),
            )

    def _scale(self, path: str) -> None:
        replicas = self._draw.randrange(4)
        if (
            self._caller.call("PATCH", f"{path}/shop", {"spec": {"replicas": replicas}})
            == http.HTTPStatus.NOT_FOUND
        ):
            self._caller.call("POST", path, deployment("shop", replicas))

    def _change(self, path: str, wanted: dict[str, Any]) -> None:
        place = f"{path}/{wanted['metadata']['name']}"
        if self._draw.random() < 0.3:
            self._caller.call("DELETE", place)
            if self._draw.random() < 0.5:
                return
        if self._caller.call("POST", path, wanted) != http.HTTPStatus.CONFLICT:
            return
        # the synthetic API server
        if self._caller.call("PATCH", place, wanted) == http.HTTPStatus.METHOD_NOT_ALLOWED:
            self._caller.call("PUT", place, wanted)


def run(plan: Plan) -> None:
    """All operations of the plan, by several workers; progress and the end go to stdout, one JSON
    object a line."""
    lock, done = threading.Lock(), 0

    def work(index: int) -> None:
        nonlocal done
        worker, enough = Worker(plan, index), Path(plan.enough)
        share = plan.operations // _WORKERS
        pause_s = _WORKERS / plan.per_s if plan.per_s else 0.0
        for number in range(share * _OVERTIME):
            if number >= share and enough.exists():
                return
            worker.step()
            pace(pause_s)
            with lock:
                done += 1
                if done % _REPORT_EVERY == 0:
                    print(json.dumps({"operations": done}), flush=True)

    with ThreadPoolExecutor(_WORKERS) as workers:
        ends = [workers.submit(work, index).exception for index in range(_WORKERS)]
        failures = [f"{type(error).__name__}: {error}" for end in ends if (error := end())]
    print(json.dumps({"operations": done, "failures": failures}), flush=True)
    sys.exit(1 if failures else 0)


class Churn:
    """That program on a control plane; a context manager that starts it and leaves nothing
    running."""

    def __init__(
        self,
        cluster: Target,
        namespaces: list[str],
        *,
        operations: int,
        kinds: tuple[str, ...] = ("configmaps",),
        per_s: int = 0,
        seed: int = 1,
    ) -> None:
        admin = cluster.admin
        certificate, key = (str(admin.certificate), str(admin.key)) if admin else ("", "")
        self._log = cluster.directory / f"churn-{namespaces[0]}-{seed}.log"
        self._enough = self._log.with_suffix(".enough")
        plan = Plan(
            cluster.url,
            str(cluster.ca),
            certificate,
            key,
            namespaces,
            list(kinds),
            operations,
            per_s,
            str(self._enough),
            seed,
        )
        fields = {name: getattr(plan, name) for name in Plan.__slots__}
        self._process = Process(
            "churn",
            [sys.executable, "-m", "tests.support.churn", json.dumps(fields)],
            log=self._log,
        )

    def __enter__(self) -> Self:
        self._process.launch()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()

    def operations(self) -> int:
        """How many operations were answered so far."""
        text = self._log.read_text() if self._log.exists() else ""
        whole = [line for line in text.splitlines() if line.startswith("{") and line.endswith("}")]
        return int(json.loads(whole[-1])["operations"]) if whole else 0

    @property
    def running(self) -> bool:
        """True until its end."""
        return self._process.alive

    def reach(self, operations: int) -> None:
        """Returns once so many operations were answered; more are to come until `finish`."""
        wait_until(
            f"{operations} operations are done",
            lambda: self.operations() >= operations or not self.running,
        )
        assert self.running, f"the churn ended too soon\n{self._process.tail()}"

    def finish(self, *, deadline_s: float = 90.0) -> None:
        """Lets it end, and returns once all operations were answered; raises PartError when one
        never was."""
        self._enough.touch()
        code = self._process.exit_code(deadline_s)
        if code:
            raise PartError(f"the churn failed\n{self._process.tail()}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="change objects of an API server")
    parser.add_argument("plan", help="a Plan as JSON")
    run(Plan(**json.loads(parser.parse_args().plan)))
