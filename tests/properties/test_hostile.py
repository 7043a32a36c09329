"""Nothing that comes from outside raises what its reader does not document, or takes time without
bound.

Bytes that are almost what is expected find more than bytes of chance: each input is a legal one
with pieces cut, doubled and put in. Hypothesis' own deadline is off, for machines differ; the time
limit of the test holds for all of its examples together.
"""

from __future__ import annotations

import itertools
import json
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import cast

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.support.extent import examples
from tests.support.reference_decoder import wrong_frames, wrong_record
from tests.unit.kube.served import PODS, bookmark, dumps, failure_status, line, listed, pod
from watchrelay.config import load_settings
from watchrelay.contract.control_state import ControlState
from watchrelay.contract.headers import Header
from watchrelay.contract.records import Decoded, decode
from watchrelay.core.errors import ConfigError, Misconfigured, RecordRefused, Undecodable
from watchrelay.daemon.snapshot_requests import answered
from watchrelay.kafka.signal_records import parse_signal
from watchrelay.kube import status
from watchrelay.kube.auth.exec_plugin import parse_credential
from watchrelay.kube.auth.kubeconfig import (
    EXEC_VERSIONS,
    Cluster,
    ExecPlugin,
    Kubeconfig,
    User,
)
from watchrelay.kube.discovery.catalog import (
    NotDiscovery,
    parse_aggregated,
    parse_group_versions,
    parse_resources,
)
from watchrelay.kube.page import NotAList, PageReader, TooLong
from watchrelay.kube.stream import FrameReader
from watchrelay.model.frames import Failure

