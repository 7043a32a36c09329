"""Which streams may be retired, and which keys are left to delete."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace

from watchrelay.admin.retire import (
    RemainingObjects,
    StillConfigured,
    kind_of,
    refuse_configured,
    spec_of,
)
from watchrelay.config import Settings, load_settings
from watchrelay.contract.records import ObjectRecord
from watchrelay.core.errors import RecordRefused


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "watchrelay.yaml").write_text(
        "cluster: c\nkafka: {bootstrapServers: [k:9092]}\nresources:\n"
        "  - {resource: po, namespaces: [shop]}\n  - {resource: Widget}\n"
        '  - {resource: "*.example.com"}\n  - {resource: secrets, id: mine}\n'
    )
    return load_settings()


@pytest.mark.parametrize(
    "stream", ["pods@shop", "widgets.acme.io", "widgets", "things.example.com", "mine"]
)
def test_what_the_config_means_or_may_mean_is_refused(settings: Settings, stream: str) -> None:
    with pytest.raises(
        StillConfigured, match=rf"stream {stream} is still in the config, by resources\[\d\]"
    ):
        refuse_configured(settings, stream)


@pytest.mark.parametrize(
    "stream",
    [
        "pods",
        "pods@pay",
        "secrets",
        "gadgets.acme.io",
        "things.example.org",
        "widgets.acme.io@shop",
    ],
)
def test_what_the_config_cannot_mean_may_go(settings: Settings, stream: str) -> None:
    refuse_configured(settings, stream)


@pytest.mark.parametrize("name", ["cert", "cert.cert-manager.io"])
def test_what_a_short_name_may_mean_is_refused_with_the_cure(tmp_path: Path, name: str) -> None:
    file = tmp_path / "watchrelay.yaml"
    file.write_text(
        "cluster: c\nkafka: {bootstrapServers: [k:9092]}\n"
        f"resources: [{{resource: {name}, namespaces: [shop]}}]\n"
    )
    settings = load_settings(str(file))
    with pytest.raises(StillConfigured, match=r"may be meant by resources\[0\] .*plural and group"):
        refuse_configured(settings, "certificates.cert-manager.io@shop")
    for other in (
        "certificates.cert-manager.io",
        "pods@shop",
        "deployments.apps@shop",
        "mine@shop",
    ):
        refuse_configured(settings, other)


def test_a_description_is_enough_to_write_the_stream(settings: Settings) -> None:
    described: dict[str, object] = {
        "topic": "t",
        "partitions": 3,
        "keyFormat": "prefixed",
        "resource": "widgets.acme.io/v1beta1",
    }
    spec = spec_of(settings, "w", {**described, "configHash": "abc", "epochBase": 7})
    assert (spec.source, spec.key_prefix, spec.config_hash) == (
        "/clusters/c/apis/acme.io/v1beta1/widgets",
        b"widgets.acme.io/",
        "abc",
    )
    assert "epochBase" not in spec.description
    core = spec_of(settings, "pods", {**described, "resource": "pods/v1", "keyFormat": "plain"})
    assert (core.source, core.key_prefix) == ("/clusters/c/api/v1/pods", b"")
    with pytest.raises(RecordRefused, match="not of this contract version"):
        spec_of(settings, "pods", {"topic": "t"})


def published(key: str, epoch: int, sequence: int, verb: str = "added") -> ObjectRecord:
    value = None if verb == "deleted" else b'{"apiVersion":"v1","kind":"Pod"}'
    fields: dict[str, Any] = {
        "stream": "pods",
        "value_hash": 0,
        "uid": "u",
        "version": "1",
        "reason": "watch",
        "time": "",
    }
    return ObjectRecord(
        key=key.encode(),
        epoch=epoch,
        sequence=sequence,
        verb=cast("Any", verb),
        value=value,
        **fields,
    )


def keys(*records: ObjectRecord) -> set[str]:
    remaining = RemainingObjects()
    for record in records:
        remaining.apply(record)
    return {key.decode() for key in remaining.objects}


def test_what_was_published_and_not_deleted_is_left() -> None:
    assert keys(published("a", 1, 1), published("b", 1, 2), published("a", 1, 3, "deleted")) == {
        "b"
    }


def test_what_only_a_table_that_ignores_epochs_holds_is_left_too() -> None:
    assert keys(published("a", 2, 1, "deleted"), published("a", 1, 9)) == {"a"}


def test_what_only_a_reader_of_the_contract_holds_is_left_too() -> None:
    assert keys(published("a", 2, 1), published("a", 1, 9, "deleted")) == {"a"}


def test_the_kind_is_that_of_an_object_that_is_left() -> None:
    remaining = RemainingObjects()
    assert kind_of([remaining]) == ""
    remaining.apply(published("a", 1, 1))
    assert kind_of([RemainingObjects(), remaining]) == "Pod"


@pytest.mark.parametrize(
    "value", [b'{"kind":5}', b"{}", b"[]", b"<html>", b"\xff", b'{"kind":%b}' % (b"9" * 5000)]
)
def test_an_object_that_says_no_kind_leaves_it_to_the_others(value: bytes) -> None:
    remaining = RemainingObjects()
    remaining.apply(replace(published("a", 1, 1), value=value))
    assert kind_of([remaining]) == ""
    remaining.apply(published("b", 1, 2))
    assert kind_of([remaining]) == "Pod"
