"""Whether the pages of a list come to an end. Pure."""

from __future__ import annotations

import msgspec

from watchrelay.core.errors import Undecodable
from watchrelay.model.frames import Page

EMPTY_PAGES = 1000
"""A list fails after this number of pages in a row without an object. Fewer are legal where a
selector rejects all that a page has read: 500,000 objects in pages of 500. Source:
docs/watch-facts.md 1.4."""
EMPTY_S = 600.0
"""A list fails if its pages bring no object for this time. Before it is over, kube-apiserver
refuses a continue token, because its history is compacted (docs/watch-facts.md 1.8)."""
_CURE = "mend the API server or what answers in its place"


class Pages(msgspec.Struct, frozen=True):
    """The pages of a list that have come: `count` with objects, and `empty` in a row since the
    newest of these, which came at `object_at_s` (where there is none: when the first page came).

    `mark` is the first object of one page, and becomes that of a later one each time `count` has
    doubled: so pages in a circle of any length come to it again, though one name is all that is
    kept."""

    count: int = 0
    empty: int = 0
    mark: tuple[str, str] | None = None
    object_at_s: float | None = None

    @property
    def all_empty(self) -> bool:
        """Whether pages have come, and none had an object: the store holds nothing of the list."""
        return self.empty > 0 and self.count == 0

    def then(self, page: Page, sent_token: str, now_s: float) -> Pages | str:
        """The pages with `page`, which was requested with `sent_token` and is not the last; or, in
        words, what shows that they repeat or bring nothing, with the cure. A list that brings
        objects it has not brought before may be of any length."""
        if page.continue_token == sent_token:
            return f"repeats a page: the server sent the same continue token twice; {_CURE}"
        first = _first_object(page)
        if first is None:
            since_s = now_s if self.object_at_s is None else self.object_at_s
            empty, took_s = self.empty + 1, now_s - since_s
            if empty >= EMPTY_PAGES or took_s >= EMPTY_S:
                return f"does not end: {empty} pages in {took_s:.0f} s without an object; {_CURE}"
            return Pages(self.count, empty, self.mark, since_s)
        if first == self.mark:
            name = "/".join(filter(None, first))
            return f"repeats its pages: more than one begins with {name}; {_CURE}"
        count = self.count + 1
        return Pages(count, 0, self.mark if count & (count - 1) else first, now_s)


def _first_object(page: Page) -> tuple[str, str] | None:
    """Namespace and name; those of an undecodable object where no other came."""
    if page.objects:
        return page.objects[0].namespace, page.objects[0].name
    about = (error.about for error in page.failures if isinstance(error, Undecodable))
    return next((each for each in about if each is not None), None)
