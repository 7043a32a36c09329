"""The payload of Secrets, and its copy in the last-applied annotation, do not leave the relay in
any form unless the config names them.

Secrets full of canaries pass through the real code on every path; and then again with one step of
the redaction removed, where the same check finds the canary that the step removes: a test that
could not detect it would prove nothing.
"""

from __future__ import annotations

import json

import pytest

from tests.support.canary import CANARIES, NAMES, SECRETS, Outputs, leaked, secret
from tests.support.canary_run import collect
from tests.support.pods import frame_of
from tests.support.relays import run_virtually
from watchrelay.model.resources import Resource
from watchrelay.model.streams import Format
from watchrelay.store.transform import Transform

TWIN = Resource("", "v1", "secrets-unguarded", "Secret", namespaced=True)
"""A resource that is not `secrets`, so that nothing is guarded and each step can be asked for, or
left out, by itself."""

WAYS = ("list", "watch", "relist", "streaming list", "snapshot", "resume", "tail")
ALL = {"errors", "logs", "metrics", "repr", "status", "verify", *WAYS}
FORMATS: tuple[Format, ...] = ("cloudevents", "structured", "debezium")


def outputs(
    transform: Transform, *, form: Format = "cloudevents", metadata_only: bool = False
) -> Outputs:
    return run_virtually(collect(transform, form=form, metadata_only=metadata_only))


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("keep_last_applied", [False, True])
def test_no_canary_leaves_by_any_way_in_any_format(form: Format, keep_last_applied: bool) -> None:
    every_output = outputs(
        Transform.compile(SECRETS, keep_last_applied=keep_last_applied), form=form
    )
    assert every_output.leaks() == {}
    assert set(every_output.by_path) == ALL
    assert all(every_output.objects[way] >= 3 for way in WAYS[:-1]), (
        f"a path without objects proves nothing: {every_output.objects}"
    )
    assert b'"stub"' in every_output.by_path["logs"], "no object was too large"
    assert b"<redacted>" in every_output.by_path["snapshot"]


@pytest.mark.parametrize("form", FORMATS)
def test_the_canary_leaves_by_every_way_once_the_config_names_it(form: Format) -> None:
    named = outputs(
        Transform.compile(SECRETS, include_secret_data=True, keep_last_applied=True), form=form
    )
    assert {
        way for way, found in named.leaks().items() if {"data", "stringData", "applied"} <= found
    } == set(WAYS)
    payload = outputs(Transform.compile(SECRETS, include_secret_data=True), form=form)
    assert {
        way for way, found in payload.leaks().items() if {"data", "stringData"} <= found
    } == set(WAYS)
    assert not any("applied" in found for found in payload.leaks().values()), (
        "the copy must be named for itself"
    )


REMOVED = {
    "redaction of data": (["stringData.*"], False, {"data"}),
    "redaction of stringData": (["data.*"], False, {"stringData"}),
    "removal of last-applied": (["data.*", "stringData.*"], True, {"applied", "escaped"}),
    "sealing of a payload that is no map": (["data.*", "stringData.*"], False, {"odd"}),
}
"""Each step by what is left when it is taken out: the paths that are still hidden, whether
last-applied stays, and what must get out."""


@pytest.mark.parametrize("step", REMOVED)
def test_without_one_step_the_canary_that_it_guards_leaves_by_every_way(step: str) -> None:
    hidden, keep_last_applied, expected = REMOVED[step]
    whole = {"redaction of data", "redaction of stringData"}
    leaks = outputs(
        Transform.compile(TWIN, redact=hidden, keep_last_applied=keep_last_applied)
    ).leaks()
    assert {way for way, found in leaks.items() if expected <= found} == set(WAYS)
    beside = (
        set().union(*leaks.values()) - expected - ({"odd", "broken"} if step in whole else {"odd"})
    )
    assert beside == set(), "another step failed, too"


@pytest.mark.parametrize(("asked", "trimmed"), [(True, True), (True, False), (False, True)])
def test_of_metadata_only_either_of_its_two_steps_is_enough(asked: bool, trimmed: bool) -> None:
    """The reader keeps the metadata alone, and so does the transform; even of a server that sends
    whole objects all the same."""
    assert (
        outputs(
            Transform.compile(SECRETS, include_secret_data=True, metadata_only=trimmed),
            metadata_only=asked,
        ).leaks()
        == {}
    )


def test_without_both_steps_of_metadata_only_the_canary_leaves() -> None:
    assert "data" in outputs(Transform.compile(SECRETS, include_secret_data=True)).leaks()["list"]


PATHS = (
    (("data.version",), ()),
    (("data.password.x",), ()),
    ((), ("data.password",)),
    (("*.x", "data[*].x"), ("data[*].x",)),
)
"""To drop, and to redact."""

PAYLOADS = (
    '"%s"',
    '["%s"]',
    '[{"x": 1, "y": "%s"}]',
    '{"password": "%s"}',
    '{"more": {"x": "%s", "y": "%s"}}',
)


@pytest.mark.parametrize("paths", PATHS)
@pytest.mark.parametrize("payload", PAYLOADS)
def test_no_path_of_the_config_opens_the_payload(
    paths: tuple[tuple[str, ...], tuple[str, ...]], payload: str
) -> None:
    """What `drop` and `redact` enter there stays sealed, of whatever shape it is."""
    raw = json.loads(secret("plain", 1))
    raw["data"] = json.loads(payload.replace("%s", CANARIES["data"]))
    assert (
        leaked(
            Transform.compile(SECRETS, drop=paths[0], redact=paths[1]).apply(
                frame_of(json.dumps(raw).encode())
            )
        )
        == set()
    )


@pytest.mark.parametrize(
    "spoil", [(b'"password":', b'"pass\xffword":'), (b'"note":', b'"no\xffte":')]
)
def test_what_cannot_be_read_stays_home_whole(spoil: tuple[bytes, bytes]) -> None:
    """No way leads here: the readers refuse such an object. Should they once not, the payload or
    the annotations are hidden whole."""
    frame = frame_of(secret("plain", 1).replace(*spoil))
    assert leaked(Transform.compile(SECRETS).apply(frame)) == set()


@pytest.mark.parametrize("name", NAMES)
def test_each_object_that_goes_in_carries_its_canaries(name: str) -> None:
    carried = leaked(secret(name, 1))
    assert carried >= {"plain": {"data", "stringData", "applied"}, "huge": {"data"}}.get(
        name, {name} if name in CANARIES else set()
    )
