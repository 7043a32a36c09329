"""What an HTTP answer means, without sockets."""

from __future__ import annotations

import msgspec
import pytest

from tests.unit.kube.served import dumps, failure_status
from watchrelay.core.errors import (
    Expired,
    Forbidden,
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
from watchrelay.kube.status import from_response, from_watch, retry_after_s
from watchrelay.watch.failing import shows_failing_cursor

NOW_MS = 1_795_000_000_000  # 2026-11-18T11:06:40Z
TEXT = {"Content-Type": "text/plain; charset=utf-8"}


def classed(code: int, body: object = b"", headers: dict[str, str] | None = None) -> KubeError:
    data = body if isinstance(body, bytes) else dumps(body)
    return from_response(
        code,
        headers or {"Content-Type": "application/json"},
        data,
        what="list pods at h:6443",
        wall_ms=NOW_MS,
    )


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("7", 7.0),
        (" 7 ", 7.0),
        ("0", 0.0),
        ("-5", None),
        ("99999", 300.0),
        ("9" * 500, 300.0),
        ("1.5", None),
        ("", None),
        ("٣", None),
        ("Wed, 18 Nov 2026 11:07:10 GMT", 30.0),
        ("Wed, 18 Nov 2026 11:06:00 GMT", 0.0),
        ("Wed, 18 Nov 2099 11:06:00 GMT", 300.0),
        ("Wed, 99 Nov 2026 11:06:00 GMT", None),
    ],
)
def test_T54_retry_after_is_seconds_or_a_date_clamped_or_nothing(
    header: str | None, seconds: float | None
) -> None:
    assert retry_after_s(header, wall_ms=NOW_MS) == seconds


def test_T54_the_header_goes_before_the_details_and_garbage_behind_them() -> None:
    status = failure_status(429, "TooManyRequests", details={"retryAfterSeconds": 9})
    assert classed(429, status, {"Retry-After": "2"}).retry_after_s == 2.0
    assert classed(429, status, {"Retry-After": "soon"}).retry_after_s == 9.0
    assert classed(429, status).retry_after_s == 9.0
    assert classed(429, b"Too many requests, please try again later.\n", TEXT).retry_after_s == 0.0
    assert (
        classed(503, failure_status(503, "x", details={"retryAfterSeconds": 1e99})).retry_after_s
        == 0.0
    )


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (301, Unavailable), (302, Unavailable), (304, Unavailable), (400, Invalid), (401, Unauthorized), (403, Forbidden),
        (404, NotFound), (405, NotWatchable), (406, NotAcceptable), (408, Unavailable), (410, Expired), (415, Invalid),
        (418, Invalid), (422, Invalid), (429, Throttled), (500, Throttled), (501, NotWatchable), (502, Unavailable),
        (503, Throttled), (504, Unavailable), (599, Unavailable), (200, Unavailable), (204, Unavailable),
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"404 page not found\n",
        b"<html><body>secret</body></html>",
        b"\xff\xfe",
        b'{"kind":"Status"}',
    ],
)
def test_the_code_alone_decides_where_the_body_says_nothing(
    code: int, kind: type[KubeError], body: bytes
) -> None:
    error = classed(code, body, {"Content-Type": "text/html" if b"html" in body else "text/plain"})
    assert type(error) is kind
    assert error.status == code
    assert "secret" not in str(error)
    assert "\n" not in str(error)
    assert str(error).startswith("list pods at h:6443: ")


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        (410, failure_status(410, "Expired"), Expired),
        (400, failure_status(400, "Expired"), Expired),
        (200, failure_status(410, "Gone"), Expired),
        (200, failure_status(403, "Forbidden"), Forbidden),
        (200, failure_status(None, ""), Unavailable),
        (504, failure_status(504, "Timeout", details={"causes": [{"reason": "ResourceVersionTooLarge"}]}), VersionTooLarge),
        (504, failure_status(504, "Timeout", "Timeout: Too large resource version: 9, current: 3"), VersionTooLarge),
        (504, failure_status(504, "Timeout", "request timed out"), Unavailable),
    ],
)  # fmt: skip
def test_a_status_says_what_the_code_does_not(
    code: int, status: object, kind: type[KubeError]
) -> None:
    assert type(classed(code, status)) is kind


@pytest.mark.parametrize(
    ("status", "about"),
    [
        (
            failure_status(
                422,
                "Invalid",
                "resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden for watch",
            ),
            "streaming",
        ),
        (failure_status(422, "Invalid", "x", details={"causes": [{"field": "sendInitialEvents"}]}), "streaming"),
        (failure_status(400, "BadRequest", "specifying resource version is not allowed when using continue"), "continue"),
        (failure_status(422, "Invalid", 'resourceVersion: Invalid value: "abc": strconv.ParseUint'), "version"),
        (failure_status(400, "BadRequest", "Invalid resource version: abc"), "version"),
        (failure_status(400, "BadRequest", "field label not supported: spec.foo"), "selector"),
        ({}, "selector"),
    ],
)  # fmt: skip
def test_T63_an_invalid_request_says_what_about_it_was_refused(status: object, about: str) -> None:
    error = classed(422, status)
    assert isinstance(error, Invalid)
    assert error.about == about


def test_a_version_that_the_server_cannot_parse_is_no_trouble_of_the_server() -> None:
    message = (
        'resourceVersion: Invalid value: "abc": strconv.ParseUint: parsing "abc": invalid syntax'
    )
    for error in (
        classed(500, failure_status(500, "", message)),
        from_watch(msgspec.json.encode(failure_status(500, "", message))),
    ):
        assert isinstance(error, Invalid)
        assert error.about == "version"
    assert isinstance(
        classed(500, failure_status(500, "InternalError", "etcdserver: no leader")), Throttled
    )


def test_a_request_that_took_too_long_is_no_500_of_its_version() -> None:
    answer = failure_status(500, "ServerTimeout", "the server cannot complete the request")
    for error in (classed(500, answer), from_watch(msgspec.json.encode(answer))):
        assert error.status == 504
        assert not shows_failing_cursor(error)
        assert "500" in str(error)


def test_a_message_is_one_short_line() -> None:
    error = classed(
        403, failure_status(403, "Forbidden", "pods is\nforbidden\x1b[31m " + "x" * 9000)
    )
    assert "pods is forbidden" in str(error)
    assert "watchrelay rbac" in str(error)
    assert str(error).isprintable()
    assert len(str(error)) < 450


def test_a_throttled_request_names_flow_schema_and_priority_level() -> None:
    headers = {
        **TEXT,
        "X-Kubernetes-PF-FlowSchema-UID": "f-1",
        "X-Kubernetes-PF-PriorityLevel-UID": "p-2",
    }
    assert "(flow schema f-1, priority level p-2)" in str(
        classed(429, b"Too many requests, please try again later.", headers)
    )


def test_an_ascii_body_without_a_type_is_quoted_as_a_tls_port_answers_plain_http() -> None:
    error = classed(400, b"Client sent an HTTP request to an HTTPS server.\n", {"Date": "now"})
    assert str(error) == (
        "list pods at h:6443: 400 Client sent an HTTP request to an HTTPS server. (write "
        "https:// before the server's name)"
    )
    assert "a body of type unknown" in str(classed(400, b"\xff\xfe", {"Date": "now"}))


def test_a_code_that_the_body_repeats_is_reported_once() -> None:
    error = from_response(
        404,
        {"Content-Type": "text/plain"},
        b"404 page not found\n",
        what="list pods at a:1",
        wall_ms=0,
    )
    assert str(error) == "list pods at a:1: 404 page not found"
