"""A server, or a proxy before it, that answers without measure: bounded memory, one clear
line, and the client goes on."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import re
import tracemalloc
import zlib
from collections.abc import Awaitable, Callable
from random import Random

import pytest

from tests.fuzz.floods import bad_lines, bad_list
from tests.support.scripted import Reply, Request, ScriptedServer
from tests.support.turns import TurnLoop, held_by
from tests.unit.kube.served import (
    PODS,
    STREAM,
    client_of,
    dumps,
    failure_status,
    line,
    listed,
    pod,
    watch_from,
)
from watchrelay.core.errors import KubeError, Unavailable, Undecodable
from watchrelay.kube import status
from watchrelay.kube.client import DOCUMENT_BYTES_MAX
from watchrelay.kube.discovery.catalog import (
    NotDiscovery,
    parse_aggregated,
    parse_core_versions,
    parse_group_versions,
    parse_resources,
)
from watchrelay.kube.frame import outline
from watchrelay.kube.page import FAILURES_MAX, ITEM_BYTES_MAX, PageReader, TooLong
from watchrelay.kube.stream import DAMAGED_MAX, LINE_MAX, FrameReader
from watchrelay.model.frames import Failure, ListQuery, ObjectFrame

DEEP = b"[" * 100_000 + b"]" * 100_000
MIB = 1 << 20


def test_a_line_of_a_gibibyte_costs_no_more_memory_than_the_limit() -> None:
    stream, chunk = FrameReader(PODS), b"x" * MIB
    tracemalloc.start()
    try:
        frames = [frame for _ in range(1024) for frame in stream.feed(chunk)]
        assert tracemalloc.get_traced_memory()[1] < 2 * LINE_MAX
    finally:
        tracemalloc.stop()
    (failure,) = frames
    assert isinstance(failure, Failure)
    assert (
        str(failure.error)
        == "a watch line is longer than 32 MiB; metadataOnly would leave out what makes it so"
    )
    assert stream.ended


def test_two_hundred_thousand_small_events_in_one_chunk_are_as_many_frames() -> None:
    one = line("ADDED", pod("a", "1"))
    frames = FrameReader(PODS).feed(one * 200_000)
    assert len(frames) == 200_000
    assert isinstance(frames[-1], ObjectFrame)


@pytest.mark.parametrize(
    "text",
    [
        b'{"type":"ADDED","object":{"metadata":%b}}\n' % DEEP,
        b'{"type":"ADDED","object":{"metadata":{"name":"a","resourceVersion":"1","labels":%b}}}\n'
        % DEEP,
        b'{"type":"ERROR","object":{"kind":"Status","details":%b}}\n' % DEEP,
        b'{"type":%b}\n' % DEEP,
        DEEP + b"\n",
    ],
    ids=range(5),
)
def test_what_is_nested_without_end_is_one_failure_and_the_next_line_is_read(text: bytes) -> None:
    stream = FrameReader(PODS)
    first, *others = stream.feed(text + line("ADDED", pod("next", "2")))
    assert isinstance(first, Failure)
    assert str(first.error).isprintable()
    assert stream.ended or isinstance(others[0], ObjectFrame)


def test_a_list_beyond_the_limit_is_given_up_with_the_cure() -> None:
    reader, page = (
        PageReader(PODS, page_bytes_max=2 * MIB),
        dumps(listed(*(pod(f"p{n}") for n in range(100)))),
    )
    with pytest.raises(
        TooLong,
        match=r"the list is longer than 2 MiB; pageSize or metadataOnly would make it shorter",
    ):
        feed(reader, page, times=1000)


def feed(reader: PageReader, chunk: bytes, *, times: int) -> None:
    for _ in range(times):
        reader.feed(chunk)


@pytest.mark.parametrize(
    "begin", [b'{"items":[{"metadata":{"name":"', b"", b'{"items":[{"a":1},{"a":[[']
)
def test_what_begins_like_a_list_and_goes_on_without_end_is_given_up_at_an_objects_size(
    begin: bytes,
) -> None:
    reader = PageReader(PODS)
    reader.feed(begin)
    feed(reader, b"x" * MIB, times=(ITEM_BYTES_MAX >> 20) - 1)
    with pytest.raises(TooLong, match="goes on for 32 MiB without the end of an object"):
        feed(reader, b"x" * MIB, times=2)


def test_a_list_of_many_objects_that_are_hard_to_tell_apart_is_no_object_without_end() -> None:
    """Only the page's own limit counts for what waits to be decoded in one piece."""
    item = pod("a", spec={"list": [{"kind": "Pod"} for _ in range(100)]})
    reader = PageReader(PODS, item_bytes_max=64 << 10)
    body = dumps(listed(*[item] * 200))
    for at in range(0, len(body), 10_000):
        reader.feed(body[at : at + 10_000])
    assert len(reader.finish().objects) == 200


