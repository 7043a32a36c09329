"""Secrets with a canary in each place where one step of the redaction hides it, and what left the
relay, searched for them: a canary that got out names the step that failed.
"""

from __future__ import annotations

import base64
import json
import random
from collections import Counter
from dataclasses import dataclass, field

from watchrelay.model.paths import LAST_APPLIED
from watchrelay.model.resources import Resource

SECRETS = Resource("", "v1", "secrets", "Secret", namespaced=True)

CANARIES = {
    "data": "canary-of-data",
    "stringData": "canary-of-string-data",
    "applied": "canary-of-last-applied",
    "escaped": "canary-of-escaped-last-applied",
    "odd": "canary-of-odd-payload",
    "broken": "canary-of-broken-payload",
    "damaged": "canary-of-damaged-object",
}
"""By the place that holds them; "odd" is a payload that is no map, "broken" one whose
keys cannot be read, "damaged" an object that says its payload twice."""


def b64(text: str) -> str:
    """As the payload of a Secret is written. No canary's form depends on what is beside
    it."""
    return base64.b64encode(text.encode()).decode()


def leaked(text: bytes) -> set[str]:
    """The canaries in `text`, plain or as base64, by their places."""
    return {
        place
        for place, canary in CANARIES.items()
        if any(
            form in text
            for form in (canary.encode(), b64(canary).encode(), canary.encode().hex().encode())
        )
    }


def secret(name: str, version: int, *, noise: int = 0) -> bytes:
    """A Secret with a canary in each place that a well-formed one has. `noise`: bytes of
    annotations that nothing compresses."""
    applied = {
        "data": {"password": b64(CANARIES["applied"])},
        "stringData": {"token": CANARIES["applied"]},
    }
    annotations = {
        LAST_APPLIED: json.dumps(applied),
        "note": random.Random(name).randbytes(noise // 2).hex(),
    }
    metadata = {
        "name": name,
        "namespace": "shop",
        "uid": f"uid-{name}",
        "resourceVersion": str(version),
        "annotations": annotations,
    }
    body = {
        "kind": "Secret",
        "apiVersion": "v1",
        "metadata": metadata,
        "data": {"password": b64(CANARIES["data"]), "version": str(version)},
        "stringData": {"token": CANARIES["stringData"]},
        "type": "Opaque",
    }
    text = json.dumps(body, separators=(",", ":"))
    if name.startswith("escaped"):
        odd_key = LAST_APPLIED.replace("/", "\\/").replace("last", "\\u006cast")
        text = text.replace(LAST_APPLIED, odd_key).replace(CANARIES["applied"], CANARIES["escaped"])
        text = text.replace(b64(CANARIES["applied"]), b64(CANARIES["escaped"]))
    if name.startswith("odd"):
        text = text.replace(
            json.dumps(body["data"], separators=(",", ":")), json.dumps(b64(CANARIES["odd"]))
        )
        text = text.replace(
            json.dumps(body["stringData"], separators=(",", ":")), json.dumps([CANARIES["odd"]])
        )
    raw = text.encode()
    if name.startswith("broken"):
        payload = json.dumps(body["data"], separators=(",", ":")).encode()
        raw = raw.replace(payload, b'{"pass\xffword":"%b"}' % CANARIES["broken"].encode())
    if name.startswith("damaged"):
        raw = raw.replace(b'"kind":"Secret"', b'"data":"%b"' % CANARIES["damaged"].encode(), 1)
    return raw


NAMES = ("plain", "escaped", "odd", "broken", "damaged", "huge")


def secrets(version: int) -> list[bytes]:
    """One of each kind."""
    return [
        secret(name, version + at, noise=(200 << 10) if name == "huge" else 0)
        for at, name in enumerate(NAMES)
    ]


@dataclass
class Outputs:
    """What left the relay, by path."""

    by_path: dict[str, bytes] = field(default_factory=dict)
    objects: Counter[str] = field(default_factory=Counter)
    """Records of objects by path: a path without any would prove nothing."""
    read: Counter[int] = field(default_factory=Counter)

    def add(self, path: str, text: str | bytes) -> None:
        """Something left by `path`."""
        data = text.encode() if isinstance(text, str) else text
        self.by_path[path] = self.by_path.get(path, b"") + data + b"\n"

    def leaks(self) -> dict[str, set[str]]:
        """The paths by which a canary got out."""
        return {path: found for path, text in self.by_path.items() if (found := leaked(text))}
