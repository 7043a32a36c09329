"""Classifies HTTP codes and Status bodies as errors of `core/errors.py`.

The code decides first, the Status second: many error bodies are plain text or the HTML of a proxy
(docs/watch-facts.md 1.13).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime

import msgspec

from watchrelay.core.backoff import clamp_retry_after
from watchrelay.core.errors import (
    Expired,
    Forbidden,
    Interrupted,
    Invalid,
    KubeError,
    NotAcceptable,
    NotFound,
    NotWatchable,
    Throttled,
    Unauthorized,
    Unavailable,
    VersionTooLarge,
)
from watchrelay.core.text import BROKEN_JSON
from watchrelay.kube.frame import Fields, decode_fields

NOT_AN_API_SERVER = "is this URL the API server's?"
"""The hint where something else answers: a proxy, a login page, the wrong port."""

_QUOTED = 300
_TEXT_MAX = 4096
"""Characters of a text that are looked at: the server's own words come first, what it quotes
follows."""
_FIELDS = ("kind", "code", "reason", "message", "details")
_FIELD_MAX = 64 << 10
_EXCERPT = re.compile(r'\{|":\S|\.\.\.\||map\[')
"""How JSON, an excerpt of it, or Go's print of an object begins. A field's `Invalid value: "x":
must be ...` has a space there."""
_CLASSES: dict[int, type[KubeError]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    405: NotWatchable,
    406: NotAcceptable,
    407: Unavailable,
    408: Unavailable,
    429: Throttled,
    500: Throttled,
    501: NotWatchable,
    503: Throttled,
}
"""Source: docs/watch-facts.md 6.4. Any other 4xx needs a person (Invalid), any other 5xx a live
server (Unavailable)."""

_CURES = {
    401: (
        " (the token or client certificate was refused: it may have expired, or be of "
        "another cluster)"
    ),
    403: " (grant list and watch; `watchrelay rbac` prints the rules)",
    407: " (the proxy wants a user and password in proxy-url)",
}
_BY_SERVICE = (
    " (the token or client certificate was refused; if other groups answer, by the server behind "
    "APIService {}, which must accept the API server as its front proxy: see the log of that "
    "server)"
)
DISCOVERY_CURE = (
    " (the ClusterRole system:discovery, or its binding to this account, is missing: "
    "`watchrelay rbac --discovery` prints the rules)"
)
"""Of a 403 for /api, /apis or /version."""
_TOO_LARGE = "ResourceVersionTooLarge"
_TOO_OLD = re.compile(
    r"too old resource ?version|resource ?version\b.{0,40}\btoo old", re.IGNORECASE
)
"""The words for an expired history, of the watch cache and of etcd; some servers have them with the
code 500 or 200, or without a code."""
_UNREADY = "storage is (re)initializing"
"""The watch cache of one resource: its CRD was made a moment ago, or its objects cannot be
converted. Source: docs/watch-facts.md 6.4."""
_UNPARSED = "resourceVersion: Invalid value"
"""A watch from a version that is no number; kube-apiserver 1.36 answers 500, where it answers a
list with 400."""
_TIMED_OUT = {"ServerTimeout", "Timeout"}
"""The reasons of a request that took too long; the first comes with the code 500, and is counted as
504. Source: k8s.io/apimachinery, errors.NewServerTimeout."""
_PLAIN_TO_TLS = "HTTP request to an HTTPS server"
"""Source: Go net/http, server.go, the answer of its TLS port to plain HTTP."""


class Status(msgspec.Struct, frozen=True, gc=False):
    """What is understood of a `kind: Status`. Code 0, reason "" and empty tuples where it is absent
    or malformed."""

    code: int = 0
    reason: str = ""
    message: str = ""
    retry_after_s: float = 0.0
    causes: tuple[str, ...] = ()
    cause_fields: tuple[str, ...] = ()


def read_status(data: bytes | msgspec.Raw) -> Status | None:
    """The Status in `data`, or None when it holds none. Never raises: codes may be strings, details
    null, metadata absent."""
    try:
        fields = decode_fields(data)
        found = {name: _decoded(fields, name) for name in _FIELDS if name in fields}
    except BROKEN_JSON:
        return None
    if found.get("kind") != "Status" and "code" not in found and "reason" not in found:
        return None
    details = found.get("details")
    details = details if isinstance(details, dict) else {}
    listed = details.get("causes")
    causes = [c for c in listed if isinstance(c, dict)] if isinstance(listed, list) else []
    return Status(
        code=_integer(found.get("code")),
        reason=_text(found.get("reason")),
        message=_text(found.get("message")),
        retry_after_s=clamp_retry_after(float(_integer(details.get("retryAfterSeconds")))),
        causes=tuple(_text(cause.get("reason")) for cause in causes),
        cause_fields=tuple(_text(cause.get("field")) for cause in causes),
    )


def _decoded(fields: Fields, name: str) -> object:
    """None for a large map or list: to decode it would take too long."""
    raw = bytes(fields[name])
    return msgspec.json.decode(raw) if len(raw) <= _FIELD_MAX or raw[:1] == b'"' else None


def _integer(value: object) -> int:
    if isinstance(value, bool):
        return 0
    if isinstance(value, int | float):
        return int(value) if -1e9 < value < 1e9 else 0
    if isinstance(value, str) and re.fullmatch(r"\s*[0-9]{1,9}\s*", value, re.ASCII):
        return int(value)
    return 0


def _text(value: object) -> str:
    return value[:_TEXT_MAX] if isinstance(value, str) else ""


def date_ms(text: str) -> int | None:
    """Unix milliseconds of an HTTP date; None for what is none. Source: RFC 9110 5.6.7."""
    try:
        at = parsedate_to_datetime(text.strip())
        # HTTP knows no other zone
        return int(at.replace(tzinfo=at.tzinfo or UTC).timestamp() * 1000)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def retry_after_s(header: str | None, *, wall_ms: int) -> float | None:
    """Seconds that a `Retry-After` header asks for, clamped to 0..300; None when it is absent or
    garbage.

    Whole seconds, or an HTTP date, seen from `wall_ms`, the server's time. Source: RFC 9110 10.2.3,
    docs/watch-facts.md 6.3.
    """
    if header is None:
        return None
    text = header.strip()
    if re.fullmatch(r"[0-9]+", text, re.ASCII):
        return clamp_retry_after(float(text[:10]))
    at_ms = date_ms(text)
    return None if at_ms is None else clamp_retry_after((at_ms - wall_ms) / 1000)


def from_response(
    code: int,
    headers: Mapping[str, str],
    body: bytes,
    *,
    what: str,
    wall_ms: int,
    service: str = "",
) -> KubeError:
    """The error for an HTTP answer that is not the one asked for, or a 2xx that carries a Status.

    `what` names the request for people ("list pods at host:6443"); `headers` is looked up
    case-insensitively by its owner; `wall_ms` counts where the answer has no date; `service` is the
    APIService whose own server may have answered.
    """
    if 300 <= code < 400:
        why = f"answered {code}, a redirect, which is never followed; {NOT_AN_API_SERVER}"
        return Unavailable(f"{what}: {why}", status=code)
    status = read_status(body)
    reason = _reason_text(status, headers, body)
    if 200 <= code < 300:
        too_old = status is not None and _TOO_OLD.search(status.message)
        if status is None or (status.code < 300 and not too_old):
            why = f"the answer is not what was asked for ({reason}); {NOT_AN_API_SERVER}"
            return Unavailable(f"{what}: {why}", status=code)
        code = status.code
    now_ms = date_ms(headers.get("Date", ""))
    now_ms = wall_ms if now_ms is None else now_ms
    wait_s = retry_after_s(headers.get("Retry-After"), wall_ms=now_ms)
    if wait_s is None:
        wait_s = status.retry_after_s if status else 0.0
    message = f"{what}: {code} {reason.removeprefix(f'{code} ')}"
    error = _classed(code, status or Status(), message, wait_s=wait_s, headers=headers)
    if isinstance(error, Unauthorized) and service:
        return Unauthorized(error.what, status=code, cure=_BY_SERVICE.format(service))
    return error


def _classed(
    code: int, status: Status, message: str, *, wait_s: float, headers: Mapping[str, str]
) -> KubeError:
    """Source: docs/watch-facts.md 6.4."""
    kind, cure = _CLASSES.get(code, Invalid if 400 <= code < 500 else Unavailable), ""
    if code == 410 or status.reason in {"Expired", "Gone"} or _TOO_OLD.search(status.message):
        kind = Expired
    elif _too_large(code, status):
        kind = VersionTooLarge
    elif code == 400 and _PLAIN_TO_TLS in message:
        kind, message = Invalid, f"{message} (write https:// before the server's name)"
    elif code in {400, 422} or (code == 500 and _UNPARSED in status.message):
        return Invalid(message, about=_about(status), status=code, retry_after_s=wait_s)
    elif code == 429 and _UNREADY in message:
        kind = Interrupted
    else:
        message += _flow(headers) if code in {429, 500, 503} else ""
        cure = _CURES.get(code, "")
    timed_out = code == 500 and status.reason in _TIMED_OUT
    return kind(message, status=504 if timed_out else code, retry_after_s=wait_s, cure=cure)


def from_watch(data: bytes | msgspec.Raw) -> KubeError:
    """The error for the object of an ERROR line, or for a bare Status in a watch. Source: WATCH
    2.5-2.7.

    What would open the circuit breaker as an HTTP answer is `Interrupted` here: the server is up,
    this response ended.
    """
    status = read_status(data) or Status()
    code, wait_s = status.code, status.retry_after_s
    counts_as = code if code >= 400 else 500  # without a code, an error of the server
    reason = _words(status.message) or _clean(status.reason) or "without a reason"
    message = f"the server ended the watch: {code or 'no code'} {reason}"
    if "RequestWatchProgress" in status.message or "sendInitialEvents" in status.message:
        return Invalid(message, about="streaming", status=code, retry_after_s=wait_s)
    error = _classed(counts_as, status, message, wait_s=wait_s, headers={})
    if isinstance(error, Unavailable) or code in {405, 406}:
        return Interrupted(message, status=error.status, retry_after_s=wait_s)
    return error


def _too_large(code: int, status: Status) -> bool:
    """Servers up to 1.18.5 have it in the message alone. Source: docs/watch-facts.md 2.7."""
    if _TOO_LARGE in status.causes or status.reason == _TOO_LARGE:
        return True
    return code in {500, 504} and "too large resource version" in status.message.lower()


def _about(status: Status) -> str:
    """Which part of our request was refused. Source: docs/watch-facts.md 1.6, 1.7, 3.4, 4.4."""
    message = status.message.lower()
    fields = {field.rsplit(".", 1)[-1].lower() for field in status.cause_fields}
    refused = " ".join((*fields, message))
    if "sendinitialevents" in refused or "forbidden for watch" in message:
        return "streaming"
    if "continue" in refused:
        return "continue"
    if "resourceversion" in refused or "resource version" in message:
        return "version"
    return "selector"


def _flow(headers: Mapping[str, str]) -> str:
    """The flow schema and priority level that rejected the request. Source: docs/watch-facts.md
    10.1."""
    schema = headers.get("X-Kubernetes-PF-FlowSchema-UID")
    level = headers.get("X-Kubernetes-PF-PriorityLevel-UID")
    if not schema or not level:
        return ""
    return f" (flow schema {_clean(schema)}, priority level {_clean(level)})"


def _reason_text(status: Status | None, headers: Mapping[str, str], body: bytes) -> str:
    """The server's own words, short and on one line; of a body that is no Status only plain text is
    quoted."""
    if status is not None and (status.message or status.reason):
        return _words(status.message) or _clean(status.reason)
    kind = headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if not body.strip():
        return "an empty body"
    if kind == "text/html" or body.lstrip()[:1] == b"<":
        return "an HTML page, as a proxy or login page sends"
    if b"{" in body or b'":' in body:  # it may be an object or a part of one, under whatever type
        return "JSON that is no Status"
    # Go's TLS port answers plain HTTP so, without a type
    if kind == "text/plain" or (not kind and body.isascii()):
        return _clean(_first_line(body)) or "a body that is no text"
    return f"a body of type {_clean(kind) or 'unknown'}"


def _first_line(body: bytes) -> str:
    """What servers and proxies write who complain in plain text: an object in YAML, or in bytes
    that are no text, shows no value in it."""
    line = body[: 4 * _QUOTED].strip().partition(b"\n")[0].decode("utf-8", "replace")
    line = line.rstrip().replace("\t", " ")
    return line if line.isprintable() else ""


def _words(message: str) -> str:
    """A Status's message up to where it begins to quote an object: decoders of Go repeat what they
    cannot read, Secrets included."""
    found = _EXCERPT.search(message)
    return _clean(f"{message[: found.start()]}..." if found else message)


def _clean(text: str) -> str:
    words = " ".join("".join(c if c.isprintable() else " " for c in text[: 4 * _QUOTED]).split())
    return words if len(words) <= _QUOTED else words[: _QUOTED - 3] + "..."