def test_objects_that_are_each_below_the_limit_are_a_list_however_large_together() -> None:
    body = dumps(listed(*(pod(f"p{n}", note="x" * 9 * MIB) for n in range(5))))
    reader = PageReader(PODS)
    for at in range(0, len(body), MIB):
        reader.feed(body[at : at + MIB])
    assert [each.name for each in reader.finish().objects] == [f"p{n}" for n in range(5)]


Handler = Callable[[Request, Reply], Awaitable[None]]


def first_then_well(bad: Handler) -> Handler:
    """A server whose first answer is `bad`."""
    answers = 0

    async def handler(request: Request, reply: Reply) -> None:
        nonlocal answers
        answers += 1
        if answers == 1:
            with contextlib.suppress(ConnectionError):
                await bad(request, reply)
        else:
            await reply.json(200, listed(pod("a")))

    return handler


async def refused_then_served(bad: Handler, kind: type[KubeError]) -> str:
    """The error of a list that is answered by `bad`; the next list, by the same client, is well."""
    async with ScriptedServer(first_then_well(bad)) as server, client_of(server.url) as client:
        with pytest.raises(kind) as caught:
            await client.list_page(PODS, ListQuery(), stream=STREAM)
        assert len((await client.list_page(PODS, ListQuery(), stream=STREAM)).objects) == 1
    assert str(caught.value).isprintable()
    return str(caught.value)


async def test_a_gzip_bomb_in_a_list_is_given_up_at_an_objects_size() -> None:
    async def bomb(request: Request, reply: Reply) -> None:
        packer = zlib.compressobj(9, zlib.DEFLATED, 31)
        body = packer.compress(b'{"items":[{"metadata":{"name":"') + b"".join(
            packer.compress(b"x" * MIB) for _ in range(256)
        )
        await reply.text(
            200,
            body + packer.flush(),
            {"Content-Type": "application/json", "Content-Encoding": "gzip"},
        )

    refused = await refused_then_served(bomb, Undecodable)
    assert "goes on for 32 MiB without the end of an object" in refused


async def test_a_list_that_never_ends_is_given_up() -> None:
    async def endless(request: Request, reply: Reply) -> None:
        await reply.start()
        while True:
            await reply.chunk(b" " * MIB)

    assert "without the end of an object" in await refused_then_served(endless, Undecodable)


async def test_an_error_body_without_end_is_read_as_far_as_it_is_useful() -> None:
    async def endless(request: Request, reply: Reply) -> None:
        await reply.start(500, {"Content-Type": "text/plain"})
        while True:
            await reply.chunk(b"no \x1b[2J" * MIB)

    assert len(await refused_then_served(endless, Unavailable)) < 600


@pytest.mark.parametrize(("count", "size"), [(1, 100_000), (3000, 60_000)], ids=["one", "many"])
async def test_headers_without_measure_are_no_http(count: int, size: int) -> None:
    async def long(request: Request, reply: Reply) -> None:
        await reply.start(200, {f"X-{number}": "x" * size for number in range(count)}, length=0)

    if count == 1:
        assert "not HTTP" in await refused_then_served(long, Unavailable)
    else:
        await refused_then_served(long, Unavailable)


