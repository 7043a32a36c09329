"""What becomes of a list's bytes, without sockets."""

from __future__ import annotations

import json

import pytest

from tests.unit.kube.served import PODS, WIDGETS, dumps, line, listed, pod
from watchrelay.core.errors import Undecodable
from watchrelay.kube.page import NotAList, PageReader
from watchrelay.kube.stream import FrameReader
from watchrelay.model.frames import ObjectFrame, Page
from watchrelay.model.resources import Selection


def page_of(body: bytes, *, step: int = 0, selection: Selection = PODS) -> Page:
    reader = PageReader(selection)
    for start in range(0, len(body), step or len(body) or 1):
        reader.feed(body[start : start + (step or len(body))])
    return reader.finish()


def content(frame: ObjectFrame) -> list[tuple[str, bytes]]:
    return [(key, bytes(raw)) for key, raw in frame.fields.items()]


@pytest.mark.parametrize("step", [0, 1, 7, 100])
def test_T11_items_without_kind_are_byte_for_byte_what_a_watch_brings(step: int) -> None:
    items = [pod(f"p{n}", str(n), named=False) for n in range(1, 20)]
    page = page_of(dumps(listed(*items)), step=step)
    assert [frame.type for frame in page.objects] == ["ADDED"] * 19
    for n, frame in enumerate(page.objects, 1):
        (watched,) = FrameReader(PODS).feed(line("MODIFIED", pod(f"p{n}", str(n))))
        assert isinstance(watched, ObjectFrame)
        assert content(frame) == content(watched)
        assert list(frame.fields)[:2] == ["apiVersion", "kind"]


@pytest.mark.parametrize("step", [0, 1, 7, 100])
def test_what_an_odd_list_calls_itself_is_not_given_to_its_items(step: int) -> None:
    body = {**listed(pod("a", "1", named=False)), "apiVersion": "9" * 30, "kind": "OddList"}
    (frame,) = page_of(dumps(body), step=step).objects
    assert [bytes(frame.fields[name]) for name in ("apiVersion", "kind")] == [b'"v1"', b'"Pod"']


def test_items_of_a_custom_resource_keep_the_kind_they_carry() -> None:
    items = [
        {"apiVersion": "example.com/v2", "kind": "Gadget", "metadata": pod(f"w{n}")["metadata"]}
        for n in range(3)
    ]
    body = {
        "apiVersion": "example.com/v1",
        "items": items,
        "kind": "WidgetList",
        "metadata": {"continue": "", "resourceVersion": "5"},
    }
    for step in (0, 11):
        page = page_of(dumps(body), step=step, selection=WIDGETS)
        assert {(bytes(f.fields["apiVersion"]), bytes(f.fields["kind"])) for f in page.objects} == {
            (b'"example.com/v2"', b'"Gadget"')
        }
        assert (page.resource_version, page.continue_token, len(page.objects)) == ("5", None, 3)


@pytest.mark.parametrize("style", [(",", ":"), (", ", ": ")])
@pytest.mark.parametrize("indent", [None, 2])
def test_blanks_between_tokens_do_not_matter(style: tuple[str, str], indent: int | None) -> None:
    body = json.dumps(
        listed(*(pod(f"p{n}", str(n)) for n in range(5)), token="t"),
        separators=style,
        indent=indent,
    ).encode()
    for step in (0, 13):
        page = page_of(body, step=step)
        assert [frame.name for frame in page.objects] == [f"p{n}" for n in range(5)]
        assert (page.resource_version, page.continue_token, page.failures) == ("100", "t", ())


@pytest.mark.parametrize(("token", "read"), [("", None), (None, None), ("a+/=&b", "a+/=&b")])
def test_T03_an_empty_or_missing_token_ends_the_list(token: str | None, read: str | None) -> None:
    assert page_of(dumps(listed(pod("a"), token=token))).continue_token == read


@pytest.mark.parametrize("items", [None, []])
def test_T02_a_page_may_be_empty(items: object) -> None:
    page = page_of(
        dumps(
            {
                "kind": "PodList",
                "apiVersion": "v1",
                "metadata": {"resourceVersion": "5", "continue": "t"},
                "items": items,
            }
        )
    )
    assert (page.objects, page.continue_token) == ([], "t")


@pytest.mark.parametrize("metadata", [None, {}, {"resourceVersion": ""}, {"resourceVersion": None}])
def test_T12_a_missing_version_is_an_empty_one(metadata: object) -> None:
    assert (
        page_of(dumps({"kind": "PodList", "metadata": metadata, "items": []})).resource_version
        == ""
    )