FUZZ = settings(
    max_examples=examples(400),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

_PIECES = [
    b"{", b"}", b"[", b"]", b'"', b":", b",", b"\n", b"\\", b"\\ud800", b"\xff", b"\x00", b"\x1b", b"null", b"true", b"-1", b"1e999",
    b"9" * 40, b"[" * 2000, b'{"a":' * 2000, b"*a", b"&a ", b"<<: *a", b"!!python/object:os.system ", b"- ", b"\t", b"---\n", b"%YAML 9\n",
]  # fmt: skip
_edits = st.lists(
    st.tuples(
        st.integers(0, 10_000), st.integers(0, 8), st.sampled_from(_PIECES) | st.binary(max_size=6)
    ),
    max_size=5,
)


def spoiled(legal: bytes, edits: Sequence[tuple[int, int, bytes]]) -> bytes:
    for place, cut, piece in edits:
        at = place % (len(legal) + 1)
        legal = legal[:at] + piece + legal[at + cut :]
    return legal


def refusal(call: Callable[[], object], *kinds: type[Exception]) -> str:
    """What `call` says when it refuses, "" when it does not; any other exception goes through."""
    try:
        call()
    except kinds as error:
        return str(error)
    return ""


def read_record(
    key: bytes | None, value: bytes | None, headers: Mapping[str, bytes | None]
) -> tuple[list[Decoded], str]:
    """What `decode` reads, or why it refuses. Kafka has headers without a value, of which the type
    of ours knows nothing."""
    try:
        return [decode(key, value, cast("Iterable[Header]", headers.items()))], ""
    except RecordRefused as error:
        return [], str(error)


LINES = [
    *(
        line("ADDED", pod("a")),
        line("DELETED", pod("\u2028é")),
        bookmark("7"),
        line("ERROR", failure_status(410, "Gone")),
        b"\r\n",
    ),
    json.dumps({"type": "MODIFIED", "object": pod("b")}).encode() + b"\n",
    line("ADDED", pod("a")).replace(b'"object"', b'"type":"DELETED","object"'),
    line("ADDED", pod("a")).replace(b'"object"', b'"object":{},"object"'),
    line("ADDED", pod("a")).replace(
        b'"metadata"', b'"metadata":{"name":"b","resourceVersion":"1"},"metadata"'
    ),
    line("ADDED", pod("a")).replace(b'"uid"', b'"name":"b","uid"'),
    line("ADDED", pod("a")).replace(b'"n1"', b'"n\xff"'),
]
"""What servers send; keys that stand twice, of which either might count; bytes that are no text."""
LIST = dumps(listed(*(pod(f"p{n}") for n in range(3)), token="t"))


@FUZZ
@given(st.lists(st.sampled_from(LINES), max_size=5), _edits, st.integers(1, 400))
@example([LINES[3], LINES[0]], [(LINES[3].index(b"object"), 0, b"\\ud800")], 400)
@example([LINES[3], LINES[0]], [(LINES[3].index(b"Failure"), 0, b"\\ud800")], 400)
@example([LINES[6]], [(1, 6, b"")], 400)
@example([LINES[0], LINES[2], LINES[0]], [(365, 0, b"{"), (365, 0, b"- "), (653, 0, b"\n")], 5)
@example([LINES[0], LINES[2]], [(0, 0, b"{"), (0, 0, b"- "), (653, 0, b"\n")], 6)
def test_whatever_a_watch_brings_is_frames_and_failures_of_one_line(
    lines: list[bytes], edits: list[tuple[int, int, bytes]], step: int
) -> None:
    data, stream = spoiled(b"".join(lines), edits), FrameReader(PODS)
    frames = [
        frame for at in range(0, len(data), step) for frame in stream.feed(data[at : at + step])
    ] + stream.finish()
    assert all(str(frame.error).isprintable() for frame in frames if isinstance(frame, Failure))
    assert wrong_frames(data, frames) == []


@FUZZ
@given(_edits, st.integers(1, 400))
def test_whatever_a_list_brings_is_a_page_or_no_list(
    edits: list[tuple[int, int, bytes]], step: int
) -> None:
    data, reader = spoiled(LIST, edits), PageReader(PODS)

    def read() -> None:
        for at in range(0, len(data), step):
            reader.feed(data[at : at + step])
        reader.finish()

    reason = refusal(read, NotAList, TooLong, Undecodable)
    assert not reason or reason.isprintable()


@FUZZ
@given(_edits, st.integers(100, 599), st.sampled_from(["", "text/plain", "application/json"]))
def test_whatever_a_server_says_of_itself_is_an_error_of_one_line(
    edits: list[tuple[int, int, bytes]], code: int, kind: str
) -> None:
    data = spoiled(
        dumps(
            failure_status(
                500, "Timeout", "m", details={"retryAfterSeconds": 3, "causes": [{"reason": "x"}]}
            )
        ),
        edits,
    )
    for error in (
        status.from_response(code, {"Content-Type": kind}, data, what="list", wall_ms=0),
        status.from_watch(data),
    ):
        assert str(error).isprintable()
        assert 0 <= error.retry_after_s <= 300


DISCOVERY = (
    b'{"items":[{"metadata":{"name":"a.b"},"versions":[{"version":"v1","resources":[{"resource":"x","responseKind":{"kind":"X"},"scope":'
    b'"Namespaced","verbs":["list","watch"],"shortNames":["y"]}]}]}],"groups":[{"name":"a.b","versions":[{"version":"v1"}],'
    b'"preferredVersion":{"version":"v1"}}],"resources":[{"name":"x","kind":"X","verbs":["list"]}]}'
)


@FUZZ
@given(_edits)
def test_whatever_discovery_says_names_nothing_but_names(
    edits: list[tuple[int, int, bytes]],
) -> None:
    data = spoiled(DISCOVERY, edits)
    try:
        found = [v for _, group in parse_aggregated(data) for v in group.versions] + [
            parse_resources("", "v1", data)
        ]
        parse_group_versions(data)
    except NotDiscovery:
        return
    paths = [each.resource.path() for version in found for each in version.served]
    assert all(re.fullmatch(r"(/[A-Za-z0-9][A-Za-z0-9._-]*)+", path) for path in paths)


RECORD: dict[str, bytes] = {
    "ce_type": b"dev.watchrelay.object.added.v1", "ce_wrstream": b"pods", "ce_wrepoch": b"1", "ce_sequence": b"%020d" % 7,
    "ce_time": b"2026-01-01T00:00:00.000Z", "ce_wrreason": b"watch", "ce_wrhash": b"0" * 16, "ce_wrrv": b"5",
    "content-type": b"application/json", "ce_wrconfig": b"c0ffee", "ce_wrpartitions": b"1", "ce_wrcount": b"1", "ce_wrdigest": b"0" * 16,
    "ce_wrsnap": b"1-1", "ce_wrbegin": b"1", "ce_wrbeginoff": b"1", "ce_wrlastsnap": b"1-1", "ce_wrlastsnapoff": b"1",
}  # fmt: skip
_ODD = [
    *(b"-1", b"+1", b" 1", b"1 ", b"1_0", b"1e3", b"", b"0x1", "\u0663".encode(), b"9" * 20, b"9" * 21, b"9" * 5000),
    *(b"%d" % (2**bits + more) for bits in (53, 63, 64) for more in (-1, 0, 1)),
    *(b"0x" + b"0" * 14, b"0" * 15, b"0" * 17, b"g" * 16, b"F" * 16, b"-" + b"0" * 15, b"0_" * 8, b" " * 16),
]  # fmt: skip
"""What other readers would take for a number, or not."""
_Edits = list[tuple[int, int, bytes]]
_rarely = st.just(_Edits()) | _edits
KINDS = [
    "object.added",
    "object.deleted",
    "object.read",
    "claim",
    "snapshot.begin",
    "snapshot.end",
    "heartbeat",
]
_types = st.sampled_from(KINDS)
CONTENTS = [b"application/json", b"application/cloudevents+json", b"text/plain"]
_contents = st.sampled_from(CONTENTS)
VALUES = [None, b"{}", b'{"before":null,"after":{},"op":"u"}', b'{"specversion":"1.0","data":{}}']
_values = st.sampled_from(VALUES)
_keys = st.sampled_from([b"\xff", b"shop/\xc3", b"%wr/claim/pods/-1", b"%wr/heartbeat/nodes/0"])


@FUZZ
@given(
    _types,
    st.none() | st.tuples(_contents, _values),
    st.sampled_from(sorted(RECORD)),
    st.none() | st.just("missing") | st.sampled_from(_ODD) | _edits,
    _rarely | _keys,
    _rarely,
)
def test_whatever_is_on_a_topic_is_a_record_or_refused(
    kind: str,
    body: tuple[bytes, bytes | None] | None,
    name: str,
    header: _Edits | bytes | str | None,
    other: _Edits | bytes,
    edits: _Edits,
) -> None:
    """One header at a time is another, or is not there; `body` None: content and value as the type
    has them."""
    content, value = body or (
        b"application/json",
        b"{}" if kind in {"object.added", "object.read"} else None,
    )
    headers: dict[str, bytes | None] = {
        **RECORD,
        "ce_type": b"dev.watchrelay.%b.v1" % kind.encode(),
        "content-type": content,
    }
    if isinstance(header, str):
        del headers[name]
    else:
        headers[name] = (
            spoiled(headers[name] or b"", header) if isinstance(header, list) else header
        )
    key = (
        b"shop/a"
        if kind.startswith("object")
        else b"%%wr/%b/pods/0" % kind.rpartition(".")[2].encode()
    )
    given = (
        spoiled(key, other) if isinstance(other, list) else other,
        None if value is None else spoiled(value, edits),
    )
    read, reason = read_record(*given, headers)
    assert len(reason) < 5000
    assert reason.isprintable()
    assert [wrong_record(*given, headers, record) for record in read] in ([], [[]])


@pytest.mark.parametrize("kind", KINDS)
def test_every_body_is_read_as_it_is_or_refused(kind: str) -> None:
    key = (
        b"shop/a"
        if kind.startswith("object")
        else b"%%wr/%b/pods/0" % kind.rpartition(".")[2].encode()
    )
    for content, value in itertools.product(CONTENTS, VALUES):
        headers: dict[str, bytes | None] = {
            **RECORD,
            "ce_type": b"dev.watchrelay.%b.v1" % kind.encode(),
            "content-type": content,
        }
        read, _ = read_record(key, value, headers)
        assert [wrong_record(key, value, headers, record) for record in read] in ([], [[]]), (
            content,
            value,
        )


@pytest.mark.parametrize("kind", KINDS)
def test_every_header_is_read_as_it_is_or_refused_whatever_it_holds(kind: str) -> None:
    value = b"{}" if kind in {"object.added", "object.read"} else None
    key = (
        b"shop/a"
        if kind.startswith("object")
        else b"%%wr/%b/pods/0" % kind.rpartition(".")[2].encode()
    )
    legal: dict[str, bytes | None] = {**RECORD, "ce_type": b"dev.watchrelay.%b.v1" % kind.encode()}
    read, reason = read_record(key, value, legal)
    assert reason == ""
    assert [wrong_record(key, value, legal, record) for record in read] == [[]]
    for name in RECORD:
        for odd in (None, ..., *_ODD):
            headers = (
                {each: content for each, content in legal.items() if each != name}
                if odd is ...
                else {**legal, name: odd}
            )
            read, reason = read_record(key, value, headers)
            assert len(reason) < 5000
            assert reason.isprintable()
            assert [wrong_record(key, value, headers, record) for record in read] in ([], [[]]), (
                name,
                odd,
            )


CONTROL = {
    b"claim/pods": b'{"holder":"h","instance":"i","version":"1","time":"2026-01-01T00:00:00.000Z","from":{"snapshot":"1-1","begin":[3]}}',
    b"stream/pods": b'{"topic":"t","partitions":1,"epochBase":1}',
    b"snapshot/pods": b'{"snapshot":"1-1","epoch":1,"rv":"5","time":"2026-01-01T00:00:00.000Z","count":1,"requests":["r"],'
    b'"partitions":[{"partition":0,"begin":3,"end":9,"count":1,"digest":"00"}]}',
}


@FUZZ
@given(st.lists(st.tuples(st.sampled_from(sorted(CONTROL)), _edits, _edits), max_size=6))
def test_whatever_is_on_the_control_topic_is_taken_or_refused(
    records: list[tuple[bytes, list[tuple[int, int, bytes]], list[tuple[int, int, bytes]]]],
) -> None:
    state = ControlState()
    for offset, (key, key_edits, edits) in enumerate(records):
        record = offset, spoiled(key, key_edits), spoiled(CONTROL[key], edits)
        assert len(refusal(partial(state.read, *record), RecordRefused)) < 5000
    for stream, held in state.streams.items():
        assert (epoch := held.epoch_of(held)) is None or epoch >= 0
        held.starting_point(1)
        held.starting_point(2)
        answered(held.index, "r", 0, 1 << 60)
        assert all(origin.offset is None or origin.offset >= 0 for origin in state.origins(stream))
    state.described()


@FUZZ
@given(_edits)
def test_whatever_is_on_the_signal_topic_is_a_request_or_refused(
    edits: list[tuple[int, int, bytes]],
) -> None:
    value = spoiled(b'{"id":"x","type":"execute-snapshot","data":{"streams":["pods"]}}', edits)
    reason = refusal(lambda: parse_signal(value), RecordRefused)
    assert not reason or reason.isprintable()


@FUZZ
@given(_edits)
def test_whatever_a_plugin_prints_is_a_credential_or_a_mistake_that_repeats_nothing(
    edits: list[tuple[int, int, bytes]],
) -> None:
    legal = {"kind": "ExecCredential", "apiVersion": EXEC_VERSIONS[0]}
    answer = {
        **legal,
        "status": {"token": "hunter2", "expirationTimestamp": "2026-01-01T00:00:00Z"},
    }
    output = spoiled(dumps(answer), edits)
    assert "hunter2" not in refusal(
        lambda: parse_credential(output, ExecPlugin("plugin")), Misconfigured
    )


KUBECONFIG = b"""apiVersion: v1
kind: Config
current-context: a
clusters: [{name: a, cluster: &a {server: "https://h:6443", extensions: [{name: client.authentication.k8s.io/exec, extension: {x: 1}}]}}]
contexts:
- name: a
  context: {cluster: a, user: a}
users:
- name: a
  user:
    {token: hunter2, as: b, as-groups: [c], as-user-extra: {d: [e]}}
- name: b
  user: {exec: {command: p, apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never, env: [{name: a, value: b}]}}
"""
CONFIG = b"""cluster: c
kafka: {bootstrapServers: [k:9092], security: &a {protocol: SASL_SSL, mechanism: PLAIN, username: u, password: hunter2}}
defaults: {snapshotInterval: 1h, drop: [status.x], redact: ['data["a.b"]']}
resources:
- resource: pods
  namespaces: [shop]
  labelSelector: a=b
"""


@FUZZ
@given(_edits)
def test_whatever_a_kubeconfig_holds_is_a_user_or_mistakes_that_repeat_no_secret(
    edits: list[tuple[int, int, bytes]],
) -> None:
    with tempfile.NamedTemporaryFile() as file:
        file.write(spoiled(KUBECONFIG, edits))
        file.flush()
        read: list[tuple[Cluster, User]] = []
        reason = refusal(
            lambda: read.append(Kubeconfig([Path(file.name)]).resolve(None)), ConfigError
        )
    assert len(reason) < 5000
    assert "hunter2" not in reason or b": hunter2" not in spoiled(KUBECONFIG, edits)
    for cluster, user in read:
        assert "hunter2" not in repr((cluster, user)) or "token: hunter2" not in spoiled(
            KUBECONFIG, edits
        ).decode(errors="replace")
        assert all(
            value.isprintable()
            for value in (
                user.token,
                *(value for _, value in user.impersonation),
            )
        )


@settings(FUZZ, max_examples=examples(150))
@given(_edits)
def test_whatever_a_config_holds_is_settings_or_mistakes(
    edits: list[tuple[int, int, bytes]],
) -> None:
    with tempfile.NamedTemporaryFile(suffix=".yaml") as file:
        file.write(spoiled(CONFIG, edits))
        file.flush()
        shown: list[str] = []
        reason = refusal(
            lambda: shown.append(
                repr(load_settings(file.name, environ={}).kafka.security.password)
            ),
            ConfigError,
        )
    assert reason or shown
    assert all(line.isprintable() for line in reason.split("\n"))
    if b": hunter2" in spoiled(CONFIG, edits):  # else it may be part of a word that is wrong
        assert "hunter2" not in "".join((reason, *shown))


def nine_times_nine(form: str, first: str) -> str:
    """Ten anchors, each nine times the one before it."""
    names = "abcdefghij"
    return f"a: &a {first}\n" + "".join(
        f"{name}: &{name} {form.format(','.join([f'*{names[at]}'] * 9))}\n"
        for at, name in enumerate(names[1:])
    )


BOMBS = {
    "aliases": nine_times_nine("[{}]", "[x]"),
    "merges": nine_times_nine("{{<<: [{}]}}", "{x: 1}"),
    "depth": "a: " + "[" * 200_000,
    "maps": "a: " + "{a: " * 100_000,
    "anchors of itself": "a: &a [*a]",
    "tags": "a: !!python/object/apply:os.system [true]",
    "lines": "- a\n" * 200_000,
    "digits": "a: " + "9" * 500_000,
    "sexagesimal": "a: 1" + ":1" * 200_000,
    "documents": "--- {}\n" * 100_000,
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_yaml_bomb_is_refused_with_one_line_wherever_yaml_is_read(
    bomb: str, tmp_path: Path
) -> None:
    file = tmp_path / "bomb.yaml"
    file.write_text(BOMBS[bomb])
    with pytest.raises(ConfigError) as caught:
        load_settings(str(file), environ={})
    assert all(
        len(str(problem)) < 500 and str(problem).isprintable() for problem in caught.value.problems
    )
    with pytest.raises(ConfigError) as refused:
        Kubeconfig([file]).resolve(None)
    assert len(str(refused.value)) < 500


def test_an_environment_that_is_a_bomb_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "good.yaml"
    file.write_bytes(CONFIG)
    with pytest.raises(ConfigError) as caught:
        load_settings(
            str(file),
            environ={
                "WATCHRELAY_DEFAULTS__DROP": "[" * 100_000,
                "WATCHRELAY_KAFKA__SECURITY": json.dumps({"a": "x"}),
            },
        )
    assert all(len(str(problem)) < 500 for problem in caught.value.problems)