async def test_a_discovery_document_beyond_the_limit_or_nested_without_end_is_unavailable() -> None:
    packed = gzip.compress(b" " * (DOCUMENT_BYTES_MAX + MIB))

    async def handler(request: Request, reply: Reply) -> None:
        if request.path == "/version":
            await reply.text(200, b'{"x":%b}' % DEEP, {"Content-Type": "application/json"})
        else:
            await reply.text(
                200, packed, {"Content-Type": "application/json", "Content-Encoding": "gzip"}
            )

    async with ScriptedServer(handler) as server, client_of(server.url) as client:
        with pytest.raises(
            Unavailable, match=r"longer than 64 MiB; is this URL the API server's\?"
        ):
            await client.get_json("/apis")
        with pytest.raises(
            Unavailable, match=r"the answer is not JSON; is this URL the API server's\?"
        ):
            await client.version()


@pytest.mark.parametrize(
    ("code", "body", "kind", "expected"),
    [
        (404, b"404 page not found", "text/plain", "404 page not found; is this URL the API server's?"),
        (
            200,
            b"<html>Sign in</html>",
            "text/html",
            "an HTML page, as a proxy or login page sends); is this URL the API server's?",
        ),
        (
            401,
            b"",
            "text/plain",
            (
                "(the token or client certificate was refused: it may have expired, or be of another "
                "cluster)"
            ),
        ),
    ],
)  # fmt: skip
async def test_what_answers_in_place_of_an_api_server_is_reported_with_the_cure(
    code: int, body: bytes, kind: str, expected: str
) -> None:
    async def handler(_request: Request, reply: Reply) -> None:
        await reply.text(code, body, {"Content-Type": kind})

    async with ScriptedServer(handler) as server, client_of(server.url) as client:
        with pytest.raises(KubeError, match=f"{re.escape(expected)}$"):
            await client.version()


async def test_a_chunk_that_never_ends_ends_the_watch_at_the_line_limit() -> None:
    async def handler(request: Request, reply: Reply) -> None:
        await reply.start()
        with contextlib.suppress(ConnectionError):
            await reply.raw(b"7fffffff\r\n")
            while True:
                await reply.raw(b"x" * MIB)

    async with ScriptedServer(handler) as server, client_of(server.url) as client:
        async with asyncio.timeout(60), client.watch(PODS, watch_from(), stream=STREAM) as frames:
            (failure,) = [frame async for batch in frames for frame in batch]
        assert isinstance(failure, Failure)
        assert isinstance(failure.error, Undecodable)


@pytest.mark.parametrize("seed", range(10))
def test_no_list_and_no_watch_that_is_hard_to_judge_holds_the_loop(seed: int) -> None:
    rng = Random(seed)
    bodies = {"list": bad_list(rng), "watch": bad_lines(rng)}

    async def handler(request: Request, reply: Reply) -> None:
        body = bodies["watch" if "watch" in request.query else "list"]
        await reply.start(200, {"Content-Type": "application/json"}, length=len(body))
        with contextlib.suppress(ConnectionError):
            for at in range(0, len(body), MIB):
                await reply.raw(body[at : at + MIB])
            await reply.end()

    async def asked(loop: TurnLoop) -> None:
        async with ScriptedServer(handler) as server, client_of(server.url) as client:
            loop.begin()
            with contextlib.suppress(KubeError):
                page = await client.list_page(PODS, ListQuery(), stream=STREAM)
                assert len(page.failures) <= FAILURES_MAX
            async with client.watch(PODS, watch_from(), stream=STREAM) as frames:
                with contextlib.suppress(KubeError):
                    assert len([each async for batch in frames for each in batch]) <= 1001

    assert not (wrong := held_by(asked)), wrong


@pytest.mark.parametrize("first", [b'{"metadata":{"name":"p"}}', b"null"])
def test_a_page_of_too_many_undecodable_items_fails_as_one_and_names_the_first(
    first: bytes,
) -> None:
    bad = [first, *(b'{"metadata":{"name":"p%d"}}' % number for number in range(FAILURES_MAX))]

    def read(items: list[bytes]) -> PageReader:
        reader = PageReader(PODS)
        reader.feed(b'{"metadata":{},"items":[%b]}' % b",".join(items))
        return reader

    assert len(read(bad[:-1]).finish().failures) == FAILURES_MAX
    with pytest.raises(Undecodable, match=r"^more than 1000 items .* /p0.* and 99\d other objects"):
        read(bad).finish()