@pytest.mark.parametrize(
    "body",
    [b"", b"{}", b"[]", b"null", b"<html></html>", b'{"kind":"Status","items":[]}', b'{"kind":"Pod","metadata":{"name":"a"}}',
     b'{"kind":"PodList","metadata":{"items":[]}}', b'{"items":"all of them"}', b'{"items":[],"metadata":"x"}'],
)  # fmt: skip
def test_T10_what_is_no_list_is_not_taken_for_an_empty_one(body: bytes) -> None:
    with pytest.raises(NotAList):
        page_of(body)


def test_T09_a_list_cut_anywhere_is_no_list() -> None:
    body = dumps(listed(pod("a"), pod("b"), pod("c")))
    for end in range(len(body)):
        with pytest.raises(NotAList):
            page_of(body[:end], step=50)


def test_items_that_look_like_several_are_one() -> None:
    trap = [{"metadata": {"name": "x"}}, {"metadata": {"name": '},{"metadata":'}}]
    items = [
        {"metadata": pod(f"p{n}")["metadata"], "spec": {"templates": trap * 3}} for n in range(9)
    ]
    for step in (0, 1, 64):
        page = page_of(dumps(listed(*items)), step=step)
        assert [frame.name for frame in page.objects] == [f"p{n}" for n in range(9)]
        assert json.loads(bytes(page.objects[4].fields["spec"])) == {"templates": trap * 3}


def test_an_items_array_elsewhere_is_not_the_lists_own() -> None:
    body = (
        b'{"metadata":{"items":[{"metadata":{}},{"metadata":{}}],"resourceVersion":"3"},"items":[%s]}'
        % dumps(pod("a"))
    )
    for step in (0, 1):
        assert [frame.name for frame in page_of(body, step=step).objects] == ["a"]


def test_a_damaged_item_is_a_failure_and_its_neighbours_are_objects() -> None:
    bad = [
        b"5",
        b"null",
        b"{}",
        b'{"metadata":{"name":"secret\xff","resourceVersion":"1"}}',
        b'{"metadata":{"name":"secret"}}',
    ]
    good = [dumps(pod(f"p{n}")) for n in range(6)]
    mixed = [part for pair in zip(good, bad, strict=False) for part in pair] + good[5:]
    for step in (0, 10):
        page = page_of(
            b'{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"9"},"items":['
            + b",".join(mixed)
            + b"]}",
            step=step,
        )
        assert [frame.name for frame in page.objects] == [f"p{n}" for n in range(6)]
        assert len(page.failures) == len(bad)
        assert all(
            isinstance(error, Undecodable) and "secret" not in str(error) for error in page.failures
        )


@pytest.mark.parametrize(
    "bad", [b'{"a":' + b"[" * 5000 + b"]" * 5000 + b"}", b'{"a":NaN,"b":"]},{"}', b'{"a":"\\q"}']
)
@pytest.mark.parametrize("place", [0, 3, 6])
def test_T27_an_item_that_no_decoder_takes_does_not_hide_the_others(bad: bytes, place: int) -> None:
    items = [dumps(pod(f"p{n}", note='"]}')) for n in range(6)]
    items.insert(place, bad)
    for step in (0, 1000):
        page = page_of(
            b'{"metadata":{"resourceVersion":"9"},"items":['
            + b",".join(items)
            + b'],"kind":"PodList"}',
            step=step,
        )
        assert [frame.name for frame in page.objects] == [f"p{n}" for n in range(6)]
        assert (len(page.failures), page.resource_version) == (1, "9")


def test_an_item_with_a_number_that_python_cannot_hold_is_an_object() -> None:
    item = b'{"metadata":{"name":"a","resourceVersion":"1"}, "spec":{"n":%b}}' % (b"9" * 5000)
    page = page_of(b'{"metadata":{"resourceVersion":"9"},"items":[' + item + b"]}")
    assert ([frame.name for frame in page.objects], page.failures) == (["a"], ())


def test_one_shard_of_a_list_is_never_taken_for_the_whole() -> None:
    with pytest.raises(Undecodable, match="shard"):
        page_of(
            b'{"kind":"PodList","metadata":{"resourceVersion":"1","shardInfo":{"selector":"x"}},"items":[]}'
        )


@pytest.mark.parametrize("kind", ["PartialObjectMetadata", "Pod"])
def test_T84_a_metadata_only_page_is_trimmed_and_carries_the_real_kind(kind: str) -> None:
    body = dumps(listed(*(pod(f"p{n}", kind=kind) for n in range(3)), kind=f"{kind}List"))
    page = page_of(body, selection=Selection(PODS.resource, metadata_only=True))
    for frame in page.objects:
        assert list(frame.fields) == ["apiVersion", "kind", "metadata"]
        assert (bytes(frame.fields["apiVersion"]), bytes(frame.fields["kind"])) == (
            b'"v1"',
            b'"Pod"',
        )
