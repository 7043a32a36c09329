"""Every error for an answer that holds Secrets and is not what was requested."""

from __future__ import annotations

import json

from tests.support.canary import CANARIES, Outputs, b64, secret, secrets
from watchrelay.core.errors import KubeError
from watchrelay.kube.page import NotAList, PageReader
from watchrelay.kube.status import from_response, from_watch
from watchrelay.kube.stream import FrameReader
from watchrelay.model.frames import Failure
from watchrelay.model.resources import Selection

_YAML = f"""apiVersion: v1
data:
  password: {b64(CANARIES["data"])}
kind: Secret
stringData:
  token: {CANARIES["stringData"]}
""".encode()

_QUOTING = [
    (
        "v1.Secret.Data: base64Codec: illegal base64 data, error found in #10 byte of "
        '...|"password":"%s"}|...'
    ),
    'Secret in version "v1" cannot be read: bigger context ...|password %s|...',
    'json: near "password":"%s"',
    "unable to convert &Secret{Data: %s}",
    "cannot convert map[data:map[password:%s]]",
    'conversion webhook failed: {"data":{"password":"%s"}}',
]
"""How decoders of Go, and who prints an object with %v, repeat what they were given; %s is the
payload."""

_TYPES = (
    "",
    "text/plain",
    "application/json",
    "text/html",
    "application/yaml",
    "application/vnd.kubernetes.protobuf",
)
_CODES = (200, 301, 403, 404, 410, 422, 429, 500, 504)


def add_errors(outputs: Outputs, selection: Selection) -> None:
    """The errors for answers of any type and code, whole, truncated or out of place."""
    for message in _QUOTING:
        quoted = message.replace("%s", CANARIES["data"])
        answer = json.dumps({"kind": "Status", "code": 500, "message": quoted}).encode()
        _add_response(outputs, 500, "application/json", answer)
        outputs.add("errors", repr(from_watch(answer)))
    for kind in ("application/json", "text/html", "application/yaml", "application/octet-stream"):
        _add_response(outputs, 500, kind, CANARIES["data"].encode())
    body = b'{"kind":"SecretList","items":[%b]}' % b",".join(secrets(1))
    for data in (
        body,
        b" \n" + body,
        body[:200_000],
        body[20:],
        secret("plain", 1),
        b"[%b]" % body,
        *_unlike_json(CANARIES["data"].encode()),
    ):
        for code in _CODES:
            for kind in _TYPES:
                _add_response(outputs, code, kind, data)
        _add_failures(outputs, selection, data)


def _unlike_json(canary: bytes) -> tuple[bytes, ...]:
    return (
        _YAML,
        _YAML.replace(b"\n", b"\r\n"),
        b"\n" + _YAML,
        b"k8s\0\x0c" + canary,
        b'{"password" : "%b"}' % canary,
        b'"password":"%b"' % canary,
        b"{%b}" % canary,
        b"<tr><td>%b</td></tr>" % canary,
        b" <tr><td>%b</td></tr>" % canary,
        b"\n<tr><td>%b</td></tr>" % canary,
    )


def _add_response(outputs: Outputs, code: int, kind: str, body: bytes) -> None:
    error = from_response(code, {"Content-Type": kind}, body, what="list secrets", wall_ms=0)
    outputs.add("errors", repr(error))


def _add_failures(outputs: Outputs, selection: Selection, data: bytes) -> None:
    """The errors of the readers that take `data` for a page and for lines of a watch."""
    reader = PageReader(selection)
    reader.feed(data)
    try:
        reader.finish()
    except (NotAList, KubeError) as error:
        outputs.add("errors", repr(error))
    for line in (
        data,
        data[: len(data) // 2],
        b'{"type":"ERROR","object":%b}' % data,
        b'{"type":"ODD","object":%b}' % data,
    ):
        for frame in FrameReader(selection).feed(line + b"\n"):
            if isinstance(frame, Failure):
                outputs.add("errors", repr(frame.error))