@pytest.mark.parametrize("step", [1000, 1 << 20])
def test_a_watch_of_too_many_undecodable_lines_is_ended(step: int) -> None:
    stream, good = FrameReader(PODS), line("ADDED", pod("a"))
    data = good * 500 + b"{}\n" * 600 + good * 300 + b"1\n" * 3000 + good
    frames = [
        each for at in range(0, len(data), step) for each in stream.feed(data[at : at + step])
    ]
    # of the good lines, those count that make up for damaged ones before
    assert stream.ended
    assert len(frames) == 500 + 600 + 300 + (DAMAGED_MAX - 600 + 300) + 1
    assert isinstance(frames[-1], Failure)
    assert "1000 more than can; the last: a watch line cannot be decoded" in str(frames[-1].error)


def test_a_large_object_is_named_by_what_comes_first() -> None:
    rest = b",".join([b"[]"] * 100_000)
    found = outline(b'{"metadata":{"name":"a"},"spec":[%b],"kind":"Pod"}' % rest)
    assert found["metadata"] == b'{"name":"a"}'
    assert "kind" not in found


NAMES = [
    "../../secrets",
    "pods\n",
    "",
    ".",
    "..",
    "x" * 300,
    "pöds",
]


@pytest.mark.parametrize("name", NAMES, ids=map(repr, NAMES))
def test_what_discovery_names_never_reaches_a_path_a_topic_or_a_label_unless_it_is_a_name(
    name: str,
) -> None:
    good: dict[str, object] = {
        "resource": "pods",
        "responseKind": {"kind": "Pod"},
        "scope": "Namespaced",
        "verbs": ["list", "watch"],
    }

    def served(group: str, version: str, *resources: dict[str, object]) -> list[str]:
        body = {
            "items": [
                {
                    "metadata": {"name": group},
                    "versions": [{"version": version, "resources": list(resources)}],
                }
            ]
        }
        return [
            str(each.resource)
            for _, found in parse_aggregated(dumps(body))
            for v in found.versions
            for each in v.served
        ]

    assert served("example.com", "v1", {**good, "resource": name}, good) == ["pods.example.com/v1"]
    assert served("example.com", name, good) == []
    if name:
        assert served("example.com", "v1", {**good, "responseKind": {"kind": name}}) == []
        assert served(name, "v1", good) == []
    legacy = parse_resources(
        "",
        "v1",
        dumps({"resources": [{"name": name, "kind": "Pod"}, {"name": "pods", "kind": "Pod"}]}),
    )
    assert [each.resource.plural for each in legacy.served] == ["pods"]
    assert parse_core_versions(dumps({"versions": [name, "v1"]})) == [("", ["v1"])]
    groups = {
        "groups": [
            {"name": name, "versions": [{"version": "v1"}]},
            {"name": "a.b", "versions": [{"version": name}]},
        ]
    }
    assert parse_group_versions(dumps(groups)) == [("a.b", [])]


def test_discovery_that_is_nested_without_end_is_none() -> None:
    with pytest.raises(NotDiscovery):
        list(parse_aggregated(b'{"items":%b}' % DEEP))


def test_nothing_of_a_status_breaks_the_line_or_fills_it() -> None:
    hostile = "\x1b[2J\r\n\u2028" + "x" * 100_000
    for body in (
        failure_status(500, hostile),
        failure_status(500, "X", hostile),
        failure_status(403, hostile, hostile),
    ):
        headers = {
            "X-Kubernetes-PF-FlowSchema-UID": hostile,
            "X-Kubernetes-PF-PriorityLevel-UID": hostile,
            "Content-Type": hostile,
        }
        for error in (
            status.from_response(500, headers, dumps(body), what="list", wall_ms=0),
            status.from_watch(dumps(body)),
        ):
            assert str(error).isprintable()
            assert len(str(error)) < 1200


def test_names_of_objects_with_anything_in_them_pass_as_the_bytes_they_are() -> None:
    """Kafka's headers and keys carry their length: nothing in a name can become another header. A
    slash alone would make another key."""
    for name in ("a\r\nce_type: x", "a\x00b", "\u202eexe", "x" * 5000):
        (frame,) = FrameReader(PODS).feed(line("ADDED", pod(name)))
        assert isinstance(frame, ObjectFrame)
        assert frame.name == name
    (failure,) = FrameReader(PODS).feed(line("ADDED", pod("../etc")))
    assert isinstance(failure, Failure)
