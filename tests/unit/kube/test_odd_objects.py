"""Objects that are odd but well-formed: nested deeply, with odd names or versions. In a list and in
a watch they are treated alike."""

from __future__ import annotations

import pytest

from tests.unit.kube.served import PODS, WIDGETS, bookmark, dumps, line, listed, pod
from watchrelay.core.errors import Undecodable
from watchrelay.kube.frame import DEPTH_MAX
from watchrelay.kube.page import NotAList, PageReader
from watchrelay.kube.stream import FrameReader
from watchrelay.model.frames import Bookmark, Failure, Frame, ObjectFrame, Page
from watchrelay.model.resources import Selection


def nested(levels: int, style: str = "maps") -> bytes:
    """A pod whose maps and lists are `levels` deep, its own map counted."""
    inner = levels - 1
    if style == "lists":
        deep = b"[" * inner + b"]" * inner
    elif style == "apart":
        # no bracket beside another, and a string that looks like the end of it all
        deep = b'{"a":' * inner + b"1" + b',"b":"}]}"}' * inner
    else:
        deep = b'{"a":' * inner + b"1" + b"}" * inner
    return dumps(pod("deep", "7"))[:-1] + b',"status":' + deep + b"}"


def watched(verb: str, text: bytes, selection: Selection = WIDGETS) -> list[Frame]:
    stream = FrameReader(selection)
    return stream.feed(
        b'{"type":"%b","object":%b}\n' % (verb.encode(), text) + line("ADDED", pod("next", "8"))
    )


def page_with(text: bytes, step: int = 0, selection: Selection = WIDGETS) -> Page:
    body = b'{"kind":"WidgetList","apiVersion":"example.com/v1","metadata":{"resourceVersion":"9"},"items":['
    body += b",".join((dumps(pod("first")), text, dumps(pod("last")))) + b"]}"
    reader = PageReader(selection)
    for at in range(0, len(body), step or len(body)):
        reader.feed(body[at : at + (step or len(body))])
    return reader.finish()


@pytest.mark.parametrize("style", ["maps", "lists", "apart"])
def test_an_object_at_the_depth_limit_is_an_object_in_watch_and_list(style: str) -> None:
    frame, _ = watched("ADDED", nested(DEPTH_MAX, style))
    assert isinstance(frame, ObjectFrame)
    assert [frame.name for frame in page_with(nested(DEPTH_MAX, style)).objects] == [
        "first",
        "deep",
        "last",
    ]


@pytest.mark.parametrize("style", ["maps", "lists", "apart"])
@pytest.mark.parametrize("levels", [DEPTH_MAX + 1, 980, 1000, 20_000])
@pytest.mark.parametrize("verb", ["ADDED", "MODIFIED"])
def test_a_deeper_object_is_undecodable_and_names_itself_in_a_watch(
    verb: str, levels: int, style: str
) -> None:
    failure, after = watched(verb, nested(levels, style))
    assert isinstance(failure, Failure)
    assert isinstance(failure.error, Undecodable)
    assert "nested too deeply" in str(failure.error)
    assert failure.error.about == ("shop", "deep")
    assert isinstance(after, ObjectFrame)


@pytest.mark.parametrize("step", [0, 1000])
@pytest.mark.parametrize("levels", [DEPTH_MAX + 1, 980, 1000, 20_000])
def test_a_deeper_object_is_undecodable_and_names_itself_in_a_list(levels: int, step: int) -> None:
    page = page_with(nested(levels), step)
    assert [frame.name for frame in page.objects] == ["first", "last"]
    (error,) = page.failures
    assert isinstance(error, Undecodable)
    assert "nested too deeply" in str(error)
    assert error.about == ("shop", "deep")


@pytest.mark.parametrize("levels", [DEPTH_MAX + 1, 960, 20_000])
def test_the_deletion_of_a_deeper_object_is_a_deletion(levels: int) -> None:
    frame, _ = watched("DELETED", nested(levels))
    assert isinstance(frame, ObjectFrame)
    assert (frame.type, frame.namespace, frame.name, frame.uid, frame.resource_version) == (
        "DELETED",
        "shop",
        "deep",
        "uid-deep",
        "7",
    )


def test_a_line_that_is_no_json_is_no_deletion() -> None:
    failure, _ = watched("DELETED", nested(3).replace(b'"status":', b'"status"'))
    assert isinstance(failure, Failure)


@pytest.mark.parametrize(
    ("text", "about"),
    [
        (b'{"metadata":{"name":"a","namespace":"n","resourceVersion":"1"},"s":"\xff"}', ("n", "a")),
        (b'{"s":{"metadata":{"name":"other"}},"metadata":{"x":{"name":"other"},"name":"a"}}', ("", "a")),
        (b'{"s":"\\\\\\"}","metadata" : { "namespace" : "n" , "name" : "a"} , "t":NaN}', ("n", "a")),
        (b'{"metadata":{"name":"a","namespace":"n","resourceVersion":5}}', ("n", "a")),
        (b'{"metadata":{"name":"a","namespace":5,"resourceVersion":"1"}}', None),
        (b'{"metadata":{"name":"a","name":"b","resourceVersion":"1"}}', None),
        (b'{"metadata":{"name":"a"},"metadata":{"name":"b"}}', None),
        (b'{"metadata":{"name":""}}', None),
        (b'{"metadata":"a"}', None),
        (b"5", None),
    ],
)  # fmt: skip
def test_an_undecodable_item_says_which_object_it_is_where_that_can_be_read(
    text: bytes, about: tuple[str, str] | None
) -> None:
    (error,) = page_with(text, selection=PODS).failures
    assert isinstance(error, Undecodable)
    assert error.about == about


@pytest.mark.parametrize("version", ["", None, 5, True, [], {}])
def test_a_bookmark_with_a_version_of_another_type_moves_nothing_and_is_no_failure(
    version: object,
) -> None:
    mark, after = FrameReader(PODS).feed(bookmark(version) + line("ADDED", pod("a", "8")))
    assert mark == Bookmark("")
    assert isinstance(after, ObjectFrame)


@pytest.mark.parametrize("levels", [900, 950, 970])
def test_a_bookmark_nested_deeply_moves_nothing_at_worst(levels: int) -> None:
    deep = b"[" * levels + b"]" * levels
    text = (
        b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"9","annotations":%b}}}\n'
        % deep
    )
    (mark,) = FrameReader(PODS).feed(text)
    assert mark in (Bookmark(""), Bookmark("9")) or isinstance(mark, Failure)


@pytest.mark.parametrize(
    "metadata",
    [
        {"resourceVersion": 5},
        {"resourceVersion": ["5"]},
        {"resourceVersion": "5", "continue": {}},
        [],
        "x",
        7,
    ],
)
def test_a_list_with_metadata_of_odd_types_is_whole_and_no_sign_of_a_broken_server(
    metadata: object,
) -> None:
    body = dumps(listed(pod("a")) | {"metadata": metadata})
    for step in (0, 20):
        with pytest.raises(NotAList, match="metadata") as error:
            read(body, step)
        assert error.value.whole


def read(body: bytes, step: int) -> Page:
    reader = PageReader(PODS)
    for at in range(0, len(body), step or len(body)):
        reader.feed(body[at : at + (step or len(body))])
    return reader.finish()
