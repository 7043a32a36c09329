"""Which of the streams that read a topic a record is given to."""

from types import SimpleNamespace
from typing import Any

from watchrelay.kafka.by_stream import ByStream
from watchrelay.model.reach import KeyRange, Reach

SHOP, TEST = (KeyRange(b"", Reach.of([each], "")) for each in ("shop", "test"))


def record(key: bytes | None, *names: bytes) -> Any:
    return SimpleNamespace(key=key, headers=[("ce_wrstream", name) for name in names])


def given(streams: dict[bytes, KeyRange], *records: Any) -> dict[bytes, list[Any]]:
    """The keys that each stream is given."""
    return {
        stream: [each.key for each in found]
        for stream, found in ByStream(streams).split(records).items()
    }


def test_a_record_of_another_stream_is_given_to_the_stream_whose_objects_can_have_its_key() -> None:
    streams = {b"pods": KeyRange(b"pods/"), b"secrets": KeyRange(b"secrets/")}
    assert given(
        streams,
        record(b"pods/shop/a", b"pods"),
        record(b"pods/shop/b", b"ghost"),
        record(b"secrets/shop/c", b"pods"),
        record(b"%wr/claim/ghost/0", b"ghost"),
        record(b"secrets/a/b/c", b"ghost"),
        record(b"shop/a", b"ghost"),
        record(None, b"ghost"),
    ) == {
        b"pods": [b"pods/shop/a", b"pods/shop/b", b"secrets/shop/c"],
        b"secrets": [b"secrets/shop/c"],
    }


def test_streams_of_one_resource_differ_by_namespace() -> None:
    streams = {b"pods@shop": SHOP, b"pods@test": TEST}
    assert given(
        streams,
        record(b"shop/a", b"pods@shop"),
        record(b"test/a", b"pods@shop"),
        record(b"test/b", b"ghost"),
        record(b"else/c", b"ghost"),
    ) == {b"pods@shop": [b"shop/a", b"test/a"], b"pods@test": [b"test/a", b"test/b"]}


def test_what_names_no_stream_may_hide_an_object_of_any() -> None:
    streams = {b"pods@shop": SHOP, b"pods@test": TEST}
    found = given(streams, record(b"shop/a"), record(b"x"))
    assert found == {stream: [b"shop/a", b"x"] for stream in streams}


def test_of_two_names_the_last_one_counts() -> None:
    streams = {b"pods@shop": SHOP, b"pods@test": TEST}
    found = given(streams, record(b"shop/a", b"pods@test", b"pods@shop"))
    assert found == {b"pods@shop": [b"shop/a"], b"pods@test": []}


def test_a_stream_that_is_alone_misses_nothing_whatever_a_later_header_says() -> None:
    start = [("ce_specversion", b"1.0"), ("ce_source", b"/clusters/a")]
    records = [
        SimpleNamespace(key=key, headers=[*start, *(("ce_wrstream", name) for name in names)])
        for key, names in (
            (b"shop/a", [b"pods"]),
            (b"shop/b", [b"pods", b"ghost"]),
            (b"shop/c", [b"ghost", b"pods"]),
            (b"%wr/claim/ghost/0", [b"ghost"]),
        )
    ]
    assert given({b"pods": KeyRange()}, *records) == {b"pods": [b"shop/a", b"shop/b", b"shop/c"]}
