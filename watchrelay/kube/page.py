"""Turns the body of a list, while it is received, into one `Page`.

A list without paging may have hundreds of megabytes, and a decoder holds the interpreter until it
is done. So items are decoded as they arrive, a few milliseconds per chunk at most. Where an item
ends is guessed from how the first one begins and proved by decoding: no proper prefix of a JSON
object is a JSON object. What cannot be decoded this way is decoded in one piece at the end.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator

import msgspec
from msgspec import UNSET, Raw, UnsetType

from watchrelay.core.errors import Undecodable
from watchrelay.core.text import BROKEN_JSON, listed, short
from watchrelay.kube.frame import (
    ObjectReader,
    Odd,
    about,
    compact_size,
    decode_fields,
    refuse_duplicates,
    refuse_too_deep,
    split_items,
    why,
)
from watchrelay.kube.part_filter import CountForeign, PartFilter, uncounted
from watchrelay.model.frames import ObjectFrame, Page
from watchrelay.model.resources import Selection

_ITEMS = re.compile(rb'"items"\s*:\s*\[(\s*)')
_FIRST_KEY = re.compile(rb'\{\s*"[^"\\]*"\s*:\s*')
_HEAD_MAX = 64 << 10
_ITEM_MAX = 8 << 20
"""Bytes without the end of an item until the rest of the page is left for the end: what waits is
copied with each chunk."""
PAGE_BYTES_MAX = 2 << 30
"""Of one answer, unpacked: a list without paging may hold every object of a large cluster."""
ITEM_BYTES_MAX = 32 << 20
"""Of one object, as in a watch: a body that begins like a list but never ends an object is given up
here."""
_GUESSES = 16
"""Wrong guesses about one item's end until the rest of the page is left for the end: keeps the cost
linear."""
FAILURES_MAX = 1000
"""Items of one page that cannot be decoded, until the list fails. Each is named and logged."""
_COMMAS_MAX = 500_000
"""In what is decoded in one call: it may be as many items."""
_NAMED = 3


class _Metadata(msgspec.Struct, gc=False, rename="camel"):
    resource_version: str | None = None
    continue_: str | None = msgspec.field(default=None, name="continue")
    shard_info: Raw = msgspec.field(default_factory=Raw)


class _List(msgspec.Struct, gc=False, rename="camel"):
    kind: str | None = None
    metadata: _Metadata | None = None
    items: list[Raw] | UnsetType | None = UNSET


_list: msgspec.json.Decoder[_List] = msgspec.json.Decoder(_List)


class TooLong(ValueError):
    """The body exceeds a limit; the message names it and the cure."""


class NotAList(ValueError):
    """The body is no list: a Status, HTML, nothing, or cut short. `whole`: it is JSON with items,
    so the server sent all of it."""

    def __init__(self, message: str, *, whole: bool = False) -> None:
        super().__init__(message)
        self.whole = whole


class PageReader:
    """Reads one response of a list."""

    def __init__(
        self,
        selection: Selection,
        *,
        page_bytes_max: int = PAGE_BYTES_MAX,
        item_bytes_max: int = ITEM_BYTES_MAX,
        count_foreign: CountForeign = uncounted,
    ) -> None:
        keys, resource = selection.part, selection.resource
        self._part = None if keys is None else PartFilter(keys, resource, count_foreign)
        self._selection = selection
        self._left, self._item_bytes_max = page_bytes_max, item_bytes_max
        self._too_long = (
            f"the list is longer than {page_bytes_max >> 20} MiB; pageSize or metadataOnly would "
            "make it shorter"
        )
        self._reader = ObjectReader(selection.resource, metadata_only=selection.metadata_only)
        self._objects: list[ObjectFrame] = []
        self._failures: list[Undecodable] = []
        self._head = self._rest = b""
        self._parts: list[bytes] = []
        """What came once items were no longer split off."""
        self._given_up = False
        self._object_left: int | None = None
        """Of the object that is being received, where it was given up for its size."""
        self._starts: tuple[bytes, ...] = ()
        """How the text from one item's end to the next one's first value may read; one, once it was
        seen."""
        self._searched = 0
        self._page: Page | None = None

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of the body, and the items that they complete.

        Raises: TooLong; Undecodable if more than `FAILURES_MAX` items cannot be decoded.
        """
        self._left -= len(chunk)
        if self._left < 0:
            raise TooLong(self._too_long)
        if self._given_up:
            self._bound_object(chunk)
            self._parts.append(chunk)
            return
        data = self._rest + chunk
        if not self._starts:
            data = self._begin(data)
        self._rest = self._take(data) if self._starts else data
        if len(self._rest) > (_ITEM_MAX if self._starts else _HEAD_MAX):
            self._given_up = True
            self._object_left = self._item_bytes_max - len(self._rest)

    def _bound_object(self, chunk: bytes) -> None:
        """Raises: TooLong where no object has ended for too long."""
        if self._object_left is None:
            return
        last = self._parts[-1] if self._parts else self._rest
        if any(start in last[-len(start) :] + chunk for start in self._starts):
            self._object_left = self._item_bytes_max
        self._object_left -= len(chunk)
        if self._object_left < 0:
            raise TooLong(
                f"what should be a list goes on for {self._item_bytes_max >> 20} MiB without the "
                "end of an object"
            )

    def finish(self) -> Page:
        """The page, once the body is complete. Raises: as `pieces`, unless they were taken."""
        if self._page is None:
            for _ in self.pieces():
                pass
        assert self._page is not None, "the last piece makes it"
        return self._page

    def pieces(self) -> Iterator[None]:
        """Take what is left of the complete body, in pieces: the event loop can have its turn
        between them.

        Raises: NotAList; Undecodable as `feed`, or if the answer is one shard of the list.
        """
        found = yield from self._rest_of_list()
        if found.items is UNSET or found.kind == "Status":
            raise NotAList("it has no items")
        metadata = found.metadata or _Metadata()
        if bytes(metadata.shard_info) not in {b"", b"null"}:
            raise Undecodable(
                "the server answered with one shard of the list; a shard is never taken for the "
                "whole"
            )
        for item in found.items or ():
            self._keep(bytes(item))
            yield
        self._page = Page(
            metadata.resource_version or "",
            metadata.continue_ or None,
            self._objects,
            tuple(self._failures),
        )

    def _rest_of_list(self) -> Generator[None, None, _List]:
        """The list with the items that were not taken yet."""
        rest = b"".join((self._rest, *self._parts))
        self._rest, self._parts = b"", []
        if rest.count(b",") <= _COMMAS_MAX:
            try:
                return _list.decode(self._head + rest)
            except BROKEN_JSON as error:
                return (yield from self._apart(rest, error))
        return (yield from self._apart(rest, Odd("it is not clear where its items end")))

    def _apart(self, rest: bytes, error: Exception) -> Generator[None, None, _List]:
        """The list when it does not decode as a whole, or would take too long, its items taken: one
        item that no decoder takes must not hide the others."""
        if not self._head and (found := _ITEMS.search(rest)) and _are_own(rest[: found.end()]):
            self._head, rest = rest[: found.end()], rest[found.end() :]
        end: int | None = None
        for item in split_items(rest) if self._head else ():
            if isinstance(item, bytes):
                self._keep(item)
            elif item is not None:
                end = item
            yield
        if end is None:
            raise _not_a_list(self._head + rest, error)
        try:
            return _list.decode(self._head + rest[end:])
        except BROKEN_JSON:
            raise _not_a_list(self._head + rest, error) from None

    def _begin(self, data: bytes) -> bytes:
        """Find where the items begin and how each of them does; what is left are items."""
        found = _ITEMS.search(data, 0, _HEAD_MAX)
        first = _FIRST_KEY.match(data, found.end()) if found else None
        if found is None or first is None:
            return data
        head = data[: found.end()]
        if not _are_own(head):
            self._given_up = True  # an `items` deeper down
            return data
        self._head = head
        self._starts = (b"}," + found.group(1) + first.group(), b"}, " + first.group())
        return data[found.end() :]

    def _take(self, data: bytes) -> bytes:
        """Take every item that another one follows; what is left begins with an item."""
        begin = guesses = 0
        scan = self._searched
        while (end := self._next(data, scan)) >= 0:
            if self._keep(data[begin : end + 1], sure=False):
                begin = scan = data.index(b"{", end)
                guesses = 0
                continue
            scan = end + 1
            guesses += 1
            if guesses == _GUESSES:
                self._given_up = True
                break
        self._searched = max(0, len(data) - begin - max(map(len, self._starts)))
        return data[begin:]

    def _next(self, data: bytes, scan: int) -> int:
        """Where an item may end, -1 if nowhere."""
        for start in self._starts:
            if (end := data.find(start, scan)) >= 0:
                self._starts = (start,)
                return end
        return -1

    def _keep(self, item: bytes, *, sure: bool = True) -> bool:
        """Add the object of `item`. False if it is no JSON object, so perhaps not the whole item;
        when `sure`, that is a failure."""
        if self._part is not None and self._part.is_foreign_item(item):
            return True
        try:
            fields = decode_fields(item)
        except BROKEN_JSON as error:
            if sure:
                self._fail(error, item)
            return False
        try:
            if not item.isascii():
                item.decode()
            if compact_size(fields) != len(item):
                refuse_duplicates(item, fields)
            if self._selection.depth_checked:
                refuse_too_deep(item)
            self._objects.append(self._reader.read("ADDED", fields))
        except (*BROKEN_JSON, Odd) as error:
            self._fail(error, item)
        return True

    def _fail(self, error: Exception, item: bytes) -> None:
        if len(self._failures) == FAILURES_MAX:
            names = [short("/".join(each.about)) for each in self._failures if each.about]
            first = f", of {listed(names, shown=_NAMED, what='object')}" if names else ""
            raise Undecodable(
                f"more than {FAILURES_MAX} items of one page cannot be decoded; with a pageSize of "
                f"at most {FAILURES_MAX} the others are published; the first error{first}: "
                f"{self._failures[0]}"
            )
        self._failures.append(
            Undecodable(
                f"an item of the list of {self._selection.resource} cannot be decoded: "
                f"{why(error)}",
                about=about(item),
            )
        )


def _are_own(head: bytes) -> bool:
    """Whether the items that begin after `head` are those of the list: not others, deeper down."""
    try:
        return _list.decode(head + b"]}").items is not UNSET
    except BROKEN_JSON:
        return False


def _not_a_list(body: bytes, error: Exception) -> NotAList:
    try:
        items = bytes(decode_fields(body)["items"])
    except (KeyError, *BROKEN_JSON):
        return NotAList(why(error))
    return NotAList(
        "its kind or metadata has not the shape of a list's", whole=items.startswith(b"[")
    )
