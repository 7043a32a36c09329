"""What a record is worth to every reader: its hash by its bytes, and whether it is an object at
all."""

from __future__ import annotations

import pytest

from watchrelay.contract.records import Foreign, ObjectRecord, content_hash, foreign_of
from watchrelay.contract.state import judged, misfit
from watchrelay.contract.wire import Verb

VALUE = b'{"metadata":{"name":"a","namespace":"shop","uid":"u","resourceVersion":"5"}}'
CLUSTER_SCOPED = b'{"metadata":{"name":"a","uid":"u","resourceVersion":"5"}}'


def record(value: bytes | None, value_hash: int) -> ObjectRecord:
    verb: Verb = "modified" if value is not None else "deleted"
    return ObjectRecord("pods", 1, 1, verb, b"shop/a", value, value_hash, "u", "5", "watch", "t")


def test_a_record_counts_by_the_hash_of_its_bytes() -> None:
    right = content_hash(b"shop/a", VALUE)
    for same in (record(VALUE, right), record(None, 0)):
        assert judged(same) is same
    assert judged(record(VALUE, 7)) == record(VALUE, right)


def test_an_object_fits_its_key_and_headers() -> None:
    assert misfit(b"shop/a", b"", VALUE, uid="u", version="5") == ""
    assert misfit(b"pods/shop/a", b"pods/", VALUE, uid="u", version="5") == ""
    assert misfit(b"/a", b"", CLUSTER_SCOPED, uid="u", version="5") == ""


@pytest.mark.parametrize(
    ("key", "value", "uid", "version", "why"),
    [
        (b"", VALUE, "u", "5", "no object has the key"),
        (b"a", VALUE, "u", "5", "no object has the key"),
        (b"shop/", VALUE, "u", "5", "no object has the key"),
        (b"pods/shop/a", VALUE, "u", "5", "no object has the key"),
        (b"%wr/claim/pods/0", VALUE, "u", "5", "no object has the key"),
        (b"shop/b", VALUE, "u", "5", "metadata.name"),
        (b"pos/a", VALUE, "u", "5", "metadata.namespace"),
        (b"/a", VALUE, "u", "5", "metadata.namespace"),
        (b"shop/a", VALUE, "v", "5", "metadata.uid"),
        (b"shop/a", VALUE, "u", "6", "metadata.resourceVersion"),
        (b"shop/a", b"", "u", "5", "the value is no object"),
        (b"shop/a", b"null", "u", "5", "the value is no object"),
        (b"shop/a", b"[1]", "u", "5", "the value is no object"),
        (b"shop/a", b"{}", "u", "5", "the value is no object"),
        (b"shop/a", VALUE[:-1], "u", "5", "the value is no object"),
        (b"shop/a", b"\xff", "u", "5", "the value is no object"),
        (b"shop/a", b'{"metadata":{"name":7}}', "u", "5", "the value is no object"),
        (b"shop/a", b'{"a":' * 100_000, "u", "5", "the value is no object"),
    ],
)
def test_what_is_no_object_of_its_key_is_named(
    key: bytes, value: bytes, uid: str, version: str, why: str
) -> None:
    assert misfit(key, b"", value, uid=uid, version=version).startswith(why)


def test_a_refused_record_may_hide_an_object_of_its_key() -> None:
    assert foreign_of(b"shop/a", [], "pods") == Foreign(b"shop/a", named=False)
    named = foreign_of(b"shop/a", [("ce_wrstream", b"pods")], "pods")
    assert named == Foreign(b"shop/a", named=True)
    other = foreign_of(b"shop/a", [("ce_wrstream", b"nodes")], "pods")
    assert other == Foreign(b"shop/a", named=False)
    for key in (None, b"%wr/claim/pods/0", b"\xff/a"):
        assert foreign_of(key, [("ce_wrstream", b"pods")], "pods") is None
